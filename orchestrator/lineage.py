"""Which verified checkpoint a run resumes from: lineage first, then the step, as numbers. Pure.

The trunk is the line of the newest run that has checkpoints: its own, and of each run that it descends from those up
to the step that was resumed from. What an earlier run wrote after its successor had branched off is not on it, so a
stale machine's late write is harmless. On the trunk the furthest step wins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar

NUMBER = re.compile(r"\d+")


class Checkpoint(Protocol):
    """What lineage looks at; rows of the books and manifests of the mirror both have it."""

    @property
    def n(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def hash(self) -> str: ...
    @property
    def parent(self) -> str | None: ...


class File(Protocol):
    """One file of a checkpoint; its path begins with the checkpoint's name."""

    @property
    def path(self) -> str: ...


class Manifest(Checkpoint, Protocol):
    """A checkpoint with its files."""

    @property
    def name(self) -> str: ...
    @property
    def files(self) -> Sequence[File]: ...


C = TypeVar("C", bound=Checkpoint)
M = TypeVar("M", bound=Manifest)


def resume_order(seal: Sequence[C]) -> list[C]:
    """The trunk of `seal`, the best to resume from first."""
    if not seal:
        return []
    by_hash = {manifest.hash: manifest for manifest in seal}
    n, limit = max(manifest.n for manifest in seal), None
    trunk: list[C] = []
    seen: set[int] = set()
    while n not in seen:  # damaged lineage must not turn in circles
        seen.add(n)
        own = [m for m in seal if m.n == n and (limit is None or m.step <= limit)]
        trunk += own
        parent = next((by_hash[m.parent] for m in seal if m.n == n and m.parent in by_hash), None)
        if parent is None:
            break
        n, limit = parent.n, parent.step
    return sorted(trunk, key=lambda m: (m.step, m.n, m.hash), reverse=True)


def resume_choice(seal: Sequence[M]) -> M | None:
    """The checkpoint to resume from, None without any."""
    over = {manifest.hash for manifest, _ in passed_over(seal)}
    return next((manifest for manifest in resume_order(seal) if manifest.hash not in over), None)


def passed_over(seal: Sequence[M]) -> tuple[tuple[M, str], ...]:
    """Checkpoints that are not resumed from although they are the furthest, each with the reason.

    Only the last one of a run can be one that it was killed in: a folder that lacks a file which the one before had
    (names with their numbers taken out) was not finished (B115). At most one of each run, so that a layout
    that changes on purpose costs one checkpoint and not all.
    """
    found = []
    for n in sorted({manifest.n for manifest in seal}):
        own = sorted((m for m in seal if m.n == n), key=lambda m: m.step)
        if len(own) < 2:
            continue
        missing = sorted(_shapes(own[-2]) - _shapes(own[-1]))
        if missing:
            found.append((own[-1], f"it lacks {missing[0]}, which {own[-2].name} has: probably not finished"))
    return tuple(found)


def _shapes(manifest: Manifest) -> frozenset[str]:
    """File names below the checkpoint's own, with every number as `#`."""
    inner = (file.path.partition("/")[2] for file in manifest.files)
    return frozenset(NUMBER.sub("#", name) for name in inner if name)
