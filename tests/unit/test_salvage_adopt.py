"""What `adopt`, `prune` and `forget` write: the real store, without a provider or a machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from cli_books import Books as Driven
from cli_books import home_at, offer

from orchestrator import actions, adoption, requests
from orchestrator.books import Books, Verdict
from orchestrator.home import Home
from orchestrator.loop import Loop
from orchestrator.model import Job, Outcome, Policy, Reason, Rental, RentalPhase
from orchestrator.policy import policy_of
from orchestrator.reconcile import reconcile
from orchestrator.records import keep_job, keep_rental
from orchestrator.store import Store, StoreError

NOW = 1_800_000_000.0
END = NOW + 3600
RENTAL, NONCE = "gj-d3p1oy-aaaabbbbcccc", "n" * 32


@dataclass
class Bench:
    """As much of a loop as the verbs touch; everything it is told is kept."""

    home: Home
    store: Store
    books: Books
    verdict: Verdict = Verdict.LOST
    touched: list[str] = field(default_factory=list)
    trusted: int = 0
    accounts: Any = None
    clock: Any = None
    money: Any = None

    def __post_init__(self) -> None:
        self.accounts = self.clock = self.money = self

    @property
    def doubtful(self) -> bool:
        return self.verdict is not Verdict.OK

    def utc(self) -> float:
        return NOW

    def list_now(self) -> None: ...

    def bill(self, rental: Rental, until: float) -> None: ...

    def touch(self, job: str) -> None:
        self.touched.append(job)

    def trust(self) -> None:
        self.trusted += 1
        self.verdict = Verdict.OK

    def spec_of(self, job: Job) -> tuple[Any, Policy]:
        from jobspecs.schema import from_document

        spec = from_document(job.spec)
        return spec, policy_of(spec, job)

    def ask(self, verb: str, **args: Any) -> Mapping[str, Any]:
        """As a verb asks: one transaction, and its answer."""
        number = self.store.ask(verb, {"deployment": self.books.deployment, **args})
        (request,) = self.store.open_requests()
        requests.answer(cast(Loop, self), request)
        answer = self.store.answer_of(number)
        assert answer is not None
        return answer


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    home = home_at(tmp_path)
    books = Books(home, known_deployment="d3p1oy")
    with Store.open_writer(home, 1000, deployment="d3p1oy", network=lambda _: None) as store:
        yield Bench(home, store, books)


def wish(**changes: Any) -> Job:
    from jobspecs.schema import from_document, spec_hash, to_document

    spec = from_document({"name": "digits", "gpu": "none", "run": "true", "ttl": "2h", "providers": ["local"]})
    row = Job(
        id="digits-1-abcd", name="digits", run=1, spec=to_document(spec), spec_hash=spec_hash(spec), snapshot="",
        base_dir="/base", created_at=NOW - 600,
    )  # fmt: skip
    return replace(row, **changes)


def rental_row(attempt: int = 1) -> Rental:
    return Rental(
        RENTAL, "digits-1-abcd", attempt, offer(), RentalPhase.LIVE, END, END, Reason.TTL, Decimal(1), NONCE, NOW - 500
    )


def status(**runs: Mapping[str, Any]) -> dict[str, Any]:
    """An agent's answer."""
    shown = {key.replace("_", "."): run for key, run in runs.items()}
    return {"nonce": NONCE, "deadline": {"end": END, "confirmed": True}, "supervisor": True, "runs": shown}


RUNNING = {"state": "run", "stage": "run", "rc": None, "dead": False, "closed": False, "started": NOW - 400}
CLOSED = {"state": "exited", "stage": "run", "rc": 85, "dead": True, "closed": True, "started": NOW - 450}


def seen(**changes: Any) -> dict[str, Any]:
    base = {
        "provider": "local", "account": "a", "region": "host", "id": "i-1", "kind": "instance", "rental": RENTAL,
        "job": "digits-1-abcd", "owner": "me", "hourly": "0.34", "currency": "USD", "machine_id": "m",
        "created_at": NOW - 500, "ends_at": END + 5, "nonce": NONCE, "status": status(t0_2=RUNNING), "how": "resume",
    }  # fmt: skip
    return {**base, **changes}


