"""One sweep as the books have it: its legs, what they are compared by, and which is the best. Never a write.

Rules: read in loops and prompts, so it imports neither the spec's model nor, unless a bill needs a rate, the
configuration.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, cast

from orchestrator.cli.exits import CliError
from orchestrator.cli.reading import reader
from orchestrator.leg_books import Books, legs_of, run_costs, run_seconds
from orchestrator.legs import Goal, Leg, LegState, best, ranking
from orchestrator.model import Job

if TYPE_CHECKING:
    from orchestrator.cli.reading import View
    from orchestrator.home import Home
    from orchestrator.store import Store
    from orchestrator.store.rows import Bill

SHOWN = (
    LegState.DONE, LegState.RUNNING, LegState.WAITING, LegState.STOPPED, LegState.FAILED, LegState.CANCELLED,
)  # fmt: skip


@dataclass(frozen=True)
class SweepView:
    """A sweep at one moment. `legs` are in the order in which they were wanted."""

    job: Job
    legs: Sequence[Leg]
    metric: str = ""  # its name; empty: none was declared, so there is no best leg
    goal: Goal = "minimize"
    idle: Decimal = Decimal(0)  # paid for machines that ran no leg
    currency: str = "USD"
    strange: Sequence[str] = ()  # currencies without a rate: what was paid in them is in no sum
    logarithmic: Sequence[str] = ()  # parameters that are searched in their logarithm
    results: Mapping[str, str] = field(default_factory=dict)  # leg -> folder of what came home
    now: float = 0.0

    @cached_property
    def ranked(self) -> list[Leg]:
        """The best first; without a metric as they were wanted."""
        return ranking(self.legs, self.goal) if self.metric else list(self.legs)

    @cached_property
    def winner(self) -> Leg | None:
        """What `NAME/best` means, if there is a result."""
        return best(self.legs, self.goal) if self.metric else None

    @cached_property
    def parameters(self) -> list[str]:
        """Names of all parameters, in the order in which legs have them."""
        return list(dict.fromkeys(name for leg in self.legs for name in leg.params))

    @cached_property
    def counts(self) -> dict[LegState, int]:
        """How many legs stand where; states without a leg are left out."""
        found = {state: sum(leg.state is state for leg in self.legs) for state in SHOWN}
        return {state: count for state, count in found.items() if count}

    @cached_property
    def spent(self) -> Decimal:
        """All that was paid, in the sweep's currency."""
        return sum((leg.cost for leg in self.legs), self.idle)

    @cached_property
    def play(self) -> bool:
        """Whether the money is not real."""
        return any(leg.play for leg in self.legs)


def open_sweep(home: Home, ref: str) -> SweepView:
    """The sweep that `ref` means. Raises CliError when it is no sweep, NoSuchJob with the nearest names."""
    if not home.database.exists():
        raise CliError(f"there is no sweep {ref!r}: no job was ever applied here", where=str(home.state))
    with reader(home) as store:
        found = store.find(ref)
        job = store.job(found.job)
        if not job.spec.get("sweep"):
            raise CliError(f"{job.name} is not a sweep: there are no legs to compare", next=f"gpujob ps {job.name}")
        return sweep_of(store, job, home)


def sweep_of(store: Store, job: Job, home: Home | None = None) -> SweepView:
    """All of one sweep; `home` is for rates, where there are bills in other currencies."""
    bills = store.ledger(job.id)
    currency = job.currency
    tasks = store.tasks(job.id)
    books = Books(
        tasks, store.assignments(job.id), store.rentals(job.id), bills, store.reports(job.id), time.time(),
        currency, _rates(bills, currency, home),
    )  # fmt: skip
    sweep = job.spec.get("sweep") or {}
    metric = sweep.get("metric") or {}
    parameters = sweep.get("parameters") or {}
    return SweepView(
        job=job,
        legs=legs_of(books),
        metric=str(metric.get("name", "")),
        goal=cast("Goal", metric.get("goal", "minimize")),
        idle=run_costs(books, run_seconds(books))[1],
        currency=currency,
        strange=books.strange,
        logarithmic=[name for name, parameter in parameters.items() if parameter.get("log_uniform") is not None],
        results={task.id: task.results_dir for task in tasks if task.results_dir},
        now=books.now,
    )


def best_line(view: View) -> str:
    """The best leg of a sweep so far, in one line; empty where there is none."""
    from orchestrator.cli.leg_view import legs_of_view

    metric = (view.job.spec.get("sweep") or {}).get("metric") or {}
    winner = best(legs_of_view(view), metric["goal"]) if metric else None
    if winner is None or winner.last is None:
        return ""
    said = f"{metric['name']} {winner.last.value:.6g} at step {winner.last.step}"
    return f"{view.job.name}/{winner.id}, {said}; gpujob compare {view.job.name}"


def _rates(bills: Sequence[Bill], currency: str, home: Home | None) -> Mapping[str, Decimal]:
    if home is None or all(bill.currency == currency for bill in bills):
        return {}
    from orchestrator.config import load_config

    return load_config(home).rates_to(currency)
