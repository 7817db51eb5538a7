"""The file of a machine's samples: what comes back, how it grows old, how large it is, and what a crash leaves."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.points import COLUMNS, Card, Point, joined, point_of
from orchestrator.series import TIERS, Series, read, shape_of

T0 = 1_800_000_000.0  # a whole number of ten minutes
SAMPLE = {
    "t": "sample", "at": 1.0, "cpu": 12.5, "mem_used": 5, "mem_total": 10, "own": 1.5,
    "gpus": [{"index": 0, "util": 97.0, "mem_used": 100.0, "mem_total": 400.0, "temp": 60.0, "power": 250.5}],
}  # fmt: skip


def point(at: float, util: float = 50.0, **more: Any) -> Point:
    return Point(at=at, cards=(Card(util=util, mem_used=util, temp=util, throttle=float(int(util) & 3)),), **more)


def test_a_sample_comes_back_as_it_was(tmp_path: Path) -> None:
    with Series(tmp_path / "a" / "s.bin") as series:
        series.add(point_of(SAMPLE, T0 + 3, stage=3.0, step=17.0))
    (found,) = read(tmp_path / "a" / "s.bin", 10)
    assert (found.at, found.cpu, found.own, found.stage, found.step) == (T0, 12.5, 1.5, 3.0, 17.0)
    assert (found.cards[0].util, found.cards[0].power, found.cards[0].full) == (97.0, 250.5, 25.0)
    assert math.isnan(found.net_in)
    assert math.isnan(found.cards[0].throttle)


def test_a_minute_is_the_mean_of_use_the_peak_of_memory_and_the_last_step(tmp_path: Path) -> None:
    with Series(tmp_path / "s") as series:
        for number in range(6):
            series.add(point(T0 + 10 * number, util=10.0 * number, step=float(number), log=5.0))
    (minute,) = read(tmp_path / "s", 60)
    assert minute.cards[0].util == pytest.approx(25.0)
    assert (minute.cards[0].mem_used, minute.step, minute.log) == (50.0, 5.0, 30.0)
    assert minute.cards[0].throttle == 2.0
    assert len(read(tmp_path / "s", 10)) == 6


def test_the_newest_hour_day_and_two_weeks_are_kept_in_a_file_that_does_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Series(path) as series:
        series.add(point(T0))
        size = path.stat().st_size
        for number in range(1, 500):
            series.add(point(T0 + 10 * number, util=float(number)))
    assert path.stat().st_size == size < 1_000_000
    ten = read(path, 10)
    assert len(ten) == 360
    assert [each.cards[0].util for each in ten[:2]] == [140.0, 141.0]
    assert len(read(path, 60)) == 84
    assert [each.at for each in read(path, 600)] == [T0 + 600 * n for n in range(9)]
    assert [each.at for each in read(path, 60, since=T0 + 4900)] == [T0 + 4860, T0 + 4920, T0 + 4980]


def test_a_machine_with_more_cards_than_it_showed_at_first(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Series(path) as series:
        series.add(Point(at=T0, cpu=5.0))
        series.add(Point(at=T0 + 10, cards=(Card(util=1.0), Card(util=2.0)), cpu=6.0))
        series.add(Point(at=T0 + 20, cpu=7.0))
    found = read(path, 10)
    assert [(len(each.cards), each.cpu) for each in found] == [(0, 5.0), (2, 6.0), (0, 7.0)]
    assert list(tmp_path.iterdir()) == [path]


def test_a_slot_that_was_half_written_is_not_there_and_the_others_are(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Series(path) as series:
        for number in range(3):
            series.add(point(T0 + 10 * number))
    shape = shape_of(path)
    assert shape is not None
    with path.open("r+b") as file:
        file.seek(shape.place(0, int(T0 // 10) + 1) + 20)
        file.write(b"\xff" * 5)
    assert [each.at for each in read(path, 10)] == [T0, T0 + 20]
    with Series(path) as series:
        series.add(point(T0 + 10, util=7.0))
    assert [each.cards[0].util for each in read(path, 10)] == [50.0, 7.0, 50.0]


@pytest.mark.parametrize("data", [b"", b"GJS1", b"GJS0" + bytes(60), struct.pack("<4sHH", b"GJS1", 1, 3)])
def test_a_file_that_is_none_of_ours_is_made_anew(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "s"
    path.write_bytes(data)
    assert read(path, 10) == []
    with Series(path) as series:
        series.add(point(T0))
    assert len(read(path, 10)) == 1
    assert read(tmp_path / "none", 10) == []


@given(times=st.lists(st.integers(0, 40_000), min_size=1, max_size=60))
@settings(max_examples=40, deadline=None)
def test_whatever_order_samples_come_in_each_tier_has_its_newest(tmp_path_factory: Any, times: list[int]) -> None:
    path = tmp_path_factory.mktemp("series") / "s"
    with Series(path) as series:
        for at in times:
            series.add(point(T0 + at))
    for tier in TIERS:
        buckets = {int((T0 + at) // tier.step) for at in times}
        assert {int(each.at // tier.step) for each in read(path, tier.step)} <= buckets
        newest = max(buckets)
        if all(bucket > newest - tier.slots for bucket in buckets):
            assert len(read(path, tier.step)) == len(buckets)


garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(sample=st.fixed_dictionaries({}, optional=dict.fromkeys((*COLUMNS, "gpus"), garbage)))
@settings(max_examples=80, deadline=None)
def test_no_machines_sample_can_raise(tmp_path_factory: Any, sample: dict[str, Any]) -> None:
    found = point_of(sample, T0)
    with Series(tmp_path_factory.mktemp("series") / "s") as series:
        series.add(found)
    joined([found, point(T0)], T0)


def test_cards_are_placed_by_their_index_and_a_liar_fills_no_disk() -> None:
    rows = [{"index": 2, "util": 5}, {"index": 0, "util": True}, {"index": 10**9, "util": 1}, {"index": -1}, "x"]
    found = point_of({"gpus": rows}, T0)
    assert [card.util for card in found.cards][2] == 5
    assert len(found.cards) == 3
    assert math.isnan(found.cards[0].util)
    assert math.isnan(found.use) is False