def with_records(bench: Bench, attempt: int = 1) -> None:
    keep_job(bench.home, wish())
    keep_rental(bench.home, rental_row(attempt))


def test_a_machine_with_all_its_records_goes_on(bench: Bench) -> None:
    with_records(bench, attempt=2)
    running = status(t0_1=CLOSED, t0_2=RUNNING)
    answer = bench.ask("adopt", machines=[seen(status=running)], complete=True, alive=[RENTAL])
    assert [(each["how"], each["end"]) for each in answer["taken"]] == [("resume", END)]
    (job,) = bench.store.active_jobs()
    assert (job.id, job.outcome, job.first_rental_at) == ("digits-1-abcd", None, END - 7200)  # its ttl ends with it
    (row,) = bench.store.rentals(job.id)
    assert (row.phase, row.attempt, row.nonce, row.end, row.provider_id) == (RentalPhase.LIVE, 2, NONCE, END, "i-1")
    first, second = bench.store.assignments(job.id)
    assert (first.n, first.exit.rc if first.exit else None, first.closed_at) == (1, 85, NOW)
    assert (second.n, second.exit, second.ordered_at, second.closed_at) == (2, None, NOW - 400, None)
    assert (bench.trusted, bench.books.check(1000, "d3p1oy", 1)) == (1, Verdict.OK)


def test_what_is_left_unknown_keeps_the_books_in_doubt(bench: Bench) -> None:
    with_records(bench)
    answer = bench.ask("adopt", machines=[seen()], complete=False, alive=[RENTAL])
    assert (answer["accepted"], bench.trusted, bench.verdict) == (False, 0, Verdict.LOST)


def test_a_look_under_another_tag_is_refused_whole(bench: Bench) -> None:
    answer = bench.ask("adopt", machines=[seen()], complete=True, deployment="0ther1")
    assert (answer["ok"], bench.store.active_jobs(), bench.trusted) == (False, (), 0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"status": None}, "agent's answer"),
        ({"nonce": "x" * 32}, "did not prove"),
        ({"status": {"runs": {}, "deadline": None}}, "no end"),
    ],
)
def test_without_proof_it_is_held_and_nothing_is_ever_started(bench: Bench, changes: Any, why: str) -> None:
    with_records(bench)
    answer = bench.ask("adopt", machines=[seen(**changes)], complete=True, alive=[RENTAL])
    (line,) = answer["taken"]
    assert line["how"] == "hold"
    assert why in line["why"]
    (job,) = bench.store.active_jobs()
    assert (job.outcome, job.reason, job.held_until) == (Outcome.CANCELLED, Reason.ORPHAN, END + 5)
    assert "gpujob cancel" in job.detail
    assert bench.store.assignments(job.id) == ()
    assert bench.store.rentals(job.id)[0].end == END + 5  # the provider's own timer


def test_an_end_that_nobody_tells_is_no_end_now(bench: Bench) -> None:
    bench.ask("adopt", machines=[seen(status=None, ends_at=None, created_at=NOW - 86_400, how="hold")], complete=True)
    (job,) = bench.store.active_jobs()
    assert bench.store.rentals(job.id)[0].end == NOW + adoption.LEAST_LEFT_S
    assert "a guess" in job.detail


def test_a_held_orphan_is_left_alone_by_the_core_until_cancelled(bench: Bench) -> None:
    """Decided with its own rows: kept while held, released with the reason `orphan` once cancelled."""
    import core_facts

    bench.ask("adopt", machines=[seen(status=None, how="hold")], complete=True, alive=[RENTAL])
    (job,) = bench.store.active_jobs()
    (row,) = bench.store.rentals(job.id)
    _, policy = bench.spec_of(job)
    lost = core_facts.live(row=row, machine=core_facts.machine(connected=False, failures=3, failed_awake_s=0.0))
    facts = core_facts.facts(lost, now=NOW + 60, job=job, tasks=bench.store.tasks(job.id))
    decided = reconcile(facts, policy)
    assert not [a for a in decided.actions if isinstance(a, (actions.Release, actions.CommitAssignment))]
    bench.store.cancel(job.id, NOW + 60)
    decided = reconcile(replace(facts, job=bench.store.job(job.id)), policy)
    assert [a.reason for a in decided.actions if isinstance(a, actions.Release)] == [Reason.ORPHAN]


