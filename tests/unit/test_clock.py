"""Clocks: what a sleep, a set clock and a late loop look like."""

from __future__ import annotations

import time
from threading import Event

import pytest

from orchestrator import clock
from orchestrator.clock import FakeClock, Gap, GapDetector, SystemClock


def test_ordinary_time_is_no_gap() -> None:
    fake = FakeClock()
    gaps = GapDetector(fake)
    for seconds in (0.0, 30.0, 86_400.0):
        fake.advance(seconds)
        assert gaps.look(due=fake.boot()) is None


def test_a_sleep_of_the_computer_is_seen_once() -> None:
    fake = FakeClock()
    gaps = GapDetector(fake)
    due = fake.boot() + 10
    fake.suspend(28_800.0)
    fake.advance(10.0)
    assert gaps.look(due) == Gap(slept_s=28_800.0)
    fake.advance(10.0)
    assert gaps.look(fake.boot()) is None


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_set_clock_is_seen_with_its_sign(step: float) -> None:
    fake = FakeClock()
    gaps = GapDetector(fake)
    fake.step(step)
    fake.advance(5.0)
    assert gaps.look(fake.boot()) == Gap(stepped_s=step)


def test_a_stopped_process_comes_late() -> None:
    fake = FakeClock()
    gaps = GapDetector(fake)
    due = fake.boot() + 5
    fake.advance(600.0)
    assert gaps.look(due) == Gap(late_s=595.0)
    fake.advance(600.0)
    assert gaps.look() is None  # not told when it was due


def test_small_differences_are_the_reading_of_the_clocks() -> None:
    fake = FakeClock()
    gaps = GapDetector(fake)
    fake.suspend(clock.SLEPT_S - 0.1)
    fake.step(clock.STEPPED_S - 0.1)
    assert gaps.look(fake.boot() - clock.LATE_S + 0.1) is None


def test_gaps_in_words() -> None:
    assert str(Gap(slept_s=28_800, stepped_s=-3600)) == "slept 28800 s, clock set by -3600 s"
    assert str(Gap(late_s=90)) == "came 90 s late"


def test_the_fake_clock_waits_by_moving() -> None:
    fake = FakeClock(utc=100.0, boot=10.0, awake=5.0)
    wake = Event()
    assert fake.sleep_until(25.0, wake) is False
    assert (fake.utc(), fake.boot(), fake.awake()) == (115.0, 25.0, 20.0)
    assert fake.sleep_until(20.0, wake) is False
    assert fake.boot() == 25.0
    wake.set()
    assert fake.sleep_until(99.0, wake) is True
    assert fake.boot() == 25.0


class Slices(Event):
    """An event that records how long it was waited for, and lets the boot clock pass instead."""

    def __init__(self, clock_: _Moved) -> None:
        super().__init__()
        self.clock = clock_
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.clock.at += timeout + self.clock.asleep.pop(0) if self.clock.asleep else timeout
        return self.is_set()


class _Moved(SystemClock):
    def __init__(self) -> None:
        self.at = 0.0
        self.asleep: list[float] = []

    def boot(self) -> float:
        return self.at


def test_a_long_wait_is_cut_into_slices() -> None:
    moved = _Moved()
    wake = Slices(moved)
    assert moved.sleep_until(150.0, wake) is False
    assert wake.waits == [60.0, 60.0, 30.0]


def test_a_wait_across_a_sleep_of_the_computer_ends_within_a_slice() -> None:
    moved = _Moved()
    moved.asleep = [28_800.0]
    wake = Slices(moved)
    assert moved.sleep_until(7200.0, wake) is False
    assert wake.waits == [60.0]


def test_a_poke_ends_the_wait_at_once() -> None:
    wake = Event()
    wake.set()
    assert SystemClock().sleep_until(1e12, wake) is True
    assert SystemClock().sleep_until(0.0, Event()) is False


def test_the_system_clocks_are_the_systems() -> None:
    system = SystemClock()
    before = (time.time(), time.monotonic())
    boot = system.boot()
    assert system.utc() >= before[0]
    assert system.awake() >= before[1]
    assert system.boot() >= boot >= 0
