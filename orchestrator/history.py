"""What earlier runs teach about the next one: how long it takes, how long a start takes, how often spot goes.

Rules: medians of the newest runs, from the books alone, so that plan and controller know the same. A rate of reclaims
leans on the guess until there are hours enough to trust it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from orchestrator.interval import measured
from orchestrator.model import CreateOutcome, Reason

if TYPE_CHECKING:
    from orchestrator.store import Store
    from orchestrator.store.rows import AskedFor

RUNS = 5  # newest finished runs of a name: older ones were other code
STARTUP_S = 600.0  # the guess before the first run: boot, data and setup of an ordinary machine
RECLAIMS_PER_H = 0.2  # the guess: spot machines live 2 to 7 h on average in published traces
RECLAIM_PRIOR_H = 10.0  # hours of spot that weigh as much as the guess
RECLAIM_WINDOW_S = 90 * 86_400.0  # pools change with the seasons


@dataclass(frozen=True)
class History:
    """What the books know; None and empty where they know nothing yet."""

    run_s: float | None = None  # median of done runs, setup and rework included
    runs: int = 0  # how many that is
    run_on: Mapping[str, float] = field(
        default_factory=dict
    )  # "<class>:<cards>" -> median of those that ran there only
    startup_s: float | None = None  # median, order of a machine to order of the run
    reclaims: Mapping[str, float] = field(default_factory=dict)  # provider -> reclaims of a spot machine an hour
    spot_hours: float = 0.0  # what those rates rest on
    save_s: float | None = None  # median of the saves of the newest runs, whatever became of them
    checkpoint_bytes: int = 0  # the largest of these saves


UNKNOWN = History()


@dataclass(frozen=True)
class Record:
    """How one provider has served in the last 90 days: creates that were sent, and what became of them."""

    creates: int
    refused: int
    unanswered: int  # the answer of the create was lost
    bad_hosts: int
    reclaimed: int
    ready_s: float | None  # median time from a create to a machine that answers; None: none did


def records_of(store: Store, now: float) -> dict[str, Record]:
    """provider -> its record; one that was never asked for a machine has none."""
    rows: dict[str, list[AskedFor]] = {}
    for row in store.asked_of_providers(now - RECLAIM_WINDOW_S):
        rows.setdefault(row.provider, []).append(row)
    found = {}
    for provider, asked in rows.items():
        ready = [row.ready_s for row in asked if row.ready_s is not None]
        found[provider] = Record(
            creates=len(asked),
            refused=sum(row.create_outcome == CreateOutcome.REFUSED for row in asked),
            unanswered=sum(row.create_outcome == CreateOutcome.AMBIGUOUS for row in asked),
            bad_hosts=sum(row.reason == Reason.BAD_HOST for row in asked),
            reclaimed=sum(row.reclaimed for row in asked),
            ready_s=median(ready) if ready else None,
        )
    return found


def history_of(store: Store, name: str, now: float) -> History:
    """What the books know for the next run of `name`."""
    lasted: dict[str, float] = {}
    places: dict[str, set[str]] = {}
    startups: list[float] = []
    for row in store.past_runs(name):
        if row.job not in lasted and len(lasted) == RUNS:
            continue
        lasted[row.job] = lasted.get(row.job, 0.0) + max(0.0, row.ended_at - row.ordered_at)
        places.setdefault(row.job, set()).add(row.gpu)
        startups.append(max(0.0, row.ordered_at - row.rented_at))
    on: dict[str, list[float]] = {}
    for job, gpus in places.items():
        if len(gpus) == 1:
            on.setdefault(next(iter(gpus)), []).append(lasted[job])
    saves = store.saves(name)
    use = store.spot_use(now - RECLAIM_WINDOW_S, now)
    return History(
        run_s=median(lasted.values()) if lasted else None,
        runs=len(lasted),
        run_on={gpu: median(times) for gpu, times in on.items()},
        startup_s=median(startups) if startups else None,
        reclaims={
            provider: (count + RECLAIMS_PER_H * RECLAIM_PRIOR_H) / (hours + RECLAIM_PRIOR_H)
            for provider, (count, hours) in use.items()
        },
        spot_hours=sum(hours for _, hours in use.values()),
        save_s=measured(saves)[0],
        checkpoint_bytes=max((size for each in saves if isinstance(size := each.get("bytes"), int)), default=0),
    )
