"""What the books can answer instead of doing it: a closed tree, every message with its next step.

    StoreError
    ├── StoreMissing    there are no books yet
    ├── StoreBroken     empty, truncated or damaged file
    ├── StoreElsewhere  on a network file system, where SQLite's locks do not hold
    ├── StoreTooNew     written by a newer gpujob
    ├── StoreTooOld     not yet migrated by a controller of this version
    ├── StoreFull       no space left
    ├── StoreBusy       another process kept the lock for longer than anyone should
    ├── Fenced          a newer controller has taken the books over: stop deciding
    ├── NotTheWriter    this door may only read, or only append requests
    ├── NameTaken       a live job has the name
    ├── NoSuchJob       nothing matches what the user typed; carries the nearest names
    └── OverBudget      spent and reserved would pass the job's budget

An illegal phase step or a broken rule of the schema is `transitions.IllegalStep`: a bug of ours; nothing is written.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path


class StoreError(Exception):
    """Base of all; `str()` is meant for the user."""


class StoreMissing(StoreError):
    """No database file: nothing was ever run here, or it was deleted."""


class StoreBroken(StoreError):
    """The database cannot be read as one."""


class StoreElsewhere(StoreError):
    """The state folder is on a network file system."""


class StoreTooNew(StoreError):
    """The schema has a higher number than this program knows."""


class StoreTooOld(StoreError):
    """The schema waits for a controller of this version to migrate it."""


class StoreFull(StoreError):
    """The disk (or the quota) is full; nothing of the transaction was written."""


class StoreBusy(StoreError):
    """The lock could not be had within the busy time-out."""


class Fenced(StoreError):
    """The epoch in the books is newer than ours."""


class NotTheWriter(StoreError):
    """A write through a door that was opened for reading or asking."""


class NameTaken(StoreError):
    """A live job has this name; `job` is its id."""

    def __init__(self, name: str, job: str) -> None:
        super().__init__(
            f"a live job is already called {name!r} ({job}); the same name is the same job: "
            f"`gpujob describe {name}` shows it, `gpujob apply --replace` replaces it"
        )
        self.job = job


class NoSuchJob(StoreError):
    """Nothing matches a reference; `nearest` are names to suggest, best first."""

    def __init__(self, message: str, nearest: tuple[str, ...] = ()) -> None:
        hint = f" (did you mean {' or '.join(nearest)}?)" if nearest else "; `gpujob ps -a` lists all jobs"
        super().__init__(message + hint)
        self.nearest = nearest


class OverBudget(StoreError):
    """The worst case of the write does not fit into the job's budget; nothing was written."""


def broken(path: Path, what: str) -> StoreBroken:
    """The error for an unreadable database: names the file, the newest backup and what finds the machines anyway."""
    backups = sorted(path.parent.glob(f"{path.name}.bak-*"), key=lambda file: file.stat().st_mtime)
    if backups:
        cure = f"the newest backup is {backups[-1]}: put it in its place, then run `gpujob audit`"
    else:
        cure = "there is no backup: move the file away, then run `gpujob audit`"
    return StoreBroken(
        f"{path}: {what}. Machines may still be running: {cure}, which finds them by their tags at the providers"
    )


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """What an SQLite error means to the user; unknown ones keep SQLite's own name and words."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_FULL"):
        return StoreFull(f"{path}: no space left on the disk; nothing was written. Free some space, then try again")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return broken(path, f"the database is damaged ({error})")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(f"{path}: another process holds the lock; `gpujob controller status` shows the controller")
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return StoreError(f"{path}: cannot be opened or written ({error}); check the folder's owner and mode")
    return StoreError(f"{path}: {name or type(error).__name__}: {error}; `gpujob doctor` checks the disk and the books")
