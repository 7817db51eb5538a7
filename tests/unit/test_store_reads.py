"""Reading: every field has its column, `ps` in few queries, what a user types finds its job."""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from store_rows import OFFER, add, home_in, intent, job_row, rent, writer_in

import orchestrator.store
from orchestrator import actions, model
from orchestrator.model import Exit, Outcome, Reason
from orchestrator.store import ItemRow, JobRef, NoSuchJob, Progress, ReportRow, Store, StoreError
from orchestrator.store.journal import KEEP_LINES, PRUNE_EVERY
from orchestrator.store.queries import queries, tables_written
from orchestrator.store.rows import Preflight
from orchestrator.transitions import DISRUPTIONS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with writer_in(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(
    ("table", "cls", "own"),
    [
        ("jobs", model.Job, set()),
        ("tasks", model.Task, set()),
        ("attempts", model.Attempt, set()),
        ("rentals", model.Rental, {"provider", "account", "region", "wanted_reserve", "epoch"}),
        ("assignments", model.Assignment, set()),
        ("checkpoints", model.CheckpointRow, {"pruned_at"}),
        ("progress", Progress, set()),
        ("reports", ReportRow, set()),
        ("items", ItemRow, set()),
        ("preflights", Preflight, set()),
    ],
)
def test_every_field_has_a_column_and_the_reverse(store: Store, table: str, cls: Any, own: set[str]) -> None:
    columns = {row[1] for row in store._db.execute(f"PRAGMA table_info({table})")}
    assert {field.name for field in dataclasses.fields(cls)} == columns - own


def test_every_query_is_used() -> None:
    folder = Path(orchestrator.store.__file__).parent
    code = "\n".join(file.read_text() for file in folder.glob("*.py"))
    unused = [name for name in queries() if not re.search(rf'"{name}"', code)]
    assert unused == []


def test_the_listings_own_words_for_lost_attempts_are_those_of_the_table() -> None:
    match = re.search(r"o\.reason IN \((.*?)\)", queries()["summaries"])
    assert match is not None
    assert set(re.findall(r"'([a-z-]+)'", match[1])) == {reason.value for reason in DISRUPTIONS}


def test_rows_are_not_read_where_there_are_none(store: Store) -> None:
    with pytest.raises(StoreError, match="no job nothing"):
        store.job("nothing")
    with pytest.raises(StoreError, match="no rental nothing"):
        store.rental("nothing")
    assert (store.jobs(), store.open_rentals(), store.journal(), store.summaries()) == ((), (), (), [])


def test_lists_of_jobs(store: Store) -> None:
    old = add(store, "old", created_at=10.0)
    add(store, "new", created_at=20.0)
    store.apply(old, [actions.SetOutcome(Outcome.DONE, Reason.DONE), actions.FinishJob()], 30.0)
    assert [job.name for job in store.jobs()] == ["new", "old"]
    assert [job.name for job in store.jobs(limit=1)] == ["new"]
    assert [job.name for job in store.jobs(live_only=True)] == ["new"]
    assert [line.name for line in store.summaries()] == ["new", "old"]
    assert [line.name for line in store.summaries(live_only=True)] == ["new"]


def test_a_line_of_ps(store: Store) -> None:
    job = add(store, created_at=10.0)
    bare = store.summaries()[0]
    assert (bare.rental, bare.provider, bare.hourly, bare.currency, bare.attempts) == ("", "", None, "USD", 0)
    assert (bare.spent, bare.reserved, bare.open_rentals, bare.exited) == ({}, {}, 0, False)
    first = rent(store, job)
    store.apply(job, [actions.Release(first.id, Reason.INTERRUPTED), actions.StoreQuiesced(first.id)], 30.0)
    second = rent(store, job, 40.0, reserve="2")
    store.apply(
        job,
        [actions.StoreReady(second.id), actions.CommitAssignment("t0", 2, second.id, (), "", "", None)],
        50.0,
    )
    store.ordered(job, "t0", 2, 51.0)
    store.progress_seen(job, "t0", 2, 60.0, step=30, total=100, sample={"gpu": 90}, phase="run")
    store.progress_seen(job, "t0", 2, 61.0)
    store.bill(first.id, "instance", Decimal("0.5"), 61.0)
    store.bill(second.id, "instance", Decimal("0.2"), 61.0, play=True)
    line = store.summaries(now=62.0)[0]
    assert (line.rental, line.attempts, line.open_rentals, line.phase) == (second.id, 2, 2, "live")
    assert (line.gpu, line.gpu_count, line.spot, line.hourly) == ("RTX-4090", 2, True, Decimal("1.50"))
    assert (line.ready_at, line.n, line.ordered_at, line.exited) == (50.0, 2, 51.0, False)
    assert (line.step, line.total, line.progress_at, line.progress_phase) == (30, 100, 61.0, "run")
    assert (line.spent, line.reserved, line.play) == ({"USD": Decimal("0.7")}, {"USD": Decimal("4.3")}, True)
    store.apply(job, [actions.StoreExit("t0", 2, Exit("run", 0, 70.0))], 70.0)
    assert store.summaries()[0].exited is True
    assert store.progress(job) == (Progress(job, "t0", 2, 61.0, 30.0, 100.0, {"gpu": 90}, "run"),)


def test_a_line_of_ps_takes_the_same_number_of_queries_for_any_number_of_jobs(store: Store) -> None:
    seen: list[str] = []
    counts = []
    for upto in (1, 30):
        for number in range(len(store.jobs()), upto):
            rent(store, add(store, f"job{number}"))
        seen.clear()
        store._db.set_trace_callback(seen.append)
        assert len(store.summaries()) == upto
        store._db.set_trace_callback(None)
        counts.append(len(seen))
    assert counts[0] == counts[1] <= 4


def test_no_read_for_ps_walks_a_whole_table_per_job(store: Store) -> None:
    plan = [
        row[3]
        for row in store._db.execute(f"EXPLAIN QUERY PLAN {queries()['summaries']}", {"live_only": 0, "limit": 9})
    ]
    assert [step for step in plan if step.startswith("SCAN")] == ["SCAN j"]


@pytest.fixture
def named(store: Store) -> dict[str, str]:
    ids = {}
    for name, run in (("lora", 1), ("lora", 2), ("llama-3.1", 1), ("sweep", 1)):
        ids[f"{name}.{run}"] = job = add(store, name, run)
        if (name, run) != ("lora", 2):
            store.apply(job, [actions.SetOutcome(Outcome.DONE, Reason.DONE), actions.FinishJob()], 20.0)
    first = rent(store, ids["lora.2"])
    store.apply(ids["lora.2"], [actions.Release(first.id, Reason.INTERRUPTED), actions.StoreQuiesced(first.id)], 30.0)
    rent(store, ids["lora.2"], 40.0)
    return ids


@pytest.mark.parametrize(
    ("typed", "job", "attempt", "leg"),
    [
        ("lora", "lora.2", None, ""),
        ("lora.1", "lora.1", None, ""),
        ("lora.2@2", "lora.2", 2, ""),
        ("lora@1", "lora.2", 1, ""),
        ("lora.2-ab12", "lora.2", None, ""),
        ("lora.1-ab12/t0", "lora.1", None, "t0"),
        ("llama-3.1", "llama-3.1.1", None, ""),
        ("llama-3.1.1", "llama-3.1.1", None, ""),
        ("sweep/best", "sweep.1", None, "best"),
        ("sweep/t0", "sweep.1", None, "t0"),
    ],
)
def test_find(store: Store, named: dict[str, str], typed: str, job: str, attempt: int | None, leg: str) -> None:
    name, _, run = job.rpartition(".")
    assert store.find(typed) == JobRef(named[job], name, int(run), attempt, leg)


@pytest.mark.parametrize(
    ("typed", "said", "nearest"),
    [
        ("lorra", "no job 'lorra'", ("lora",)),
        ("lora.7", "lora has no run 7", ("lora.1", "lora.2")),
        ("lora@9", "lora.2 has no attempt 9", ("lora@1", "lora@2")),
        ("sweep/lr", "sweep has no leg 'lr'", ("sweep/t0",)),
        ("xyz", "gpujob ps -a", ()),
        ("@", "is not a job", ()),
        ("", "is not a job", ()),
    ],
)
def test_what_is_not_found_names_what_there_is(
    store: Store, named: dict[str, str], typed: str, said: str, nearest: tuple[str, ...]
) -> None:
    with pytest.raises(NoSuchJob, match=re.escape(said)) as caught:
        store.find(typed)
    assert caught.value.nearest == nearest


def test_a_leg_is_found_by_some_of_its_parameters_where_they_tell_it_apart(store: Store) -> None:
    row = job_row("moons")
    values = {"aaa1": {"lr": "0.1", "hidden": "4"}, "bbb2": {"lr": "0.1", "hidden": "16"}, "ccc3": {"lr": "1"}}
    store.add_job(row, [model.Task(row.id, each, params, seq=n) for n, (each, params) in enumerate(values.items(), 1)])
    assert store.find("moons/hidden=16").leg == "bbb2"
    assert store.find("moons/hidden=4,lr=0.1").leg == "aaa1"
    assert store.find("moons/lr=1").leg == "ccc3"
    with pytest.raises(NoSuchJob, match=r"moons has 2 legs with lr=0\.1") as caught:
        store.find("moons/lr=0.1")
    assert caught.value.nearest == ("moons/aaa1", "moons/bbb2")
    with pytest.raises(NoSuchJob, match=r"moons has no leg 'hidden=8'"):
        store.find("moons/hidden=8")


def test_the_journal_keeps_its_newest_lines(store: Store) -> None:
    with store.transaction():
        for number in range(KEEP_LINES + 2 * PRUNE_EVERY):
            store.add_journal(1.0, "note", f"line {number}", job="a" if number % 2 else "b")
    lines = store.journal(limit=10**9)
    assert KEEP_LINES <= len(lines) <= KEEP_LINES + PRUNE_EVERY
    assert lines[-1].text == f"line {KEEP_LINES + 2 * PRUNE_EVERY - 1}"
    assert [line.text for line in store.journal(job="b", limit=1)] == [f"line {KEEP_LINES + 2 * PRUNE_EVERY - 2}"]
    after = store.journal(job="a", since_id=lines[-3].id, limit=9)
    assert [line.id for line in after] == [lines[-1].id]


def test_what_rests_is_forgotten_in_time(store: Store) -> None:
    assert store.rest("pool:a", 100.0, "refused", 50.0) == 1
    assert store.rest("pool:a", 90.0, "refused again", 60.0) == 2
    store.rest("machine:acme:m1", 70.0, "bad host", 60.0)
    assert store.resting(65.0) == {"pool:a": "refused again", "machine:acme:m1": "bad host"}
    assert store.resting(80.0) == {"pool:a": "refused again"}
    assert store.rest("pool:a", 200_100.0, "refused", 200_000.0) == 1


def test_prices_are_kept_with_their_time(store: Store) -> None:
    assert store.prices("acme", "4090") is None
    store.put_prices("acme", "4090", [OFFER], 10.0)
    store.put_prices("acme", "4090", [OFFER, dataclasses.replace(OFFER, key="m2")], 20.0)
    at, offers = store.prices("acme", "4090") or (0.0, ())
    assert (at, [offer.key for offer in offers]) == (20.0, ["m1", "m2"])
    assert offers[0] == OFFER


def test_an_offer_of_another_version_is_still_read(store: Store) -> None:
    job = add(store)
    rental = store.apply(job, [intent()], 20.0).opened[0].id
    store._db.execute("UPDATE rentals SET offer = json_set(offer, '$.of_the_future', 1)")
    assert store.rental(rental).offer == OFFER


def test_a_reader_sees_what_the_writer_committed_and_cannot_write(store: Store, tmp_path: Path) -> None:
    with Store.open_reader(home_in(tmp_path)) as reader:
        with store.transaction():
            add(store)
            assert reader.jobs() == ()  # and does not wait for the writer
        assert [job.name for job in reader.jobs()] == ["demo"]
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._db.execute("DELETE FROM jobs")


def test_a_machines_name_that_is_no_text_is_kept_in_the_journal(store: Store) -> None:
    store.add_journal(1.0, "agent:checkpoint", "name=step\udcff6", data={"name": "step\udcff6"})
    row = store.journal(limit=1)[-1]
    assert row.text == "name=step\\udcff6"
    assert row.data["name"] == "step\udcff6"


def test_what_is_kept_of_a_job_is_what_the_books_hold(store: Store) -> None:
    job = add(store)
    rental = rent(store, job).id
    before = store.rentals(job)
    assert store.rentals(job) is before  # built once
    store.apply(job, [actions.StoreReady(rental)], 2000.0)
    kept = store.rentals(job)
    assert kept[0].ready_at == 2000.0

    def roll_back() -> None:
        with store.transaction():
            store.apply(job, [actions.StoreQuiesced(rental)], 3000.0)
            assert store.rentals(job)[0].quiesced_at == 3000.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        roll_back()
    assert store.rentals(job) == kept
    other = sqlite3.connect(store.path, isolation_level=None)  # as another process
    other.execute("UPDATE rentals SET detail = 'looked at'")
    other.close()
    assert store.rentals(job)[0].detail == "looked at"


def test_every_statement_that_writes_is_known_by_its_table() -> None:
    writes = {name for name, text in queries().items() if not text.upper().startswith(("SELECT", "WITH", "PRAGMA"))}
    assert tables_written().keys() == writes
    assert tables_written()["set_outcome"] == "jobs"
    assert not [
        name for name, text in queries().items() if text.upper().startswith("WITH") and "UPDATE" in text.upper()
    ]