def test_a_name_that_is_taken_does_not_stop_an_adoption(bench: Bench) -> None:
    keep_rental(bench.home, rental_row())
    keep_job(bench.home, wish())
    bench.store.add_job(wish(id="digits-7-zzzz", run=7), [])
    answer = bench.ask("adopt", machines=[seen()], complete=True, alive=[RENTAL])
    assert answer["taken"][0]["how"] == "hold"
    assert "another job is called digits" in answer["taken"][0]["why"]
    names = {job.name for job in bench.store.active_jobs()}
    assert names == {"digits", "digits-cccc"}


def test_adopting_twice_changes_nothing(bench: Bench) -> None:
    with_records(bench)
    bench.ask("adopt", machines=[seen()], complete=True, alive=[RENTAL])
    before = bench.store.all_rentals()
    answer = bench.ask("adopt", machines=[seen()], complete=True, alive=[RENTAL])
    assert [each["how"] for each in answer["taken"]] == ["known"]
    assert bench.store.all_rentals() == before


def test_a_later_attempt_proves_the_earlier_machine_over(bench: Bench) -> None:
    with_records(bench, attempt=2)
    old = Driven(bench.store, now=NOW - 1000)
    bench.store._db.execute("UPDATE jobs SET id = id")  # the driven job keeps its own id
    keep_job(bench.home, wish(id=old.id))
    keep_rental(bench.home, replace(rental_row(2), job=old.id))
    stale = old.rent()
    answer = bench.ask("adopt", machines=[seen(job=old.id)], complete=True, alive=[RENTAL])
    assert [each["how"] for each in answer["taken"]] == ["resume"]
    first, second = bench.store.rentals(old.id)
    assert (first.id, first.phase, first.quiesced_at) == (stale, RentalPhase.RELEASING, NOW)  # not gone: to be proved
    assert (second.id, second.attempt, second.phase) == (RENTAL, 2, RentalPhase.LIVE)


def test_two_machines_of_one_attempt_are_never_both_the_jobs(bench: Bench) -> None:
    old = Driven(bench.store, now=NOW - 1000)
    keep_job(bench.home, wish(id=old.id))
    keep_rental(bench.home, replace(rental_row(1), job=old.id))
    stale = old.rent()
    answer = bench.ask("adopt", machines=[seen(job=old.id)], complete=True, alive=[RENTAL, stale])
    assert answer["taken"][0]["how"] == "hold"
    assert bench.store.rental(stale).phase is RentalPhase.LIVE
    assert bench.store.rental(RENTAL).job != old.id


def test_jobs_of_an_old_copy_without_a_machine_are_not_rented_for(bench: Bench) -> None:
    bench.verdict = Verdict.BEHIND
    alive, over, pending = (Driven(bench.store, name) for name in ("alive", "over", "pending"))
    kept, lost = alive.rent(), over.rent()
    answer = bench.ask("adopt", machines=[], complete=True, alive=[kept])
    assert sorted(answer["ended"]) == ["over", "pending"]
    assert bench.store.job(alive.id).outcome is None
    for each in (over, pending):
        job = bench.store.job(each.id)
        assert (job.outcome, job.reason, job.terminal_at) == (Outcome.FAILED, Reason.INTERRUPTED, None)
    assert bench.store.rental(lost).phase is RentalPhase.LIVE  # released and proved gone by the usual way


def test_prune_makes_rows_that_stay_until_it_is_gone(bench: Bench) -> None:
    disk = seen(id="d-1", kind="disk", rental="gj-d3p1oy-ddddddddeeee", status=None, nonce="", how="destroy")
    answer = bench.ask("prune", machines=[seen(how="destroy"), disk], complete=True)
    assert [each["how"] for each in answer["taken"]] == ["destroy", "destroy"]
    machine, left = (bench.store.rental(each["rental"]) for each in answer["taken"])
    assert (machine.phase, machine.reason, machine.provider_id) == (RentalPhase.RELEASING, Reason.ORPHAN, "i-1")
    assert (left.phase, left.reason, left.provider_id) == (RentalPhase.RELEASING, Reason.ORPHAN, None)
    assert all(job.outcome is Outcome.CANCELLED for job in bench.store.active_jobs())


