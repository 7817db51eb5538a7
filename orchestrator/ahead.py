"""A leg that was given to a machine while the one before it still runs there: ordered, taken back, or let begin. Pure.

Rules
- The machine itself begins it, in the moment in which the run before it has ended well (exit 0, not told to): no round
  trip is between two legs, and a controller that sleeps costs nothing. After any other end it waits for a word.
- Until it has begun nothing of it has run: whatever speaks against it takes it back, and it is at the queue's head
  again. A machine that is lost takes no more with it.
- Its time counts from when it began, by the machine's word, not from its order.
"""

from __future__ import annotations

from orchestrator.actions import Prepare, SendClose, SendOrder, StoreBegun, Withdraw
from orchestrator.bench import Bench
from orchestrator.draft import Draft
from orchestrator.ending import ending, stop_unreachable
from orchestrator.leg_rules import meaning, stale
from orchestrator.model import AgentRun, Assignment, RentalFacts


def unordered(draft: Draft, rental: RentalFacts, run: Assignment) -> bool:
    """One of many tasks without an order, as the books have it: True when this is all that is to be done about it."""
    bench = draft.bench
    if bench is None:
        return False
    seen, before, begun = rental.machine.runs.get(run.key), bench.before(run), draft.facts.begun.get(run.key)
    if begun is not None:
        draft.do(StoreBegun(run.task, run.n, begun), "it began, as it was ordered ahead")
    elif seen is not None and seen.dead and not seen.started and (seen.staged or seen.closed):
        close = Withdraw if seen.staged else SendClose  # taken back, and the answer died with an earlier controller
        draft.do(close(rental.rental.id, run.task, run.n), "it has never begun")
    elif before is None:
        return False
    elif rental.machine.connected:
        _follow(draft, bench, rental, run, before)
    else:
        stop_unreachable(draft, run.task, ending(draft, rental, run))
    return True


def _follow(draft: Draft, bench: Bench, rental: RentalFacts, run: Assignment, before: Assignment) -> None:
    """One leg ahead on a machine that answers; `before` is the run that it waits for."""
    facts, row = draft.facts, rental.rental
    seen = rental.machine.runs.get(run.key)
    why = _against(draft, bench, rental, run, before, seen)
    if why:
        draft.do(Withdraw(row.id, run.task, run.n), f"{run.key} is taken back: {why}")
    elif seen is not None:
        if before.closed_at is not None and _over(draft, rental, before):
            draft.do(SendOrder(row.id, run.task, run.n), "the run before it is over")
    elif before.exit is not None:
        return  # too late to be ahead: it is ordered when the one before it is decided
    elif f"{row.id}/{run.key}" in facts.prepared or bench.brought(run):
        draft.do(SendOrder(row.id, run.task, run.n), f"ahead, after {before.key}")
    else:
        draft.do(Prepare(row.id, run.task, run.n), "its checkpoint, while the one before it runs")


def _against(
    draft: Draft, bench: Bench, rental: RentalFacts, run: Assignment, before: Assignment, seen: AgentRun | None
) -> str:
    """Why a leg ahead must not begin here; empty while nothing speaks against it."""
    prepare = draft.facts.troubles.get(Prepare(rental.rental.id, run.task, run.n).key)
    ends = ending(draft, rental, run)
    if ends is not None:
        return str(ends)
    if run.resume_hash in draft.facts.passed_over or prepare is not None:
        return "its checkpoint cannot be brought"
    if seen is not None and (seen.dead or (seen.staged and stale(bench, run, seen))):
        return "its limit is another one by now"
    if before.exit is not None and meaning(draft, rental, before).kind in ("again", "elsewhere", "disrupted"):
        return "the run before it has not ended for good"
    return ""


def _over(draft: Draft, rental: RentalFacts, before: Assignment) -> bool:
    return before.exit is not None and meaning(draft, rental, before).kind in ("done", "failed", "ended")
