"""The config's `limits` (per job, per month, machines), which stop an apply: one judgement for the verb and the
controller.

Rules: a `--max-cost` that covers the worst case lifts all of them, for this job; one that does not is itself a limit.
A limit is compared in its own currency, by a rate of the config or not at all. Play money passes none of money;
a machine is one, whatever is paid for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.config import Config, Limits
    from orchestrator.store.reads import Reads

RatesTo = Callable[[str], Mapping[str, Decimal]]  # what one unit of each other currency is worth in the named one


@dataclass(frozen=True)
class Cost:
    """What a job costs at most; None: not known."""

    worst: Decimal | None
    currency: str
    play: bool = False


def passed(store: Reads | None, config: Config, cost: Cost, max_cost: Decimal | None, now: float) -> list[str]:
    """The limits that the job would pass, as the books are at `now` (UTC); no store: nothing is spent or rented yet."""
    if store is None:
        return problems(config.limits, cost, Decimal(0), 0, max_cost, config.rates_to)
    rentals = store.open_rentals()
    machines = len(rentals) + len({job.id for job in store.active_jobs()} - {row.job for row in rentals})
    month, spent = config.limits.per_month, Decimal(0)
    if month is not None:
        try:
            spent = store.committed_since(month_start(now), now, month.currency, config.rates_to(month.currency))
        except ValueError as error:  # a bill in a currency without a rate
            return [str(error)]
    return problems(config.limits, cost, spent, machines, max_cost, config.rates_to)


def problems(
    limits: Limits, cost: Cost, spent: Decimal, machines: int, max_cost: Decimal | None, rates_to: RatesTo
) -> list[str]:
    """Which limits are passed. `spent` is this month's money in the currency of `per_month`, `machines` are rented or
    about to be, `max_cost` is in the cost's currency.
    """
    worst = cost.worst
    if max_cost is not None and worst is not None and not cost.play:
        if worst <= max_cost:
            return []
        return [f"the worst case {worst:f} {cost.currency} is above --max-cost {max_cost:f}"]
    found: list[str] = []
    if limits.machines is not None and machines + 1 > limits.machines:
        found.append(f"limits.machines is {limits.machines}, and {machines} are rented or waited for")
    if cost.play or worst is None:
        return found
    for key, limit, before in (("per_job", limits.per_job, Decimal(0)), ("per_month", limits.per_month, spent)):
        if limit is None:
            continue
        worth = {**rates_to(limit.currency), limit.currency: Decimal(1)}.get(cost.currency)
        if worth is None:
            found.append(f"no rate from {cost.currency} to {limit.currency}, so limits.{key} cannot be compared")
        elif before + worst * worth > limit.amount:
            on_top = f" on top of {before:.2f} this month" if before else ""
            found.append(f"the worst case {worst * worth:.2f} {limit.currency}{on_top} is above limits.{key} {limit}")
    return found


def month_start(now: float) -> float:
    """The first moment of the month, UTC."""
    moment = datetime.fromtimestamp(now, UTC)
    return moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
