"""Which legs end early: ASHA and the median rule."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.early_stop import STARTUP, Rule, Stop, stops, verdict
from orchestrator.legs import Goal, Leg, LegState, Report, score

NAN, INF = math.nan, math.inf
RUNNING, DONE = LegState.RUNNING, LegState.DONE
ASHA = Rule("asha", min_reports=2, eta=3)
MEDIAN = Rule("median", min_reports=2)


def leg(name: str, *values: float, state: LegState = RUNNING) -> Leg:
    return Leg(name, name, state=state, reports=tuple(Report(10 * n, v, n) for n, v in enumerate(values, start=1)))


def stopped(rule: Rule, legs: list[Leg], goal: Goal = "minimize") -> set[str]:
    return set(stops(rule, goal, legs))


def test_one_of_eta_goes_on_at_a_rung() -> None:
    legs = [leg(str(n), 9.0, float(n)) for n in range(6)]
    assert stopped(ASHA, legs) == {"2", "3", "4", "5"}
    assert stopped(ASHA, legs, "maximize") == {"0", "1", "2", "3"}


def test_fewer_than_eta_legs_at_a_rung_all_go_on() -> None:
    assert stopped(ASHA, [leg("a", 1.0, 0.1), leg("b", 1.0, 0.9)]) == set()


def test_a_leg_with_fewer_reports_counts_nowhere() -> None:
    legs = [leg("a", 1.0, 0.1), leg("b", 1.0, 0.9), leg("late", 0.0)]
    assert stopped(ASHA, legs) == set()
    legs[2] = leg("late", 0.0, 0.0)
    assert stopped(ASHA, legs) == {"a", "b"}


def test_between_rungs_the_value_at_the_last_rung_counts() -> None:
    """Rungs are 2 and 6 reports: after 5 the leg is still measured at 2, after 6 there is nobody to be measured by."""
    others = [leg(name, 1.0, 0.1) for name in "ab"]
    assert stopped(ASHA, [leg("c", 1.0, 0.9, 0.0, 0.0, 0.0), *others]) == {"c"}
    assert stopped(ASHA, [leg("c", 1.0, 0.9, 0.0, 0.0, 0.0, 0.0), *others]) == set()


def test_the_next_rung_is_eta_times_as_many_reports() -> None:
    legs = [leg(name, 1.0, 0.5, 1.0, 1.0, 1.0, value) for name, value in (("a", 0.1), ("b", 0.2), ("c", 0.3))]
    assert stops(ASHA, "minimize", legs) == {
        "b": Stop("0.2 after 6 reports: 1 of 3 legs were better there, and the best 1 go on", 6),
        "c": Stop("0.3 after 6 reports: 2 of 3 legs were better there, and the best 1 go on", 6),
    }


def test_ended_legs_are_compared_with_and_never_stopped() -> None:
    legs = [leg("a", 1.0, 0.1, state=DONE), leg("b", 1.0, 0.2, state=LegState.STOPPED), leg("c", 1.0, 0.9)]
    assert stopped(ASHA, legs) == {"c"}
    assert stopped(ASHA, [replace(each, state=DONE) for each in legs]) == set()


@pytest.mark.parametrize("state", [LegState.FAILED, LegState.CANCELLED])
def test_a_leg_that_will_never_win_stops_no_other(state: LegState) -> None:
    legs = [leg("a", 1.0, 0.1, state=state), leg("b", 1.0, 0.2), leg("c", 1.0, 0.9)]
    assert stopped(ASHA, legs) == set()


def test_a_preempted_leg_is_judged_by_its_reports_alone() -> None:
    legs = [leg("a", 1.0, 0.1, state=LegState.WAITING), leg("b", 1.0, 0.2), leg("c", 1.0, 0.9)]
    assert stopped(ASHA, legs) == {"b", "c"}
    assert stopped(ASHA, [replace(legs[0], attempts=7), *legs[1:]]) == {"b", "c"}


def test_what_is_no_number_is_worst_and_still_a_report() -> None:
    legs = [leg("a", 1.0, NAN), leg("b", 1.0, -INF), leg("c", 1.0, 0.9)]
    assert stopped(ASHA, legs) == {"a", "b"}
    assert stopped(ASHA, [leg(name, 1.0, NAN) for name in "abc"]) == set()


def test_none_stops_nobody() -> None:
    assert stopped(Rule(), [leg(str(n), 1.0, float(n)) for n in range(9)]) == set()


def done(*values: float) -> list[Leg]:
    """STARTUP done legs that reported these values."""
    return [leg(f"d{n}", *values, state=DONE) for n in range(STARTUP)]


def test_median_compares_the_best_value_with_the_average_of_done_legs() -> None:
    others = done(1.0, 0.6, 0.2)  # averages 1.0, 0.8, 0.6
    assert stopped(MEDIAN, [leg("a", 0.81, 0.9), *others]) == {"a"}
    assert stopped(MEDIAN, [leg("a", 0.79, 0.9), *others]) == set()
    assert stopped(MEDIAN, [leg("a", 0.79, 0.9, 0.9), *others]) == {"a"}
    assert stopped(MEDIAN, [leg("a", 0.5, 0.79), *others], "maximize") == {"a"}


def test_median_says_why() -> None:
    found = verdict(MEDIAN, "minimize", leg("a", NAN, 0.9), done(1.0, 0.6))
    assert found == Stop("the best value 0.9 after 2 reports: the median of 5 done legs was 0.8", 2)
    found = verdict(MEDIAN, "maximize", leg("a", NAN, INF), done(1.0, 0.6))
    assert found == Stop("no finite value after 2 reports: the median of 5 done legs was 0.8", 2)


def test_median_of_an_even_number_lies_between() -> None:
    others = [leg(str(n), v, v, state=DONE) for n, v in enumerate((0.1, 0.2, 0.3, 0.5, 0.8, 0.9))]
    assert stopped(MEDIAN, [leg("a", 0.41, 0.41), *others]) == {"a"}
    assert stopped(MEDIAN, [leg("a", 0.39, 0.39), *others]) == set()


def test_median_waits_for_enough_done_legs_that_came_as_far() -> None:
    bad = leg("a", 0.9, 0.9)
    assert stopped(MEDIAN, [bad, *done(0.1, 0.1)[1:]]) == set()
    assert stopped(MEDIAN, [bad, *done(0.1, 0.1)[1:], leg("short", 0.1, state=DONE)]) == set()
    assert stopped(MEDIAN, [bad, *done(0.1, 0.1)[1:], leg("runs", 0.1, 0.1)]) == set()
    assert stopped(MEDIAN, [bad, *done(0.1, 0.1)]) == {"a"}


def test_median_waits_for_min_reports() -> None:
    others = done(0.1, 0.1, 0.1)
    assert stopped(MEDIAN, [leg("a", 0.9), *others]) == set()
    assert stopped(MEDIAN, [leg("a", 0.9, 0.9), *others]) == {"a"}


def test_median_leaves_what_is_no_number_out_of_averages() -> None:
    others = done(NAN, 0.2)
    assert stopped(MEDIAN, [leg("a", 0.3, 0.3), *others]) == {"a"}
    assert stopped(MEDIAN, [leg("a", 0.1, NAN), *others]) == set()
    assert stopped(MEDIAN, [leg("a", 0.3, 0.3), *done(NAN, NAN)]) == set()


def test_asha_saves_most_steps_and_keeps_the_best_leg() -> None:
    """The figures of `benchmarks/sweep_search.py`, in lockstep: 81 legs of 81 steps, eta 3, first rung at 9."""
    chance, steps = random.Random(7), 0
    curves = []
    for _ in range(81):
        a, b = chance.uniform(0.05, 0.5), chance.uniform(0.3, 1.2)
        curves.append([a + (1 - a) * (t + 1) ** -b + 0.01 * chance.gauss(0, 1) for t in range(1, 82)])
    alive = set(range(81))
    for step in range(1, 82):
        steps += len(alive)
        if step in (9, 27):
            legs = [leg(str(n), *curves[n][:step]) for n in alive]
            alive -= set(map(int, stops(Rule("asha", 9, 3), "minimize", legs)))
    assert steps / 81**2 < 0.3
    assert min(curves[n][-1] for n in alive) == min(curve[-1] for curve in curves)


values = st.sampled_from([0.1, 0.2, 0.3, 0.4, NAN, INF, -INF])
curves = st.lists(values, max_size=20)
rules = st.builds(Rule, st.sampled_from(["asha", "median"]), st.integers(1, 4), st.integers(2, 4))
goals = st.sampled_from(["minimize", "maximize"])
sweeps = st.lists(st.tuples(curves, st.sampled_from(LegState)), max_size=12).map(
    lambda each: [leg(str(n), *told, state=state) for n, (told, state) in enumerate(each)]
)


@given(rules, goals, sweeps)
def test_no_leg_is_stopped_before_min_reports_nor_after_its_end(rule: Rule, goal: Goal, legs: list[Leg]) -> None:
    for found in stops(rule, goal, legs):
        one = legs[int(found)]
        assert len(one.curve) >= rule.min_reports
        assert not one.state.over


@given(rules, goals, sweeps, st.integers(0, 99))
def test_replay_and_order_change_no_verdict(rule: Rule, goal: Goal, legs: list[Leg], seed: int) -> None:
    chance = random.Random(seed)
    again = []
    for each in legs:
        replayed = [*each.reports, *each.reports[: len(each.reports) // 2]]
        chance.shuffle(replayed)
        again.append(replace(each, reports=tuple(replayed)))
    chance.shuffle(again)
    assert stops(rule, goal, again) == stops(rule, goal, legs)


@given(rules, goals, values, st.integers(1, 20), st.integers(1, 12))
def test_equals_are_never_stopped_for_each_other(rule: Rule, goal: Goal, value: float, n: int, count: int) -> None:
    legs = [leg(str(i), *[value] * n) for i in range(count)]
    assert stopped(rule, [*legs, *(leg(f"d{i}", *[value] * n, state=DONE) for i in range(STARTUP))], goal) == set()


@given(goals, st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(2, 20))
def test_the_best_is_never_stopped(goal: Goal, levels: list[float], n: int) -> None:
    """Among legs whose order stays the same from the first report to the last."""
    legs = [leg(str(i), *[level] * n) for i, level in enumerate(levels)]
    best = min(range(len(levels)), key=lambda i: score(levels[i], goal))
    for rule in (ASHA, MEDIAN):
        assert str(best) not in stopped(rule, legs, goal)


@given(rules, goals, sweeps)
def test_a_verdict_on_one_is_that_on_all(rule: Rule, goal: Goal, legs: list[Leg]) -> None:
    together = stops(rule, goal, legs)
    assert {each.id: found for each in legs if (found := verdict(rule, goal, each, legs)) is not None} == together
