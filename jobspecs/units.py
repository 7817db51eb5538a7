"""Durations, sizes, money, ranges and moments, as people write them.

Rules: text in, frozen value out; the text decides, never YAML's guess about it, so `12:30`, `010` and `1_000` are
refused with the trap named. A bare number is accepted only where its unit is certain (money is USD). `str()` of a
value is a spelling that parses back to the same value. Every parser raises `Refusal`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from jobspecs.problems import Refusal, shown

_MINUTE, _HOUR, _DAY, _WEEK = 60, 3600, 86_400, 604_800
# Nobody rents a GPU for ten years; a longer time is a slip, and would overflow dates later on.
MAX_DURATION_S = 10 * 365 * _DAY
# Above this an amount is a slip too; it also bounds what `1e999999` can make the arithmetic do.
MAX_MONEY = Decimal(10) ** 9
_MAX_DIGITS = 30

_DURATION_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), _MINUTE),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), _HOUR),
    **dict.fromkeys(("d", "day", "days"), _DAY),
    **dict.fromkeys(("w", "week", "weeks"), _WEEK),
}
_SIZE_UNITS = {"B": 1} | {
    f"{letter}{infix}B": base ** (power + 1)
    for power, letter in enumerate("KMGTP")
    for infix, base in (("", 1000), ("i", 1024))
}
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)\s*", re.ASCII)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)", re.ASCII)
_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)\s*"
    r"([Zz]|[+-][0-9]{2}:?[0-9]{2})?",
    re.ASCII,
)


def _trap(text: str) -> Refusal | None:
    """The refusal for a number that YAML 1.1 or a locale would read as another one; None for a plain number."""
    if re.fullmatch(r"[0-9]+(:[0-9]{1,2})+(\.[0-9]*)?", text):
        return Refusal(f"{shown(text)} is a sexagesimal trap: YAML 1.1 reads a:b as base 60", "write the unit")
    if re.fullmatch(r"[+-]?[0-9]+(_[0-9]+)+.*", text):
        return Refusal(f"{shown(text)} has underscores between its digits", "write the digits without them")
    if re.fullmatch(r"[+-]?0[xXoObB][0-9a-fA-F]+", text):
        return Refusal(f"{shown(text)} is not a decimal number", "write it in decimal digits")
    if re.fullmatch(r"[+-]?0[0-9]+", text):
        return Refusal(f"{shown(text)} starts with 0, which YAML 1.1 reads as octal", "write it without the leading 0")
    if re.fullmatch(r"[+-]?\.?(inf|infinity|nan)", text, re.IGNORECASE):
        return Refusal(f"{shown(text)} is not a finite number")
    if re.fullmatch(r"[0-9]+,[0-9]+", text):
        return Refusal(f"{shown(text)} has a comma", "write the decimal point as a dot")
    return None


def parse_number(text: str) -> Decimal:
    """A finite decimal number: `3`, `0.5`, `1e-4`; without the traps of `_trap`."""
    text = text.strip()
    trap = _trap(text)
    if trap:
        raise trap
    if not _NUMBER.fullmatch(text) or len(text) > _MAX_DIGITS:
        raise Refusal(f"expected a number, got {shown(text)}")
    return Decimal(text)


def parse_int(text: str, low: int | None = None, high: int | None = None) -> int:
    """A whole number within [low, high], written in plain digits."""
    text = text.strip()
    trap = _trap(text)
    if trap:
        raise trap
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text, re.ASCII):
        raise Refusal(f"expected a whole number, got {shown(text)}")
    value = int(text)
    if low is not None and value < low:
        raise Refusal(f"must be {low} or more, got {value}")
    if high is not None and value > high:
        raise Refusal(f"must be {high} or less, got {value}")
    return value


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time in whole seconds."""

    seconds: int

    def __str__(self) -> str:
        """`3d`, `36h`, `1h30m`, `45s`: days only when they are whole."""
        if self.seconds and self.seconds % _DAY == 0:
            return f"{self.seconds // _DAY}d"
        hours, rest = divmod(self.seconds, _HOUR)
        minutes, seconds = divmod(rest, _MINUTE)
        parts = ((hours, "h"), (minutes, "m"), (seconds, "s"))
        return "".join(f"{value}{unit}" for value, unit in parts if value) or "0s"


