"""Is a machine's pid 1 alive, and how to end it: by pid and start time, so a reused pid is never touched."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
POLL_S = 0.002


@dataclass(frozen=True)
class Process:
    """One process of this host's present boot; `start` is field 22 of its stat, in clock ticks since boot."""

    pid: int
    start: int

    def alive(self) -> bool:
        """True while it can still run code. A zombie cannot, and pid 1 of a namespace is a zombie only after
        the kernel has killed everything else in there."""
        seen = stat_of(self.pid)
        return seen is not None and seen[0] == self.start and seen[1] not in "ZX"

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Signal it, if it is still the one we mean."""
        if self.alive():
            try:
                os.kill(self.pid, signum)
            except ProcessLookupError:
                pass  # it died between the look and the signal: what we wanted


def stat_of(pid: int) -> tuple[int, str] | None:
    """(start time in ticks, state letter) of a process, None when there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the command name in front may hold blanks and brackets
    return int(fields[19]), fields[0]


def _runs(pid: int) -> bool:
    seen = stat_of(pid)
    return seen is not None and seen[1] not in "ZX"


def boot_id() -> str:
    """The kernel's name for this boot: pids of another boot mean nothing."""
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def parse_identity(text: str) -> tuple[Process, ...]:
    """What pid 1 wrote about itself: the boot's id, then `pid start` lines. Of an older boot: nobody."""
    lines = text.split("\n")
    if lines[0] != boot_id():
        return ()
    return tuple(Process(int(a), int(b)) for a, b in (line.split() for line in lines[1:] if line))


def any_alive(processes: Iterable[Process]) -> bool:
    return any(process.alive() for process in processes)


def wait_gone(processes: Iterable[Process], timeout_s: float) -> bool:
    """Wait until none of them runs; False when the time is over first."""
    listed = tuple(processes)
    until = time.monotonic() + timeout_s
    while any_alive(listed):
        if time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


def kill_marked(marker: str) -> int:
    """Kill every process whose environment holds `marker` ("NAME=value"); returns how many were seen.

    The last resort where no namespace and no supervisor is left to do it: a process with a scrubbed
    environment is missed. Stops each first, so that a fork loop cannot outrun the scan.
    """
    wanted, seen, found = marker.encode(), set[int](), True
    while found:
        found = False
        for entry in os.listdir(PROC):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            pid = int(entry)
            try:
                environment = (PROC / entry / "environ").read_bytes().split(b"\0")
                if wanted not in environment or not _runs(pid):
                    continue
                os.kill(pid, signal.SIGSTOP)
                os.kill(pid, signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # gone meanwhile, or another user's: not ours to look at
            seen.add(pid)
            found = True
        time.sleep(POLL_S)
    return len(seen)
