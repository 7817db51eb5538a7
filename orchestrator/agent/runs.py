"""One run on the machine: its folder, its processes, how it is signalled and ended from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from orchestrator.agent.ends import boot_id, uptime
from orchestrator.agent.files import create_once, list_names, read_json, read_text, replace, to_json
from orchestrator.agent.layout import HOME, NOTES, STAGES, control
from orchestrator.agent.machine import output_of
from orchestrator.agent.processes import (
    below,
    carries,
    is_alive,
    kill_all,
    look_at_all,
    machine_mark,
    send,
    wake_supervisor,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_STARTED_RC = 125  # of a run that we could not start; 137 is a run whose wrapper was killed
REMOVE_S = 5.0  # a docker that hangs must not hold up a dead-man
CLOSE_S = 10.0  # how long `close` waits for the dead


class Run:
    """One folder runs/<task>.<n>/ and the processes that belong to it."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.folder = control("runs", key)
        self._order: dict[str, Any] | None = None

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    @property
    def order(self) -> dict[str, Any] | None:
        """The order without its secrets; it never changes once there."""
        if self._order is None:
            self._order = read_json(self.path("order.json"))
        return self._order

    @property
    def ended(self) -> dict[str, Any] | None:
        return read_json(self.path("ended.json"))

    @property
    def closed(self) -> bool:
        return os.path.exists(self.path("closed"))

    @property
    def signalled(self) -> dict[str, Any] | None:
        return read_json(self.path("signalled"))

    @property
    def staged(self) -> bool:
        """Ordered ahead: it begins when the run named in `after` has ended well, or by a repeat without `after`."""
        return bool((self.order or {}).get("after")) and not os.path.exists(self.path("begun"))

    @property
    def limit(self) -> dict[str, Any] | None:
        """{"s", "why"}: how long it may last by its leg's own time and money; as ordered, until it is moved."""
        return read_json(self.path("limit.json")) or (self.order or {}).get("limit")

    def begin(self) -> None:
        """Let it start; under the command lock, so that it either begins or is withdrawn."""
        replace(self.path("begun"), b"%.2f\n" % uptime())

    def begun_at(self) -> float:
        """Boottime from which it counts: of its order, or of when one that was ordered ahead began."""
        return float(read_text(self.path("begun")).strip() or (self.order or {}).get("boot_at") or 0.0)

    def claim(self) -> dict[str, Any] | None:
        """Who runs it. An empty claim (see create_once) belongs to a wrapper that died in the making."""
        found = read_json(self.path("claim"))
        if found is None and os.path.exists(self.path("claim")):
            return {"pid": 0, "start": 0, "boot_id": "", "at": 0.0}
        return found

    def wrapper(self) -> tuple[int, int] | None:
        """(pid, start) of the living wrapper."""
        claim = self.claim()
        if claim and claim["boot_id"] == boot_id() and is_alive(claim["pid"], claim["start"]):
            return claim["pid"], claim["start"]
        return None

    def rc(self, stage: str) -> int | None:
        text = read_text(self.path(stage + ".rc")).strip()
        return int(text) if text else None

    def folders(self) -> dict[str, str]:
        """Absolute paths of the job's folders as this run sees them."""
        assert self.order is not None
        root = job_folder(self.order["job"])
        own = self.order.get("workspace") == "own"
        return {
            "code": os.path.join(root, "code"),
            "base": os.path.join(root, "work", "base"),
            "work": os.path.join(root, "work", self.key if own else "base"),
            "data": os.path.join(root, "data"),
            "ckpt": os.path.join(root, "ckpt", self.key),
            "out": os.path.join(root, "out", self.key),
            "resume": os.path.join(root, "resume", self.key),
        }

    def log_path(self, name: str) -> str:
        """A stage's log, or what the program notes: metrics are among its results, marks of items are ours."""
        return os.path.join(self.folders()["out"], "metrics.jsonl") if name == "metrics" else self.path(name + ".log")

    def logs(self) -> list[str]:
        """Names of the logs that are there."""
        if self.order is None:
            return []
        return [name for name in STAGES + NOTES if os.path.isfile(self.log_path(name))]

    def pids(self) -> dict[int, int]:
        """pid -> start of everything of this run but its wrapper: descendants, remembered ones, marked ones."""
        procs = look_at_all()
        wrapper = self.wrapper()
        roots = {wrapper[0]} if wrapper else set()
        claim = self.claim()
        if claim and claim["boot_id"] == boot_id():
            for line in read_text(self.path("tree")).splitlines():
                pid, start = (int(word) for word in line.split())
                if pid in procs and procs[pid].start == start:
                    roots.add(pid)
        marks = ("GPUJOB_RUN=" + self.key, "GPUJOB_MACHINE=" + machine_mark())
        roots |= {pid for pid in procs if pid not in roots and carries(pid, *marks)}
        found = below(procs, roots) - {os.getpid(), 1} - ({wrapper[0]} if wrapper else set())
        return {pid: procs[pid].start for pid in found if pid in procs}

    def kill(self, seconds: float, pump: Callable[[], None] = lambda: time.sleep(0.05)) -> bool:
        """Everything of the run; in a container what carries its marks first, then the container with all the rest."""
        if os.path.exists(self.path("container")):
            kill_all(self.marked, seconds, pump)
            remove_container(self)
        return kill_all(self.pids, seconds, pump)

    def marked(self) -> dict[int, int]:
        """pid -> start of what was started with the run's marks, wherever it is now."""
        marks = ("GPUJOB_RUN=" + self.key, "GPUJOB_MACHINE=" + machine_mark())
        return {pid: proc.start for pid, proc in look_at_all().items() if carries(pid, *marks)}

    def finish(self, **fields: Any) -> bool:
        """Write ended.json (once); False where somebody else had."""
        self.forget_secrets()
        signalled = fields.pop("signalled", None)
        ended = {"stage": None, "rc": None, "signalled": signalled, "at": time.time(), "dead": True, **fields}
        first = create_once(self.path("ended.json"), to_json(ended))
        wake_supervisor()
        return first

    def forget_secrets(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("secrets"))

    def state(self) -> tuple[str, str | None]:
        """(state, stage) of the contract."""
        order, ended = self.order, self.ended
        if ended is not None or order is None:
            return "exited", ended["stage"] if ended else None
        if self.claim() is None:
            return "queued", None
        names = [stage["name"] for stage in order["stages"]]
        open_stages = [name for name in names if self.rc(name) is None]
        stage = open_stages[0] if open_stages else names[-1]
        return stage, stage

    def outcome(self) -> dict[str, Any]:
        """What is known of a run whose wrapper is gone: an exit code that was written stays true, else 137."""
        signalled, claim = self.signalled, self.claim()
        stage = self.state()[1] if claim else None
        codes = [(item["name"], self.rc(item["name"])) for item in (self.order or {"stages": []})["stages"]]
        failed = [(name, code) for name, code in codes if code]
        rc: int | None = None
        if failed:
            stage, rc = failed[0]
        elif claim:
            rc = 0 if codes and all(code == 0 for _, code in codes) else 137
        return {"stage": stage, "rc": rc, "signalled": signalled and signalled["why"]}


