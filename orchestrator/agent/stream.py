"""`follow`: events, logs and state as JSON lines, from the controller's cursors on."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any

from orchestrator.agent.asks import need, prove_machine
from orchestrator.agent.ends import uptime
from orchestrator.agent.files import jot, size_of, to_json
from orchestrator.agent.layout import control
from orchestrator.agent.runs import all_runs
from orchestrator.agent.status import shortened, status_command

CHUNK = 32 << 10  # bytes of log in one line of `follow`


class Stream:
    """`follow`: everything new since the cursors, until stdin closes."""

    def __init__(self, ask: dict[str, Any]) -> None:
        prove_machine(ask)
        self.events = min(need(ask, "events", int, 0), size_of(control("events.jsonl")))
        self.logs = {str(name): int(offset) for name, offset in need(ask, "logs", dict, {}).items()}
        self.beat_s = max(0.2, float(need(ask, "beat_s", (int, float), 2)))
        self.shown = b""
        self.stamp: tuple[float, ...] = ()

    def main(self) -> None:
        self.heard()
        status = status_command({})
        self.shown = self.essence(status)
        self.stamp = self.touched()
        self.say({"t": "hello", "status": shortened(status)})
        beat = uptime()
        idle = 0.05
        while True:
            busy = self.send_events() | self.send_logs()
            if uptime() - beat >= self.beat_s:
                beat = uptime()
                if not os.path.exists(control("nonce")):
                    return  # the folder was removed: who read on would believe in runs that nobody looks at
                self.say({"t": "beat", "at": time.time(), "boot": beat})
                self.stamp = ()  # also sees what touches no folder, as a supervisor that died
            stamp = self.touched()
            if stamp != self.stamp:
                self.stamp = stamp
                self.send_status()
            idle = 0.05 if busy else min(0.4, idle * 1.5)
            ready, _, _ = select.select([0], [], [], 0.0 if busy else idle)
            if ready:
                if not os.read(0, 4096):
                    return
                self.heard()

    def heard(self) -> None:
        """A controller is awake at the other end: the dead-man leaves a reclaim notice to it."""
        jot(control("stream"), b"%.2f\n" % uptime())

    def say(self, value: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    def touched(self) -> tuple[float, ...]:
        """Every change of state renames or makes a file, which shows in its folder's time."""
        paths = [control("deadline"), control("notice.json"), control("agent.pid"), control("runs")]
        paths += [run.folder for run in all_runs()]
        return tuple(os.stat(path).st_mtime_ns if os.path.exists(path) else 0 for path in paths)

    @staticmethod
    def essence(status: dict[str, Any]) -> bytes:
        runs = {key: {**run, "logs": None, "mirror": None, "begun_s": None} for key, run in status["runs"].items()}
        return to_json([runs, *(status[key] for key in ("deadline", "notice", "supervisor", "setups"))])

    def send_status(self) -> None:
        status = status_command({})
        essence = self.essence(status)
        if essence != self.shown:
            self.shown = essence
            self.say({"t": "status", "status": shortened(status)})

    def send_events(self) -> bool:
        path = control("events.jsonl")
        if size_of(path) <= self.events:
            return False
        with open(path, "rb") as file:
            file.seek(self.events)
            block = file.read(1 << 18)
        whole = block.rfind(b"\n") + 1
        for line in block[:whole].splitlines(keepends=True):
            self.events += len(line)
            try:
                event = json.loads(line)
            except ValueError:
                continue  # cut off by a kill in the middle
            self.say({"t": "event", "next": self.events, "event": event})
        return bool(whole)

    def send_logs(self) -> bool:
        """One round over all logs, so that a long backlog of one does not hold up the others."""
        import base64

        busy = False
        for run in all_runs():
            for stage in run.logs():
                name = "%s/%s" % (run.key, stage)
                path, offset = run.log_path(stage), self.logs.get(name, 0)
                if size_of(path) <= offset:
                    continue
                with open(path, "rb") as file:
                    file.seek(offset)
                    data = file.read(CHUNK)
                text = base64.b64encode(data).decode("ascii")
                self.say({"t": "log", "run": run.key, "stage": stage, "offset": offset, "data": text})
                self.logs[name] = offset + len(data)
                busy = True
        return busy


def follow(ask: dict[str, Any]) -> None:
    """Nothing may write into the closed pipe of a controller that is gone and call it an error."""
    try:
        Stream(ask).main()
    except BrokenPipeError:
        os._exit(0)
