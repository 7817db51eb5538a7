"""What the local provider knows, as files: one folder a machine, one small file for each dead one.

    <home>/lock                  held (flock) while a machine is made known, buried or counted
    <home>/spot-count.json       how many spot machines each job has had, for a reclaim's `attempt=N`
    <home>/machines/<id>/        machine.json, ctl/ (of pid 1), etc/ (the machine reads it), root/ (its own)
    <home>/dead/<id>.json        the tombstone: record, last status, when
    <home>/trash/<id>            on its way out: everything else is already true without it

Rules
- These files are the whole account: gpujob's own books are never read, so they can be lost without harm here.
- A file is written beside its place and renamed, so no reader, in whatever process, sees half of it.
- A machine's folder appears by one rename, before any of its processes starts: what runs is listed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from providers.base import Tag

DEAD_LISTED_S = 600.0
# An unfinished build older than this belongs to a creator that is dead: a build takes some 20 ms.
ABANDONED_BUILD_S = 120.0
REMOVE_TRIES = 5


@dataclass(frozen=True)
class Record:
    """What was rented, fixed at create. `hourly` is decimal text in USD; `host_key` a public key line."""

    id: str
    region: str
    key: str
    spot: bool
    hourly: str
    created_at: float
    mode: str
    user: str
    port: int
    host_key: str
    tag: dict[str, str]
    stand_in: bool = False
    gpu: str = ""
    gpu_count: int = 0
    boots: int = 1

    def as_tag(self) -> Tag:
        return Tag(**self.tag)


@dataclass(frozen=True)
class Tombstone:
    """A machine that is no more, kept so that a point-get can tell how it ended.

    It is listed for `DEAD_LISTED_S` from when it was first seen dead: whoever was away all night still learns it.
    """

    record: Record
    status: str
    at: float  # when it died
    seen_at: float


def write_atomic(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace `path` as a whole. The name beside it is this thread's own: writers never share a temporary."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as out:
        out.write(text)
    os.replace(beside, path)


def read_text(path: Path) -> str | None:
    """The file's text, or None where it is not there (any more)."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None


def load(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where there is none. A power cut can leave an empty file: no machine outlives it."""
    try:
        found = json.loads(read_text(path) or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class World:
    """All machines under one local home. Methods are safe across threads and processes."""

    home: Path

    @property
    def machines(self) -> Path:
        return self.home / "machines"

    @property
    def dead(self) -> Path:
        return self.home / "dead"

    def folder(self, machine_id: str) -> Path:
        return self.machines / machine_id

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the world's lock: short sections only, never across a wait for a process."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def build(self, machine_id: str) -> Path:
        """A fresh folder that no listing shows yet."""
        self.machines.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = self.machines / f".new-{machine_id}"
        folder.mkdir(mode=0o700)
        return folder

    def publish(self, building: Path, record: Record) -> Path:
        """Make the machine known; from here on its folder has its final path."""
        write_atomic(building / "machine.json", json.dumps(asdict(record)))
        final = self.folder(record.id)
        os.rename(building, final)
        return final

    def ids(self) -> list[str]:
        """Ids of all machines that have a folder, in any state."""
        try:
            names = os.listdir(self.machines)
        except FileNotFoundError:
            return []
        return sorted(name for name in names if not name.startswith("."))

    def record(self, machine_id: str) -> Record | None:
        found = load(self.folder(machine_id) / "machine.json")
        return None if found is None else Record(**found)

    def update(self, record: Record) -> None:
        write_atomic(self.folder(record.id) / "machine.json", json.dumps(asdict(record)))

    def tombstone(self, machine_id: str, now: float) -> Tombstone | None:
        """The dead machine's last word, as long as it is listed."""
        raw = load(self.dead / f"{machine_id}.json")
        if raw is None:
            return None
        stone = Tombstone(Record(**raw["record"]), raw["status"], raw["at"], raw["seen_at"])
        return stone if now - stone.seen_at < DEAD_LISTED_S else None

    def tombstones(self, now: float) -> list[Tombstone]:
        """All dead machines still listed; older ones are deleted on the way."""
        found = []
        for path in sorted(self.dead.glob("*.json")):
            stone = self.tombstone(path.stem, now)
            if stone is None:
                path.unlink(missing_ok=True)
            else:
                found.append(stone)
        return found

    def bury(self, record: Record, status: str, at: float, seen_at: float) -> None:
        """Replace a dead machine's folder by a tombstone. The caller has seen that no process is left.

        The first to bury decides the status; a second one, in whatever process, changes nothing.
        """
        folder, trash = self.folder(record.id), self.home / "trash" / record.id
        stone = Tombstone(record, status, at, seen_at)
        with self.locked():
            if not folder.exists():
                return
            try:
                self._set_stone(stone)
                told = True
            except OSError:
                told = False  # the disk is full, as likely as not of this machine's files: they go first
            trash.parent.mkdir(exist_ok=True, mode=0o700)
            os.rename(folder, trash)
        remove_tree(trash)
        if not told:
            self._set_stone(stone)

    def _set_stone(self, stone: Tombstone) -> None:
        self.dead.mkdir(exist_ok=True, mode=0o700)
        write_atomic(self.dead / f"{stone.record.id}.json", json.dumps(asdict(stone)))

    def next_spot_ordinal(self, deployment: str, job: str) -> int:
        """1 for a job's first spot machine, 2 for its second, and so on."""
        path = self.home / "spot-count.json"
        with self.locked():
            counts = load(path) or {}
            name = f"{deployment}/{job}"
            counts[name] = counts.get(name, 0) + 1
            write_atomic(path, json.dumps(counts))
        return int(counts[name])

    def sweep_leftovers(self, now: float) -> None:
        """Remove what a killed creator or burier left half-way."""
        for folder in (*self.machines.glob(".new-*"), *self.home.glob(".probe-*")):
            with contextlib.suppress(FileNotFoundError):
                if now - folder.stat().st_mtime > ABANDONED_BUILD_S:
                    remove_tree(folder)
        for machine_id in self.ids():
            folder = self.folder(machine_id)
            if self.record(machine_id) is None and (folder / "machine.json").exists():
                remove_tree(folder)
        for folder in (self.home / "trash").glob("*"):
            remove_tree(folder)


def new_id(now: float | None = None) -> str:
    """A machine id that no other has: 48 random bits after the second it was made in."""
    second = int(time.time() if now is None else now)
    return f"m{second:x}{os.urandom(6).hex()}"


def remove_tree(folder: Path) -> None:
    """Delete a whole tree, whatever modes the job left in it; another process may be deleting it as well."""
    for _ in range(REMOVE_TRIES):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            pass  # somebody else is at it: look again whether anything is left
        except PermissionError:
            _open_up(folder)
        if not folder.exists():
            return
    with contextlib.suppress(FileNotFoundError):  # two that delete side by side can trip over each other every time
        shutil.rmtree(folder)


def _open_up(folder: Path) -> None:
    """Give the owner back the right to enter and empty every folder."""
    for root, names, _ in os.walk(folder):
        for path in (root, *(os.path.join(root, name) for name in names)):
            if not os.path.islink(path):
                with contextlib.suppress(FileNotFoundError):
                    os.chmod(path, stat.S_IRWXU)
