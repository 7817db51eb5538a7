"""The work on one live rental: assign, prepare, order, watch, save, bring home. Pure leaf rules.

- A run is committed with its seal before it is ordered, and needs every earlier run closed or quiesced.
- The end always wins: saving starts early enough before it, and what is not home by then is lost and said.
"""

from __future__ import annotations

from orchestrator import ahead, batch, placement, reaction, resume, saves
from orchestrator.actions import (
    Alarm,
    CollectResults,
    CommitAssignment,
    Hold,
    ItemsOver,
    ListMirror,
    Look,
    MirrorCheckpoints,
    Prepare,
    Release,
    RenewStore,
    SendClose,
    SendOrder,
    SendSignal,
    SetOutcome,
    StoreExit,
    StoreResultsLost,
)
from orchestrator.draft import Draft
from orchestrator.ending import ending, grace, stop_unreachable
from orchestrator.leg_rules import keep_limit, leg_ending, meaning
from orchestrator.model import (
    AgentRun,
    Assignment,
    Exit,
    Facts,
    Outcome,
    Reason,
    RentalFacts,
    RentalPhase,
    SignalWhy,
    Task,
)
from orchestrator.verdict import CHECKPOINTED_EXIT, Verdict

RESULTS_GIVE_UP_S = 3600.0  # results that cannot be brought home hold the machine this long at most
PREPARE_TRIES = 5  # then the host is taken for bad
KNOWN_BAD_MAX = 2  # a provider that has nothing but this machine is taken at its word after these
MARKED_EVERY_S = 1.0  # what an item of a batch made comes home as soon as it is marked: a lost machine loses no more
COLLECT_EVERY_S = 60.0  # results are brought home bit by bit during the run


def run_step(draft: Draft, rental: RentalFacts) -> None:
    """Move the work on one live rental on by one step."""
    assignment = current(draft.facts, rental.rental.id)
    if assignment is None:
        _assign(draft, rental)
    else:
        work_on(draft, rental, assignment)


def work_on(draft: Draft, rental: RentalFacts, assignment: Assignment) -> None:
    """Move one run on by one step: start it, watch it, save what it made."""
    if assignment.exit is not None:
        after_exit(draft, rental, assignment)
        return
    run = rental.machine.runs.get(assignment.key)
    if assignment.ordered_at is None and ahead.unordered(draft, rental, assignment):
        return
    if run is not None and run.dead:
        draft.do(StoreExit(assignment.task, assignment.n, _exit_of(run, draft.now)), "the run has ended")
    elif assignment.ordered_at is None:
        _start(draft, rental, assignment)
    else:
        _watch(draft, rental, assignment)


def current(facts: Facts, rental: str) -> Assignment | None:
    """The rental's newest assignment; None without one, or when `--replace` on the held machine came after it.

    Not by time alone: after the clock was set back, the next run is committed "before" the last. Of one task the number
    decides, of several the one that is not closed, since the next is committed only when all before it are.
    """
    mine = {a.task: a for a in sorted(facts.assignments, key=lambda a: a.n) if a.rental == rental}
    newest = [a for a in mine.values() if a.n > facts.job.replaced_n]
    return max(newest, key=lambda a: (a.closed_at is None, a.committed_at), default=None)


def _exit_of(run: AgentRun, now: float) -> Exit:
    rc = 137 if run.rc is None else run.rc
    # By our own clock: what follows is compared with our looks at the provider, and a machine's clock may be hours off
    return Exit(run.stage or run.state, rc, now, run.signalled, run.lost)


# --- before the run --------------------------------------------------------------------------------------------------