def remove_container(run: Run) -> None:
    """End a run's container; harmless where there is none."""
    known = read_json(run.path("container"))
    if known:
        program = [str(word) for word in known["program"]]
        output_of([*program, "kill", "--signal", "KILL", known["name"]], REMOVE_S)
        if output_of([*program, "rm", "-f", known["name"]], REMOVE_S):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(run.path("container"))


def all_runs() -> list[Run]:
    return [Run(name) for name in list_names(control("runs")) if "." in name and not name.startswith(".")]


def request_signal(run: Run, why: str, grace_s: float) -> dict[str, Any]:
    """Leave the order for the wrapper. The first one stands; only grace 0 (kill now) can make it sooner."""
    old = run.signalled
    if old is not None and grace_s > 0:
        return old
    new = {"why": old["why"] if old else why, "at": time.time(), "kill_at": uptime() + grace_s}
    if old is not None:
        replace(run.path("signalled"), to_json(new))
    elif not create_once(run.path("signalled"), to_json(new)):
        return request_signal(run, why, grace_s)  # the dead-man was quicker
    return new


def end_run(run: Run, seconds: float, **fields: Any) -> bool:
    """Kill a run from outside and see it ended; its wrapper gets the chance to write the true exit code."""
    until = uptime() + seconds
    await_end(run, min(seconds, 1.0))  # it sees `signalled` and `closed` within a moment, and then knows why
    if run.ended is None:
        run.kill(seconds)
        await_end(run, min(seconds, 2.0))
    wrapper = run.wrapper() if run.ended is None else None
    if wrapper:
        send(wrapper[0], wrapper[1], signal.SIGKILL)
    dead = run.kill(max(0.5, until - uptime()))
    if dead and run.ended is None:
        run.finish(**{**run.outcome(), **fields})
    return dead


def job_folder(job: str) -> str:
    return os.path.join(read_text(control("base")).strip() or HOME, "gpujob", job)


def await_end(run: Run, seconds: float) -> None:
    """Leave a living wrapper some time to end its run."""
    until = uptime() + seconds
    while run.ended is None and run.wrapper() and uptime() < until:
        time.sleep(0.02)
