"""Lengths of time for people."""

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
