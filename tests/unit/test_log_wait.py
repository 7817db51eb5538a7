"""The wait for the last bytes of an ended run's log."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.clock import FakeClock
from orchestrator.execute import WorkFailed
from orchestrator.home import Home
from orchestrator.machine import LOG_TAIL_S, Machines

SIZE = 1000


class Watch:
    """Receives `rate` bytes a second up to `last`."""

    def __init__(self, clock: FakeClock, rate: float, last: int) -> None:
        self.clock, self.rate, self.last, self.began = clock, rate, last, clock.awake()
        self.flushed: list[str] = []
        self.reconnected = 0

    def received(self, run: str, stage: str) -> int:
        return min(self.last, int(self.rate * (self.clock.awake() - self.began)))

    def flush(self, run: str) -> None:
        self.flushed.append(run)

    def reconnect(self) -> None:
        self.reconnected += 1


def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: float, last: int) -> tuple[Machines, Watch]:
    clock = FakeClock()
    monkeypatch.setattr(time, "sleep", clock.advance)
    machines = Machines(Home(state=tmp_path, config=tmp_path), clock, lambda _: None, 1)
    watch = Watch(clock, rate, last)
    machines._watches["gj-1"] = watch  # type: ignore[assignment]
    return machines, watch


RENTAL: Any = SimpleNamespace(id="gj-1", nonce="n")
RUN: Any = SimpleNamespace(key="t0.1")


def test_a_log_that_goes_on_arriving_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines, watch = waiting(tmp_path, monkeypatch, rate=5.0, last=SIZE)
    machines._whole_logs(RENTAL, RUN, {"run": SIZE})
    assert watch.clock.awake() - watch.began == pytest.approx(SIZE / 5.0, abs=1.0)
    assert (watch.flushed, watch.reconnected) == (["t0.1"], 0)


def test_a_log_that_stops_arriving_is_an_error_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines, watch = waiting(tmp_path, monkeypatch, rate=100.0, last=SIZE - 1)
    with pytest.raises(WorkFailed, match="the last bytes of the log"):
        machines._whole_logs(RENTAL, RUN, {"run": SIZE})
    assert watch.clock.awake() - watch.began == pytest.approx(SIZE / 100.0 + LOG_TAIL_S, abs=1.0)
    assert watch.flushed == []
    assert watch.reconnected == 1  # a stream that has lost its place finds it again from what is stored here
