"""What `adopt`, `prune` and `forget` change: rows for machines that the books do not know, at the user's word.

The verb has looked (providers, agents) and hands over what it saw; this runs in the loop's thread, in the transaction
that answers it, and sends nothing. A machine is taken back in one of three ways:

    resume    its job's record, its rental's record and its agent's answer are there: the job goes on as if nothing
              had happened, and is brought home, relaunched and released like any other
    hold      something of that is lost: it is kept, untouched, until its own end; `ssh` works where the key is left,
              `cancel` releases it
    destroy   `prune`: it is released at once, by the usual way: until it is seen gone, with its disks and addresses

The last two make a job whose outcome is set, with the reason `orphan`, so that nothing is ever started or rented for
it. While the books are read-only such jobs alone are decided about. Once a complete look has left nothing unknown, the
books are accepted; jobs of an older copy that have no machine end then, since what became of them is not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from orchestrator import actions as act
from orchestrator import budget, mirror
from orchestrator.model import Job, Machine, Outcome, Reason, Rental, RentalPhase, Task
from orchestrator.records import RentalRecord, job_record, rental_record
from orchestrator.sightings import parse_status
from orchestrator.store import StoreError, new_rental_id
from providers.base import Offer

if TYPE_CHECKING:
    from orchestrator.loop import Loop

How = Literal["resume", "hold", "destroy"]
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
UNKNOWN_LIFE_S = 12 * 3600.0  # the default ttl: the end of a machine that neither agent nor provider tells
LEAST_LEFT_S = 3600.0  # and at least this from now, so that a guess never ends a running job at once
MARGIN_S = 600.0  # release margin of the reserve, as in `model.Policy`
ENDED_WORDS = "the books were an older copy, and no machine of it is there: what became of it is not known"


class NotTaken(Exception):
    """A machine cannot be taken in this way; the message says why."""


@dataclass(frozen=True)
class Seen:
    """One machine as the verb saw it, and what its agent said."""

    provider: str
    account: str
    region: str
    id: str
    kind: str
    rental: str
    job: str
    owner: str
    hourly: Decimal
    currency: str
    machine_id: str
    created_at: float | None
    ends_at: float | None
    nonce: str
    status: Mapping[str, Any] | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Seen:
        """From a request's document."""
        return cls(
            provider=str(row["provider"]), account=str(row["account"]), region=str(row["region"]), id=str(row["id"]),
            kind=str(row["kind"]), rental=_name(row["rental"]), job=_name(row["job"]), owner=str(row["owner"]),
            hourly=Decimal(str(row["hourly"] or 0)), currency=str(row["currency"] or "USD"),
            machine_id=str(row["machine_id"]), created_at=row["created_at"], ends_at=row["ends_at"],
            nonce=str(row["nonce"]), status=row["status"],
        )  # fmt: skip


def _name(text: object) -> str:
    """An id of ours from a provider's tag; empty when it is none, since it becomes the name of a folder."""
    return str(text) if NAME.fullmatch(str(text)) else ""


# --- requests ---------------------------------------------------------------------------------------------------------


