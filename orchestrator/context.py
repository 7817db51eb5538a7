"""What an effect works on, gathered from one decision's facts: workers never open the books."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from orchestrator.actions import DrawLegs, SendOrder
from orchestrator.bench import Bench
from orchestrator.ending import save_at
from orchestrator.execute import Context
from orchestrator.leg_rows import legs_in
from orchestrator.model import PLAIN_TASK, Assignment, Facts, Job, Policy, Reason, Rental
from orchestrator.successor import deadline, end_for

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec
    from orchestrator.actions import Effect
    from orchestrator.loop import Loop


def context_of(
    loop: Loop, job: Job, spec: JobSpec, policy: Policy, action: Effect, rental: Rental | None, facts: Facts | None
) -> Context:
    """The context of one effect; without facts (a late birth) only the machine is known."""
    mirrored = frozenset(loop.observer.of(rental.id).mirrored) if rental is not None else frozenset()
    context = Context(job, spec, policy, rental, None, mirrored)
    if isinstance(action, DrawLegs):
        return replace(context, legs=legs_in(loop.store, job.id, loop.clock.utc()))
    if facts is None or rental is None:
        return context
    mine = next((r for r in facts.rentals if r.rental.id == rental.id), None)
    run = _run_of(facts, action)
    ordering = isinstance(action, SendOrder) and run is not None
    if run is not None and policy.crew is not None:
        context = _of_many(loop, context, facts, policy, run)
    return replace(
        context,
        assignment=run,
        data_mount=mine.caps.data_mount if mine is not None else "",
        bad_before=tuple(r.rental.detail for r in facts.rentals if r.rental.reason is Reason.BAD_HOST),
        checkpoint_bytes=max((c.bytes for c in facts.checkpoints), default=0),
        smoked=run is not None and ordering and smoked(loop, facts, run),
        usual_speed=_usual_speed(loop, rental) if ordering else {},
        ends=_ends(facts, policy, rental) if ordering and policy.crew is None else {},
    )


def smoked(loop: Loop, facts: Facts, run: Assignment) -> bool:
    """Whether an earlier run of this wish came as far as its program: then its smoke was good."""
    many = run.task != PLAIN_TASK  # one leg's smoke is every leg's
    earlier = {
        a.key
        for a in facts.assignments
        if (many and a.key != run.key) or (a.task == run.task and facts.job.replaced_n < a.n < run.n)
    }
    if any(a.key in earlier and a.exit is not None and a.exit.stage == "run" for a in facts.assignments):
        return True
    return any(f"{p.task}.{p.n}" in earlier and p.phase == "run" for p in loop.store.progress(facts.job.id))


def _usual_speed(loop: Loop, rental: Rental) -> dict[str, float]:
    offer = rental.offer
    if not offer.gpu or offer.stand_in:
        return {}
    return loop.store.benchmarks(offer.gpu, offer.gpu_count, rental.id)


def _ends(facts: Facts, policy: Policy, rental: Rental) -> dict[str, float]:
    """When ttl and money end this machine, for the trial's judgement."""
    start = rental.create_sent_at or rental.created_at
    end, why = end_for(facts, policy, rental.offer, start, without=rental.id)
    found = {"ttl": deadline(facts.job, policy, facts.now)}
    return {**found, "budget": end} if why is Reason.BUDGET else found


def _of_many(loop: Loop, context: Context, facts: Facts, policy: Policy, run: Assignment) -> Context:
    """What a run needs of its task, where a job has many."""
    bench = Bench(facts, policy)
    task = bench.tasks[run.task]
    over = frozenset(row.item for row in loop.store.items(context.job.id)) if task.items else frozenset()
    why: Literal["ttl", "budget"] = "budget" if bench.by_budget(run) else "ttl"
    context = replace(context, task=task, limit_s=bench.limit_s(run), limit_why=why, over=over)
    before, machine = bench.before(run), bench.rentals[run.rental]
    seen = machine.machine.runs.get(before.key) if before is not None else None
    if before is None or before.exit is not None or (seen is not None and seen.dead):
        return context
    room = min(machine.rental.end, machine.rental.wanted_end) - save_at(facts, policy, machine)
    return replace(context, after=before.key, room_s=room)


def _run_of(facts: Facts, action: Effect) -> Assignment | None:
    task, n = getattr(action, "task", None), getattr(action, "n", None)
    return next((a for a in facts.assignments if (a.task, a.n) == (task, n)), None)
