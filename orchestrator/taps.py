"""Named points at which a controller may die: before and after every effect, every commit and every receipt.

In production `tap` does nothing. A test installs a function that ends the process (or the simulated one) at the n-th
point or at a named one; `tests/crash` does so at each of them, so a point that is not in `NAMES` is refused there.
"""

from __future__ import annotations

from collections.abc import Callable

#: Effects by the name of their action; each has a point before it reaches the world, after it, and at its receipt.
EFFECTS = (
    "AskOffers",
    "SendCreate",
    "Look",
    "Destroy",
    "MoveEnd",
    "Prepare",
    "SendOrder",
    "SendSignal",
    "SendClose",
    "MirrorCheckpoints",
    "CollectResults",
    "ListMirror",
)

NAMES = frozenset(
    [f"effect/{name}/{point}" for name in EFFECTS for point in ("before", "after", "received")]
    + ["commit/before", "commit/after", "decided"]
)

_hook: Callable[[str], None] | None = None


def tap(name: str) -> None:
    """The controller passes the point `name`."""
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Have `hook` called at every point; None: nothing happens any more. For tests only."""
    global _hook
    _hook = hook
