"""One rental's life: what is decided in each phase, and what is never concluded from too little."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import core_facts as cf
import pytest
from core_facts import T0

from orchestrator import actions as act
from orchestrator.model import CreateOutcome, Decision, Reason, RentalPhase, Sight, Unknown
from orchestrator.reconcile import reconcile
from providers.base import Instance, Notice, Resource

LOST = cf.machine(connected=False, lost_at=T0 + 590, failures=3, failed_awake_s=30.0, trouble="timeout")


def kinds(decision: Decision) -> set[str]:
    return {type(action).__name__ for action in decision.actions}


def of(decision: Decision, kind: type) -> list:
    return [action for action in decision.actions if isinstance(action, kind)]


def decide(*rentals: object, policy=cf.POLICY, **changes: object) -> Decision:
    return reconcile(cf.facts(*rentals, **changes), policy)  # type: ignore[arg-type]


def test_a_job_without_a_machine_opens_an_intent_with_its_worst_case_reserved() -> None:
    decision = decide(now=T0)
    (opened,) = of(decision, act.OpenRental)
    assert opened.offer == cf.OFFER
    assert opened.end == T0 + 12 * 3600
    assert opened.reserve == Decimal("12.166667")  # 12 h and 10 min of release margin at 1 USD/h
    assert opened.end_reason is Reason.TTL


def test_an_intent_sends_its_create_once() -> None:
    row = cf.rental(phase=RentalPhase.INTENT)
    assert kinds(decide(cf.live(row=row, sight=Sight(), machine=LOST))) == {"SendCreate"}
    sent = replace(row, create_sent_at=T0 + 590)
    assert "SendCreate" not in kinds(decide(cf.live(row=sent, sight=Sight(), machine=LOST)))


def test_an_intent_of_a_cancelled_job_is_dropped_before_its_create_is_sent() -> None:
    row = cf.rental(phase=RentalPhase.INTENT)
    decision = decide(cf.live(row=row, sight=Sight(), machine=LOST), job=cf.job(cancel_at=T0 + 1))
    (gone,) = of(decision, act.StoreGone)
    assert gone.never_made
    assert "SendCreate" not in kinds(decision)


def test_an_unanswered_create_is_looked_for_and_nothing_else_is_rented() -> None:
    row = cf.rental(phase=RentalPhase.INTENT, create_sent_at=T0 + 500, create_outcome=CreateOutcome.AMBIGUOUS)
    assert kinds(decide(cf.live(row=row, sight=Sight(), machine=LOST))) == set()
    found = Sight(instance=cf.instance())
    assert kinds(decide(cf.live(row=row, sight=found, machine=LOST))) == {"RecordInstance"}


@pytest.mark.parametrize(
    ("count", "span", "age", "gone"),
    [(4, 120, 301, True), (3, 200, 301, False), (4, 100, 301, False), (9, 290, 290, False)],
)
def test_a_create_never_seen_needs_time_and_complete_listings(count: int, span: float, age: float, gone: bool) -> None:
    row = cf.rental(phase=RentalPhase.INTENT, create_sent_at=T0, create_outcome=CreateOutcome.AMBIGUOUS)
    sight = Sight(absent_count=count, absent_span_s=span)
    assert ("StoreGone" in kinds(decide(cf.live(row=row, sight=sight, machine=LOST), now=T0 + age))) is gone


def test_a_machine_that_is_dead_by_a_point_get_is_released_and_quiesced_but_not_yet_replaced() -> None:
    dead = cf.instance(status="interrupted")
    decision = decide(cf.live(sight=Sight(instance=dead, got=dead, got_at=T0 + 599, others=()), machine=LOST))
    (release,) = of(decision, act.Release)
    assert (release.reason, release.interrupted) == (Reason.INTERRUPTED, True)
    assert "StoreQuiesced" in kinds(decision)
    assert "OpenRental" not in kinds(decision)  # only stored facts allow a successor


def test_the_successor_follows_once_quiesced_is_stored() -> None:
    row = cf.rental(1, RentalPhase.RELEASING, reason=Reason.INTERRUPTED)
    dead = cf.instance(status="interrupted")
    sight = Sight(instance=dead, got=dead, got_at=T0 + 599, others=())
    assert "OpenRental" not in kinds(decide(cf.live(row=row, sight=sight, machine=LOST)))
    stored = replace(row, quiesced_at=T0 + 595)
    assert "OpenRental" in kinds(decide(cf.live(row=stored, sight=sight, machine=LOST)))


def test_a_dead_status_in_a_listing_alone_is_only_a_reason_to_look() -> None:
    listed = cf.instance(status="interrupted")
    sight = Sight(instance=listed, got=cf.instance(), got_at=T0 + 50, others=())
    decision = decide(cf.live(sight=sight, machine=LOST))
    assert kinds(decision) == {"Look"}


def test_a_lost_connection_asks_the_provider_at_once_and_decides_nothing() -> None:
    assert kinds(decide(cf.live(machine=LOST))) == {"Look"}


@pytest.mark.parametrize(
    ("looked", "next_look"),
    [(0.0, 1.0), (1.0, 2.0), (2.0, 4.0), (4.0, 8.0), (8.0, 13.0), (54.0, 59.0), (60.0, 80.0)],
)
def test_a_silent_machine_is_looked_at_often_at_first_and_then_at_a_pace(looked: float, next_look: float) -> None:
    lost_at = T0 + 500
    silent = replace(LOST, lost_at=lost_at)
    seen = cf.live(machine=silent, sight=Sight(instance=cf.instance(), got=cf.instance(), got_at=lost_at + looked))
    assert "Look" not in kinds(decide(seen, now=lost_at + next_look - 0.1))
    assert "Look" in kinds(decide(seen, now=lost_at + next_look))


def test_a_clock_set_back_after_a_loss_asks_the_provider_at_a_pace_and_not_without_a_pause() -> None:
    ahead = replace(LOST, lost_at=T0 + 4000)  # now is T0 + 600
    asked = cf.live(machine=ahead, sight=Sight(instance=cf.instance(), got=cf.instance(), got_at=T0 + 599))
    assert "Look" not in kinds(decide(asked))
    assert "Look" in kinds(decide(asked, now=T0 + 620))


def test_a_silent_machine_is_never_waited_for_past_its_next_look() -> None:
    silent = replace(LOST, lost_at=T0 + 500)
    seen = cf.live(machine=silent, sight=Sight(instance=cf.instance(), got=cf.instance(), got_at=T0 + 502))
    assert decide(seen, now=T0 + 502.5).wake_at == T0 + 504


def test_unreachable_needs_its_time_and_a_provider_that_answers() -> None:
    silent = replace(LOST, failed_awake_s=1201.0)
    now_seen = cf.instance()
    sight = Sight(instance=now_seen, got=now_seen, got_at=T0 + 599, others=())
    (release,) = of(decide(cf.live(machine=silent, sight=sight)), act.Release)
    assert release.reason is Reason.UNREACHABLE
    unknown = replace(sight, got=Unknown("500"))
    assert "Release" not in kinds(decide(cf.live(machine=silent, sight=unknown)))
    for doubt in ({"cut_off": True}, {"brake": True}):
        assert "Release" not in kinds(decide(cf.live(machine=silent, sight=sight), **doubt))


def test_a_machine_never_ready_is_a_bad_host_after_its_time() -> None:
    row = cf.rental(ready_at=None)
    early = decide(cf.live(row=row, machine=LOST), now=T0 + 599)
    late = decide(cf.live(row=row, machine=LOST), now=T0 + 601)
    assert "Release" not in kinds(early)
    assert of(late, act.Release)[0].reason is Reason.BAD_HOST


def test_the_end_wins_over_a_running_job() -> None:
    decision = decide(cf.live(), assignments=(cf.assignment(),), now=T0 + 12 * 3600)
    assert of(decision, act.Release)[0].reason is Reason.TTL


def test_timers_that_differ_are_moved_and_confirmed_only_when_all_agree() -> None:
    later = T0 + 12 * 3600 + 100
    row = cf.rental(wanted_end=later, end_reason=Reason.TTL)
    job = cf.job(ttl_extra_s=100.0)
    decision = decide(cf.live(row=row), job=job, assignments=(cf.assignment(),))
    assert [a.end for a in of(decision, act.MoveEnd)] == [later]
    agreed = cf.instance(ends_at=later)
    sight = Sight(instance=agreed, got=agreed, got_at=T0 + 50, others=())
    confirmed = cf.live(row=row, sight=sight, machine=cf.machine(end=later))
    assert "ConfirmEnd" in kinds(decide(confirmed, job=job, assignments=(cf.assignment(),)))


def test_extend_commits_the_reserve_before_any_timer_moves() -> None:
    decision = decide(cf.live(), job=cf.job(ttl_extra_s=3600.0), assignments=(cf.assignment(),))
    (want,) = of(decision, act.WantEnd)
    assert want.end == T0 + 13 * 3600
    assert want.reserve > cf.rental().reserve
    assert "MoveEnd" not in kinds(decision)


def test_a_second_machine_of_one_tag_is_destroyed_and_the_recorded_one_kept() -> None:
    twin = cf.instance(7)
    decision = decide(cf.live(sight=replace(cf.live().sight, duplicates=(twin,))), assignments=(cf.assignment(),))
    (destroy,) = of(decision, act.Destroy)
    assert (destroy.ref, destroy.reason) == (twin.ref, Reason.DUPLICATE)


# --- releasing ---


def releasing(**changes: object) -> object:
    row = cf.rental(1, RentalPhase.RELEASING, **changes)  # type: ignore[arg-type]
    return cf.live(row=row, machine=LOST)


DONE_JOB = cf.job(outcome="done", reason=Reason.DONE)


def test_a_release_is_sent_and_sent_again_until_it_is_acknowledged() -> None:
    assert "Destroy" in kinds(decide(releasing(), job=DONE_JOB))
    assert "Destroy" in kinds(decide(releasing(destroy_sent_at=T0 + 590), job=DONE_JOB))
    acked = releasing(destroy_sent_at=T0 + 590, destroy_acked_at=T0 + 590)
    assert "Destroy" not in kinds(decide(acked, job=DONE_JOB))
    ignored = releasing(destroy_sent_at=T0 + 400, destroy_acked_at=T0 + 400)  # still running a minute later
    assert "Destroy" in kinds(decide(ignored, job=DONE_JOB))


def test_missing_after_a_destroy_is_quiesced_only_if_the_destroy_was_acknowledged() -> None:
    sight = Sight(got="missing", got_at=T0 + 599, others=())
    sent = replace(releasing(destroy_sent_at=T0 + 590), sight=sight)
    assert "StoreQuiesced" not in kinds(decide(sent, job=DONE_JOB))
    acked = replace(releasing(destroy_sent_at=T0 + 590, destroy_acked_at=T0 + 591), sight=sight)
    assert "StoreQuiesced" in kinds(decide(acked, job=DONE_JOB))
    before = replace(acked, sight=replace(sight, got_at=T0 + 590))
    assert "StoreQuiesced" not in kinds(decide(before, job=DONE_JOB))


def test_a_clock_set_back_after_an_acknowledgement_holds_no_proof_up_for_hours() -> None:
    ahead = releasing(destroy_sent_at=T0 + 4000, destroy_acked_at=T0 + 4000)  # now is T0 + 600
    asked = replace(ahead, sight=Sight(got="missing", got_at=T0 + 599, others=()))
    assert "StoreQuiesced" in kinds(decide(asked, job=DONE_JOB))
    assert "Look" not in kinds(decide(asked, job=DONE_JOB))  # nor is it asked without a pause until then
    of_before = replace(ahead, sight=Sight(got="missing", got_at=T0 + 3999, others=()))
    assert "StoreQuiesced" not in kinds(decide(of_before, job=DONE_JOB))


@pytest.mark.parametrize(("count", "span", "gone"), [(4, 120.0, True), (3, 500.0, False), (4, 119.0, False)])
def test_gone_by_absence_needs_a_destroy_and_enough_listings(count: int, span: float, gone: bool) -> None:
    sight = Sight(got="missing", got_at=T0 + 599, others=(), absent_count=count, absent_span_s=span)
    sent = replace(releasing(destroy_sent_at=T0 + 400), sight=sight)
    assert ("StoreGone" in kinds(decide(sent, job=DONE_JOB))) is gone
    unasked = replace(releasing(), sight=sight)
    assert "StoreGone" not in kinds(decide(unasked, job=DONE_JOB))
    disks = replace(sent, sight=replace(sight, others=Unknown("not listed")))
    assert "StoreGone" not in kinds(decide(disks, job=DONE_JOB))


def test_a_dead_machine_is_gone_when_its_disks_were_absent_twice() -> None:
    dead = cf.instance(status="terminated")
    sight = Sight(instance=dead, got=dead, got_at=T0 + 599, others=(), others_absent_count=2)
    acked = releasing(destroy_sent_at=T0 + 590, destroy_acked_at=T0 + 590)
    assert "StoreGone" in kinds(decide(replace(acked, sight=sight), job=DONE_JOB))
    once = replace(sight, others_absent_count=1)
    assert "StoreGone" not in kinds(decide(replace(acked, sight=once), job=DONE_JOB))
    disk = Resource(cf.instance().ref, "available", cf.instance().tag)
    left = decide(replace(acked, sight=replace(sight, others=(disk,), others_absent_count=0)), job=DONE_JOB)
    assert "StoreGone" not in kinds(left)
    assert [d.ref for d in of(left, act.Destroy)] == [disk.ref]


def test_a_machine_that_a_later_look_shows_running_is_not_quiesced_by_its_acknowledgement() -> None:
    acked = releasing(destroy_sent_at=T0 + 590, destroy_acked_at=T0 + 591)
    sight = Sight(instance=cf.instance(), got=cf.instance(), got_at=T0 + 599, others=())
    assert "StoreQuiesced" not in kinds(decide(replace(acked, sight=sight), job=DONE_JOB))


def test_a_rental_with_a_living_duplicate_is_not_gone() -> None:
    sent = releasing(destroy_sent_at=T0 + 400)
    sight = Sight(got="missing", got_at=T0 + 599, others=(), absent_count=9, absent_span_s=900.0)
    assert "StoreGone" in kinds(decide(replace(sent, sight=sight), job=DONE_JOB))
    twice = replace(sight, duplicates=(cf.instance(2),))
    assert "StoreGone" not in kinds(decide(replace(sent, sight=twice), job=DONE_JOB))


def test_a_slow_release_alarms_and_goes_on() -> None:
    decision = decide(releasing(), job=DONE_JOB, now=T0 + 100 + 901)
    assert {"Alarm", "Destroy"} <= kinds(decision)


def test_a_job_is_terminal_only_when_nothing_bills() -> None:
    assert "FinishJob" not in kinds(decide(releasing(), job=DONE_JOB))
    gone = cf.live(row=cf.rental(1, RentalPhase.GONE), machine=LOST)
    assert kinds(decide(gone, job=DONE_JOB)) == {"FinishJob"}


def test_nothing_is_decided_before_everything_was_looked_at_once() -> None:
    dead = cf.instance(status="interrupted")
    sight = Sight(instance=dead, got=dead, got_at=T0 + 599, others=())
    assert decide(cf.live(sight=sight, machine=LOST), settled=False).actions == ()


STOPPED = replace(cf.instance(), status="stopped", ready=False, notice=Notice(T0 + 595, "stop"))


def ran_there(shown: Instance, **changes: Any) -> Decision:
    """A run was ordered on the machine, its line is lost, and the provider shows it so."""
    sight = Sight(instance=shown, got=shown, got_at=T0 + 596)
    run = cf.assignment(ordered_at=T0 + 60)
    return decide(cf.live(sight=sight, machine=LOST), assignments=(run,), **changes)


def test_a_machine_that_its_provider_stopped_is_released_at_once_and_is_no_death() -> None:
    decision = ran_there(STOPPED)
    (release,) = of(decision, act.Release)
    assert (release.reason, release.interrupted) == (Reason.INTERRUPTED, True)
    assert "says stopped" in release.detail
    assert "StoreQuiesced" not in kinds(decision), "the provider may start it again until it is destroyed"


def test_a_silent_machine_whose_reclaim_is_to_come_is_kept_and_the_brake_keeps_stopped_ones() -> None:
    assert of(ran_there(replace(STOPPED, notice=Notice(T0 + 700))), act.Release) == []
    assert of(ran_there(replace(STOPPED, notice=None)), act.Release) == []
    assert of(ran_there(STOPPED, brake=True), act.Release) == []
