"""The file beside the database: which deployment, which epoch, and whether the database is an old copy."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest
from store_rows import add, home_in, rent, writer_in

from orchestrator import actions
from orchestrator.books import Books, BooksBroken, Verdict
from orchestrator.cli import audit
from orchestrator.model import Outcome, Reason
from orchestrator.store import Store


def verdict(folder: Path) -> Verdict:
    home = home_in(folder)
    if not home.database.exists():
        return Books(home).check(0, "", 0)
    with Store.open_reader(home) as store:
        return Books(home).check(store.stored_epoch(), store.deployment(), store.milestones())


def controller(folder: Path, now_ms: int) -> Store:
    """A start of a controller: epoch from the file, the books taken over, the epoch written back."""
    books = Books(home_in(folder))
    return Store.open_writer(home_in(folder), books.next_epoch(now_ms), outside=books)


def copy_database(folder: Path, name: str) -> Path:
    return Path(shutil.copy(home_in(folder).database, folder / name))


def test_a_deployment_is_made_once_and_is_private(tmp_path: Path) -> None:
    books = Books(home_in(tmp_path))
    assert len(books.deployment) == 6
    assert books.deployment.isalnum()
    assert books.deployment == books.deployment.lower()
    assert Books(home_in(tmp_path)).deployment == books.deployment
    file = home_in(tmp_path).deployment_file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in file.parent.iterdir()] == ["deployment"]


def test_epochs_only_grow_even_when_the_clock_goes_back(tmp_path: Path) -> None:
    books = Books(home_in(tmp_path))
    assert books.next_epoch(1000) == 1000
    books.record(1000)
    assert books.next_epoch(400) == 1001
    assert books.next_epoch(400, stored=2000) == 2001
    books.record(900)
    assert Books(home_in(tmp_path)).epoch == 1000


def test_the_books_of_a_normal_life_are_in_order(tmp_path: Path) -> None:
    assert verdict(tmp_path) is Verdict.OK
    for now in (1000, 2000):
        with controller(tmp_path, now) as store:
            rent(store, add(store, f"job{now}"))
        assert verdict(tmp_path) is Verdict.OK
    kept = json.loads(home_in(tmp_path).deployment_file.read_text())
    assert (kept["epoch"], kept["milestones"]) == (2000, 2)


def test_a_crash_between_the_books_and_the_file_is_not_taken_for_an_old_copy(tmp_path: Path) -> None:
    controller(tmp_path, 1000).close()
    with writer_in(tmp_path, epoch=2000) as store:  # the file never heard of this epoch, nor of this rental
        rent(store, add(store))
    assert verdict(tmp_path) is Verdict.OK


def test_a_week_old_copy_is_behind(tmp_path: Path) -> None:
    controller(tmp_path, 1000).close()
    old = copy_database(tmp_path, "week-old.db")
    controller(tmp_path, 2000).close()
    shutil.copy(old, home_in(tmp_path).database)
    assert verdict(tmp_path) is Verdict.BEHIND


def test_the_doubt_stays_over_new_controllers_until_the_user_has_looked(tmp_path: Path) -> None:
    controller(tmp_path, 1000).close()
    old = copy_database(tmp_path, "week-old.db")
    controller(tmp_path, 2000).close()
    shutil.copy(old, home_in(tmp_path).database)
    assert verdict(tmp_path) is Verdict.BEHIND
    controller(tmp_path, 3000).close()  # its epoch is in both places: the comparison alone would find nothing
    assert verdict(tmp_path) is Verdict.BEHIND
    Books(home_in(tmp_path)).accept(3000, 0)
    assert verdict(tmp_path) is Verdict.OK
    controller(tmp_path, 4000).close()
    assert verdict(tmp_path) is Verdict.OK


def test_a_copy_from_the_life_of_the_same_controller_is_behind_too(tmp_path: Path) -> None:
    with controller(tmp_path, 1000) as store:
        job = add(store)
        old = store.backup("before")
        rent(store, job)
    shutil.copy(old, home_in(tmp_path).database)
    assert verdict(tmp_path) is Verdict.BEHIND
    with Store.open_reader(home_in(tmp_path)) as store:
        Books(home_in(tmp_path)).accept(store.stored_epoch(), store.milestones())
    assert verdict(tmp_path) is Verdict.OK


def test_a_copy_from_before_a_job_was_over_is_behind_though_nothing_was_rented_since(tmp_path: Path) -> None:
    with controller(tmp_path, 1000) as store:
        job = add(store)
        rental = rent(store, job, made=False)
        old = store.backup("before")
        done = [
            actions.SetOutcome(Outcome.CANCELLED, Reason.CANCELLED),
            actions.StoreGone(rental.id, never_made=True),
            actions.FinishJob(),
        ]
        store.apply(job, done, 60.0)
    shutil.copy(old, home_in(tmp_path).database)
    assert verdict(tmp_path) is Verdict.BEHIND  # else the job would run a second time


def test_a_deleted_database_is_lost_only_where_something_was_rented(tmp_path: Path) -> None:
    controller(tmp_path, 1000).close()
    home_in(tmp_path).database.unlink()
    assert verdict(tmp_path) is Verdict.OK
    with controller(tmp_path, 2000) as store:
        rent(store, add(store))
    home_in(tmp_path).database.unlink()
    assert verdict(tmp_path) is Verdict.LOST
    Store.open_requester(home_in(tmp_path)).close()  # a verb makes new, empty books
    assert verdict(tmp_path) is Verdict.LOST


def test_the_database_of_another_deployment_is_lost(tmp_path: Path) -> None:
    writer_in(tmp_path, epoch=9000, deployment="zzz999").close()
    assert verdict(tmp_path) is Verdict.LOST


def test_a_lost_file_takes_the_deployment_over_from_the_database(tmp_path: Path) -> None:
    with controller(tmp_path, 1000) as store:
        known = store.deployment()
    home_in(tmp_path).deployment_file.unlink()
    assert Books(home_in(tmp_path), known_deployment=known).deployment == known
    assert verdict(tmp_path) is Verdict.OK


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"deployment": "abc123"}',
        '{"deployment": "A/..", "epoch": 1}',
        '{"deployment": "abc123", "epoch": 1, "doubt": "so"}',
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    home = home_in(tmp_path).make()
    home.deployment_file.write_text(text)
    with pytest.raises(BooksBroken, match="gpujob audit") as caught:
        Books(home)
    assert str(home.deployment_file) in str(caught.value)
    assert home.deployment_file.read_text() == text


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    controller(tmp_path, 2000).close()
    file = home_in(tmp_path).deployment_file
    before = file.read_text()
    books = Books(home_in(tmp_path))
    assert books.look(1000, books.deployment, 0) is Verdict.BEHIND
    assert file.read_text() == before


def test_an_audit_of_healthy_books_finds_them_healthy_and_changes_nothing(tmp_path: Path) -> None:
    with controller(tmp_path, 1000) as store:  # a rental gone and a job over: more milestones than rentals
        job = add(store)
        rental = rent(store, job, made=False)
        over = [
            actions.SetOutcome(Outcome.CANCELLED, Reason.CANCELLED),
            actions.StoreGone(rental.id),
            actions.FinishJob(),
        ]
        store.apply(job, over, 60.0)
    file = home_in(tmp_path).deployment_file
    before = file.read_text()
    assert audit.account_of(home_in(tmp_path)).verdict is Verdict.OK
    assert file.read_text() == before
