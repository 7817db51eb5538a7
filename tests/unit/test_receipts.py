"""What answers of the world change: rows, memory, and when something may be tried again."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import core_facts as cf
import pytest
from core_facts import T0
from loop_desk import Desk

from orchestrator import actions as act
from orchestrator import placement
from orchestrator.messages import Listed, Lost, ProgressSeen, Reached, Receipt
from orchestrator.model import CreateOutcome, Outcome, Reason, RentalPhase, Unknown
from orchestrator.money_report import class_of
from providers.base import DestroyAck, Listing, Ref, Resource
from providers.errors import ProviderError

OFFERS = {"offers": (cf.OFFER, cf.DEMAND), "failed": {}}


@pytest.fixture
def desk(tmp_path: Path) -> Any:
    with Desk(tmp_path) as found:
        yield found


def asked(desk: Desk) -> act.SendCreate:
    """A job up to its create call."""
    desk.apply(spec={"run": "python train.py --resume $GPUJOB_RESUME_FROM"})
    desk.receipt(desk.effects(act.AskOffers)[0], data=OFFERS)
    [create] = desk.effects(act.SendCreate)
    assert isinstance(create, act.SendCreate)
    return create


def test_the_intent_and_create_sent_are_stored_before_the_call_leaves(desk: Desk) -> None:
    rental = desk.store.rental(asked(desk).rental)
    assert (rental.phase, rental.create_sent_at, rental.create_outcome) == (RentalPhase.INTENT, T0, None)
    assert rental.reserve > 0


def test_an_ambiguous_create_is_looked_for_and_never_sent_again(desk: Desk) -> None:
    create = asked(desk)
    desk.receipt(create, "ambiguous", detail="time-out")
    assert desk.store.rental(create.rental).create_outcome is CreateOutcome.AMBIGUOUS
    assert desk.accounts.listed_now == 1
    for _ in range(20):
        desk.turn(after=30.0)
    assert len(desk.effects(act.SendCreate)) == 1
    found = Listing((desk.instance(create.rental),))
    desk.turn(Listed("prov", "acc", "r1", desk.clock.utc(), found))
    assert desk.store.rental(create.rental).provider_id == "i-1"


def test_a_refused_create_rests_its_pool_and_takes_the_next_offer(desk: Desk) -> None:
    create = asked(desk)
    desk.receipt(create, "refused", detail="no-capacity: none left")
    first = desk.store.rental(create.rental)
    assert (first.create_outcome, first.phase) == (CreateOutcome.REFUSED, RentalPhase.GONE)
    assert placement.pool_key(cf.OFFER) in desk.store.resting(desk.clock.utc())
    desk.turn(after=2.0)
    desk.receipt(desk.effects(act.AskOffers)[-1], data=OFFERS)
    second = desk.effects(act.SendCreate)[-1]
    assert (first.offer.key, desk.store.rental(second.rental).offer.key) == ("m1-spot", "m1")


@pytest.mark.parametrize(("rest_s", "until"), [(30.0, 30.0), (None, 10.0)])
def test_a_create_that_was_asked_for_too_often_made_nothing_and_its_account_rests_for_that_moment(
    desk: Desk, rest_s: float | None, until: float
) -> None:
    create = asked(desk)
    at = desk.clock.utc()
    waits = {"account": Reason.PROVIDER, "rest_s": rest_s}
    desk.receipt(create, "refused", detail="rate-limit: slow down", data=waits)
    first = desk.store.rental(create.rental)
    assert (first.create_outcome, first.phase) == (CreateOutcome.REFUSED, RentalPhase.GONE)
    key = placement.account_key("prov", "acc")
    assert key in desk.store.resting(at + until - 1)
    assert key not in desk.store.resting(at + until + 1)
    desk.turn(after=2.0)
    desk.receipt(desk.effects(act.AskOffers)[-1], data=OFFERS)
    assert len(desk.effects(act.SendCreate)) == 1
    assert desk.job().outcome is None  # a wait, not an end
    desk.turn(after=until + 60.0)
    desk.receipt(desk.effects(act.AskOffers)[-1], data=OFFERS)
    assert len(desk.effects(act.SendCreate)) == 2


def test_an_account_that_cannot_work_rests_as_a_whole_and_ends_the_job(desk: Desk) -> None:
    create = asked(desk)
    desk.receipt(create, "refused", detail="quota: 0 of 0 vCPUs", fatal=Reason.QUOTA, data={"account": Reason.QUOTA})
    desk.turn(after=2.0)
    desk.receipt(desk.effects(act.AskOffers)[-1], data=OFFERS)
    job = desk.job()
    assert (job.outcome, job.reason) == (Outcome.FAILED, Reason.QUOTA)
    assert "0 of 0 vCPUs" in job.detail


def test_a_failure_backs_off_by_doubling_and_a_success_forgets_it(desk: Desk) -> None:
    desk.apply()
    [ask] = desk.effects(act.AskOffers)
    job = desk.job().id
    pauses = []
    for _ in range(4):
        desk.turn(Receipt(ask, job, "failed", desk.clock.utc(), "502"))
        pauses.append(desk.loop.not_before[f"{job}/offers"] - desk.clock.boot())
        desk.clock.advance(pauses[-1])
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    assert desk.loop.observer.job(job).troubles["offers"].count == 4
    desk.turn(Receipt(ask, job, "done", desk.clock.utc(), data=OFFERS))
    assert desk.loop.observer.job(job).troubles == {}


def test_a_rate_limit_is_waited_for_as_long_as_it_says(desk: Desk) -> None:
    desk.apply()
    [ask] = desk.effects(act.AskOffers)
    job = desk.job().id
    desk.turn(Receipt(ask, job, "failed", desk.clock.utc(), "429", retry_after_s=90.0))
    assert desk.loop.not_before[f"{job}/offers"] - desk.clock.boot() == 90.0


def test_missing_acknowledges_nothing(desk: Desk) -> None:
    rental = desk.rent()
    job = desk.job()
    desk.write(job.id, act.SetOutcome(Outcome.FAILED, Reason.FAILED, "x", 1))
    [destroy] = desk.effects(act.Destroy)
    assert desk.store.rental(rental.id).destroy_sent_at is not None
    desk.receipt(destroy, data={"ack": DestroyAck.MISSING})
    assert desk.store.rental(rental.id).destroy_acked_at is None
    desk.turn(after=2.0)
    desk.receipt(destroy, data={"ack": DestroyAck.ACKNOWLEDGED})
    assert desk.store.rental(rental.id).destroy_acked_at == desk.clock.utc()


def test_a_destroy_that_was_taken_is_not_sent_each_second(desk: Desk) -> None:
    desk.rent()
    desk.write(desk.job().id, act.SetOutcome(Outcome.FAILED, Reason.FAILED, "x", 1))
    [destroy] = desk.effects(act.Destroy)
    desk.receipt(destroy, data={"ack": DestroyAck.MISSING})  # not acknowledged, so it is asked again
    for _ in range(9):
        desk.turn(after=1.0)
    assert len(desk.effects(act.Destroy)) == 1
    desk.turn(after=1.5)
    desk.turn(after=5.0)
    assert len(desk.effects(act.Destroy)) == 2


def test_a_look_from_before_the_acknowledgement_proves_nothing(desk: Desk) -> None:
    rental = desk.rent()
    seen = desk.loop.observer.of(rental.id)
    seen.got("missing", desk.clock.utc() + 3600)  # by a clock that was set back since
    desk.write(desk.job().id, act.SetOutcome(Outcome.FAILED, Reason.FAILED, "x", 1))
    [destroy] = desk.effects(act.Destroy)
    desk.receipt(destroy, data={"ack": DestroyAck.ACKNOWLEDGED})
    assert isinstance(seen.sight.got, Unknown)
    assert desk.store.rental(rental.id).quiesced_at is None


def test_a_late_receipt_of_a_finished_job_changes_nothing(desk: Desk) -> None:
    create = asked(desk)
    job = desk.job()
    desk.receipt(create, "refused", detail="none")
    desk.write(job.id, act.SetOutcome(Outcome.CANCELLED, Reason.CANCELLED))
    assert desk.job().terminal_at is not None
    desk.turn(Receipt(act.AskOffers(cf.POLICY.ask, ("prov",)), job.id, "done", desk.clock.utc(), data=OFFERS))
    assert (desk.loop.faults, desk.job().outcome) == (0, Outcome.CANCELLED)
    assert [key for key in desk.loop.not_before if key.startswith(job.id)] in ([], [f"{job.id}/offers"])


# --- what is heard beside receipts ---


def test_a_machine_tells_only_of_its_own_runs(desk: Desk) -> None:
    rental = desk.rent()
    desk.turn(ProgressSeen(rental.id, "t0.9", 5.0, None), ProgressSeen("gj-other", "t0.1", 5.0, None))
    assert desk.store.progress(desk.job().id) == ()
    desk.write(desk.job().id, act.CommitAssignment("t0", 1, rental.id, (), "", "", None))
    desk.turn(ProgressSeen(rental.id, "t0.1", 5.0, 10.0))
    [progress] = desk.store.progress(desk.job().id)
    assert (progress.step, progress.total, desk.loop.faults) == (5.0, 10.0, 0)


def test_a_machine_that_met_a_newer_controller_ends_ours(desk: Desk) -> None:
    rental = desk.rent()
    desk.turn(Lost(rental.id, "epoch", 0.0, epoch_refused=True))
    assert desk.loop.fenced
    [told] = [line.text for line in desk.store.journal(job=desk.job().id) if line.kind == "alarm:stepped-aside"]
    assert "a newer controller has these machines" in told
    sent = len(desk.effects())
    desk.turn(after=7200.0)
    assert len(desk.effects()) == sent
    assert desk.store.rental(rental.id).phase is RentalPhase.LIVE


def test_an_end_confirmed_by_the_machine_is_stored_as_confirmed(desk: Desk) -> None:
    rental = desk.rent()
    desk.turn(Reached(rental.id, {"deadline": {"end": rental.end, "confirmed": True}, "runs": {}}))
    assert desk.store.rental(rental.id).ready_at == desk.clock.utc()
    assert [type(e) for e in desk.effects()[-1:]] == [act.ListMirror]


def test_a_bug_about_one_job_leaves_the_others_their_controller(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.apply(name="sick")
    desk.apply(name="well")
    sick = desk.job("sick").id
    real = desk.loop.observer.facts

    def broken(job: Any, *rest: Any) -> Any:
        if job.id == sick:
            raise KeyError("boom")
        return real(job, *rest)

    monkeypatch.setattr(desk.loop.observer, "facts", broken)
    desk.loop.touch(sick)
    desk.loop.touch(desk.job("well").id)
    desk.turn(after=31.0)
    assert desk.loop.faults == 1
    [alarm] = [row for row in desk.store.journal(sick) if row.kind == "alarm:fault"]
    assert "KeyError" in alarm.text
    assert desk.job("well").outcome is None


def test_a_provider_that_went_away_is_no_evidence_and_no_end(desk: Desk) -> None:
    rental = desk.rent()
    desk.accounts.broken = ProviderError("no provider is called 'prov'", provider="prov", what="load")
    desk.turn(Listed("prov", "acc", "r1", desk.clock.utc(), Unknown("gone")), after=60.0)
    desk.turn(after=60.0)
    desk.accounts.broken = None
    desk.turn(after=60.0)
    assert desk.store.rental(rental.id).phase is RentalPhase.LIVE
    assert desk.loop.faults == 0


def test_a_disk_that_stays_behind_its_machine_is_billed_on_until_it_is_gone(desk: Desk) -> None:
    rental = desk.rent()
    seen = desk.loop.observer.of(rental.id)
    disk = Resource(Ref("prov", "acc", "r1", "d-1", "disk"), "available", None, Decimal("0.10"), "USD")
    other = replace(disk, ref=replace(disk.ref, id="d-2"), currency="CNY")  # in no currency of this bill

    def left(*others: Resource, got: Any = "missing", after: float = 0.0) -> Decimal | None:
        desk.clock.advance(after)
        seen.sight = replace(seen.sight, got=got, others=others)
        desk.loop.money.bill(rental, desk.clock.utc())
        found = desk.store.billed(rental.id, "disk")
        return found[0] if found is not None else None

    assert left(disk, got=cf.instance(), after=60.0) is None, (
        "as long as the machine lives its price has the disk in it"
    )
    assert left(disk, other, after=60.0) == 0
    assert left(disk, other, after=7200.0) == Decimal("0.2")
    assert left(after=3600.0) == Decimal("0.2")
    [bill] = [bill for bill in desk.store.ledger() if bill.kind == "disk"]
    assert class_of(bill.kind) == "storage"
    assert desk.store.spent_by_rental(rental.job)[rental.id] > bill.amount
