"""A kill at every named point of the controller, and at pairs of them, while one job runs to its end."""

from __future__ import annotations

import os

import pytest
from sim_crash import count_taps, lies, run_nominal
from sim_swarm import story

from orchestrator.taps import NAMES

pytestmark = [pytest.mark.sim, pytest.mark.timeout(600)]  # many runs in one test
EVERY = int(os.environ.get("GPUJOB_CRASH_EVERY", "9"))  # 1: each tap; `./dev sim --crash` does so


def test_every_tap_is_killed_at_and_nothing_is_broken() -> None:
    taps = run_nominal().taps
    first = {name: taps.index(name) + 1 for name in set(taps)}
    last = {name: len(taps) - taps[::-1].index(name) for name in set(taps)}
    chosen = sorted({*first.values(), *last.values(), *range(1, len(taps) + 1, EVERY)})
    assert {taps[n - 1] for n in chosen} == NAMES, "a named point of the controller is never killed at"
    for n in chosen:
        result = run_nominal((n,))
        assert result.crashes == 1, f"tap {n}"
        assert result.violations == [], f"tap {n} {taps[n - 1]}\n{story(result)}"


def test_two_kills_in_a_row_break_nothing() -> None:
    count = count_taps()
    for n in range(2, count, count // 12):
        for gap in (1, 5):
            result = run_nominal((n, n + gap))
            assert result.violations == [], f"taps {n}, {n + gap}\n{story(result)}"


@pytest.mark.parametrize("lie", range(1, 7))
def test_a_kill_in_a_world_that_lies_breaks_nothing(lie: int) -> None:
    wrong = lies(lie)
    count = len(run_nominal((), wrong, 7001 + lie).taps)
    for n in range(1 + lie, count, max(1, count // 5)):
        result = run_nominal((n,), wrong, 7001 + lie)
        assert result.violations == [], f"tap {n}, {wrong}\n{story(result)}"
