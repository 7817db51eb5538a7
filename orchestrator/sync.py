"""Copying by rsync over the rental's ssh_config: code and data there, checkpoints and results here.

Rules
- A copy is repeatable: whatever was interrupted, the same call goes on where it stopped.
- Only broken connections are tried again (three times, backing off); every other error is named at once.
- What a machine sends is a stranger's: only names inside of the folder that was asked for, links out of it are
  skipped, no devices, no owners, no set-uid bits.
- The child process never outlives the call: deadline, stop event and silence all end it.
"""

from __future__ import annotations

import os
import re
import selectors
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import tenacity

from orchestrator.ssh_errors import (
    DiskFull,
    HostKeyChanged,
    KeyRejected,
    ShellNotClean,
    SshError,
    Stopped,
    ToolMissing,
    TransferError,
    Unreachable,
    Unsafe,
)
from orchestrator.ssh_files import Target, prepare

TRIES = 3
SILENCE_S = 60  # rsync's own limit for a connection that says nothing
TIMEOUT_S = 24 * 3600.0
TERM_S = 3.0  # rsync tidies up on SIGTERM, then it is killed
PARTIAL = ".gpujob-partial"  # beside the file: a cut transfer goes on from there
REST_S = 0.02  # between two reads: rsync says something after each of thousands of files, and waking costs it time
EVIDENCE = 2000  # characters of rsync's last words

# rsync's exit codes that mean the connection, not the files: protocol stream, time-outs, and ssh's own 255
CONNECTION_CODES = frozenset({10, 12, 30, 35, 255})
SOME_FILES_CODES = frozenset({23, 24})  # "partial transfer", "some files vanished"

# To a machine: modes and links as they are, nothing that belongs to a user of this computer
PUSH = ("-rlpt", "--no-owner", "--no-group", "--no-devices", "--no-specials")
# From a machine: no modes but the executable bit, and no link that leaves the folder
PULL = ("-rltE", "--safe-links", "--no-owner", "--no-group", "--no-perms", "--no-devices", "--no-specials")
AGAIN = ["--ignore-times", "--whole-file"]


@dataclass(frozen=True)
class Progress:
    """How far a transfer is: `bytes` of `total` (None: unknown yet), `rate` in bytes a second since its start."""

    bytes: int
    total: int | None
    rate: float


@dataclass(frozen=True)
class Sent:
    """What one call moved: `bytes` are the sizes of the `files` that were transferred, not of those that were there."""

    bytes: int
    files: int
    seconds: float


@dataclass(frozen=True)
class Limits:
    """Bounds of one transfer. `stop` ends it at once; `kib_s` throttles it."""

    timeout_s: float = TIMEOUT_S
    silence_s: int = SILENCE_S
    kib_s: int | None = None
    stop: threading.Event | None = None
    tries: int = TRIES


def push(
    target: Target,
    source: Path,
    dest: str,
    *,
    files_from: Iterable[str] | None = None,
    delete: bool = False,
    copy_links: bool = False,
    append: bool = False,
    again: bool = False,
    checksum: bool = False,
    owner_may: bool = False,
    progress: Callable[[Progress], None] | None = None,
    limits: Limits | None = None,
) -> Sent:
    """Copy `source` to the absolute path `dest` on the machine: a folder's content into it, a file to that name.

    `files_from`: only these names below `source`. `delete`: remove what is not in `source`. `copy_links`: send what
    links point to. `append`: go on inside a half-sent file (for files that never change, verified afterwards).
    `again`: transfer also files whose size and time say that they are the same; `checksum`: those whose bytes differ.
    `owner_may`: there its owner may read and write everything, whatever the modes are here.
    """
    _absolute(dest)
    flags = [*PUSH, *(["--copy-links"] if copy_links else []), *(["--delete-delay"] if delete else [])]
    flags += [*(AGAIN if again else []), *(["--checksum"] if checksum else [])]
    flags += ["--chmod=u+rwX"] if owner_may else []
    slash = "/" if source.is_dir() else ""
    words = [f"{source}{slash}", f"{target.rental}:{dest}{slash}"]
    return _transfer(target, flags, words, files_from, append, progress, limits)


def pull(
    target: Target,
    source: str,
    dest: Path,
    *,
    files_from: Iterable[str] | None = None,
    append: bool = False,
    again: bool = False,
    progress: Callable[[Progress], None] | None = None,
    limits: Limits | None = None,
) -> Sent:
    """Copy the content of the machine's folder `source` (absolute) into `dest`; nothing here is ever removed.

    `append`, `again`: as for `push`. A missing file is a TransferError.
    """
    _absolute(source)
    dest.mkdir(parents=True, exist_ok=True)
    names = None if files_from is None else [safe_name(name) for name in files_from]
    flags = [*PULL, *(AGAIN if again else [])]
    words = [f"{target.rental}:{source.rstrip('/')}/", f"{dest}/"]
    return _transfer(target, flags, words, names, append, progress, limits)


