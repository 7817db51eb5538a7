"""How far the copies of one piece of work are, told to the loop a few times a second while they last.

Rules: called by the thread that reads rsync, so it only puts a message on the queue. A copy that is over at once is not
told at all; what was told is taken back when the work ends, however it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from orchestrator.messages import TransferSeen
from orchestrator.sync import Progress

TELL_EVERY_S = 0.5  # the eye needs no more, and a thousand jobs may copy at once
NAME_SHOWN = 60  # characters of a name, which may be a machine's own


class Teller:
    """Tells of the copies of one run; a context that ends with the work."""

    def __init__(
        self,
        post: Callable[[TransferSeen], None],
        rental: str,
        run: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post, self._rental, self._run, self._now = post, rental, run, now
        self._told = False

    def __enter__(self) -> Teller:
        return self

    def __exit__(self, *_: object) -> None:
        if self._told:
            self._post(TransferSeen(self._rental, self._run, ""))

    def of(self, what: str, total: int | None = None) -> Callable[[Progress], None]:
        """What to call with the progress of one copy. `total`: its bytes where they are known better than by rsync."""
        words = "".join(each if each.isprintable() else "?" for each in what[:NAME_SHOWN])
        last: float | None = None

        def tell(seen: Progress) -> None:
            nonlocal last
            now = self._now()
            if last is None:
                last = now
            if now - last < TELL_EVERY_S:
                return
            last, self._told = now, True
            self._post(TransferSeen(self._rental, self._run, words, seen.bytes, total or seen.total, seen.rate))

        return tell
