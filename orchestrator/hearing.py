"""What listings and machines say, into the memory of what was seen and the books. Runs in the loop's thread.

A machine is a stranger's: it is believed about itself only, so a run counts when it was committed on that rental.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from orchestrator import actions as act
from orchestrator import messages, reports
from orchestrator.accounts import region_of
from orchestrator.inspection import look_of_event
from orchestrator.messages import (
    EventSeen,
    Listed,
    Lost,
    Message,
    Noted,
    PointSeen,
    ProgressSeen,
    Reached,
    StatusSeen,
    TransferSeen,
)
from orchestrator.model import Reason, Rental, RentalPhase, Sight, Unknown
from orchestrator.sending import submit
from orchestrator.sweep import confirmed, strays
from providers.base import Instance, Listing, Resource

if TYPE_CHECKING:
    from orchestrator.loop import Loop

TOLD = (
    "stage",
    "checkpoint",
    "incomplete",
    "notice",
    "rebalance",
    "image",
    "signal",
    "exit",
    "saving",
    "ending",
)  # events that a timeline shows
LOOKS = ("look", "smoke")  # what the agent found after setup and in the trial

log = structlog.get_logger()


def is_quiet(message: Message) -> bool:
    """Whether it only says how far a run is, which nothing is decided by: a loop need not wake for it."""
    progress = isinstance(message, ProgressSeen | PointSeen | TransferSeen)
    return progress or (isinstance(message, EventSeen) and message.event.get("t") == "sample")


# --- the provider's word ----------------------------------------------------------------------------------------------


def take_listing(loop: Loop, message: Listed) -> None:
    """One listing: evidence about every open rental of that account and region, and about strays."""
    region = (message.provider, message.account, message.region)
    dead: frozenset[str] = frozenset()
    if isinstance(message.listing, Unknown):
        loop.observer.saw_dark(loop.clock.boot())
    else:
        loop.observer.saw_light()
        dead = loop.accounts.caps(message.provider).dead_statuses  # an adapter that went away cannot even say this
    part_of = parts(message.listing)
    for rental in loop.store.open_rentals():
        if region_of(rental) != region:
            continue
        seen = loop.observer.of(rental.id)
        before = seen.sight
        seen.listed(rental, part_of(rental), message.began, loop.clock.boot(), dead)
        steady = _lasting(seen.sight) == _lasting(before)
        if not steady or rental.phase is not RentalPhase.LIVE:
            loop.touch(rental.job)
    _sweep(loop, message)


def parts(listing: Listing | Unknown) -> Callable[[Rental], Listing | Unknown]:
    """The lines of a listing that may be about one rental, found without comparing each with each."""
    if isinstance(listing, Unknown):
        return lambda _: listing
    machines: dict[str, list[Instance]] = defaultdict(list)
    others: dict[str, list[Resource]] = defaultdict(list)
    for instance in listing.instances:
        names = {instance.ref.id} | ({instance.tag.rental} if instance.tag is not None else set())
        for name in names:
            machines[name].append(instance)
    for resource in listing.others:
        others[resource.tag.rental if resource.tag is not None else ""].append(resource)

    def part(rental: Rental) -> Listing:
        found = [*machines.get(rental.provider_id or "", ()), *machines.get(rental.id, ())]
        mine = {instance.ref: instance for instance in found}
        return Listing(tuple(mine.values()), tuple(others.get(rental.id, ())))

    return part


def _lasting(sight: Sight) -> Sight:
    """What a decision about a live machine can depend on: not how often the same was seen."""
    return replace(sight, seen_at=None, others_absent_count=0)


def _sweep(loop: Loop, message: Listed) -> None:
    """Late births and forgotten machines of this deployment."""
    if isinstance(message.listing, Unknown):
        return
    known = {r.id: r for r in (*loop.store.open_rentals(), *loop.store.tombstones(loop.clock.utc()))}
    dead = loop.accounts.caps(message.provider).dead_statuses
    found = strays(message.listing, loop.books.deployment, known, dead)
    # Each region has its own memory: another one's listing cannot show these, and says nothing about them
    counts = loop.stray_counts.setdefault((message.provider, message.account, message.region), {})
    for stray in confirmed(counts, found):
        rental = known.get(stray.rental)
        text = f"{message.provider} {stray.ref.id} carries our tag"
        if rental is None:
            # Our books are lost, or the row is older than its tombstone: the user decides (audit, adopt, prune)
            loop.alarm("", act.Alarm("unknown-machine", f"{text}, but the books do not know it", stray.ref.id))
            continue
        loop.alarm(rental.job, act.Alarm("late-birth", f"{text} of a rental that was gone", rental.id))
        submit(loop, loop.store.job(rental.job), act.Destroy(rental.id, stray.ref, Reason.ORPHAN), rental)


# --- the machine's word -----------------------------------------------------------------------------------------------


def take_word(loop: Loop, message: messages.Word) -> None:
    """What a watcher heard from its machine, or that it hears nothing; and what is copied to or from it."""
    job = loop.machines.job_of(message.rental)
    if job is None:
        return  # the last words of a watcher that was stopped
    seen, now = loop.observer.of(message.rental), loop.clock.utc()
    before = seen.machine
    match message:
        case Reached(status=status):
            loop.observer.saw_light()
            seen.reached(status)
            reports.read_all(loop, job, message.rental)
            if before.proven and before.lost_at is not None:
                words = f"the machine answers again after {now - before.lost_at:.0f} s"
                loop.store.add_journal(now, "answers", words, job=job, rental=message.rental)
        case StatusSeen(status=status):
            seen.status(status)
        case Lost():
            if message.epoch_refused:
                loop.step_aside(message.trouble)
            seen.lost(message.trouble, message.tried_s, now, message.epoch_refused)
            if before.connected:
                words = f"the machine does not answer: {message.trouble}; the provider is asked about it"
                loop.store.add_journal(now, "silent", words, job=job, rental=message.rental)
            if seen.machine.failures == 1:
                log.info("lost", rental=message.rental, trouble=message.trouble)
        case EventSeen(event=event):
            _event(loop, job, message.rental, event)
            return
        case ProgressSeen():
            seen.note_step(message.run, message.step)
            loop.board.step(job, message.rental, message.run, message.step, message.total)
            return
        case PointSeen(point=point):
            loop.health.hear(job, message.rental, point)
            return
        case TransferSeen():
            loop.board.transfer(job, message)
            return
        case Noted(run=key):
            reports.read(loop, job, message.rental, key)
            reports.marks(loop, job, message.rental, key)
            return
    seen.note_running(now)
    loop.touch(job)


def _event(loop: Loop, job: str, rental: str, event: Mapping[str, Any]) -> None:
    """Samples are shown with the run; the rest goes to the journal."""
    now, kind = loop.clock.utc(), str(event.get("t", ""))[:20]
    key = str(event.get("run", ""))
    if kind == "sample":
        loop.board.sample(job, rental, event)
    elif kind in TOLD:
        words = " ".join(f"{k}={v}" for k, v in event.items() if k not in ("t", "at", "boot"))[:500]
        run = reports.run_of(loop, job, rental, key)
        with loop.store.transaction():
            loop.store.add_journal(now, f"agent:{kind}", words, job=job, rental=rental, data=dict(event))
            if kind == "stage" and event.get("state") == "start" and run is not None:
                # What people read as SETUP or RUNNING
                loop.store.progress_seen(job, run.task, run.n, now, phase=str(event.get("stage"))[:20])
    elif kind in LOOKS and reports.run_of(loop, job, rental, key) is not None:
        loop.store.put_preflight(look_of_event(rental, job, event, now, loop.store.preflights(job)))
    if kind in ("exit", "notice") or key:
        loop.touch(job)
