"""A sweep's metric as a program tells it: a match in its log, or JSON lines in $GPUJOB_METRICS. Pure.

Rules
- A report is keyed by its step. JSON lines name it (`step`, or `epoch`); a regular expression by a group named `step`,
  or `progress.regex` by a match in the same line. Else it is the number of the report within the leg.
- What cannot be read is no report: a program may write what it likes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

STEP_MAX = 2**53
_STEPS = ("step", "global_step", "iteration", "epoch")


def from_log(
    text: str, pattern: re.Pattern[str], progress: re.Pattern[str] | None, known: int
) -> Iterator[tuple[int, float]]:
    """(step, value) of every match, in order; `known` reports of the leg came before these."""
    for line in text.splitlines():
        for match in pattern.finditer(line):
            groups = match.groupdict()
            value = _number(groups.get("value") or match.group(1))
            if value is None:
                continue
            known += 1
            step = _step(groups.get("step"))
            if step is None and progress is not None:
                found = progress.search(line)
                step = _step(found.group(1)) if found else None
            yield (known if step is None else step), value


def from_json(text: str, name: str, known: int) -> Iterator[tuple[int, float]]:
    """(step, value) of every JSON object that holds the metric; `known` reports of the leg came before these."""
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # the latter: brackets nested a thousand deep
            continue
        if not isinstance(row, dict) or name not in row:
            continue
        value = _number(row[name])
        if value is None:
            continue
        known += 1
        step = next((found for key in _STEPS if (found := _step(row.get(key))) is not None), None)
        yield (known if step is None else step), value


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan if value is None else None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _step(value: object) -> int | None:
    number = None if value is None else _number(value)
    if number is None or not math.isfinite(number) or not 0 <= number < STEP_MAX:
        return None
    return int(number)
