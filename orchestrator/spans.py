"""Lengths of time and numbers of things, for people."""

from __future__ import annotations


def span(seconds: float | None) -> str:
    """A length of time in two units at most: `45s`, `3m20s`, `2h05m`, `4d03h`; `-` for None."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def counted(number: float, noun: str, many: str = "") -> str:
    """`1 file`, `2 files`, `0 files`; `many` where the plural is not the noun with an s."""
    shown = str(number) if isinstance(number, int) else f"{number:g}"
    return f"{shown} {noun if number == 1 else many or f'{noun}s'}"