def parse_duration(text: str) -> Duration:
    """`90s`, `30m`, `12h`, `3d`, `1w`, `1h30m`, `1.5 h`, and the units as words; `0` alone is zero."""
    text = text.strip()
    if text == "0":
        return Duration(0)
    if re.fullmatch(r"[0-9]+(:[0-9]+)+", text):
        raise Refusal(
            f"{shown(text)} is a sexagesimal trap: YAML 1.1 reads a:b as base 60",
            "write 12h30m or 12m30s for 12:30",
        )
    if _NUMBER.fullmatch(text):
        raise Refusal(f"{shown(text)} has no unit", f"write {text}s, {text}m, {text}h or {text}d")
    total, end = Decimal(0), 0
    for part in _DURATION_PART.finditer(text):
        unit = _DURATION_UNITS.get(part[2])
        if part.start() != end or unit is None or len(part[1]) > _MAX_DIGITS:
            break
        total, end = total + Decimal(part[1]) * unit, part.end()
    if end != len(text) or not text:
        raise Refusal(f"expected a duration, got {shown(text)}", "write it like 90s, 30m, 12h, 3d or 1h30m")
    if total != int(total):
        raise Refusal(f"{shown(text)} is not a whole number of seconds")
    if total > MAX_DURATION_S:
        raise Refusal(f"{shown(text)} is longer than ten years")
    return Duration(int(total))


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """An amount of memory or disk in bytes."""

    bytes: int

    def __str__(self) -> str:
        """The shortest exact spelling, decimal before binary: `100GB`, `16GiB`, `1500MB`."""
        if self.bytes == 0:
            return "0B"
        whole = [(self.bytes // factor, unit) for unit, factor in _SIZE_UNITS.items() if not self.bytes % factor]
        value, unit = min(whole, key=lambda pair: (len(str(pair[0])), len(pair[1])))
        return f"{value}{unit}"


def parse_size(text: str) -> Size:
    """`100GB` (decimal) or `16GiB` (binary); the unit is required and ends in B."""
    text = text.strip()
    trap = _trap(text)
    if trap:
        raise trap
    match = _SIZE.fullmatch(text)
    if not match or len(text) > _MAX_DIGITS:
        raise Refusal(f"expected a size, got {shown(text)}", "write it like 100GB or 16GiB")
    units = _SIZE_UNITS | {unit.lower(): factor for unit, factor in _SIZE_UNITS.items()}
    factor = units.get(match[2])
    if factor is None:
        said = f"has no unit that is a size: {match[2]!r}" if match[2] else "has no unit"
        raise Refusal(f"{shown(text)} {said}", f"write {match[1]}GB (decimal) or {match[1]}GiB (binary)")
    total = Decimal(match[1]) * factor
    if total != int(total):
        raise Refusal(f"{shown(text)} is not a whole number of bytes")
    return Size(int(total))


@dataclass(frozen=True, slots=True)
class Money:
    """An amount with its ISO 4217 currency. Two amounts compare only within one currency."""

    amount: Decimal
    currency: str = "USD"

    def __str__(self) -> str:
        """`1.20 USD`: two decimals at least, more only where they count."""
        amount = self.amount.normalize()
        exponent = amount.as_tuple().exponent
        if isinstance(exponent, int) and exponent > -2:
            amount = amount.quantize(Decimal("0.01"))
        return f"{amount:f} {self.currency}"


def parse_money(text: str) -> Money:
    """`1.20 USD`, `USD 1.20`, `$1.20`, or a bare number, which is USD. More than zero."""
    text = text.strip()
    match = re.fullmatch(r"(?:(\$)|([A-Z]{3})\s+)?(\S*?)\s*(?:\b([A-Z]{3}))?", text, re.ASCII)
    if not match or ((match[1] or match[2]) and match[4]) or not match[3]:
        raise Refusal(f"expected an amount of money, got {shown(text)}", "write it like 1.20 USD")
    if match[3][0] in "¥￥€£" or match[3][-1] in "¥￥€£":
        raise Refusal(f"{shown(text)} has a currency sign that names no currency", "write it like 8.50 CNY")
    try:
        amount = parse_number(match[3])
    except Refusal as refusal:
        hint = refusal.hint or "write it like 1.20 USD"
        raise Refusal(refusal.reason.replace("a number", "an amount of money"), hint) from None
    if not 0 < amount <= MAX_MONEY or amount != amount.quantize(Decimal("0.000001")):
        raise Refusal(f"must be more than 0 and at most {MAX_MONEY:f}, got {shown(text)}")
    # Kept in the form that is printed, so that 1.2 USD and 1.20 USD are the same value and the same spec.
    return Money(Decimal(str(Money(amount, "USD")).split()[0]), match[2] or match[4] or "USD")


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high`, both included; `high` None is open. Counts, or bytes when `is_size`."""

    low: int
    high: int | None = None
    is_size: bool = False

    def __contains__(self, value: int) -> bool:
        return self.low <= value and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        """`4..`, `4..8`, `..8`, `16GB..32GB`."""
        ends = (self.low or None, self.high)
        low, high = ("" if end is None else str(Size(end) if self.is_size else end) for end in ends)
        return f"{low}..{high}"


def parse_range(text: str, *, sizes: bool = False) -> Range:
    """`16..`, `16+`, `>=16`, `4..8`, `..8`, `<=8`; a bare amount is the least that will do.

    With `sizes` the ends are sizes (`16GB..32GB`); a unit written only at the end counts for both ends.
    """
    text = re.sub(r"\s+", "", text)
    low, high = text, ""
    open_end = re.fullmatch(r"(?:>=(.+)|(.+)\+)", text)
    if open_end:
        low = open_end[1] or open_end[2]
    elif text.startswith("<="):
        low, high = "", text[2:]
    elif ".." in text:
        low, _, high = text.partition("..")
    example = "16GB.., 16GB+ or 16GB..32GB" if sizes else "4.., 4+ or 4..8"
    if (not low and not high) or (text.startswith((">", "<")) and not text.startswith((">=", "<="))):
        raise Refusal(f"expected an amount or a range, got {shown(text)}", f"write it like {example}")
    if sizes and high and re.fullmatch(r"[0-9.]+", low):
        low += high.lstrip("0123456789.")
    ends = [_range_end(end, sizes) for end in (low, high)]
    if ends[0] is not None and ends[1] is not None and ends[1] < ends[0]:
        raise Refusal(f"the range {shown(text)} ends before it starts")
    return Range(ends[0] or 0, ends[1], is_size=sizes)


def _range_end(text: str, sizes: bool) -> int | None:
    if not text:
        return None
    return parse_size(text).bytes if sizes else parse_int(text, 1)


def parse_moment(text: str) -> datetime:
    """An RFC 3339 date and time with its offset, as an aware UTC datetime: `2026-12-01T09:00:00+08:00`."""
    text = text.strip()
    match = _MOMENT.fullmatch(text)
    if not match:
        raise Refusal(f"expected a date and time, got {shown(text)}", "write it like 2026-12-01T09:00:00+08:00")
    if not match[3]:
        raise Refusal(f"{shown(text)} has no offset, so it could be any of 26 hours", f"write {text}Z or {text}+08:00")
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3].upper()}").astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refusal(f"{shown(text)} is not a date and time that exists") from None


def moment_text(moment: datetime) -> str:
    """An aware datetime as RFC 3339 in UTC, with Z."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
