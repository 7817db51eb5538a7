"""The newest progress of every run, kept until it is written together with that of all others.

Steps, samples and transfers are for people, who look once a second at most, but a thousand jobs say hundreds of them
in a second, and a commit costs a wait for the disk. So only the newest of each run is kept, and one commit writes them
all. What is lost with a controller that is killed is a second of what was shown; the next line of the log brings it
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.messages import TransferSeen
from orchestrator.store import Store

WRITE_EVERY_S = 1.0  # how old the shown progress may be


@dataclass
class _Newest:
    """What one machine said last: of its runs by their keys, and of itself."""

    steps: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    transfers: dict[str, TransferSeen] = field(default_factory=dict)
    sample: Mapping[str, Any] | None = None


class Board:
    """Filled by `hearing`, written by the loop."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], _Newest] = {}  # job and rental
        self._written_at = -WRITE_EVERY_S

    def step(self, job: str, rental: str, run: str, step: float, total: float | None) -> None:
        """A run has come to a step."""
        self._of(job, rental).steps[run] = (step, total)

    def sample(self, job: str, rental: str, sample: Mapping[str, Any]) -> None:
        """How busy the machine is; shown with its newest run."""
        self._of(job, rental).sample = sample

    def transfer(self, job: str, seen: TransferSeen) -> None:
        """What is being copied for a run, or that nothing is any more."""
        self._of(job, seen.rental).transfers[seen.run] = seen

    def _of(self, job: str, rental: str) -> _Newest:
        return self._waiting.setdefault((job, rental), _Newest())

    def write(self, store: Store, now: float, boot: float) -> None:
        """Write what waits, unless that was done less than a second ago."""
        if not self._waiting or boot - self._written_at < WRITE_EVERY_S:
            return
        waiting, self._waiting = self._waiting, {}
        self._written_at = boot
        with store.transaction():
            for (job, rental), newest in waiting.items():
                _write_one(store, now, job, rental, newest)


def _write_one(store: Store, now: float, job: str, rental: str, newest: _Newest) -> None:
    """A machine is believed about the runs only that were committed on it."""
    mine = {run.key: run for run in store.assignments(job) if run.rental == rental}
    for key, (step, total) in newest.steps.items():
        if key in mine:
            store.progress_seen(job, mine[key].task, mine[key].n, now, step=step, total=total)
    for key, seen in newest.transfers.items():
        if key in mine:
            shown = {"what": seen.what, "bytes": seen.bytes, "total": seen.total, "rate": round(seen.rate), "at": now}
            store.progress_seen(job, mine[key].task, mine[key].n, now, transfer=shown if seen.what else {})
    if newest.sample is not None and mine:
        last = max(mine.values(), key=lambda run: (run.ordered_at or 0.0, run.n))
        store.progress_seen(job, last.task, last.n, now, sample=newest.sample)
