"""One kept SSH connection to a machine (paramiko), and the agent's protocol over it.

Rules
- The machine is a stranger's: every answer is bounded in size and time, nothing of it is executed or trusted.
- Every call has a deadline, even where the network swallows everything; `close` works at once.
- No retries and no database here: a failure is one error of `ssh_errors`, and the caller decides.
- Login scripts may print: an answer starts after a marker line that the remote shell prints last (B049).

The kept stream is paramiko on a socket with TCP_NODELAY (without it a command waits 40 ms for a delayed ACK).
`one_off` hands out a `fabric.Connection` with the same key and pinned host key, for what a person runs once
(`gpujob ssh JOB -- COMMAND`); rsync and interactive shells use OpenSSH with the same files.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import select
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.agent.layout import LAUNCHER
from orchestrator.ssh_errors import (
    AgentRefused,
    BadStream,
    HostKeyChanged,
    KeyRejected,
    SshError,
    ToolMissing,
    Unreachable,
)
from orchestrator.ssh_files import Target, new_key, pin, pinned_keys, prepare

if TYPE_CHECKING:
    import paramiko  # functions import it: a fifth of the controller's start, needed once a machine is there

__all__ = ["Connection", "Ran", "Target", "connect", "new_key", "one_off", "prepare", "stop_sharing"]

MARKER = "gpujob-answer-begins"
AGENT = f"python3 -I -c {shlex.quote(LAUNCHER)} ~/.gpujob"
LINE_MAX = 128 * 1024  # twice the protocol's own bound
OUTPUT_MAX = 64 * 1024 * 1024  # a manifest of 300,000 files; more is an attack or a mistake
KEEPALIVE_S = 10
IDLE_WAKE_S = 1.0  # how often paramiko's reading thread looks up; at its own 0.1 s, 200 of them cost a tenth of a core
UNACKED_MS = 30_000  # TCP gives up on a peer that has acknowledged nothing for so long
STOP_POLL_S = 1.0  # how late a set stop event is seen; `close` is immediate

# Put the agent there in one step, durable and whole or not at all. Runs on the machine's Python 3.8+.
INSTALL_AGENT = """
import hashlib, os, sys
data = sys.stdin.buffer.read()
assert hashlib.sha256(data).hexdigest() == sys.argv[1], "the upload was cut"
folder = os.path.expanduser("~/.gpujob")
os.makedirs(folder, mode=0o700, exist_ok=True)
path = os.path.join(folder, "agent.py")
with open(path + ".%d.tmp" % os.getpid(), "wb") as file:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
os.chmod(file.name, 0o700)
os.replace(file.name, path)
"""


@dataclass(frozen=True)
class Ran:
    """A finished command: exit code (-1: ended by a signal), stdout and stderr."""

    rc: int
    out: bytes
    err: bytes


class Connection:
    """A live connection; made by `connect`. Calls from several threads run side by side."""

    def __init__(self, target: Target, transport: paramiko.Transport, sock: socket.socket) -> None:
        self.target = target
        self._transport = transport
        self._sock = sock
        self._closed = threading.Event()

    @property
    def alive(self) -> bool:
        """False once the connection is known to be gone; True is no promise."""
        return not self._closed.is_set() and self._transport.is_active()

    def close(self) -> None:
        """End the connection now; every call in progress raises Unreachable. Harmless when repeated."""
        self._closed.set()
        try:
            # Wakes paramiko's reading thread, which `Transport.close` waits for
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was gone already
        self._transport.close()
        self._sock.close()

    def run(self, command: str, stdin: bytes = b"", timeout_s: float = 60.0, output_max: int = OUTPUT_MAX) -> Ran:
        """Run one shell command line to its end; quote its parts with shlex before."""
        with self._channel(command, timeout_s) as chan:
            deadline = time.monotonic() + timeout_s
            # The channel closes itself at the deadline, which ends every wait inside paramiko as well
            with self._translated(timeout_s), _closing_at(chan, timeout_s):
                if stdin:
                    chan.sendall(stdin)
                chan.shutdown_write()
                out, err = self._collect(chan, deadline, output_max)
                chan.status_event.wait(max(0.0, deadline - time.monotonic()))
            if time.monotonic() >= deadline:
                raise self._lost("timeout", f"no end of `{_short(command)}` within {timeout_s:g} s")
            if not self.alive:
                raise self._lost("reset", "the connection broke")
            return Ran(chan.exit_status, out, err)

    def agent(self, command: str, payload: Mapping[str, Any], timeout_s: float = 60.0) -> dict[str, Any]:
        """One agent command with its JSON answer; a refusal raises AgentRefused."""
        request = json.dumps(payload).encode() + b"\n"
        ran = self.run(f"echo {MARKER}; exec {AGENT} {shlex.quote(command)}", request, timeout_s)
        _, marker, text = ran.out.partition(f"{MARKER}\n".encode())
        if not marker or not text.strip():
            raise self._no_answer(command, ran)
        return self._checked(command, text)

    def push_agent(self, timeout_s: float = 60.0) -> str:
        """Put our agent there unless it is, start its supervisor; return the SHA-256 of the source."""
        from orchestrator.agent import agent_source

        source = agent_source()
        wanted = hashlib.sha256(source).hexdigest()
        found = self.run("sha256sum ~/.gpujob/agent.py", b"", timeout_s)
        if wanted.encode() not in found.out:
            install = f"python3 -c {shlex.quote(INSTALL_AGENT)} {wanted}"
            ran = self.run(install, source, timeout_s)
            if ran.rc != 0:
                raise self._no_answer("install", ran)
        self.agent("start", {}, timeout_s)
        return wanted

    def follow(
        self,
        payload: Mapping[str, Any],
        on_line: Callable[[dict[str, Any]], None],
        stop: threading.Event,
        silence_s: float = 15.0,
    ) -> None:
        """Call `on_line` for every object of the agent's stream until `stop` is set; any other end raises.

        Every beat is answered, or the agent would take the controller for asleep and act alone on a reclaim.

        Unreachable: the connection broke, the stream ended, or no whole line came for `silence_s`.
        BadStream: a line over LINE_MAX or not a JSON object. An exception of `on_line` ends the stream.
        """
        with self._channel(f"echo {MARKER}; exec {AGENT} follow", silence_s) as chan:
            with self._translated(silence_s), _closing_at(chan, silence_s):
                chan.sendall(json.dumps(payload).encode() + b"\n")
            started = False
            heard_aside = bytearray()
            for line in self._lines(chan, stop, silence_s, heard_aside):
                if started:
                    answer = self._checked("follow", line)
                    if answer.get("t") == "beat":
                        with self._translated(silence_s):
                            chan.sendall(b"\n")  # tells the agent that somebody is there
                    on_line(answer)
                started = started or line.strip() == MARKER.encode()
            if stop.is_set():
                return
            chan.status_event.wait(1.0)
            if self.alive and chan.exit_status not in (0, -1):
                raise self._no_answer("follow", Ran(chan.exit_status, b"", bytes(heard_aside)))
            raise self._lost("ended" if self.alive else "reset", "the agent's stream ended")

    def _lines(
        self, chan: paramiko.Channel, stop: threading.Event, silence_s: float, aside: bytearray
    ) -> Iterator[bytes]:
        """Whole lines without their newline, until the channel ends or `stop` is set; stderr into `aside`."""
        poller = select.poll()
        poller.register(chan.fileno(), select.POLLIN)
        buffer = bytearray()
        heard = time.monotonic()
        while not stop.is_set():
            ended = chan.eof_received or chan.closed
            while chan.recv_stderr_ready():  # unread, it would keep the poll below from waiting
                aside[:] = (bytes(aside) + chan.recv_stderr(4096))[-4096:]
            if chan.recv_ready():
                buffer += chan.recv(256 * 1024)
                *lines, rest = bytes(buffer).split(b"\n")
                if lines:
                    heard = time.monotonic()
                    yield from lines
                    buffer = bytearray(rest)
                if len(rest) > LINE_MAX:
                    raise BadStream(f"a line of more than {LINE_MAX} bytes", where=self.target.where)
            elif ended:
                return
            elif time.monotonic() - heard > silence_s:
                raise self._lost("silence", f"nothing heard for {silence_s:g} s")
            else:
                poller.poll(1000 * min(STOP_POLL_S, silence_s))

    def _collect(self, chan: paramiko.Channel, deadline: float, output_max: int) -> tuple[bytes, bytes]:
        """Everything from stdout and stderr until both end."""
        poller = select.poll()
        poller.register(chan.fileno(), select.POLLIN)
        out, err = bytearray(), bytearray()
        while True:
            ended = chan.eof_received or chan.closed  # read before the last look at the buffers
            while chan.recv_ready():
                out += chan.recv(256 * 1024)
            while chan.recv_stderr_ready():
                err += chan.recv_stderr(256 * 1024)
            if len(out) + len(err) > output_max:
                raise BadStream(f"an answer of more than {output_max} bytes", where=self.target.where)
            if ended or time.monotonic() >= deadline:
                return bytes(out), bytes(err)
            poller.poll(1000 * max(0.0, deadline - time.monotonic()))

    @contextmanager
    def _channel(self, command: str, timeout_s: float) -> Iterator[paramiko.Channel]:
        """A session that runs `command`, closed at the end of the block."""
        if not self.alive:
            raise self._lost("closed", "the connection is closed")
        with self._translated(timeout_s):
            chan = self._transport.open_session(timeout=timeout_s)
        try:
            with self._translated(timeout_s), _closing_at(chan, timeout_s):
                chan.settimeout(timeout_s)
                chan.exec_command(command)
            yield chan
        finally:
            _close_quietly(chan)

    @contextmanager
    def _translated(self, timeout_s: float) -> Iterator[None]:
        """paramiko's errors become ours; never wrapped around a caller's own code."""
        import paramiko

        try:
            yield
        except TimeoutError as exc:
            raise self._lost("timeout", f"no answer within {timeout_s:g} s") from exc
        except (paramiko.SSHException, EOFError, OSError) as exc:
            reason = "timeout" if self.alive else "reset"
            raise self._lost(reason, str(exc) or type(exc).__name__) from exc

    def _checked(self, command: str, text: bytes) -> dict[str, Any]:
        """`text` as an answer of the agent."""
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise BadStream(
                f"the answer to `{command}` is not JSON: {_text(text[:80])!r}", where=self.target.where
            ) from exc
        if not isinstance(answer, dict):
            raise BadStream(f"the answer to `{command}` is not an object", where=self.target.where)
        if answer.get("ok") is False:
            error, detail = str(answer.get("error", "?"))[:40], str(answer.get("detail", ""))[:500]
            raise AgentRefused(error, detail, answer, where=self.target.where)
        return answer

    def _no_answer(self, command: str, ran: Ran) -> SshError:
        """Why the agent said nothing."""
        err = _text(ran.err)[-500:].strip()
        if ran.rc in (126, 127) and "python3" in err:
            return ToolMissing("python3", where=self.target.where)
        if "No module named 'agent'" in err:
            return AgentRefused("missing", "agent.py is not on the machine", {}, where=self.target.where)
        return BadStream(f"no answer to `{command}` (exit {ran.rc}): {err}", where=self.target.where)

    def _lost(self, reason: str, message: str) -> Unreachable:
        reason = "closed" if self._closed.is_set() else reason
        return Unreachable(message, reason=reason, where=self.target.where)


def connect(target: Target, timeout_s: float = 15.0) -> Connection:
    """Connect and log in; the host key is checked against the pinned ones, or pinned when it is the first."""
    import paramiko

    # Its threads would print tracebacks for what we report in a sentence
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    prepare(target)
    key = paramiko.Ed25519Key.from_private_key_file(str(target.key_file))
    sock, transport = None, None
    deadline = time.monotonic() + timeout_s
    try:
        sock = _socket(target, timeout_s)
        transport = paramiko.Transport(sock)
        transport.banner_timeout = transport.auth_timeout = timeout_s
        _prefer(transport, pinned_keys(target))
        transport.start_client(timeout=timeout_s)
        _check_host_key(target, transport.get_remote_server_key())
        transport.auth_publickey(target.user, key)
        transport.set_keepalive(KEEPALIVE_S)
        sock.settimeout(IDLE_WAKE_S)
        return Connection(target, transport, sock)
    except BaseException as exc:
        if transport is not None:
            transport.close()
        if sock is not None:
            sock.close()
        error = _connect_error(target, exc, late=time.monotonic() >= deadline)
        if error is exc:
            raise
        raise error from exc


def _socket(target: Target, timeout_s: float) -> socket.socket:
    sock = socket.create_connection((target.host, target.port), timeout=timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKED_MS)
    return sock


def _prefer(transport: paramiko.Transport, pinned: tuple[str, ...]) -> None:
    """The fast cipher and exchange first, and only host keys of a kind that is pinned."""
    options = transport.get_security_options()
    options.ciphers = tuple(sorted(options.ciphers, key=lambda name: not name.startswith("aes128-gcm")))
    options.kex = tuple(sorted(options.kex, key=lambda name: not name.startswith("curve25519")))
    kinds = {key.split()[0] for key in pinned}
    if "ssh-rsa" in kinds:
        kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
    wanted = tuple(name for name in options.key_types if name in kinds)
    if wanted:
        options.key_types = wanted


def _check_host_key(target: Target, key: paramiko.PKey) -> None:
    shown = f"{key.get_name()} {key.get_base64()}"
    pinned = pinned_keys(target)
    if not pinned:
        pin(target, shown)
        prepare(target)  # from now on OpenSSH is strict as well
    elif shown not in pinned:
        raise HostKeyChanged(
            "another machine answers at this address (its host key is not the pinned one)", where=target.where
        )


def _connect_error(target: Target, exc: BaseException, late: bool) -> BaseException:
    """The error of our tree for what the attempt to connect ended with."""
    import paramiko

    where = target.where
    if isinstance(exc, SshError) or not isinstance(exc, (OSError, EOFError, paramiko.SSHException)):
        return exc
    if isinstance(exc, paramiko.AuthenticationException) and "EOF" not in str(exc):
        return KeyRejected(f"the key was not accepted for user `{target.user}`", where=where)
    if isinstance(exc, socket.gaierror):
        return Unreachable(f"the name does not resolve: {exc.strerror}", reason="name", where=where)
    if isinstance(exc, TimeoutError):
        return Unreachable("no answer in time", reason="timeout", where=where)
    if isinstance(exc, ConnectionRefusedError):
        return Unreachable("connection refused: no sshd listens there", reason="refused", where=where)
    if isinstance(exc, OSError) and not isinstance(exc, ConnectionError):
        return Unreachable(exc.strerror or str(exc), reason="no-route", where=where)
    # paramiko words a time-out as whatever it was waiting for
    reason = "timeout" if late or "imeout" in str(exc) else "reset"
    return Unreachable(str(exc) or "the connection broke", reason=reason, where=where)


@contextmanager
def _closing_at(chan: paramiko.Channel, timeout_s: float) -> Iterator[None]:
    """Close the channel after `timeout_s`: some waits inside paramiko know no timeout of their own."""
    timer = threading.Timer(timeout_s, _close_quietly, [chan])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _close_quietly(chan: paramiko.Channel) -> None:
    import paramiko

    try:
        chan.close()
    except (paramiko.SSHException, EOFError, OSError):
        pass  # closing a channel of a dead connection: there is nobody left to tell


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def _short(command: str) -> str:
    return command if len(command) <= 60 else command[:57] + "..."


def one_off(target: Target, timeout_s: float = 15.0) -> Any:
    """A `fabric.Connection` for commands that a person runs once, with the pinned host key; close it."""
    import fabric
    import paramiko

    prepare(target)
    if not pinned_keys(target):
        connect(target, timeout_s).close()  # pins
    sock = _socket(target, timeout_s)
    login = {
        "pkey": paramiko.Ed25519Key.from_private_key_file(str(target.key_file)),
        "sock": sock,
        "allow_agent": False,
        "look_for_keys": False,
        "timeout": timeout_s,
    }
    made = fabric.Connection(
        target.host,
        user=target.user,
        port=target.port,
        config=fabric.Config(lazy=True, overrides={"load_ssh_configs": False}),
        connect_kwargs=login,
    )
    # paramiko's own login knows no HostKeyAlias: tell it the pinned keys under the address
    name = target.host if target.port == 22 else f"[{target.host}]:{target.port}"
    for line in pinned_keys(target):
        kind, encoded = line.split()
        key = paramiko.PKey.from_type_string(kind, base64.b64decode(encoded))
        made.client.get_host_keys().add(name, kind, key)
    made.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    return made


def stop_sharing(target: Target) -> None:
    """End the shared OpenSSH connection of `target`, when the rental ends or its address moved."""
    if target.config_file.exists():
        command = ["ssh", "-F", str(target.config_file), "-O", "exit", target.rental]
        subprocess.run(command, capture_output=True, timeout=10, check=False)