def _assign(draft: Draft, rental: RentalFacts) -> None:
    """Commit the next run of the first task that is not done, with its seal."""
    facts, machine = draft.facts, rental.machine
    if facts.job.outcome is not None:
        return
    why = ending(draft, rental)
    if why in (SignalWhy.TTL, SignalWhy.BUDGET) and rental.rental.wanted_end > rental.rental.end:
        draft.say("PROVISIONING", "its end is moved out first")  # nothing runs that would have to save before it
        return
    if why is not None:
        stop_without_run(draft, rental, why)
        return
    task = next((t for t in facts.tasks if t.outcome is None), None)
    if task is None or rental.rental.ready_at is None or not (machine.connected and machine.end_confirmed):
        draft.say("PROVISIONING", machine.trouble or "waiting for the machine to answer")
        return
    row = rental.rental
    bad = facts.resting.get(placement.machine_key(row.offer.provider, row.machine_id)) if row.machine_id else None
    fresh = not any(a.rental == row.id for a in facts.assignments)
    if bad is not None and fresh and resume.lost_hosts(facts) <= KNOWN_BAD_MAX:
        draft.do(Release(row.id, Reason.BAD_HOST, f"this machine was bad lately: {bad}"), "given again by the provider")
        return
    commit_run(draft, rental, task)


def commit_run(draft: Draft, rental: RentalFacts, task: Task) -> None:
    """Commit a run of `task` with its seal, once its checkpoints are home and its mirror was listed."""
    facts = draft.facts
    free = resume.free_since(facts, task.id)
    if free is None:
        draft.say("RECOVERING", "an earlier run may still write")
        return
    earlier = [a for a in facts.assignments if a.task == task.id]
    left = [a for a in earlier if a.rental == rental.rental.id and a.key in facts.checkpoints_left]
    if left:  # of any run here, not only the last: a restarted controller knows of none that is home
        last = max(left, key=lambda a: a.n)
        draft.do(MirrorCheckpoints(rental.rental.id, last.task, last.n), "its checkpoints first")
        return
    begun = not all(a.withdrawn for a in earlier)
    fresh = draft.bench is not None and not begun and not facts.job.resumed_from  # nothing of it can be there
    if not fresh and (facts.mirror_listed.get(task.id, -1.0) < free or task.id not in facts.mirror_listed):
        draft.do(ListMirror(task.id), "a complete listing begun after the last run could no longer write")
        return
    rows = resume.accepted(facts, task.id)
    best = resume.best(rows)
    for words in resume.unreadable(facts, task.id, best):
        draft.do(Alarm("checkpoint-unreadable", words, rental.rental.id))
    draft.do(
        CommitAssignment(
            task=task.id,
            n=max((a.n for a in earlier), default=0) + 1,
            rental=rental.rental.id,
            seal=tuple(sorted(c.hash for c in rows)),
            resume_hash=best.hash if best else "",
            resume_name=best.name if best else "",
            resume_step=best.step if best else None,
        ),
        f"resumes from {best.name}" if best else "starts from the beginning",
    )


def _start(draft: Draft, rental: RentalFacts, assignment: Assignment) -> None:
    """Committed but not ordered: bring what it needs, then order it."""
    facts, row = draft.facts, rental.rental
    draft.say("SETUP", "bringing code and data")
    why = ending(draft, rental, assignment)
    if not rental.machine.connected:
        # The order may have left, and its answer died with an earlier controller: only the machine knows what runs
        stop_unreachable(draft, assignment.task, why)
        return
    if why is not None and assignment.key not in rental.machine.runs:
        _stop_unstarted(draft, rental, assignment, why)
        return
    if assignment.resume_hash in facts.passed_over and assignment.key not in rental.machine.runs:
        saves.resume_from_another(draft, assignment)
        return
    if (
        f"{row.id}/{assignment.key}" in facts.prepared
        or assignment.key in rental.machine.runs
        or (draft.bench is not None and draft.bench.brought(assignment))
    ):
        draft.do(SendOrder(row.id, assignment.task, assignment.n), "everything is verified there")
        return
    prepare = Prepare(row.id, assignment.task, assignment.n)
    trouble = facts.troubles.get(prepare.key)
    if trouble is not None and trouble.fatal is Reason.BAD_HOST:
        draft.do(Release(row.id, Reason.BAD_HOST, trouble.detail), "this machine is bad, or too small for the work")
    elif trouble is not None and trouble.fatal is not None:
        outcome = SetOutcome(Outcome.FAILED, trouble.fatal, trouble.detail)
        draft.conclude(assignment.task, outcome, "preparing cannot succeed")
    elif trouble is not None and trouble.count >= PREPARE_TRIES:
        draft.do(Release(row.id, Reason.BAD_HOST, trouble.detail), "preparing keeps failing here")
    else:
        draft.do(prepare)


