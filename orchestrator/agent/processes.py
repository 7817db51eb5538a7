"""Processes by (pid, start time), their trees and marks, and how to end them for good."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.agent.ends import uptime
from orchestrator.agent.files import note, read_text
from orchestrator.agent.layout import control

if TYPE_CHECKING:
    from collections.abc import Callable


class Proc(NamedTuple):
    parent: int
    group: int
    start: int  # clock ticks since boot; with the pid it names a process for good
    zombie: bool


def look_at(pid: int) -> Proc | None:
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return Proc(int(fields[1]), int(fields[2]), int(fields[19]), fields[0] in "ZX")


def look_at_all(zombies: bool = False) -> dict[int, Proc]:
    found = ((int(name), look_at(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return {pid: proc for pid, proc in found if proc is not None and (zombies or not proc.zombie)}


def is_alive(pid: int, start: int) -> bool:
    proc = look_at(pid)
    return proc is not None and proc.start == start and not proc.zombie


def below(procs: dict[int, Proc], roots: set[int]) -> set[int]:
    """The roots and all their descendants."""
    children: dict[int, list[int]] = {}
    for pid, proc in procs.items():
        children.setdefault(proc.parent, []).append(pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return found


def carries(pid: int, *marks: str) -> bool:
    """The process was started with all these `NAME=value` in its environment."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            environ = file.read().split(b"\0")
    except OSError:
        return False
    return all(mark.encode() in environ for mark in marks)


def send(pid: int, start: int, number: int) -> None:
    """Signal that very process; the second look keeps a reused pid from being hit."""
    if is_alive(pid, start):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_all(victims: Callable[[], dict[int, int]], seconds: float, pump: Callable[[], None]) -> bool:
    """End everything that `victims` (pid -> start) finds. Stopped first, so that nothing can fork away."""
    until = uptime() + seconds
    while True:
        stopped: dict[int, int] = {}
        for _round in range(20):
            fresh = {pid: start for pid, start in victims().items() if stopped.get(pid) != start}
            if not fresh:
                break
            for pid, start in fresh.items():
                send(pid, start, signal.SIGSTOP)
            stopped.update(fresh)
        for pid, start in stopped.items():
            send(pid, start, signal.SIGKILL)
        if not stopped:
            return True
        if uptime() > until:
            return False
        pump()


def become_subreaper() -> None:
    """Orphans of the run become our children instead of init's, so none gets away. Linux 3.4+."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError) as error:
        note("no subreaper: %s" % error)


def spare_from_oom(score: int) -> None:
    """The kernel should end the trainer that ate the memory, not its keeper; lowering needs root."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(score))


def machine_mark() -> str:
    """What every process of ours carries in its environment. The boot hook knows it too, so it is not the nonce."""
    return hashlib.sha256(read_text(control("nonce")).strip().encode()).hexdigest()[:16]


def supervisor_pid() -> tuple[int, int, str] | None:
    """(pid, start, version) of the living supervisor."""
    words = read_text(control("agent.pid")).split()
    if len(words) == 3 and is_alive(int(words[0]), int(words[1])):
        return int(words[0]), int(words[1]), words[2]
    return None


def wake_supervisor() -> None:
    found = supervisor_pid()
    if found:
        send(found[0], found[1], signal.SIGUSR1)
