"""Where the paid time of a machine went, and how much of it its cards computed: from its rows and its agent's events.

Rules: pure but for `read_events`. The phases of one machine add up to what it is billed for, whatever was recorded:
each moment belongs to exactly one phase, and a moment of which nothing was recorded is `unassigned`. Times of the
machine's own clock are cut to the time that it was rented.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.budget import billed_seconds
from orchestrator.model import Assignment, Rental

PHASES = ("boot", "transfer", "setup", "train", "idle", "teardown", "unassigned", "rounding")
BUSY_PERCENT = 10.0  # a card above this computes; below it is powered on
SAMPLE_GAP_S = 60.0  # the agent samples every 10 s; a longer silence is not counted as anything
_OF_STAGE = {"setup": "setup", "smoke": "setup", "run": "train"}


@dataclass(frozen=True)
class Stage:
    """One stage of one run as the machine's agent reported it; `end` None: it had none, or was not heard."""

    run: str
    name: str
    start: float
    end: float | None


@dataclass(frozen=True)
class Busy:
    """Sampled use of the cards: seconds that samples cover, and in how many of them the cards computed.

    With several cards a second counts by the share of them that compute.
    """

    seen_s: float = 0.0
    busy_s: float = 0.0
    by_day: Mapping[int, float] = field(default_factory=dict)  # UTC day number -> busy seconds


UNSEEN = Busy()


def read_events(path: Path) -> Iterator[Mapping[str, Any]]:
    """The stored events of one machine, oldest first; none when there is no file."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):  # the last line of a file that is being written
            continue
        if isinstance(event, dict) and isinstance(event.get("at"), (int, float)):
            yield event


def stages_of(events: Iterable[Mapping[str, Any]]) -> list[Stage]:
    """The stages of all runs on one machine; one without an end lasts until its machine's last event."""
    open_since: dict[tuple[str, str], float] = {}
    found: list[Stage] = []
    last = 0.0
    for event in events:
        last = float(event["at"])
        if event.get("t") != "stage":
            continue
        key = (str(event.get("run")), str(event.get("stage")))
        if event.get("state") == "start":
            open_since[key] = last
        elif key in open_since:
            found.append(Stage(*key, open_since.pop(key), last))
    return [*found, *(Stage(*key, at, last) for key, at in open_since.items())]


def phases_of(
    rental: Rental, runs: Sequence[Assignment], stages: Sequence[Stage], until: float,
    window: tuple[float, float] = (0.0, math.inf),
) -> dict[str, float]:  # fmt: skip
    """Seconds of each phase of one machine from its order until `until`; their sum is what is billed.

    Of a machine that was rented beyond `window` only the seconds within it count; what the provider's minimum and
    steps add belongs to its end.
    """
    start = rental.create_sent_at or rental.created_at
    until = max(start, until)
    spans = [span for span in _spans(rental, runs, stages, start, until) if span[1] > span[0]]
    seconds = dict.fromkeys(PHASES, 0.0)
    first, last = max(start, window[0]), min(until, window[1])
    cuts = sorted({first, last, *(at for span in spans for at in span[:2] if first < at < last)})
    for low, high in itertools.pairwise(cuts):
        covering = [phase for since, end, phase in spans if since <= low and high <= end]
        seconds[covering[-1] if covering else "unassigned"] += high - low
    if until <= window[1]:
        seconds["rounding"] = max(0.0, billed_seconds(until - start, rental.offer) - (until - start))
    return seconds


def _spans(
    rental: Rental, runs: Sequence[Assignment], stages: Sequence[Stage], start: float, until: float
) -> Iterator[tuple[float, float, str]]:  # fmt: skip
    """(from, to, phase), weakest first: where two cover a moment, the later one of these has it."""
    for run in runs:
        if run.exit is not None:
            yield run.exit.at, until, "idle"
    ordered = [run.ordered_at for run in runs if run.ordered_at is not None]
    if rental.ready_at is not None:
        yield rental.ready_at, min(ordered, default=until), "transfer"
    for run in runs:
        if run.ordered_at is not None:
            yield run.committed_at, run.ordered_at, "transfer"
            yield run.ordered_at, run.exit.at if run.exit else until, "unassigned"
        if run.exit is not None and run.results_at is not None:
            yield run.exit.at, run.results_at, "transfer"
    yield start, rental.ready_at or until, "boot"
    for stage in stages:
        if stage.name in _OF_STAGE:
            yield stage.start, stage.end or until, _OF_STAGE[stage.name]
    if rental.releasing_at is not None:
        yield rental.releasing_at, until, "teardown"


def busy_of(events: Iterable[Mapping[str, Any]], start: float, until: float) -> Busy:
    """How much the cards computed within [start, until], as far as samples cover it."""
    samples = [(float(event["at"]), _share(event)) for event in events if event.get("t") == "sample"]
    known = [(at, share) for at, share in samples if share is not None and start <= at <= until]
    seen = busy = 0.0
    days: dict[int, float] = {}
    for (at, share), (following, _) in itertools.pairwise([*known, (until, 0.0)]):
        seconds = min(max(0.0, following - at), SAMPLE_GAP_S)
        seen += seconds
        busy += seconds * share
        days[int(at // 86_400)] = days.get(int(at // 86_400), 0.0) + seconds * share
    return Busy(seen, busy, days)


def _share(event: Mapping[str, Any]) -> float | None:
    """The share of cards that compute in one sample; None without a reading of any."""
    gpus = event.get("gpus")
    if not isinstance(gpus, list):
        return None
    used = [gpu["util"] for gpu in gpus if isinstance(gpu, dict) and isinstance(gpu.get("util"), (int, float))]
    return sum(util > BUSY_PERCENT for util in used) / len(used) if used else None
