"""What is known of the legs of a sweep: their reports, and which leg is the best. Pure.

Rules:
- Reports are keyed by step. The same step heard twice, as after a preemption and a resume, is one report: the one
  that was heard last, since that run is the one that lives on. So neither a replay nor the order of arrival counts.
- Only a finite value is a result. NaN and infinities are kept and shown, count as reports, and never win.
- A preempted leg has no state of its own: it waits, with its reports kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import Literal

Goal = Literal["minimize", "maximize"]


class LegState(StrEnum):
    """Where a leg stands."""

    WAITING = "waiting"  # for its first or its next machine
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"  # early, by its own reports
    FAILED = "failed"
    CANCELLED = "cancelled"  # by the user, the budget or an end

    @property
    def over(self) -> bool:
        """True when the leg will not run again."""
        return self not in (LegState.WAITING, LegState.RUNNING)


@dataclass(frozen=True)
class Report:
    """One value of the sweep's metric. `at`: when it was heard, UTC epoch seconds."""

    step: int
    value: float
    at: float


@dataclass(frozen=True)
class Leg:
    """One leg as it is at a moment. `seconds` are of machines, over all attempts, as is `cost`."""

    id: str
    name: str
    params: Mapping[str, str] = field(default_factory=dict)  # as typed or as drawn, never as numbers
    state: LegState = LegState.WAITING
    reason: str = ""
    reports: tuple[Report, ...] = ()
    cost: Decimal = Decimal(0)
    currency: str = "USD"
    play: bool = False  # money that is not real
    seconds: float = 0.0
    attempts: int = 0

    @cached_property
    def curve(self) -> tuple[Report, ...]:
        """One report a step, by rising step."""
        newest: dict[int, Report] = {}
        for report in self.reports:
            known = newest.get(report.step)
            if known is None or _heard(report) > _heard(known):
                newest[report.step] = report
        return tuple(newest[step] for step in sorted(newest))

    @property
    def last(self) -> Report | None:
        """The report of the highest step: what the leg ended with, or is at. It may be NaN."""
        return self.curve[-1] if self.curve else None

    def best(self, goal: Goal) -> Report | None:
        """The best finite report; of equal ones the first. None when there is none."""
        return min((r for r in self.curve if math.isfinite(r.value)), key=lambda r: score(r.value, goal), default=None)


def _heard(report: Report) -> tuple[float, bool, float]:
    """What decides between two reports of one step; the value only so that no order of arrival can."""
    nan = math.isnan(report.value)
    return report.at, nan, 0.0 if nan else report.value


def score(value: float | None, goal: Goal) -> float:
    """`value` so that less is better; infinity, which nothing is worse than, for what is no result."""
    if value is None or not math.isfinite(value):
        return math.inf
    return value if goal == "minimize" else -value


def ranking(legs: Iterable[Leg], goal: Goal) -> list[Leg]:
    """All legs, the best first: by their last value, done legs before the others, failed ones at the end.

    A leg that is done has trained to its end, so its value is not compared with one of half a training; legs of
    equal value keep the order of their ids, so that the winner is the same at each look.
    """
    return sorted(legs, key=lambda leg: (_tier(leg), score(leg.last.value if leg.last else None, goal), leg.id))


def _tier(leg: Leg) -> int:
    if leg.last is None or not math.isfinite(leg.last.value):
        return 4 if leg.state is LegState.FAILED else 3
    if leg.state is LegState.FAILED:
        return 2
    return 0 if leg.state is LegState.DONE else 1


def best(legs: Iterable[Leg], goal: Goal) -> Leg | None:
    """The leg that `NAME/best` means: the best one that is done; while none is, the best so far of those that did not
    fail. None when no such leg has a result.
    """
    first = next(iter(ranking(legs, goal)), None)
    return first if first is not None and _tier(first) < 2 else None
