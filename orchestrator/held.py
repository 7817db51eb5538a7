"""`apply --replace` while a failed job's machine is held: the same job goes on on it, with the new spec and files.

Nothing is rented and nothing on the machine is thrown away but the old code: the job keeps its id, so folders, setup
markers, run numbers and checkpoints stay valid, and what was spent stays where it was spent (decision record 0010).
Only a machine that the new spec could have rented itself is taken; in every other case the hold ends and the new run
rents its own. Runs in the loop's thread, inside the transaction that answers the request.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from orchestrator import lifecycle, secrets
from orchestrator.model import Job, Machine, Outcome, Policy, Rental, RentalPhase
from orchestrator.policy import policy_of
from orchestrator.records import keep_job
from orchestrator.successor import USEFUL_S, end_for

if TYPE_CHECKING:
    from orchestrator.loop import Loop


def machine_for(loop: Loop, old: Job, wish: Mapping[str, Any]) -> Rental | None:
    """The held machine of `old` if the run of `wish` may start on it; None: it must rent its own."""
    now = loop.clock.utc()
    if old.outcome is not Outcome.FAILED or old.cancel_at is not None or (old.held_until or 0.0) <= now:
        return None
    new = _merged(old, wish)
    if new.currency != str(wish.get("currency") or "USD") or bool(new.snapshot) is not bool(old.snapshot):
        return None
    facts = loop.observer.facts(replace(new, first_rental_at=now, ttl_extra_s=0.0), now, loop.money.limits_left(new))
    rows = [each for each in facts.rentals if each.rental.open]
    if len(rows) != 1 or rows[0].rental.phase is not RentalPhase.LIVE or lifecycle.dead(rows[0]):
        return None
    rental = rows[0].rental
    _, before = loop.spec_of(old)
    policy = _policy(loop, new)
    offer = rental.offer
    wanted = policy.ask == before.ask and offer.provider in policy.providers and policy.spot != "always"
    if not wanted or (policy.price_cap is not None and offer.hourly > policy.price_cap):
        return None
    end, _ = end_for(facts, policy, offer, rental.create_sent_at or rental.created_at, without=rental.id)
    return rental if end - now >= min(USEFUL_S, policy.ttl_s / 2) else None


def go_on(loop: Loop, old: Job, wish: Mapping[str, Any], rental: Rental, *, fresh: bool) -> Mapping[str, Any]:
    """Exchange the wish and open the work again; returns the answer to the request."""
    new = _merged(old, wish)
    runs = loop.store.assignments(old.id)
    loop.store.go_on(new, max((run.n for run in runs), default=0), fresh, loop.clock.utc())
    keep_job(loop.home, loop.store.job(old.id))
    _take_secrets(loop, str(wish.get("spool") or ""), old.id)
    if new.snapshot != old.snapshot:
        shutil.rmtree(loop.home.job(old.id) / "code", ignore_errors=True)  # made again from the new snapshot
    loop.machines.unwatch(rental.id)  # the next watcher masks the new secrets and reads the new progress
    loop.observer.of(rental.id).machine = Machine(connected=False)
    loop.touch(old.id)
    return {"ok": True, "id": old.id, "name": old.name, "run": old.run, "unchanged": False, "held": rental.id}


def _merged(old: Job, wish: Mapping[str, Any]) -> Job:
    """The old job as it is after taking the wish over."""
    cap, most = wish.get("price_cap"), wish.get("max_cost")
    return replace(
        old,
        spec=wish["spec"],
        spec_hash=str(wish["spec_hash"]),
        snapshot=str(wish.get("snapshot") or ""),
        base_dir=str(wish["base_dir"]),
        owner=str(wish.get("owner") or ""),
        price_cap=Decimal(str(cap)) if cap else None,
        data_manifests=wish.get("data_manifests") or {},
        results_dir=str(wish.get("results_dir") or ""),
        max_cost=Decimal(str(most)) if most else None,
    )


def _policy(loop: Loop, job: Job) -> Policy:
    from jobspecs.schema import from_document

    policy = policy_of(from_document(job.spec), job)
    return policy if policy.providers else replace(policy, providers=loop.accounts.configured)


def _take_secrets(loop: Loop, spool: str, job: str) -> None:
    """The new values in place of the old ones. A spool that is gone was taken before a crash."""
    if not spool:
        secrets.forget(loop.home, job)
        return
    folder = loop.home.secrets(spool)
    if folder.is_dir() and folder.parent == loop.home.secrets(job).parent:
        secrets.forget(loop.home, job)
        os.replace(folder, loop.home.secrets(job))
