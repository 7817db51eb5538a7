"""What verbs print: lines of at most 100 columns, tables, colours, times, ages and money; standard library only.

Rules: what is meant for people goes out by `put` (stdout) and `say` (stderr) alone, which fold what is longer than the
terminal; a pipe gets whole sentences, one a line, and tables of 100 columns. Tables show local time with its offset,
JSON shows UTC with Z; money is a decimal with its currency, and play money says so. Colour only on a terminal, never
with NO_COLOR or --no-color.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import IO, Any

from orchestrator.spans import counted as counted
from orchestrator.spans import span as span

WIDTH = 100  # a table wraps in a split terminal or a bug report beyond it
NARROWEST = 40  # of a terminal; below that nothing could be read anyway
HANG_MAX = 20  # what a line goes on below is set under where its text began, as far as there is room for that
MIN_COLUMN = 6  # a column that is cut below this says nothing any more

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_WORD = re.compile(r"\s*(?:[^\s`]*`[^`]*`[^\s`]*|\S+)")  # a command in backticks is one word, as far as it fits
_GAP = re.compile(r"\S {2,}")

_CODES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "bold": "1", "dim": "2"}
_STATE_COLOURS = {
    "DONE": "green",
    "RUNNING": "green",
    "FAILED": "red",
    "CANCELLED": "yellow",
    "RECOVERING": "yellow",
    "RELEASING": "cyan",
    "FINALIZING": "cyan",
    "SETUP": "blue",
    "PROVISIONING": "blue",
}

_no_color = False


def forbid_colour() -> None:
    """`--no-color` was given."""
    global _no_color
    _no_color = True


def colourful(stream: IO[str]) -> bool:
    """True when `stream` may be sent colours."""
    if _no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def paint(text: str, colour: str, stream: IO[str] | None = None) -> str:
    """`text` in `colour` where `stream` (stdout) may be coloured."""
    if colour not in _CODES or not colourful(stream or sys.stdout):
        return text
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def paint_state(text: str, state: str = "") -> str:
    """A cell that holds a state, in the state's colour; `text` may be padded."""
    return paint(text, _STATE_COLOURS.get(state or text.strip(), ""))


def line_width(most: int = WIDTH, stream: IO[str] | None = None) -> int:
    """How wide a line may be: `most`, and less on a narrower terminal."""
    stream = stream or sys.stdout
    try:
        return max(NARROWEST, min(most, os.get_terminal_size(stream.fileno()).columns)) if stream.isatty() else most
    except (OSError, ValueError):  # no terminal after all, or one without a size
        return most


def width_of(text: str) -> int:
    """Columns that `text` takes on a terminal: wide characters take two, colours none."""
    text = _ESCAPE.sub("", text) if "\x1b" in text else text
    if text.isascii():
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def cut(text: str, width: int) -> str:
    """`text` in at most `width` columns, an ellipsis where something was cut."""
    text = " ".join(text.split()) if "\n" in text else text
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - 1:
        text = text[:-1]
    return text + "…"


def fold(line: str, width: int) -> Iterator[str]:
    """`line` as lines of at most `width` columns, broken between words; what follows is set under where its text began.

    A word that is wider by itself, such as a path, is left whole: a broken one cannot be copied.
    """
    if width_of(line) <= width:
        yield line
        return
    labels = [gap.end() for gap in _GAP.finditer(line[: HANG_MAX + 1]) if gap.end() <= HANG_MAX]
    hang = labels[-1] if labels else len(line) - len(line.lstrip()) + 2
    at, used = line[: labels[-1] if labels else 0], False  # the present line, and whether more than a margin is on it
    for word in _words(line[len(at) :], width - hang):
        if used and width_of(at + word) > width:
            yield at
            at, word = " " * hang, word.lstrip()
        at += word
        used = True
    yield at


