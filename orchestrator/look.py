"""What the rules of alarms look at: a machine's last hours as minutes, what the spec says, and the thresholds. Pure.

Rules
- Only minutes count in which `run` ran and that were its own: warm-up (until some minutes after the first step), the
  writing of checkpoints, and everything before `run` (code, data, setup) are left out.
- A gap in the samples (this computer slept) is no evidence: too few minutes decide nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from orchestrator.points import RUNNING, Point

MINUTE = 60.0
FRESH_S = 150.0  # the newest minute must be this young: else nobody knows how the machine is now
COVERED = 0.8  # of the minutes of a time must have been seen
CALM = 0.4  # and this share of them must count: a job that saves all the time is judged by fewer
WARM_S = 5 * MINUTE  # from the first step to the pace that lasts: compilation, caches
WARM_MAX_S = 30 * MINUTE  # a first step that takes longer is no warm-up
WARM_WITHOUT_STEPS_S = 15 * MINUTE
HEAT: Mapping[int, str] = {  # the driver's bits; a power cap (4) or an idle card (1) is no fault
    0x8: "hardware slowdown", 0x20: "too hot (software)", 0x40: "too hot (hardware)", 0x80: "power brake",
}  # fmt: skip
PARTS = 6  # of a time in which a slow trend is looked for


@dataclass(frozen=True)
class Rule:
    """The thresholds of one alarm, as the spec or the table below has them."""

    percent: float = math.nan
    duration: float = math.nan  # seconds
    count: float = math.nan
    stop: bool = False
    off: bool = False


@dataclass(frozen=True)
class Kind:
    """One alarm: what it looks for, in words for the documentation, and its defaults."""

    name: str  # also its key below `alarms:` in a spec, with _ for -
    looks_for: str
    default: Rule
    can_stop: bool = True


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("stalled", "no step, no log and no work, or steps that stopped coming", Rule(duration=30 * MINUTE)),
        Kind("gpu-util-below", "all cards are used little", Rule(percent=70, duration=15 * MINUTE)),
        Kind("card-idle", "one of several cards works far less than another", Rule(percent=50, duration=15 * MINUTE)),
        Kind("gpu-memory-above", "a card's memory is nearly full", Rule(percent=95, duration=2 * MINUTE)),
        Kind("throughput-below", "steps come at a fraction of their pace", Rule(percent=50, duration=5 * MINUTE)),
        Kind("slowing", "steps come slower and slower", Rule(percent=20, duration=60 * MINUTE)),
        Kind(
            "machine-slow",
            "steps come slower than on other machines of this kind",
            Rule(percent=80, duration=15 * MINUTE),
        ),
        Kind("scaling", "several cards do far less than as many times one", Rule(percent=60, duration=15 * MINUTE)),
        Kind("leak", "memory of the machine or a card grows and grows", Rule(duration=60 * MINUTE)),
        Kind("no-checkpoint", "no checkpoint in so many of its intervals", Rule(count=2)),
        Kind("throttled", "heat or the power supply slows a card down", Rule(duration=10 * MINUTE)),
        Kind("gpu-lost", "the cards cannot be asked any more", Rule(duration=3 * MINUTE)),
        Kind("disk-full", "the disk of the job is nearly full", Rule(percent=95, duration=2 * MINUTE)),
        Kind("reclaims", "more reclaims within six hours than were to be expected", Rule(count=3), can_stop=False),
        Kind("ttl-near", "the hard end comes before the work is done", Rule(duration=30 * MINUTE), can_stop=False),
        Kind("budget-near", "the budget ends before the work is done", Rule(percent=80), can_stop=False),
    )
}
#: Alarms of a job that burns money without progress: `ps` marks it.
WASTE = frozenset(
    {"stalled", "gpu-util-below", "card-idle", "throughput-below", "scaling", "no-checkpoint", "gpu-lost"}
)


@dataclass(frozen=True)
class Alarm:
    """One alarm: the sentence with its figures, the likely cause, the next step, and whether the spec lets it stop."""

    kind: str
    text: str
    cause: str
    next: str
    stop: bool = False


@dataclass(frozen=True)
class Before:
    """How fast the same code did the same on earlier machines with the same kind of card."""

    paces: Sequence[float] = ()  # steps a second with as many cards, of each machine
    rates: Sequence[tuple[int, float]] = ()  # (cards, throughput in the job's own unit) with fewer, of each machine


@dataclass(frozen=True)
class Look:
    """Everything that the rules may look at, about one run on one machine. Times are UTC; money in the job's own."""

    now: float
    name: str  # of the job, for the next steps
    minutes: Sequence[Point]  # of the machine, oldest first
    cards: int = 0  # rented
    began_at: float | None = None  # the order of the run
    saved_at: float | None = None  # its newest checkpoint
    every_s: float | None = None  # how often it is to save
    total: float | None = None  # its last step
    end: float | None = None  # hard, of the machine or of one of many tasks
    ttl_s: float = math.nan
    spent: float = 0.0
    budget: float | None = None
    hourly: float = 0.0
    money: str = "USD"
    reclaimed_at: Sequence[float] = ()
    reclaims_per_h: float = 0.0  # expected
    launcher: bool = True  # `run` starts one process a card
    serve: bool = False
    warm_s: float | None = None  # the spec's own warm-up
    stepped_at: float = 0.0  # when the step was last seen to be another one, and the log to have grown: a minute's
    logged_at: float = 0.0  # point has the time of its beginning. 0: not seen by this process
    before: Before = Before()
    rules: Mapping[str, Rule] = field(default_factory=dict)

    def rule(self, kind: str) -> Rule:
        """The thresholds that hold: the spec's, and the defaults for what it leaves out."""
        default, own = KINDS[kind].default, self.rules.get(kind)
        if own is None:
            return default
        return Rule(
            own.percent if own.percent == own.percent else default.percent,
            own.duration if own.duration == own.duration else default.duration,
            own.count if own.count == own.count else default.count,
            own.stop,
            own.off,
        )

    @cached_property
    def run(self) -> list[Point]:
        """The minutes of the present `run`: the last ones without another stage between."""
        found: list[Point] = []
        for point in reversed(self.minutes):
            if point.stage != RUNNING or (self.began_at is not None and point.at + MINUTE < self.began_at):
                break
            found.append(point)
        return found[::-1]

    @cached_property
    def fresh(self) -> bool:
        """Whether the run runs now, as far as is known."""
        return bool(self.run) and self.now - self.run[-1].at < FRESH_S

    @cached_property
    def warm_at(self) -> float:
        """From when on the run's pace is its own."""
        first = self.run[0].at
        # Where the minutes reach back to another stage the start was seen; else the run may be older than they are
        seen = len(self.run) < len(self.minutes) or self.began_at is None
        began = first if seen or self.began_at is None else min(first, self.began_at)
        stepped = [p.at for p in self.run if p.step == p.step]
        if not stepped:
            return began + (WARM_WITHOUT_STEPS_S if self.warm_s is None else self.warm_s)
        return min(stepped[0] + (WARM_S if self.warm_s is None else self.warm_s), began + WARM_MAX_S)

    @cached_property
    def calm(self) -> list[Point]:
        """The run's minutes after its warm-up, without those in which a checkpoint was written."""
        run = self.run
        saving = [p.saved > 0 for p in run] + [False]
        return [p for i, p in enumerate(run) if p.at >= self.warm_at and not saving[i] and not saving[i + 1]]

    def last(self, seconds: float) -> list[Point]:
        """The calm minutes of the last `seconds`; none unless enough of them were seen and count."""
        since, wanted = self.now - seconds, seconds / MINUTE
        seen = [p for p in self.run if p.at + MINUTE > since]
        calm = [p for p in self.calm if p.at + MINUTE > since]
        if not self.fresh or self.now - self.warm_at < seconds:
            return []
        return calm if len(seen) >= COVERED * wanted and len(calm) >= CALM * wanted else []

    @cached_property
    def paces(self) -> list[tuple[float, float]]:
        """(time, steps a second) of each calm minute in which steps came."""
        found = []
        calm = {p.at for p in self.calm}
        run = [p for p in self.run if p.step == p.step]
        for before, after in itertools.pairwise(run):
            if after.step > before.step and after.at in calm and after.at - before.at <= 10 * MINUTE:
                found.append((after.at, (after.step - before.step) / (after.at - before.at)))
        return found

    @cached_property
    def left_s(self) -> float | None:
        """Seconds to the last step at the pace of the last hour; None where that is not known."""
        run = [p for p in self.run if p.step == p.step and p.at >= self.now - 3600.0]
        if self.total is None or len(run) < 10 or run[-1].step <= run[0].step:
            return None
        pace = (run[-1].step - run[0].step) / (run[-1].at - run[0].at)
        return max(0.0, self.total - run[-1].step) / pace

    @property
    def price(self) -> str:
        """`at 1.20 USD/h`."""
        return f"at {self.hourly:.2f} {self.money}/h"


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def parts_of(values: Sequence[tuple[float, float]], since: float, seconds: float) -> list[list[float]] | None:
    """The values of each sixth of a time; None when one of them has too few."""
    parts: list[list[float]] = [[] for _ in range(PARTS)]
    for at, value in values:
        parts[min(PARTS - 1, max(0, int((at - since) * PARTS / seconds)))].append(value)
    return parts if all(len(part) >= 3 for part in parts) else None


def hot(minutes: Sequence[Point]) -> list[str]:
    """Why a card was slowed down in each of these minutes; nothing when in one of them none was."""
    every = [[int(c.throttle) for c in p.cards if c.throttle == c.throttle] for p in minutes]
    reasons = sum(HEAT)
    if not every or not all(any(bits & reasons for bits in each) for each in every):
        return []
    seen = {bit for each in every for bits in each for bit in HEAT if bits & bit}
    return [HEAT[bit] for bit in sorted(seen)]


Said = tuple[str, str, str] | None  # the sentence with its figures, the likely cause, the next step
