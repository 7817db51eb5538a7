"""What an effect works on, gathered from one decision's facts: workers never open the books."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.execute import Context
from orchestrator.model import Assignment, Facts, Job, Policy, Reason, Rental

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
    if facts is None or rental is None:
        return context
    mine = next((r for r in facts.rentals if r.rental.id == rental.id), None)
    return Context(
        job,
        spec,
        policy,
        rental,
        _run_of(facts, action),
        mirrored,
        data_mount=mine.caps.data_mount if mine is not None else "",
        bad_before=tuple(r.rental.detail for r in facts.rentals if r.rental.reason is Reason.BAD_HOST),
    )


def _run_of(facts: Facts, action: Effect) -> Assignment | None:
    task, n = getattr(action, "task", None), getattr(action, "n", None)
    return next((a for a in facts.assignments if (a.task, a.n) == (task, n)), None)
