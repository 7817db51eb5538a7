"""The dead-man and the reclaim notice, in a thread of the supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import traceback
from typing import Any, NoReturn

from orchestrator.agent.ends import Deadline, boot_id, uptime
from orchestrator.agent.events import record_event
from orchestrator.agent.files import jot, note, read_json, read_text, to_json
from orchestrator.agent.layout import control
from orchestrator.agent.machine import output_of
from orchestrator.agent.metadata import MetadataWatch
from orchestrator.agent.processes import below, carries, is_alive, kill_all, look_at_all, machine_mark
from orchestrator.agent.runs import Run, all_runs, end_run, request_signal

STREAM_S = 5.0  # no byte from a controller for this long: nobody is there to decide
NOTICE_SPARE_S = 2.0  # kept free before a reclaim, so that KILL comes from us and the exit is recorded
NOTICE_UNKNOWN_S = 30.0  # a notice that does not say when


class DeadMan(threading.Thread):
    """Watches the end and the reclaim notice. A thread of its own: a slow disk or driver must not hold it up."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.known: Deadline | None = None  # survives a deadline file that cannot be read any more
        self.saving_for: float | None = None
        self.over = False
        self.notice = current_notice()
        self.notice_tick = 0.0
        self.metadata: MetadataWatch | None = None

    def run(self) -> None:
        while True:
            for duty in (self.mind_the_end, self.mind_the_notice):
                try:
                    duty()
                except Exception:  # whatever happened to one look, the next one must come
                    note(traceback.format_exc())
            time.sleep(0.5)

    def mind_the_end(self) -> None:
        self.known = known = Deadline.load() or self.known
        if known is None:
            return
        left = known.remaining()
        if left <= 0:
            self.end_everything(known)
        elif left <= known.grace and self.saving_for != known.end:
            self.saving_for = known.end
            self.report("saving", left=round(left, 1))
            self.signal_all("ttl", left)

    def report(self, kind: str, **fields: Any) -> None:
        threading.Thread(target=record_event, args=(kind,), kwargs=fields, daemon=True).start()

    def signal_all(self, why: str, grace_s: float) -> None:
        for run in all_runs():
            if run.order is not None and run.ended is None and not run.staged:
                try:
                    request_signal(run, why, grace_s)
                except OSError as error:  # no room for the request: the signal itself needs none
                    note("%s: %s" % (run.key, error))
                    self.signal_directly(run)

    def signal_directly(self, run: Run) -> None:
        stage = run.state()[1]
        words = read_text(run.path("%s.pid" % stage)).split()
        if len(words) == 2 and is_alive(int(words[0]), int(words[1])):
            name = (run.order or {}).get("signal") or "TERM"
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(int(words[0]), getattr(signal, "SIG" + name))

    def end_everything(self, deadline: Deadline) -> NoReturn:
        """The end wins: kill, record what can be recorded, power off where that is ours to do, and stop."""
        self.over = True  # nothing is launched from here on
        self.report("ending", action=deadline.action)
        self.signal_all("ttl", 0.0)
        for run in all_runs():
            if run.ended is None:
                try:
                    end_run(run, 3.0)
                except Exception:  # the next run must still be ended
                    note(traceback.format_exc())
        mark = "GPUJOB_MACHINE=" + machine_mark()

        def ours() -> dict[int, int]:
            procs = look_at_all()
            found = below(procs, {pid for pid in procs if carries(pid, mark)}) - {os.getpid(), os.getppid(), 1}
            return {pid: procs[pid].start for pid in found}

        kill_all(ours, 5.0, lambda: time.sleep(0.05))
        while deadline.action == "poweroff":
            power_off()
        os._exit(0)

    def mind_the_notice(self) -> None:
        if self.notice is None and uptime() - self.notice_tick >= 1.0:
            self.notice_tick = uptime()
            self.notice = self.announced(read_text(control("notice_file")).strip())
            if self.notice is not None:
                jot(control("notice.json"), to_json(self.notice))
                self.report("notice", until=self.notice["at"], action=self.notice["action"])
        if self.notice is not None:
            left = self.notice["boot_at"] - uptime()
            heard = uptime() - float(read_text(control("stream")).strip() or 0)
            if heard < 0 or heard > STREAM_S:  # nobody is there to decide; before a reboot counts as nobody
                self.signal_all("interruption", max(1.0, left - NOTICE_SPARE_S))

    def announced(self, where: str) -> dict[str, Any] | None:
        """What is announced now in a file, or at a metadata service, which is asked by a thread of its own."""
        watch = self.metadata
        if watch is not None and watch.base != where:
            watch.stopped = True
            watch = self.metadata = None
        if not where.startswith("http://"):
            return read_notice(where)
        if watch is None:
            watch = self.metadata = MetadataWatch(where, self.report)
            watch.start()
        return None if watch.found is None else notice_of(watch.found)


def read_notice(path: str) -> dict[str, Any] | None:
    """A provider's reclaim file: None while there is none."""
    path = os.path.expanduser(path)
    return notice_of(read_text(path)) if path and os.path.exists(path) else None


def notice_of(text: str) -> dict[str, Any]:
    """JSON with `at` (epoch) or `time` (RFC 3339); whatever else it says, it is a notice."""
    try:
        value = json.loads(text)
    except ValueError:
        value = {}
    value = value if isinstance(value, dict) else {}
    at = value.get("at")
    if not isinstance(at, (int, float)):
        try:
            from calendar import timegm

            at = float(timegm(time.strptime(str(value.get("time"))[:19], "%Y-%m-%dT%H:%M:%S")))
        except ValueError:
            at = time.time() + NOTICE_UNKNOWN_S
    boot_at = uptime() + (at - time.time())
    return {"at": at, "action": str(value.get("action", "terminate")), "boot_at": boot_at, "boot_id": boot_id()}


def current_notice() -> dict[str, Any] | None:
    """The notice of this boot; a machine that was stopped and started again has survived its own."""
    notice = read_json(control("notice.json"))
    return notice if notice and notice["boot_id"] == boot_id() else None


def power_off() -> None:
    """One round of everything that may switch a machine off, as root, by sudo, or in a container."""
    for argv in (["poweroff"], ["sudo", "-n", "poweroff"], ["shutdown", "-h", "now"], ["systemctl", "poweroff", "-i"]):
        output_of(argv, 20.0)
    for number in (signal.SIGTERM, signal.SIGINT):  # a container's first process
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(1, number)
    time.sleep(3.0)
