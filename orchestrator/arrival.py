"""In which order a machine's files are brought, and which of their names are one name on this computer.

What says how a run went is worth most and weighs least; logs and traces are worth least, however small: an end may come
before all is here.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

VITAL = re.compile(
    r"(metrics?|results?|summary|scores?|eval|manifest|report)\b.*\.(jsonl?|csv|tsv|ya?ml|txt|md)|.*\.gpujob-manifest\.json",
    re.IGNORECASE,
)
BULK = re.compile(
    r"(.*\.(log|out|err|trace|prof|nsys-rep|tmp|core)(\.\d+)?|events\.out\.tfevents\..*|core\.\d+)\Z", re.IGNORECASE
)
BULK_FOLDERS = frozenset({"logs", "log", "wandb", "runs", "lightning_logs", "tb", "tensorboard", "profile", "traces"})
SIZES = (1000**2, 64 * 1000**2)  # bytes: small, middling, large files are brought one after another


def by_value(files: Iterable[tuple[str, str, dict[str, Any]]]) -> Iterator[tuple[str, list[str]]]:
    """(place, path, entry) as (place, paths) in the order in which they are brought: by what they are worth, then by
    size."""
    found: dict[tuple[int, str], list[tuple[int, str]]] = {}
    for label, path, file in files:
        size = int(file.get("size") or 0)
        found.setdefault((rank_of(path, size), label), []).append((size, path))
    for (_, label), sized in sorted(found.items()):
        yield label, [path for _, path in sorted(sized)]


def rank_of(path: str, size: int) -> int:
    """0: what says how the run went; then files by size; logs and traces last, however small."""
    parts = PurePosixPath(path).parts
    if BULK_FOLDERS & set(parts[:-1]) or BULK.match(parts[-1]):
        return len(SIZES) + 2
    if VITAL.match(parts[-1]) and size <= SIZES[-1]:
        return 0
    return 1 + sum(size > limit for limit in SIZES)


def collisions(paths: Iterable[str]) -> list[tuple[str, str]]:
    """(kept, refused): paths that are one on a file system which folds case, parents included."""
    spelled: dict[str, str] = {}
    found = []
    for path in sorted(paths):
        steps = [path[: at or None] for at in (*(at for at, char in enumerate(path) if char == "/"), 0)]
        other = next((spelled[_folded(step)] for step in steps if spelled.get(_folded(step), step) != step), None)
        if other is not None:
            found.append((other, path))
        else:
            spelled.update((_folded(step), step) for step in steps)
    return found


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()


def folds_case(folder: Path) -> bool:
    """Whether names that differ in case only are one in the nearest folder above that exists."""
    place = next(each for each in (folder, *folder.parents) if each.is_dir())
    probe = place / f".gpujob-Case-{os.getpid()}"
    try:
        probe.touch()
    except OSError:
        return False  # nothing can be written there, which is said when it is tried
    try:
        return os.path.lexists(place / probe.name.lower())
    finally:
        probe.unlink(missing_ok=True)
