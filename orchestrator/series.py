"""What a machine's samples were, kept in one file of fixed size per rental: the older, the coarser.

    10 s for an hour, 1 min for a day, 10 min for two weeks

Rules
- A tier is a ring of slots; a time has exactly one slot in each, so that nothing is ever searched, moved or pruned.
- A slot carries its bucket's number and a checksum: what a crash or a full disk left half written is not there.
- One thread writes; anybody reads. The file is sparse: a short job's costs little. It goes with the job's folder.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from orchestrator.points import CARD_COLUMNS, CARDS_MAX, COLUMNS, Card, Point, combine

MAGIC = b"GJS1"
HEAD = struct.Struct("<4sHH")  # magic, cards, columns of a point without its cards
HEAD_SIZE = 64


@dataclass(frozen=True)
class Tier:
    """`slots` buckets of `step` seconds each."""

    step: int
    slots: int


TIERS = (Tier(10, 360), Tier(60, 1440), Tier(600, 2016))


class _Shape:
    """Where a file for machines of so many cards has what."""

    def __init__(self, cards: int) -> None:
        self.cards = cards
        # bucket, looks in it, the columns, the checksum of all that
        self.record = struct.Struct(f"<qI{len(COLUMNS) + cards * len(CARD_COLUMNS)}d")
        self.slot = self.record.size + 4

    def place(self, tier: int, bucket: int) -> int:
        before = sum(each.slots for each in TIERS[:tier])
        return HEAD_SIZE + (before + bucket % TIERS[tier].slots) * self.slot

    @property
    def size(self) -> int:
        return HEAD_SIZE + sum(each.slots for each in TIERS) * self.slot

    def pack(self, bucket: int, count: int, point: Point) -> bytes:
        values = [getattr(point, name) for name in COLUMNS]
        for index in range(self.cards):
            card = point.cards[index] if index < len(point.cards) else Card()
            values += [getattr(card, name) for name in CARD_COLUMNS]
        body = self.record.pack(bucket, count, *values)
        return body + struct.pack("<I", zlib.crc32(body))

    def unpack(self, data: bytes, step: int) -> tuple[int, int, Point] | None:
        """(bucket, looks, point), None for a slot that is empty or half written."""
        body, check = data[: self.record.size], data[self.record.size :]
        if len(check) != 4 or struct.unpack("<I", check)[0] != zlib.crc32(body):
            return None
        bucket, count, *values = self.record.unpack(body)
        if count == 0:
            return None  # zeros have a checksum of zero
        wide = len(CARD_COLUMNS)
        rows = [values[len(COLUMNS) + i * wide : len(COLUMNS) + (i + 1) * wide] for i in range(self.cards)]
        cards = tuple(Card(**dict(zip(CARD_COLUMNS, row, strict=True))) for row in rows)
        known = dict(zip(COLUMNS, values[: len(COLUMNS)], strict=True))
        return bucket, count, Point(at=float(bucket * step), cards=cards, **known)


class Series:
    """The writer of one rental's file; `with Series(path) as series: series.add(point)`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._shape = _Shape(0)

    def __enter__(self) -> Series:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def add(self, point: Point) -> None:
        """Put a look into its bucket of every tier; looks of one bucket are joined."""
        if self._fd < 0 or len(point.cards) > self._shape.cards:
            self._open(min(len(point.cards), CARDS_MAX))
        for number, tier in enumerate(TIERS):
            bucket = int(point.at // tier.step)
            place = self._shape.place(number, bucket)
            old = self._shape.unpack(os.pread(self._fd, self._shape.slot, place), tier.step)
            count = 0
            joint = point
            if old is not None and old[0] == bucket:
                count, joint = old[1], _added(old[2], old[1], point)
            os.pwrite(self._fd, self._shape.pack(bucket, count + 1, joint), place)

    def _open(self, cards: int) -> None:
        """Open or make the file; a machine that shows more cards than its first sample did gets a wider one."""
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        there = shape_of(self.path)
        if there is not None and there.cards >= cards:
            self._fd, self._shape = os.open(self.path, os.O_RDWR | os.O_CLOEXEC), there
            return
        shape, fresh = _Shape(cards), self.path.with_name(self.path.name + ".new")
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, shape.size)
        os.pwrite(fd, HEAD.pack(MAGIC, cards, len(COLUMNS)), 0)
        for number in range(len(TIERS)) if there is not None else ():
            for bucket, count, point in slots(self.path, number):
                os.pwrite(fd, shape.pack(bucket, count, point), shape.place(number, bucket))
        os.replace(fresh, self.path)
        self._fd, self._shape = fd, shape


def _added(old: Point, count: int, new: Point) -> Point:
    """One look more in a bucket of `count`; a mean is weighed by how many it stands for."""

    def both(how: str, before: float, now: float) -> float:
        if how == "mean" and before == before and now == now:
            return (before * count + now) / (count + 1)
        return combine(how, (before, now))  # type: ignore[arg-type]

    wide = max(len(old.cards), len(new.cards))
    cards = []
    for index in range(wide):
        a = old.cards[index] if index < len(old.cards) else Card()
        b = new.cards[index] if index < len(new.cards) else Card()
        cards.append(
            Card(**{name: both(how, getattr(a, name), getattr(b, name)) for name, how in CARD_COLUMNS.items()})
        )
    values = {name: both(how, getattr(old, name), getattr(new, name)) for name, how in COLUMNS.items()}
    return Point(at=old.at, cards=tuple(cards), **values)


def shape_of(path: Path) -> _Shape | None:
    """The shape of a file of this version; None where there is none, or one of another version."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD.size)
    except FileNotFoundError:
        return None
    if len(head) < HEAD.size:
        return None
    magic, cards, columns = HEAD.unpack(head)
    return _Shape(cards) if magic == MAGIC and cards <= CARDS_MAX and columns == len(COLUMNS) else None


def slots(path: Path, tier: int) -> Iterator[tuple[int, int, Point]]:
    """(bucket, looks, point) of every whole slot of a tier, in the file's order."""
    shape = shape_of(path)
    if shape is None:
        return
    with path.open("rb") as file:
        file.seek(shape.place(tier, 0))
        data = file.read(shape.slot * TIERS[tier].slots)
    for start in range(0, len(data), shape.slot):
        found = shape.unpack(data[start : start + shape.slot], TIERS[tier].step)
        if found is not None:
            yield found


def read(path: Path, step: int, since: float = 0.0) -> list[Point]:
    """The points of the tier with buckets of `step` seconds from `since` (UTC) on, oldest first; cards that the file
    has room for and the machine never showed are left out."""
    tier = next(number for number, each in enumerate(TIERS) if each.step == step)
    found = [point for bucket, _, point in slots(path, tier) if (bucket + 1) * step > since]
    return [_without_blanks(point) for point in sorted(found, key=lambda point: point.at)]


def _without_blanks(point: Point) -> Point:
    cards = point.cards
    while cards and all(getattr(cards[-1], name) != getattr(cards[-1], name) for name in CARD_COLUMNS):
        cards = cards[:-1]
    if cards is point.cards:
        return point
    return Point(at=point.at, cards=cards, **{name: getattr(point, name) for name in COLUMNS})
