"""What is not concluded: from a machine's clock, from our own silence, from limits; and ends that moved."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import core_facts as cf
import pytest
from core_facts import HOUR, T0

from orchestrator import actions as act
from orchestrator.model import Decision, Outcome, Reason, Sight, SignalWhy, Unknown
from orchestrator.reconcile import reconcile
from providers.base import Notice


def decide(*rentals: object, policy=cf.POLICY, **changes: object) -> Decision:
    return reconcile(cf.facts(*rentals, **changes), policy)  # type: ignore[arg-type]


def of(decision: Decision, kind: type) -> list:
    return [action for action in decision.actions if isinstance(action, kind)]


@pytest.mark.parametrize("skew", [-7200.0, 7200.0])
def test_an_exit_is_dated_by_our_clock(skew: float) -> None:
    run = cf.run("exited", rc=3, dead=True, ended=T0 + 590 + skew)
    decision = decide(cf.live(machine=cf.machine(runs={"t0.1": run})), assignments=(cf.assignment(),))
    [stored] = of(decision, act.StoreExit)
    assert stored.exit.at == T0 + 600


def failed_at(at: float) -> tuple[object, ...]:
    return (cf.assignment(exit=cf.ended(3, at=at)),)


def test_a_look_from_before_the_exit_says_nothing_about_the_machine() -> None:
    seen = replace(cf.live().sight, got_at=T0 + 590)
    decision = decide(cf.live(sight=seen), assignments=failed_at(T0 + 595))
    assert of(decision, act.Look)
    assert not of(decision, act.SendClose)
    later = replace(seen, got_at=T0 + 596)
    assert of(decide(cf.live(sight=later), assignments=failed_at(T0 + 595)), act.SendClose)


def test_a_failure_is_not_judged_while_nothing_answers_us() -> None:
    silent = replace(cf.live().sight, got=Unknown("no route"), got_at=T0 + 599)
    asked = decide(cf.live(sight=silent), assignments=failed_at(T0 + 500), now=T0 + 600, cut_off=True)
    assert not of(asked, act.SendClose)
    assert not of(asked, act.SetOutcome)
    patient = decide(cf.live(sight=silent), assignments=failed_at(T0 + 500), now=T0 + 600)
    assert of(patient, act.SendClose)  # the provider alone is silent: after a minute the exit counts


def test_cancel_now_copies_no_checkpoints() -> None:
    job = cf.job(cancel_at=T0 + 1, cancel_now=True)
    assignments = (cf.assignment(exit=cf.ended(137)),)
    left = frozenset({"t0.1"})
    now = decide(cf.live(), job=job, assignments=assignments, checkpoints_left=left)
    assert not of(now, act.MirrorCheckpoints)
    gently = decide(
        cf.live(),
        job=replace(job, cancel_now=False),
        assignments=(cf.assignment(exit=cf.ended(0)),),
        checkpoints_left=left,
    )
    assert of(gently, act.MirrorCheckpoints)


def test_a_shortened_end_binds_before_its_timers_have_confirmed_it() -> None:
    row = cf.rental(wanted_end=T0 + 500)
    deaf = cf.live(row=row, machine=cf.machine(connected=False, lost_at=T0 + 100))
    policy = replace(cf.POLICY, ttl_s=500.0)
    assert not of(decide(deaf, now=T0 + 499, policy=policy, assignments=(cf.assignment(),)), act.Release)
    [release] = of(decide(deaf, now=T0 + 500, policy=policy, assignments=(cf.assignment(),)), act.Release)
    assert release.reason is Reason.TTL


def test_an_extended_end_does_not_bind_until_it_is_confirmed() -> None:
    row = cf.rental(end=T0 + 500, wanted_end=T0 + 12 * HOUR)
    [release] = of(decide(cf.live(row=row), now=T0 + 500, assignments=(cf.assignment(),)), act.Release)
    assert release.reason is Reason.TTL


def test_limits_hold_back_an_extension_and_never_cut_what_runs() -> None:
    running = cf.live(machine=cf.machine(runs={"t0.1": cf.run()}))
    kept = decide(running, limits_left=Decimal(-5), assignments=(cf.assignment(),))
    assert not of(kept, act.WantEnd)
    longer = replace(cf.POLICY, ttl_s=20 * HOUR)
    free = decide(running, policy=longer, assignments=(cf.assignment(),))
    assert of(free, act.WantEnd)[0].end == T0 + 20 * HOUR
    held = decide(running, policy=longer, limits_left=Decimal("-0.1"), assignments=(cf.assignment(),))
    assert not of(held, act.WantEnd)
    shorter = decide(
        running, policy=replace(cf.POLICY, ttl_s=HOUR), limits_left=Decimal(-5), assignments=(cf.assignment(),)
    )
    assert of(shorter, act.WantEnd)[0].end == T0 + HOUR  # the user's own end still counts


def test_a_host_that_never_gets_an_address_is_bad_in_time() -> None:
    nowhere = cf.instance(endpoint=None)
    row = cf.rental(ready_at=None)
    seen = Sight(instance=nowhere, seen_at=T0 + 590, got=nowhere, got_at=T0 + 590, others=())
    young = cf.live(row=row, sight=seen, machine=cf.machine(connected=False))
    assert not of(decide(young, now=T0 + 599), act.Release)
    [release] = of(decide(young, now=T0 + 601), act.Release)
    assert (release.reason, "no address" in release.detail) == (Reason.BAD_HOST, True)
    fresh = cf.live(row=row, machine=cf.machine(connected=False))  # a new controller has not tried it yet
    assert not of(decide(fresh, now=T0 + 601), act.Release)


def test_a_provider_that_hides_its_timer_is_not_asked_to_move_it_for_ever() -> None:
    silent = cf.instance(ends_at=None)
    seen = replace(cf.live().sight, instance=silent, got=silent)
    assert not of(decide(cf.live(sight=seen), assignments=(cf.assignment(),)), act.MoveEnd)
    other = cf.instance(ends_at=T0 + 60)
    seen = replace(seen, instance=other, got=other)
    assert of(decide(cf.live(sight=seen), assignments=(cf.assignment(),)), act.MoveEnd)


def test_the_wait_for_capacity_is_looked_at_when_it_ends() -> None:
    policy = replace(cf.POLICY, wait_s=10.0, price_cap=Decimal("0.01"))
    waiting = decide(policy=policy, job=cf.job(first_rental_at=None, wait_since=T0 + 595))
    assert waiting.wake_at == T0 + 605
    [outcome] = of(decide(policy=policy, job=cf.job(first_rental_at=None, wait_since=T0 + 590)), act.SetOutcome)
    assert (outcome.outcome, outcome.reason) == (Outcome.FAILED, Reason.NO_CAPACITY)


def test_a_run_whose_order_may_have_left_is_not_given_up_unseen() -> None:
    """The controller died between the order and its answer; a reclaim is announced before the machine answers again."""
    notice = Notice(T0 + 615)
    unordered = (cf.assignment(ordered_at=None),)
    seen = replace(cf.live().sight, instance=cf.instance(notice=notice))
    deaf = cf.live(sight=seen, machine=cf.machine(connected=False))
    decision = decide(deaf, assignments=unordered)
    assert not of(decision, act.Release)
    running = cf.live(sight=seen, machine=cf.machine(runs={"t0.1": cf.run()}, notice=notice))
    assert of(decide(running, assignments=unordered), act.SendOrder)
    [signal] = of(decide(running, assignments=(cf.assignment(),)), act.SendSignal)
    assert signal.why is SignalWhy.INTERRUPTION
    idle = cf.live(sight=seen, machine=cf.machine(notice=notice))
    assert of(decide(idle, assignments=unordered), act.Release)[0].reason is Reason.INTERRUPTED


def test_a_cancel_waits_a_moment_for_a_machine_whose_run_is_unknown() -> None:
    deaf = cf.live(machine=cf.machine(connected=False))
    unordered = (cf.assignment(ordered_at=None),)
    soon = decide(deaf, assignments=unordered, job=cf.job(cancel_at=T0 + 590))
    assert not of(soon, act.SetOutcome)
    late = decide(deaf, assignments=unordered, job=cf.job(cancel_at=T0 + 560))
    assert of(late, act.SetOutcome)[0].outcome is Outcome.CANCELLED
