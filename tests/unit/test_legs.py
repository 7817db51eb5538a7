"""Reports, results and the best leg of a sweep."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.legs import Goal, Leg, LegState, Report, best, ranking, score

NAN, INF = math.nan, math.inf


def leg(name: str, *values: float, state: LegState = LegState.DONE) -> Leg:
    """A leg that reported `values` at steps 1, 2, ..."""
    return Leg(
        id=name, name=name, state=state, reports=tuple(Report(n, v, float(n)) for n, v in enumerate(values, start=1))
    )


def ids(legs: list[Leg]) -> list[str]:
    return [each.id for each in legs]


def test_a_curve_has_one_report_a_step_by_rising_step() -> None:
    told = Leg("a", "a", reports=(Report(20, 0.5, 2.0), Report(10, 0.9, 1.0), Report(20, 0.4, 3.0)))
    assert told.curve == (Report(10, 0.9, 1.0), Report(20, 0.4, 3.0))
    assert told.last == Report(20, 0.4, 3.0)


def test_the_step_that_was_heard_last_counts_wherever_it_stands() -> None:
    told = (Report(1, 0.4, 9.0), Report(1, 0.5, 2.0))
    assert Leg("a", "a", reports=told).curve == Leg("a", "a", reports=told[::-1]).curve == (Report(1, 0.4, 9.0),)


def test_two_reports_of_one_step_and_moment_are_settled_without_their_order() -> None:
    for pair in ((0.4, 0.5), (0.4, NAN), (NAN, INF)):
        told = tuple(Report(1, value, 2.0) for value in pair)
        one, other = Leg("a", "a", reports=told).curve, Leg("a", "a", reports=told[::-1]).curve
        assert repr(one) == repr(other)


reports = st.builds(
    Report, st.integers(0, 9), st.sampled_from([0.1, 0.2, -1.0, NAN, INF, -INF]), st.sampled_from([1.0, 2.0, 3.0])
)


@given(st.lists(reports, max_size=20), st.randoms(use_true_random=False))
def test_replay_and_order_of_arrival_change_nothing(told: list[Report], chance: object) -> None:
    again = [*told, *told]
    chance.shuffle(again)  # type: ignore[attr-defined]
    one, other = Leg("a", "a", reports=tuple(told)), Leg("a", "a", reports=tuple(again))
    assert repr(one.curve) == repr(other.curve)
    assert len({report.step for report in one.curve}) == len(one.curve)


def test_without_reports_there_is_no_result() -> None:
    assert (leg("a").last, leg("a").best("minimize"), leg("a").curve) == (None, None, ())


def test_the_best_report_is_the_first_of_equals_and_finite() -> None:
    told = leg("a", NAN, 0.3, 0.1, -INF, 0.1, INF, 0.2)
    assert told.best("minimize") == Report(3, 0.1, 3.0)
    assert told.best("maximize") == Report(2, 0.3, 2.0)
    assert leg("a", NAN, INF, -INF).best("minimize") is None


@pytest.mark.parametrize("value", [NAN, INF, -INF, None])
@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_nothing_scores_worse_than_what_is_no_number(value: float | None, goal: Goal) -> None:
    assert score(value, goal) == INF
    assert score(1e308, goal) < INF
    assert score(-1e308, goal) < INF


def test_scores_turn_with_the_goal() -> None:
    assert score(0.1, "minimize") < score(0.2, "minimize")
    assert score(0.2, "maximize") < score(0.1, "maximize")


def test_legs_are_ranked_by_their_last_value() -> None:
    legs = [leg("a", 0.1, 0.5), leg("b", 0.9, 0.2), leg("c", 0.3)]
    assert ids(ranking(legs, "minimize")) == ["b", "c", "a"]
    assert ids(ranking(legs, "maximize")) == ["a", "c", "b"]


def test_done_legs_come_first_and_failed_ones_last() -> None:
    legs = [
        leg("failed", 0.0, state=LegState.FAILED),
        leg("lost", NAN),
        leg("failed-silent", state=LegState.FAILED),
        leg("running", 0.01, state=LegState.RUNNING),
        leg("stopped", 0.02, state=LegState.STOPPED),
        leg("done", 0.9),
    ]
    assert ids(ranking(legs, "minimize")) == ["done", "running", "stopped", "failed", "lost", "failed-silent"]


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_what_is_no_number_never_wins(goal: Goal) -> None:
    legs = [leg("nan", 0.0, NAN), leg("inf", INF), leg("minus", -INF), leg("silent"), leg("number", 0.7)]
    assert best(legs, goal) == legs[-1]
    assert best(legs[:-1], goal) is None


def test_equal_legs_are_ranked_by_id_at_every_look() -> None:
    legs = [leg(name, 0.5) for name in ("c", "a", "b")]
    assert ids(ranking(legs, "minimize")) == ids(ranking(legs[::-1], "minimize")) == ["a", "b", "c"]


def test_the_best_leg_is_done_or_else_the_best_so_far() -> None:
    running, failed = leg("r", 0.1, state=LegState.RUNNING), leg("f", 0.0, state=LegState.FAILED)
    assert best([running, failed, leg("d", 0.3)], "minimize") == leg("d", 0.3)
    assert best([running, failed], "minimize") == running
    assert best([replace(running, state=LegState.CANCELLED), failed], "minimize") is not None
    assert best([failed], "minimize") is None
    assert best([], "minimize") is None


def test_only_waiting_and_running_legs_go_on() -> None:
    assert [state for state in LegState if not state.over] == [LegState.WAITING, LegState.RUNNING]


def test_a_leg_that_nothing_is_known_of() -> None:
    new = Leg("a", "a")
    assert (new.state, new.cost, new.attempts, new.play) == (LegState.WAITING, Decimal(0), 0, False)
