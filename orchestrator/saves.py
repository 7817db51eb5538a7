"""What is said of a running job's checkpoints: one that stays unfinished, a program that began anew, another world size
or torch than the checkpoint's; and what is done where one cannot be used. Pure; attempts are bounded by `resume`.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator import resume
from orchestrator.actions import Alarm, CollectResults, ResumeOther, SetOutcome
from orchestrator.draft import Draft
from orchestrator.model import Assignment, CheckpointRow, Facts, Outcome, Reason, RentalFacts

INTERVALS = 2  # without a complete checkpoint, which `alarms` tells: then what lies there instead is told as well
SEEN_S = 15.0  # from the last byte to a durable copy: two scans of the agent and a small transfer
LAST_LOOK_S = 5.0  # so long before an announced reclaim nothing more is brought: the release must still be sent
SAID_WITHIN_S = 3000.0  # after the order; alarms repeat every hour, and what lasts for the whole run is said once


def watch(draft: Draft, rental: RentalFacts, run: Assignment) -> None:
    """Alarms about the checkpoints of a run that is going on."""
    facts, every = draft.facts, draft.policy.every_s
    since = facts.running_since.get(run.key)
    if since is not None and every > 0:
        due = max([since, *(c.verified_at for c in _own(facts, run))]) + INTERVALS * every + SEEN_S
        draft.wake(due)
        unfinished = _unfinished(rental, run) if draft.now >= due and run.key not in facts.checkpoints_left else ""
        if unfinished:
            draft.do(Alarm("checkpoint-unfinished", unfinished, rental.rental.id))
    for kind, words in _changes(facts, rental, run):
        draft.do(Alarm(kind, words, rental.rental.id))


def resume_from_another(draft: Draft, run: Assignment) -> None:
    """The chosen checkpoint cannot be sent whole: the one before it is taken, never silently the beginning."""
    rows = resume.accepted(draft.facts, run.task)
    best = resume.best(rows)
    if best is None:
        words = f"{run.resume_name} is damaged in the mirror, and there is no other checkpoint; "
        words += "`gpujob apply --again` starts from the beginning"
        outcome = SetOutcome(Outcome.FAILED, Reason.CHECKPOINT, words)
        draft.conclude(run.task, outcome, "never silently from the beginning")
        return
    seal = tuple(sorted(c.hash for c in rows))
    draft.do(ResumeOther(run.task, run.n, seal, best.hash, best.name, best.step), "the one before it")


def last_look(draft: Draft, rental: RentalFacts, assignment: Assignment) -> bool:
    """Whether an interrupted run's results can still be brought here before its machine is taken: once, and only within
    the notice. The next run writes into a folder of its own."""
    facts, notice = draft.facts, rental.machine.notice
    if notice is None or assignment.exit is None or not (draft.policy.results and rental.machine.connected):
        return False
    collect = CollectResults(rental.rental.id, assignment.task, assignment.n, final=False)
    if facts.collected_at.get(rental.rental.id, 0.0) >= assignment.exit.at or collect.key in facts.troubles:
        return False
    draft.wake(notice.at - LAST_LOOK_S)
    return draft.now < notice.at - LAST_LOOK_S


def _own(facts: Facts, run: Assignment) -> list[CheckpointRow]:
    return [c for c in facts.checkpoints if (c.task, c.n) == (run.task, run.n)]


def _unfinished(rental: RentalFacts, run: Assignment) -> str:
    """What lies in the place of the checkpoint that is due, and what it lacks; "" where nothing does."""
    seen = rental.machine.runs.get(run.key)
    lacking = [c for c in seen.checkpoints if not c.complete and c.why] if seen is not None else []
    if not lacking:
        return ""
    newest = max(lacking, key=lambda c: c.step)
    text = f"{newest.name[:80]} of {run.key} counts for nothing: {newest.why[:200]}"
    return f"{text}. Nothing of it is resumed from until it is whole; look with `gpujob ssh`"


def _changes(facts: Facts, rental: RentalFacts, run: Assignment) -> Iterator[tuple[str, str]]:
    """What is different for a run that goes on from a checkpoint."""
    if not run.resume_hash or facts.now - (run.ordered_at or facts.now) > SAID_WITHIN_S:
        return
    again = resume.began_anew(facts, run)
    if again:
        yield "resume-ignored", again
    made = next((c for c in facts.checkpoints if c.hash == run.resume_hash), None)
    maker = next((a for a in facts.assignments if made and (a.task, a.n) == (made.task, made.n)), None)
    if maker is None:
        return
    before = next((r.rental.offer.gpu_count for r in facts.rentals if r.rental.id == maker.rental), None)
    now = rental.rental.offer.gpu_count
    if before is not None and before != now:
        yield (
            "world-size",
            f"{run.resume_name} was saved with GPUJOB_NUM_GPUS={before}, and {run.key} goes on with {now}: sharded "
            "state (DeepSpeed, FSDP) may not load, and batch size or learning rate may mean something else",
        )
    old, new = torch_of(maker), torch_of(run)
    if old and new and old != new:
        yield (
            "torch-changed",
            f"{run.resume_name} was saved with torch {old}, and {run.key} has {new}: pin it in setup or image",
        )


def torch_of(run: Assignment) -> str:
    """The version of torch that a run had; "" where it was not recorded or there is none."""
    found = run.environment.get("torch")
    return str(found.get("version", "")) if isinstance(found, dict) else ""
