"""The ends that one of many tasks has of its own, beside those of its machine and its job: pure leaf rules."""

from __future__ import annotations

from orchestrator.actions import MoveLimit
from orchestrator.bench import Bench
from orchestrator.draft import Draft
from orchestrator.model import AgentRun, Assignment, Reason, RentalFacts, SignalWhy
from orchestrator.verdict import Verdict, judge

END_SLACK_S = 5.0  # an exit so shortly before a leg's own end was told to by the machine's agent, for that end
LIMIT_SLACK_S = 1.0  # what a limit may differ by, rounded as it is on its way


def leg_ending(draft: Draft, bench: Bench, run: Assignment) -> SignalWhy | None:
    """Whether one task of many must stop by itself: the user's word, its own ttl and money, its reports."""
    task = bench.tasks[run.task]
    if task.cancel_at is not None:
        return SignalWhy.CANCEL
    end = bench.leg_end(run)
    if end is not None:
        draft.wake(end)
        if draft.now >= end:
            return SignalWhy.BUDGET if bench.by_budget(run) else SignalWhy.TTL
    return SignalWhy.STOP if task.stop_at is not None else None


def stale(bench: Bench, run: Assignment, seen: AgentRun) -> bool:
    """Whether the limit that it was ordered with is no longer its leg's."""
    limit = bench.limit_s(run)
    if limit is None or seen.limit_s is None:
        return limit is not seen.limit_s
    return abs(limit - seen.limit_s) > LIMIT_SLACK_S


def keep_limit(draft: Draft, rental: RentalFacts, run: Assignment) -> None:
    """Move the limit that the machine holds of a run at work, when its task's ttl or money is another by now."""
    seen = rental.machine.runs.get(run.key)
    if draft.bench is None or seen is None or seen.limit_s is None or seen.dead or seen.signalled is not None:
        return  # an agent that does not show a limit cannot move one
    if draft.bench.limit_s(run) is not None and stale(draft.bench, run, seen):
        draft.do(MoveLimit(rental.rental.id, run.task, run.n), "its own ttl or money changed")


def meaning(draft: Draft, rental: RentalFacts, run: Assignment) -> Verdict:
    """What the run's exit means. One of many tasks that was stopped for its machine's end, and not for its own, goes on
    elsewhere.
    """
    verdict = judge(draft.facts, draft.policy, rental, run)
    if draft.bench is None or verdict.kind != "ended" or verdict.reason not in (Reason.TTL, Reason.BUDGET):
        return verdict
    assert run.exit is not None
    end = draft.bench.leg_end(run)
    if end is not None and run.exit.at >= end - END_SLACK_S:
        return verdict
    return Verdict("disrupted", rental.rental.end_reason, f"its machine's end came first, exit {run.exit.rc}")
