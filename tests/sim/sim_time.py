"""Virtual time: one heap of timed events, and the controller's three clocks over it.

The heap's own time is the truth. What the controller's computer shows may differ: its wall clock can be set, and its
awake clock stands still while it sleeps. Events of one moment run in the order in which they were scheduled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from threading import Event
from typing import Any

T0 = 1_800_000_000.0  # UTC when every world begins


class Timer:
    """One scheduled call; `cancel` makes it nothing."""

    __slots__ = ("args", "at", "call", "dead")

    def __init__(self, at: float, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.at, self.call, self.args, self.dead = at, call, args, False

    def cancel(self) -> None:
        self.dead = True


class Heap:
    """The truth about time, and what is to happen."""

    def __init__(self) -> None:
        self.now = T0
        self._count = 0
        self._queue: list[tuple[float, int, Timer]] = []

    def at(self, at: float, call: Callable[..., None], *args: Any) -> Timer:
        """Call at a true time; a past one means now."""
        timer = Timer(max(at, self.now), call, args)
        self._count += 1
        heapq.heappush(self._queue, (timer.at, self._count, timer))
        return timer

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> Timer:
        return self.at(self.now + seconds, call, *args)

    def step(self, until: float) -> bool:
        """Run the next event that is not later than `until`; False, and the time is `until`, when there is none."""
        while self._queue and self._queue[0][0] <= until:
            at, _, timer = heapq.heappop(self._queue)
            if timer.dead:
                continue
            self.now = at
            timer.call(*timer.args)
            return True
        self.now = max(self.now, until)
        return False


class SimClock:
    """The clocks of the controller's computer."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self.skew = 0.0  # of the wall clock
        self.slept = 0.0  # all sleeps that are over
        self.asleep_since: float | None = None

    def utc(self) -> float:
        return self._heap.now + self.skew

    def boot(self) -> float:
        return self._heap.now - T0 + 1000.0

    def awake(self) -> float:
        now = self._heap.now if self.asleep_since is None else self.asleep_since
        return now - T0 + 500.0 - self.slept

    def true(self, boot: float) -> float:
        """The true time of one of its boot times."""
        return boot - 1000.0 + T0

    def sleep_until(self, boot: float, wake: Event) -> bool:
        raise AssertionError("a simulated controller never waits")
