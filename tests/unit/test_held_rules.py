"""The core after `--replace` on a held machine: what the runs of the old wish still say, and what they do not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from core_facts import (
    HOUR,
    POLICY,
    T0,
    assignment,
    checkpoint,
    ended,
    facts,
    instance,
    job,
    live,
    machine,
    rental,
    run,
)

from orchestrator import actions as act
from orchestrator.context import smoked
from orchestrator.machine import stages
from orchestrator.model import Assignment, Facts, Outcome, Policy, Reason, RentalFacts, RentalPhase
from orchestrator.reconcile import reconcile
from orchestrator.words import State, picture_of, words_of

FAILED = assignment(1, exit=ended(1), closed_at=T0 + 510)
REPLACED = job(replaced_n=1, first_rental_at=T0)


def after(*rentals: RentalFacts, now: float = T0 + 600, policy: Policy = POLICY, **changes: object) -> list[object]:
    """What is decided about a job whose failed run 1 was replaced."""
    base: dict[str, object] = {"job": REPLACED, "assignments": (FAILED,), "mirror_listed": {"t0": T0 + 590}}
    seen: Facts = facts(*(rentals or (live(),)), now=now, **(base | changes))
    return list(reconcile(seen, policy).actions)


def committed(actions: list[object]) -> act.CommitAssignment:
    (found,) = [a for a in actions if isinstance(a, act.CommitAssignment)]
    return found


def test_the_next_number_is_committed_on_the_same_machine() -> None:
    found = committed(after(checkpoints=(checkpoint(40),)))
    assert (found.n, found.rental, found.resume_step) == (2, rental().id, 40)


def test_without_the_replacement_the_old_failure_stands() -> None:
    decided = after(job=job())
    assert [a for a in decided if isinstance(a, act.CommitAssignment)] == []


def test_fresh_passes_over_what_the_old_runs_saved_and_not_over_its_own() -> None:
    fresh = replace(REPLACED, fresh=True)
    assert committed(after(job=fresh, checkpoints=(checkpoint(40),))).resume_hash == ""
    second = assignment(2, committed_at=T0 + 520, exit=ended(85), closed_at=T0 + 560)
    rows = (checkpoint(40), checkpoint(7, n=2))
    assert committed(after(job=fresh, assignments=(FAILED, second), checkpoints=rows)).resume_step == 7


def test_a_machine_lost_before_the_new_run_is_replaced_and_not_judged_by_the_old_exit() -> None:
    gone = RentalFacts(rental(1, RentalPhase.GONE), live().caps)
    decided = after(gone)
    assert not [a for a in decided if isinstance(a, act.SetOutcome)]
    assert [a for a in decided if isinstance(a, act.OpenRental)]


def test_failures_of_the_old_wish_use_up_no_retry() -> None:
    once = replace(POLICY, retry_max=1)
    second = assignment(2, committed_at=T0 + 520, exit=ended(1), closed_at=T0 + 560)
    asked = replace(live().sight, got=instance(), got_at=T0 + 590)
    well = live(sight=asked)
    assert committed(after(well, policy=once, assignments=(FAILED, second))).n == 3
    decided = after(well, policy=once, job=job(), assignments=(FAILED, second))
    assert not [a for a in decided if isinstance(a, act.CommitAssignment)]


def test_inside_the_old_saving_window_the_end_moves_first() -> None:
    """Its end was near when the wish was exchanged: that is no reason to fail the new one at once."""
    now = T0 + 12 * HOUR - 60
    moving = live(row=rental(wanted_end=T0 + 24 * HOUR))
    decided = after(moving, now=now, job=replace(REPLACED, first_rental_at=now))
    assert not [a for a in decided if isinstance(a, (act.SetOutcome, act.CommitAssignment))]
    stuck = live(row=rental())
    decided = after(stuck, now=now, job=replace(REPLACED, first_rental_at=T0))
    assert [a.reason for a in decided if isinstance(a, act.SetOutcome)] == [Reason.TTL]


def test_smoke_is_run_until_a_run_of_this_wish_has_passed_it() -> None:
    from jobspecs.schema import from_document

    spec = from_document({"name": "j", "gpu": "none", "run": "true", "smoke": "echo smoke"})
    names = [[s["name"] for s in stages(spec, REPLACED, smoked=passed)] for passed in (False, True)]
    assert names == [["smoke", "run"], ["run"]]

    def passed_by(n: int, *runs: Assignment, phases: dict[int, str] | None = None) -> bool:
        told = [SimpleNamespace(task="t0", n=number, phase=phase) for number, phase in (phases or {}).items()]
        loop: Any = SimpleNamespace(store=SimpleNamespace(progress=lambda _: told))
        return smoked(loop, facts(job=REPLACED, assignments=runs), assignment(n))

    failed_setup = assignment(2, exit=replace(ended(1), stage="setup"))
    ran = assignment(2, exit=ended(1))
    assert REPLACED.replaced_n == 1
    assert [passed_by(3, run) for run in (failed_setup, ran)] == [False, True]
    assert not passed_by(2, assignment(1, exit=ended(1))), "a run of the wish before tried another program"
    assert passed_by(3, assignment(2), phases={2: "run"}), "its machine was lost in the middle"
    assert not passed_by(3, assignment(2), phases={2: "smoke", 3: "run"})


def test_people_read_that_it_starts_and_not_that_it_ended() -> None:
    words = words_of(picture_of(REPLACED, (rental(),), (FAILED,), "run"), T0 + 600)
    assert words.state is State.SETUP
    before = replace(REPLACED, replaced_n=0)
    assert words_of(picture_of(before, (rental(),), (FAILED,), "run"), T0 + 600).state is State.FINALIZING


def test_a_held_job_is_kept_until_it_is_replaced() -> None:
    held = job(outcome=Outcome.FAILED, reason=Reason.FAILED, held_until=T0 + 900)
    decided = after(job=held)
    assert not [a for a in decided if isinstance(a, (act.Release, act.CommitAssignment))]
    late = after(job=held, now=T0 + 901)
    assert [a.reason for a in late if isinstance(a, act.Release)] == [Reason.FAILED]


def test_a_new_run_that_is_running_is_watched() -> None:
    second = assignment(2)
    busy = live(machine=machine(runs={"t0.1": run("exited", dead=True, rc=1), "t0.2": run()}))
    decided = after(busy, assignments=(FAILED, second))
    assert not [a for a in decided if isinstance(a, (act.StoreExit, act.SetOutcome, act.CommitAssignment))]
