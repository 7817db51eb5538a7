"""The long-lived process: launches what was ordered, records how runs end, looks at checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import time
import traceback
from typing import TYPE_CHECKING, Any

from orchestrator.agent.checkpoints import SCAN_S, CheckpointScan
from orchestrator.agent.deadman import DeadMan
from orchestrator.agent.ends import boot_id, uptime
from orchestrator.agent.events import record_event
from orchestrator.agent.files import command_lock, jot, note, read_json, replace, to_json
from orchestrator.agent.launch import own_argv, own_version, spawn_detached, start_in_tmux
from orchestrator.agent.layout import PROTOCOL, control
from orchestrator.agent.processes import look_at, spare_from_oom
from orchestrator.agent.runs import CLOSE_S, NOT_STARTED_RC, Run, all_runs, end_run, request_signal
from orchestrator.agent.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable

LAUNCH_AGAIN_S = 5.0  # a wrapper that has not claimed its run by then is started again
LAUNCHES = 5
MIRROR_AGAIN_S = 2.0  # a mirror that ended is started again after this, while its access file is there


class Supervisor:
    """Launches what was ordered, records how runs end, looks at checkpoints. It may die at any point."""

    def __init__(self) -> None:
        self.deadman = DeadMan()
        self.done: set[str] = set()
        self.runs: dict[str, Run] = {}
        self.scans: dict[str, tuple[CheckpointScan, float]] = {}  # and the boottime of the next look
        self.known: dict[str, list[dict[str, Any]]] = {}
        self.launches: dict[str, tuple[int, float]] = {}  # times, boottime of the last
        self.mirrors: dict[str, tuple[subprocess.Popen[bytes], float]] = {}  # and when the next may be started
        self.stopping = False

    def main(self) -> None:
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopping", True))
        for name in ("HUP", "INT", "PIPE"):
            signal.signal(getattr(signal, "SIG" + name), signal.SIG_IGN)
        self.deadman.start()
        record_event("agent", pid=os.getpid(), version=own_version(), protocol=PROTOCOL)
        sampler = Sampler()
        while not self.stopping:
            self.runs = {run.key: self.runs.get(run.key, run) for run in all_runs()}  # which keep their orders
            runs = list(self.runs.values())
            # What was ordered ahead comes last: the end of the run before it is seen in the same round
            live = sorted((run for run in runs if run.key not in self.done), key=lambda run: run.staged)
            for run in live:
                self.try_duty(self.tend, run)
            for run in runs:
                self.try_duty(self.keep_mirroring, run)
            self.try_duty(sampler.tick, live)
            select.select([wake_read], [], [], 0.25 if live or sampler.waiting else 1.0)
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
        sampler.stop()

    def try_duty(self, duty: Callable[..., None], *args: Any) -> None:
        try:
            duty(*args)
        except Exception:  # a full disk, a damaged folder: the other runs and the next look still count
            note(traceback.format_exc())
            time.sleep(0.5)

    def tend(self, run: Run) -> None:
        ended = run.ended
        if ended is not None:
            self.report_end(run, ended)
        elif run.order is None:
            return
        elif run.closed:
            end_run(run, CLOSE_S)
        elif run.order["boot_id"] != boot_id():
            run.finish(**{**run.outcome(), "rebooted": True, "lost": True})
        elif run.staged:
            self.begin(run)
        elif run.claim() is None:
            self.launch(run)
        elif run.wrapper() is None:
            outcome = run.outcome()
            if run.kill(CLOSE_S) and run.ended is None:
                run.finish(**{**outcome, "lost": outcome["rc"] == 137})
        else:
            self.watch(run)

    def begin(self, run: Run) -> None:
        """Start what was ordered ahead once the run before it ended well. After anything else, or when a reclaim or the
        end is near, it waits for a word."""
        order, known = run.order or {}, self.deadman.known
        before = Run(order["after"]).ended
        near = known is not None and known.remaining() <= max(known.grace, float(order.get("room_s") or 0.0))
        if before is None or before["rc"] != 0 or before["signalled"] or before.get("lost"):
            return
        if near or self.deadman.over or self.deadman.notice is not None:
            return
        with command_lock():
            if not run.closed and run.staged:
                run.begin()
        if not run.staged:
            self.launch(run)

    def launch(self, run: Run) -> None:
        """Start the wrapper in tmux; without a tmux that works, beside it. `claim` decides who really runs."""
        times, last = self.launches.get(run.key, (0, 0.0))
        if self.deadman.over or (times and uptime() - last < LAUNCH_AGAIN_S):
            return
        if times >= LAUNCHES:
            run.finish(rc=NOT_STARTED_RC, detail="the run's wrapper did not start; see agent.log")
            return
        self.launches[run.key] = (times + 1, uptime())
        argv = own_argv("_wrap", run.key)
        if not start_in_tmux(run, argv):
            spawn_detached(argv)

    def watch(self, run: Run) -> None:
        request = run.signalled
        limit = run.limit
        if limit and request is None and run.order and uptime() - run.begun_at() >= limit["s"]:
            request = request_signal(run, limit["why"], float(run.order.get("grace_s") or 0.0))
        if request and uptime() > request["kill_at"] + 5.0:
            run.kill(1.0)  # its wrapper should have; stopped or stuck
        scan, due = self.scans.get(run.key) or (CheckpointScan(run), 0.0)
        if uptime() >= due:
            began = uptime()
            self.compare(run, scan.look(), final=False)
            # A huge folder may cost a twentieth of a core, not more
            self.scans[run.key] = (scan, uptime() + max(SCAN_S, 20 * (uptime() - began)))

    def keep_mirroring(self, run: Run) -> None:
        """Where the run has an access to a store, its mirror runs: also after its end, for what it saved last."""
        if not os.path.exists(run.path("store.json")) or run.closed or run.order is None:
            return
        process, due = self.mirrors.get(run.key, (None, 0.0))
        if process is not None and process.poll() is None:
            return
        if uptime() >= due:
            self.mirrors[run.key] = (spawn_detached(own_argv("_mirror", run.key)), uptime() + MIRROR_AGAIN_S)

    def compare(self, run: Run, found: list[dict[str, Any]], final: bool) -> None:
        """Keep the look for `status`, and tell of each checkpoint that became complete."""
        if run.key not in self.known:
            kept = read_json(run.path("checkpoints.json"))
            self.known[run.key] = kept["list"] if kept else []
        before = self.known[run.key]
        if final or found != before:
            jot(run.path("checkpoints.json"), to_json({"final": final, "list": found}))
        told = {(item["name"], item["mtime"]) for item in before if item["complete"]}
        for item in found:
            if item["complete"] and (item["name"], item["mtime"]) not in told:
                fields = {key: item[key] for key in ("name", "step", "bytes", "save_s")}
                record_event("checkpoint", run=run.key, **fields)
        if final:
            self.tell_unfinished(run, found)
        self.known[run.key] = found

    def tell_unfinished(self, run: Run, found: list[dict[str, Any]]) -> None:
        """What would have been the newest one, and why it is not resumed from."""
        whole = max((item["step"] for item in found if item["complete"]), default=-1)
        for item in found:
            if item.get("why") and item["step"] > whole:
                fields = {key: item[key] for key in ("name", "step", "bytes", "why")}
                record_event("incomplete", run=run.key, **fields)

    def report_end(self, run: Run, ended: dict[str, Any]) -> None:
        run.forget_secrets()  # a repeat: who ended it may have been killed before this
        if run.order is not None and not ended.get("withdrawn") and not os.path.exists(run.path("reported")):
            self.compare(run, CheckpointScan(run).look(dead=True), final=True)
            told = {key: value for key, value in ended.items() if key not in ("at", "dead")}
            record_event("exit", run=run.key, **told)
            replace(run.path("reported"), b"")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(run.path("reserve"))
        self.done.add(run.key)
        self.scans.pop(run.key, None)
        self.known.pop(run.key, None)


def supervise() -> int:
    """The long-lived process. The lock, not the pid file, makes it the only one."""
    fd = os.open(control("agent.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(40):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.05)
    else:
        return 0
    me = look_at(os.getpid())
    assert me is not None
    spare_from_oom(-500)
    identity = "%d %d %s\n" % (os.getpid(), me.start, own_version())
    try:
        replace(control("agent.pid"), identity.encode())
    except OSError as error:  # a full disk: the dead-man matters more than being found
        note("agent.pid: %s" % error)
    Supervisor().main()
    return 0
