"""From a stream to a series: progress beside use, a machine's clock, late samples, a disk that is full."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.points import RUNNING, Point
from orchestrator.recorder import Recorder
from orchestrator.series import Series, read

NOW = 1_800_000_005.0


class Bench:
    def __init__(self, folder: Path) -> None:
        self.now = NOW
        self.told: list[Point] = []
        self.path = folder / "s.bin"
        self.recorder = Recorder(self.path, lambda: self.now, self.told.append)

    def sample(self, after: float = 10.0, **fields: Any) -> None:
        self.now += after
        self.recorder.sample({"t": "sample", "at": self.now, "cpu": 5.0, **fields})


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.recorder.close()


def running(state: str = "run", key: str = "t0.1", now: float = NOW) -> dict[str, Any]:
    return {"now": now, "boottime": 5.0, "runs": {"t0.0": {"state": "exited"}, key: {"state": state}}}


def test_a_sample_carries_what_the_run_said_since_the_last_one(bench: Bench) -> None:
    bench.recorder.status(running())
    bench.recorder.logged(100)
    bench.recorder.logged(20)
    bench.recorder.step("t0.1", 7.0)
    bench.recorder.saved()
    bench.sample()
    bench.recorder.step("t0.1", 9.0)
    bench.sample()
    told = [(p.stage, p.step, p.log, p.saved) for p in bench.told]
    assert told == [(RUNNING, 7.0, 120.0, 1.0), (RUNNING, 9.0, 0.0, 0.0)]
    assert [p.step for p in read(bench.path, 10)] == [7.0, 9.0]


def test_a_step_of_another_run_is_not_kept(bench: Bench) -> None:
    bench.recorder.status(running())
    bench.recorder.step("t0.1", 700.0)
    bench.recorder.status(running("setup", "t0.2"))
    bench.sample()
    assert bench.told[0].stage == 1.0
    assert math.isnan(bench.told[0].step)
    bench.recorder.status({"runs": {"t0.2": {"state": "exited"}, "x": 5}})
    bench.sample()
    assert bench.told[1].stage == 0.0


def test_a_log_that_comes_before_the_word_that_the_run_runs_is_not_lost(bench: Bench) -> None:
    bench.recorder.logged(14)
    bench.recorder.step("t0.1", 7.0)
    bench.recorder.status(running())
    bench.sample()
    assert (bench.told[0].step, bench.told[0].log) == (7.0, 14.0)


def test_samples_of_a_time_when_nobody_listened_are_put_where_they_belong(bench: Bench) -> None:
    bench.recorder.status(running())
    bench.recorder.step("t0.1", 5.0)
    for minutes in (30, 20, 10):
        bench.recorder.sample({"at": NOW - 60.0 * minutes, "cpu": 1.0})
    assert bench.told == []
    bench.sample(after=0.0)
    found = read(bench.path, 60)
    assert [p.at for p in found] == [NOW - 5 - 1800, NOW - 5 - 1200, NOW - 5 - 600, NOW - 5]
    assert [p.step == p.step for p in found] == [False, False, False, True]
    assert bench.told[0].step == 5.0


def test_a_machine_whose_clock_is_hours_off_is_corrected(bench: Bench) -> None:
    bench.recorder.status(running(now=NOW + 7200))
    bench.recorder.sample({"at": NOW + 7200, "cpu": 1.0})
    assert [p.at for p in bench.told] == [NOW]


@pytest.mark.parametrize("at", [NOW + 1e6, -5.0, None, "soon", True])
def test_a_time_that_cannot_be_is_now(bench: Bench, at: object) -> None:
    bench.recorder.sample({"at": at})
    assert [p.at for p in bench.told] == [NOW]


def test_a_full_disk_costs_the_series_and_nothing_else(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Series, "add", full)
    bench.sample()
    bench.sample()
    assert len(bench.told) == 2
