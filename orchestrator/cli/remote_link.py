"""The way to a controller on another host: OpenSSH with the user's own configuration, and the far end's answers.

Rules
- The command that ssh is given holds nothing of the user's: words, paths and values travel as JSON on stdin, so no
  shell and no process list sees them.
- One connection is shared by all that a verb does (ControlMaster); ssh asks questions only where there is a terminal.
- Every failure before the verb itself has begun over there is exit 3, and says that nothing was done.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.cli import exits
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import say
from orchestrator.home import Home

VARIABLE = "GPUJOB_CONTROLLER"
PROTOCOL = 1  # of the questions to `far_end`; another number is another language
MARKER = "gpujob-answer-begins"  # login scripts may print: the answer starts after this line
CONNECT_S = 15
LOST = 255  # ssh's own exit code: the connection, not the command
#: Of our environment, what may not change how the far end finds its programs and books.
NOT_TAKEN = re.compile(r"PATH|HOME|TMPDIR|LD_.*|PYTHON.*|SSH_.*|XDG_.*|GPUJOB_(HOME|CONFIG|CONTROLLER|LOCAL_.*)")
_URL = re.compile(
    r"ssh://(?:(?P<user>[\w.][\w.@-]*)@)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[\w.][\w.-]*)(?::(?P<port>[0-9]{1,5}))?/?",
    re.ASCII,
)
# A login without a terminal often has no ~/.local/bin in its PATH, where uv and pipx put the command.
_FAR = "sh -c 'PATH=\"$PATH:$HOME/.local/bin\"; export PATH; exec gpujob _remote {}'"


@dataclass(frozen=True)
class Link:
    """One controller's host as the user named it."""

    user: str
    host: str
    port: str
    home: Home

    @property
    def name(self) -> str:
        """For people: as one would give it to ssh."""
        return (f"{self.user}@" if self.user else "") + self.host + (f" port {self.port}" if self.port else "")

    def ssh(self, *options: str, shared: bool = True) -> list[str]:
        """`ssh OPTIONS`, up to the host; `shared`: over the connection that all verbs of this minute use."""
        from orchestrator.ssh_files import CONTROL_PERSIST_S, Target, control_path

        path = control_path(Target("controller", self.host, int(self.port or 0), self.user, (), self.home.config))
        sharing = (
            "ControlMaster=auto", f"ControlPath={path}", f"ControlPersist={CONTROL_PERSIST_S}",
            "ClearAllForwardings=yes",
        )  # fmt: skip
        settings = [
            f"ConnectTimeout={CONNECT_S}", "ServerAliveInterval=10", "ServerAliveCountMax=3", "RemoteCommand=none",
            "LogLevel=ERROR", *(sharing if shared else ("ControlPath=none", "ControlMaster=no")),
        ]  # fmt: skip
        if not (sys.stdin.isatty() or sys.stderr.isatty()):
            settings.append("BatchMode=yes")
        return [
            "ssh", *(word for setting in settings for word in ("-o", setting)), *options,
            *(("-l", self.user) if self.user else ()), *(("-p", self.port) if self.port else ()),
        ]  # fmt: skip

    def rsync(self, *options: str) -> list[str]:
        """`rsync OPTIONS` over the same connection; it understands quotes around the words of `-e`."""
        shell = " ".join(f"'{word}'" if " " in word else word for word in self.ssh())
        return ["rsync", *options, "-e", shell]

    def place(self, path: str) -> str:
        """A path of that host for rsync."""
        return f"[{self.host}]:{path}" if ":" in self.host else f"{self.host}:{path}"

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The far end's answer. Raises CliError, exit 3, when there is none."""
        from orchestrator.version import installed

        request = {**question, "protocol": PROTOCOL, "version": installed(), "client": client_name(self.home)}
        with tempfile.TemporaryFile() as errors:  # a pipe would stay open as long as the shared connection
            done = subprocess.run(
                [*self.ssh("-T"), "--", self.host, _FAR.format("open")],
                input=json.dumps(request).encode(), stdout=subprocess.PIPE, stderr=errors, check=False,
            )  # fmt: skip
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace").strip()
        _, marker, text = done.stdout.partition(f"{MARKER}\n".encode())
        try:
            answer = json.loads(text) if marker else None
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._failure(done.returncode, said)
        if not answer.get("ok"):
            raise CliError(
                str(answer.get("error")), where=str(answer.get("where") or self.name), why=str(answer.get("why") or ""),
                next=str(answer.get("next") or ""), code=int(answer.get("code") or exits.PROVIDER),
            )  # fmt: skip
        self._compare(str(answer.get("version")), installed())
        return answer

    def call(self, token: str, *, terminal: bool = False, stdin: bool = False, options: tuple[str, ...] = (),
             shared: bool = True, stdout: Any = None) -> subprocess.Popen[bytes]:  # fmt: skip
        """The verb that was left at the far end as `token`, with our own stdin (if asked), stdout and stderr."""
        command = [
            *self.ssh("-t" if terminal else "-T", *options, shared=shared), "--", self.host,
            _FAR.format(f"call {client_name(self.home)} {token}"),
        ]  # fmt: skip
        return subprocess.Popen(command, stdin=None if terminal or stdin else subprocess.DEVNULL, stdout=stdout)

    def _compare(self, theirs: str, ours: str) -> None:
        from orchestrator.version import UNKNOWN, older

        if UNKNOWN in (theirs, ours) or theirs == ours:
            return
        which = "an older" if older(theirs, ours) else "a newer"
        say(f"gpujob: {self.name} has {which} gpujob ({theirs}, here {ours}); next: {self.install()}")

    def install(self) -> str:
        """What makes the two alike."""
        return f"on {self.host}, in a checkout of the same version: uv tool install . (or pipx install .)"

    def _failure(self, code: int, said: str) -> CliError:
        """What an answer that did not come means, by ssh's own words."""
        last = (said.splitlines() or ["it said nothing"])[-1].strip()
        name = f"[{self.host}]:{self.port}" if self.port and self.port != "22" else self.host
        if "IDENTIFICATION HAS CHANGED" in said:
            what, step = (
                "another host key answers there than the one that is known",
                f"if the host was set up anew: ssh-keygen -R '{name}', then ssh {name} once",
            )
        elif "Host key verification failed" in said or "host key is known" in said:
            what, step = "its host key is not known yet", "ssh to it once and compare the key that it shows"
        elif code == LOST and "Permission denied" in said:
            what, step = "the login was refused", f"ssh-copy-id {name}, or name the key in ~/.ssh/config"
        elif code == LOST:
            what, step = "the host of the controller cannot be reached", f"ssh {name} tries it; its jobs go on"
        elif code == 127 or "gpujob: not found" in said:
            what, step = "there is no gpujob on that host", self.install()
        elif "_remote" in said:
            what, step = "the gpujob on that host is too old to be a controller for others", self.install()
        else:
            what, step = f"gpujob on that host ended with {code}", f"ssh {name} gpujob doctor"
        return CliError(
            f"{what}; nothing was done", where=f"{VARIABLE} ({self.name})", why=last, next=step, code=exits.PROVIDER
        )


