"""Machines minute by minute, for tests of alarms: a healthy run, and one thing after the other that goes wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator.look import Look
from orchestrator.points import RUNNING, Card, Point

T0 = 1_800_000_000.0
MINUTE = 60.0
HEALTHY_CARD = Card(util=92, mem_used=30_000, mem_total=40_960, temp=66, power=310, throttle=0)
Change = Callable[[int, Point], Point]


def card(**changes: float) -> Card:
    return replace(HEALTHY_CARD, **changes)


def healthy(minute: int, cards: int = 1, steps_a_minute: float = 30.0, rng: random.Random | None = None) -> Point:
    """One minute of a run that does well: a slow first batch, then a steady pace, a checkpoint each 30 minutes."""
    noise = rng.uniform(-4, 4) if rng else 0.0
    warm = minute >= 3
    step = max(0.0, (minute - 2) * steps_a_minute) if warm else math.nan
    saved = 1.0 if minute and minute % 30 == 0 else 0.0
    busy = card(util=(92 + noise if warm else 5) - 40 * saved, power=310 + 2 * noise)
    return Point(
        at=T0 + minute * MINUTE, cards=(busy,) * cards, cpu=30.0, iowait=0.5, cpus=16, own=5.0, top=0.8, blocked=0.05,
        mem_used=20e9 + 1e8 * noise, mem_total=64e9, disk_free=200e9, disk_total=500e9, disk_read=20e6, disk_write=1e6,
        net_in=1e4, net_out=1e4, stage=RUNNING, step=step, log=500.0, saved=saved,
    )  # fmt: skip


def hours(count: int, change: Change | None = None, **how: Any) -> list[Point]:
    """`count` minutes of a healthy run, each as `change` leaves it."""
    points = [healthy(minute, **how) for minute in range(count)]
    return [change(minute, point) for minute, point in enumerate(points)] if change else points


def look_at(points: list[Point], **more: Any) -> Look:
    """A look right after the last minute; one rented card for each that is shown."""
    values: dict[str, Any] = {
        "now": points[-1].at + MINUTE,
        "name": "train",
        "cards": max(len(point.cards) for point in points),
        "began_at": points[0].at,
        "end": points[-1].at + 20 * 3600.0,
        "ttl_s": 24 * 3600.0,
        "hourly": 1.2,
        "launcher": True,
    }
    return Look(minutes=points, **{**values, **more})


def used(util: float, since: int, **more: float) -> Change:
    """From a minute on the cards show that use."""

    def change(minute: int, point: Point) -> Point:
        if minute < since:
            return point
        return replace(point, cards=tuple(replace(each, util=util, **more) for each in point.cards))

    return change