def safe_name(name: str) -> str:
    """`name`, a relative path below a folder, as a machine may give it; Unsafe when it leaves the folder."""
    path = PurePosixPath(name)
    bad = not name or name.startswith("/") or ".." in path.parts or "\0" in name or str(path) in (".", "")
    if bad or str(path) != name or len(os.fsencode(name)) > 4000:
        raise Unsafe(f"{name[:120]!r} is not a name inside of the folder")
    if PARTIAL in path.parts:
        raise Unsafe(f"{name[:120]!r} is a name that transfers use themselves")
    return name


def safe_link(path: str, link: str, floor: int = 0) -> str:
    """`link`, the text of the link at the safe name `path`; Unsafe when it may lead out of the folder.

    `floor`: so many leading parts of `path` are the folder itself. `..` is only taken at the beginning: after
    another link it would climb from where that one leads to, wherever the names say it is.
    """
    parts = [part for part in link.split("/") if part not in ("", ".")]
    ups = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    depth = path.count("/") - floor
    # A link to the folder itself is one that rsync's --safe-links leaves out as well
    climbs = ups > depth or (ups == depth and ups == len(parts))
    if not link or link.startswith("/") or ".." in parts[ups:] or "\0" in link or climbs:
        raise Unsafe(f"{path[:120]} is a link that may lead out of its folder, to {link[:200]}")
    return link


def refuse_under_links(paths: Iterable[str], links: Iterable[str]) -> list[str]:
    """Those of `paths` that lie below one of `links`: writing them would follow it."""
    tops = tuple(f"{link}/" for link in links)
    return [path for path in paths if tops and path.startswith(tops)]


def how_far(text: bytes) -> tuple[int, int | None] | None:
    """Bytes done and their total (None: not known yet, else within rsync's whole percents) of the newest progress line
    in `text`, of the form `\\r   32768  12%  1.20MB/s  0:00:01 (xfr#1, to-chk=5/10)`; None without one.

    While rsync still lists (`ir-chk`), its percents are of what it has listed so far, which says nothing.
    """
    found = re.findall(rb"[\r\n]\s*(\d+)\s+(\d+)%", text)
    if not found:
        return None
    done, percent = int(found[-1][0]), int(found[-1][1])
    if text.rfind(b"ir-chk=") > text.rfind(b"to-chk="):
        return done, None
    return done, done * 100 // percent if percent else None


def _absolute(path: str) -> None:
    if not path.startswith("/") or "\0" in path or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path!r} is not an absolute path on the machine")


def _transfer(
    target: Target,
    flags: list[str],
    words: list[str],
    names: Iterable[str] | None,
    append: bool,
    progress: Callable[[Progress], None] | None,
    limits: Limits | None,
) -> Sent:
    """One transfer, tried again while only the connection fails."""
    limits = limits or Limits()
    stop = limits.stop or threading.Event()
    shell = f"ssh -F {shlex.quote(str(prepare(target)))}"
    command = ["rsync", *flags, "--protect-args", "-e", shell, f"--timeout={limits.silence_s}"]
    command += ["--append-verify"] if append else [f"--partial-dir={PARTIAL}"]
    command += ["--info=progress2,stats2", "--no-human-readable"]
    command += [f"--bwlimit={limits.kib_s}"] if limits.kib_s else []
    started = time.monotonic()
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Unreachable),
        stop=tenacity.stop_after_attempt(limits.tries),
        wait=tenacity.wait_exponential_jitter(initial=1, max=8),
        sleep=tenacity.sleep_using_event(stop),
        reraise=True,
    )
    with tempfile.NamedTemporaryFile(prefix="gpujob-names-") as listed:
        if names is not None:
            listed.write(b"".join(os.fsencode(name) + b"\0" for name in names))
            listed.flush()
            command += ["--from0", f"--files-from={listed.name}"]
        watch = _Watch(target, [*command, "--", *words], started, progress, limits, stop)
        return retrying(watch.run)


