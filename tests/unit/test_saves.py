"""What is said and decided about checkpoints of a running job: one stays unfinished, resuming does not help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import core_facts as cf
import pytest
from core_facts import T0

from orchestrator import actions as act
from orchestrator import resume
from orchestrator.model import AgentCheckpoint, Cause, Decision, Outcome, Reason, RentalPhase
from orchestrator.reconcile import reconcile
from orchestrator.sightings import Sightings, parse_status

EVERY = replace(cf.POLICY, every_s=900.0)
RUNNING = {"t0.1": T0 + 100}
HALF = AgentCheckpoint("checkpoint-300", 300, 5, False, why="it lacks trainer_state.json")


def alarms(decision: Decision) -> dict[str, str]:
    return {action.kind: action.text for action in decision.actions if isinstance(action, act.Alarm)}


def decide(*rentals: object, policy: object = EVERY, **changes: Any) -> Decision:
    return reconcile(cf.facts(*rentals, **changes), policy)  # type: ignore[arg-type]


def running(n: int = 1, on: int = 1, **changes: Any) -> Any:
    return cf.live(on, machine=cf.machine(runs={f"t0.{n}": cf.run(**changes)}))


# --- one that stays unfinished ---


@pytest.mark.parametrize(
    ("now", "changes", "said"),
    [
        (T0 + 100 + 1814, {}, False),
        (T0 + 100 + 1815, {}, True),
        (T0 + 100 + 1815, {"checkpoints_left": frozenset({"t0.1"})}, False),  # it is on its way
        (T0 + 100 + 1815, {"checkpoints": (cf.checkpoint(200),)}, False),
        (T0 + 200 + 1815, {"checkpoints": (cf.checkpoint(200),)}, True),
        (T0 + 200 + 1815, {"running_since": {}}, False),  # nobody knows since when it runs
        (T0 + 200 + 1815, {"policy": cf.POLICY}, False),  # it does not say how often it saves
    ],
)
def test_what_stays_unfinished_for_two_intervals_is_told(now: float, changes: dict[str, Any], said: bool) -> None:
    more = {"running_since": RUNNING, **changes}
    decision = decide(running(checkpoints=(HALF,)), assignments=(cf.assignment(),), now=now, **more)
    assert ("checkpoint-unfinished" in alarms(decision)) == said


def test_the_alarm_says_what_it_lacks() -> None:
    old = AgentCheckpoint("checkpoint-200", 200, 5, False, why="it is empty")
    fine = AgentCheckpoint("checkpoint-400", 400, 5, False)  # it has not settled: nothing is wrong with it
    found = running(checkpoints=(HALF, old, fine))
    decision = decide(found, assignments=(cf.assignment(),), now=T0 + 2100, running_since=RUNNING)
    assert alarms(decision)["checkpoint-unfinished"].startswith(
        "checkpoint-300 of t0.1 counts for nothing: it lacks trainer_state.json. "
    )
    nothing = decide(running(checkpoints=(fine,)), assignments=(cf.assignment(),), now=T0 + 2100, running_since=RUNNING)
    assert alarms(nothing) == {}


def test_no_checkpoint_is_due_in_setup_and_when_it_is_the_time_to_stop() -> None:
    more: dict[str, Any] = {"assignments": (cf.assignment(),), "now": T0 + 9000, "running_since": RUNNING}
    assert alarms(decide(running(state="setup", stage="setup", checkpoints=(HALF,)), **more)) == {}
    stopping = decide(running(checkpoints=(HALF,)), **{**more, "job": cf.job(cancel_at=T0 + 8990)})
    assert "checkpoint-unfinished" not in alarms(stopping)


def test_the_decision_wakes_when_a_checkpoint_is_overdue() -> None:
    decision = decide(running(), assignments=(cf.assignment(),), now=T0 + 1910, running_since=RUNNING)
    assert decision.wake_at == pytest.approx(T0 + 1915)


def test_since_when_a_program_runs_is_counted_from_its_first_sight() -> None:
    seen = Sightings()
    for at, state in ((1.0, "setup"), (5.0, "run"), (9.0, "run")):
        seen.reached({"runs": {"t0.1": {"state": state}}})
        seen.note_running(at)
    assert seen.running_since == {"t0.1": 5.0}
    for step in (40.0, 41.0, 12.0):
        seen.note_step("t0.1", step)
    assert seen.steps == {"t0.1": (40.0, 41.0)}


def test_why_one_is_not_complete_is_read_and_bounded() -> None:
    rows = [{"name": "step_1", "step": 1, "why": "x" * 999}, {"name": "step_2", "step": 2, "complete": True}]
    run = parse_status({"runs": {"t0.1": {"state": "run", "checkpoints": rows}}}).runs["t0.1"]
    assert [len(each.why) for each in run.checkpoints] == [200, 0]


# --- resuming does not help ---


def given(n: int, on: int, **changes: Any) -> Any:
    more = {"resume_hash": "h1-500", "resume_name": "step_500.pt", "resume_step": 500, "seal": ("h1-500",), **changes}
    return cf.assignment(n, on, **more)


def lost(n: int) -> Any:
    return cf.live(row=cf.rental(n, RentalPhase.GONE, quiesced_at=T0 + 100 * n, gone_at=T0 + 100 * n))


def test_a_program_that_begins_anew_is_told_at_its_first_checkpoint() -> None:
    rows = (cf.checkpoint(500), cf.checkpoint(100, n=2))
    decision = decide(lost(1), running(2, 2), assignments=(cf.assignment(), given(2, 2)), checkpoints=rows)
    assert alarms(decision)["resume-ignored"] == (
        "t0.2 was given step_500.pt (step 500) and saved step 100: does the program read $GPUJOB_RESUME_FROM?"
    )
    rows = (cf.checkpoint(500), cf.checkpoint(600, n=2))
    assert alarms(decide(lost(1), running(2, 2), assignments=(cf.assignment(), given(2, 2)), checkpoints=rows)) == {}


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ({"t0.1": (1.0, 520.0), "t0.2": (1.0, 3.0)}, True),
        ({"t0.1": (1.0, 520.0), "t0.2": (501.0, 503.0)}, False),
        ({"t0.1": (1.0, 5.0), "t0.2": (1.0, 2.0)}, False),  # the log counts epochs, the checkpoints steps
        ({"t0.2": (1.0, 2.0)}, False),  # nobody saw how far the one before had counted
    ],
)
def test_a_log_that_counts_from_the_start_is_told_where_its_steps_are_those_of_the_checkpoints(
    steps: dict[str, tuple[float, float]], said: bool
) -> None:
    rows = (cf.checkpoint(500),)
    runs = (cf.assignment(), given(2, 2))
    decision = decide(lost(1), running(2, 2), assignments=runs, checkpoints=rows, steps_seen=steps)
    assert ("resume-ignored" in alarms(decision)) == said


def test_attempts_that_never_get_beyond_their_resume_point_end_the_job_with_the_reason() -> None:
    runs = (cf.assignment(), *(given(n, n, committed_at=T0 + 100 * n) for n in (2, 3, 4)))
    rows = (cf.checkpoint(500), cf.checkpoint(100, n=3), cf.checkpoint(200, n=4))
    decision = decide(*(lost(n) for n in (1, 2, 3, 4)), assignments=runs, checkpoints=rows)
    (outcome,) = [action for action in decision.actions if isinstance(action, act.SetOutcome)]
    assert (outcome.outcome, outcome.reason) == (Outcome.FAILED, Reason.NO_PROGRESS)
    assert outcome.detail == (
        "resume is not working: 3 runs in a row were given a checkpoint, the last step_500.pt (step 500), and none got "
        "beyond its own; t0.3 was given step_500.pt (step 500) and saved step 100: does the program read "
        "$GPUJOB_RESUME_FROM?; 3 attempts in a row were lost without a new checkpoint"
    )
    better = (*rows, cf.checkpoint(501, n=4))
    decision = decide(*(lost(n) for n in (1, 2, 3, 4)), assignments=runs, checkpoints=better)
    assert not [action for action in decision.actions if isinstance(action, act.SetOutcome)]


def test_runs_that_began_from_the_start_say_nothing_of_resuming() -> None:
    assert resume.not_working(cf.facts(), [cf.assignment(1), given(2, 2)]) == ""
    assert resume.not_working(cf.facts(), []) == ""


# --- other circumstances than the checkpoint's ---


def test_another_world_size_and_another_torch_are_warned_of() -> None:
    four = cf.live(row=cf.rental(1, RentalPhase.GONE, offer=replace(cf.OFFER, gpu_count=4)))
    torch = {"torch": {"version": "2.4.0"}}
    runs = (cf.assignment(environment=torch), given(2, 2, environment={"torch": {"version": "2.5.1"}}))
    found = alarms(decide(four, running(2, 2), assignments=runs, checkpoints=(cf.checkpoint(500),)))
    assert found["world-size"].startswith("step_500.pt was saved with GPUJOB_NUM_GPUS=4, and t0.2 goes on with 1: ")
    words = "step_500.pt was saved with torch 2.4.0, and t0.2 has 2.5.1: pin it in setup or image"
    assert found["torch-changed"] == words
    runs = (cf.assignment(environment=torch), given(2, 2, environment=torch))
    assert alarms(decide(lost(1), running(2, 2), assignments=runs, checkpoints=(cf.checkpoint(500),))) == {}
    late = decide(four, running(2, 2), assignments=runs, checkpoints=(cf.checkpoint(500),), now=T0 + 3100)
    assert alarms(late) == {}  # alarms come again every hour: what lasts is said once


# --- a checkpoint that cannot be used ---


def test_one_that_is_damaged_in_the_mirror_gives_way_to_the_one_before() -> None:
    """Before, it was sent five times and the machine was blamed."""
    rows = (cf.checkpoint(400), cf.checkpoint(500))
    fresh = given(2, 2, ordered_at=None, seal=("h1-400", "h1-500"))
    runs = (cf.assignment(closed_at=T0 + 50), fresh)
    more: dict[str, Any] = {"assignments": runs, "passed_over": frozenset({"h1-500"})}
    decision = decide(lost(1), cf.live(2), checkpoints=rows, **more)
    assert [a for a in decision.actions if not isinstance(a, act.Alarm)] == [
        act.ResumeOther("t0", 2, ("h1-400",), "h1-400", "step_400.pt", 400)
    ]
    decision = decide(lost(1), cf.live(2), checkpoints=rows[1:], **more)
    (outcome,) = [action for action in decision.actions if isinstance(action, act.SetOutcome)]
    assert (outcome.reason, "no other checkpoint" in outcome.detail) == (Reason.CHECKPOINT, True)
    started = decide(lost(1), running(2, 2), checkpoints=rows, **more)  # the order has left: nothing is changed
    assert not [a for a in started.actions if isinstance(a, act.ResumeOther)]


def test_one_that_the_program_could_not_read_is_passed_over_with_a_word() -> None:
    broken = Cause("checkpoint", "torn-checkpoint", "EOFError: Ran out of input")
    rows = (cf.checkpoint(400), cf.checkpoint(500))
    runs = (
        cf.assignment(closed_at=T0 + 50),
        given(2, 2, closed_at=T0 + 200, cause=broken, exit=cf.ended(1), seal=("h1-400", "h1-500")),
    )
    decision = decide(lost(1), lost(2), cf.live(3), assignments=runs, checkpoints=rows, mirror_listed={"t0": T0 + 500})
    (commit,) = [action for action in decision.actions if isinstance(action, act.CommitAssignment)]
    assert commit.resume_step == 400
    assert alarms(decision)["checkpoint-unreadable"] == (
        "step_500.pt could not be read by t0.2 and is passed over: going on from step_400.pt (step 400)"
    )