def _stop_unstarted(draft: Draft, rental: RentalFacts, run: Assignment, why: SignalWhy) -> None:
    """Committed, and must stop before it was started. One of many tasks: the machine may go on with another one."""
    if draft.bench is None:
        stop_without_run(draft, rental, why)
    elif draft.facts.job.cancel_at is None and leg_ending(draft, draft.bench, run) is None:
        if why is SignalWhy.INTERRUPTION:
            stop_without_run(draft, rental, why)
        else:
            draft.do(Release(rental.rental.id, rental.rental.end_reason, "its end has come"), "nothing runs on it")
    else:
        draft.do(SendClose(rental.rental.id, run.task, run.n), "it must never start")


def stop_without_run(draft: Draft, rental: RentalFacts, why: SignalWhy) -> None:
    """The work must stop before anything of the user's ran on this machine."""
    if why is SignalWhy.INTERRUPTION:
        draft.do(Release(rental.rental.id, Reason.INTERRUPTED, "reclaimed before the start", interrupted=True))
    elif why is SignalWhy.CANCEL:
        draft.do(SetOutcome(Outcome.CANCELLED, Reason.CANCELLED, "cancelled before the start"))
    else:
        reason = Reason.BUDGET if why is SignalWhy.BUDGET else Reason.TTL
        draft.do(SetOutcome(Outcome.FAILED, reason, f"{reason} came before the start"))


# --- the run ---------------------------------------------------------------------------------------------------------


def _watch(draft: Draft, rental: RentalFacts, assignment: Assignment) -> None:
    """Ordered and not ended: keep its checkpoints and results coming home, and stop it when it must."""
    facts, row, machine = draft.facts, rental.rental, rental.machine
    run = machine.runs.get(assignment.key)
    stage = run.state if run is not None else "run"
    draft.say("RUNNING" if stage in ("run", "exited") else "SETUP", "" if stage == "run" else stage)
    why = ending(draft, rental, assignment)
    if not machine.connected:
        stop_unreachable(draft, assignment.task, why)
        return
    if why is None:
        keep_limit(draft, rental, assignment)
    if stage == "run" and why is None:
        saves.watch(draft, rental, assignment)
    if why is not None:
        draft.say("FINALIZING", f"saving: {why}")
        seconds = grace(draft, rental, why)
        signalled = run is not None and run.signalled is not None
        if not signalled or seconds <= 0:
            draft.do(SendSignal(row.id, assignment.task, assignment.n, why, seconds), f"stop: {why}")
        draft.wake(draft.now + 1.0)
    _keep_access(draft, rental, assignment)
    if assignment.key in facts.checkpoints_left:
        draft.do(MirrorCheckpoints(row.id, assignment.task, assignment.n))
    elif draft.policy.results and stage == "run" and (why is None or facts.marked.get(assignment.key)):
        every = MARKED_EVERY_S if facts.marked.get(assignment.key) else COLLECT_EVERY_S
        due = max(facts.collected_at.get(row.id, 0.0), assignment.ordered_at or 0.0) + every
        draft.wake(due)
        if draft.now >= due:
            draft.do(CollectResults(row.id, assignment.task, assignment.n, final=False))


def _keep_access(draft: Draft, rental: RentalFacts, assignment: Assignment) -> None:
    """The machine mirrors by itself: renew what lets it, long before that ends, and once after our own start."""
    if not draft.policy.store:
        return
    until = draft.facts.store_until.get(f"{rental.rental.id}/{assignment.key}", 0.0)
    if draft.now >= until:
        draft.do(RenewStore(rental.rental.id, assignment.task, assignment.n), "its access to the store")
    else:
        draft.wake(until)


# --- after the run ---------------------------------------------------------------------------------------------------


