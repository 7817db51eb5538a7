"""A computer of the user's and an always-on host, on one machine: two homes, two states, and a real sshd between them.

    with FarHost(tmp_path) as far:
        far.cli("apply", "-y", "train.yaml")

The user's `ssh` is a wrapper that names a configuration of the test's, since OpenSSH takes ~ from the password file.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

from plain_sshd import Sshd

from orchestrator.home import Home
from orchestrator.ssh import new_key

ROOT = Path(__file__).resolve().parents[2]
# Without the gpujob of an environment that these tests may run in
PATH = ":".join(
    each for each in [*os.environ.get("PATH", "").split(":"), "/usr/sbin", "/sbin"] if not Path(each, "gpujob").exists()
)
KEPT = ("LANG", "TMPDIR", "USER", "LOGNAME")
NAME = "night-box"

GPUJOB = """#!/bin/bash
export PYTHONPATH={root} GPUJOB_NO_KEYRING=1
exec {python} -m orchestrator.cli.main "$@"
"""

CONFIG = """
Host {name}
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {key}
  IdentitiesOnly yes
  UserKnownHostsFile {known}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


class FarHost:
    """`project` is where the user types; `home` and `far` are the state folders of the two sides."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.project = base / "my 'own' project"
        self.project.mkdir(parents=True)
        self.sshd = Sshd(base / "far")
        self.home = Home(base / "near", base / "near" / "config")
        self.far = Home.from_env({"HOME": str(self.sshd.home)})
        target = self.sshd.target(base / "key")
        self.known = base / "known_hosts"
        self.trust()
        (base / "ssh_config").write_text(
            CONFIG.format(
                name=NAME, port=self.sshd.port, user=target.user, key=target.key_file, known=self.known
            )
        )  # fmt: skip
        self.bin = base / "bin"
        self._program(self.bin / "ssh", f'#!/bin/bash\nexec {shutil.which("ssh")} -F {base / "ssh_config"} "$@"\n')
        self.far_bin = self.sshd.home / "bin"
        self._program(self.far_bin / "gpujob", GPUJOB.format(root=ROOT, python=sys.executable))
        (self.sshd.home / ".path").write_text(f"{self.far_bin}:{PATH}")
        self.env = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.env |= {
            "PATH": f"{self.bin}:{PATH}", "HOME": str(base), "GPUJOB_HOME": str(self.home.state),
            "GPUJOB_NO_KEYRING": "1", "GPUJOB_CONTROLLER": f"ssh://{NAME}", "PYTHONPATH": str(ROOT), "NO_COLOR": "1",
        }  # fmt: skip

    def _program(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def trust(self) -> None:
        """The user has looked at the host's key."""
        self.known.write_text(f"[127.0.0.1]:{self.sshd.port} {self.sshd.host_key}\n")

    def other_key(self) -> None:
        """A login that the host does not know."""
        new_key(self.base / "other")
        config = self.base / "ssh_config"
        config.write_text(config.read_text().replace(str(self.base / "key"), str(self.base / "other")))

    def cli(self, *words: str, stdin: str = "", code: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
        """`gpujob WORDS` on the user's computer, to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator.cli.main", *words], input=stdin, capture_output=True, text=True,
            timeout=90, cwd=self.project, check=False, env=self.env | env,
        )  # fmt: skip
        said = f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.log()}"
        assert code is None or done.returncode == code, said
        return done

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The same in the background, with pipes."""
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator.cli.main", *words], stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.project, env=self.env, start_new_session=True,
        )  # fmt: skip

    def at_terminal(self, *words: str) -> tuple[int, int]:
        """The same on a terminal of its own: process id and the terminal's other side."""
        pid, side = pty.fork()
        if pid == 0:
            os.chdir(self.project)
            command = [sys.executable, "-m", "orchestrator.cli.main", *words]
            os.execve(sys.executable, command, self.env | {"TERM": "xterm"})
        return pid, side

    def log(self) -> str:
        """What the controller over there says."""
        return self.far.controller_log.read_text()[-3000:] if self.far.controller_log.exists() else ""

    def there(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`gpujob WORDS` typed on the host itself."""
        env = {"HOME": str(self.sshd.home), "PATH": PATH}
        return subprocess.run(
            [str(self.far_bin / "gpujob"), *words], capture_output=True, text=True, timeout=90, env=env, check=False
        )

    def verbs_there(self) -> list[str]:
        """Process ids of verbs that run there for this computer."""
        return self._there("orchestrator.cli.main _remote call")

    def forwards_there(self) -> list[str]:
        """Those of its forwards to machines."""
        return self._there("ssh -F .* -N -T")

    def _there(self, pattern: str) -> list[str]:
        mine = []
        for pid in subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True).stdout.split():
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue  # it ended
            if os.fsencode(f"HOME={self.sshd.home}") in environment.split(b"\0"):
                mine.append(pid)
        return mine

    def __enter__(self) -> FarHost:
        self.sshd.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.there("cancel", "--all", "--now")
            for line in json.loads(self.there("ps", "-o", "json").stdout or "[]"):
                self.there("wait", line["name"], "--for", "released", "--timeout", "60s")
            self.there("controller", "stop", "--now")
            self.hang_up()
        finally:
            self.sshd.stop()

    def hang_up(self) -> None:
        """End the connection that the verbs shared, which would live for another minute."""
        from orchestrator.ssh_files import Target, control_path

        path = control_path(Target("controller", NAME, 0, "", (), self.home.config))
        subprocess.run([str(self.bin / "ssh"), "-O", "exit", "-o", f"ControlPath={path}", NAME], capture_output=True)


def eventually(what: str, seen: object, timeout: float = 30.0) -> None:
    """Wait for `seen()`; only a failing test waits long."""
    until = time.monotonic() + timeout
    assert callable(seen)
    while not seen():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.05)
