"""What the pure core does about a known cause: nothing, a new run here, or another machine; and how often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import core_facts as cf
import pytest
from core_facts import T0

from orchestrator import actions as act
from orchestrator import reaction, resume
from orchestrator.model import Assignment, Cause, Decision, Outcome, Reason, RentalFacts, RentalPhase
from orchestrator.reconcile import reconcile
from orchestrator.store.rows import cause_of, cause_text
from orchestrator.verdict import counted

NVML = Cause("bad-host", "nvml", "Failed to initialize NVML: Unknown Error", None, "other", 3)
DNS = Cause("transient", "names", "socket.gaierror: [Errno -3]", 2, "same", 1, "after a pause")
BUG = Cause("user-code", "exception", "KeyError: 'x'")
TORN = Cause("checkpoint", "torn-checkpoint", "PytorchStreamReader failed", None, "any", 2)
FULL = Cause("disk", "disk-full", "No space left on device", None, "any", 1)
HANGUP = Cause("interrupted", "hangup", "got signal: 1", None, "any", None)
AT = T0 + 510  # when the run was closed
LISTED = {"t0": AT + 1}
LATER = T0 + 600  # beyond every pause
WELL = cf.live()
WELL = replace(WELL, sight=replace(WELL.sight, got_at=T0 + 505))


def failed(cause: Cause | None, n: int = 1, **changes: Any) -> Assignment:
    base = cf.assignment(n, exit=cf.ended(1), closed_at=AT, cause=cause, committed_at=T0 + 30 + n)
    return replace(base, **changes)


def decide(*runs: Assignment, on: RentalFacts = WELL, now: float = LATER, **changes: Any) -> Decision:
    return reconcile(cf.facts(on, now=now, assignments=runs, mirror_listed=LISTED, **changes), cf.POLICY)


def names(decision: Decision) -> set[str]:
    return {type(action).__name__ for action in decision.actions}


def of(decision: Decision, kind: type[Any]) -> Any:
    (found,) = [action for action in decision.actions if isinstance(action, kind)]
    return found


def test_user_code_is_never_repeated_whatever_the_exit_code() -> None:
    for rc in (1, 7, 134, 139):
        home = failed(BUG, results_at=T0 + 520, exit=cf.ended(rc))
        outcome = of(decide(home), act.SetOutcome)
        assert (outcome.outcome, outcome.reason) == (Outcome.FAILED, Reason.FAILED)
        assert outcome.detail == f"run exited {rc} (user program)"


def test_a_failure_without_a_known_cause_is_a_failure() -> None:
    assert of(decide(failed(None, results_at=T0 + 520)), act.SetOutcome).outcome is Outcome.FAILED


def test_the_cause_is_waited_for_until_the_run_is_closed() -> None:
    assert names(decide(failed(None, closed_at=None))) == {"SendClose"}


def test_a_bad_host_is_given_back_and_nothing_is_decided_about_the_job() -> None:
    decision = decide(failed(NVML))
    release = of(decision, act.Release)
    assert (release.reason, release.interrupted) == (Reason.BAD_HOST, False)
    assert release.detail == "run exited 1: [bad-host] Failed to initialize NVML: Unknown Error"
    assert "SetOutcome" not in names(decision)


def test_after_a_bad_host_another_machine_is_rented() -> None:
    gone = cf.live(row=cf.rental(1, RentalPhase.GONE, reason=Reason.BAD_HOST))
    decision = decide(failed(NVML), on=gone)
    assert "SetOutcome" not in names(decision)
    assert "OpenRental" in names(decision)


def test_a_network_is_asked_again_here_and_only_after_a_pause() -> None:
    early = decide(failed(DNS), now=AT + reaction.PAUSE_S - 1)
    assert not early.actions
    assert early.condition.state == "RECOVERING"
    commit = of(decide(failed(DNS)), act.CommitAssignment)
    assert (commit.n, commit.rental) == (2, "gj-abcdef-1")


def test_jobs_that_failed_together_do_not_come_back_together() -> None:
    moments = set()
    for n in range(20):
        facts = cf.facts(WELL, job=cf.job(id=f"j-{n}-aaaa"))
        moments.add(reaction.pause(facts, failed(DNS)))
    assert len(moments) > 5


@pytest.mark.parametrize(("cause", "allowed"), [(DNS, 1), (NVML, 3), (FULL, 1), (HANGUP, cf.POLICY.no_progress_max)])
def test_a_class_is_repeated_as_often_as_it_says_without_a_new_checkpoint(cause: Cause, allowed: int) -> None:
    runs = [failed(cause, n) for n in range(1, allowed + 2)]
    for n, run in enumerate(runs, 1):
        facts = cf.facts(WELL, assignments=tuple(runs[:n]))
        assert (reaction.where_again(facts, cf.POLICY, run) != "no") == (n <= allowed)


def test_a_new_checkpoint_makes_a_repetition_worth_it_again() -> None:
    runs = (failed(DNS, 1), failed(DNS, 2))
    stuck = cf.facts(WELL, assignments=runs, checkpoints=(cf.checkpoint(5, 1),))
    assert reaction.where_again(stuck, cf.POLICY, runs[1]) == "no"
    moved = cf.facts(WELL, assignments=runs, checkpoints=(cf.checkpoint(5, 2),))
    assert reaction.where_again(moved, cf.POLICY, runs[1]) == "same"


def test_another_class_does_not_use_up_the_tries_of_this_one() -> None:
    runs = (failed(NVML, 1), failed(DNS, 2))
    assert reaction.where_again(cf.facts(WELL, assignments=runs), cf.POLICY, runs[1]) == "same"


def test_however_much_progress_there_is_a_person_looks_at_last() -> None:
    runs = tuple(failed(DNS, n) for n in range(1, reaction.RELAUNCHES_MAX + 2))
    marks = tuple(cf.checkpoint(n, n) for n in range(1, reaction.RELAUNCHES_MAX + 2))
    facts = cf.facts(WELL, assignments=runs, checkpoints=marks)
    assert reaction.where_again(facts, cf.POLICY, runs[-2]) == "same"
    assert reaction.where_again(facts, cf.POLICY, runs[-1]) == "no"


def test_a_checkpoint_that_cannot_be_read_is_passed_over_and_the_one_before_is_taken() -> None:
    old, torn = cf.checkpoint(5, 1), cf.checkpoint(9, 1)
    first = cf.assignment(1, closed_at=T0 + 100, exit=cf.ended(0), committed_at=T0 + 30)
    second = failed(TORN, 2, seal=(old.hash, torn.hash), resume_hash=torn.hash, resume_name=torn.name)
    facts = cf.facts(WELL, assignments=(first, second), checkpoints=(old, torn))
    assert [row.hash for row in resume.accepted(facts, "t0")] == [old.hash]
    commit = of(decide(first, second, checkpoints=(old, torn)), act.CommitAssignment)
    assert (commit.resume_hash, commit.seal) == (old.hash, (old.hash,))


def test_without_an_older_checkpoint_a_torn_one_fails_the_job_instead_of_starting_over() -> None:
    torn = cf.checkpoint(9, 1)
    first = cf.assignment(1, closed_at=T0 + 100, exit=cf.ended(0), committed_at=T0 + 30)
    second = failed(TORN, 2, seal=(torn.hash,), resume_hash=torn.hash, results_at=T0 + 520)
    assert of(decide(first, second, checkpoints=(torn,)), act.SetOutcome).outcome is Outcome.FAILED
    own_file = failed(TORN, 1, results_at=T0 + 520)  # it resumed from nothing of ours
    assert of(decide(own_file), act.SetOutcome).outcome is Outcome.FAILED


def test_a_full_disk_goes_to_a_machine_with_room() -> None:
    assert of(decide(failed(FULL)), act.Release).detail.startswith("run exited 1: [disk]")


def test_a_wrapper_killed_for_memory_is_not_started_again() -> None:
    oom = Cause("config-memory", "host-oom", "Out of memory: Killed process 7 (python3)")
    lost = replace(cf.ended(137), lost=True)
    assert "CommitAssignment" in names(decide(failed(None, exit=lost)))
    assert of(decide(failed(oom, exit=lost, results_at=T0 + 520)), act.SetOutcome).outcome is Outcome.FAILED


def test_a_cancelled_job_is_not_repeated() -> None:
    cancelled = cf.job(cancel_at=LATER - 5)
    assert of(decide(failed(DNS), job=cancelled), act.SetOutcome).outcome is Outcome.CANCELLED


def test_what_the_machine_did_uses_up_no_retry_of_the_user() -> None:
    assert counted(failed(BUG))
    assert not counted(failed(NVML))


@pytest.mark.parametrize("cause", [NVML, DNS, BUG, HANGUP])
def test_a_cause_survives_the_books(cause: Cause) -> None:
    assert cause_of(cause_text(cause)) == cause


def test_the_same_step_saved_again_by_every_run_is_no_progress_for_a_cause_either() -> None:
    first = failed(DNS, 1)
    second = failed(DNS, 2, resume_step=5, resume_hash="h1-5")
    again = cf.checkpoint(5, n=2)  # saved once more before it failed the same way
    facts = cf.facts(WELL, now=LATER, assignments=(first, second), checkpoints=(cf.checkpoint(5), again))
    assert reaction.where_again(facts, cf.POLICY, second) == "no"
    further = replace(facts, checkpoints=(cf.checkpoint(5), cf.checkpoint(6, n=2)))
    assert reaction.where_again(further, cf.POLICY, second) == "same"
