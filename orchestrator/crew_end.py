"""What becomes of a job of many tasks: what lost machines leave undecided, when it is stopped, how it ends. Pure.

Rules
- One task never sinks the others: its failure is its own outcome. The same failure in several tasks, with none done, is
  the spec's or the code's, and stops the job with the line that did it.
- A sweep is done when every leg is over and at least one was done; a batch or replicas when all were.
- What the money did not last for is said; a search that drew fewer legs than it might is done all the same.
"""

from __future__ import annotations

from collections import Counter

from orchestrator import batch, workers
from orchestrator.actions import SetOutcome, SetTaskOutcome, StoreResultsLost
from orchestrator.bench import Bench
from orchestrator.draft import Draft
from orchestrator.leg_rules import leg_ending, meaning
from orchestrator.model import Outcome, Reason, RentalPhase, SignalWhy, Task
from orchestrator.successor import OFFERS_FRESH_S, wait
from orchestrator.verdict import SIGNAL_REASON
from orchestrator.work import outcome_of


def settle(draft: Draft, bench: Bench) -> None:
    """Decide tasks whose machine is lost or that need none, then perhaps the job."""
    for task in bench.undecided:
        if task.id in bench.runs or task.cancel_at is not None or task.stop_at is not None:
            _settle_task(draft, bench, task)
    if draft.decided(SetTaskOutcome):
        return  # the facts have moved: what follows from them is decided next
    job = draft.facts.job
    if bench.alike is not None:
        draft.do(SetOutcome(Outcome.FAILED, Reason.FAILED, bench.alike), "the others would fail alike")
    elif job.cancel_at is not None:
        if not any(bench.in_hand(task.id) for task in bench.undecided):
            draft.do(SetOutcome(Outcome.CANCELLED, Reason.CANCELLED, counted(bench)), "nothing is in hand any more")
    elif not bench.undecided and not bench.drawable:
        draft.do(the_end(bench), "every task has its outcome")
    elif workers.lost_hosts(draft.facts) >= workers.HOSTS_MAX + bench.crew.parallel:
        last = max(draft.facts.rentals, key=lambda r: r.rental.attempt).rental
        words = f"no machine came to run anything lately; the last: {last.detail}"
        draft.do(SetOutcome(Outcome.FAILED, Reason.BAD_HOST, words))


def _settle_task(draft: Draft, bench: Bench, task: Task) -> None:
    """One task without an outcome that no machine has in hand."""
    if bench.in_hand(task.id):
        return
    run = bench.newest(task.id)
    if run is not None and run.exit is not None and run.results_at is None:
        verdict = meaning(draft, bench.rentals[run.rental], run)
        if verdict.kind in ("failed", "ended"):
            lost = run.results_lost or "the machine went before the results were home"
            if draft.policy.results and not run.results_lost:
                draft.do(StoreResultsLost(run.task, run.n, lost))
            draft.conclude(task.id, outcome_of(verdict, run), "decided although its machine is lost")
            return
    why = leg_ending(draft, bench, run) if run is not None and run.withdrawn else None
    if task.cancel_at is not None:
        draft.conclude(task.id, SetOutcome(Outcome.CANCELLED, Reason.CANCELLED, "cancelled"), "it was cancelled")
    elif why in (SignalWhy.TTL, SignalWhy.BUDGET):
        outcome = SetOutcome(Outcome.FAILED, SIGNAL_REASON[why], f"{why} came before the start")
        draft.conclude(task.id, outcome, "nothing is left for it")
    elif task.stop_at is not None:
        draft.conclude(task.id, SetOutcome(Outcome.DONE, Reason.STOPPED_EARLY, task.stop_why), "stopped early")
    elif workers.fruitless(draft.facts, bench, task.id) >= workers.LOSSES_MAX:
        words = f"{workers.LOSSES_MAX} machines in a row were lost without a new checkpoint"
        draft.conclude(task.id, SetOutcome(Outcome.FAILED, Reason.NO_PROGRESS, words), "relaunching has not helped")


def short(draft: Draft, bench: Bench, shortage: workers.Shortage) -> None:
    """No machine can be rented now: nothing to decide while others work, else wait, and at last say why."""
    facts = draft.facts
    if any(r.rental.phase in (RentalPhase.INTENT, RentalPhase.LIVE) for r in facts.rentals):
        if shortage.ranking is not None:
            draft.wake(draft.now + OFFERS_FRESH_S)
        return
    if shortage.ranking is None:
        if any(r.rental.phase is not RentalPhase.GONE for r in facts.rentals):
            draft.say("RECOVERING", "waiting for what machines on their way out will not have cost")
            return
        draft.do(_out_of_money(bench), "nothing useful could run")
        return
    wait(draft, shortage.ranking)


def _out_of_money(bench: Bench) -> SetOutcome:
    """The money ends it: a search has then drawn what it could; legs that were wanted and not run are missing."""
    if bench.crew.trials and not bench.undecided and _done(bench):
        words = f"{counted(bench)}; {bench.drawable} further legs were not drawn for lack of money"
        return SetOutcome(Outcome.DONE, Reason.DONE, words, 0)
    return SetOutcome(Outcome.FAILED, Reason.BUDGET, f"the money ended it: {counted(bench)}")


def the_end(bench: Bench) -> SetOutcome:
    """The job's outcome once every task has one."""
    tasks, words = bench.facts.tasks, counted(bench)
    if bench.crew.kind == "batch":
        words = batch.counted(bench.facts, tasks)
    if not tasks:
        return SetOutcome(Outcome.DONE, Reason.DONE, "every item was done before", 0)
    bad = [task for task in tasks if task.outcome is not Outcome.DONE]
    done = _done(bench)
    if not bad if bench.crew.all_must_succeed else done:
        return SetOutcome(Outcome.DONE, Reason.DONE, words, 0)
    if bad and all(task.outcome is Outcome.CANCELLED for task in bad) and not done:
        return SetOutcome(Outcome.CANCELLED, Reason.CANCELLED, words)
    failed = [task for task in bad if task.outcome is Outcome.FAILED]
    first = next((task for task in failed if task.detail), None)
    if first is not None and bench.crew.kind != "batch":
        words += f"; {first.id}: {first.detail}"
    reasons = Counter(task.reason or Reason.FAILED for task in failed)
    # Nothing failed and none was done: legs that were stopped early, perhaps beside cancelled ones
    reason = reasons.most_common(1)[0][0] if reasons else Reason.STOPPED_EARLY
    return SetOutcome(Outcome.FAILED, reason, words, first.exit_code if first is not None else None)


def _done(bench: Bench) -> int:
    return sum(task.outcome is Outcome.DONE and task.reason is not Reason.STOPPED_EARLY for task in bench.facts.tasks)


def counted(bench: Bench) -> str:
    """`38 done, 1 stopped early, 1 failed`: how the tasks stand, in words."""
    counts: Counter[str] = Counter()
    for task in bench.facts.tasks:
        if task.outcome is None:
            counts["not finished"] += 1
        elif task.reason is Reason.STOPPED_EARLY:
            counts["stopped early"] += 1
        else:
            counts[str(task.outcome)] += 1
    order = ("done", "stopped early", "failed", "cancelled", "not finished")
    return ", ".join(f"{counts[word]} {word}" for word in order if counts[word]) or "nothing was to do"
