"""One look at a machine as numbers: what its agent's `sample` said, with the run's own progress beside it. Pure.

Rules: a sample is a stranger's: what is no number is unknown (NaN), and nothing of it can raise. A column says how
several looks become one when they grow old: `mean`, `max`, `last`, `sum`, or `bits` (any of them).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

NAN = math.nan
CARDS_MAX = 64  # no machine has more; one that claims it would fill our disk
RUNNING = 3.0  # `stage` of a run whose `run` runs
STAGES: Mapping[str, float] = {"setup": 1.0, "smoke": 2.0, "run": RUNNING}
How = Literal["mean", "max", "last", "sum", "bits"]


@dataclass(frozen=True, slots=True)
class Card:
    """One card: percent, MiB, degrees Celsius, watts, and the driver's reasons for throttling as bits."""

    util: float = NAN
    mem_used: float = NAN
    mem_total: float = NAN
    temp: float = NAN
    power: float = NAN
    throttle: float = NAN

    @property
    def full(self) -> float:
        """The share of its memory that is in use, in percent."""
        return 100.0 * self.mem_used / self.mem_total if self.mem_total > 0 else NAN


@dataclass(frozen=True, slots=True)
class Point:
    """A machine at one moment, or over a minute or more. `at` is UTC epoch seconds, by our own clock."""

    at: float
    cards: tuple[Card, ...] = ()
    cpu: float = NAN  # % of all CPUs of the host
    iowait: float = NAN  # %
    cpus: float = NAN  # usable ones
    own: float = NAN  # cores that the run's processes used
    top: float = NAN  # and the busiest of them
    blocked: float = NAN  # processes of the run that wait for a disk
    mem_used: float = NAN  # bytes, and so are the next three
    mem_total: float = NAN
    disk_free: float = NAN
    disk_total: float = NAN
    disk_read: float = NAN  # bytes/s, and so are the next three
    disk_write: float = NAN
    net_in: float = NAN
    net_out: float = NAN
    stage: float = NAN  # of `STAGES`; 0 without a run
    step: float = NAN  # the job's own
    rate: float = NAN  # the throughput that the job itself reports, in its own unit
    log: float = NAN  # bytes of log that came since the look before
    saved: float = NAN  # checkpoints that became complete since then

    @property
    def use(self) -> float:
        """The mean use of the cards in percent; NaN without a reading."""
        return mean(card.util for card in self.cards)


CARD_COLUMNS: Mapping[str, How] = {
    "util": "mean", "mem_used": "max", "mem_total": "last", "temp": "max", "power": "mean", "throttle": "bits",
}  # fmt: skip
COLUMNS: Mapping[str, How] = {
    **dict.fromkeys([each.name for each in fields(Point) if each.name not in ("at", "cards")], "mean"),
    "cpus": "last", "mem_used": "max", "mem_total": "last", "disk_free": "last", "disk_total": "last",
    "stage": "last", "step": "last", "log": "sum", "saved": "sum",
}  # fmt: skip


def mean(values: Iterable[float]) -> float:
    """The mean of those that are known; NaN when none is."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else NAN


def number(value: object) -> float:
    """A number of a stranger's document; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NAN
    return float(value) if abs(value) < 1e18 else NAN  # false for inf and nan, too; no float loses a whole byte count


def point_of(sample: Mapping[str, Any], at: float, **more: float) -> Point:
    """A `sample` event as a point; `more` are columns that we know ourselves."""
    told = {name: number(sample.get(name)) for name in COLUMNS if name not in ("stage", "step", "rate", "log", "saved")}
    return Point(at=at, cards=_cards(sample.get("gpus")), **{**told, **more})


def _cards(rows: object) -> tuple[Card, ...]:
    """By index; a card that is missing in between is all unknown."""
    found: dict[int, Card] = {}
    for row in rows if isinstance(rows, list) else ():
        index = row.get("index") if isinstance(row, dict) else None
        if isinstance(index, int) and 0 <= index < CARDS_MAX:
            found[index] = Card(**{name: number(row.get(name)) for name in CARD_COLUMNS})
    return tuple(found.get(index, Card()) for index in range(max(found, default=-1) + 1))


def joined(points: Sequence[Point], at: float) -> Point:
    """Several looks as one at `at`, oldest first; there must be one."""
    count = max(len(point.cards) for point in points)
    cards = tuple(
        Card(**{
            name: combine(how, [getattr(p.cards[index], name) for p in points if index < len(p.cards)])
            for name, how in CARD_COLUMNS.items()
        })
        for index in range(count)
    )  # fmt: skip
    values = {name: combine(how, [getattr(point, name) for point in points]) for name, how in COLUMNS.items()}
    return Point(at=at, cards=cards, **values)


def combine(how: How, values: Sequence[float]) -> float:
    """Several values of one column as one; NaN when none is known."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return NAN
    match how:
        case "mean":
            return sum(known) / len(known)
        case "max":
            return max(known)
        case "last":
            return known[-1]
        case "sum":
            return sum(known)
        case "bits":
            bits = 0
            for value in known:
                bits |= int(value) if 0 <= value < 2**52 else 0
            return float(bits)
