"""The ends that one of many tasks has of its own, beside those of its machine and its job: pure leaf rules."""

from __future__ import annotations

from orchestrator.bench import Bench
from orchestrator.draft import Draft
from orchestrator.model import Assignment, Reason, RentalFacts, SignalWhy
from orchestrator.verdict import Verdict, judge

END_SLACK_S = 5.0  # an exit so shortly before a leg's own end was told to by the machine's agent, for that end


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
