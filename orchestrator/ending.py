"""When the work on one live machine must stop, and how long it then gets to save: pure leaf rules.

The end always wins: saving starts early enough before it, by the job's own grace and the bytes still to bring home.
"""

from __future__ import annotations

from orchestrator.actions import SetOutcome
from orchestrator.draft import Draft
from orchestrator.leg_rules import leg_ending
from orchestrator.model import Assignment, Facts, Outcome, Policy, Reason, RentalFacts, SignalWhy

SAVE_MIN_S = 120.0  # time kept before an end for bringing results home, beyond the job's own grace
SAVE_SHARE = 3  # never more than a third of a rental's life: a short ttl still runs something
CANCEL_PATIENCE_S = 30.0  # a cancelled machine that does not answer is released unsaved after this
NOTICE_MARGIN_S = 3.0  # the signal leaves the job the notice less this, for the last copy


def save_at(facts: Facts, policy: Policy, rental: RentalFacts) -> float:
    """When saving must start so that the job's grace and the bytes still to bring home fit before the end."""
    row = rental.rental
    window = policy.grace_s + max(SAVE_MIN_S, facts.save_s)
    end = min(row.end, row.wanted_end)  # a shortened one counts before its timers have confirmed it
    return end - min(window, (end - row.created_at) / SAVE_SHARE)


def ending(draft: Draft, rental: RentalFacts, run: Assignment | None = None) -> SignalWhy | None:
    """Whether the work on this rental must stop now, and why; the user's word first, then the end. `run`: one of many
    tasks has ends of its own.
    """
    if draft.facts.job.cancel_at is not None:
        return SignalWhy.CANCEL
    if draft.bench is not None and run is not None:
        why = leg_ending(draft, draft.bench, run)
        if why is not None:
            return why
    at = save_at(draft.facts, draft.policy, rental)
    draft.wake(at)
    if draft.now >= at:
        return SignalWhy.BUDGET if rental.rental.end_reason is Reason.BUDGET else SignalWhy.TTL
    if rental.machine.notice is not None or _provider_notice(rental) is not None:
        return SignalWhy.INTERRUPTION
    return SignalWhy.STOP if run is not None and run.stop else None


def _provider_notice(rental: RentalFacts) -> float | None:
    instance = rental.sight.instance
    return instance.notice.at if instance is not None and instance.notice is not None else None


def grace(draft: Draft, rental: RentalFacts, why: SignalWhy) -> float:
    """Seconds the job gets to save: its own grace, less where a reclaim or the end comes sooner."""
    policy, job = draft.policy, draft.facts.job
    if why is SignalWhy.CANCEL and job.cancel_now:
        return 0.0
    limit = rental.rental.end - draft.now
    if why is SignalWhy.INTERRUPTION:
        notice = rental.machine.notice
        at = notice.at if notice is not None else _provider_notice(rental)
        limit = min(limit, (at or draft.now) - draft.now - NOTICE_MARGIN_S)
    return max(1.0, min(policy.grace_s, limit))


def stop_unreachable(draft: Draft, task: str, why: SignalWhy | None) -> None:
    """The user's word about a task whose machine does not answer: waited for a while, then decided unsaved."""
    job = draft.facts.job
    if why is not SignalWhy.CANCEL or job.cancel_at is None:
        return  # one of many tasks waits for its machine's word: another must not start there meanwhile
    if job.cancel_now or draft.now - job.cancel_at >= CANCEL_PATIENCE_S:
        outcome = SetOutcome(Outcome.CANCELLED, Reason.CANCELLED, "cancelled while the machine did not answer")
        draft.conclude(task, outcome)
    else:
        draft.wake(job.cancel_at + CANCEL_PATIENCE_S)
