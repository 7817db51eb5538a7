"""Which legs of a sweep are not worth their money any more: ASHA and the median rule. Pure.

Rules:
- A verdict follows from the reports that are there, whatever was decided before, in whatever order they came; so a
  restart or a replay after a preemption changes nothing.
- A leg is judged by its own values alone. To wait, to be preempted, to be slow is never a bad result.
- Of two legs only one that is strictly better stands in the way, so equals are never stopped for each other.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.legs import Goal, Leg, LegState, score

Method = Literal["asha", "median", "none"]

STARTUP = 5  # done legs before the median means anything; Optuna's default, too


@dataclass(frozen=True)
class Rule:
    """`stop_early` of a spec. `min_reports`: no leg is stopped with fewer; `eta`: one of so many goes on."""

    method: Method = "none"
    min_reports: int = 1
    eta: int = 3


@dataclass(frozen=True)
class Stop:
    """A leg that should end now, `why` in a sentence for the user, judged after so many reports."""

    why: str
    reports: int


def stops(rule: Rule, goal: Goal, legs: Iterable[Leg]) -> Mapping[str, Stop]:
    """The legs, by id, that should end now; legs that are over are looked at for comparison only."""
    every = list(legs)
    if rule.method == "asha":
        return _asha(rule, goal, every)
    if rule.method == "median":
        return _median(rule, goal, every)
    return {}


def verdict(rule: Rule, goal: Goal, leg: Leg, others: Iterable[Leg]) -> Stop | None:
    """Whether one leg should end now; `others` may hold it or not."""
    return stops(rule, goal, [leg, *(other for other in others if other.id != leg.id)]).get(leg.id)


def _asha(rule: Rule, goal: Goal, legs: list[Leg]) -> dict[str, Stop]:
    """The stopping variant of ASHA (arXiv 1810.05934), one bracket: a leg that has reached a rung goes on while it is
    in the best 1/eta of what was seen at that rung, or while fewer than eta legs came so far.

    Unlike in the paper a leg is measured again when later ones reach its rung, until it reaches the next.
    """
    rungs: dict[int, list[float]] = {}
    for leg in legs:
        if _compares(leg):
            for rung in _rungs_reached(rule, len(leg.curve)):
                rungs.setdefault(rung, []).append(score(leg.curve[rung - 1].value, goal))
    for scores in rungs.values():
        scores.sort()
    found = {}
    for leg in legs:
        reached = [] if leg.state.over else _rungs_reached(rule, len(leg.curve))
        if not reached:
            continue
        rung = reached[-1]
        scores, own = rungs[rung], leg.curve[rung - 1].value
        better, places = bisect_left(scores, score(own, goal)), max(1, len(scores) // rule.eta)
        if len(scores) >= rule.eta and better >= places:
            place = f"{better} of {len(scores)} legs were better there, and the best {places} go on"
            found[leg.id] = Stop(f"{own:.4g} after {_reports(rung)}: {place}", rung)
    return found


def _rungs_reached(rule: Rule, reports: int) -> list[int]:
    """min_reports x eta^i as far as so many reports reach."""
    rungs, rung = [], rule.min_reports
    while rung <= reports:
        rungs.append(rung)
        rung *= rule.eta
    return rungs


def _compares(leg: Leg) -> bool:
    """A leg that failed or was cancelled stops no other: it will never be the winner instead of it."""
    return leg.state not in (LegState.FAILED, LegState.CANCELLED)


def _median(rule: Rule, goal: Goal, legs: list[Leg]) -> dict[str, Stop]:
    """The median rule of Vizier: a leg whose best value so far is worse than the median of the done legs' averages up
    to as many reports ends.
    """
    done = [leg for leg in legs if leg.state is LegState.DONE]
    averages = {leg.id: _running_averages(leg, goal) for leg in done}
    found = {}
    for leg in legs:
        count = len(leg.curve)
        if leg.state.over or count < rule.min_reports:
            continue
        others = [averages[other.id][count - 1] for other in done if len(other.curve) >= count]
        if len(others) < STARTUP:
            continue
        middle, report = _middle(others), leg.best(goal)
        own_score = score(report.value if report else None, goal)
        if own_score > middle and not math.isclose(own_score, middle):  # the average of equal numbers is rounded
            own = f"the best value {report.value:.4g}" if report else "no finite value"
            shown = middle if goal == "minimize" else -middle
            why = f"{own} after {_reports(count)}: the median of {len(others)} done legs was {shown:.4g}"
            found[leg.id] = Stop(why, count)
    return found


def _running_averages(leg: Leg, goal: Goal) -> list[float]:
    """After each report the average score of the finite values so far."""
    averages, total, count = [], 0.0, 0
    for report in leg.curve:
        if math.isfinite(report.value):
            total, count = total + score(report.value, goal), count + 1
        averages.append(total / count if count else math.inf)
    return averages


def _middle(values: list[float]) -> float:
    """The median (that of `statistics` brings `random` along, which nothing that decides may know)."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _reports(count: int) -> str:
    return "1 report" if count == 1 else f"{count} reports"
