"""The books: one door to one SQLite file.

    with Store.open_reader(home) as books: ...      `ps`, `describe`: reads while the controller writes
    with Store.open_requester(home) as books: ...   a verb: reads, and appends requests
    Store.open_writer(home, epoch)                  the controller: everything, fenced by its epoch

Rules: only the controller's loop writes, in one thread; everything of one decision is one transaction; rentals and the
ledger are never deleted. Nothing here imports pydantic, so that `ps` stays quick.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

from orchestrator.home import Home
from orchestrator.store import schema
from orchestrator.store.connection import Mode
from orchestrator.store.decisions import Applied, new_rental_id
from orchestrator.store.errors import (
    Fenced,
    NameTaken,
    NoSuchJob,
    NotTheWriter,
    OverBudget,
    StoreBroken,
    StoreBusy,
    StoreElsewhere,
    StoreError,
    StoreFull,
    StoreMissing,
    StoreTooNew,
    StoreTooOld,
    translate,
)
from orchestrator.store.listing import Listing, Summary
from orchestrator.store.notices import Notices
from orchestrator.store.place import network_filesystem
from orchestrator.store.queries import MIGRATIONS
from orchestrator.store.receipts import Receipts
from orchestrator.store.requests import Requests
from orchestrator.store.rows import Bill, Entry, ItemRow, JobRef, Progress, ReportRow, Request
from orchestrator.store.salvaged import Salvage

__all__ = [
    "Applied",
    "Bill",
    "Entry",
    "Fenced",
    "ItemRow",
    "JobRef",
    "NameTaken",
    "NoSuchJob",
    "NotTheWriter",
    "OverBudget",
    "Progress",
    "ReportRow",
    "Request",
    "Store",
    "StoreBroken",
    "StoreBusy",
    "StoreElsewhere",
    "StoreError",
    "StoreFull",
    "StoreMissing",
    "StoreTooNew",
    "StoreTooOld",
    "Summary",
    "new_rental_id",
]


class Outside(Protocol):
    """What lives beside the database and outlives it; `books.Books` is one."""

    @property
    def deployment(self) -> str: ...

    def record(self, epoch: int) -> None: ...

    def note_milestones(self, count: int) -> None: ...


class Store(Receipts, Notices, Salvage, Requests, Listing):
    """The one door; what it may do depends on how it was opened."""

    _file: tuple[int, int] = (0, 0)  # device and inode of the writer's file

    @classmethod
    def open_reader(cls, home: Home, *, older: bool = False) -> Self:
        """For reading only. `StoreMissing` when nothing was ever run here. `older`: also books that are not migrated
        yet, for what every schema has: the epoch, the deployment, the milestones.
        """
        return cls._open(home.database, Mode.READER, older=older)

    @classmethod
    def open_requester(
        cls, home: Home, *, older: bool = False, network: Callable[[Path], str | None] = network_filesystem
    ) -> Self:
        """For a verb: makes the books when there are none, and may append requests; `older`: to an older controller."""
        schema.refuse_network(home.database, network)
        schema.create(home.make().database)
        return cls._open(home.database, Mode.REQUESTER, older=older)

    @classmethod
    def open_writer(
        cls,
        home: Home,
        epoch: int,
        *,
        outside: Outside | None = None,
        deployment: str = "",
        network: Callable[[Path], str | None] = network_filesystem,
        migrations: Path = MIGRATIONS,
    ) -> Self:
        """For the controller: migrates, checks the whole file, and takes the books over for `epoch`.

        `Fenced` when a newer epoch has them. The epoch goes into the books first and then to `outside` (the file in
        the config folder): a crash between the two leaves the books ahead, never behind. The deployment is
        `outside`'s, else the given one; it is stored in new books only.
        """
        path = home.database
        schema.refuse_network(path, network)
        schema.create(home.make().database, migrations)
        store = cls._open(path, Mode.WRITER, epoch, migrations)
        there = os.stat(path)
        store._file = there.st_dev, there.st_ino
        try:
            store._take_over(outside.deployment if outside else deployment)
        except BaseException:
            store.close()
            raise
        if outside is not None:
            outside.record(epoch)
            store.note_milestones = outside.note_milestones
        return store

    @classmethod
    def _open(cls, path: Path, mode: Mode, epoch: int = 0, migrations: Path = MIGRATIONS, older: bool = False) -> Self:
        if not path.exists():
            raise StoreMissing(f"{path}: there are no books yet; `gpujob apply SPEC` starts a first job")
        try:
            db = schema.connect(path)
        except sqlite3.Error as error:
            raise translate(error, path) from error
        try:
            version = schema.check_readable(db, path)
            if mode is Mode.WRITER:
                schema.migrate(db, path, migrations)
                schema.check_whole(db, path)
            else:
                schema.check_version(version, path, migrations, older)
            return cls(db, path, mode, epoch)
        except sqlite3.Error as error:
            db.close()
            raise translate(error, path) from error
        except BaseException:
            db.close()
            raise

    def _take_over(self, deployment: str) -> None:
        with self._transaction(fenced=False):
            stored = self.stored_epoch()
            if stored > self.epoch:
                raise Fenced(
                    f"{self.path}: a controller with the newer epoch {stored} has these books; "
                    f"this one ({self.epoch}) must not decide"
                )
            self._run("put_meta", key="epoch", value=str(self.epoch))
            if deployment and not self.deployment():
                self._run("put_meta", key="deployment", value=deployment)

    def check_place(self) -> None:
        """Raise `Fenced` when the file at our path is not the one we write: it was deleted, or another put there."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != self._file:
            raise Fenced(f"{self.path} was deleted or replaced while it was in use: what is written here is lost")

    def backup(self, label: str) -> Path:
        """A consistent copy beside the database, while it is in use; the newest few are kept."""
        try:
            return schema.backup(self._db, self.path, label)
        except sqlite3.Error as error:
            raise translate(error, self.path) from error
