"""The store of verified checkpoints on this computer: what is in it, what holds, what may go.

    mirror/<n>/parts/<id>/<name>...                  a checkpoint's files, of run n
    mirror/manifests/<n>/<step>-<name>-<id>.json     written last, by rename: what it names is whole
    mirror/manifests/broken/                         manifests that no longer hold, kept for a person
    mirror/trash/                                    what `prune` is about to remove

Rules
- A checkpoint exists when its manifest does.
- Names carry the content's hash: another content under the same name and step never replaces a verified one.
- The only verified checkpoint is never removed, nor one that a seal names, nor one without a verified successor.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from orchestrator.home import Home
from orchestrator.lineage import resume_choice

FORMAT = 1
ID_LENGTH = 16  # hex digits of the manifest's hash in names
NAME_SHOWN = 80  # characters of a checkpoint's name in a manifest's file name


class CheckpointError(Exception):
    """A checkpoint cannot be mirrored or used; the message says why."""


class DamagedCheckpoint(CheckpointError):
    """What the mirror holds is not what was verified: another one must do."""


class StillChanging(CheckpointError):
    """The machine's files changed while they were copied: try again when it has settled."""


@dataclass(frozen=True)
class StoredFile:
    """One file or link of a checkpoint; `path` begins with the checkpoint's name. A link has a `link` text only."""

    path: str
    size: int = 0
    sha256: str = ""
    link: str = ""


@dataclass(frozen=True)
class Manifest:
    """A verified checkpoint. `parent`: hash of the manifest that its run resumed from, None for a fresh start."""

    job: str
    task: str
    n: int
    name: str
    step: int
    files: tuple[StoredFile, ...]
    bytes: int
    parent: str | None
    hash: str

    @property
    def id(self) -> str:
        return self.hash[:ID_LENGTH]


@dataclass(frozen=True)
class Broken:
    """A manifest that was set aside: where it lies now, and why."""

    path: Path
    why: str


@dataclass(frozen=True)
class Listing:
    """All of a task's mirror: the manifests that hold, in order of run and step, and what was set aside."""

    manifests: tuple[Manifest, ...]
    broken: tuple[Broken, ...] = ()


def listing(home: Home, job: str, task: str) -> Listing:
    """Every checkpoint of the mirror whose manifest and file sizes hold; what does not is set aside and named."""
    mirror = home.mirror(job, task)
    found: list[Manifest] = []
    broken: list[Broken] = []
    for path in _manifest_files(mirror):
        try:
            manifest = read_manifest(path)
            why = problem(mirror, manifest)
        except FileNotFoundError:
            continue  # pruned since it was listed
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            why = f"not a manifest: {exc}"
        if not why:
            found.append(manifest)
        elif path.exists():
            aside = mirror / "manifests" / "broken" / path.name
            aside.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, aside)
            broken.append(Broken(aside, why))
    found.sort(key=lambda manifest: (manifest.n, manifest.step, manifest.hash))
    return Listing(tuple(found), tuple(broken))


def prune(
    home: Home, job: str, task: str, keep: int, protected: frozenset[str], over: frozenset[int] = frozenset()
) -> tuple[Manifest, ...]:
    """Remove all but the newest `keep` and the `protected` (hashes); return what was removed.

    `over`: runs of which nothing is being copied any more: the parts of unfinished copies go as well.
    """
    if keep < 1:
        raise ValueError("keep must be at least 1: less would delete every checkpoint")
    mirror = home.mirror(job, task)
    _empty_trash(mirror)
    manifests = listing(home, job, task).manifests
    newest = sorted(manifests, key=lambda manifest: (manifest.n, manifest.step))[-keep:]
    wanted = {manifest.hash for manifest in newest} | protected
    choice = resume_choice(manifests)
    if choice is not None:
        wanted.add(choice.hash)
    removed = tuple(manifest for manifest in manifests if manifest.hash not in wanted)
    for manifest in removed:
        trash = mirror / "trash" / manifest_path(mirror, manifest).name
        trash.parent.mkdir(exist_ok=True)
        os.replace(manifest_path(mirror, manifest), trash)  # from here on it does not exist
    kept = {manifest.id for manifest in manifests} - {manifest.id for manifest in removed}
    for n in over:
        for parts in _folders(mirror / str(n) / "parts"):
            if parts.name not in kept:
                shutil.rmtree(parts)
    _empty_trash(mirror)
    return removed


def content_hash(manifest: Manifest) -> str:
    """SHA-256 over everything but the hash itself; no time is in it, so a repeated copy has the same one."""
    shown = {"format": FORMAT, **asdict(manifest)}
    del shown["hash"]
    return hashlib.sha256(json.dumps(shown, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def to_bytes(manifest: Manifest) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(manifest)}, sort_keys=True, indent=1).encode() + b"\n"


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file; ValueError and its like when it is not one, or not the one that its hash says."""
    shown = json.loads(path.read_bytes())
    if shown.pop("format") != FORMAT:
        raise ValueError("another format")
    files = tuple(StoredFile(**file) for file in shown.pop("files"))
    manifest = Manifest(files=files, **shown)
    if content_hash(manifest) != manifest.hash:
        raise ValueError("its hash does not hold")
    return manifest


def problem(mirror: Path, manifest: Manifest) -> str:
    """Why the stored files are not those of the manifest, by names and sizes; "" when they are."""
    parts = parts_of(mirror, manifest)
    for file in manifest.files:
        try:
            info = (parts / file.path).lstat()
        except FileNotFoundError:
            return f"{file.path} is missing"
        if not file.link and info.st_size != file.size:
            return f"{file.path} has {info.st_size} bytes instead of {file.size}"
    return ""


def parts_of(mirror: Path, manifest: Manifest) -> Path:
    return mirror / str(manifest.n) / "parts" / manifest.id


def manifest_path(mirror: Path, manifest: Manifest) -> Path:
    name = quote(manifest.name, safe="")[:NAME_SHOWN]
    return mirror / "manifests" / str(manifest.n) / f"{manifest.step:012d}-{name}-{manifest.id}.json"


def _manifest_files(mirror: Path) -> Iterator[Path]:
    for folder in _folders(mirror / "manifests"):
        if folder.name != "broken":
            yield from (
                path for path in sorted(folder.iterdir()) if path.name.endswith(".json") and path.name[0] != "."
            )


def _folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir()) if path.is_dir() else []


def _empty_trash(mirror: Path) -> None:
    """Remove the files of discarded manifests, then these; also what an earlier life had begun."""
    trash = mirror / "trash"
    if not trash.is_dir():
        return
    for path in sorted(trash.iterdir()):
        with contextlib.suppress(
            ValueError, KeyError, TypeError, AttributeError
        ):  # an unreadable one has lost its files' place
            shutil.rmtree(parts_of(mirror, read_manifest(path)), ignore_errors=True)
        path.unlink()