def link(home: Home) -> Link:
    """The host that GPUJOB_CONTROLLER names. Raises CliError for what is no address, or without ssh and rsync."""
    text = os.environ.get(VARIABLE, "")
    found = _URL.fullmatch(text)
    if found is None:
        raise CliError(
            f"{text!r} names no host", where=VARIABLE, next="write ssh://HOST, ssh://USER@HOST or ssh://USER@HOST:PORT"
        )
    if os.name == "nt":
        raise CliError("native Windows runs init, validate and schema only", next="run gpujob inside WSL2")
    for program in ("ssh", "rsync"):
        if shutil.which(program) is None:
            raise CliError(f"there is no {program} on this computer", next="gpujob doctor names the package")
    return Link(found["user"] or "", found["host"].strip("[]"), found["port"] or "", home)


def client_name(home: Home) -> str:
    """Our own name at any far end: made once, random."""
    import secrets

    from orchestrator.ssh_files import write_private

    if not home.client_file.exists():
        write_private(home.client_file, secrets.token_hex(8).encode())
    return home.client_file.read_text().strip()


def ended(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. A signal that ends us ends it too; Ctrl-C is ours to report."""
    with _passed_on(process):
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise


@contextlib.contextmanager
def _passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    def stop(number: int, _: object) -> None:
        process.terminate()
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
