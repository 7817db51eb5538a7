"""One SQLite connection, the transaction around every write, and the fence in it.

Rules
- A transaction is `BEGIN IMMEDIATE`, so that it waits for the lock at its start and never fails half way for it.
- The controller's transactions first compare the epoch in the books with their own; a newer one raises `Fenced`.
- Transactions nest by joining: what a caller groups is committed together or not at all.
- No network call inside a transaction: other processes wait for it.
"""

from __future__ import annotations

import enum
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from orchestrator.store.errors import Fenced, NotTheWriter, translate
from orchestrator.store.queries import queries, tables_written
from orchestrator.store.rows import build_all
from orchestrator.taps import tap
from orchestrator.transitions import IllegalStep

KEPT_MAX = 256  # lists of rows that are kept as they were built

T = TypeVar("T")


class Mode(enum.Enum):
    """What a door may do."""

    READER = "reader"
    REQUESTER = "requester"  # may append requests
    WRITER = "writer"  # the controller


class Connection:
    """The lowest part of the door; the rest of `Store` is built from its four verbs."""

    def __init__(self, db: sqlite3.Connection, path: Path, mode: Mode, epoch: int = 0) -> None:
        self._db = db
        self.path = path
        self.mode = mode
        self.epoch = epoch
        self._queries = queries()
        self._tables = tables_written()
        self._changes: Counter[str] = Counter()  # table -> writes to it over this connection
        self._kept: dict[tuple[str, str], tuple[tuple[int, int], tuple[Any, ...]]] = {}  # query and job -> see `_all`
        if mode is Mode.READER:
            self._execute("PRAGMA query_only = ON", {})

    def close(self) -> None:
        """Close the connection; an open transaction is rolled back."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Group writes of the controller: all or nothing. Raises `Fenced` before anything is written."""
        if self.mode is not Mode.WRITER:
            raise NotTheWriter(f"only the controller writes; this door was opened as a {self.mode.value}")
        with self._transaction():
            yield

    @contextmanager
    def _transaction(self, fenced: bool = True) -> Iterator[None]:
        if self._db.in_transaction:
            yield
            return
        self._execute("BEGIN IMMEDIATE", {})
        try:
            if fenced and self.mode is Mode.WRITER:
                self._fence()
            yield
            tap("commit/before")
            self._execute("COMMIT", {})
        except sqlite3.IntegrityError as error:
            self._roll_back()
            raise IllegalStep(f"refused by the rules of the schema: {error}") from error
        except BaseException:
            self._roll_back()
            raise
        tap("commit/after")

    def _roll_back(self) -> None:
        self._kept.clear()  # what was read since the transaction began is not in the books
        if self._db.in_transaction:  # a full disk may have ended it already
            self._execute("ROLLBACK", {})

    def _fence(self) -> None:
        row = self._one("get_meta", key="epoch")
        now = int(row["value"]) if row else 0
        if now != self.epoch:
            raise Fenced(
                f"{self.path}: another controller (epoch {now}) has taken over from this one (epoch {self.epoch}); "
                "this one must stop deciding"
            )

    def _rows(self, name: str, /, **values: Any) -> list[sqlite3.Row]:
        return self._execute(self._queries[name], values)[0]

    def _one(self, name: str, /, **values: Any) -> sqlite3.Row | None:
        rows = self._rows(name, **values)
        return rows[0] if rows else None

    def _run(self, name: str, /, **values: Any) -> int:
        """Rows changed."""
        if name in self._tables:
            self._changes[self._tables[name]] += 1
        return self._execute(self._queries[name], values)[1]

    def _all(self, cls: type[T], name: str, table: str, job: str) -> tuple[T, ...]:
        """The rows of one job, which a decision reads again and again: the same values as before, until somebody has
        written to their table (we, which is counted; another process, which SQLite tells).
        """
        others = self._execute("PRAGMA data_version", {})[0][0][0]
        stamp, kept = (self._changes[table], others), self._kept.get((name, job))
        if kept is not None and kept[0] == stamp:
            return kept[1]
        found = build_all(cls, self._rows(name, job=job))
        if len(self._kept) >= KEPT_MAX:
            self._kept.pop(next(iter(self._kept)))
        self._kept[name, job] = stamp, found
        return found

    def _execute(self, sql: str, values: dict[str, Any]) -> tuple[list[sqlite3.Row], int]:
        try:
            cursor = self._db.execute(sql, values)
            return cursor.fetchall(), cursor.rowcount
        except sqlite3.IntegrityError:
            raise  # a rule of the schema: whoever wrote knows its meaning
        except sqlite3.Error as error:
            raise translate(error, self.path) from error
