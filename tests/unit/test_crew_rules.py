"""A job of many tasks: which machine gets which task, until when it lives, and how the job ends."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import core_facts as cf
import pytest
from core_facts import HOUR, T0

from orchestrator import actions as act
from orchestrator.crew import Crew
from orchestrator.model import (
    Assignment,
    Cause,
    Decision,
    Exit,
    Facts,
    Outcome,
    Policy,
    Reason,
    Rental,
    RentalFacts,
    RentalPhase,
    SignalWhy,
    Task,
)
from orchestrator.reconcile import reconcile

CREW = Crew("sweep", parallel=3, leg_ttl_s=2 * HOUR, leg_s=HOUR)
JOB = "j-1-aaaa"


def policy(crew: Crew = CREW, **changes: Any) -> Policy:
    return replace(cf.POLICY, crew=crew, **changes)


def task(name: str, seq: int, **changes: Any) -> Task:
    return replace(Task(JOB, name, {"lr": name}, seq=seq), **changes)


TASKS = tuple(task(name, seq) for seq, name in enumerate(("a", "b", "c", "d", "e"), 1))


def worker(n: int, **changes: Any) -> RentalFacts:
    row = cf.rental(n, worker=n - 1, **changes)
    return cf.live(n, row=row)


def run(name: str, n: int = 1, on: int = 1, **changes: Any) -> Assignment:
    return replace(cf.assignment(n, on, task=name), **changes)


def facts(*rentals: RentalFacts, **changes: Any) -> Facts:
    return cf.facts(*rentals, **({"tasks": TASKS} | changes))


def of(decision: Decision, kind: Any) -> list[Any]:
    return [action for action in decision.actions if isinstance(action, kind)]


def committed(decision: Decision) -> dict[str, str]:
    """Machine -> task."""
    return {action.rental: action.task for action in of(decision, act.CommitAssignment)}


# --- which task ------------------------------------------------------------------------------------------------------


def test_free_machines_get_different_tasks_in_order() -> None:
    decision = reconcile(facts(worker(1), worker(2)), policy())
    assert committed(decision) == {"gj-abcdef-1": "a", "gj-abcdef-2": "b"}


def test_a_preempted_leg_goes_to_the_head_with_its_progress() -> None:
    lost = cf.live(1, row=cf.rental(1, RentalPhase.GONE))
    saved = cf.checkpoint(300, task="c")
    seen = facts(lost, worker(2), assignments=(run("c", 1, 1),), checkpoints=(saved,), mirror_listed={"c": T0 + 130})
    decision = reconcile(seen, policy())
    (first,) = of(decision, act.CommitAssignment)
    assert (first.task, first.n, first.resume_step) == ("c", 2, 300)


def test_a_leg_whose_lost_machine_may_still_run_it_is_passed_over() -> None:
    lost = cf.live(1, row=cf.rental(1, RentalPhase.RELEASING))
    decision = reconcile(facts(lost, worker(2), assignments=(run("a", 1, 1),)), policy())
    assert committed(decision) == {"gj-abcdef-2": "b"}


def test_a_machine_with_a_leg_is_left_at_it() -> None:
    busy = replace(worker(1), machine=cf.machine(runs={"a.1": cf.run("setup")}))
    decision = reconcile(facts(busy, assignments=(run("a"),)), policy())
    assert committed(decision) == {}
    assert of(decision, act.Release) == []


def test_a_machine_goes_on_with_the_next_leg_when_its_own_is_decided() -> None:
    over = run("a", exit=cf.ended(0), closed_at=T0 + 510, results_at=T0 + 520)
    seen = facts(worker(1), tasks=(replace(TASKS[0], outcome=Outcome.DONE), *TASKS[1:]), assignments=(over,))
    assert committed(reconcile(seen, policy())) == {"gj-abcdef-1": "b"}


def test_what_a_machine_has_is_not_brought_again_but_a_checkpoint_is() -> None:
    tasks = (replace(TASKS[0], outcome=Outcome.DONE), *TASKS[1:])
    over = run("a", exit=cf.ended(0), closed_at=T0 + 510, results_at=T0 + 520)
    fresh = run("b", committed_at=T0 + 521, ordered_at=None)
    seen = facts(worker(1), tasks=tasks, assignments=(over, fresh))
    assert [order.task for order in of(reconcile(seen, policy()), act.SendOrder)] == ["b"]
    resumed = replace(seen, assignments=(over, replace(fresh, resume_hash="h1", resume_name="s")))
    assert of(reconcile(resumed, policy()), act.SendOrder) == []
    first = reconcile(replace(seen, assignments=(fresh,)), policy())
    assert [prepare.task for prepare in of(first, act.Prepare)] == ["b"]


def test_a_machine_without_a_leg_to_come_is_released() -> None:
    busy = replace(worker(1), machine=cf.machine(runs={"a.1": cf.run()}))
    decision = reconcile(facts(busy, worker(2), tasks=TASKS[:1], assignments=(run("a"),)), policy())
    assert [(r.rental, r.reason) for r in of(decision, act.Release)] == [("gj-abcdef-2", Reason.DONE)]


def test_an_idle_machine_waits_for_a_leg_whose_lost_machine_is_not_yet_proved_dead() -> None:
    lost = cf.live(1, row=cf.rental(1, RentalPhase.RELEASING))
    decision = reconcile(facts(lost, worker(2), tasks=TASKS[:1], assignments=(run("a", 1, 1),)), policy())
    assert of(decision, act.Release) == []
    assert committed(decision) == {}


# --- how one leg ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "now", "why"),
    [
        ({"cancel_at": T0 + 1}, T0 + 600, SignalWhy.CANCEL),
        ({"stop_at": T0 + 1}, T0 + 600, SignalWhy.STOP),
        ({}, T0 + 40 + 2 * HOUR, SignalWhy.TTL),
        ({}, T0 + 600, None),
    ],
)
def test_one_leg_is_told_to_end_and_the_job_goes_on(change: dict[str, Any], now: float, why: SignalWhy | None) -> None:
    busy = replace(worker(1), machine=cf.machine(runs={"a.1": cf.run()}))
    seen = facts(busy, now=now, tasks=(replace(TASKS[0], **change), *TASKS[1:]), assignments=(run("a"),))
    decision = reconcile(seen, policy())
    assert [signal.why for signal in of(decision, act.SendSignal)] == ([] if why is None else [why])
    assert of(decision, act.SetOutcome) == []


def test_a_legs_ttl_counts_seconds_of_machines_and_no_waiting() -> None:
    lost = cf.live(1, row=cf.rental(1, RentalPhase.GONE))  # released 100 s, quiesced so long after T0
    busy = replace(worker(2), machine=cf.machine(runs={"a.2": cf.run()}))
    began = T0 + 40 * HOUR
    runs = (run("a", 1, 1), run("a", 2, 2, committed_at=began, ordered_at=began))
    end = T0 + 50 * HOUR
    busy = replace(busy, rental=replace(busy.rental, end=end, wanted_end=end), machine=replace(busy.machine, end=end))
    before = reconcile(facts(lost, busy, now=began + 2 * HOUR - 70, assignments=runs), policy())
    assert of(before, act.SendSignal) == []
    after = reconcile(facts(lost, busy, now=began + 2 * HOUR - 50, assignments=runs), policy())
    assert [signal.why for signal in of(after, act.SendSignal)] == [SignalWhy.TTL]


def ended_run(why: SignalWhy | None, at: float = T0 + 500, rc: int = 143) -> tuple[Assignment, RentalFacts]:
    over = run("a", exit=Exit("run", rc, at, why), closed_at=at + 1, results_at=at + 2)
    return over, worker(1)


def test_an_early_stop_is_done_and_no_failure() -> None:
    over, machine = ended_run(SignalWhy.STOP)
    tasks = (replace(TASKS[0], stop_at=T0 + 400), *TASKS[1:])
    (decided,) = of(reconcile(facts(machine, tasks=tasks, assignments=(over,)), policy()), act.SetTaskOutcome)
    assert (decided.task, decided.outcome, decided.reason) == ("a", Outcome.DONE, Reason.STOPPED_EARLY)


def test_the_end_of_a_machine_is_not_the_end_of_a_leg() -> None:
    over, machine = ended_run(SignalWhy.TTL)  # after 460 of its 7200 s
    decision = reconcile(facts(machine, assignments=(over,)), policy())
    assert of(decision, act.SetTaskOutcome) == []
    assert [(r.reason, r.interrupted) for r in of(decision, act.Release)] == [(Reason.TTL, False)]


def test_a_leg_that_used_up_its_own_ttl_has_ended() -> None:
    over, machine = ended_run(SignalWhy.TTL, at=T0 + 40 + 2 * HOUR)
    seen = facts(machine, now=T0 + 41 + 2 * HOUR, assignments=(over,))
    (decided,) = of(reconcile(seen, policy()), act.SetTaskOutcome)
    assert (decided.outcome, decided.reason) == (Outcome.FAILED, Reason.TTL)


def test_a_failing_leg_decides_itself_only() -> None:
    over, machine = ended_run(None, rc=3)
    seen = facts(replace(machine, sight=replace(machine.sight, got_at=T0 + 501)), assignments=(over,))
    decision = reconcile(seen, policy())
    assert [(d.task, d.outcome) for d in of(decision, act.SetTaskOutcome)] == [("a", Outcome.FAILED)]
    assert of(decision, act.SetOutcome) == []
    assert of(decision, act.Hold) == []


# --- ends and money --------------------------------------------------------------------------------------------------


def test_a_first_end_is_one_and_a_half_legs_and_the_startup() -> None:
    (opened, *_) = of(reconcile(facts(now=T0), policy()), act.OpenRental)
    assert opened.end == T0 + 600 + 1.5 * HOUR + 240
    assert opened.worker == 0


def test_an_end_moves_out_in_steps_while_a_leg_needs_it_and_not_before() -> None:
    end = T0 + 2 * HOUR
    busy = replace(
        worker(1, end=end, wanted_end=end), machine=cf.machine(runs={"a.1": cf.run()}, end=end)
    )  # fmt: skip
    slow = replace(CREW, leg_ttl_s=9 * HOUR)
    early = reconcile(facts(busy, now=end - 600, assignments=(run("a"),)), policy(slow))
    assert of(early, act.WantEnd) == []
    (moved,) = of(reconcile(facts(busy, now=end - 500, assignments=(run("a"),)), policy(slow)), act.WantEnd)
    assert moved.end == end + 1800  # half a leg
    idle = replace(busy, machine=cf.machine(end=end))
    assert of(reconcile(facts(idle, now=end - 500, tasks=()), policy(slow)), act.WantEnd) == []


def test_no_end_lies_beyond_what_the_leg_may_still_take() -> None:
    end = T0 + 2 * HOUR
    busy = replace(worker(1, end=end, wanted_end=end), machine=cf.machine(runs={"a.1": cf.run()}, end=end))
    (moved,) = of(reconcile(facts(busy, now=end - 500, assignments=(run("a"),)), policy()), act.WantEnd)
    assert moved.end == T0 + 40 + 2 * HOUR + 480


def test_the_machines_of_one_decision_share_the_money() -> None:
    rich = of(reconcile(facts(now=T0), policy(budget=Decimal(100))), act.OpenRental)
    assert [opened.worker for opened in rich] == [0, 1, 2]
    poor = of(reconcile(facts(now=T0), policy(budget=Decimal("4.20"))), act.OpenRental)
    assert 0 < len(poor) < 3
    assert sum(opened.reserve for opened in poor) <= Decimal("4.20")


def test_money_that_lasts_for_nothing_useful_ends_the_sweep() -> None:
    decision = reconcile(facts(now=T0), policy(budget=Decimal("0.5")))
    (ended,) = of(decision, act.SetOutcome)
    assert (ended.outcome, ended.reason) == (Outcome.FAILED, Reason.BUDGET)
    assert of(decision, act.OpenRental) == []


def test_while_a_machine_works_missing_money_decides_nothing() -> None:
    busy = replace(worker(1), machine=cf.machine(runs={"a.1": cf.run()}))
    decision = reconcile(facts(busy, assignments=(run("a"),)), policy(budget=Decimal("12.5")))
    assert of(decision, act.SetOutcome) == []
    assert of(decision, act.OpenRental) == []


# --- how many machines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parallel", "limit", "left", "count"),
    [(3, None, 5, 3), (8, None, 5, 5), (3, 2, 5, 2), (3, 0, 5, 0), (3, None, 1, 1)],
)
def test_machines_are_as_many_as_tasks_parallelism_and_limits_allow(
    parallel: int, limit: int | None, left: int, count: int
) -> None:
    seen = facts(now=T0, tasks=TASKS[:left], machines_left=limit)
    assert len(of(reconcile(seen, policy(replace(CREW, parallel=parallel))), act.OpenRental)) == count


def test_a_worker_has_no_second_machine_before_its_first_is_quiesced() -> None:
    going = cf.live(1, row=cf.rental(1, RentalPhase.RELEASING, worker=0))
    opened = of(reconcile(facts(going, assignments=(run("a"),)), policy()), act.OpenRental)
    assert [o.worker for o in opened] == [1, 2]


def test_pools_are_spread_over_when_prices_are_near_and_not_when_they_are_far() -> None:
    near = replace(cf.OFFER, key="m2", pool="m2", region="r2", hourly=Decimal("1.04"))
    far = replace(near, hourly=Decimal("1.40"))
    picked = [o.offer.key for o in of(reconcile(facts(now=T0, offers=(cf.OFFER, near)), policy()), act.OpenRental)]
    assert sorted(picked) == ["m1-spot", "m1-spot", "m2"]
    picked = [o.offer.key for o in of(reconcile(facts(now=T0, offers=(cf.OFFER, far)), policy()), act.OpenRental)]
    assert picked == ["m1-spot"] * 3


# --- how the job ends ------------------------------------------------------------------------------------------------

DONE = {"outcome": Outcome.DONE, "reason": Reason.DONE}
STOPPED = {"outcome": Outcome.DONE, "reason": Reason.STOPPED_EARLY}
FAILED = {"outcome": Outcome.FAILED, "reason": Reason.FAILED, "detail": "run exited 3: boom", "exit_code": 3}
CANCELLED = {"outcome": Outcome.CANCELLED, "reason": Reason.CANCELLED}


@pytest.mark.parametrize(
    ("kind", "ends", "outcome", "words"),
    [
        ("sweep", [DONE, DONE], Outcome.DONE, "2 done"),
        ("sweep", [DONE, FAILED, STOPPED], Outcome.DONE, "1 done, 1 stopped early, 1 failed"),
        ("sweep", [FAILED, FAILED], Outcome.FAILED, "2 failed; a: run exited 3: boom"),
        ("sweep", [CANCELLED, CANCELLED], Outcome.CANCELLED, "2 cancelled"),
        ("sweep", [STOPPED, STOPPED], Outcome.FAILED, "2 stopped early"),
        ("replicas", [DONE, FAILED], Outcome.FAILED, "1 done, 1 failed; b: run exited 3: boom"),
        ("replicas", [DONE, DONE], Outcome.DONE, "2 done"),
    ],
)
def test_the_end_of_all(kind: Any, ends: list[dict[str, Any]], outcome: Outcome, words: str) -> None:
    tasks = tuple(replace(each, **end) for each, end in zip(TASKS, ends, strict=False))
    (ended,) = of(reconcile(facts(tasks=tasks), policy(replace(CREW, kind=kind))), act.SetOutcome)
    assert (ended.outcome, ended.detail) == (outcome, words)


def test_a_sweep_that_was_stopped_in_every_leg_was_not_cancelled() -> None:
    tasks = tuple(replace(each, **STOPPED) for each in TASKS)
    (ended,) = of(reconcile(facts(tasks=tasks), policy()), act.SetOutcome)
    assert ended.reason is Reason.STOPPED_EARLY


def test_the_same_failure_in_three_legs_spares_the_others() -> None:
    cause = Cause("user-code", "ValueError", "ValueError: x")
    runs = tuple(run(name, exit=cf.ended(1), closed_at=T0 + 9, cause=cause) for name in "abc")
    tasks = tuple(replace(each, **FAILED) if each.id in "abc" else each for each in TASKS)
    decision = reconcile(facts(worker(1), tasks=tasks, assignments=runs), policy())
    (ended,) = of(decision, act.SetOutcome)
    assert ended.detail == "the same failure in 3 of 5, and none was done: run exited 3: boom"
    assert committed(decision) == {}
    one_done = (*tasks[:3], replace(tasks[3], **DONE), tasks[4])
    assert of(reconcile(facts(worker(1), tasks=one_done, assignments=runs), policy()), act.SetOutcome) == []
    other = (replace(runs[0], cause=replace(cause, signature="KeyError")), *runs[1:])
    assert of(reconcile(facts(worker(1), tasks=tasks, assignments=other), policy()), act.SetOutcome) == []


def test_a_cancel_waits_for_what_is_in_hand_and_rents_nothing() -> None:
    busy = replace(worker(1), machine=cf.machine(runs={"a.1": cf.run()}))
    job = cf.job(cancel_at=T0 + 590)
    decision = reconcile(facts(busy, job=job, assignments=(run("a"),)), policy())
    assert [signal.why for signal in of(decision, act.SendSignal)] == [SignalWhy.CANCEL]
    assert of(decision, act.SetOutcome) == of(decision, act.OpenRental) == []
    (ended,) = of(reconcile(facts(job=job), policy()), act.SetOutcome)
    assert ended.outcome is Outcome.CANCELLED


# --- searches --------------------------------------------------------------------------------------------------------


def test_a_leg_is_drawn_for_each_free_machine_and_none_beyond_the_trials() -> None:
    drawing = policy(replace(CREW, trials=6))
    done = tuple(replace(each, **DONE) for each in TASKS)
    (drawn,) = of(reconcile(facts(worker(1), worker(2), tasks=done[:3]), drawing), act.DrawLegs)
    assert (drawn.count, drawn.known) == (2, 3)
    (drawn,) = of(reconcile(facts(worker(1), worker(2), tasks=done), drawing), act.DrawLegs)
    assert drawn.count == 1
    spent = reconcile(facts(worker(1), tasks=(*done, replace(TASKS[0], id="f", seq=6, **DONE))), drawing)
    assert of(spent, act.DrawLegs) == []
    assert [ended.outcome for ended in of(spent, act.SetOutcome)] == [Outcome.DONE]


def test_drawing_stops_when_the_money_would_be_passed() -> None:
    drawing = policy(replace(CREW, trials=6), budget=Decimal("1.0"))
    done = tuple(replace(each, **DONE) for each in TASKS[:2])
    row: Rental = cf.rental(1, end=T0 + 1000, wanted_end=T0 + 1000, reserve=Decimal("0.4"))
    decision = reconcile(facts(cf.live(1, row=row), tasks=done), drawing)
    assert of(decision, act.DrawLegs) == []
    assert [r.rental for r in of(decision, act.Release)] == ["gj-abcdef-1"]
    gone = cf.live(1, row=cf.rental(1, RentalPhase.GONE, reserve=Decimal(0)), spent=Decimal("0.7"))
    (ended,) = of(reconcile(facts(gone, tasks=done), drawing), act.SetOutcome)
    assert ended.outcome is Outcome.DONE
    assert ended.detail == "2 done; 4 further legs were not drawn for lack of money"


# --- batches ---------------------------------------------------------------------------------------------------------


def sliced(items: dict[str, str], **changes: Any) -> Facts:
    over = run("s1", exit=cf.ended(4), closed_at=T0 + 510)
    machine = worker(1)
    machine = replace(machine, sight=replace(machine.sight, got_at=T0 + 501))
    tasks = (Task(JOB, "s1", seq=1, items=("x", "y", "z")),)
    listed = {"s1": T0 + 520.0}
    return facts(machine, tasks=tasks, assignments=(over,), items=items, mirror_listed=listed, **changes)


BATCH = replace(CREW, kind="batch", leg_ttl_s=None)


def test_a_slice_goes_on_without_the_item_that_failed() -> None:
    decision = reconcile(sliced({"x": ""}), policy(BATCH))
    (over,) = of(decision, act.ItemsOver)
    assert (over.items, over.state) == (("y",), "failed")
    assert "exited 4" in over.detail
    assert [(c.task, c.n) for c in of(decision, act.CommitAssignment)] == [("s1", 2)]


def test_what_marked_items_made_comes_home_first() -> None:
    decision = reconcile(sliced({}, marked={"s1.1": 1}), policy(BATCH))
    assert of(decision, act.ItemsOver) == []
    assert [c.final for c in of(decision, act.CollectResults)] == [False]


def test_the_last_item_that_fails_ends_the_slice() -> None:
    (over,) = of(reconcile(sliced({"x": "", "y": ""}), policy(BATCH)), act.ItemsOver)
    assert over.items == ("z",)
    over_all = sliced({"x": "", "y": "", "z": "exit 4"})
    home = replace(over_all.assignments[0], results_at=T0 + 530)
    (ended,) = of(reconcile(replace(over_all, assignments=(home,)), policy(BATCH)), act.SetTaskOutcome)
    assert (ended.outcome, ended.detail) == (Outcome.FAILED, "1 of 3 items failed")
