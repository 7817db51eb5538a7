"""Which verified checkpoint a run resumes from: lineage first, then the step, as numbers. Pure.

The trunk is the line of the newest run that has checkpoints: its own, and of each run that it descends from those up
to the step that was resumed from. What an earlier run wrote after its successor had branched off is not on it, so a
stale machine's late write is harmless. On the trunk the furthest step wins.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

# The agent judges siblings by the same shapes (`agent.names`), which the layers below it may not import
NUMBER = re.compile(r"\d+")
HASH = re.compile(r"(?<![0-9a-z])[0-9a-f]{16,}(?![0-9a-z])")


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
    (names with their numbers taken out), or has fewer of a kind, was not finished (B115). At most one of each run, so
    that a layout that changes on purpose costs one checkpoint and not all.
    """
    found = []
    for n in sorted({manifest.n for manifest in seal}):
        own = sorted((m for m in seal if m.n == n), key=lambda m: m.step)
        if len(own) < 2:
            continue
        missing = lacks(shapes(_inner(own[-2])), shapes(_inner(own[-1])))
        if missing:
            found.append((own[-1], f"it lacks {missing}, which {own[-2].name} has: probably not finished"))
    return tuple(found)


def _inner(manifest: Manifest) -> list[str]:
    """File names below the checkpoint's own."""
    return [name for name in (file.path.partition("/")[2] for file in manifest.files) if name]


def shapes(paths: Iterable[str]) -> Counter[str]:
    """How many files of each name with its numbers as `#`. Of those named by a hash (`@`) the number says nothing."""
    found = Counter(NUMBER.sub("#", HASH.sub("@", path)) for path in paths)
    return Counter({shape: 1 if "@" in shape else count for shape, count in found.items()})


def lacks(earlier: Counter[str], later: Counter[str]) -> str:
    """What `later` has not, or has fewer of, than its earlier sibling; "" where nothing is missing."""
    for shape, count in sorted(earlier.items()):
        if later[shape] < count:
            return shape if not later[shape] else f"{count - later[shape]} of {count} {shape}"
    return ""
