"""A rented machine in a temporary folder: the real agent, real tmux, no SSH. Leaves nothing running behind."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.agent import agent_source

# The oldest Python that the agent promises, where this host has one
OLDEST = next(iter(sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.8*/bin/python")))), sys.executable)
WAIT_S = 20.0  # only reached by a test that fails; 2 cores are shared by everything

JOB = "digits"


class Machine:
    """`with Machine(tmp_path) as machine:` plants a nonce, pushes the agent, and cleans up by the machine's mark."""

    def __init__(self, home: Path, python: str = OLDEST, started: bool = True, **patch: str) -> None:
        self.home = home
        self.started = started
        self.patch = patch  # constants of the agent, by name: what takes minutes in life takes a second here
        self.python = python
        self.nonce = f"nonce-{os.getpid()}-{home.name}-{time.monotonic_ns()}"
        self.control = home / ".gpujob"
        self.job = home / "gpujob" / JOB
        self.epoch = 1
        self.path = os.environ["PATH"]
        self.others: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Machine:
        self.control.mkdir(parents=True, mode=0o700)
        (self.control / "nonce").write_text(self.nonce + "\n")
        source = agent_source().decode()
        for name, value in self.patch.items():
            source, count = re.subn(rf"^{name} = [^ #\n]+", f"{name} = {value}", source, flags=re.M)
            assert count == 1, name
        (self.control / "agent.py").write_text(source)
        return self.start() if self.started else self

    def __exit__(self, *_: object) -> None:
        for process in self.others:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()
        for _round in range(50):
            left = self.marked()
            for pid in left:
                kill(pid)
            if not left:
                return
            time.sleep(0.05)
        raise AssertionError(f"processes left behind: {left}")

    # --- asking it ---

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self.home), "PATH": self.path}

    def spawn(self, command: str, **ask: Any) -> subprocess.Popen[bytes]:
        """One command under way; `answer` takes its result."""
        process = subprocess.Popen(
            [self.python, str(self.control / "agent.py"), command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.env,
            cwd="/",
        )
        assert process.stdin
        process.stdin.write(json.dumps({"epoch": self.epoch, "nonce": self.nonce, **ask}).encode())
        process.stdin.close()
        return process

    def follow(self, **ask: Any) -> subprocess.Popen[bytes]:
        """A stream; its stdin stays open, it is ended with the machine."""
        process = subprocess.Popen(
            [self.python, str(self.control / "agent.py"), "follow"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.env,
            cwd="/",
        )
        self.others.append(process)
        assert process.stdin
        process.stdin.write(json.dumps({"nonce": self.nonce, **ask}).encode() + b"\n")
        process.stdin.flush()
        return process

    @staticmethod
    def answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout
        with process.stdout:
            text = process.stdout.read()
        assert process.wait() == 0, text
        value: dict[str, Any] = json.loads(text)
        return value

    def ask(self, command: str, **ask: Any) -> dict[str, Any]:
        return self.answer(self.spawn(command, **ask))

    def do(self, command: str, **ask: Any) -> dict[str, Any]:
        answer = self.ask(command, **ask)
        assert answer["ok"], answer
        return answer

    def start(self) -> Machine:
        """Ready for orders: supervisor, an hour to live, the job's folders."""
        self.do("arm", end=time.time() + 3600, grace_s=20, action="kill")
        self.do("prepare", job=JOB)
        return self

    @staticmethod
    def order_of(script: str | Mapping[str, str], n: int = 1, **more: Any) -> dict[str, Any]:
        scripts = {"run": script} if isinstance(script, str) else script
        stages = [{"name": name, "script": text} for name, text in scripts.items()]
        return {"job": JOB, "task": "t0", "n": n, "workspace": "base", "stages": stages, "env": {}, **more}

    def order(self, script: str | Mapping[str, str], n: int = 1, **more: Any) -> dict[str, Any]:
        return self.do("order", **self.order_of(script, n, **more))

    def run(self, n: int = 1) -> dict[str, Any]:
        found: dict[str, Any] = self.do("status")["runs"][f"t0.{n}"]
        return found

    def ended(self, n: int = 1) -> dict[str, Any]:
        """The status of the run once it is dead."""
        wait_for(lambda: (self.folder(n) / "ended.json").exists(), f"the end of t0.{n}")
        return self.run(n)

    # --- looking at it ---

    def folder(self, n: int = 1) -> Path:
        return self.control / "runs" / f"t0.{n}"

    def log(self, stage: str = "run", n: int = 1) -> bytes:
        path = self.folder(n) / f"{stage}.log"
        return path.read_bytes() if path.exists() else b""

    def wait_log(self, text: bytes, stage: str = "run", n: int = 1) -> None:
        wait_for(lambda: text in self.log(stage, n), f"{text!r} in {stage}.log")

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        path = self.control / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if not kind or event["t"] == kind]

    def supervisor(self) -> int:
        return int((self.control / "agent.pid").read_text().split()[0])

    def wrapper(self, n: int = 1) -> int:
        return int(json.loads((self.folder(n) / "claim").read_text())["pid"])

    def leader(self, stage: str = "run", n: int = 1) -> int:
        path = self.folder(n) / f"{stage}.pid"
        wait_for(path.exists, f"the process of {stage}")
        return int(path.read_text().split()[0])

    @property
    def mark(self) -> str:
        return "GPUJOB_MACHINE=" + hashlib.sha256(self.nonce.encode()).hexdigest()[:16]

    def marked(self, *marks: str) -> list[int]:
        """Living processes of this machine, found as the boot hook finds them."""
        wanted = {mark.encode() for mark in (self.mark, *marks)}
        return [pid for pid in all_pids() if wanted <= set(environ_of(pid)) and is_alive(pid)]


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environ_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def wait_for(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, f"never happened: {what}"
        time.sleep(0.02)


def pid_in(path: Path) -> int:
    """The pid that a job wrote; waits until it is there."""
    wait_for(lambda: path.exists() and path.read_text().strip(), f"a pid in {path.name}")
    return int(path.read_text())
