"""Where a run resumes from: seals, lineage and progress, pure.

A checkpoint counts for a new run only if it was in the previous run's seal or was made by the previous run itself, in a
complete listing begun after that run could no longer write. So a stale machine's late write is never resumed from. One
that a run could not read is passed over.
"""

from __future__ import annotations

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


def best(rows: tuple[CheckpointRow, ...]) -> CheckpointRow | None:
    """The furthest one on the newest line of descent; never by name or time."""
    return next(iter(resume_order(rows)), None)


def free_since(facts: Facts, task: str) -> float | None:
    """When the last earlier run of `task` could no longer write; None while one still can."""
    times = [0.0]
    rentals = {r.rental.id: r.rental for r in facts.rentals}
    for a in facts.assignments:
        if a.task != task:
            continue
        rental = rentals.get(a.rental)
        quiesced = rental.quiesced_at or rental.gone_at if rental is not None else None
        known = [t for t in (a.closed_at, quiesced) if t is not None]
        if not known:
            return None
        times.append(min(known))
    return max(times)


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


def progressed(facts: Facts, run: Assignment) -> bool:
    """Whether a run has a durable checkpoint beyond the one that it began from: the same step saved again by every
    attempt is no getting on."""
    began = -1 if run.resume_step is None else run.resume_step
    return any((c.task, c.n) == (run.task, run.n) and c.step > began for c in facts.checkpoints)