class _Watch:
    """One rsync process and what it prints."""

    def __init__(
        self,
        target: Target,
        command: list[str],
        started: float,
        progress: Callable[[Progress], None] | None,
        limits: Limits,
        stop: threading.Event,
    ) -> None:
        self.target = target
        self.command = command
        self.pulling = command[-2].startswith(f"{target.rental}:")
        self.started = started
        self.progress = progress
        self.limits = limits
        self.stop = stop
        self.text = b""  # the end of stdout, with the statistics
        self.err = b""

    def run(self) -> Sent:
        """Run it to its end; raises what the exit code and the last words mean."""
        if self.stop.is_set():
            raise Stopped("stopped before the transfer began", where=self.target.where)
        self.text = self.err = b""
        env = {**os.environ, "LC_ALL": "C"}
        for inherited in ("RSYNC_RSH", "RSYNC_PROTECT_ARGS", "RSYNC_PARTIAL_DIR", "RSYNC_PASSWORD"):
            env.pop(inherited, None)
        try:
            child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise ToolMissing("rsync", side="here", where=self.target.where) from None
        with child:
            try:
                why = self._read(child)
            finally:
                if child.poll() is None:
                    _end(child)
        if why == "stop":
            raise Stopped("the transfer was stopped; the next one goes on from here", where=self.target.where)
        if why == "timeout":
            message = f"the transfer did not end within {self.limits.timeout_s:g} s"
            raise TransferError(message, evidence=self._words(), where=self.target.where)
        if child.returncode != 0:
            raise _named(self.target, child.returncode, self._words(), self.pulling)
        return self._sent()

    def _read(self, child: subprocess.Popen[bytes]) -> str:
        """Read until both pipes end; "stop" or "timeout" when that came first."""
        assert child.stdout is not None
        assert child.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            selector.register(child.stderr, selectors.EVENT_READ)
            while selector.get_map():
                if self.stop.is_set():
                    return "stop"
                if time.monotonic() - self.started > self.limits.timeout_s:
                    return "timeout"
                for key, _ in selector.select(timeout=0.25):
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is child.stdout:
                        self.text = (self.text + data)[-8192:]
                        self._report()
                        self.stop.wait(REST_S)
                    else:
                        self.err = (self.err + data)[-8192:]
        return ""

    def _report(self) -> None:
        """Hand on the newest progress line."""
        if self.progress is None:
            return
        found = how_far(self.text)
        if found is None:
            return
        done, total = found
        seconds = max(time.monotonic() - self.started, 0.001)
        self.progress(Progress(done, total, done / seconds))

    def _sent(self) -> Sent:
        numbers = {}
        for line in self.text.decode("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            digits = re.match(r"\s*(\d+)", value)
            if digits:
                numbers[name] = int(digits.group(1))
        files = numbers.get("Number of regular files transferred", 0)
        size = numbers.get("Total transferred file size", 0)
        return Sent(size, files, time.monotonic() - self.started)

    def _words(self) -> str:
        return self.err.decode("utf-8", "replace")[-EVIDENCE:].strip()


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask rsync to end, then kill it and its ssh. A shared connection that hangs goes with it."""
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(TERM_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _named(target: Target, code: int, words: str, pulling: bool) -> SshError:
    """The error for an exit code of rsync; its words tell the cases apart that share one."""
    where = target.where
    last = words.splitlines()[-1] if words else f"rsync ended with {code}"
    if "is your shell clean" in words or "protocol version mismatch" in words:
        return ShellNotClean(
            "a login script on the machine prints on stdout, which breaks rsync: let ~/.bashrc and /etc/profile "
            "of the image print nothing when the shell is not interactive",
            code=code, evidence=words, where=where,
        )  # fmt: skip
    if "Host key verification failed" in words or "IDENTIFICATION HAS CHANGED" in words:
        return HostKeyChanged("the host key is not the pinned one", where=where)
    if "Permission denied (" in words:
        return KeyRejected(f"the key was not accepted for user `{target.user}`", where=where)
    if re.search(r"rsync: (?:command )?not found|remote command not found", words) or code == 127:
        return ToolMissing("rsync", where=where)
    if "No space left on device" in words or "Disk quota exceeded" in words:
        line = next(line for line in words.splitlines() if "No space" in line or "quota" in line)
        side, place = ("here", "on this computer") if pulling else ("machine", "on the machine")
        return DiskFull(f"no space left {place}: {line}", side=side, code=code, evidence=words, where=where)
    if "rejecting" in words or "unsafe" in words.lower() or "unrequested" in words:
        return Unsafe(f"the machine sent what was not asked for: {last}", code=code, evidence=words, where=where)
    if code in SOME_FILES_CODES:
        first = words.splitlines()[0] if words else last
        return TransferError(f"not all was copied: {first}", code=code, evidence=words, where=where)
    if code in CONNECTION_CODES:
        reason = "timeout" if code in (30, 35) or "timed out" in words.lower() else "reset"
        return Unreachable(last, reason=reason, where=where)
    return TransferError(f"rsync ended with {code}: {last}", code=code, evidence=words, where=where)
