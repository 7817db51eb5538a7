"""The database file: made whole or not at all, migrated forward only, copied before each migration.

A new database is built beside its place and linked into it, so that a crash never leaves an empty file that looks like
lost books. `PRAGMA user_version` is the number of the newest migration applied; each is one transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.store.errors import StoreElsewhere, StoreTooNew, StoreTooOld, broken, translate
from orchestrator.store.place import network_filesystem
from orchestrator.store.queries import MIGRATIONS

BUSY_S = 30.0  # 20 processes that commit one after the other, with fsync on a slow disk, stay far below this
KEEP_BACKUPS = 5  # of each kind; they are small, and older ones describe machines long gone


def connect(path: Path) -> sqlite3.Connection:
    """An open connection to an existing database, in explicit-transaction mode."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_S, isolation_level=None)
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        db.execute(
            "PRAGMA synchronous = FULL"
        )  # a committed intent must survive a power cut, or a machine is forgotten
    except sqlite3.Error:
        db.close()
        raise
    return db


def refuse_network(path: Path, looked_up: Callable[[Path], str | None] = network_filesystem) -> None:
    """Raise `StoreElsewhere` when the folder is shared over a network."""
    kind = looked_up(path.parent)
    if kind is not None:
        raise StoreElsewhere(
            f"{path.parent} is on a network file system ({kind}), where two computers could write the books at once; "
            "set GPUJOB_HOME to a folder on a local disk"
        )


def create(path: Path, migrations: Path = MIGRATIONS) -> None:
    """Make the database at `path` unless there is one; of two processes that race, one wins and both go on."""
    if path.exists():
        return
    fresh = path.with_name(f"{path.name}.new-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    try:
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        db = connect(fresh)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            migrate(db, fresh, migrations)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            db.close()
        _publish(fresh, path)
    except sqlite3.Error as error:
        raise translate(error, path) from error
    finally:
        fresh.unlink(missing_ok=True)


def _publish(fresh: Path, path: Path) -> None:
    try:
        os.link(fresh, path)
    except FileExistsError:
        return  # somebody else's is as good, and may be in use by now
    except OSError:  # a file system without hard links
        if not path.exists():
            os.rename(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_readable(db: sqlite3.Connection, path: Path) -> int:
    """The schema's number; raises `StoreBroken` for an empty or damaged file."""
    if path.stat().st_size == 0:
        raise broken(path, "the database is empty (0 bytes), which a crash of gpujob never leaves behind")
    try:
        return int(db.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.Error as error:
        raise translate(error, path) from error


def check_whole(db: sqlite3.Connection, path: Path) -> None:
    """Raise `StoreBroken` when pages are missing or inconsistent: better before deciding than in the middle."""
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise broken(path, f"the database is damaged ({found})")


def check_version(version: int, path: Path, migrations: Path = MIGRATIONS, older: bool = False) -> None:
    """For doors that do not migrate: the schema must be exactly the one this program knows, or also an `older` one."""
    newest = newest_version(migrations)
    _refuse_newer(version, newest, path)
    if version < newest and not older:
        raise StoreTooOld(
            f"{path}: the books have schema {version}, this gpujob needs {newest}; "
            "`gpujob controller stop`, then any command starts the new controller, which migrates them"
        )


def _refuse_newer(version: int, newest: int, path: Path) -> None:
    if version > newest:
        raise StoreTooNew(
            f"{path}: written by a newer gpujob (schema {version}, this one knows {newest}); "
            "upgrade gpujob on this computer"
        )


def numbered(migrations: Path) -> list[tuple[int, Path]]:
    """(number, file) in order; the numbers must run from 1 without a hole."""
    found = sorted((int(file.name[:4]), file) for file in migrations.glob("[0-9][0-9][0-9][0-9]_*.sql"))
    if [number for number, _ in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"{migrations}: migrations are numbered from 1 without a hole")
    return found


def newest_version(migrations: Path = MIGRATIONS) -> int:
    """The number of the newest migration."""
    return numbered(migrations)[-1][0]


def migrate(db: sqlite3.Connection, path: Path, migrations: Path = MIGRATIONS) -> int:
    """Bring the schema to the newest number, each step in one transaction; returns the number found before."""
    before = check_readable(db, path) if path.stat().st_size else 0
    known = numbered(migrations)
    _refuse_newer(before, known[-1][0], path)
    if before and before < known[-1][0]:
        backup(db, path, f"schema-{before}")
    for number, file in known:
        if number > before:
            _one_step(db, path, number, file)
    return before


def _one_step(db: sqlite3.Connection, path: Path, number: int, file: Path) -> None:
    db.execute(
        "PRAGMA foreign_keys = OFF"
    )  # a step may rebuild a table that others refer to; checked before the commit
    try:
        db.execute("BEGIN EXCLUSIVE")
        if db.execute("PRAGMA user_version").fetchone()[0] >= number:  # another process was first
            db.execute("ROLLBACK")
            return
        for statement in _statements(file.read_text(encoding="utf-8")):
            db.execute(statement)
        dangling = db.execute("PRAGMA foreign_key_check").fetchall()
        if dangling:
            raise broken(
                path, f"migration {file.name} would leave {len(dangling)} dangling rows, so it was not applied"
            )
        db.execute(f"PRAGMA user_version = {number}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    finally:
        db.execute("PRAGMA foreign_keys = ON")


def _statements(script: str) -> Iterator[str]:
    """Single statements; `executescript` would commit the transaction around them first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def backup(db: sqlite3.Connection, path: Path, label: str) -> Path:
    """A consistent copy beside the database as `<name>.bak-<label>`, complete before it gets that name."""
    target = path.with_name(f"{path.name}.bak-{label}")
    half = target.with_name(target.name + ".half")
    half.unlink(missing_ok=True)
    os.close(os.open(half, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        copy = sqlite3.connect(half)
        try:
            db.backup(copy)
        finally:
            copy.close()
        os.replace(half, target)
    finally:
        half.unlink(missing_ok=True)
    old = sorted(path.parent.glob(f"{path.name}.bak-*"), key=lambda file: file.stat().st_mtime)
    for file in old[:-KEEP_BACKUPS]:
        file.unlink()
    return target