def after_exit(draft: Draft, rental: RentalFacts, assignment: Assignment) -> None:
    """The run is over and its exit stored: save what it made, then decide."""
    facts, row, machine = draft.facts, rental.rental, rental.machine
    if facts.job.outcome is not None:
        return
    verdict = meaning(draft, rental, assignment)
    draft.say("FINALIZING" if verdict.kind != "disrupted" else "RECOVERING", verdict.detail)
    if verdict.kind == "wait":
        draft.do(Look(row.id, "the run failed: is the machine well"), "a failure needs a machine that is well")
        draft.wake(draft.now + 1.0)
        return
    if machine.connected and assignment.key in facts.checkpoints_left and not facts.job.cancel_now:
        mirror = MirrorCheckpoints(row.id, assignment.task, assignment.n)
        if not _given_up(draft, assignment, mirror.key):
            draft.do(mirror, "the last checkpoints first")
            return
        draft.do(Alarm("checkpoint-lost", "the last checkpoints could not be brought home in an hour", row.id))
    if assignment.closed_at is None:
        if machine.connected:
            draft.do(SendClose(row.id, assignment.task, assignment.n), "end what is left, close its key")
        elif verdict.kind == "disrupted":
            draft.wake(draft.now + 1.0)
        return
    if draft.bench is not None and draft.bench.tasks[assignment.task].items:
        if batch.marked_first(draft, rental, assignment) or draft.bench.alike is not None:
            return
        over, more = batch.blamed(draft, draft.bench, assignment, verdict)
        if over is not None:
            _without(draft, rental, assignment, over, more)
            return
    if verdict.kind == "disrupted" and saves.last_look(draft, rental, assignment):
        draft.do(CollectResults(row.id, assignment.task, assignment.n, final=False), "what it made, before the reclaim")
    elif verdict.kind == "disrupted":
        interrupted = verdict.reason is Reason.INTERRUPTED
        draft.do(Release(row.id, verdict.reason, verdict.detail, interrupted=interrupted), "saved before the reclaim")
    elif verdict.kind == "again":
        _again(draft, rental, assignment, verdict)
    elif verdict.kind == "elsewhere":
        draft.do(Release(row.id, Reason.BAD_HOST, verdict.detail), "another machine may do better")
    else:
        conclude(draft, rental, assignment, verdict)


def _without(draft: Draft, rental: RentalFacts, run: Assignment, over: ItemsOver, more: bool) -> None:
    """A slice goes on without the item that made its run fail; the item's end and the next run are one commit."""
    if more:
        commit_run(draft, rental, next(task for task in draft.facts.tasks if task.id == run.task))
    if not more or draft.decided_for(rental.rental.id, CommitAssignment):
        draft.do(over, f"{over.items[0]} failed; the other items go on")


def _again(draft: Draft, rental: RentalFacts, assignment: Assignment, verdict: Verdict) -> None:
    """A new run on the same machine, bounded by progress."""
    facts, policy = draft.facts, draft.policy
    if facts.job.cancel_at is not None:
        outcome = SetOutcome(Outcome.CANCELLED, Reason.CANCELLED, "cancelled between two runs")
        draft.conclude(assignment.task, outcome)
        return
    until = reaction.pause(facts, assignment)
    if draft.now < until:
        draft.say("RECOVERING", verdict.detail, "starts again after a pause")
        draft.wake(until)
        return
    mine = (a for a in facts.assignments if a.task == assignment.task and a.n > facts.job.replaced_n)
    runs = sorted(mine, key=lambda a: a.n, reverse=True)
    fruitless = 0
    for a in runs:
        if resume.progressed(facts, a):
            break
        fruitless += 1
    free = verdict.reason is not Reason.FAILED or _code(assignment) == CHECKPOINTED_EXIT
    if free and fruitless >= policy.no_progress_max:
        detail = f"{fruitless} runs in a row without a new checkpoint; the last: {verdict.detail}"
        detail = "; ".join(filter(None, (resume.not_working(facts, runs[:fruitless]), detail)))
        conclude(draft, rental, assignment, Verdict("failed", Reason.NO_PROGRESS, detail))  # what it made comes home
        return
    task = next(t for t in facts.tasks if t.id == assignment.task)
    commit_run(draft, rental, task)


