"""What every second of a machine was good for: useful, done again, or without work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sim_box import Box, Run

Durable = Mapping[tuple[str, str], Sequence[tuple[float, int, int, bool]]]  # job, task -> when, run, step, too late


@dataclass
class Prices:
    """Seconds of machines, by what they were good for; waits in seconds."""

    job_s: float = 0.0
    useful_s: float = 0.0
    redone_s: float = 0.0
    wasted_s: float = 0.0
    orphaned_s: float = 0.0
    after_finish: list[float] = field(default_factory=list)
    recovery: list[float] = field(default_factory=list)

    def add(self, box: Box, durable: Durable, now: float, finished: float | None) -> None:
        """Split the life of a machine that is over."""
        runs = [run for run in box.runs.values() if run.began is not None]
        worked = sum((run.ended or now) - (run.began or now) for run in runs)
        kept = sum(max(0.0, kept_until(run, durable) - run.base) for run in runs)
        self.useful_s += min(worked, kept)
        self.redone_s += max(0.0, worked - kept)
        self.wasted_s += max(0.0, now - box.born - worked)
        if finished is not None:
            self.after_finish.append(now - finished)


def kept_until(run: Run, durable: Durable) -> float:
    """The second of work up to which a run's work lives on."""
    if run.by_itself and run.rc == 0:
        return run.reached(0)
    return max((step for _, n, step, _ in durable.get((run.job, run.task), ()) if n == run.n), default=run.base)
