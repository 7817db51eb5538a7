"""The books of a job of many tasks: legs, their outcomes, reports, items."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from store_rows import OFFER, add, rent, writer_in

from orchestrator import actions as act
from orchestrator.model import Assignment, Outcome, Reason, Task
from orchestrator.store import Applied, Store
from orchestrator.transitions import IllegalStep

NOW = 1_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with writer_in(tmp_path) as opened:
        yield opened


def test_a_leg_is_added_once_and_kept_in_order(store: Store) -> None:
    job = add(store)
    assert store.add_task(Task(job, "zz", {"lr": "1e-4"}, seq=1, items=("a", "b")), NOW)
    assert store.add_task(Task(job, "aa", {"lr": "2e-4"}, seq=2), NOW)
    assert not store.add_task(Task(job, "aa", {"lr": "other"}, seq=3), NOW)
    legs = [task for task in store.tasks(job) if task.seq]
    assert [(leg.id, leg.params["lr"], leg.items) for leg in legs] == [("zz", "1e-4", ("a", "b")), ("aa", "2e-4", ())]


def test_a_tasks_outcome_is_set_once_and_the_jobs_closes_the_others(store: Store) -> None:
    job = add(store)
    for seq, name in enumerate(("a", "b"), 1):
        store.add_task(Task(job, name, {}, seq=seq), NOW)
    done = act.SetTaskOutcome("a", Outcome.DONE, Reason.DONE, "", 0)
    assert apply(store, job, done).changed == 1
    assert apply(store, job, act.SetTaskOutcome("a", Outcome.FAILED, Reason.FAILED, "x", 1)).changed == 0
    assert store.job(job).outcome is None
    apply(store, job, act.SetOutcome(Outcome.FAILED, Reason.BUDGET, "no money"))
    found = {task.id: task for task in store.tasks(job)}
    assert (found["a"].outcome, found["a"].reason, found["a"].exit_code) == (Outcome.DONE, Reason.DONE, 0)
    assert (found["b"].outcome, found["b"].reason, found["b"].detail) == (Outcome.FAILED, Reason.BUDGET, "no money")


def test_cancel_and_stop_are_remembered_once(store: Store) -> None:
    job = add(store)
    store.add_task(Task(job, "a", {}, seq=1), NOW)
    assert store.cancel_task(job, "a", NOW)
    assert store.stop_task(job, "a", "worse than the median", NOW)
    assert not store.stop_task(job, "a", "again", NOW + 1)
    leg = store.tasks(job)[-1]
    assert (leg.cancel_at, leg.stop_at, leg.stop_why) == (NOW, NOW, "worse than the median")


def apply(store: Store, job: str, *writes: act.Write) -> Applied:
    return store.apply(job, writes, NOW)


def run_on(store: Store, job: str, rental: str, task: str, n: int) -> Assignment:
    apply(store, job, act.CommitAssignment(task, n, rental, (), "", "", None))
    return next(a for a in store.assignments(job) if (a.task, a.n) == (task, n))


def test_reports_are_keyed_by_step_and_read_exactly_once(store: Store) -> None:
    job = add(store)
    rental = rent(store, job).id
    first = run_on(store, job, rental, "t0", 1)
    store.reported(first, [(1, 0.5), (2, math.nan), (3, math.inf)], 100, NOW)
    run = store.assignments(job)[0]
    assert (run.read_to, run.reported) == (100, 3)
    assert [(r.step, r.n) for r in store.reports(job)] == [(1, 1), (2, 1), (3, 1)]
    assert math.isnan(store.reports(job)[1].value)
    assert store.reports(job, "t0")[2].value == math.inf
    store.closed(job, "t0", 1, NOW)
    second = run_on(store, job, rental, "t0", 2)
    store.reported(second, [(2, 0.4)], 10, NOW + 5)  # a replay: the run that lives on has the word
    assert [(r.step, r.value, r.n) for r in store.reports(job)][:2] == [(1, 0.5, 1), (2, 0.4, 2)]
    assert store.assignments(job)[1].read_to == 10


def test_an_item_is_over_once(store: Store) -> None:
    job = add(store)
    assert apply(store, job, act.ItemsOver("t0", ("a", "b"), "done")).changed == 1
    assert apply(store, job, act.ItemsOver("t0", ("a",), "failed", "late")).changed == 0
    assert not store.item_over(job, "t0", "b", "failed", "late", NOW)
    assert store.item_over(job, "t0", "c", "failed", "exit 3", NOW)
    assert [(i.item, i.state, i.detail) for i in store.items(job)] == [
        ("a", "done", ""), ("b", "done", ""), ("c", "failed", "exit 3")
    ]  # fmt: skip


def test_a_job_has_one_machine_for_each_of_its_workers(store: Store) -> None:
    job = add(store)
    for worker in range(2):
        apply(store, job, act.OpenRental(OFFER, NOW + 100, Reason.TTL, Decimal(1), worker))
    assert [rental.worker for rental in store.rentals(job)] == [0, 1]
    with pytest.raises(IllegalStep):
        apply(store, job, act.OpenRental(OFFER, NOW + 100, Reason.TTL, Decimal(1), 1))


def test_reports_of_a_kept_leg_are_the_new_runs_too(store: Store) -> None:
    job = add(store)
    run = run_on(store, job, rent(store, job).id, "t0", 1)
    store.reported(run, [(1, 0.5)], 9, NOW)
    store.keep_reports("other", job, "t0")
    assert [(r.step, r.value, r.n) for r in store.reports("other")] == [(1, 0.5, 0)]
