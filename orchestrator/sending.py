"""How the loop hands an effect to the executor: what it works on, and what must be committed before it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from orchestrator import actions as act
from orchestrator.context import context_of
from orchestrator.model import Facts, Job, Policy, Rental
from orchestrator.transitions import IllegalStep

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec
    from orchestrator.loop import Loop

log = structlog.get_logger()


def send(loop: Loop, job: Job, spec: JobSpec, policy: Policy, facts: Facts, action: act.Effect) -> None:
    """Start one effect of a decision, unless it runs already or rests after a failure."""
    flight = f"{job.id}/{action.key}"
    not_before = loop.not_before.get(flight, 0.0)
    if flight in loop.in_flight:
        return
    if not_before > loop.clock.boot():
        loop.due[job.id] = min(loop.due[job.id], not_before)
        return
    rental = next((r for r in facts.rentals if r.rental.id == getattr(action, "rental", "")), None)
    submit(loop, job, action, rental.rental if rental else None, facts, spec, policy)


def submit(
    loop: Loop,
    job: Job,
    action: act.Effect,
    rental: Rental | None,
    facts: Facts | None = None,
    spec: JobSpec | None = None,
    policy: Policy | None = None,
) -> None:
    """Hand one effect to the executor; what must be committed before it is committed here."""
    if spec is None or policy is None:
        spec, policy = loop.spec_of(job)
    now = loop.clock.utc()
    try:
        if isinstance(action, act.SendCreate):
            loop.store.create_sent(action.rental, now)
        elif isinstance(action, act.Destroy) and rental is not None and action.ref.id == rental.provider_id:
            loop.store.destroy_sent(action.rental, now)
    except IllegalStep as error:
        log.warning("not sent", job=job.id, action=action.key, why=str(error))
        return
    loop.in_flight.add(f"{job.id}/{action.key}")
    log.info("effect", job=job.id, action=type(action).__name__, key=action.key)
    loop.executor.submit(action, context_of(loop, job, spec, policy, action, rental, facts))
