"""Grid and random combinations of a sweep's parameters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.search import (
    Choice,
    Domain,
    Space,
    Uniform,
    Whole,
    draw,
    grid,
    number_text,
    random_legs,
    size_of,
    space_of,
)

SPACE: Space = {"lr": Uniform(1e-5, 1e-2, log=True), "batch": Choice(("16", "32")), "layers": Whole(2, 8)}


def finite(*names: str) -> Space:
    return {name: Choice(("a", "b", "c")) for name in names}


def test_a_space_is_read_from_a_stored_spec() -> None:
    stored = {
        "lr": {"log_uniform": [1e-5, 0.01]},
        "drop": {"uniform": [0, 0.5]},
        "layers": {"int": [2, 8]},
        "batch": {"values": ["16", "1e-4", "0.0001", "16"]},
        "config": {"files": "configs/*.yaml"},
        "act": {"choice": ["relu", "gelu"]},
    }
    found = space_of(stored, lambda pattern: [pattern.replace("*", "1"), pattern.replace("*", "2")])
    assert list(found.items()) == [
        ("lr", Uniform(1e-5, 0.01, log=True)),
        ("drop", Uniform(0.0, 0.5)),
        ("layers", Whole(2, 8)),
        ("batch", Choice(("16", "1e-4", "0.0001"))),
        ("config", Choice(("configs/1.yaml", "configs/2.yaml"))),
        ("act", Choice(("relu", "gelu"))),
    ]


def test_a_grid_is_every_combination_the_last_parameter_first() -> None:
    space = {"a": Choice(("x", "y")), "n": Whole(-1, 1)}
    rows = [tuple(row.values()) for row in grid(space)]
    assert rows == [("x", "-1"), ("x", "0"), ("x", "1"), ("y", "-1"), ("y", "0"), ("y", "1")]
    assert size_of(space) == 6


def test_a_continuous_space_has_no_size_and_no_grid() -> None:
    assert size_of(SPACE) is None
    with pytest.raises(ValueError, match="continuous"):
        list(grid(SPACE))
    assert size_of({"lr": Uniform(0.5, 0.5), "n": Whole(1, 3)}) == 3
    assert list(grid({"lr": Uniform(0.5, 0.5)})) == [{"lr": "0.5"}]


def test_draws_are_the_same_for_ever() -> None:
    """Kept legs are found again by their values, so these may never change."""
    assert draw(SPACE, 7, 0) == {"lr": "0.000110498", "batch": "16", "layers": "5"}
    assert draw(SPACE, 7, 1) == {"lr": "2.01565e-05", "batch": "16", "layers": "2"}


def test_another_parameter_changes_no_other_values() -> None:
    more = {"seed": Whole(0, 9), **SPACE}
    for number in range(20):
        row = draw(more, 7, number)
        assert {name: row[name] for name in SPACE} == draw(SPACE, 7, number)


def test_seeds_and_numbers_and_names_differ() -> None:
    rows = [tuple(draw(SPACE, seed, number).values()) for seed in range(5) for number in range(20)]
    assert len(set(rows)) == 100
    space = {"a": Uniform(0, 1), "b": Uniform(0, 1)}
    assert all(row["a"] != row["b"] for row in (draw(space, 1, number) for number in range(50)))


def test_distributions_are_even_and_reach_their_ends() -> None:
    rows = [draw(SPACE, 3, number) for number in range(7000)]
    layers = [int(row["layers"]) for row in rows]
    assert {value: round(layers.count(value) / 1000, 1) for value in range(2, 9)} == dict.fromkeys(range(2, 9), 1.0)
    tens = [math.floor(math.log10(float(row["lr"]))) for row in rows]
    assert {ten: round(tens.count(ten) / 7000, 1) for ten in set(tens)} == {-5: 0.3, -4: 0.3, -3: 0.3}
    linear = [float(draw({"x": Uniform(-1, 3)}, 3, number)["x"]) for number in range(4000)]
    assert round(sum(linear) / 4000, 1) == 1.0
    assert round(sum(value < 0 for value in linear) / 4000, 2) == pytest.approx(0.25, abs=0.02)


numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)
positive = st.floats(min_value=1e-300, max_value=1e300)


def _between(ends: tuple[float, float]) -> tuple[float, float]:
    return min(ends), max(ends)


domains = st.one_of(
    st.tuples(numbers, numbers).map(_between).map(lambda ends: Uniform(*ends)),
    st.tuples(positive, positive).map(_between).map(lambda ends: Uniform(*ends, log=True)),
)


@given(domains, st.integers(0, 2**32), st.integers(0, 500))
def test_a_drawn_number_lies_within_and_reads_back(domain: Uniform, seed: int, number: int) -> None:
    text = draw({"x": domain}, seed, number)["x"]
    assert domain.low <= float(text) <= domain.high
    assert number_text(float(text), domain) == text


@given(st.integers(-(10**9), 10**9), st.integers(0, 10**9), st.integers(0, 500))
def test_a_drawn_whole_number_lies_within(low: int, width: int, number: int) -> None:
    assert low <= int(draw({"n": Whole(low, low + width)}, 1, number)["n"]) <= low + width


@pytest.mark.parametrize(
    ("value", "domain", "text"),
    [
        (0.123456789, Uniform(0, 1), "0.123457"),
        (1.00000012345, Uniform(1.0000001, 1.0000002), "1.00000012345"),
        (0.99999999, Uniform(0, 0.99999999), "0.99999999"),  # rounded up it would lie outside
        (-0.0, Uniform(-1, 1), "0"),
        (3.14159265e-7, Uniform(1e-9, 1, log=True), "3.14159e-07"),
        (5.0, Uniform(0, 1), "1"),
    ],
)
def test_numbers_have_the_digits_that_they_need(value: float, domain: Uniform, text: str) -> None:
    assert number_text(value, domain) == text


def test_random_legs_do_not_depend_on_how_they_are_asked_for() -> None:
    space = finite("a", "b")
    at_once = random_legs(space, 5, 9)
    one_by_one: list[dict[str, str]] = []
    while len(one_by_one) < 9:
        one_by_one += random_legs(space, 5, 1, one_by_one)
    assert at_once == one_by_one
    assert random_legs(space, 5, 4) == at_once[:4]
    assert random_legs(space, 5, 2, at_once[:4]) == at_once[4:6]


def test_a_finite_space_is_used_up_and_no_more() -> None:
    space = finite("a", "b", "c")
    found = random_legs(space, 1, 100)
    assert len(found) == 27
    assert {tuple(row.values()) for row in found} == {tuple(row.values()) for row in grid(space)}
    assert random_legs(space, 1, 1, found) == []


def test_the_rest_of_a_space_is_found_when_draws_do_not_hit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.search.DRAWS_MAX", 3)
    assert len(random_legs(finite("a", "b"), 1, 100)) == 9


def test_a_continuous_space_without_room_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.search.DRAWS_MAX", 50)
    domain: Domain = Uniform(1.0, math.nextafter(1.0, 2.0))
    assert sorted(row["x"] for row in random_legs({"x": domain}, 1, 10)) == ["1.0", "1.0000000000000002"]


def test_a_leg_of_the_list_is_never_drawn_again() -> None:
    taken = [{"b": "a", "a": "c"}]
    assert {"a": "c", "b": "a"} not in random_legs(finite("a", "b"), 2, 9, taken)
