"""The legs of a sweep from the rows of the books: state, reports, and each leg's share of the time and the money.

Rules: pure. A machine serves several legs one after the other, so its whole cost (boot, setup and idle time included)
is shared among its runs by their time; a machine that never ran a leg belongs to none, and is told apart. Together
that is all that was paid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

from jobspecs.sweep import label
from orchestrator.legs import Leg, LegState, Report
from orchestrator.model import PLAY_PROVIDER, Assignment, Outcome, Reason, Rental, Task

if TYPE_CHECKING:
    from orchestrator.store.rows import Bill, ReportRow

MICRO = Decimal("0.000001")  # of a currency unit; the last share of a machine takes what rounding left


@dataclass(frozen=True)
class Books:
    """All rows of one sweep at one moment; `now` is UTC epoch seconds."""

    tasks: Sequence[Task]
    runs: Sequence[Assignment]
    rentals: Sequence[Rental]
    bills: Sequence[Bill]
    reports: Iterable[ReportRow]
    now: float
    currency: str = "USD"  # of the sweep
    rates: Mapping[str, Decimal] = field(default_factory=dict)  # what one unit of another currency is worth in it

    @property
    def strange(self) -> list[str]:
        """Currencies without a rate: what was paid in them is in no leg's cost."""
        return sorted({bill.currency for bill in self.bills} - {self.currency, *self.rates})


def legs_of(books: Books) -> list[Leg]:
    """One leg a task, in the order in which they are wanted."""
    rentals = {rental.id: rental for rental in books.rentals}
    runs: dict[str, list[Assignment]] = {}
    for run in books.runs:
        runs.setdefault(run.task, []).append(run)
    told: dict[str, list[Report]] = {}
    for row in books.reports:
        told.setdefault(row.task, []).append(Report(row.step, row.value, row.at))
    seconds = run_seconds(books)
    costs, _ = run_costs(books, seconds)
    play = any(bill.play for bill in books.bills) or any(r.offer.provider == PLAY_PROVIDER for r in books.rentals)
    found = []
    for task in books.tasks:
        own = runs.get(task.id, [])
        found.append(
            Leg(
                id=task.id,
                name=label(task.params) or task.id,
                params=task.params,
                state=state_of(task, own, rentals),
                reason=reason_of(task),
                reports=tuple(told.get(task.id, ())),
                cost=sum((costs.get(run.key, Decimal(0)) for run in own), Decimal(0)),
                currency=books.currency,
                play=play,
                seconds=sum(seconds.get(run.key, 0.0) for run in own),
                attempts=sum(not run.withdrawn for run in own),
            )
        )
    return found


def state_of(task: Task, runs: Iterable[Assignment], rentals: Mapping[str, Rental]) -> LegState:
    """Where a leg stands; it runs while its code may, and a lost machine only makes it wait again."""
    if task.outcome is Outcome.DONE:
        return LegState.STOPPED if task.reason is Reason.STOPPED_EARLY else LegState.DONE
    if task.outcome is not None:
        return LegState.FAILED if task.outcome is Outcome.FAILED else LegState.CANCELLED
    return LegState.RUNNING if any(_runs(run, rentals.get(run.rental)) for run in runs) else LegState.WAITING


def _runs(run: Assignment, rental: Rental | None) -> bool:
    """From its order until its results are home, while its machine lives."""
    if run.ordered_at is None or run.results_at is not None or run.results_lost:
        return False
    return rental is not None and rental.open and rental.quiesced_at is None


def reason_of(task: Task) -> str:
    """Why a leg ended as it did, in the words of the closed list; empty where the state says it all."""
    if task.kept_from:
        return "kept"
    return str(task.reason) if task.reason is not None and str(task.reason) != str(task.outcome) else ""


def run_seconds(books: Books) -> dict[str, float]:
    """Seconds of its machine that each run had to itself, by `task.n`: from its order, or the end of the run before it
    there, to its own end.
    """
    rentals = {rental.id: rental for rental in books.rentals}
    free_from: dict[str, float] = {}
    found = {}
    for run in sorted(books.runs, key=lambda run: (run.ordered_at or run.committed_at, run.key)):
        rental = rentals.get(run.rental)
        if run.ordered_at is None or rental is None:
            continue
        begin = max(run.ordered_at, free_from.get(rental.id, 0.0))
        end = max(begin, _end(run, rental, books.now))
        free_from[rental.id] = end
        found[run.key] = end - begin
    return found


def _end(run: Assignment, rental: Rental, now: float) -> float:
    ends = (run.exit.at if run.exit is not None else None, run.closed_at, rental.quiesced_at, rental.gone_at)
    return min((at for at in ends if at is not None), default=now)


def run_costs(books: Books, seconds: Mapping[str, float]) -> tuple[dict[str, Decimal], Decimal]:
    """(cost of each run by `task.n`, cost of machines that ran nothing), in the sweep's currency."""
    worth = {**books.rates, books.currency: Decimal(1)}
    paid: dict[str, Decimal] = {}
    for bill in books.bills:
        if bill.currency in worth:
            paid[bill.rental] = paid.get(bill.rental, Decimal(0)) + bill.amount * worth[bill.currency]
    shares: dict[str, list[str]] = {}
    for run in books.runs:
        if run.key in seconds:
            shares.setdefault(run.rental, []).append(run.key)
    found: dict[str, Decimal] = {}
    idle = Decimal(0)
    for rental, amount in paid.items():
        keys = shares.get(rental)
        if keys:
            found |= _shared(amount, {key: seconds[key] for key in keys})
        else:
            idle += amount
    return found, idle


def _shared(amount: Decimal, seconds: Mapping[str, float]) -> dict[str, Decimal]:
    """An amount by time, to a millionth; the longest takes the rest, so that the sum is the amount."""
    total = sum(seconds.values())
    found = {
        key: (amount * Decimal(own / total if total else 1 / len(seconds))).quantize(MICRO)
        for key, own in seconds.items()
    }
    longest = max(seconds, key=lambda key: seconds[key])
    found[longest] += amount - sum(found.values(), Decimal(0))
    return found