def adopt(loop: Loop, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take machines back; then accept the books if the look was complete and left nothing unknown."""
    _own(loop, args)
    for row in args.get("known", ()):
        _refresh(loop, Seen.of(row))
    taken = [_take(loop, Seen.of(row), "resume" if row["how"] == "resume" else "hold") for row in args["machines"]]
    return _answer(loop, args, taken)


def prune(loop: Loop, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Release machines that the books do not know, or hold for gone."""
    _own(loop, args)
    return _answer(loop, args, [_take(loop, Seen.of(row), "destroy") for row in args["machines"]])


def forget(loop: Loop, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """End a liability by hand: the user says that it is gone. Its tombstone stays, so a machine that lives is found."""
    row = loop.store.rental_named(str(args["rental"]))
    if row.phase is RentalPhase.GONE:
        return {"ok": True, "rental": row.id, "job": row.job, "was_gone": True}
    if row.phase is not RentalPhase.RELEASING:
        name = loop.store.job(row.job).name
        words = f"{row.id} is {row.phase}, not being released: `gpujob cancel {name}` first"
        return {"ok": False, "code": 2, "error": words, "next": "forget is for a release that cannot be confirmed"}
    now = loop.clock.utc()
    loop.money.bill(row, now)
    loop.store.apply(row.job, [act.StoreGone(row.id)], now)
    what = f"{row.offer.provider} {row.provider_id or row.id} at {row.offer.hourly:f} {row.offer.currency}/h"
    loop.store.add_journal(now, "forget", f"the user says that {what} is gone", job=row.job, rental=row.id)
    loop.touch(row.job)
    return {"ok": True, "rental": row.id, "job": row.job, "was_gone": False}


def _own(loop: Loop, args: Mapping[str, Any]) -> None:
    """A look under another deployment's tag says nothing about our books, and its machines are not ours."""
    if args.get("deployment") != loop.books.deployment:
        raise StoreError(f"that look was made as deployment {args.get('deployment')}; this is {loop.books.deployment}")


def _answer(loop: Loop, args: Mapping[str, Any], taken: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """`accepted` is done by `accept` once all this is committed."""
    accepted = bool(args.get("complete")) and loop.doubtful
    ended = _end_forsaken(loop, frozenset(args.get("alive", ()))) if accepted else []
    loop.accounts.list_now()
    return {"ok": True, "taken": list(taken), "accepted": accepted, "ended": ended}


def accept(loop: Loop) -> None:
    """The rows are committed: these books are the books from now on."""
    loop.books.accept(loop.store.epoch, loop.store.milestones())
    loop.trust()


def _end_forsaken(loop: Loop, alive: frozenset[str]) -> list[str]:
    """Jobs without outcome and without a machine that is alive: nothing is rented for them by itself."""
    ended, now = [], loop.clock.utc()
    for job in loop.store.active_jobs():
        if job.outcome is not None or any(r.open and r.id in alive for r in loop.store.rentals(job.id)):
            continue
        loop.store.apply(job.id, [act.SetOutcome(Outcome.FAILED, Reason.INTERRUPTED, ENDED_WORDS)], now)
        loop.touch(job.id)
        ended.append(job.name)
    return ended


# --- one machine ------------------------------------------------------------------------------------------------------


def _take(loop: Loop, seen: Seen, how: How) -> Mapping[str, Any]:
    """Rows for one machine; the answer's line about it."""
    now = loop.clock.utc()
    try:
        row = loop.store.rental(seen.rental) if seen.rental else None
    except StoreError:
        row = None
    if row is not None and row.phase is not RentalPhase.GONE:
        return _line(seen, row, "known")
    if row is not None:
        if how != "destroy":
            raise StoreError(f"{row.id} is in the books as gone: it cannot be taken back, `gpujob prune` destroys it")
        loop.store.extend_tombstone(row.id, now)  # the sweep destroys what it sees of a gone rental
        return _line(seen, row, "destroy")
    record = rental_record(loop.home, seen.rental)
    if how == "resume":
        try:
            return _line(seen, _resume(loop, seen, record, now), "resume")
        except NotTaken as why:
            return {**_line(seen, _hold(loop, seen, record, now, str(why)), "hold"), "why": str(why)}
    if how == "hold":
        return _line(seen, _hold(loop, seen, record, now, "its spec, its key or its agent's answer is lost"), "hold")
    return _line(seen, _destroy(loop, seen, record, now), "destroy")


def _line(seen: Seen, row: Rental, how: str) -> Mapping[str, Any]:
    return {"id": seen.id, "provider": seen.provider, "rental": row.id, "job": row.job, "how": how, "end": row.end}


def _resume(loop: Loop, seen: Seen, record: RentalRecord | None, now: float) -> Rental:
    """The job and its machine, its runs and its end, as the agent tells them."""
    if record is None or seen.status is None:
        raise NotTaken("its rental's record or its agent's answer is missing")
    machine = parse_status(seen.status)
    if record.nonce != seen.nonce or machine.end is None:
        raise NotTaken("the machine did not prove that it is this rental, or has no end yet")
    job = _job_again(loop, record, now)
    end = machine.end
    rental = replace(_rental(loop, seen, record, job.id, end, now), ready_at=now)
    loop.store.restore_rental(rental, now)
    _restore_runs(loop, rental, machine, now)
    _restore_clock(loop, job, end)
    loop.touch(job.id)
    return rental


def _job_again(loop: Loop, record: RentalRecord, now: float) -> Job:
    """The row of the record's job: the books' own, or one made from its record."""
    try:
        job = loop.store.job(record.job)
    except StoreError:
        kept = job_record(loop.home, record.job)
        if kept is None:
            raise NotTaken("its job's record is missing, so its spec is not known") from None
        if loop.store.name_taken(kept.name, kept.run):
            raise NotTaken(f"another job is called {kept.name} now") from None
        loop.store.add_job(replace(kept, created_at=min(kept.created_at, now)), [Task(kept.id, "t0")])
        return kept
    if job.outcome is not None or job.terminal_at is not None:
        raise NotTaken(f"the books hold {job.name}.{job.run} for {job.outcome}")
    running = [old for old in loop.store.rentals(job.id) if old.open and old.quiesced_at is None]
    for old in running:
        if old.attempt >= record.attempt:
            raise NotTaken(f"{job.name} has another machine in the books ({old.id})")
    for old in running:  # a later attempt was opened, which our own rules allow only once this one was quiesced
        words = f"attempt {record.attempt} is running: this one was over"
        release = act.Release(old.id, Reason.INTERRUPTED, words, interrupted=True)
        writes: list[act.Write] = [] if old.phase is RentalPhase.RELEASING else [release]
        loop.store.apply(job.id, [*writes, act.StoreQuiesced(old.id)], now)
    return job


def _restore_runs(loop: Loop, rental: Rental, machine: Machine, now: float) -> None:
    """A run's seal is what the mirror holds of earlier runs: it was made from no less."""
    for task in loop.store.tasks(rental.job):
        found = mirror.listing(loop.home, rental.job, task.id).manifests
        for key, run in machine.runs.items():
            name, _, number = key.rpartition(".")
            if name != task.id or not number.isdigit():
                continue
            if run.dead and not run.started:
                run = replace(run, lost=True)  # closed before it began: its number is used, and it said nothing
            seal = tuple(sorted(m.hash for m in found if m.n < int(number)))
            loop.store.restore_run(rental, task.id, int(number), run, seal, now)


def _restore_clock(loop: Loop, job: Job, end: float) -> None:
    """The ttl counts so that it ends with the machine: whatever was extended, nothing is added or taken."""
    _, policy = loop.spec_of(loop.store.job(job.id))
    loop.store.restore_clock(job.id, end - policy.ttl_s, 0.0)


def _refresh(loop: Loop, seen: Seen) -> None:
    """A machine that an older copy of the books knows: runs and an end that are newer than the copy."""
    row, now = loop.store.rental(seen.rental), loop.clock.utc()
    if seen.status is None or row.phase is not RentalPhase.LIVE or row.nonce != seen.nonce or not loop.doubtful:
        return
    machine, job = parse_status(seen.status), loop.store.job(row.job)
    _restore_runs(loop, row, machine, now)
    if machine.end is not None and abs(machine.end - row.end) > 2 and job.outcome is None:
        worst = budget.worst_case(row.offer, row.create_sent_at or row.created_at, machine.end, MARGIN_S)
        loop.store.restore_end(row.id, machine.end, worst, now)
        _restore_clock(loop, job, machine.end)


def _hold(loop: Loop, seen: Seen, record: RentalRecord | None, now: float, why: str) -> Rental:
    """Kept until its own end, and nothing else: we cannot do more for it without harm."""
    job = _orphan(loop, seen, record, now)
    proven = record is None or record.nonce == seen.nonce
    end = parse_status(seen.status).end if seen.status is not None and proven else None
    guess = max((seen.created_at or now) + UNKNOWN_LIFE_S, now + LEAST_LEFT_S)
    known = end or seen.ends_at
    rental = replace(_rental(loop, seen, record, job.id, known or guess, now), ready_at=now)
    if seen.kind != "instance":
        raise StoreError(f"{seen.id} is a {seen.kind} without a machine: `gpujob prune` destroys it")
    loop.store.restore_rental(rental, now)
    until = f"its own end{'' if known else ', which is a guess'}"
    words = f"adopted: {why}; kept until {until}; `gpujob cancel {job.name}` releases it"
    loop.store.apply(job.id, [act.SetOutcome(Outcome.CANCELLED, Reason.ORPHAN, words), act.Hold(rental.end)], now)
    loop.touch(job.id)
    return rental


def _destroy(loop: Loop, seen: Seen, record: RentalRecord | None, now: float) -> Rental:
    """A row that is being released: it stays until everything of it was seen gone."""
    job = _orphan(loop, seen, record, now)
    rental = _rental(loop, seen, record, job.id, seen.ends_at or now + LEAST_LEFT_S, now)
    if seen.kind != "instance":
        rental = replace(rental, provider_id=None)
    loop.store.restore_rental(rental, now)
    words = "pruned: the books did not know it"
    release = act.Release(rental.id, Reason.ORPHAN, words)
    loop.store.apply(job.id, [act.SetOutcome(Outcome.CANCELLED, Reason.ORPHAN, words), release], now)
    loop.touch(job.id)
    return rental


def _rental(loop: Loop, seen: Seen, record: RentalRecord | None, job: str, end: float, now: float) -> Rental:
    """The row of a machine; what its record cannot say comes from the provider's own words."""
    bare = Offer(seen.provider, seen.account, seen.region, "", False, seen.hourly, seen.currency)
    offer = record.offer if record is not None else bare
    attempt = record.attempt if record is not None and record.job == job else 0
    created = seen.created_at or (record.created_at if record is not None else now)
    return Rental(
        id=seen.rental or new_rental_id(loop.books.deployment), job=job, attempt=attempt or 1, offer=offer,
        phase=RentalPhase.LIVE, end=end, wanted_end=end, end_reason=Reason.TTL,
        reserve=budget.worst_case(offer, created, max(end, now), MARGIN_S),
        nonce=record.nonce if record is not None else seen.nonce,
        created_at=created, create_sent_at=created, provider_id=seen.id, machine_id=seen.machine_id,
    )  # fmt: skip


def _orphan(loop: Loop, seen: Seen, record: RentalRecord | None, now: float) -> Job:
    """A job of its own for a machine whose job is not known, or is not this one any more."""
    from jobspecs.schema import from_document, spec_hash, to_document

    wanted = seen.job or (record.job if record is not None else "") or "adopted-1-0000"
    kept = job_record(loop.home, wanted)
    end = seen.rental[-4:] or seen.id[-4:]
    name, run = (kept.name, kept.run) if kept is not None else _name_of(wanted)
    id_ = wanted
    if _has_job(loop, wanted) or loop.store.name_taken(name, run):
        id_, name, run = f"{wanted}-{end}", f"{name}-{end}", loop.store.next_run(f"{name}-{end}")
    spec = from_document(
        {"name": name, "gpu": "none", "run": "true", "providers": [seen.provider], "artifacts": "none"}
    )
    job = Job(
        id=id_, name=name, run=run, spec=to_document(spec), spec_hash=spec_hash(spec), snapshot="",
        base_dir=kept.base_dir if kept is not None else str(loop.home.state), created_at=now, owner=seen.owner,
        currency=seen.currency,
    )  # fmt: skip
    loop.store.add_job(job, [Task(job.id, "t0")])
    return job


def _has_job(loop: Loop, job: str) -> bool:
    try:
        loop.store.job(job)
    except StoreError:
        return False
    return True


def _name_of(job: str) -> tuple[str, int]:
    """Name and run in a job's id, `<name>-<run>-<4 random>`."""
    name, _, _ = job.rpartition("-")
    name, _, run = name.rpartition("-")
    return (name, int(run)) if name and run.isdigit() else (job, 1)
