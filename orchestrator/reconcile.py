"""The decision: facts and policy in, actions out. Total, deterministic, level-triggered.

It looks at what is, never at what happened: events only wake the loop. Calling it twice on the same facts decides the
same, and every action it can name is safe to repeat (`actions`). The rules live in the leaves: `lifecycle` for one
rental, `work` for the run on a live one, `successor` for the next machine and for what a lost one left undecided;
`workers` and `crew_end` for the machines and the end of a job of many tasks.
"""

from __future__ import annotations

from orchestrator import crew_end, lifecycle, successor, work, workers
from orchestrator.actions import FinishJob, OpenRental, Release, SetOutcome
from orchestrator.bench import Bench
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
            elif draft.bench is not None:
                workers.keep_end(draft, draft.bench, rental)
                workers.run_step(draft, draft.bench, rental)
            else:
                successor.keep_end(draft, rental)
                work.run_step(draft, rental)
    if facts.job.outcome is None and draft.bench is not None:
        _crew(draft, draft.bench)
    elif facts.job.outcome is None:
        successor.settle_lost(draft)
        successor.successor(draft)
    elif all(r.rental.phase is RentalPhase.GONE for r in facts.rentals):
        draft.do(FinishJob(), "nothing bills any more")
    return draft.decision()


def _crew(draft: Draft, bench: Bench) -> None:
    """A job of many tasks: what is undecided, then the legs and machines that are wanted beyond what is there."""
    crew_end.settle(draft, bench)
    if draft.decided(SetOutcome):
        return
    workers.draw(draft, bench)
    shortage = workers.hire(draft, bench)
    workers.stage(draft, bench)
    if shortage is not None and not draft.decided(OpenRental):  # a machine that is being rented is no shortage yet
        crew_end.short(draft, bench, shortage)
