"""Manifests that machines wrote into a store: read with suspicion, and turned into the mirror's own.

Rules: what a machine writes is a stranger's. Names stay inside of the checkpoint, pieces cover each file exactly, and
objects lie below the run's own prefix; only run 0, which the controller writes, may point to another job's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator import sync
from orchestrator.mirror import Manifest, StoredFile, content_hash
from orchestrator.resume import INHERITED
from orchestrator.ssh_errors import Unsafe

FORMAT = 1
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
MD5 = re.compile(r"[0-9a-f]{32}\Z")
OBJECT = re.compile(r"(o/[0-9a-f]{64}|s/\d{6,9})\Z")
STEP_MAX = 2**53


class NotAManifest(ValueError):
    """What lies there is no manifest to resume from; the message says why."""


@dataclass(frozen=True)
class ObjectRef:
    """One object of a checkpoint: its whole key, and what it must be."""

    key: str
    size: int
    sha256: str
    md5: str


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint in a store. `pieces`: for each file (object, offset in it, length), in the file's order. `mark`:
    name, bytes and time by which the machine's own list knows it."""

    manifest: Manifest
    objects: tuple[ObjectRef, ...]
    pieces: tuple[tuple[tuple[int, int, int], ...], ...]
    key: str  # of the manifest itself
    mark: tuple[str, int, float]
    best: str = ""  # the name of the best one so far, as this one's format tells it

    def by_object(self) -> list[list[tuple[str, int, int]]]:
        """For each object its pieces of files as (path, offset in the file, length), in the object's order."""
        found: list[list[tuple[int, str, int, int]]] = [[] for _ in self.objects]
        for file, pieces in zip(self.manifest.files, self.pieces, strict=True):
            at = 0
            for number, offset, length in pieces:
                found[number].append((offset, file.path, at, length))
                at += length
        return [[(path, at, length) for _, path, at, length in sorted(each)] for each in found]


def parse(data: bytes, job: str, task: str, n: int, key: str, root: str) -> StoredCheckpoint:
    """The manifest at `key` of the run whose prefix is `root`. NotAManifest when it is none, or another's."""
    try:
        shown = json.loads(data)
        if shown["format"] != FORMAT or (shown["job"], shown["task"], shown["n"]) != (job, task, n):
            raise NotAManifest("it is of another job, run or format")
        base = root
        if "root" in shown:
            if n != INHERITED:
                raise NotAManifest("it points outside of its run")
            base = _text(shown["root"])
        objects = tuple(_object(each, base) for each in shown["objects"])
        name, files, pieces = _text(shown["name"]), [], []
        for row in shown["files"]:
            file, parts = _file(row, name, objects)
            files.append(file)
            pieces.append(parts)
        _cover(pieces, objects)
        links = [file.path for file in files if file.link]
        if sync.refuse_under_links({file.path: None for file in files}, links):
            raise NotAManifest("a file lies below a link")
        if len({file.path for file in files}) != len(files):
            raise NotAManifest("a file is named twice")
        step, size, parent = shown["step"], sum(file.size for file in files), shown.get("parent")
        if not isinstance(step, int) or not 0 <= step < STEP_MAX or not size:
            raise NotAManifest("it has no step, or no bytes")
        if parent is not None and not SHA256.match(_text(parent)):
            raise NotAManifest("its parent is no hash")
        mark = shown["mark"]
        bare = Manifest(job, task, n, name, step, tuple(files), size, parent, "")
        manifest = replace(bare, hash=content_hash(bare))
        known = (_text(mark[0]), int(mark[1]), float(mark[2]))
        return StoredCheckpoint(manifest, objects, tuple(pieces), key, known, _text(shown.get("best", "")))
    except NotAManifest:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, Unsafe, RecursionError) as error:
        raise NotAManifest(f"it cannot be read: {type(error).__name__}: {str(error)[:200]}") from error


def inherited(found: StoredCheckpoint, root: str, job: str) -> dict[str, Any]:
    """The document of the same checkpoint as run 0 of a later job; its objects stay where they are (below `root`)."""
    names = [ref.key.removeprefix(f"{root}/") for ref in found.objects]
    files: list[dict[str, Any]] = []
    for file, pieces in zip(found.manifest.files, found.pieces, strict=True):
        row = {"path": file.path, "link": file.link} if file.link else {"path": file.path, "size": file.size}
        files.append(row if file.link else {**row, "sha256": file.sha256, "at": [list(each) for each in pieces]})
    return {
        "format": FORMAT, "job": job, "task": found.manifest.task, "n": INHERITED, "name": found.manifest.name,
        "step": found.manifest.step, "parent": None, "root": root, "mark": list(found.mark),
        "best": found.best, "files": files,
        "objects": [
            {"key": name, "size": ref.size, "sha256": ref.sha256, "md5": ref.md5}
            for name, ref in zip(names, found.objects, strict=True)
        ],
    }  # fmt: skip


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 4096:
        raise NotAManifest(f"{str(value)[:40]!r} is not a name")
    return value


def _object(row: Mapping[str, Any], root: str) -> ObjectRef:
    name, size = _text(row["key"]), row["size"]
    good = OBJECT.match(name) and SHA256.match(_text(row["sha256"])) and MD5.match(_text(row["md5"]))
    if not good or not isinstance(size, int) or size <= 0:
        raise NotAManifest(f"{name[:80]!r} is no object of a checkpoint")
    return ObjectRef(f"{root}/{name}", size, row["sha256"], row["md5"])


def _file(
    row: Mapping[str, Any], name: str, objects: tuple[ObjectRef, ...]
) -> tuple[StoredFile, tuple[tuple[int, int, int], ...]]:
    path = sync.safe_name(_text(row["path"]))
    if "/" in name or (path != name and not path.startswith(f"{name}/")):
        raise NotAManifest(f"{path[:80]!r} is not in the checkpoint")
    if "link" in row:
        return StoredFile(path, link=sync.safe_link(path, _text(row["link"]), floor=1)), ()
    size, digest = row["size"], _text(row["sha256"])
    parts = tuple((int(at[0]), int(at[1]), int(at[2])) for at in row["at"])
    if not isinstance(size, int) or size < 0 or not SHA256.match(digest):
        raise NotAManifest(f"{path[:80]!r} has no size or hash")
    for number, offset, length in parts:
        if not (0 <= number < len(objects) and offset >= 0 and 0 < length <= objects[number].size - offset):
            raise NotAManifest(f"{path[:80]!r} has a piece outside of its object")
    if sum(length for _, _, length in parts) != size:
        raise NotAManifest(f"the pieces of {path[:80]!r} are not all of it")
    return StoredFile(path, size, digest), parts


def _cover(pieces: list[tuple[tuple[int, int, int], ...]], objects: tuple[ObjectRef, ...]) -> None:
    """Every object is used from its first byte to its last, once: what comes down can be written as it comes."""
    used: list[list[tuple[int, int]]] = [[] for _ in objects]
    for parts in pieces:
        for number, offset, length in parts:
            used[number].append((offset, length))
    for each, ref in zip(used, objects, strict=True):
        at = 0
        for offset, length in sorted(each):
            if offset != at:
                raise NotAManifest("pieces overlap or leave a gap")
            at += length
        if at != ref.size:
            raise NotAManifest("an object has more bytes than its files")
