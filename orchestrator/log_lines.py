"""How far a job is, by the lines of its log: tables of what frameworks print. Why it failed: `diagnosis`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
PROGRESS_LOOKS_AT = 64 * 1024  # characters; a chunk of the stream is half of that
NUMBER = r"(\d+(?:\.\d+)?)"
DEFAULT_PROGRESS = (
    re.compile(rf"\b(?:step|iter(?:ation)?|it)\b[\s:=\[]*{NUMBER}(?:\s*(?:/|of)\s*{NUMBER})?", re.IGNORECASE),
    re.compile(rf"\d+%\|[^|]*\|\s*{NUMBER}/{NUMBER}"),  # tqdm
    re.compile(rf"\bepoch\b[\s:=\[]*{NUMBER}(?:\s*(?:/|of)\s*{NUMBER})?", re.IGNORECASE),
)


@dataclass(frozen=True)
class Progress:
    """How far a job is: `step` of `total` where a total is known."""

    step: float
    total: float | None


def progress(text: str, regex: str | None = None, total: float | None = None) -> Progress | None:
    """The last step named in `text`; a regex's first group is the step, a second one the total."""
    text = ANSI.sub("", text[-PROGRESS_LOOKS_AT:])
    for pattern in (re.compile(regex),) if regex else DEFAULT_PROGRESS:
        found = list(pattern.finditer(text))
        if not found:
            continue
        groups = found[-1].groups() or (found[-1].group(0),)
        step = _number(groups[0])
        if step is not None:
            return Progress(step, total if total is not None else _number(groups[1] if len(groups) > 1 else None))
    return None


# What programs call them in JSON lines; the first that is there counts
STEP_KEYS = ("step", "global_step", "iteration", "iter", "_step")
TOTAL_KEYS = ("total", "total_steps", "max_steps")
RATE_KEYS = (
    "throughput", "samples_per_s", "samples_per_second", "tokens_per_s", "tokens_per_second", "steps_per_s",
    "train_samples_per_second", "it_per_s", "images_per_s",
)  # fmt: skip


@dataclass(frozen=True)
class Metrics:
    """What the last JSON line says: how far the job is, and its throughput in its own unit."""

    step: float | None
    total: float | None
    rate: float | None


def metrics(text: str) -> Metrics | None:
    """The last whole line of $GPUJOB_METRICS in `text` that is a JSON object; None when there is none."""
    for line in reversed(text[-PROGRESS_LOOKS_AT:].splitlines()):
        if not line.startswith("{"):
            continue
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue  # cut off, or still being written
        return Metrics(*(_first(said, keys) for keys in (STEP_KEYS, TOTAL_KEYS, RATE_KEYS)))
    return None


def _first(said: Mapping[str, object], keys: Iterable[str]) -> float | None:
    for key in keys:
        value = said.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18:
            return float(value)
    return None


def _number(text: str | None) -> float | None:
    try:
        return float(text.replace(",", "")) if text else None
    except ValueError:
        return None
