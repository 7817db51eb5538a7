"""The controller at rest: ready after its spawn in under 1 s, under 80 MB, under 0.5 % of a core.

    ./dev bench main_job_controller [STARTS] [SECONDS]

Ready means that it has answered a `ping` that was asked like any verb asks: a row in the books, a poke, the answer.
The same with the books of 1,000 live jobs would call providers, so only the empty controller and one that watches a
single local job are measured here; main_job_scale has the many.
"""

from __future__ import annotations

import sys
import time

from _desk import Desk
from _measure import Figure, cpu_s, rss_mb, say, show, threads

from orchestrator.cli import client

READY_S, RSS_MB, CORE_PERCENT = 1.0, 80.0, 0.5
SETTLE_S = 3.0  # a controller that has just started still ends what it began


def start(desk: Desk) -> tuple[float, float, int]:
    """Wall seconds until the answer, CPU seconds of the controller by then, its pid."""
    began = time.monotonic()
    client.start_early(desk.home)
    pid = client.request(desk.home, "ping", {})["pid"]
    wall = time.monotonic() - began
    return wall, cpu_s(pid), pid


def rest(pid: int, seconds: float) -> float:
    """Percent of a core that it uses while nothing happens."""
    time.sleep(SETTLE_S)
    before, began = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_s(pid) - before) / (time.monotonic() - began)


def measure(starts: int, seconds: float) -> list[Figure]:
    fresh, again, cpu, idle, memory = [], [], [], [], []
    for number in range(starts):
        say(f"start {number + 1} of {starts}")
        with Desk() as desk:
            fresh.append(start(desk)[0])
            desk.kill_controller()
            wall, used, pid = start(desk)
            again.append(wall)
            cpu.append(used)
            if number >= starts - 3:
                idle.append(rest(pid, seconds))
                memory.append(rss_mb(pid))
    say("one job")
    with Desk() as desk:
        desk.cli("apply", str(desk.spec("one", run="sleep 3600")), "-y")
        desk.until(lambda: _running(desk), "the job runs")
        pid = desk.controller_pid()
        busy, watched, count = rest(pid, seconds), rss_mb(pid), threads(pid)
    return [
        Figure("spawn to ping answered, new state folder", tuple(fresh), "s", READY_S),
        Figure("spawn to ping answered, existing books", tuple(again), "s", READY_S),
        Figure("CPU of such a start", tuple(cpu), "CPU-s"),
        Figure("idle", tuple(idle), "% of a core", CORE_PERCENT, "max"),
        Figure("idle, resident memory", tuple(memory), "MB", RSS_MB, "max"),
        Figure("one local job", (busy,), "% of a core"),
        Figure(f"one local job, resident memory ({count} threads)", (watched,), "MB", RSS_MB, "max"),
    ]


def _running(desk: Desk) -> bool:
    with desk.books() as store:
        return any(run.phase == "run" for job in store.active_jobs() for run in store.progress(job.id))


if __name__ == "__main__":
    numbers = [float(word) for word in sys.argv[1:]]
    raise SystemExit(show(measure(int(numbers[0]) if numbers else 10, numbers[1] if numbers[1:] else 30.0)))
