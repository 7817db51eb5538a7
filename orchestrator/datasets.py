"""Manifests of local data: what was there at apply, what landed on the machine, and what is different.

Large files are hashed by samples: data of a terabyte must not be read twice before a machine is even rented. rsync
checks every byte in transit itself, so the check on landing is about names, sizes and the files hashed whole.
Links are followed, as the copy does (`rsync --copy-links`): data folders are often farms of links.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WHOLE_MAX = 64 * 1024 * 1024  # bytes of a file that is hashed whole
SAMPLE = 1024 * 1024
SAMPLES = 5


class DataError(Exception):
    """The data cannot be read; the message says what to do."""


@dataclass(frozen=True)
class DataFile:
    """One file; `sampled`: the hash covers its size and some of its bytes."""

    path: str
    size: int
    sha256: str
    sampled: bool = False


@dataclass(frozen=True)
class DataManifest:
    """All files of one data source, and a hash over them."""

    count: int
    bytes: int
    hash: str
    files: tuple[DataFile, ...]


def manifest_of(path: Path) -> DataManifest:
    """The manifest of a folder, or of one file under its own name. Raises DataError."""
    if not path.exists():
        raise DataError(f"data {path} does not exist")
    if path.is_dir():
        found = sorted(_files(path, "", ()), key=lambda item: os.fsencode(item[0]))
    else:
        found = [(path.name, path)]
    try:
        files = tuple(_hashed(name, each) for name, each in found)
    except OSError as exc:
        raise DataError(f"data {exc.filename or path} cannot be read: {exc.strerror}") from None
    text = "".join(f"{file.sha256} {file.size} {file.path}\0" for file in files)
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return DataManifest(len(files), sum(file.size for file in files), digest, files)


def _files(root: Path, folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, Path]]:
    info = os.stat(root / folder)
    here = (info.st_dev, info.st_ino)
    if here in above:
        raise DataError(f"data {root / folder} is a link to a folder that it lies in: remove it")
    for name in os.listdir(root / folder):
        path = f"{folder}/{name}" if folder else name
        full = root / path
        if full.is_dir():
            yield from _files(root, path, (*above, here))
        elif full.is_file():
            yield path, full
        elif full.is_symlink():
            raise DataError(f"data {full} is a link to nothing: remove it or what it names is missing")


def _hashed(name: str, path: Path) -> DataFile:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE_MAX:
            return DataFile(name, size, hashlib.file_digest(file, "sha256").hexdigest())
        hasher = hashlib.sha256(str(size).encode())
        for sample in range(SAMPLES):
            file.seek((size - SAMPLE) * sample // (SAMPLES - 1))
            hasher.update(file.read(SAMPLE))
    return DataFile(name, size, hasher.hexdigest(), sampled=True)


def compare(manifest: DataManifest, found: Iterable[Mapping[str, Any]]) -> list[str]:
    """What differs from `found`, the agent's list of files ({"path", "size", "sha256"}); empty: all landed."""
    there = {str(file["path"]): file for file in found}
    differences = []
    for file in manifest.files:
        other = there.pop(file.path, None)
        if other is None or "link" in other:
            differences.append(f"{file.path} is missing")
        elif other.get("size") != file.size:
            differences.append(f"{file.path} has {other.get('size')} bytes instead of {file.size}")
        elif not file.sampled and other.get("sha256") and other["sha256"] != file.sha256:
            differences.append(f"{file.path} has other bytes")
    return differences + [f"{path} is not part of the data" for path in sorted(there)]


def changes(before: DataManifest, now: DataManifest) -> list[str]:
    """What changed on this computer since `before` was recorded; empty: nothing."""
    old = {file.path: file for file in before.files}
    new = {file.path: file for file in now.files}
    gone = [f"{path} was removed" for path in old if path not in new]
    made = [f"{path} is new" for path in new if path not in old]
    changed = [f"{path} was changed" for path in old if path in new and old[path] != new[path]]
    return gone + changed + made
