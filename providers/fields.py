"""Reading what a company's API wrote: what is missing or of another type reads as None, empty or 0, and never raises.

Numbers are `Decimal`, since they are mostly money.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import ROUND_UP, Decimal, InvalidOperation
from typing import Any

Rows = list[Mapping[str, Any]]


def parsed(text: str) -> Any:
    """A JSON text; None for anything else."""
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=lambda word: None)
    except (ValueError, RecursionError):  # a number of a million digits is a ValueError as well
        return None


def at(value: Any, *path: str | int) -> Any:
    """`value[path[0]][path[1]]...`, None where a step is missing or of another kind."""
    for step in path:
        if isinstance(step, str) and isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    return value


def text(value: Any) -> str:
    """A string as it is, else empty."""
    return value if isinstance(value, str) else ""


def number(value: Any) -> Decimal | None:
    """A finite number, also one in a string; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        return None
    return found if found.is_finite() and abs(found) < Decimal(10) ** 18 else None


def whole(value: Any) -> int:
    """A count that is not negative; 0 for anything else."""
    found = number(value)
    return int(found) if found is not None and found > 0 else 0


def rows(value: Any) -> Rows | None:
    """A list of objects; None when it is anything else, since a part of a listing is no listing."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        return None
    return list(value)


def epoch(value: Any) -> float | None:
    """UTC epoch seconds of an RFC 3339 text."""
    try:
        moment = datetime.fromisoformat(text(value))
    except ValueError:
        return None
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, OSError):
        return None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header; dates there are rare and read as None."""
    found = number(headers.get("Retry-After"))
    return float(found) if found is not None and 0 <= found <= 86_400 else None


def per_hour(amount: Decimal) -> Decimal:
    """A price rounded up to a hundredth of a cent: never less than what is billed, and short enough to be read."""
    return amount.quantize(Decimal("0.0001"), ROUND_UP)


def gigabytes(size: int, least: int) -> int:
    """Bytes as whole GB, rounded up, `least` at least."""
    return max(least, -(-size // 10**9))
