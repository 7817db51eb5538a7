"""Time, injected: three clocks that differ in what a sleep of the computer does to them.

    utc      what ends are compared with; people and NTP may set it
    boot     CLOCK_BOOTTIME: never set, goes on while the computer sleeps; paces the loop
    awake    CLOCK_MONOTONIC: never set, stands still while the computer sleeps (cpython#106940)

Their differences tell what happened: boot without awake is a sleep, utc without boot a set clock. After either the
loop first looks and then acts. A wait is cut into slices, since `Event.wait` counts awake time: after a sleep it would
wait on for what was left.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Event
from typing import Protocol

SLICE_S = 60.0  # the longest that a wake-up can be late after the computer slept
SLEPT_S = 5.0  # less than this is the two clocks being read one after the other
STEPPED_S = 2.0  # NTP slews smaller differences, and no end cares for them
LATE_S = 30.0  # a loop that comes so much too late was stopped, swapped out or starved

# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC goes on during sleep, while time.monotonic() does not.
_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """What the controller knows of time; all in seconds."""

    def utc(self) -> float:
        """Since the epoch."""
        ...

    def boot(self) -> float:
        """Since some moment, sleep included."""
        ...

    def awake(self) -> float:
        """Since some moment, sleep left out."""
        ...

    def sleep_until(self, boot: float, wake: Event) -> bool:
        """Wait until that boot time or until `wake` is set; True when woken. The caller clears the event."""
        ...


class SystemClock:
    """This computer's clocks."""

    def utc(self) -> float:
        return time.time()

    def boot(self) -> float:
        return time.clock_gettime(_BOOT)

    def awake(self) -> float:
        return time.monotonic()

    def sleep_until(self, boot: float, wake: Event) -> bool:
        while not wake.is_set():
            left = boot - self.boot()
            if left <= 0:
                return False
            wake.wait(min(left, SLICE_S))
        return True


class FakeClock:
    """A clock that moves only when told to; waiting moves it to the end of the wait at once."""

    def __init__(self, utc: float = 1_800_000_000.0, boot: float = 1000.0, awake: float = 500.0) -> None:
        self._utc, self._boot, self._awake = utc, boot, awake

    def utc(self) -> float:
        return self._utc

    def boot(self) -> float:
        return self._boot

    def awake(self) -> float:
        return self._awake

    def advance(self, seconds: float) -> None:
        """Ordinary time passes."""
        self._utc, self._boot, self._awake = self._utc + seconds, self._boot + seconds, self._awake + seconds

    def suspend(self, seconds: float) -> None:
        """The computer sleeps for so long."""
        self._utc, self._boot = self._utc + seconds, self._boot + seconds

    def step(self, seconds: float) -> None:
        """Somebody sets the wall clock by so much, either way."""
        self._utc += seconds

    def sleep_until(self, boot: float, wake: Event) -> bool:
        if wake.is_set():
            return True
        self.advance(max(0.0, boot - self._boot))
        return False


@dataclass(frozen=True)
class Gap:
    """Time that was not as planned since the last look, in seconds; at least one part is past its threshold."""

    slept_s: float = 0.0  # the computer was suspended
    stepped_s: float = 0.0  # the wall clock was set, negative: back
    late_s: float = 0.0  # the loop came so much later than it meant to, awake

    def __str__(self) -> str:
        """For the journal: "slept 28800 s, clock set by -3600 s"."""
        parts = (
            f"slept {self.slept_s:.0f} s" if self.slept_s else "",
            f"clock set by {self.stepped_s:+.0f} s" if self.stepped_s else "",
            f"came {self.late_s:.0f} s late" if self.late_s else "",
        )
        return ", ".join(part for part in parts if part)


class GapDetector:
    """Compares the three clocks at each turn of the loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = self._read()

    def _read(self) -> tuple[float, float, float]:
        return self._clock.utc(), self._clock.boot(), self._clock.awake()

    def look(self, due: float | None = None) -> Gap | None:
        """The gap since the last look, or None. `due` is the boot time at which the loop had meant to be here."""
        now = self._read()
        utc, boot, awake = (new - old for new, old in zip(now, self._last, strict=True))
        self._last = now
        slept, stepped = boot - awake, utc - boot
        late = 0.0 if due is None else now[1] - due - max(0.0, slept)
        gap = Gap(
            slept_s=slept if slept >= SLEPT_S else 0.0,
            stepped_s=stepped if abs(stepped) >= STEPPED_S else 0.0,
            late_s=late if late >= LATE_S else 0.0,
        )
        return gap if gap != Gap() else None
