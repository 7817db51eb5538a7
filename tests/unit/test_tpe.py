"""Search by TPE: determinism, what it learns from, and what it never repeats."""

from __future__ import annotations

import importlib.util
import math
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import tpe
from orchestrator.legs import Goal, Leg, LegState, Report
from orchestrator.search import Choice, Space, Uniform, Whole, grid, random_legs

SPACE: Space = {"lr": Uniform(1e-5, 1e-2, log=True), "batch": Choice(("16", "32")), "layers": Whole(2, 8)}
DONE, RUNNING = LegState.DONE, LegState.RUNNING


def loss(params: dict[str, str]) -> float:
    """Least, 0, at lr 3e-4, 5 layers, batch 32."""
    return abs(math.log10(float(params["lr"]) / 3e-4)) + abs(int(params["layers"]) - 5) / 5 + (params["batch"] == "16")


def leg(number: int, params: dict[str, str], value: float, state: LegState = DONE) -> Leg:
    return Leg(f"l{number:03d}", f"l{number}", params, state, reports=(Report(9, value, float(number)),))


def drawn(count: int, state: LegState = DONE) -> list[Leg]:
    return [leg(n, params, loss(params), state) for n, params in enumerate(random_legs(SPACE, 1, count))]


def searched(seed: int, count: int, sign: float = 1.0, goal: Goal = "minimize") -> list[Leg]:
    legs: list[Leg] = []
    for number in range(count):
        params = tpe.next_leg(SPACE, goal, seed, legs)
        assert params is not None
        legs.append(leg(number, params, sign * loss(params)))
    return legs


def test_the_first_legs_are_the_random_ones() -> None:
    legs = searched(1, tpe.STARTUP)
    assert [each.params for each in legs] == random_legs(SPACE, 1, tpe.STARTUP)


def test_it_finds_better_legs_than_chance() -> None:
    for seed in (1, 2, 3):
        found = [loss(dict(each.params)) for each in searched(seed, 40)[20:]]
        chance = [loss(params) for params in random_legs(SPACE, seed, 40)[20:]]
        assert sum(found) < 0.75 * sum(chance)


def test_it_maximizes_the_same_way_as_it_minimizes() -> None:
    up, down = searched(2, 25, -1.0, "maximize"), searched(2, 25)
    assert [each.params for each in up] == [each.params for each in down]


def test_the_same_legs_and_seed_give_the_same_in_any_order() -> None:
    legs = [*drawn(20), *(replace(each, id=f"r{each.id}", state=RUNNING) for each in drawn(23)[20:])]
    first = tpe.next_leg(SPACE, "minimize", 5, legs)
    for seed in range(5):
        again = legs.copy()
        random.Random(seed).shuffle(again)
        assert tpe.next_leg(SPACE, "minimize", 5, again) == first
    assert tpe.next_leg(SPACE, "minimize", 6, legs) != first


