"""What differs between two runs: pure, over flat records of what each was, had and brought.

A record is `section -> {key: value}`; None for a section of which nothing is known (a run that never started has no
environment). What is not known is said, and never shown as a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

INSTALLERS = frozenset({"pip", "setuptools", "wheel"})  # `pip freeze` leaves them out, a look at the machine does not
SECTIONS = ("spec", "code", "data", "machine", "environment", "packages", "result")

Flat = Mapping[str, str]
Record = Mapping[str, Flat | None]


@dataclass(frozen=True)
class Difference:
    """One key that differs; `one` or `other` is None where only the other side has it."""

    section: str
    key: str
    one: str | None
    other: str | None


@dataclass(frozen=True)
class Comparison:
    """All differences in the order of the sections; which sections are equal, and which cannot be compared."""

    differences: tuple[Difference, ...]
    same: tuple[str, ...]
    unknown: tuple[str, ...]


def compare(one: Record, other: Record) -> Comparison:
    """Compare two records section by section."""
    found: list[Difference] = []
    same: list[str] = []
    unknown: list[str] = []
    for section in SECTIONS:
        first, second = one.get(section), other.get(section)
        if first is None or second is None:
            unknown.append(section)
            continue
        keys = dict.fromkeys([*first, *second])
        mine = [Difference(section, k, first.get(k), second.get(k)) for k in keys if first.get(k) != second.get(k)]
        found += mine
        if not mine:
            same.append(section)
    return Comparison(tuple(found), tuple(same), tuple(unknown))


def flat(document: Any, above: str = "") -> dict[str, str]:
    """`{"checkpoint": {"keep": 3}}` as `{"checkpoint.keep": "3"}`; lists by position, None and empty left out."""
    if document is None or document == {} or document == []:
        return {}
    if isinstance(document, Mapping):
        pairs: Iterable[tuple[str, Any]] = ((str(key), value) for key, value in document.items())
    elif isinstance(document, (list, tuple)):
        if all(isinstance(each, (str, int, float)) for each in document):
            return {above: ", ".join(map(str, document))}
        pairs = ((str(place), value) for place, value in enumerate(document))
    else:
        return {above: str(document)}
    found: dict[str, str] = {}
    for key, value in pairs:
        found.update(flat(value, f"{above}.{key}" if above else key))
    return found


def packages_of(lines: Iterable[Any]) -> dict[str, str]:
    """`name==version`, `name @ place` -> version or place, by the name as pip compares it."""
    found = {}
    for line in lines:
        text = str(line).strip()
        for mark in ("==", " @ "):
            name, there, version = text.partition(mark)
            if there and name.strip().lower() not in INSTALLERS:
                found[name.strip().lower().replace("_", "-").replace(".", "-")] = version.strip()
                break
    return found


def drift(before: Iterable[Any], now: Iterable[Any]) -> list[str]:
    """`torch 2.4.0 -> 2.4.1`, `numpy gone`, `new: rich 13.0`, sorted by name."""
    old, new = packages_of(before), packages_of(now)
    words = []
    for name in sorted({*old, *new}):
        if name not in new:
            words.append(f"{name} {old[name]} gone")
        elif name not in old:
            words.append(f"{name} {new[name]} new")
        elif old[name] != new[name]:
            words.append(f"{name} {old[name]} -> {new[name]}")
    return words
