"""Writes of decisions: all or none, only legal steps, never over the budget, each repeatable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from store_rows import OFFER, add, instance, intent, job_row, rent, writer_in

from orchestrator import actions
from orchestrator.model import CheckpointRow, CreateOutcome, Exit, Outcome, Reason, RentalPhase, SignalWhy
from orchestrator.store import NameTaken, NotTheWriter, OverBudget, Store, StoreError
from orchestrator.store.decisions import HOOK_S, TOMBSTONE_S
from orchestrator.transitions import IllegalStep


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with writer_in(tmp_path) as opened:
        yield opened


@pytest.fixture
def job(store: Store) -> str:
    return add(store)


def test_a_job_comes_back_as_it_was_stored(store: Store) -> None:
    row = job_row(data_manifests={"./data": {"bytes": 3}}, resumed_from="demo.0-zz", owner="me", results_dir="/r")
    store.add_job(row, [])
    assert store.job(row.id) == row
    assert store.active_jobs() == (row,)
    assert store.next_run("demo") == 2
    assert store.next_run("other") == 1


def test_a_name_has_one_live_run(store: Store, job: str) -> None:
    with pytest.raises(NameTaken) as caught:
        add(store, run=2)
    assert caught.value.job == job
    assert "--replace" in str(caught.value)
    store.apply(job, [actions.SetOutcome(Outcome.DONE, Reason.DONE), actions.FinishJob()], 30.0)
    assert add(store, run=2) == "demo.2-ab12"


def test_opening_a_rental_opens_an_attempt_and_starts_the_ttl(store: Store, job: str) -> None:
    store.apply(job, [actions.WaitForCapacity()], 15.0)
    applied = store.apply(job, [intent()], 20.0)
    rental = applied.opened[0]
    assert rental.id.startswith("gj-abc123-")
    assert len(rental.id) == len("gj-abc123-") + 12
    assert (rental.phase, rental.attempt, rental.end, rental.wanted_end) == (RentalPhase.INTENT, 1, 5000.0, 5000.0)
    assert rental.offer == OFFER
    assert len(rental.nonce) == 32
    assert [one.n for one in store.attempts(job)] == [1]
    assert (store.job(job).first_rental_at, store.job(job).wait_since) == (20.0, None)
    second = rent_again(store, job, rental.id)
    assert second.attempt == 2
    assert second.nonce != rental.nonce
    assert store.job(job).first_rental_at == 20.0


def rent_again(store: Store, job: str, before: str) -> object:
    store.apply(job, [actions.StoreGone(before, never_made=True, tombstone=False)], 25.0)
    return store.apply(job, [intent()], 26.0).opened[0]


def test_a_second_machine_is_refused_while_the_first_may_run(store: Store, job: str) -> None:
    first = rent(store, job)
    with pytest.raises(IllegalStep, match="rules of the schema"):
        store.apply(job, [intent()], 30.0)
    store.apply(job, [actions.Release(first.id, Reason.INTERRUPTED)], 31.0)
    with pytest.raises(IllegalStep):
        store.apply(job, [intent()], 32.0)
    assert [one.n for one in store.attempts(job)] == [1]
    store.apply(job, [actions.StoreQuiesced(first.id)], 33.0)
    assert store.apply(job, [intent()], 34.0).opened[0].attempt == 2


def test_a_decision_is_stored_whole_or_not_at_all(store: Store, job: str) -> None:
    rental = rent(store, job)
    before = store.journal(job)
    with pytest.raises(IllegalStep):
        store.apply(job, [actions.StoreReady(rental.id), actions.StoreGone(rental.id)], 40.0)  # live -> gone is no step
    assert store.rental(rental.id).ready_at is None
    assert store.journal(job) == before


@pytest.mark.parametrize("reason", [Reason.NO_CAPACITY, Reason.CONFIG])
def test_a_release_needs_a_reason_of_the_closed_list(store: Store, job: str, reason: Reason) -> None:
    rental = rent(store, job)
    with pytest.raises(IllegalStep, match="closed list"):
        store.apply(job, [actions.Release(rental.id, reason)], 40.0)
    assert store.rental(rental.id).phase is RentalPhase.LIVE


def test_a_machine_of_another_job_is_never_touched(store: Store, job: str) -> None:
    other = rent(store, add(store, "other"))
    with pytest.raises(IllegalStep, match="belongs to other"):
        store.apply(job, [actions.Release(other.id, Reason.DONE)], 40.0)
    assert store.rental(other.id).phase is RentalPhase.LIVE


def test_release_quiesced_gone_keep_their_first_times(store: Store, job: str) -> None:
    rental = rent(store, job)
    store.apply(job, [actions.Release(rental.id, Reason.INTERRUPTED, "reclaimed", interrupted=True)], 40.0)
    store.apply(job, [actions.StoreQuiesced(rental.id)], 41.0)
    assert store.apply(job, [actions.StoreQuiesced(rental.id)], 42.0).changed == 0
    store.apply(job, [actions.StoreGone(rental.id)], 43.0)
    assert store.apply(job, [actions.StoreGone(rental.id)], 44.0).changed == 0
    row = store.rental(rental.id)
    assert (row.releasing_at, row.interrupted_at, row.quiesced_at, row.gone_at) == (40.0, 40.0, 41.0, 43.0)
    assert (row.reason, row.detail, row.reserve) == (Reason.INTERRUPTED, "reclaimed", Decimal(0))
    assert row.tombstone_until == 43.0 + TOMBSTONE_S
    assert store.open_rentals() == ()
    assert [one.id for one in store.tombstones(50.0)] == [row.id]
    assert store.tombstones(43.0 + TOMBSTONE_S) == ()


def test_gone_without_a_stored_quiesced_is_quiesced_too(store: Store, job: str) -> None:
    rental = rent(store, job)
    store.apply(job, [actions.Release(rental.id, Reason.DONE), actions.StoreGone(rental.id)], 40.0)
    assert store.rental(rental.id).quiesced_at == 40.0


def test_a_create_never_seen_keeps_its_hooks_worth_reserved(store: Store, job: str) -> None:
    rental = rent(store, job, made=False)
    store.create_sent(rental.id, 21.0)
    store.create_result(rental.id, CreateOutcome.AMBIGUOUS, None, "timeout", 22.0)
    store.apply(job, [actions.StoreGone(rental.id)], 2000.0)
    assert store.rental(rental.id).reserve == Decimal("1.50") * int(HOOK_S) / 3600
    assert store.reserved(job, 2001.0) == Decimal("0.75")
    assert store.reserved(job, 2000.0 + TOMBSTONE_S) == 0


def test_a_refused_create_reserves_nothing_more(store: Store, job: str) -> None:
    rental = rent(store, job, made=False)
    store.create_sent(rental.id, 21.0)
    store.create_result(rental.id, CreateOutcome.REFUSED, None, "no capacity", 22.0)
    assert store.rental(rental.id).detail == "no capacity"
    store.apply(job, [actions.StoreGone(rental.id, never_made=True)], 23.0)
    assert store.reserved(job, 24.0) == 0


def test_one_create_per_rental_ever(store: Store, job: str) -> None:
    rental = rent(store, job, made=False)
    store.create_sent(rental.id, 21.0)
    with pytest.raises(IllegalStep, match="sent before"):
        store.create_sent(rental.id, 22.0)
    assert store.rental(rental.id).create_sent_at == 21.0


def test_no_create_leaves_for_a_rental_that_is_not_wanted_any_more(store: Store, job: str) -> None:
    rental = rent(store, job, made=False)
    store.apply(job, [actions.Release(rental.id, Reason.CANCELLED)], 21.0)
    with pytest.raises(IllegalStep, match="not wanted"):
        store.create_sent(rental.id, 22.0)


def test_a_create_answered_during_a_cancel_stays_releasing_with_its_id(store: Store, job: str) -> None:
    rental = rent(store, job, made=False)
    store.create_sent(rental.id, 21.0)
    store.apply(job, [actions.Release(rental.id, Reason.CANCELLED)], 22.0)
    store.create_result(rental.id, CreateOutcome.MADE, instance("i-late"), "", 23.0)
    row = store.rental(rental.id)
    assert (row.phase, row.provider_id, row.create_outcome) == (RentalPhase.RELEASING, "i-late", CreateOutcome.MADE)


def test_a_machine_found_by_its_tag_is_kept_against_a_later_twin(store: Store, job: str) -> None:
    rental = rent(store, job, made=False)
    store.create_sent(rental.id, 21.0)
    store.create_result(rental.id, CreateOutcome.AMBIGUOUS, None, "reset", 22.0)
    assert store.apply(job, [actions.RecordInstance(rental.id, instance("i-1"))], 23.0).changed == 1
    assert store.apply(job, [actions.RecordInstance(rental.id, instance("i-2"))], 24.0).changed == 0
    row = store.rental(rental.id)
    assert (row.phase, row.provider_id, row.machine_id) == (RentalPhase.LIVE, "i-1", "host-9")
    assert row.create_outcome is CreateOutcome.AMBIGUOUS


def test_spent_and_reserved_never_pass_the_budget(store: Store, job: str) -> None:
    with pytest.raises(OverBudget, match=r"budget of 2\.99"):
        store.apply(job, [intent(reserve="3")], 20.0, budget=Decimal("2.99"))
    assert store.rentals(job) == ()
    assert store.attempts(job) == ()
    assert len(store.apply(job, [intent(reserve="3")], 20.0, budget=Decimal(3)).opened) == 1


def test_a_bill_moves_money_out_of_the_reserve_and_never_shrinks(store: Store, job: str) -> None:
    rental = rent(store, job)
    store.bill(rental.id, "instance", Decimal("1.25"), 30.0)
    store.bill(rental.id, "disk", Decimal("0.25"), 30.0)
    store.bill(rental.id, "instance", Decimal("1.00"), 29.0)
    assert (store.spent(job), store.reserved(job, 31.0)) == (Decimal("1.50"), Decimal("1.50"))
    assert store.spent_by_rental(job) == {rental.id: Decimal("1.50")}
    store.bill(rental.id, "instance", Decimal("9.00"), 40.0)  # an overrun: a liability, not a credit
    assert (store.spent(job), store.reserved(job, 41.0)) == (Decimal("9.25"), Decimal(0))
    bill = store.ledger(job)[0]
    assert (bill.kind, bill.amount, bill.until, bill.region) == ("disk", Decimal("0.25"), 30.0, "eu-1")


def test_a_longer_end_is_reserved_before_any_timer_moves(store: Store, job: str) -> None:
    rental = rent(store, job)
    longer = actions.WantEnd(rental.id, 9000.0, Reason.BUDGET, Decimal(5))
    with pytest.raises(OverBudget):
        store.apply(job, [longer], 30.0, budget=Decimal("4.99"))
    assert store.rental(rental.id).wanted_end == 5000.0
    assert store.apply(job, [longer], 30.0, budget=Decimal(5)).changed == 1
    assert store.apply(job, [longer], 31.0, budget=Decimal(5)).changed == 0
    row = store.rental(rental.id)
    assert (row.end, row.wanted_end, row.end_reason, row.reserve) == (5000.0, 9000.0, Reason.BUDGET, Decimal(5))


def test_a_shorter_end_frees_its_reserve_only_when_confirmed(store: Store, job: str) -> None:
    rental = rent(store, job)
    shorter = actions.WantEnd(rental.id, 2000.0, Reason.TTL, Decimal(1))
    assert store.apply(job, [shorter], 30.0, budget=Decimal("0.50")).changed == 1  # freeing never asks the budget
    assert (store.rental(rental.id).end, store.reserved(job, 31.0)) == (5000.0, Decimal(3))
    store.bill(rental.id, "instance", Decimal("0.40"), 32.0)
    assert store.reserved(job, 33.0) == Decimal("2.60")
    assert store.apply(job, [actions.ConfirmEnd(rental.id)], 34.0).changed == 1
    assert store.apply(job, [actions.ConfirmEnd(rental.id)], 35.0).changed == 0
    row = store.rental(rental.id)
    assert (row.end, row.wanted_end, row.reserve) == (2000.0, 2000.0, Decimal("0.60"))


def test_a_late_confirmation_reserves_nothing_for_a_machine_that_is_gone(store: Store, job: str) -> None:
    rental = rent(store, job)
    store.apply(job, [actions.WantEnd(rental.id, 9000.0, Reason.TTL, Decimal(5))], 30.0)
    store.apply(job, [actions.Release(rental.id, Reason.DONE), actions.StoreGone(rental.id)], 31.0)
    store.apply(job, [actions.ConfirmEnd(rental.id)], 32.0)
    assert store.rental(rental.id).reserve == 0


def test_the_end_of_a_machine_on_its_way_out_is_not_extended(store: Store, job: str) -> None:
    rental = rent(store, job)
    store.apply(job, [actions.Release(rental.id, Reason.DONE)], 30.0)
    with pytest.raises(IllegalStep, match="not moved"):
        store.apply(job, [actions.WantEnd(rental.id, 9000.0, Reason.TTL, Decimal(4))], 31.0)


def test_other_currencies_count_by_their_rate_or_not_at_all(store: Store, job: str) -> None:
    yuan = replace(OFFER, currency="CNY")
    with pytest.raises(ValueError, match="no rate from CNY to USD"):
        store.apply(job, [intent(reserve="10", offer=yuan)], 20.0, budget=Decimal(100))
    assert store.rentals(job) == ()
    rates = {"CNY": Decimal("0.14")}
    store.apply(job, [intent(reserve="10", offer=yuan)], 20.0, budget=Decimal("1.40"), rates=rates)
    assert store.reserved(job, 21.0, rates) == Decimal("1.40")


def test_real_money_counts_against_the_limits_and_play_money_does_not(store: Store, job: str) -> None:
    real = rent(store, job)
    store.bill(real.id, "instance", Decimal(1), 500.0)
    other = add(store, "play")
    played = store.apply(other, [intent(reserve="7", offer=replace(OFFER, provider="local"))], 20.0).opened[0]
    store.bill(played.id, "instance", Decimal(2), 500.0, play=True)
    assert store.committed_since(100.0, 501.0, "USD") == Decimal(3)
    assert store.committed_since(501.0, 501.0, "USD") == Decimal(2)  # the bill ended before; the reserve still counts


def commit(rental: str, n: int = 1, **changes: object) -> actions.CommitAssignment:
    row = actions.CommitAssignment("t0", n, rental, ("m1", "m2"), "m2", "step_20", 20)
    return replace(row, **changes)  # type: ignore[arg-type]


def test_a_run_is_committed_with_its_seal_and_once(store: Store, job: str) -> None:
    rental = rent(store, job)
    assert store.apply(job, [commit(rental.id)], 30.0).changed == 1
    assert store.apply(job, [commit(rental.id)], 31.0).changed == 0
    run = store.assignments(job)[0]
    assert (run.key, run.rental, run.seal, run.resume_step, run.committed_at) == (
        "t0.1", rental.id, ("m1", "m2"), 20, 30.0,
    )  # fmt: skip


def test_only_a_run_that_was_never_ordered_gets_another_resume_point(store: Store, job: str) -> None:
    rental = rent(store, job)
    store.apply(job, [commit(rental.id)], 30.0)
    other = actions.ResumeOther("t0", 1, ("m1",), "m1", "step_10", 10)
    assert store.apply(job, [other], 31.0).changed == 1
    assert store.apply(job, [other], 32.0).changed == 0
    run = store.assignments(job)[0]
    assert (run.seal, run.resume_hash, run.resume_name, run.resume_step) == (("m1",), "m1", "step_10", 10)
    store.ordered(job, "t0", 1, 33.0)
    assert store.apply(job, [actions.ResumeOther("t0", 1, (), "m0", "step_5", 5)], 34.0).changed == 0
    assert store.assignments(job)[0].resume_hash == "m1"


def test_a_successor_run_waits_until_the_one_before_can_never_run_again(store: Store, job: str) -> None:
    first = rent(store, job)
    store.apply(job, [commit(first.id)], 30.0)
    with pytest.raises(IllegalStep, match=r"t0\.1 .* may still be running"):
        store.apply(job, [commit(first.id, 2)], 31.0)
    store.closed(job, "t0", 1, 32.0)
    assert store.apply(job, [commit(first.id, 2)], 33.0).changed == 1
    store.apply(job, [actions.Release(first.id, Reason.INTERRUPTED), actions.StoreQuiesced(first.id)], 34.0)
    second = rent(store, job, 35.0)
    assert store.apply(job, [commit(second.id, 3)], 40.0).changed == 1
    with pytest.raises(IllegalStep, match="committed on"):
        store.apply(job, [commit(second.id, 2)], 41.0)


def test_nothing_is_started_on_a_machine_that_is_being_released(store: Store, job: str) -> None:
    rental = rent(store, job)
    store.apply(job, [actions.Release(rental.id, Reason.CANCELLED)], 30.0)
    with pytest.raises(IllegalStep, match="nothing is started"):
        store.apply(job, [commit(rental.id)], 31.0)


def test_the_story_of_a_run(store: Store, job: str) -> None:
    rental = rent(store, job)
    store.apply(job, [commit(rental.id)], 30.0)
    store.ordered(job, "t0", 1, 31.0)
    end = Exit("run", 143, 50.0, SignalWhy.INTERRUPTION)
    store.apply(job, [actions.StoreExit("t0", 1, end)], 51.0)
    assert store.apply(job, [actions.StoreExit("t0", 1, Exit("run", 0, 52.0))], 52.0).changed == 0
    store.closed(job, "t0", 1, 53.0)
    row = CheckpointRow(job, "t0", 1, "step_40", 40, "m3", 1000, "m2", 54.0)
    store.checkpoint_durable(row)
    store.checkpoint_durable(row)
    store.last_step(job, "t0", 1, 30)
    store.environment(job, "t0", 1, {"driver": "550"})
    store.apply(job, [actions.StoreResultsLost("t0", 1, "reclaimed")], 55.0)
    store.results_done(job, "t0", 1, "/base/results", 56.0)
    run = store.assignments(job)[0]
    assert (run.ordered_at, run.exit, run.closed_at, run.results_at) == (31.0, end, 53.0, 56.0)
    assert (run.last_step, run.environment, run.results_lost) == (40, {"driver": "550"}, "reclaimed")
    assert store.job(job).results_dir == "/base/results"
    assert store.checkpoints(job) == (row,)
    store.checkpoint_pruned(job, "t0", 1, "m3", 57.0)
    assert store.checkpoints(job) == ()


def test_a_receipt_for_a_run_that_was_never_committed_is_a_bug(store: Store, job: str) -> None:
    with pytest.raises(IllegalStep, match=r"no run t0\.4"):
        store.ordered(job, "t0", 4, 31.0)


def test_an_outcome_is_set_once_and_a_job_ends_only_when_nothing_bills(store: Store, job: str) -> None:
    rental = rent(store, job)
    with pytest.raises(IllegalStep, match="no outcome"):
        store.apply(job, [actions.FinishJob()], 40.0)
    failed = actions.SetOutcome(Outcome.FAILED, Reason.FAILED, "ValueError: x", 1)
    assert store.apply(job, [failed, actions.Hold(90.0)], 41.0).changed == 2
    again = [actions.SetOutcome(Outcome.DONE, Reason.DONE), actions.Hold(99.0)]
    assert store.apply(job, again, 42.0).changed == 0
    with pytest.raises(IllegalStep, match="may still bill"):
        store.apply(job, [actions.FinishJob()], 43.0)
    with pytest.raises(IllegalStep, match="has its outcome"):
        store.apply(job, [intent()], 44.0)
    store.end_hold(job, 45.0)
    gone = [actions.Release(rental.id, Reason.FAILED), actions.StoreGone(rental.id), actions.FinishJob()]
    store.apply(job, gone, 46.0)
    row = store.job(job)
    assert (row.outcome, row.reason, row.detail, row.exit_code, row.outcome_at, row.held_until, row.terminal_at) == (
        Outcome.FAILED, Reason.FAILED, "ValueError: x", 1, 41.0, 45.0, 46.0,
    )  # fmt: skip
    assert store.tasks(job)[0].outcome is Outcome.FAILED
    assert store.active_jobs() == ()


def test_users_edits_of_a_live_job(store: Store, job: str) -> None:
    store.cancel(job, 20.0)
    store.cancel(job, 25.0, at_once=True)
    store.cancel(job, 26.0)
    store.extend(job, 3600.0, 27.0)
    store.extend(job, 60.0, 28.0)
    store.edit_spec(job, {"name": "demo", "budget": "9 USD"}, "h2", Decimal(3), 29.0)
    row = store.job(job)
    assert (row.cancel_at, row.cancel_now, row.ttl_extra_s) == (20.0, True, 3660.0)
    assert (row.spec["budget"], row.spec_hash, row.price_cap) == ("9 USD", "h2", Decimal(3))
    store.apply(job, [actions.SetOutcome(Outcome.CANCELLED, Reason.CANCELLED), actions.FinishJob()], 30.0)
    with pytest.raises(StoreError, match="is over"):
        store.extend(job, 60.0, 31.0)


def test_an_alarm_is_raised_once_an_hour(store: Store, job: str) -> None:
    alarm = actions.Alarm("release-slow", "still billing", "gj-1")
    other = replace(alarm, rental="gj-2")
    assert store.apply(job, [alarm], 100.0).alarms == (alarm,)
    assert store.apply(job, [alarm, other], 3000.0).alarms == (other,)
    assert store.apply(job, [alarm], 3701.0).alarms == (alarm,)
    assert [line.text for line in store.journal(job) if line.kind == "alarm:release-slow"] == ["still billing"] * 3


def test_what_changed_is_in_the_journal_in_the_same_commit(store: Store, job: str) -> None:
    rental = rent(store, job)
    store.apply(job, [actions.Release(rental.id, Reason.TTL, "12h are over")], 40.0)
    last = store.journal(job)[-1]
    assert (last.kind, last.rental, last.at) == ("release", rental.id, 40.0)
    assert last.data["reason"] == "ttl"
    assert "12h are over" in last.text


def test_grouped_writes_are_committed_together(store: Store, job: str) -> None:
    request = store.ask("extend", {"job": job}, 20.0)

    def extend_and_fail() -> None:
        with store.transaction():
            store.extend(job, 60.0, 21.0)
            store.answer(request, {"ok": True}, 21.0)
            raise RuntimeError("killed in between")

    with pytest.raises(RuntimeError, match="killed"):
        extend_and_fail()
    assert store.job(job).ttl_extra_s == 0
    assert [one.id for one in store.open_requests()] == [request]


def test_only_the_writer_writes(tmp_path: Path, store: Store, job: str) -> None:
    from store_rows import home_in

    with Store.open_requester(home_in(tmp_path)) as asking, pytest.raises(NotTheWriter):
        asking.cancel(job, 30.0)
    with Store.open_reader(home_in(tmp_path)) as reading, pytest.raises(NotTheWriter):
        reading.ask("cancel", {})
    assert store.job(job).cancel_at is None
