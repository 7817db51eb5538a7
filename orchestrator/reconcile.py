"""The decision: facts and policy in, actions out. Total, deterministic, level-triggered.

It looks at what is, never at what happened: events only wake the loop. Calling it twice on the same facts decides the
same, and every action it can name is safe to repeat (`actions`). The rules live in the leaves: `lifecycle` for one
rental, `work` for the run on a live one, `successor` for the next machine and for what a lost one left undecided.
"""

from __future__ import annotations

from orchestrator import lifecycle, successor, work
from orchestrator.actions import FinishJob, Release
from orchestrator.draft import Draft
from orchestrator.model import Decision, Facts, Policy, RentalPhase


def reconcile(facts: Facts, policy: Policy) -> Decision:
    """Decide what to do about one job now, and when to look again at the latest."""
    draft = Draft(facts, policy)
    if facts.job.terminal_at is not None:
        return draft.decision()
    if not facts.settled:
        draft.say("PENDING", "looking at everything once after a start or a sleep")
        return draft.decision()
    for rental in facts.rentals:
        lifecycle.step(draft, rental)
        if rental.rental.phase is RentalPhase.LIVE and not draft.decided_for(rental.rental.id, Release):
            if facts.job.outcome is not None:
                work.release_ended(draft, rental)
            else:
                successor.keep_end(draft, rental)
                work.run_step(draft, rental)
    if facts.job.outcome is None:
        successor.settle_lost(draft)
        successor.successor(draft)
    elif all(r.rental.phase is RentalPhase.GONE for r in facts.rentals):
        draft.do(FinishJob(), "nothing bills any more")
    return draft.decision()
