"""The work on a machine: assignment, order, exits and what each means, saving, outcome."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import core_facts as cf
import pytest
from core_facts import T0

from orchestrator import actions as act
from orchestrator.bench import Bench
from orchestrator.crew import Crew
from orchestrator.model import (
    CreateOutcome,
    Decision,
    Outcome,
    Reason,
    RentalPhase,
    Sight,
    SignalWhy,
    Task,
    Trouble,
    Unknown,
)
from orchestrator.reconcile import reconcile
from orchestrator.words import newest_run
from orchestrator.work import current
from providers.base import Notice


def kinds(decision: Decision) -> set[str]:
    return {type(action).__name__ for action in decision.actions}


def of(decision: Decision, kind: type) -> list:
    return [action for action in decision.actions if isinstance(action, kind)]


def decide(*rentals: object, policy=cf.POLICY, **changes: object) -> Decision:
    return reconcile(cf.facts(*rentals, **changes), policy)  # type: ignore[arg-type]


def running(**changes: object) -> object:
    return cf.live(machine=cf.machine(runs={"t0.1": cf.run(**changes)}))  # type: ignore[arg-type]


# --- before the run ---


def test_a_run_is_committed_only_after_a_complete_listing_of_the_mirror() -> None:
    assert kinds(decide(cf.live())) == {"ListMirror"}
    (commit,) = of(decide(cf.live(), mirror_listed={"t0": T0 + 1}), act.CommitAssignment)
    assert (commit.n, commit.seal, commit.resume_name) == (1, (), "")


def test_a_run_waits_for_the_machines_own_deadline() -> None:
    unarmed = cf.live(machine=cf.machine(end_confirmed=False))
    decision = decide(unarmed, mirror_listed={"t0": T0})
    assert kinds(decision) == {"MoveEnd"}


def test_the_second_run_resumes_from_the_furthest_accepted_checkpoint() -> None:
    old = cf.live(row=cf.rental(1, RentalPhase.GONE, quiesced_at=T0 + 100))
    stale = cf.checkpoint(9000, n=1, hash="late")
    rows = (cf.checkpoint(900), cf.checkpoint(1000), stale)
    first = cf.assignment(1, 1, closed_at=T0 + 90)
    decision = decide(old, cf.live(2), assignments=(first,), checkpoints=rows[:2], mirror_listed={"t0": T0 + 101})
    (commit,) = of(decision, act.CommitAssignment)
    assert (commit.n, commit.resume_step, commit.resume_name) == (2, 1000, "step_1000.pt")
    assert commit.seal == ("h1-1000", "h1-900")
    early = decide(old, cf.live(2), assignments=(first,), checkpoints=rows, mirror_listed={"t0": T0 + 80})
    assert kinds(early) == {"ListMirror"}  # listed before the first run could no longer write


def test_a_stale_machines_late_checkpoint_is_never_resumed_from() -> None:
    rows = (cf.checkpoint(100, n=1), cf.checkpoint(5000, n=1, hash="late"), cf.checkpoint(200, n=2))
    runs = (
        cf.assignment(1, 1, closed_at=T0 + 90),
        cf.assignment(2, 2, seal=("h1-100",), closed_at=T0 + 190, committed_at=T0 + 120),
    )
    gone = [cf.live(row=cf.rental(n, RentalPhase.GONE, quiesced_at=T0 + 100 * n)) for n in (1, 2)]
    decision = decide(*gone, cf.live(3), assignments=runs, checkpoints=rows, mirror_listed={"t0": T0 + 300})
    (commit,) = of(decision, act.CommitAssignment)
    assert commit.resume_step == 200
    assert set(commit.seal) == {"h1-100", "h2-200"}


def test_no_run_is_committed_while_an_earlier_one_may_still_write() -> None:
    old = cf.live(row=cf.rental(1, RentalPhase.RELEASING, reason=Reason.INTERRUPTED))
    decision = decide(old, cf.live(2), assignments=(cf.assignment(1, 1),), mirror_listed={"t0": T0 + 500})
    assert "CommitAssignment" not in kinds(decision)


def test_order_follows_preparation() -> None:
    fresh = cf.assignment(ordered_at=None)
    assert kinds(decide(cf.live(), assignments=(fresh,))) == {"Prepare"}
    assert kinds(decide(cf.live(), assignments=(fresh,), prepared=frozenset({"gj-abcdef-1/t0.1"}))) == {"SendOrder"}
    seen = cf.live(machine=cf.machine(runs={"t0.1": cf.run("setup")}))  # the order's acknowledgement was lost
    assert kinds(decide(seen, assignments=(fresh,))) == {"SendOrder"}


def test_preparing_that_cannot_succeed_ends_the_job_and_a_bad_host_does_not() -> None:
    fresh = cf.assignment(ordered_at=None)
    key = act.Prepare("gj-abcdef-1", "t0", 1).key
    fatal = {key: Trouble(key, 1, T0, "data changed", Reason.DATA)}
    (outcome,) = of(decide(cf.live(), assignments=(fresh,), troubles=fatal), act.SetOutcome)
    assert (outcome.outcome, outcome.reason) == (Outcome.FAILED, Reason.DATA)
    host = {key: Trouble(key, 5, T0, "rsync is missing")}
    (release,) = of(decide(cf.live(), assignments=(fresh,), troubles=host), act.Release)
    assert release.reason is Reason.BAD_HOST


# --- the run ---


def test_new_checkpoints_are_mirrored_while_the_job_runs() -> None:
    decision = decide(running(), assignments=(cf.assignment(),), checkpoints_left=frozenset({"t0.1"}))
    assert kinds(decision) == {"MirrorCheckpoints"}


def test_access_to_a_store_is_renewed_in_time_and_once_after_our_own_start() -> None:
    stored, run = replace(cf.POLICY, store=True), {"assignments": (cf.assignment(),)}
    asked = of(decide(running(), policy=stored, **run), act.RenewStore)
    assert [(each.task, each.n) for each in asked] == [("t0", 1)]
    key = f"{asked[0].rental}/t0.1"
    later = decide(running(), policy=stored, store_until={key: T0 + 7200}, **run)
    assert of(later, act.RenewStore) == []
    due = decide(running(), policy=stored, store_until={key: T0 + 1}, now=T0 + 5, **run)
    assert len(of(due, act.RenewStore)) == 1
    assert of(decide(running(), **run), act.RenewStore) == []  # this computer is the mirror


def test_a_notice_signals_with_the_time_that_is_left() -> None:
    noticed = replace(running(), machine=cf.machine(runs={"t0.1": cf.run()}, notice=Notice(T0 + 630)))
    (signal,) = of(decide(noticed, assignments=(cf.assignment(),)), act.SendSignal)
    assert (signal.why, signal.grace_s) == (SignalWhy.INTERRUPTION, 27.0)


def test_saving_starts_grace_and_two_minutes_before_the_end() -> None:
    end = T0 + 12 * 3600
    early = decide(running(), assignments=(cf.assignment(),), now=end - 241)
    assert "SendSignal" not in kinds(early)
    assert early.wake_at <= end - 240
    (signal,) = of(decide(running(), assignments=(cf.assignment(),), now=end - 240), act.SendSignal)
    assert (signal.why, signal.grace_s) == (SignalWhy.TTL, 120.0)


def test_cancel_saves_and_cancel_now_does_not() -> None:
    (signal,) = of(decide(running(), assignments=(cf.assignment(),), job=cf.job(cancel_at=T0 + 599)), act.SendSignal)
    assert (signal.why, signal.grace_s) == (SignalWhy.CANCEL, 120.0)
    now = cf.job(cancel_at=T0 + 599, cancel_now=True)
    (signal,) = of(decide(running(), assignments=(cf.assignment(),), job=now), act.SendSignal)
    assert signal.grace_s == 0.0


def test_cancel_of_a_machine_that_does_not_answer_releases_it_unsaved() -> None:
    lost = cf.live(machine=cf.machine(connected=False, lost_at=T0 + 500, failures=9))
    waiting = decide(lost, assignments=(cf.assignment(),), job=cf.job(cancel_at=T0 + 580))
    assert "SetOutcome" not in kinds(waiting)
    (outcome,) = of(decide(lost, assignments=(cf.assignment(),), job=cf.job(cancel_at=T0 + 560)), act.SetOutcome)
    assert outcome.outcome is Outcome.CANCELLED


# --- exits ---


def exited(rc: int, why: SignalWhy | None = None, *, closed: bool = True, **changes: object) -> object:
    at = T0 + 510 if closed else None
    return cf.assignment(exit=cf.ended(rc, why, **changes), closed_at=at)  # type: ignore[arg-type]


WELL = replace(cf.live(), sight=replace(cf.live().sight, got=cf.instance(), got_at=T0 + 550))


def test_an_exit_is_stored_only_when_every_process_of_the_run_is_dead() -> None:
    alive = decide(running(state="exited", rc=0), assignments=(cf.assignment(),))
    assert "StoreExit" not in kinds(alive)
    (stored,) = of(decide(running(state="exited", rc=7, dead=True), assignments=(cf.assignment(),)), act.StoreExit)
    assert stored.exit.rc == 7


def test_done_needs_results_verified_at_home_before_the_machine_goes() -> None:
    first = decide(WELL, assignments=(exited(0),))
    assert kinds(first) == {"CollectResults"}
    home = replace(exited(0), results_at=T0 + 520)
    decision = decide(WELL, assignments=(home,))
    assert [(o.outcome, o.reason) for o in of(decision, act.SetOutcome)] == [(Outcome.DONE, Reason.DONE)]
    assert "Release" not in kinds(decision)
    after = decide(WELL, assignments=(home,), job=cf.job(outcome=Outcome.DONE, reason=Reason.DONE))
    assert [r.reason for r in of(after, act.Release)] == [Reason.DONE]


def test_what_any_earlier_run_left_here_is_brought_home_before_the_next_run() -> None:
    earlier = (exited(137, lost=True), replace(exited(137, lost=True), n=2))
    decision = decide(WELL, assignments=earlier, checkpoints_left=frozenset({"t0.1"}))
    assert [(m.task, m.n) for m in of(decision, act.MirrorCheckpoints)] == [("t0", 1)]
    assert "CommitAssignment" not in kinds(decision)


def test_a_run_committed_after_the_clock_was_set_back_is_the_newest_all_the_same() -> None:
    last = replace(exited(137, lost=True), committed_at=T0 + 4000)  # now is T0 + 600
    fresh = cf.assignment(2, committed_at=T0 + 599, ordered_at=None)
    assert current(cf.facts(assignments=(last, fresh)), last.rental) is fresh
    assert current(cf.facts(assignments=(last, replace(fresh, closed_at=T0 + 600))), last.rental).n == 2  # type: ignore[union-attr]
    other = replace(fresh, task="t1", n=1)
    assert current(cf.facts(assignments=(last, other)), last.rental) is other


def test_the_clock_set_back_changes_no_order_of_runs_for_people_or_for_benches() -> None:
    last = replace(exited(137, lost=True), committed_at=T0 + 4000)
    fresh = cf.assignment(2, committed_at=T0 + 599, ordered_at=None)
    assert newest_run((fresh, last)) is fresh
    assert newest_run(()) is None
    at_work = cf.assignment(1, committed_at=T0 + 4000)
    ahead = replace(cf.assignment(1, committed_at=T0 + 599, ordered_at=None), task="t1")
    tasks = tuple(Task("j-1-aaaa", task, seq=n) for n, task in enumerate(("t0", "t1"), 1))
    policy = replace(cf.POLICY, crew=Crew("sweep", 1))
    bench = Bench(cf.facts(assignments=(ahead, at_work), tasks=tasks), policy)
    assert bench.held(at_work.rental) == [at_work, ahead]
    assert bench.before(ahead) is at_work
    assert bench.held_by(at_work.rental) is at_work


def test_an_exit_that_nobody_saw_is_never_a_success() -> None:
    lost = replace(exited(0, lost=True), results_at=T0 + 520)
    assert of(decide(WELL, assignments=(lost,)), act.SetOutcome) == []


def test_a_cancelled_job_without_a_machine_is_over_and_rents_none() -> None:
    decision = decide(job=cf.job(cancel_at=T0 + 550))
    assert [(o.outcome, o.reason) for o in of(decision, act.SetOutcome)] == [(Outcome.CANCELLED, Reason.CANCELLED)]
    assert not kinds(decision) & {"AskOffers", "OpenRental"}


def test_last_checkpoints_then_close_then_results() -> None:
    opened = exited(0, closed=False)
    assert kinds(decide(WELL, assignments=(opened,), checkpoints_left=frozenset({"t0.1"}))) == {"MirrorCheckpoints"}
    assert kinds(decide(WELL, assignments=(opened,))) == {"SendClose"}


def test_a_failure_of_the_users_code_is_not_relaunched() -> None:
    home = replace(exited(7), results_at=T0 + 520)
    (outcome,) = of(decide(WELL, assignments=(home,)), act.SetOutcome)
    assert (outcome.outcome, outcome.reason, outcome.exit_code) == (Outcome.FAILED, Reason.FAILED, 7)
    assert "run exited 7 (user program)" in outcome.detail


def test_a_failure_is_believed_only_after_the_provider_showed_the_machine_well() -> None:
    stale = replace(WELL, sight=replace(WELL.sight, got_at=T0 + 499))
    assert kinds(decide(stale, assignments=(exited(7),), now=T0 + 510)) == {"Look"}
    dead = cf.instance(status="interrupted")
    taken = replace(WELL, sight=Sight(instance=dead, got=dead, got_at=T0 + 520, others=()))
    decision = decide(taken, assignments=(exited(7, stage="setup"),), now=T0 + 521)
    assert [r.reason for r in of(decision, act.Release)] == [Reason.INTERRUPTED]
    assert "SetOutcome" not in kinds(decision)


def test_exit_zero_after_our_signal_for_an_interruption_is_not_done() -> None:
    decision = decide(WELL, assignments=(exited(0, SignalWhy.INTERRUPTION),))
    (release,) = of(decision, act.Release)
    assert (release.reason, release.interrupted) == (Reason.INTERRUPTED, True)
    assert "SetOutcome" not in kinds(decision)


@pytest.mark.parametrize(
    ("notice", "changes", "collects"),
    [
        (T0 + 640, {}, True),
        (T0 + 604, {}, False),  # too late: the release must still be sent
        (T0 + 640, {"collected_at": {"gj-abcdef-1": T0 + 505}}, False),  # it is here
        (T0 + 640, {"policy": replace(cf.POLICY, results=False)}, False),
    ],
)
def test_what_an_interrupted_run_made_is_brought_within_the_notice(
    notice: float, changes: dict[str, Any], collects: bool
) -> None:
    noticed = replace(WELL, machine=replace(WELL.machine, notice=Notice(notice)))
    decision = decide(noticed, assignments=(exited(0, SignalWhy.INTERRUPTION),), **changes)
    assert [c.final for c in of(decision, act.CollectResults)] == ([False] if collects else [])
    assert bool(of(decision, act.Release)) != collects


@pytest.mark.parametrize(
    ("why", "outcome", "reason"),
    [
        (SignalWhy.TTL, Outcome.FAILED, Reason.TTL),
        (SignalWhy.BUDGET, Outcome.FAILED, Reason.BUDGET),
        (SignalWhy.CANCEL, Outcome.CANCELLED, Reason.CANCELLED),
    ],
)
def test_our_own_signals_name_the_end(why: SignalWhy, outcome: Outcome, reason: Reason) -> None:
    home = replace(exited(143, why), results_at=T0 + 520)
    (decided,) = of(decide(WELL, assignments=(home,)), act.SetOutcome)
    assert (decided.outcome, decided.reason) == (outcome, reason)


def test_exit_85_runs_again_on_the_same_machine_and_is_bounded_by_progress() -> None:
    decision = decide(WELL, assignments=(exited(85),), mirror_listed={"t0": T0 + 511}, checkpoints=(cf.checkpoint(5),))
    (commit,) = of(decision, act.CommitAssignment)
    assert (commit.n, commit.rental, commit.resume_step) == (2, "gj-abcdef-1", 5)
    fruitless = [replace(exited(85), n=n, committed_at=T0 + n) for n in (1, 2, 3)]
    decision = decide(WELL, assignments=tuple(fruitless), mirror_listed={"t0": T0 + 511})
    (collect,) = of(decision, act.CollectResults)  # the machine is well: what the runs made comes home before it goes
    assert (collect.n, collect.final, collect.success) == (3, True, False)
    fruitless[-1] = replace(fruitless[-1], results_at=T0 + 520)
    (outcome,) = of(decide(WELL, assignments=tuple(fruitless)), act.SetOutcome)
    assert outcome.reason is Reason.NO_PROGRESS


def test_retry_counts_only_chosen_codes() -> None:
    policy = replace(cf.POLICY, retry_max=1, retry_codes=frozenset({29}))
    listed = {"t0": T0 + 511}
    again = decide(WELL, policy=policy, assignments=(exited(29),), mirror_listed=listed)
    assert "CommitAssignment" in kinds(again)
    other = decide(WELL, policy=policy, assignments=(replace(exited(1), results_at=T0 + 520),), mirror_listed=listed)
    assert of(other, act.SetOutcome)[0].reason is Reason.FAILED
    used = (exited(29), replace(exited(29), n=2, committed_at=T0 + 300, results_at=T0 + 520))
    assert of(decide(WELL, policy=policy, assignments=used, mirror_listed=listed), act.SetOutcome)


def test_hold_on_failure_keeps_an_on_demand_machine_and_never_a_spot_one() -> None:
    policy = replace(cf.POLICY, hold_s=600.0)
    home = replace(exited(1), results_at=T0 + 520)
    demand = replace(WELL, rental=replace(WELL.rental, offer=cf.DEMAND))
    (hold,) = of(decide(demand, policy=policy, assignments=(home,)), act.Hold)
    assert hold.until == T0 + 1200
    assert "Hold" not in kinds(decide(WELL, policy=policy, assignments=(home,)))
    failed = cf.job(outcome=Outcome.FAILED, reason=Reason.FAILED, held_until=T0 + 1200)
    assert "Release" not in kinds(decide(demand, policy=policy, assignments=(home,), job=failed))
    assert "Release" in kinds(decide(demand, policy=policy, assignments=(home,), job=failed, now=T0 + 1201))
    asked = replace(failed, cancel_at=T0 + 700)
    assert "Release" in kinds(decide(demand, policy=policy, assignments=(home,), job=asked, now=T0 + 701))


def test_results_that_cannot_be_brought_home_hold_the_machine_an_hour_at_most() -> None:
    key = act.CollectResults("gj-abcdef-1", "t0", 1, final=True, success=True).key
    trying = {key: Trouble(key, 9, T0 + 600, "disk full here")}
    assert "CollectResults" in kinds(decide(WELL, assignments=(exited(0),), troubles=trying, now=T0 + 4199))
    (lost,) = of(decide(WELL, assignments=(exited(0),), troubles=trying, now=T0 + 4200), act.StoreResultsLost)
    assert lost.detail == "disk full here"


# --- losses and the next machine ---


def lost_rental(n: int, reason: Reason = Reason.INTERRUPTED) -> object:
    return cf.live(row=cf.rental(n, RentalPhase.GONE, reason=reason))


def test_three_losses_in_a_row_without_a_checkpoint_end_the_job() -> None:
    rentals = [lost_rental(n) for n in (1, 2, 3)]
    runs = tuple(cf.assignment(n, n, closed_at=T0) for n in (1, 2, 3))
    (outcome,) = of(decide(*rentals, assignments=runs), act.SetOutcome)
    assert outcome.reason is Reason.NO_PROGRESS
    progressed = decide(*rentals, assignments=runs, checkpoints=(cf.checkpoint(10, n=2),))
    assert "OpenRental" in kinds(progressed)


def test_after_two_fruitless_losses_auto_goes_on_demand() -> None:
    rentals = [lost_rental(n) for n in (1, 2)]
    runs = tuple(cf.assignment(n, n, closed_at=T0) for n in (1, 2))
    (opened,) = of(decide(*rentals, assignments=runs), act.OpenRental)
    assert opened.offer == cf.DEMAND


def test_spot_needs_a_resumable_job() -> None:
    (opened,) = of(decide(now=T0, policy=replace(cf.POLICY, resumable=False)), act.OpenRental)
    assert opened.offer == cf.DEMAND


def test_a_reclaimed_pool_loses_to_one_that_was_not() -> None:
    other = replace(cf.OFFER, key="m2-spot", pool="m2", hourly=Decimal("1.10"))
    rest = {"reclaimed:prov/acc/r1/m1": "reclaimed"}
    (opened,) = of(decide(now=T0, offers=(cf.OFFER, other), offers_at=T0, resting=rest), act.OpenRental)
    assert opened.offer == other


def test_the_budget_shortens_the_end_and_refuses_what_is_useless() -> None:
    policy = replace(cf.POLICY, budget=Decimal("2.00"))
    (opened,) = of(decide(now=T0, policy=policy), act.OpenRental)
    assert opened.end_reason is Reason.BUDGET
    assert opened.end == T0 + 2 * 3600 - 600
    assert opened.reserve <= Decimal("2.00")
    spent = replace(lost_rental(1), spent=Decimal("1.81"))
    spent = replace(spent, rental=replace(spent.rental, reserve=Decimal(0)))
    (outcome,) = of(decide(spent, policy=policy), act.SetOutcome)
    assert outcome.reason is Reason.BUDGET


def test_price_cap_waits_and_wait_ends_with_no_capacity() -> None:
    policy = replace(cf.POLICY, price_cap=Decimal("0.50"))
    assert kinds(decide(now=T0, policy=policy)) == {"WaitForCapacity"}
    waited = cf.job(first_rental_at=None, wait_since=T0 - 3600)
    (outcome,) = of(decide(now=T0, policy=policy, job=waited), act.SetOutcome)
    assert outcome.reason is Reason.NO_CAPACITY


def test_a_wait_names_what_narrows_the_choice_after_refusals_in_a_row() -> None:
    resting = {f"pool:prov/acc/r1/{pool}": "no-capacity: none left" for pool in ("m1", "m1-od")}
    refused = [
        replace(lost_rental(n), rental=replace(lost_rental(n).rental, create_outcome=CreateOutcome.REFUSED))
        for n in (1, 2, 3)
    ]
    policy = replace(cf.POLICY, ask=replace(cf.POLICY.ask, regions=("r1",)))
    waited = cf.job(first_rental_at=None, wait_since=T0 - 3600)
    (ended,) = of(decide(*refused, now=T0 + 600, policy=policy, job=waited, resting=resting), act.SetOutcome)
    assert ended.detail.endswith("none left (3 refusals in a row; the choice is narrowed by providers, regions)")
    (few,) = of(decide(*refused[:2], now=T0 + 600, policy=policy, job=waited, resting=resting), act.SetOutcome)
    assert few.detail.endswith("none left")


def test_a_quota_is_named_at_once_when_nothing_else_is_left() -> None:
    rest = {"account:prov/acc": "quota: vCPU limit 96"}
    (outcome,) = of(decide(now=T0, resting=rest), act.SetOutcome)
    assert outcome.reason is Reason.QUOTA
    assert "vCPU" in outcome.detail


def test_prices_that_failed_or_are_old_are_asked_for_before_money_is_spent() -> None:
    assert kinds(decide(now=T0, offers=None, offers_at=None)) == {"AskOffers"}
    assert kinds(decide(now=T0, offers_at=T0 - 61)) == {"AskOffers"}
    assert kinds(decide(now=T0, offers=Unknown("500"), offers_at=T0)) == {"AskOffers"}


def test_a_finished_program_whose_machine_was_lost_before_its_results_runs_again() -> None:
    rentals = lost_rental(1)
    run = replace(exited(0), results_at=None)
    assert "OpenRental" in kinds(decide(rentals, assignments=(run,)))
    by_end = decide(lost_rental(1, Reason.TTL), assignments=(run,))
    (outcome,) = of(by_end, act.SetOutcome)
    assert outcome.reason is Reason.TTL
    assert "the program had finished" in outcome.detail


def test_the_same_facts_decide_the_same_and_a_terminal_job_decides_nothing() -> None:
    facts = cf.facts(WELL, assignments=(exited(0),))
    assert reconcile(facts, cf.POLICY) == reconcile(facts, cf.POLICY)
    over = cf.facts(WELL, job=cf.job(outcome=Outcome.DONE, terminal_at=T0))
    assert reconcile(over, cf.POLICY).actions == ()


def test_auto_comes_back_to_spot_when_nothing_on_demand_is_under_the_cap() -> None:
    policy = replace(cf.POLICY, price_cap=Decimal("1.50"))  # 1.5 x the spot offer; on demand costs 3
    rentals = [lost_rental(n) for n in (1, 2)]
    runs = tuple(cf.assignment(n, n, closed_at=T0) for n in (1, 2))
    (opened,) = of(decide(*rentals, policy=policy, assignments=runs), act.OpenRental)
    assert opened.offer == cf.OFFER


def test_the_same_step_saved_again_is_no_progress() -> None:
    rentals = [lost_rental(n) for n in (1, 2, 3)]
    runs = [cf.assignment(n, n, closed_at=T0, resume_step=10 if n > 1 else None) for n in (1, 2, 3, 4)]
    rows = tuple(cf.checkpoint(10, n=n) for n in (1, 2, 3, 4))
    rentals.append(lost_rental(4))
    (outcome,) = of(decide(*rentals, assignments=tuple(runs), checkpoints=rows), act.SetOutcome)
    assert outcome.reason is Reason.NO_PROGRESS
    further = (*rows, cf.checkpoint(11, n=3))
    assert "OpenRental" in kinds(decide(*rentals, assignments=tuple(runs), checkpoints=further))


def test_checkpoints_that_cannot_be_saved_hold_the_machine_for_an_hour_and_no_longer() -> None:
    ended = cf.assignment(exit=cf.ended(0))
    key = act.MirrorCheckpoints("gj-abcdef-1", "t0", 1).key
    trouble = {key: Trouble(key, 9, T0 - 9000, "no space left on this computer")}  # it failed before the end as well
    facts = {"assignments": (ended,), "checkpoints_left": frozenset({"t0.1"}), "troubles": trouble}
    soon = decide(running(state="exited", rc=0, dead=True), now=cf.ended(0).at + 3599, **facts)
    assert kinds(soon) == {"MirrorCheckpoints"}
    assert "no space left" in soon.condition.why
    late = decide(running(state="exited", rc=0, dead=True), now=cf.ended(0).at + 3600, **facts)
    assert "MirrorCheckpoints" not in kinds(late)
    assert {"Alarm", "SendClose"} <= kinds(late)
