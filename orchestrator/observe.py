"""Gathers the facts of one job: stored rows, and what this process has seen since it started.

A failed look becomes `Unknown`, never an exception and never an empty answer. Losses of many machines at once are a
reason to doubt our own eyes: then the brake holds back every decision by absence, and if nothing at all answers, we are
the ones that are cut off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from orchestrator.accounts import region_of
from orchestrator.model import Assignment, Facts, Job, Rental, RentalFacts, RentalPhase, Trouble, Unknown
from orchestrator.sightings import Sightings
from orchestrator.store import Store
from providers.base import Caps, Offer

BRAKE_WINDOW_S = 600.0  # losses by absence or silence are counted over this
BRAKE_MIN = 2
BRAKE_SHARE = 0.2  # of the open rentals: more at once is an outage of the view, not of the machines
DARK_MIN = 2  # one silent machine may well be dead; that all of several died in the same minutes is unlike machines
DARK_AFTER_S = 60.0
CUT_OFF_AFTER_S = 30.0  # nothing answers for this long: it is us


class CapsOf(Protocol):
    """Where the capabilities of a provider come from."""

    def caps(self, provider: str) -> Caps: ...


@dataclass
class JobMemory:
    """What this process knows of one job beyond the books."""

    offers: tuple[Offer, ...] | Unknown | None = None
    offers_at: float | None = None
    mirror_listed: dict[str, float] = field(default_factory=dict)
    passed_over: set[str] = field(default_factory=set)
    troubles: dict[str, Trouble] = field(default_factory=dict)
    next_look_at: float = 0.0
    exhausted: bool = False  # a search has drawn every combination that there is


class Observer:
    """The memory of the loop. Only the loop's thread touches it."""

    def __init__(self, store: Store, caps: CapsOf) -> None:
        self._store, self._caps = store, caps
        self.rentals: dict[str, Sightings] = {}
        self.jobs: dict[str, JobMemory] = {}
        self.looked: dict[tuple[str, str, str], float] = {}  # account and region -> UTC of the last complete listing
        self.unsettled: set[tuple[str, str, str]] = set()  # regions not looked at since a start or a sleep
        self._doubtful: deque[float] = deque()
        self._dark_since: float | None = None
        self._ssh_dark, self._ssh_looked_at = False, 0.0

    def of(self, rental: str) -> Sightings:
        """The sightings of one rental, begun when first asked for."""
        seen = self.rentals.get(rental)
        if seen is None:
            seen = self.rentals[rental] = Sightings()
        return seen

    def settled(self, rental: Rental) -> bool:
        """Whether its region was looked at since the start or the last sleep."""
        return region_of(rental) not in self.unsettled

    def job(self, job: str) -> JobMemory:
        """The memory of one job."""
        memory = self.jobs.get(job)
        if memory is None:
            memory = self.jobs[job] = JobMemory()
        return memory

    def forget(self, job: str, rentals: Iterable[Rental]) -> None:
        """A job is terminal: nothing of it needs to be remembered."""
        self.jobs.pop(job, None)
        for rental in rentals:
            self.rentals.pop(rental.id, None)

    # --- doubt about ourselves ----------------------------------------------------------------------------------------

    def count_doubtful(self, now: float) -> None:
        """One machine was given up by absence or silence."""
        self._doubtful.append(now)

    def brake(self, now: float) -> bool:
        """Whether so many were given up lately that the next one must wait for a person or for time."""
        while self._doubtful and now - self._doubtful[0] > BRAKE_WINDOW_S:
            self._doubtful.popleft()
        if len(self._doubtful) < BRAKE_MIN:
            return False  # mostly so: the machines are counted only when it matters
        machines = sum(1 for seen in self.rentals.values() if seen.sight.instance is not None)
        return machines > BRAKE_MIN and len(self._doubtful) >= BRAKE_SHARE * machines

    def saw_light(self) -> None:
        """Some provider or machine answered."""
        self._dark_since = None

    def saw_dark(self, now: float) -> None:
        """A provider or machine did not answer, and none has since."""
        if self._dark_since is None:
            self._dark_since = now

    def cut_off(self, now: float) -> bool:
        """Nothing has answered for a while: the network that is down is ours (dstack#1551)."""
        return self._dark_since is not None and now - self._dark_since >= CUT_OFF_AFTER_S

    def ssh_dark(self, rentals: Iterable[RentalFacts], now: float) -> bool:
        """Several machines that their providers show running should answer, and none of all does.

        Looked up only for a job with a silent machine, and once a second for all jobs: there may be thousands.
        """
        if all(r.machine.connected or r.rental.phase is not RentalPhase.LIVE for r in rentals):
            return False
        if not 0.0 <= now - self._ssh_looked_at < 1.0:
            self._ssh_looked_at, self._ssh_dark = now, self._no_machine_answers()
        return self._ssh_dark

    def _no_machine_answers(self) -> bool:
        silent = 0
        for seen in self.rentals.values():
            if seen.watched and seen.machine.connected:
                return False  # mostly the first one: this is asked in every decision
            silent += seen.watched and seen.shown_ready and seen.machine.failed_awake_s >= DARK_AFTER_S
        return silent >= DARK_MIN

    # --- facts --------------------------------------------------------------------------------------------------------

    def facts(self, job: Job, now: float, limits_left: Decimal | None, machines: int | None = None) -> Facts:
        """Everything one decision may look at; what the config's limits leave of money and machines comes in."""
        store, memory = self._store, self.job(job.id)
        spent = store.spent_by_rental(job.id)
        assignments = store.assignments(job.id)
        rentals = tuple(self._rental(r, spent) for r in store.rentals(job.id))
        prepared = {f"{r.rental.id}/{run}" for r in rentals for run in self.of(r.rental.id).prepared}
        left = {a.key for a in assignments if a.rental in self.rentals and self.of(a.rental).checkpoints_left(a.key)}
        items = {row.item: row.detail for row in store.items(job.id)} if job.spec.get("batch") else {}
        return Facts(
            now=now,
            job=job,
            tasks=store.tasks(job.id),
            rentals=rentals,
            assignments=assignments,
            checkpoints=store.checkpoints(job.id),
            mirror_listed=dict(memory.mirror_listed),
            offers=memory.offers,
            offers_at=memory.offers_at,
            resting=store.resting(now),
            passed_over=frozenset(memory.passed_over),
            troubles=dict(memory.troubles),
            prepared=frozenset(prepared),
            save_s=self._save_s(rentals),
            collected_at={r.rental.id: self.of(r.rental.id).collected_at for r in rentals},
            running_since=self._of_runs(rentals, assignments, "running_since"),
            begun=self._of_runs(rentals, assignments, "begun"),
            steps_seen=self._of_runs(rentals, assignments, "steps"),
            checkpoints_left=frozenset(left),
            store_until={
                f"{r.rental.id}/{run}": at for r in rentals for run, at in self.of(r.rental.id).store_until.items()
            },
            limits_left=limits_left,
            machines_left=machines,
            items=items,
            marked=self._marked(rentals, items),
            exhausted=memory.exhausted,
            cut_off=self.cut_off(now),
            brake=self.brake(now),
            ssh_dark=self.ssh_dark(rentals, now),
            settled=all(self.settled(r.rental) for r in rentals if r.rental.open),
        )

    def _rental(self, rental: Rental, spent: Mapping[str, Decimal]) -> RentalFacts:
        seen = self.of(rental.id) if rental.phase is not RentalPhase.GONE else Sightings()
        seen.watched = rental.phase is RentalPhase.LIVE
        caps = self._caps.caps(rental.offer.provider)
        return RentalFacts(rental, caps, seen.sight, seen.machine, spent.get(rental.id, Decimal(0)))

    def _of_runs(
        self, rentals: tuple[RentalFacts, ...], assignments: tuple[Assignment, ...], name: str
    ) -> Mapping[str, Any]:
        """What machines told of runs that were committed on them."""
        told = {r.rental.id: getattr(self.rentals[r.rental.id], name) for r in rentals if r.rental.id in self.rentals}
        return {a.key: told[a.rental][a.key] for a in assignments if a.key in told.get(a.rental, {})}

    def _marked(self, rentals: tuple[RentalFacts, ...], items: Mapping[str, str]) -> dict[str, int]:
        """How many items each run of a batch says are done, beyond those that are home."""
        said = (pair for r in rentals if r.rental.open for pair in self.of(r.rental.id).marked.items())
        return {run: left for run, marked in said if (left := sum(item not in items for item in marked))}

    def _save_s(self, rentals: tuple[RentalFacts, ...]) -> float:
        """Seconds to bring home what is left on the open machines, at the rate of their last transfers."""
        return max((self.of(r.rental.id).save_s() for r in rentals if r.rental.open), default=0.0)
