"""A real sshd on a loopback port with a HOME of its own, for the tests of the controller's end.

It isolates nothing: it is the wire and the shell that are wanted, not a machine.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

from orchestrator.ssh import Target, new_key

# What sshd's ForceCommand runs: HOME is the test's folder; `.banner` makes it talkative, `.path` hides programs
LOGIN = """#!/bin/bash
unset TMUX
export HOME={home}
cd "$HOME" || exit 1
[ -e "$HOME/.banner" ] && cat "$HOME/.banner"
[ -e "$HOME/.path" ] && export PATH=$(cat "$HOME/.path")
exec bash -c "$SSH_ORIGINAL_COMMAND"
"""

CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {root}/host_key
PidFile none
AuthorizedKeysFile {root}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
MaxStartups 200
MaxSessions 100
ForceCommand {root}/login.sh
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Sshd:
    """`root` holds everything; `home` is HOME on the other side. Use as a context manager."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.home.mkdir(parents=True)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._write_files()

    def _write_files(self) -> None:
        self.new_host_key()
        login = self.root / "login.sh"
        login.write_text(LOGIN.format(home=self.home))
        login.chmod(0o755)
        (self.root / "sshd_config").write_text(CONFIG.format(port=self.port, root=self.root))

    def new_host_key(self) -> None:
        for name in ("host_key", "host_key.pub"):
            (self.root / name).unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.root / "host_key")]
        subprocess.run(command, check=True)

    @property
    def host_key(self) -> str:
        return " ".join((self.root / "host_key.pub").read_text().split()[:2])

    def target(self, folder: Path, *, told: bool = True, rental: str = "digits-1-r1") -> Target:
        """A target whose key is let in; `told`: the provider tells the host key."""
        line = new_key(folder)
        with (self.root / "authorized_keys").open("a") as file:
            file.write(line + "\n")
        keys = (self.host_key,) if told else ()
        user = os.environ.get("USER") or subprocess.check_output(["id", "-un"], text=True).strip()
        return Target(rental, "127.0.0.1", self.port, user, keys, folder)

    def start(self) -> Sshd:
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd as root insists on it
        sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert sshd, "sshd is needed: install openssh-server"
        with (self.root / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sshd, "-D", "-e", "-f", str(self.root / "sshd_config")], stderr=log, stdin=subprocess.DEVNULL
            )
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except ConnectionRefusedError:
                assert self.process.poll() is None, (self.root / "sshd.log").read_text()
                time.sleep(0.02)
        self.stop()
        raise AssertionError("sshd does not listen: " + (self.root / "sshd.log").read_text())

    def sessions(self) -> list[int]:
        """Process ids of the open logins (children of the listening sshd)."""
        assert self.process is not None
        listed = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True)
        return [int(pid) for pid in listed.stdout.split()]

    def stop(self) -> None:
        """End sshd and every login, as a lost machine does."""
        if self.process is None:
            return
        sessions = self.sessions()
        self.process.kill()
        self.process.wait()
        self.process = None
        for pid in sessions:
            tree = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
            for each in [pid, *map(int, tree)]:
                try:
                    os.kill(each, 9)
                except ProcessLookupError:
                    pass  # it ended by itself

    def __enter__(self) -> Sshd:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class StallingProxy:
    """A TCP proxy that can swallow everything, as a network does that is gone without a word."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.stalled = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.open: list[socket.socket] = [self.listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return  # closed
            try:
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:  # the server is gone
                near.close()
                continue
            self.open += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, dest: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if not self.stalled.is_set():
                    dest.sendall(data)
        except OSError:
            pass  # either end hung up

    def close(self) -> None:
        for sock in self.open:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # a listener, or gone
            sock.close()
