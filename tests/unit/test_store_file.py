"""The database file: made whole, private, migrated forward, refused with a next step when it cannot be trusted."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest
from store_rows import add, home_in, job_row, rent, writer_in

from orchestrator.loop import _what_books_say
from orchestrator.store import (
    Fenced,
    Store,
    StoreBroken,
    StoreElsewhere,
    StoreError,
    StoreFull,
    StoreMissing,
    StoreTooNew,
    StoreTooOld,
    schema,
)
from orchestrator.store.place import linux_mounts, macos_mounts, network_type
from orchestrator.store.queries import MIGRATIONS, queries


def database(folder: Path) -> Path:
    return home_in(folder).database


def test_new_books_are_private_whole_and_in_wal_mode(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with writer_in(tmp_path) as store:
            add(store)
            names = {file.name: stat.S_IMODE(file.stat().st_mode) for file in database(tmp_path).parent.iterdir()}
    finally:
        os.umask(old)
    assert names == {"gpujob.db": 0o600, "gpujob.db-wal": 0o600, "gpujob.db-shm": 0o600}
    assert stat.S_IMODE(database(tmp_path).parent.stat().st_mode) == 0o700
    raw = sqlite3.connect(database(tmp_path))
    assert raw.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    raw.close()


def test_a_writer_syncs_every_commit_and_keeps_foreign_keys(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        assert store._db.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL
        assert store._db.execute("PRAGMA foreign_keys").fetchone()[0] == 1


def test_a_crash_while_making_the_books_leaves_no_file_that_looks_like_books(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(schema, "_publish", crash)
        with pytest.raises(KeyboardInterrupt):
            writer_in(tmp_path)
    assert list(database(tmp_path).parent.iterdir()) == []
    writer_in(tmp_path).close()


def test_books_that_appear_meanwhile_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home_in(tmp_path).make()
    publish = schema._publish

    def somebody_first(fresh: Path, path: Path) -> None:
        monkeypatch.setattr(schema, "_publish", publish)
        with writer_in(tmp_path, epoch=1) as store:
            add(store, "first")
        publish(fresh, path)

    monkeypatch.setattr(schema, "_publish", somebody_first)
    with writer_in(tmp_path, epoch=2) as store:
        assert [job.name for job in store.jobs()] == ["first"]


def test_a_reader_says_that_there_are_no_books(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="gpujob apply"):
        Store.open_reader(home_in(tmp_path))
    assert not database(tmp_path).exists()


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "overwritten"])
def test_damaged_books_are_named_with_a_next_step(tmp_path: Path, damage: str) -> None:
    with writer_in(tmp_path) as store:
        for run in range(40):
            add(store, f"job{run}", spec={"run": "x" * 2000})
    path = database(tmp_path)
    whole = path.read_bytes()
    middle = len(whole) // 2 // 4096 * 4096
    path.write_bytes(
        {
            "empty": b"",
            "text": b"this is not a database, but it is longer than a hundred bytes" * 4,
            "cut": whole[:middle],
            "overwritten": whole[:4096] + b"\xff" * (len(whole) - 4096),
        }[damage]
    )
    with pytest.raises(StoreBroken) as caught:
        writer_in(tmp_path, epoch=9)
    assert str(path) in str(caught.value)
    assert "gpujob audit" in str(caught.value)
    assert "no backup" in str(caught.value)
    with pytest.raises(StoreBroken):
        Store.open_reader(home_in(tmp_path)).jobs()


def test_one_damaged_page_far_from_the_first_rows_stops_the_controller_before_it_decides(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        add(store, spec={"run": "x" * 100_000})
        store.apply("demo.1-ab12", [], 20.0)
        root = store._db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'ledger'").fetchone()[0]
    raw = bytearray(database(tmp_path).read_bytes())
    raw[(root - 1) * 4096 : root * 4096] = b"\xff" * 4096
    database(tmp_path).write_bytes(raw)
    with pytest.raises(StoreBroken, match="gpujob audit"):
        writer_in(tmp_path, epoch=9)


def test_the_newest_backup_is_named_and_works(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        add(store)
        first = store.backup("monday")
        second = store.backup("tuesday")
        os.utime(first, (1, 1))
    path = database(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(StoreBroken, match=r"gpujob\.db\.bak-tuesday"):
        Store.open_reader(home_in(tmp_path))
    assert stat.S_IMODE(second.stat().st_mode) == 0o600
    shutil.copy(second, path)
    with Store.open_reader(home_in(tmp_path)) as store:
        assert store.jobs() == (job_row(),)


def test_only_the_newest_backups_are_kept(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        for day in range(schema.KEEP_BACKUPS + 3):
            os.utime(store.backup(f"{day}"), (day, day))
        kept = sorted(file.name for file in database(tmp_path).parent.glob("*.bak-*"))
    assert kept == [f"gpujob.db.bak-{day}" for day in range(3, schema.KEEP_BACKUPS + 3)]


def test_a_full_disk_is_named_and_nothing_of_the_decision_is_stored(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        job = add(store)
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")

        def extend_and_fill() -> None:
            with store.transaction():
                store.extend(job, 60.0, 20.0)
                store.add_journal(20.0, "note", "x" * 100_000)

        with pytest.raises(StoreFull, match="no space left"):
            extend_and_fill()
        store._db.execute("PRAGMA max_page_count = 1000000")
        assert store.job(job).ttl_extra_s == 0
        store.extend(job, 61.0, 21.0)
        assert store.job(job).ttl_extra_s == 61


# --- migrations -------------------------------------------------------------------------------------------------------


NEWEST = schema.newest_version()


def migrations_with(folder: Path, hole: int = 0, **later: str) -> Path:
    """All real migrations and made-up later ones, numbered on from them after a hole."""
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__*"))
    for number, (name, script) in enumerate(later.items(), NEWEST + 1 + hole):
        (folder / f"{number:04d}_{name}.sql").write_text(script)
    return folder


def test_books_of_the_first_schema_come_up_to_the_newest_one(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    shutil.copy(MIGRATIONS / "0001_init.sql", first)
    with writer_in(tmp_path, migrations=first) as store:
        rent(store, add(store))
    with writer_in(tmp_path, epoch=6) as store:
        assert store._db.execute("PRAGMA user_version").fetchone()[0] == NEWEST
        assert [(job.id, job.name) for job in store.jobs()] == [(job_row().id, "demo")]
        columns = [row[1] for row in store._db.execute("PRAGMA table_info(assignments)")]
        assert "cause" in columns


def test_older_books_are_copied_and_then_migrated(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        add(store)
    newer = migrations_with(
        tmp_path / "newer", note="-- a comment; with a semicolon\nALTER TABLE jobs ADD COLUMN note TEXT;\n"
        "UPDATE jobs SET note = 'from it; still';\nCREATE TABLE extra (id INTEGER PRIMARY KEY) STRICT;\n",
    )  # fmt: skip
    with writer_in(tmp_path, epoch=6, migrations=newer) as store:
        assert store._db.execute("SELECT note FROM jobs").fetchone()[0] == "from it; still"
        assert store._db.execute("PRAGMA user_version").fetchone()[0] == NEWEST + 1
        assert store.jobs() == (job_row(),)
    copy = sqlite3.connect(f"{database(tmp_path)}.bak-schema-{NEWEST}")
    assert copy.execute("PRAGMA user_version").fetchone()[0] == NEWEST
    assert copy.execute("SELECT name FROM jobs").fetchall() == [("demo",)]
    copy.close()


def test_a_migration_that_fails_half_way_leaves_the_old_schema(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        add(store)
    newer = migrations_with(tmp_path / "newer", bad="ALTER TABLE jobs ADD COLUMN note TEXT;\nSELECT * FROM nowhere;\n")
    with pytest.raises(StoreError, match="no such table: nowhere"):
        writer_in(tmp_path, epoch=6, migrations=newer)
    with writer_in(tmp_path, epoch=6) as store:
        columns = [row[1] for row in store._db.execute("PRAGMA table_info(jobs)")]
        assert "note" not in columns
        assert store.jobs() == (job_row(),)


def test_a_migration_may_not_leave_dangling_rows(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        rent(store, add(store))
    newer = migrations_with(tmp_path / "newer", bad="DELETE FROM jobs;\n")
    with pytest.raises(StoreBroken, match="dangling"):
        writer_in(tmp_path, epoch=6, migrations=newer)
    with writer_in(tmp_path, epoch=6) as store:
        assert len(store.jobs()) == 1


def test_books_of_a_newer_gpujob_are_refused_by_every_door(tmp_path: Path) -> None:
    newer = migrations_with(tmp_path / "newer", more="CREATE TABLE extra (id INTEGER) STRICT;\n")
    writer_in(tmp_path, migrations=newer).close()
    for open_door in (Store.open_reader, Store.open_requester, lambda home: Store.open_writer(home, 9)):
        with pytest.raises(StoreTooNew, match="upgrade gpujob"):
            open_door(home_in(tmp_path))


def test_older_books_wait_for_a_controller_to_migrate_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer_in(tmp_path).close()
    monkeypatch.setattr(schema, "newest_version", lambda *_: NEWEST + 1)
    with pytest.raises(StoreTooOld, match="gpujob controller stop"):
        Store.open_reader(home_in(tmp_path))


def test_the_first_look_at_older_books_finds_what_they_say_of_themselves(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    shutil.copy(MIGRATIONS / "0001_init.sql", first)
    with writer_in(tmp_path, epoch=7, migrations=first) as store:
        add(store)
        told = store.stored_epoch(), store.deployment(), store.milestones()
    assert told[0] == 7
    assert _what_books_say(home_in(tmp_path)) == told


def test_migrations_are_numbered_without_a_hole(tmp_path: Path) -> None:
    folder = migrations_with(tmp_path / "m", hole=1, late="SELECT 1;")
    with pytest.raises(ValueError, match="without a hole"):
        schema.numbered(folder)


# --- fence ------------------------------------------------------------------------------------------------------------


def test_a_newer_controller_fences_the_older_one(tmp_path: Path) -> None:
    with writer_in(tmp_path, epoch=5) as old, writer_in(tmp_path, epoch=6) as new:
        job = add(new)
        with pytest.raises(Fenced, match="must stop deciding"):
            old.cancel(job, 20.0)
        assert new.job(job).cancel_at is None
        assert [one.kind for one in new.journal()] == ["add_job"]
    with pytest.raises(Fenced, match="newer epoch 6"):
        writer_in(tmp_path, epoch=5)


def test_the_deployment_stays_what_it_was(tmp_path: Path) -> None:
    writer_in(tmp_path, epoch=5, deployment="abc123").close()
    with writer_in(tmp_path, epoch=6, deployment="zzz999") as store:
        assert (store.deployment(), store.stored_epoch()) == ("abc123", 6)


# --- where it lies ----------------------------------------------------------------------------------------------------


def test_a_network_file_system_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreElsewhere, match=r"network file system \(nfs4\).*GPUJOB_HOME"):
        writer_in(tmp_path, network=lambda folder: "nfs4")
    with pytest.raises(StoreElsewhere):
        Store.open_requester(home_in(tmp_path), network=lambda folder: "cifs")
    assert not database(tmp_path).parent.exists()


MOUNTS = r"""/dev/vda1 / ext4 rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/vdb /home/me/fast xfs rw 0 0
//nas/share /mnt/my\040share cifs rw 0 0
me@host:/ /mnt/host fuse.sshfs rw 0 0
overlay /mnt/over fuse.fuse-overlayfs rw 0 0
C: /mnt/c 9p rw,aname=drvfs;path=C:\ 0 0
rootfs /mnt/sandbox 9p rw,trans=fd 0 0
server:/x /mnt/twice nfs rw 0 0
/dev/vdc /mnt/twice ext4 rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib/gpujob", None),
        ("/home/me/.local/share/gpujob", "nfs4"),
        ("/home/me/fast/gpujob", None),
        ("/home/me/fastest", "nfs4"),
        ("/mnt/my share/x", "cifs"),
        ("/mnt/host", "fuse.sshfs"),
        ("/mnt/over/x", None),
        ("/mnt/c/Users/me", "drvfs"),
        ("/mnt/sandbox/x", None),
        ("/mnt/twice/x", None),
    ],
)
def test_the_innermost_mount_decides(folder: str, kind: str | None) -> None:
    assert network_type(Path(folder), linux_mounts(MOUNTS)) == kind


def test_macos_mounts_are_read_too() -> None:
    text = "/dev/disk3s1 on / (apfs, local)\n//me@nas/s on /Volumes/my share (smbfs, nodev)\n"
    assert network_type(Path("/Volumes/my share/x"), macos_mounts(text)) == "smbfs"
    assert network_type(Path("/tmp"), macos_mounts(text)) is None


# --- SQL --------------------------------------------------------------------------------------------------------------


def test_every_named_query_fits_the_schema(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        for name, sql in queries().items():
            values = dict.fromkeys(re.findall(r":([a-z_]+)", sql))
            assert store._db.execute(f"EXPLAIN {sql}", values).fetchall(), name


def test_a_query_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("-- name: one\nSELECT 1;\n-- about two\n-- name: two\nSELECT 2;\n")
    assert queries(tmp_path) == {"one": "SELECT 1;", "two": "SELECT 2;"}
    queries.cache_clear()
    (tmp_path / "b.sql").write_text("-- name: two\nSELECT 3;\n")
    with pytest.raises(ValueError, match="two exists already"):
        queries(tmp_path)
