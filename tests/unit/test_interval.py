"""How often to save, from measured saves and losses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.interval import best_interval, measured, saving, share


def test_the_best_interval_is_youngs() -> None:
    assert best_interval(30.0, 10_800.0) == pytest.approx(804.98, abs=0.01)


@given(st.floats(0.5, 600), st.floats(600, 10**6), st.floats(0.1, 10))
def test_no_other_interval_costs_less(save: float, life: float, factor: float) -> None:
    best = best_interval(save, life)
    assert share(best, save, life) <= share(best * factor, save, life) + 1e-12


def test_what_an_interval_costs() -> None:
    found = saving(20.0, 0.2, 900.0)
    assert found is not None
    assert found.share == pytest.approx(20 / 900 + 900 / 36_000)
    assert found.best_s == pytest.approx(848.5, abs=0.1)
    assert not found.better  # 15m is near enough
    often = saving(60.0, 0.2, 60.0)
    assert often is not None
    assert often.share == 1.0  # it does nothing but save
    assert often.better


def test_nothing_is_advised_that_was_not_measured() -> None:
    assert saving(None, 0.2, 900.0) is None
    assert saving(20.0, 0.0, 900.0) is None
    undeclared = saving(0.0, 0.2, None)
    assert undeclared is not None
    assert (undeclared.save_s, undeclared.share, undeclared.better) == (1.0, None, True)


def test_saves_are_measured_from_the_events_of_each_run() -> None:
    events = [
        {"run": "t0.1", "at": 100.0, "save_s": 4.0},
        {"run": "t0.1", "at": 700.0, "save_s": 6.0},
        {"run": "t0.1", "at": 1300.0, "save_s": 5.0},
        {"run": "t0.2", "at": 9000.0, "save_s": "much"},
        {"run": "t0.2", "at": 9600.0},
    ]
    assert measured(events) == (5.0, 600.0)
    assert measured([]) == (None, None)
