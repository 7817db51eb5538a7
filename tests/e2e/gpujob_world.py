"""A user's computer in a temporary folder: real controller, real machines of this host, nothing left behind.

    with World(tmp_path) as world:
        spec = world.spec("train", run="echo hi")
        world.apply(spec)
        world.wait("train")

Every process that the world starts carries the folder's path in its environment or arguments, so that the end of a
test can prove that none is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import gpujob_faults
import yaml

from orchestrator.home import Home
from orchestrator.model import Assignment, CheckpointRow, Job, Rental
from orchestrator.store import Store
from providers.base import Instance, ProviderConfig, Ref
from providers.local import LocalProvider
from providers.local_machine import lives

T = TypeVar("T")

WAIT_S = 60.0  # only reached by a test that fails; a loaded host is slow
LOOK_S = 0.05
DROPPED = ("GPUJOB_", "CI", "GITHUB_", "GITLAB_", "JENKINS_", "XDG_", "SSH_")
ROOT = Path(__file__).resolve().parents[2]


class World:
    """One user, one state folder, one controller at a time."""

    def __init__(self, base: Path, **env: str) -> None:
        self.base = base
        self.state = base / "home"
        self.project = base / "project"
        self.project.mkdir(parents=True, exist_ok=True)
        (base / "user").mkdir(exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(DROPPED)}
        self.env = {
            **kept,
            "HOME": str(base / "user"),
            "GPUJOB_HOME": str(self.state),
            "GPUJOB_CONTROLLER": "here",
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
            **env,
        }
        self.home = Home.from_env(self.env)
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_controller()
        for process in self.started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        if self.home.deployment_file.exists():
            provider = self.provider
            for machine in provider.world.ids():  # of whatever account and deployment
                provider.destroy(Ref("local", "local", "here", machine))
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def faulty(self) -> Path:
        """Register the plugin of `gpujob_faults`; its folder of faults."""
        place = gpujob_faults.install(self.base / "plugin")
        self.env["PYTHONPATH"] = f"{ROOT}:{place}:{Path(__file__).parent}"
        faults = self.state / "faults"
        faults.mkdir(parents=True, mode=0o700)
        return faults

    # --- verbs --------------------------------------------------------------------------------------------------------

    def cli(self, *args: str, code: int | None = 0, stdin: str = "", timeout: float = 90.0) -> tuple[str, str]:
        """Run `gpujob ARGS` to its end; (stdout, stderr). Fails unless it exits with `code` (None: any)."""
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator.cli.main", *args],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.env,
            cwd=self.project,
            timeout=timeout,
        )
        assert code is None or done.returncode == code, self.failed(args, done)
        return done.stdout, done.stderr

    def failed(self, args: tuple[str, ...], done: subprocess.CompletedProcess[str]) -> str:
        """What a failing test needs to see."""
        log = self.home.controller_log.read_text() if self.home.controller_log.exists() else ""
        said = f"{done.stdout}\n{done.stderr}\n--- controller\n{log[-6000:]}"
        return f"gpujob {' '.join(args)}: exit {done.returncode}\n{said}"

    def json(self, *args: str, code: int | None = 0) -> Any:
        """The same with `-o json`, parsed."""
        return json.loads(self.cli(*args, "-o", "json", code=code)[0])

    def spawn(self, *args: str) -> subprocess.Popen[bytes]:
        """A verb in the background, ended with the world."""
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.cli.main", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.project,
        )
        self.started.append(process)
        return process

    def spec(self, name: str, run: str, file: str = "", **keys: Any) -> Path:
        """Write a spec beside the project's files; short times, no results unless asked for."""
        document = {
            "name": name,
            "gpu": "none",
            "providers": ["local"],
            "ttl": "10m",
            "grace": {"time": "10s"},
            "artifacts": "none",
            "run": run,
            **keys,
        }
        path = self.project / (file or f"{name}.yaml")
        path.write_text(yaml.safe_dump({k: v for k, v in document.items() if v is not None}, sort_keys=False))
        return path

    def apply(self, spec: Path, *flags: str, code: int | None = 0) -> Any:
        """`apply -y -o json`."""
        out, err = self.cli("apply", str(spec), "-y", *flags, "-o", "json", code=code)
        return json.loads(out) if out.strip() else err

    def wait(self, name: str, code: int | None = 0, what: str = "released") -> Job:
        """Until the job's machines are gone; the job as the books have it then."""
        self.cli("wait", name, "--for", what, "--timeout", "80s", code=code)
        return self.job(name)

    # --- the books ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def books(self) -> Iterator[Store]:
        with Store.open_reader(self.home) as store:
            yield store

    def job(self, name: str) -> Job:
        with self.books() as store:
            return store.job(store.find(name).job)

    def rentals(self, name: str) -> tuple[Rental, ...]:
        with self.books() as store:
            return store.rentals(store.find(name).job)

    def runs(self, name: str) -> tuple[Assignment, ...]:
        with self.books() as store:
            return store.assignments(store.find(name).job)

    def checkpoints(self, name: str) -> tuple[CheckpointRow, ...]:
        with self.books() as store:
            return store.checkpoints(store.find(name).job)

    def journal(self, name: str = "") -> list[str]:
        """`kind: text`, oldest first."""
        with self.books() as store:
            rows = store.journal(store.find(name).job if name else "", limit=5000)
            return [f"{row.kind}: {row.text}" for row in rows]

    def log(self, name: str, n: int, stage: str = "run") -> bytes:
        """The stored log of one run; empty while there is none."""
        path = self.home.log(self.job(name).id, "t0", n, stage)
        return path.read_bytes() if path.exists() else b""

    def until(self, look: Callable[[], T], what: str, timeout: float = WAIT_S) -> T:
        """The first truthy answer of `look`; fails with `what` and the controller's log."""
        end = time.monotonic() + timeout
        while True:
            with contextlib.suppress(FileNotFoundError):
                found = look()
                if found:
                    return found
            if time.monotonic() >= end:
                log = self.home.controller_log.read_text() if self.home.controller_log.exists() else ""
                raise AssertionError(f"never happened: {what}\n--- controller\n{log[-6000:]}")
            time.sleep(LOOK_S)

    def until_said(self, name: str, text: str, n: int = 1, stage: str = "run") -> None:
        """Until the stored log of that run has `text`."""
        self.until(lambda: self._has_books() and self._said(name, text, n, stage), f"{name} run {n} says {text!r}")

    def _has_books(self) -> bool:
        return self.home.database.exists()

    def _said(self, name: str, text: str, n: int, stage: str) -> bool:
        return text.encode() in self.log(name, n, stage)

    # --- the world ----------------------------------------------------------------------------------------------------

    @property
    def provider(self) -> LocalProvider:
        """The account, asked directly."""
        deployment = json.loads(self.home.deployment_file.read_text())["deployment"]
        return LocalProvider(ProviderConfig(deployment, self.home.state, ()))

    def machines(self) -> list[Instance]:
        """Machines that are not dead."""
        if not self.home.deployment_file.exists():
            return []
        return [i for i in self.provider.list("here").instances if i.status not in lives.DEAD]

    def machine(self, rental: str) -> Instance:
        """The live machine of one rental."""
        return next(i for i in self.machines() if i.tag is not None and i.tag.rental == rental)

    def folder(self, rental: str) -> Path:
        """The home folder of a rental's machine, as this host sees it."""
        return self.provider.folder(self.machine(rental).ref) / "root" / "home"

    def reclaim(self, rental: str, notice_s: float = 0.0) -> None:
        """The provider takes the machine."""
        self.provider.reclaim(self.machine(rental).ref, notice_s)

    def kill_machine(self, rental: str) -> None:
        """kill -9 of the machine's first process, which takes everything on it."""
        ref = self.machine(rental).ref
        for process in lives.processes(self.provider.world, ref.id):
            process.kill()

    def processes(self) -> dict[int, str]:
        """Every process of this world but ourselves, pid -> command line: by the folder in its environment or
        arguments, or as a descendant of such a one (an sshd session hides both)."""
        mark, ours = str(self.base).encode(), os.getpid()
        commands: dict[int, bytes] = {}
        parents: dict[int, int] = {}
        marked: set[int] = set()
        for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
            with contextlib.suppress(OSError):
                commands[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
                parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                if mark in commands[pid] or mark in Path(f"/proc/{pid}/environ").read_bytes():
                    marked.add(pid)
        marked.discard(ours)
        found = {}
        for pid in parents:
            line, at = [], pid
            while at in parents and at not in line:
                line.append(at)
                at = parents[at]
            if pid != ours and marked.intersection(line) and commands[pid]:  # without a command line: a zombie
                found[pid] = commands[pid].replace(b"\0", b" ").decode("utf-8", "replace").strip()
        return found

    def controller_pid(self) -> int:
        """The live controller's pid, 0 when there is none."""
        try:
            pid = int(self.home.lock.read_text() or "0")
        except (FileNotFoundError, ValueError):
            return 0
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes() if pid else b""
        except OSError:
            return 0
        return pid if b"orchestrator.controller" in command or b"controller" in command else 0

    def kill_controller(self, number: int = signal.SIGKILL) -> int:
        """Signal the controller and wait until it is gone; its pid, 0 when there was none."""
        pid = self.controller_pid()
        if pid:
            os.kill(pid, number)
            self.until(lambda: self.controller_pid() != pid, "the controller ends")
        return pid

    def start_controller(self) -> None:
        """As any verb does while machines are open."""
        self.cli("ps")
        self.until(self.controller_pid, "the controller starts")

    def ever_made(self) -> int:
        """How many machines the account has seen within the last minutes, dead ones too."""
        return len(self.provider.list("here").instances)

    def assert_clean(self, name: str) -> None:
        """Nothing bills, nothing runs, nothing secret or private of the rentals is left."""
        assert self.machines() == []
        assert all(rental.gone_at is not None for rental in self.rentals(name))
        controller = self.controller_pid()
        self.until(lambda: not set(self.processes()) - {controller}, f"only the controller is left: {self.processes()}")
        assert not self.home.secrets(self.job(name).id).exists()


def counting(steps: int, every: float = 0.2, save_every: int = 5, taken: bool = False) -> str:
    """A program that counts, saves numbered checkpoints atomically, resumes, and logs each step once.

    `taken`: its first machine is taken away, so before the last step of a fresh start it waits for that.
    """
    pause = f'[ -n "$GPUJOB_RESUME_FROM" ] || [ "$step" -lt {steps - 1} ] || sleep 600 & wait $!' if taken else ":"
    return f"""
step=0
if [ -n "$GPUJOB_RESUME_FROM" ]; then step=$(cat "$GPUJOB_RESUME_FROM"); echo "resumed at $step"; fi
save() {{ echo "$step" > "$GPUJOB_CKPT/tmp-$step" && mv "$GPUJOB_CKPT/tmp-$step" "$GPUJOB_CKPT/step_$step"; }}
trap 'save; echo "saved at $step for the signal"; exit 0' TERM
while [ "$step" -lt {steps} ]; do
  step=$((step + 1)); echo "step=$step"
  [ $((step % {save_every})) -ne 0 ] || save
  sleep {every} & wait $!
  {pause}
done
echo "finished at $step" | tee "$GPUJOB_OUT/result.txt"
"""


def clean_tree(path: Path) -> None:
    """Remove a folder with whatever modes it has."""
    shutil.rmtree(path, ignore_errors=True)


__all__ = ["Assignment", "Mapping", "World", "clean_tree", "counting"]