def test_another_process_suggests_the_same() -> None:
    """As a controller does after its restart."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_tpe as t; "
        "print(t.tpe.next_leg(t.SPACE, 'minimize', 5, t.drawn(20)))"
    )
    folder = __file__.rpartition("/")[0]
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == str(tpe.next_leg(SPACE, "minimize", 5, drawn(20)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(10, 25), st.lists(st.sampled_from(LegState), min_size=25, max_size=25))
def test_every_suggestion_lies_in_the_space_and_is_new(seed: int, count: int, states: list[LegState]) -> None:
    legs = [replace(each, state=state) for each, state in zip(drawn(count), states, strict=False)]
    found = tpe.next_leg(SPACE, "minimize", seed, legs)
    assert found is not None
    assert list(found) == list(SPACE)
    assert 1e-5 <= float(found["lr"]) <= 1e-2
    assert 2 <= int(found["layers"]) <= 8
    assert found["batch"] in ("16", "32")
    assert found not in [each.params for each in legs]


def test_a_finite_space_is_used_up_without_a_repetition() -> None:
    space: Space = {"a": Choice(("x", "y", "z")), "n": Whole(1, 5)}
    legs: list[Leg] = []
    while (params := tpe.next_leg(space, "minimize", 1, legs)) is not None:
        legs.append(leg(len(legs), params, float(params["n"])))
    assert sorted(tuple(each.params.items()) for each in legs) == sorted(tuple(row.items()) for row in grid(space))


def seen(*legs: Leg) -> list[object]:
    """(state, value, intermediate values) of each leg as Optuna sees it."""
    domains = {name: tpe._distribution(domain) for name, domain in SPACE.items()}
    trials = [tpe._trial(each, SPACE, domains) for each in legs]
    return [(trial.state.name, trial.value, trial.intermediate_values) for trial in trials]


PARAMS = {"lr": "0.001", "batch": "16", "layers": "3"}


@pytest.mark.parametrize(
    ("state", "value", "told"),
    [
        (DONE, 0.5, ("COMPLETE", 0.5, {9: 0.5})),
        (LegState.STOPPED, 0.5, ("PRUNED", None, {9: 0.5})),
        (LegState.CANCELLED, 0.5, ("PRUNED", None, {9: 0.5})),
        (LegState.FAILED, 0.5, ("FAIL", None, {9: 0.5})),
        (RUNNING, 0.5, ("RUNNING", None, {})),
        (LegState.WAITING, 0.5, ("RUNNING", None, {})),
    ],
)
def test_what_optuna_is_told(state: LegState, value: float, told: object) -> None:
    assert seen(leg(1, PARAMS, value, state)) == [told]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_told_as_the_worst(value: float) -> None:
    ((state, result, steps),) = seen(leg(1, PARAMS, value))  # type: ignore[misc]
    assert (state, result, list(steps)) == ("PRUNED", None, [9])
    assert math.isnan(steps[9])


def test_a_done_leg_without_a_report_says_nothing() -> None:
    assert seen(replace(leg(1, PARAMS, 0.5), reports=())) == [("FAIL", None, {})]


def test_legs_of_another_space_teach_nothing() -> None:
    others = [
        leg(101, {**PARAMS, "more": "1"}, 0.0),
        leg(102, {**PARAMS, "lr": "0.5"}, 0.0),
        leg(103, {**PARAMS, "layers": "many"}, 0.0),
        leg(104, {**PARAMS, "batch": "64"}, 0.0),
    ]
    assert tpe.next_leg(SPACE, "minimize", 1, [*drawn(20), *others]) == tpe.next_leg(SPACE, "minimize", 1, drawn(20))


def test_running_legs_push_the_next_one_away() -> None:
    """Twelve legs run at the spot of the best results: the constant liar makes it look bad until they are known."""
    near = [{**PARAMS, "lr": f"{3e-4 + n * 1e-6:.6g}", "batch": "32", "layers": "5"} for n in range(12)]

    def crowd(state: LegState) -> int:
        legs = [*drawn(30), *(leg(200 + n, row, 0.0, state) for n, row in enumerate(near))]
        rows = [tpe.next_leg(SPACE, "minimize", seed, legs) for seed in range(30)]
        return sum(row is not None and 2e-4 < float(row["lr"]) < 5e-4 for row in rows)

    assert crowd(RUNNING) * 5 < crowd(LegState.FAILED)  # those say nothing


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(tpe.NoOptuna, match=r"install gpujob with its extra `tpe`"):
        tpe.require()
    monkeypatch.undo()
    tpe.require()
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(tpe.NoOptuna, match=r"install gpujob with its extra `tpe`"):
        tpe.next_leg(SPACE, "minimize", 1, drawn(20))


def test_the_first_legs_need_no_optuna() -> None:
    code = "import sys; from orchestrator import search, tpe; s = {'n': search.Whole(1, 9)}; "
    code += "tpe.next_leg(s, 'minimize', 1, []); tpe.require(); print('optuna' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
