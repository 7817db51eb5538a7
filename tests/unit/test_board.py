"""Progress on its way to the books: the newest of each run, once a second, believed about a machine's own runs only."""

from __future__ import annotations

from pathlib import Path

from store_rows import add, rent, writer_in

from orchestrator import actions as act
from orchestrator.board import Board
from orchestrator.messages import TransferSeen
from orchestrator.store import Store


def job_with_run(store: Store, name: str = "demo") -> tuple[str, str]:
    """A job and the rental of its run t0.1."""
    job = add(store, name)
    rental = rent(store, job).id
    store.apply(job, [act.CommitAssignment("t0", 1, rental, (), "", "", None)], 30.0)
    return job, rental


def test_of_many_steps_the_newest_is_written(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        job, rental = job_with_run(store)
        board = Board()
        for step in range(50):
            board.step(job, rental, "t0.1", step, 100)
        board.sample(job, rental, {"cpu": 7})
        board.sample(job, rental, {"cpu": 9})
        board.write(store, 40.0, 1.0)
        (seen,) = store.progress(job)
        assert (seen.step, seen.total, seen.sample, seen.at) == (49, 100, {"cpu": 9}, 40.0)


def test_between_two_writes_is_a_second_and_nothing_is_lost_in_it(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        job, rental = job_with_run(store)
        board = Board()
        board.step(job, rental, "t0.1", 1, None)
        board.write(store, 40.0, 10.0)
        board.step(job, rental, "t0.1", 2, None)
        board.write(store, 40.9, 10.9)
        assert [seen.step for seen in store.progress(job)] == [1]
        board.write(store, 41.0, 11.0)
        assert [(seen.step, seen.at) for seen in store.progress(job)] == [(2, 41.0)]


def test_the_newest_transfer_is_shown_until_it_is_taken_back(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        job, rental = job_with_run(store)
        board = Board()
        board.transfer(job, TransferSeen(rental, "t0.1", "code", 5, None, 1.0))
        board.transfer(job, TransferSeen(rental, "t0.1", "data set", 7, 10, 2.4))
        board.write(store, 40.0, 1.0)
        shown = {"what": "data set", "bytes": 7, "total": 10, "rate": 2, "at": 40.0}
        assert [seen.transfer for seen in store.progress(job)] == [shown]
        board.step(job, rental, "t0.1", 3, None)
        board.sample(job, rental, {"cpu": 9})
        board.write(store, 41.0, 2.0)
        assert [(seen.step, seen.transfer) for seen in store.progress(job)] == [(3, shown)]
        board.transfer(job, TransferSeen(rental, "t0.1", "data set", 9, 10, 2.4))
        board.transfer(job, TransferSeen(rental, "t0.1", ""))
        board.write(store, 42.0, 3.0)
        assert [(seen.step, seen.sample, seen.transfer) for seen in store.progress(job)] == [(3, {"cpu": 9}, {})]


def test_a_transfer_of_a_run_that_is_not_on_the_machine_is_not_shown(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        job, rental = job_with_run(store)
        board = Board()
        board.transfer(job, TransferSeen(rental, "t0.2", "code", 5, None, 1.0))
        board.transfer(job, TransferSeen("gj-other", "t0.1", "code", 5, None, 1.0))
        board.write(store, 40.0, 1.0)
        assert store.progress(job) == ()


def test_a_machine_says_nothing_of_runs_that_are_not_on_it(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        job, rental = job_with_run(store)
        other, _ = job_with_run(store, "other")
        board = Board()
        board.step(job, rental, "t0.2", 5, None)
        board.step(job, "gj-other", "t0.1", 5, None)
        board.step(other, rental, "t0.1", 5, None)
        board.sample(other, rental, {"cpu": 9})
        board.write(store, 40.0, 1.0)
        assert store.progress(job) == store.progress(other) == ()


def test_a_sample_goes_to_the_newest_run_of_its_machine(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        job, rental = job_with_run(store)
        store.closed(job, "t0", 1, 35.0)
        store.apply(job, [act.CommitAssignment("t0", 2, rental, (), "", "", None)], 36.0)
        board = Board()
        board.sample(job, rental, {"cpu": 9})
        board.write(store, 40.0, 1.0)
        assert [(seen.n, seen.sample) for seen in store.progress(job)] == [(2, {"cpu": 9})]
