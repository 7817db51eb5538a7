"""How fast the same program was on earlier machines: from the series of this job's and of earlier runs of its name.

Rules: only what ran the same code with the same commands is compared, on the same kind of card; a run that never found
its pace says nothing. Read once for each machine, from files here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.home import Home
from orchestrator.look import Before, Look, median
from orchestrator.model import Job, Rental
from orchestrator.points import RUNNING, Point
from orchestrator.series import read

if TYPE_CHECKING:
    from orchestrator.store import Store

MINUTES_MIN = 10  # of a steady pace
MACHINES_MAX = 12  # series that are read for one machine
SAME_KEYS = ("run", "setup", "env", "image", "data", "sweep", "batch", "replicas")


def earlier(store: Store, home: Home, job: Job, rental: Rental) -> Before:
    """What machines before this one made of it; nothing for a first one."""
    if job.run == 1 and rental.attempt == 1:
        return Before()
    paces: list[float] = []
    rates: list[tuple[int, float]] = []
    mine = rental.offer
    for other in store.jobs_of_name(job.name, job.run):
        if not _same(job, other):
            continue
        for row in reversed(store.rentals(other.id)):
            offer = row.offer
            if row.id == rental.id or offer.gpu != mine.gpu or offer.gpu_count > mine.gpu_count:
                continue
            if other.id == job.id and row.attempt > rental.attempt:
                continue
            pace, rate = steady(read(home.series(other.id, row.id), 60))
            if offer.gpu_count == mine.gpu_count and pace is not None:
                paces.append(pace)
            elif offer.gpu_count < mine.gpu_count and offer.gpu_count and rate is not None:
                rates.append((offer.gpu_count, rate))
            if len(paces) + len(rates) >= MACHINES_MAX:
                return Before(tuple(paces), tuple(rates))
    return Before(tuple(paces), tuple(rates))


def _same(job: Job, other: Job) -> bool:
    return job.snapshot == other.snapshot and all(job.spec.get(key) == other.spec.get(key) for key in SAME_KEYS)


def steady(minutes: Sequence[Point]) -> tuple[float | None, float | None]:
    """Steps a second, and the throughput that the job told, of a run at its pace; None: too little is known."""
    run = [point for point in minutes if point.stage == RUNNING]
    if not run:
        return None, None
    look = Look(now=run[-1].at, name="", minutes=run)
    paces = [pace for _, pace in look.paces]
    rates = [point.rate for point in look.calm if point.rate > 0]
    return (median(paces) if len(paces) >= MINUTES_MIN else None, median(rates) if len(rates) >= MINUTES_MIN else None)
