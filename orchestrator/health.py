"""How running jobs are: keeps each machine's last hours as minutes, looks at them, and says or does what the rules say.

Runs in the loop's thread. The rules are `alarms.examine`, which is pure; here is what they look at, and what follows:
a line of the journal (and with it a notification) when an alarm begins, the list of those that hold for `ps` and
`describe`, and for a rule with `stop: true` the wish that the run saves and ends, which `reconcile` sees in its row.
After a start the minutes come from the series, so that no restart makes a stalled job young again.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator import actions as act
from orchestrator.alarms import examine
from orchestrator.earlier import earlier
from orchestrator.history import RECLAIMS_PER_H
from orchestrator.look import MINUTE, Alarm, Before, Look, Rule
from orchestrator.model import Assignment, Job, Policy, Rental, RentalPhase
from orchestrator.points import Point, joined
from orchestrator.series import read
from orchestrator.store.errors import StoreError
from orchestrator.successor import deadline

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec
    from orchestrator.loop import Loop

KEPT = 240  # minutes in memory: the longest look back of any rule, twice
LOOK_EVERY_S = 10.0  # and for each machine 0.05 s more: a look costs milliseconds, and there may be a thousand
LOOK_MORE_S = 0.05
LAUNCHERS = re.compile(
    r"\b(torchrun|accelerate|deepspeed|mpirun|horovodrun|torch\.distributed|composer|colossalai|ray)\b"
)


class Minutes:
    """One machine's last hours; the last minute is still growing."""

    def __init__(self, before: list[Point]) -> None:
        self._done: deque[Point] = deque(before[-KEPT:], maxlen=KEPT)
        self._open: list[Point] = []
        self.stepped_at = self.logged_at = 0.0  # looks at which the step was another one, and the log had grown
        self._step = math.nan

    def add(self, point: Point) -> None:
        """One look more."""
        if point.step == point.step:
            if point.step != self._step:
                self.stepped_at = point.at
            self._step = point.step
        if point.log > 0:
            self.logged_at = point.at
        if self._open and point.at // MINUTE != self._open[0].at // MINUTE:
            self._done.append(self._joined())
            self._open = []
        self._open.append(point)

    def _joined(self) -> Point:
        return joined(self._open, self._open[0].at // MINUTE * MINUTE)

    def all(self) -> list[Point]:
        """Oldest first."""
        done = [point for point in self._done if not self._open or point.at < self._open[0].at // MINUTE * MINUTE]
        return [*done, self._joined()] if self._open else done


class Health:
    """The health side of one loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._machines: dict[str, tuple[str, Minutes]] = {}  # rental -> job and its minutes
        self._look_at = 0.0  # boot time
        self._since: dict[tuple[str, str], float] = {}  # rental and kind of an alarm that holds -> since when
        self._before: dict[str, Before] = {}  # rental -> how fast earlier machines were

    def hear(self, job: str, rental: str, point: Point) -> None:
        """A machine told how busy it is."""
        if rental not in self._machines:
            before = read(self._loop.home.series(job, rental), int(MINUTE), point.at - KEPT * MINUTE)
            self._machines[rental] = (job, Minutes([each for each in before if each.at + MINUTE <= point.at]))
        self._machines[rental][1].add(point)

    def look(self, boot: float) -> None:
        """Look at all machines, if it is time."""
        if boot < self._look_at or not self._machines:
            return
        self._look_at = boot + LOOK_EVERY_S + LOOK_MORE_S * len(self._machines)
        with self._loop.store.transaction():  # one wait for the disk, whatever the number of machines
            for rental, (job, minutes) in list(self._machines.items()):
                try:
                    lives = self._look_at_one(job, rental, minutes)
                except StoreError as error:
                    if not error_of_row(error):
                        raise
                    lives = False
                if not lives:
                    self._forget(rental)

    def _forget(self, rental: str) -> None:
        self._machines.pop(rental, None)
        self._before.pop(rental, None)
        self._since = {key: at for key, at in self._since.items() if key[0] != rental}

    def _look_at_one(self, job_id: str, rental_id: str, minutes: Minutes) -> bool:
        """False when the machine is on its way out: nothing more is said of it."""
        loop = self._loop
        job, rental = loop.store.job(job_id), loop.store.rental(rental_id)
        mine = [run for run in loop.store.assignments(job_id) if run.rental == rental_id]
        live = [run for run in mine if run.exit is None and run.ordered_at is not None]
        if rental.phase is not RentalPhase.LIVE or job.outcome is not None:
            for run in mine:
                loop.store.alarms_hold(job_id, run.task, run.n, [])
            return False
        for run in mine:
            if run.exit is not None:
                loop.store.alarms_hold(job_id, run.task, run.n, [])
        if live:
            run = max(live, key=lambda each: each.n)
            spec, policy = loop.spec_of(job)
            self._say(job, run, examine(self._facts(job, rental, run, spec, policy, minutes)))
        return True

    def _facts(
        self, job: Job, rental: Rental, run: Assignment, spec: JobSpec, policy: Policy, minutes: Minutes
    ) -> Look:
        store, offer = self._loop.store, rental.offer
        saved = [row.verified_at for row in store.checkpoints(job.id) if (row.task, row.n) == (run.task, run.n)]
        progress = [p for p in store.progress(job.id) if (p.task, p.n) == (run.task, run.n)]
        every = spec.checkpoint.every if spec.checkpoint is not None else None
        worth = policy.worth(offer.currency)
        expected = (
            policy.work.reclaims.get(offer.provider, policy.work.reclaims_per_h) if policy.work else RECLAIMS_PER_H
        )
        return Look(
            now=self._loop.clock.utc(),
            name=job.name,
            minutes=minutes.all(),
            stepped_at=minutes.stepped_at,
            logged_at=minutes.logged_at,
            cards=offer.gpu_count if offer.gpu else 0,
            began_at=run.ordered_at,
            saved_at=max(saved, default=None),
            every_s=float(every.seconds) if every is not None else None,
            total=progress[-1].total if progress else None,
            end=_end_of(job, rental, run, policy),
            ttl_s=policy.ttl_s,
            spent=float(store.spent(job.id, policy.rates)),
            budget=float(policy.budget) if policy.budget is not None else None,
            hourly=float(offer.hourly * worth) if worth is not None else float(offer.hourly),
            money=job.currency if worth is not None else offer.currency,
            reclaimed_at=[r.interrupted_at for r in store.rentals(job.id) if r.interrupted_at is not None],
            reclaims_per_h=expected if offer.spot else 0.0,
            launcher=LAUNCHERS.search(spec.run) is not None,
            serve=spec.workload == "serve",
            warm_s=warm_up_of(spec),
            before=self._before_of(job, rental, policy),
            rules=rules_of(spec),
        )

    def _before_of(self, job: Job, rental: Rental, policy: Policy) -> Before:
        """Read once for each machine; legs and slices differ from each other, so theirs are not compared."""
        if rental.id not in self._before:
            plain = policy.crew is None
            self._before[rental.id] = earlier(self._loop.store, self._loop.home, job, rental) if plain else Before()
        return self._before[rental.id]

    def _say(self, job: Job, run: Assignment, alarms: tuple[Alarm, ...]) -> None:
        loop, now = self._loop, self._loop.clock.utc()
        known = {str(each.get("kind")): each for p in loop.store.progress(job.id) for each in p.alarms
                 if (p.task, p.n) == (run.task, run.n)}  # fmt: skip
        shown: list[Mapping[str, Any]] = []
        for alarm in alarms:
            began = self._since.setdefault((run.rental, alarm.kind), float(known.get(alarm.kind, {}).get("since", now)))
            words = {"text": alarm.text, "cause": alarm.cause, "next": alarm.next}
            shown.append({"kind": alarm.kind, "since": began, **words})
            if alarm.kind not in known:  # once when it begins; a repeat within the hour is the store's to drop
                loop.alarm(job.id, act.Alarm(alarm.kind, in_words(alarm), run.rental))
            if alarm.stop and not run.stop and loop.store.stop_run(
                job.id, run.task, run.n, f"{alarm.kind}: {alarm.text}", now
            ):  # fmt: skip
                loop.touch(job.id)
        held = {alarm.kind for alarm in alarms}
        self._since = {key: at for key, at in self._since.items() if key[0] != run.rental or key[1] in held}
        loop.store.alarms_hold(job.id, run.task, run.n, shown)


def _end_of(job: Job, rental: Rental, run: Assignment, policy: Policy) -> float | None:
    """When the work is ended for good. A machine of many tasks moves its own end out while there is work for it: there
    the leg's own end counts, or the job's.
    """
    if policy.crew is None:
        return rental.end
    if policy.crew.kind == "sweep":
        begun, ttl = run.ordered_at, policy.crew.leg_ttl_s
        return None if begun is None or ttl is None else begun + ttl + job.ttl_extra_s
    return None if job.first_rental_at is None else deadline(job, policy, job.first_rental_at)


def in_words(alarm: Alarm) -> str:
    """One line: what, why, what to do."""
    return f"{alarm.text}; likely {alarm.cause}; next: {alarm.next}"


def error_of_row(error: StoreError) -> bool:
    """Whether the row is not there (any more), which is no trouble of the store."""
    return type(error) is StoreError


def warm_up_of(spec: JobSpec) -> float | None:
    """Seconds that the spec gives a run before its pace counts; None: the rules' own."""
    warm_up = spec.alarms.warm_up if spec.alarms is not None else None
    return None if warm_up is None else float(warm_up.seconds)


def rules_of(spec: JobSpec) -> Mapping[str, Rule]:
    """The thresholds that the spec sets, by the kind of the alarm."""
    if spec.alarms is None:
        return {}
    found: dict[str, Rule] = {}
    for key in type(spec.alarms).model_fields:
        own = getattr(spec.alarms, key)
        if key in ("off", "warm_up") or own is None:
            continue
        values = own.model_dump()
        found[key.replace("_", "-")] = Rule(
            percent=float(values.get("percent") or "nan"),
            duration=float(own.duration.seconds) if values.get("duration") is not None else float("nan"),
            count=float(values.get("count") or "nan"),
            stop=bool(values.get("stop") or values.get("relaunch")),
        )
    for name in spec.alarms.off:
        found[name.replace("_", "-")] = Rule(off=True)
    return found
