"""Which lies and losses a world tells: by kind, each with a shape. Drawn from the seed, or given by a test.

Shapes: `once` (the n-th opportunity), `steady` (any opportunity, with a chance), `window` (nearly every opportunity
while a window lasts). A kind of `TIMED` happens by itself, the others when the controller asks for something.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

ASKED = (
    "create-refused", "create-account", "create-busy", "create-lost-made", "create-lost-unmade", "create-twice",
    "create-late-seen", "create-late-birth", "create-never-ready",
    "list-error", "list-flicker", "list-stale", "list-untagged", "list-refused",
    "get-error", "get-missing",
    "destroy-error-undone", "destroy-error-done", "destroy-ignored", "destroy-missing-lie", "destroy-busy",
    "disk-left", "offers-error",
    "ssh-cut", "answer-lost", "prepare-fails", "mirror-fails", "collect-fails", "arm-fails", "expiry-fails",
)  # fmt: skip
TIMED = (
    "preempt-notice", "preempt-silent", "outbid", "hang", "reboot", "agent-killed", "run-vanishes", "ssh-partition",
    "machine-partition", "api-down", "offline", "crash", "crash-long", "suspend", "freeze", "clock-step",
)  # fmt: skip
KINDS = (*ASKED, *TIMED)
SHAPES = ("once", "steady", "window")
#: What the newest machine of ours is at when a fault strikes; `none`: there is none, before the first or between two.
PHASES = ("none", "boot", "setup", "run", "end")
#: Where a kind can strike at all; a kind that is not named can everywhere. A machine is booting when its create is
#: answered, and gone when its destroy is.
REACHES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("create-refused", "create-account", "create-busy", "create-lost-unmade", "create-late-birth", "offers-error"),
        ("none",),
    ),
    **dict.fromkeys(("create-never-ready", "create-twice", "create-late-seen", "create-lost-made"), ("boot",)),
    "list-stale": ("none", "boot", "setup", "run"),  # a machine is as it was a minute ago: it must have changed since
    **dict.fromkeys(("get-error", "get-missing"), ("boot", "setup", "run", "end")),
    **dict.fromkeys(
        ("destroy-error-undone", "destroy-ignored", "destroy-busy", "destroy-missing-lie", "disk-left"),
        ("boot", "setup", "end"),
    ),
    "destroy-error-done": ("none",),
    **dict.fromkeys(("ssh-cut", "answer-lost"), ("setup", "run", "end")),
    **dict.fromkeys(("arm-fails", "expiry-fails"), ("setup", "run")),
    "prepare-fails": ("setup",),
    "mirror-fails": ("run",),
    "collect-fails": ("run", "end"),
    **dict.fromkeys(
        ("preempt-notice", "preempt-silent", "outbid", "hang", "reboot", "agent-killed", "machine-partition"),
        ("setup", "run", "end"),
    ),
    "run-vanishes": ("run",),
}

#: Chance per opportunity of a steady kind, where 0.15 would be unlike any provider or would leave nothing to run.
CHANCES = {"list-flicker": 0.04, "list-stale": 0.1, "list-untagged": 0.04, "list-error": 0.1, "get-missing": 0.05}
#: Mean seconds between two of a steady timed kind.
MEAN_S = {"crash": 5400.0, "preempt-silent": 14_400.0, "preempt-notice": 9_000.0, "outbid": 14_400.0}
WINDOW_S = (300.0, 5400.0)


@dataclass(frozen=True)
class Shape:
    """How one kind occurs in one world."""

    shape: str
    nth: int = 1  # of `once`: which opportunity, or which tenth of the faulty phase for a timed kind
    windows: tuple[tuple[float, float], ...] = ()
    chance: float | None = None  # of `steady`, instead of the kind's
    mean_s: float | None = None  # of a steady timed kind, instead of the kind's


class Faults:
    """What is wrong now. `marks` counts what the world really did to the system: an opportunity is asked for only where
    the fault would change the answer."""

    def __init__(
        self, rng: random.Random, shapes: dict[str, Shape], until: float, where: str = "", brief: bool = False
    ) -> None:
        """`where`: they strike in this phase alone, and a timed one waits for it. `brief`: outages take minutes."""
        self._rng, self.shapes, self.until, self.where = rng, shapes, until, where
        self.brief = brief
        self.refused = 0  # calls that an outage refused: each outage is one fault, whatever it refuses
        self.marks: Counter[tuple[str, str]] = Counter()
        self.phases: Counter[tuple[str, str, str]] = Counter()
        self.phase: Callable[[], str] = lambda: "none"  # the world's, once there is one
        self._seen: Counter[str] = Counter()

    def hits(self, kind: str, now: float) -> bool:
        """Whether this opportunity of an asked kind goes wrong."""
        shape = self.shapes.get(kind)
        if shape is None or now >= self.until or not self.fits():
            return False
        self._seen[kind] += 1
        if shape.shape == "once":
            hit = self._seen[kind] == shape.nth
        elif shape.shape == "steady":
            hit = self._rng.random() < (shape.chance or CHANCES.get(kind, 0.15))
        else:  # `solid`, for tests, is a window without a gap
            inside = any(a <= now < b for a, b in shape.windows)
            hit = inside and (shape.shape == "solid" or self._rng.random() < 0.9)
        if hit:
            self._mark(kind, shape.shape)
        return hit

    def fits(self) -> bool:
        return not self.where or self.where == self.phase()

    def _mark(self, kind: str, shape: str) -> None:
        self.marks[kind, shape] += 1
        self.phases[kind, shape, self.phase()] += 1

    def times(self, kind: str, start: float) -> list[float]:
        """When a timed kind happens, in order."""
        shape = self.shapes.get(kind)
        if shape is None:
            return []
        span = self.until - start
        if shape.shape == "once":
            return [start + span * (shape.nth + self._rng.random()) / 10]
        found, now, mean = [], start, shape.mean_s or MEAN_S.get(kind, 10_800.0)
        if shape.shape == "window":  # a burst: several in a short time
            for a, _ in shape.windows:
                found += [a + self._rng.uniform(0, 900) for _ in range(3)]
            return sorted(t for t in found if t < self.until)
        while True:
            now += self._rng.expovariate(1 / mean)
            if now >= self.until:
                return found
            found.append(now)

    def happened(self, kind: str) -> None:
        """A timed kind took place."""
        shape = self.shapes.get(kind)
        self._mark(kind, shape.shape if shape else "test")


def draw_dense(rng: random.Random, start: float, until: float) -> Faults:
    """Many kinds at once, each often: what a night counts its faults by. Half of all answers may be wrong, and
    something happens to a machine, the network or the controller every few minutes."""
    shapes = {}
    for kind in rng.sample(KINDS, rng.choice((6, 9, 12, 16))):
        if rng.random() < 0.6:
            shapes[kind] = Shape(
                "steady", chance=rng.choice((0.2, 0.35, 0.5)), mean_s=rng.choice((150.0, 400.0, 900.0))
            )
            continue
        windows, at = [], start
        while (at := at + rng.uniform(60.0, 1800.0)) < until:
            windows.append((at, at := at + rng.uniform(60.0, 900.0)))
        shapes[kind] = Shape("window", windows=tuple(windows))
    return Faults(rng, shapes, until, brief=True)


def draw(rng: random.Random, start: float, until: float) -> Faults:
    """A random subset of the kinds, each with a random shape: swarm testing, since all at once hide each other."""
    count = rng.choice((0, 1, 2, 2, 3, 3, 4, 5, 6, 8))
    shapes = {}
    for kind in rng.sample(KINDS, count):
        shape = rng.choice(SHAPES)
        windows = []
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.uniform(start, until)
            windows.append((at, at + rng.uniform(*WINDOW_S)))
        shapes[kind] = Shape(shape, rng.choice((1, 1, 2, 3, 5, 8)), tuple(windows))
    return Faults(rng, shapes, until)
