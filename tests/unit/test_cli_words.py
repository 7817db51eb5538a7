"""The ten words, their reasons and what comes next, from rows that the real store wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_books import Books, home_at, writer

from orchestrator.cli.reading import picture_of_summary
from orchestrator.model import CheckpointRow, Outcome, Reason, SignalWhy
from orchestrator.store import Store
from orchestrator.words import TERMINAL, State, Words, picture_of, words_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with writer(home_at(tmp_path)) as opened:
        yield opened


def words(books: Books) -> Words:
    """The words of describe, after checking that ps says the same state and reason."""
    store, now = books.store, books.now
    job, rentals, runs = store.job(books.id), store.rentals(books.id), store.assignments(books.id)
    progress, kept = store.progress(books.id), bool(store.checkpoints(books.id))
    said = words_of(picture_of(job, rentals, runs, progress[-1].phase if progress else "", kept), now)
    line = next(line for line in store.summaries(now=now) if line.id == books.id)
    listed = words_of(picture_of_summary(line), now)
    assert (listed.state, listed.reason, listed.attempt_text) == (said.state, said.reason, said.attempt_text)
    if said.state in TERMINAL:
        assert listed.next == said.next
    return said


def test_a_job_without_a_machine_is_pending_and_waits_for_capacity(store: Store) -> None:
    from orchestrator import actions

    books = Books(store)
    assert words(books).state is State.PENDING
    assert words(books).attempt_text == "-"
    books.apply(actions.WaitForCapacity())
    assert (words(books).state, words(books).reason) == (State.PENDING, "no-capacity")


def test_the_way_of_a_job_that_goes_well(store: Store) -> None:
    books = Books(store)
    rental = books.rent(ready=False)
    assert words(books).state is State.PROVISIONING
    assert rental in words(books).next
    from orchestrator import actions

    books.apply(actions.StoreReady(rental))
    assert words(books).state is State.SETUP
    books.run(rental, stage="setup")
    assert (words(books).state, words(books).detail) == (State.SETUP, "setup is running")
    store.progress_seen(books.id, "t0", 1, books.now, phase="run")
    assert words(books).state is State.RUNNING
    assert words(books).next_at == store.rental(rental).end
    assert words(books).attempt_text == "1"
    books.exit()
    assert words(books).state is State.FINALIZING
    books.decide(Outcome.DONE, Reason.DONE)
    assert (words(books).state, words(books).reason) == (State.FINALIZING, "done")
    books.lose(rental, Reason.DONE, gone=False)
    assert (words(books).state, words(books).reason) == (State.RELEASING, "done")
    books.apply(actions.StoreGone(rental), actions.FinishJob())
    assert words(books).state is State.DONE
    assert "nothing is billing" in words(books).next


def test_a_lost_machine_is_recovering_and_adds_an_attempt(store: Store) -> None:
    books = Books(store)
    first = books.rent()
    books.run(first)
    books.lose(first, quiesced=False, gone=False)
    said = words(books)
    assert (said.state, said.reason) == (State.RECOVERING, "interrupted")
    assert "proved dead" in said.next
    from orchestrator import actions

    books.apply(actions.StoreQuiesced(first), actions.StoreGone(first))
    assert words(books).attempt_text == "1"
    second = books.rent(ready=False)
    assert words(books).state is State.RECOVERING
    books.apply(actions.StoreReady(second))
    books.run(second, n=2, resume="step_300.npz")
    assert words(books).state is State.RUNNING
    assert words(books).attempt_text == "2"


def test_an_exit_after_our_signal_for_an_interruption_is_no_end_of_the_job(store: Store) -> None:
    books = Books(store)
    books.run(books.rent())
    books.exit(rc=0, signalled=SignalWhy.INTERRUPTION)
    assert (words(books).state, words(books).reason) == (State.RECOVERING, "interrupted")


def test_retries_that_the_spec_grants_are_in_the_count(store: Store) -> None:
    books = Books(store, retry={"max": 2})
    rental = books.rent()
    books.run(rental)
    assert words(books).attempt_text == "1/3"
    for n in (2, 3):
        books.exit(n=n - 1, rc=75)
        store.closed(books.id, "t0", n - 1, books.now)
        books.run(rental, n=n)
    assert words(books).attempt_text == "3/3"


def test_a_reclaim_takes_no_retry_so_the_total_is_not_known(store: Store) -> None:
    books = Books(store, retry={"max": 2})
    first = books.rent()
    books.run(first)
    books.lose(first)
    books.run(books.rent(), n=2)
    assert words(books).attempt_text == "2"


def test_machines_that_were_made_count_while_nothing_ran(store: Store) -> None:
    books = Books(store, retry={"max": 1})
    assert words(books).attempts_max == 2
    books.rent()
    assert words(books).attempt_text == "1/2"


@pytest.mark.parametrize(
    ("reason", "kept", "advice"),
    [
        (Reason.FAILED, False, "mend it, then `gpujob apply`"),
        (Reason.CONFIG, False, "mend it, then `gpujob apply`"),
        (Reason.FAILED, True, "`gpujob resume digits` goes on"),
        (Reason.NO_CAPACITY, False, "`gpujob resume digits` begins anew: it left no checkpoint"),
        (Reason.STALLED, True, "`gpujob resume digits` goes on from the newest checkpoint"),
    ],
)
def test_what_to_do_about_a_failed_job(reason: Reason, kept: bool, advice: str, store: Store) -> None:
    books = Books(store)
    rental = books.rent()
    books.run(rental)
    if kept:
        store.checkpoint_durable(CheckpointRow(books.id, "t0", 1, "step_9.npz", 9, "c" * 64, 10, "", books.now))
    books.exit(rc=1)
    books.decide(Outcome.FAILED, reason, "boom", 1)
    books.finish(rental, Reason.FAILED)
    assert advice in words(books).next


def test_the_outcome_is_terminal_only_once_nothing_bills(store: Store) -> None:
    books = Books(store)
    rental = books.rent()
    books.run(rental)
    books.exit(rc=1)
    books.decide(Outcome.FAILED, Reason.FAILED, "ValueError: no data", 1)
    books.lose(rental, Reason.FAILED, gone=False)
    said = words(books)
    assert (said.state, said.reason, said.detail) == (State.RELEASING, "failed", "ValueError: no data")
    assert rental in said.next
    from orchestrator import actions

    books.apply(actions.StoreGone(rental), actions.FinishJob())
    assert (words(books).state, words(books).reason) == (State.FAILED, "failed")
    assert "mend it" in words(books).next


def test_a_held_machine_says_until_when(store: Store) -> None:
    from orchestrator import actions

    books = Books(store)
    rental = books.rent(spot=False)
    books.run(rental)
    books.exit(rc=1)
    books.decide(Outcome.FAILED, Reason.FAILED, "x", 1)
    books.apply(actions.Hold(books.now + 600))
    said = words(books)
    assert said.state is State.RELEASING
    assert said.next_at == books.now + 599
    assert "gpujob ssh digits" in said.next


def test_a_cancel_is_seen_at_once(store: Store) -> None:
    books = Books(store)
    books.run(books.rent())
    store.cancel(books.id, books.now)
    assert (words(books).state, words(books).reason) == (State.FINALIZING, "cancelled")


def test_a_refused_create_is_not_the_jobs_fault(store: Store) -> None:
    from decimal import Decimal

    from cli_books import offer

    from orchestrator import actions
    from orchestrator.model import Reason as Why

    books = Books(store)
    (rental,) = books.apply(actions.OpenRental(offer(), books.now + 100, Why.TTL, Decimal("0.1")))
    store.create_sent(rental.id, books.now)
    books.apply(actions.StoreGone(rental.id, never_made=True))
    said = words(books)
    assert said.state is State.PENDING
    assert said.attempt_text == "-"
    books.run(books.rent())
    assert words(books).attempt_text == "1"
    assert words(books).state is State.RUNNING