def conclude(draft: Draft, rental: RentalFacts, assignment: Assignment, verdict: Verdict) -> None:
    """Done, failed or ended: results home and verified first, then the outcome, then perhaps a hold."""
    facts, policy, row = draft.facts, draft.policy, rental.rental
    success = verdict.kind == "done"
    if _results_wanted(draft, success) and assignment.results_at is None and not assignment.results_lost:
        collect = CollectResults(row.id, assignment.task, assignment.n, final=True, success=success)
        trouble = facts.troubles.get(collect.key)
        if trouble is not None and (trouble.fatal or _given_up(draft, assignment, collect.key)):
            draft.do(
                StoreResultsLost(assignment.task, assignment.n, trouble.detail),
                "results cannot be brought home",
            )
        else:
            draft.do(collect, "results home, verified, before the machine goes")
        return
    decided = outcome_of(verdict, assignment)
    if draft.bench is not None:
        decided = batch.outcome(facts, draft.bench.tasks[assignment.task], decided)
    draft.conclude(assignment.task, decided, f"the work is {verdict.kind}")
    spot = row.offer.spot or draft.bench is not None  # a machine of many tasks goes on with the next one
    if verdict.kind == "failed" and policy.hold_s > 0 and not spot and facts.job.held_until is None:
        draft.do(Hold(min(draft.now + policy.hold_s, row.end)), "held for a look")


def _given_up(draft: Draft, assignment: Assignment, key: str) -> bool:
    """Whether saving has failed for so long since the run's end that the machine is held for nothing; says why it
    fails until then."""
    trouble = draft.facts.troubles.get(key)
    if trouble is None or assignment.exit is None:
        return False
    shown = draft.condition
    draft.say(shown.state, f"{shown.why}; saving failed {trouble.count} times: {trouble.detail}"[:500], shown.next)
    return draft.now - max(trouble.first_at, assignment.exit.at) >= RESULTS_GIVE_UP_S


def _results_wanted(draft: Draft, success: bool) -> bool:
    job, policy = draft.facts.job, draft.policy
    if not policy.results or job.cancel_now:
        return False
    return ("success" if success else "failure") in policy.results_on


def outcome_of(verdict: Verdict, assignment: Assignment) -> SetOutcome:
    """The outcome that a final verdict gives the job."""
    if verdict.kind == "done":
        if assignment.results_lost:
            return SetOutcome(Outcome.FAILED, Reason.FAILED, f"finished, but {assignment.results_lost}", 0)
        return SetOutcome(Outcome.DONE, Reason.DONE, "", 0)
    if verdict.reason is Reason.STOPPED_EARLY:  # by its reports, which is no failure
        return SetOutcome(Outcome.DONE, Reason.STOPPED_EARLY, verdict.detail, _code(assignment))
    if verdict.reason is Reason.CANCELLED:
        return SetOutcome(Outcome.CANCELLED, Reason.CANCELLED, verdict.detail, _code(assignment))
    return SetOutcome(Outcome.FAILED, verdict.reason, verdict.detail, _code(assignment))


def _code(assignment: Assignment) -> int | None:
    return assignment.exit.rc if assignment.exit is not None else None


def release_ended(draft: Draft, rental: RentalFacts) -> None:
    """The outcome is set: the machine goes, unless it is held for a look."""
    job = draft.facts.job
    held = job.held_until is not None and draft.now < job.held_until and job.cancel_at is None
    if held and rental.rental.phase is RentalPhase.LIVE:
        assert job.held_until is not None
        draft.wake(job.held_until)
        draft.say("RELEASING", "held for a look", f"released at {job.held_until:.0f}")
        return
    draft.do(Release(rental.rental.id, _release_reason(job.outcome, job.reason), job.detail), "the work is decided")


def _release_reason(outcome: Outcome | None, reason: Reason | None) -> Reason:
    if reason in (Reason.TTL, Reason.BUDGET, Reason.CANCELLED, Reason.STOPPED_EARLY, Reason.STALLED, Reason.ORPHAN):
        return reason
    return Reason.DONE if outcome is Outcome.DONE else Reason.FAILED