def test_prune_of_what_the_books_hold_for_gone_looks_for_it_again(bench: Bench) -> None:
    old = Driven(bench.store, now=NOW - 30 * 86_400)
    gone = old.rent()
    old.decide_done(gone)
    assert bench.store.tombstones(NOW) == ()
    bench.ask("prune", machines=[seen(rental=gone, how="destroy")], complete=True)
    assert [row.id for row in bench.store.tombstones(NOW)] == [gone]


@pytest.mark.parametrize("rental", ["../../etc", "", "GJ x", "a" * 200])
def test_a_tag_that_is_no_id_of_ours_names_no_folder(bench: Bench, rental: str) -> None:
    answer = bench.ask("adopt", machines=[seen(rental=rental, status=None, how="hold")], complete=True)
    (row,) = bench.store.all_rentals()
    assert row.id == answer["taken"][0]["rental"]
    assert row.id.startswith("gj-d3p1oy-")
    assert bench.home.rental(row.id).parent == bench.home.state / "rentals"


def test_forget_ends_only_a_release_and_leaves_a_tombstone(bench: Bench) -> None:
    old = Driven(bench.store, now=NOW - 1000)
    rental = old.rent()
    refused = bench.ask("forget", rental=rental)
    assert (refused["ok"], bench.store.rental(rental).phase) == (False, RentalPhase.LIVE)
    old.apply(actions.Release(rental, Reason.CANCELLED))
    answer = bench.ask("forget", rental=f"i-{rental}")  # the provider's id does as well
    assert (answer["ok"], answer["was_gone"]) == (True, False)
    row = bench.store.rental(rental)
    assert (row.phase, row.gone_at, row.quiesced_at) == (RentalPhase.GONE, NOW, NOW)
    assert [r.id for r in bench.store.tombstones(NOW)] == [rental]
    assert any(e.kind == "forget" and "0.34 USD/h" in e.text for e in bench.store.journal(old.id))
    assert bench.ask("forget", rental=rental)["was_gone"] is True
    assert "gpujob audit" in bench.ask("forget", rental="i-nothing")["error"]


def test_books_in_doubt_refuse_to_rent_and_name_the_way_out(bench: Bench) -> None:
    for verb, args in (("apply", {"job": {"name": "x"}}), ("resume", {"job": "x"})):
        answer = bench.ask(verb, **args)
        assert (answer["ok"], answer["code"]) == (False, 3)
        assert "gpujob audit" in answer["error"]


def test_the_writer_notices_that_its_file_was_taken_away(bench: Bench) -> None:
    bench.store.check_place()
    bench.home.database.rename(bench.home.state / "elsewhere.db")
    with pytest.raises(StoreError, match="deleted or replaced"):
        bench.store.check_place()
    bench.home.database.write_bytes(b"another")
    with pytest.raises(StoreError, match="deleted or replaced"):
        bench.store.check_place()


def test_an_orphan_is_not_watched_so_its_silence_is_no_reason(bench: Bench) -> None:
    import core_facts

    class Watched:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def watch(self, rental: Any, job: Job, spec: Any, runs: Any = ()) -> None:
            self.calls.append(f"watch {job.id}")

        def unwatch(self, rental: str) -> None:
            self.calls.append(f"unwatch {rental}")

    loop = cast(Any, bench)
    loop.machines = Watched()
    bench.ask("adopt", machines=[seen(status=None, how="hold")], complete=True, alive=[RENTAL])
    (job,) = bench.store.active_jobs()
    (row,) = bench.store.rentals(job.id)
    for job_now in (job, replace(job, reason=None)):
        Loop.watch(loop, core_facts.facts(core_facts.live(row=row), job=job_now), cast(Any, None))
    assert loop.machines.calls == [f"unwatch {RENTAL}", f"watch {job.id}"]