def _words(line: str, width: int) -> Iterator[str]:
    """The words of a line with the space before them; a command in backticks is one where it fits."""
    for word in _WORD.findall(line):
        if width_of(word) <= width:
            yield word
        else:
            yield from re.findall(r"\s*\S+", word)


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    shrink: Sequence[str] = (),
    right: Sequence[str] = (),
    state: str = "STATUS",
    width: int = 0,
) -> str:
    """Rows under headers within `width` columns (0: what `line_width` allows).

    Columns named in `shrink` give way first (the widest of them first), then any other; `right` are set flush right;
    the column `state` is coloured.
    """
    width = width or line_width()
    cells = [[str(cell) for cell in row] for row in rows]
    sizes = [max([width_of(head), *(width_of(row[i]) for row in cells)]) for i, head in enumerate(headers)]
    gap = 2 if sum(sizes) + 2 * (len(sizes) - 1) <= width else 1  # narrower gaps before shorter words
    _fit(sizes, [i for i, head in enumerate(headers) if head in shrink], width - gap * (len(sizes) - 1))
    lines = [_cells(headers, headers, sizes, right, "")]
    lines += [_cells(headers, row, sizes, right, state) for row in cells]
    return "\n".join((" " * gap).join(line).rstrip() for line in lines)


def _fit(sizes: list[int], shrink: list[int], width: int) -> None:
    """Shorten `sizes` in place until their sum is at most `width`."""
    for group in (shrink, list(range(len(sizes)))):
        while sum(sizes) > width:
            widest = max(group, key=lambda i: sizes[i], default=None)
            if widest is None or sizes[widest] <= MIN_COLUMN:
                break
            sizes[widest] -= 1


def _cells(headers: Sequence[str], row: Sequence[str], sizes: list[int], right: Sequence[str], state: str) -> list[str]:
    """One line's cells, each as wide as its column."""
    parts = []
    for head, cell, size in zip(headers, row, sizes, strict=True):
        text = cut(cell, size)
        space = " " * (size - width_of(text))
        shown = paint_state(text) if head == state else text
        parts.append(space + shown if head in right else shown + space)
    return parts


def local_time(at: float | None) -> str:
    """UTC epoch seconds as local time with offset: `2026-11-30 18:04:05+08:00`; `-` for None."""
    if at is None:
        return "-"
    return datetime.fromtimestamp(at, UTC).astimezone().isoformat(sep=" ", timespec="seconds")


def clock_time(at: float) -> str:
    """Local time of day: `18:04:05`."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%H:%M:%S")


def utc_z(at: float | None) -> str | None:
    """UTC epoch seconds as ISO 8601 with Z, for JSON."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def age(seconds: float) -> str:
    """How old something is, in one unit: `45s`, `3m`, `2h`, `4d`."""
    whole = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= length:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def size(count: int) -> str:
    """Bytes for people, decimal units: `512 B`, `1.5 MB`, `20 GB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def moved(done: int, total: int | None, rate: float) -> str:
    """How far a copy is: `12.3/40.1 MB 8.1 MB/s`; rate in bytes a second."""
    here, there = size(done), size(max(done, total)) if total else ""
    if there:
        number, _, unit = here.partition(" ")
        here = f"{number if there.endswith(f' {unit}') else here}/{there}"
    return f"{here} {size(int(rate))}/s"


def money(amount: Decimal | None, currency: str = "USD", play: bool = False) -> str:
    """`1.20 USD`, four decimals below a cent; `1.20 (play)` for money that is not real; `-` for None."""
    if amount is None:
        return "-"
    step = Decimal("0.0001") if 0 < abs(amount) < Decimal("0.01") else Decimal("0.01")
    return f"{amount.quantize(step):f} {'(play)' if play else currency}"


def money_json(amount: Decimal | None, currency: str = "USD", play: bool = False) -> dict[str, Any] | None:
    """Money in JSON: a decimal string, its currency, and whether it is play money."""
    if amount is None:
        return None
    return {"amount": f"{amount:f}", "currency": currency, "play": play}


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def put(text: str = "") -> None:
    """Lines for people, on stdout; folded on a terminal."""
    _out(text, sys.stdout)


def say(text: str = "") -> None:
    """Lines of progress or advice, on stderr; folded on a terminal."""
    _out(text, sys.stderr)
    sys.stderr.flush()


def _out(text: str, stream: IO[str]) -> None:
    if stream.isatty():
        width = line_width(stream=stream)
        text = "\n".join(part for line in text.split("\n") for part in fold(line, width))
    stream.write(text + "\n")
