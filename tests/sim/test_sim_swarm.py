"""Whole runs by their seed: a few new ones, those that once failed, and the same one twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_swarm import run_dense, run_seed, story

pytestmark = [pytest.mark.sim, pytest.mark.timeout(600)]  # a loaded computer is slow, not wrong
CORPUS = Path(__file__).with_name("corpus.txt")


def corpus() -> list[str]:
    """Seeds that found a bug, with what they found; kept for ever."""
    rows = [line.split("#")[0].strip() for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row]


@pytest.mark.parametrize("seed", [*range(8)])
def test_a_swarm_of_faults_breaks_no_promise(seed: int) -> None:
    result = run_seed(seed)
    assert result.violations == [], story(result)


@pytest.mark.parametrize("seed", corpus())
def test_a_seed_that_once_failed_holds(seed: str) -> None:
    kind, _, number = seed.rpartition(" ")
    result = run_dense(int(number)) if kind == "dense" else run_seed(int(number))
    assert result.violations == [], story(result)


def test_the_same_seed_is_the_same_run() -> None:
    one, two = run_seed(11), run_seed(11)
    assert one.trace == two.trace
    assert one.lines == two.lines
    assert run_seed(12).trace != one.trace
