"""A leg that is given to a machine while the one before it runs: when it is, when it begins, what takes it back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import core_facts as cf
import pytest
from core_facts import HOUR, T0
from test_crew_rules import CREW, TASKS, committed, facts, of, policy, run, worker

from orchestrator import actions as act
from orchestrator.model import AgentRun, Assignment, Facts, Outcome, RentalFacts, RentalPhase, SignalWhy
from orchestrator.reconcile import reconcile
from providers.base import Notice

LIMIT = 2 * HOUR  # of the crew's legs
AHEAD = "gj-abcdef-1/withdraw/b.1"


def at_work(*more: AgentRun, **changes: Any) -> RentalFacts:
    """A machine on which `a` runs; `more` is what it says of `b`, given ahead."""
    runs = {"a.1": cf.run(), **dict(zip(("b.1",), more, strict=False))}
    return replace(worker(1), machine=cf.machine(runs=runs, **changes))


def staged(**changes: Any) -> AgentRun:
    return cf.run("queued", staged=True, limit_s=LIMIT, started=0.0, **changes)


def given(**changes: Any) -> Assignment:
    """`b`, committed on the machine at which `a` is, and not begun."""
    return run("b", committed_at=T0 + 50, **{"ordered_at": None, **changes})


def one_machine(*runs: Assignment, on: RentalFacts | None = None, **changes: Any) -> Facts:
    """A sweep that may have one machine only."""
    return facts(on or at_work(), assignments=runs, **changes)


ALONE = replace(CREW, parallel=1)


def test_a_machine_at_work_is_given_one_leg_ahead_and_no_second() -> None:
    first = reconcile(one_machine(run("a")), policy(ALONE))
    assert committed(first) == {"gj-abcdef-1": "b"}
    assert committed(reconcile(one_machine(run("a"), given()), policy(ALONE))) == {}
    batch = replace(ALONE, kind="batch")
    assert committed(reconcile(one_machine(run("a")), policy(batch))) == {}


@pytest.mark.parametrize("state", ["setup", "smoke", "queued"])
def test_nothing_is_ahead_before_the_first_program_runs(state: Any) -> None:
    on = replace(worker(1), machine=cf.machine(runs={"a.1": cf.run(state)}))
    assert committed(reconcile(one_machine(run("a"), on=on), policy(ALONE))) == {}


def test_legs_that_a_machine_on_its_way_will_begin_are_not_given_ahead() -> None:
    coming = worker(2, phase=RentalPhase.INTENT, create_sent_at=T0)
    decision = reconcile(facts(at_work(), coming, assignments=(run("a"),)), policy(replace(CREW, parallel=2)))
    assert committed(decision) == {"gj-abcdef-1": "c"}
    none_left = facts(at_work(), coming, assignments=(run("a"),), tasks=TASKS[:2])
    assert committed(reconcile(none_left, policy(replace(CREW, parallel=2)))) == {}


def test_it_is_ordered_ahead_and_then_left_alone() -> None:
    decision = reconcile(one_machine(run("a"), given()), policy(ALONE))
    assert [each.key for each in of(decision, act.SendOrder)] == ["gj-abcdef-1/order/b.1"]
    there = reconcile(one_machine(run("a"), given(), on=at_work(staged())), policy(ALONE))
    assert of(there, act.SendOrder) + of(there, act.Withdraw) + of(there, act.SendSignal) == []


def test_its_checkpoint_is_brought_while_the_other_runs() -> None:
    runs = run("a"), given(resume_hash="h1", resume_name="step_1.pt", resume_step=1)
    assert of(reconcile(one_machine(*runs), policy(ALONE)), act.SendOrder) == []
    assert [each.task for each in of(reconcile(one_machine(*runs), policy(ALONE)), act.Prepare)] == ["b"]
    ready = one_machine(*runs, prepared=frozenset({"gj-abcdef-1/b.1"}))
    assert [each.task for each in of(reconcile(ready, policy(ALONE)), act.SendOrder)] == ["b"]


def test_what_began_by_itself_is_stored_with_the_time_at_which_it_did() -> None:
    on = at_work(cf.run(begun_s=3.0, started=T0 + 590))
    found = one_machine(run("a"), given(), on=on, begun={"b.1": T0 + 597.0})
    assert of(reconcile(found, policy(ALONE)), act.StoreBegun) == [act.StoreBegun("b", 1, T0 + 597.0)]


def test_both_are_in_hand_while_the_first_is_wound_up_and_no_third_is_given() -> None:
    on = at_work(cf.run(begun_s=3.0), notice=None)
    done = run("a", exit=cf.ended(0))
    decision = reconcile(one_machine(done, given(ordered_at=T0 + 597.0), on=on), policy(ALONE))
    assert [each.task for each in of(decision, act.SendClose)] == ["a"]
    assert committed(decision) == {}
    wound_up = replace(done, closed_at=T0 + 598, results_at=T0 + 599)
    decision = reconcile(one_machine(wound_up, given(ordered_at=T0 + 597.0), on=on), policy(ALONE))
    assert [(each.task, each.outcome) for each in of(decision, act.SetTaskOutcome)] == [("a", Outcome.DONE)]


def test_after_a_failure_it_begins_by_a_word_once_the_failure_is_decided() -> None:
    failed = run("a", exit=cf.ended(1))
    assert of(reconcile(one_machine(failed, given(), on=at_work(staged())), policy(ALONE)), act.SendOrder) == []
    closed = replace(failed, closed_at=T0 + 510)
    decision = reconcile(one_machine(closed, given(), on=at_work(staged())), policy(ALONE))
    assert [each.task for each in of(decision, act.SendOrder)] == ["b"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tasks": tuple(replace(t, cancel_at=T0 + 590) if t.id == "b" else t for t in TASKS)}, "cancel"),
        ({"tasks": tuple(replace(t, stop_at=T0 + 590) if t.id == "b" else t for t in TASKS)}, "stop"),
        ({"job": cf.job(cancel_at=T0 + 590)}, "cancel"),
        ({"job": cf.job(ttl_extra_s=HOUR)}, "its limit is another one by now"),
        ({"now": T0 + 12 * HOUR - 200}, "ttl"),
    ],
)
def test_what_speaks_against_it_takes_it_back(changes: dict[str, Any], why: str) -> None:
    found = one_machine(run("a"), given(), on=at_work(staged()), **changes)
    decision = reconcile(found, policy(ALONE))
    assert [each.key for each in of(decision, act.Withdraw)] == [AHEAD]
    assert f"b.1 is taken back: {why}" in decision.why
    assert of(decision, act.Release) == []


def test_a_reclaim_or_a_run_that_must_be_repeated_takes_it_back() -> None:
    noticed = at_work(staged(), notice=Notice(T0 + 700))
    assert of(reconcile(one_machine(run("a"), given(), on=noticed), policy(ALONE)), act.Withdraw)
    again = run("a", exit=cf.ended(85))
    assert of(reconcile(one_machine(again, given(), on=at_work(staged())), policy(ALONE)), act.Withdraw)


def test_what_was_taken_back_waits_at_the_head_of_the_queue() -> None:
    back = given(closed_at=T0 + 595)
    assert back.withdrawn
    free = replace(worker(1), machine=cf.machine())
    done = tuple(replace(t, outcome=Outcome.DONE) if t.id == "a" else t for t in TASKS)
    found = one_machine(run("a", exit=cf.ended(0), closed_at=T0 + 510), back, on=free, tasks=done)
    # Nothing of it can be in the mirror, so that nothing is looked up there first
    (commit,) = of(reconcile(found, policy(ALONE)), act.CommitAssignment)
    assert (commit.task, commit.n) == ("b", 2)


def test_a_lost_machine_gives_both_back() -> None:
    lost = worker(1, phase=RentalPhase.GONE)
    second = worker(2)
    decision = reconcile(facts(lost, second, assignments=(run("a"), given())), policy(replace(CREW, parallel=2)))
    looked = {each.task for each in of(decision, act.ListMirror)}
    assert looked == {"a"}
    listed = facts(lost, second, assignments=(run("a"), given()), mirror_listed={"a": T0 + 300, "b": T0 + 300})
    assert committed(reconcile(listed, policy(replace(CREW, parallel=2)))) == {"gj-abcdef-2": "a"}


def test_a_free_machine_takes_over_what_another_would_begin_much_later() -> None:
    tasks = TASKS[:2]
    found = facts(at_work(staged()), worker(2), assignments=(run("a"), given()), tasks=tasks)
    decision = reconcile(found, policy(replace(CREW, parallel=2)))
    assert [each.key for each in of(decision, act.Withdraw)] == [AHEAD]
    assert of(decision, act.Release) == []
    soon = replace(found, now=T0 + 40 + HOUR - 5)
    assert of(reconcile(soon, policy(replace(CREW, parallel=2))), act.Withdraw) == []
    assert [each.rental for each in of(reconcile(soon, policy(replace(CREW, parallel=2))), act.Release)] == [
        "gj-abcdef-2"
    ]


def test_a_further_machine_is_rented_for_what_waits_behind_another_leg() -> None:
    found = facts(at_work(staged()), assignments=(run("a"), given()), tasks=TASKS[:2])
    assert len(of(reconcile(found, policy(replace(CREW, parallel=2))), act.OpenRental)) == 1


def test_an_answer_that_died_with_an_earlier_controller_closes_the_books_alone() -> None:
    dead = cf.run("exited", staged=True, dead=True, closed=True, started=0.0)
    decision = reconcile(one_machine(run("a"), given(), on=at_work(dead)), policy(ALONE))
    assert [each.key for each in of(decision, act.Withdraw)] == [AHEAD]
    assert of(decision, act.StoreExit) == []


def test_a_leg_ahead_of_a_silent_machine_is_decided_by_the_users_word_only() -> None:
    silent = at_work(staged(), connected=False)
    quiet = reconcile(one_machine(run("a"), given(), on=silent), policy(ALONE))
    assert of(quiet, act.Withdraw) + of(quiet, act.SetTaskOutcome) == []
    told = one_machine(run("a"), given(), on=silent, job=cf.job(cancel_at=T0 + 500))
    decided = of(reconcile(told, policy(ALONE)), act.SetTaskOutcome)
    assert {(each.task, each.outcome) for each in decided} == {("a", Outcome.CANCELLED), ("b", Outcome.CANCELLED)}


def test_a_signal_to_the_run_at_work_is_none_to_the_one_ahead() -> None:
    stopped = tuple(replace(t, stop_at=T0 + 590) if t.id == "a" else t for t in TASKS)
    decision = reconcile(one_machine(run("a"), given(), on=at_work(staged()), tasks=stopped), policy(ALONE))
    assert [(each.task, each.why) for each in of(decision, act.SendSignal)] == [("a", SignalWhy.STOP)]
    assert of(decision, act.Withdraw) == []


# --- a run at work ----------------------------------------------------------------------------------------------------


def moved(shown: AgentRun, extra_s: float = 0.0) -> list[str]:
    """What the machine is told of the limit of `a`, of which it shows `shown`."""
    found = facts(replace(worker(1), machine=cf.machine(runs={"a.1": shown})), assignments=(run("a"),))
    found = replace(found, job=replace(found.job, ttl_extra_s=extra_s))
    return [each.key for each in of(reconcile(found, policy(ALONE)), act.MoveLimit)]


def test_the_limit_of_a_run_at_work_follows_what_its_leg_was_extended_by() -> None:
    assert moved(cf.run(limit_s=LIMIT)) == []
    assert moved(cf.run(limit_s=LIMIT + 0.9)) == []
    assert moved(cf.run(limit_s=LIMIT), extra_s=HOUR) == ["gj-abcdef-1/limit/a.1"]
    assert moved(cf.run(limit_s=LIMIT + HOUR)) == ["gj-abcdef-1/limit/a.1"]
    assert moved(cf.run("setup", limit_s=LIMIT), extra_s=HOUR) == ["gj-abcdef-1/limit/a.1"]


def test_no_limit_is_moved_that_the_machine_does_not_show_or_that_has_passed() -> None:
    assert moved(cf.run(), extra_s=HOUR) == []  # an agent of an earlier version
    assert moved(cf.run(limit_s=LIMIT, signalled=SignalWhy.TTL), extra_s=HOUR) == []
