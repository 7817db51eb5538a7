"""Slices of a batch: which items are over, and what a run that failed leaves to be done. Pure leaf rules.

Rules
- An item is done when its mark was heard and what it made is home; a lost machine's others are done again, no more.
- A program that ends with an error at one item has not tried the ones after it: the first item without a mark is the
  one that failed, and the rest goes on without it. So every failure takes one item away, and none blocks the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator import reaction
from orchestrator.actions import CollectResults, ItemsOver, SetOutcome
from orchestrator.bench import Bench
from orchestrator.draft import Draft
from orchestrator.model import Assignment, Facts, Outcome, Reason, RentalFacts, Task
from orchestrator.verdict import Verdict

COLLECT_TRIES = 5  # then what was marked last is done again
SHOWN = 3  # failed items in the job's own words; `describe` has all


def left_of(facts: Facts, task: Task) -> list[str]:
    """Items of a slice that are neither done nor failed."""
    return [item for item in task.items if item not in facts.items]


def marked_first(draft: Draft, rental: RentalFacts, run: Assignment) -> bool:
    """Bring home what marked items made before anything else is decided; True while that goes on."""
    if not rental.machine.connected or not draft.facts.marked.get(run.key):
        return False
    collect = CollectResults(rental.rental.id, run.task, run.n, final=False)
    trouble = draft.facts.troubles.get(collect.key)
    if trouble is not None and trouble.count >= COLLECT_TRIES:
        return False
    draft.do(collect, "what its items made first")
    return True


def blamed(draft: Draft, bench: Bench, run: Assignment, verdict: Verdict) -> tuple[ItemsOver | None, bool]:
    """The item that made a run fail, and whether the slice goes on without it."""
    task, job = bench.tasks[run.task], draft.facts.job
    left = left_of(draft.facts, task)
    if verdict.kind != "failed" or verdict.reason is not Reason.FAILED or not left or job.cancel_at is not None:
        return None, False
    line = f": {run.cause.line}" if run.cause is not None and run.cause.line else ""
    over = ItemsOver(task.id, (left[0],), "failed", f"{reaction.words(run)}{line}"[:500])
    return over, len(left) > 1 and task.cancel_at is None


def outcome(facts: Facts, task: Task, decided: SetOutcome) -> SetOutcome:
    """The outcome of a slice: done when all of its items are."""
    failed = [item for item in task.items if facts.items.get(item)]
    if decided.outcome is Outcome.CANCELLED or not task.items or (not failed and left_of(facts, task)):
        return decided
    if not failed:
        return SetOutcome(Outcome.DONE, Reason.DONE, "", 0)
    return SetOutcome(Outcome.FAILED, Reason.FAILED, f"{len(failed)} of {len(task.items)} items failed", 1)


def counted(facts: Facts, tasks: Sequence[Task]) -> str:
    """`37 of 40 items done, 3 failed: a (why), ...`."""
    items = [item for task in tasks for item in task.items]
    failed = [(item, why) for item in items if (why := facts.items.get(item))]
    done = sum(facts.items.get(item) == "" for item in items)
    words = f"{done} of {len(items)} items done"
    if failed:
        shown = "; ".join(f"{item} ({why})" for item, why in failed[:SHOWN])
        words += f", {len(failed)} failed: {shown}" + ("; ..." if len(failed) > SHOWN else "")
    return words
