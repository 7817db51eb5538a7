"""Where a run resumes from: seals, lineage and progress, pure.

A checkpoint counts for a new run only if it was in the previous run's seal or was made by the previous run itself, in a
complete listing begun after that run could no longer write. So a stale machine's late write is never resumed from. One
that a run could not read is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.lineage import resume_order
from orchestrator.model import Assignment, CheckpointRow, Facts, RentalFacts
from orchestrator.transitions import DISRUPTIONS

INHERITED = 0  # run number of checkpoints taken over from an earlier job (`resume`, `--replace`)


def accepted(facts: Facts, task: str) -> tuple[CheckpointRow, ...]:
    """The durable checkpoints that the next run of `task` may resume from."""
    broken = {a.resume_hash for a in facts.assignments if a.cause is not None and a.cause.klass == "checkpoint"}
    passed_over = facts.passed_over | broken
    rows = [c for c in facts.checkpoints if c.task == task and c.hash not in passed_over]
    if facts.job.fresh:
        rows = [c for c in rows if c.n > facts.job.replaced_n]
    earlier = [a for a in facts.assignments if a.task == task]
    if not earlier:
        return tuple(c for c in rows if c.n == INHERITED)
    last = max(earlier, key=lambda a: a.n)
    return tuple(c for c in rows if c.hash in last.seal or c.n == last.n)


def unreadable(facts: Facts, task: str, chosen: CheckpointRow | None) -> tuple[str, ...]:
    """Words on a checkpoint that the last run could not read, and what is taken in its place."""
    runs = [a for a in facts.assignments if a.task == task]
    last = max(runs, key=lambda a: a.n, default=None)
    if last is None or last.cause is None or last.cause.klass != "checkpoint" or not last.resume_hash:
        return ()
    instead = f"{chosen.name} (step {chosen.step})" if chosen is not None else "the beginning"
    return (f"{last.resume_name} could not be read by {last.key} and is passed over: going on from {instead}",)


def best(rows: tuple[CheckpointRow, ...]) -> CheckpointRow | None:
    """The furthest one on the newest line of descent; never by name or time."""
    return next(iter(resume_order(rows)), None)


def free_since(facts: Facts, task: str) -> float | None:
    """When the last earlier run of `task` could no longer write; None while one still can."""
    rentals = {r.rental.id: r for r in facts.rentals}
    times = [0.0]
    for run in facts.assignments:
        if run.task == task:
            over = over_at(run, rentals.get(run.rental))
            if over is None:
                return None
            times.append(over)
    return max(times)


def over_at(run: Assignment, on: RentalFacts | None) -> float | None:
    """When a run could no longer write: closed by the agent's word, or its machine quiesced; None while it can."""
    quiesced = on.rental.quiesced_at or on.rental.gone_at if on is not None else None
    return min((at for at in (run.closed_at, quiesced) if at is not None), default=None)


def losses_without_progress(facts: Facts) -> int:
    """How many of the latest attempts in a row were lost after their program had started, with no new checkpoint."""
    count = 0
    for row in sorted(facts.rentals, key=lambda r: r.rental.attempt, reverse=True):
        verdict = _fruitless(facts, row)
        if verdict is False:
            break
        count += verdict is True
    return count


def lost_hosts(facts: Facts) -> int:
    """How many of the latest machines in a row never came to run anything."""
    count = 0
    for row in sorted(facts.rentals, key=lambda r: r.rental.attempt, reverse=True):
        if any(a.rental == row.rental.id and a.ordered_at is not None for a in facts.assignments):
            break
        count += row.rental.create_sent_at is not None and row.rental.provider_id is not None
    return count


def _fruitless(facts: Facts, row: RentalFacts) -> bool | None:
    """True: lost without a new checkpoint; False: it brought one, or was not lost; None: it never ran."""
    runs: list[Assignment] = [a for a in facts.assignments if a.rental == row.rental.id and a.ordered_at is not None]
    if not runs:
        return None
    if row.rental.reason not in DISRUPTIONS and not any(a.exit is not None and a.exit.lost for a in runs):
        return False
    return not any(progressed(facts, a) for a in runs)


def not_working(facts: Facts, runs: Sequence[Assignment]) -> str:
    """Why resuming does not help, in words, where each of the latest fruitless runs had been given a checkpoint; ""
    where one of them began from the start."""
    if not runs or not all(run.resume_hash for run in runs):
        return ""
    last = max(runs, key=lambda run: run.n)
    anew = next((words for words in (began_anew(facts, run) for run in runs) if words), "")
    text = f"resume is not working: {len(runs)} runs in a row were given a checkpoint, the last {last.resume_name}"
    return f"{text} (step {last.resume_step}), and none got beyond its own{f'; {anew}' if anew else ''}"


def began_anew(facts: Facts, run: Assignment) -> str:
    """That a run which was given a checkpoint counts from an earlier step, in words; "" where it does not."""
    if not run.resume_hash or run.resume_step is None or run.resume_step <= 0:
        return ""
    saved = [c.step for c in facts.checkpoints if (c.task, c.n) == (run.task, run.n)]
    given = f"{run.key} was given {run.resume_name} (step {run.resume_step})"
    if saved and min(saved) < run.resume_step:
        return f"{given} and saved step {min(saved)}: does the program read $GPUJOB_RESUME_FROM?"
    steps = facts.steps_seen.get(run.key)
    earlier = [facts.steps_seen[a.key][1] for a in _before(facts, run) if a.key in facts.steps_seen]
    # Steps of the log count what the checkpoints count only where the run before had come at least as far
    if steps is not None and earlier and max(earlier) >= run.resume_step > steps[0]:
        return f"{given} and began at step {steps[0]:g}: does the program read $GPUJOB_RESUME_FROM?"
    return ""


def _before(facts: Facts, run: Assignment) -> list[Assignment]:
    return [a for a in facts.assignments if a.task == run.task and facts.job.replaced_n < a.n < run.n]


def progressed(facts: Facts, run: Assignment) -> bool:
    """Whether a run has a durable checkpoint beyond the one that it began from: the same step saved again by every
    attempt is no getting on."""
    began = -1 if run.resume_step is None else run.resume_step
    return any((c.task, c.n) == (run.task, run.n) and c.step > began for c in facts.checkpoints)
