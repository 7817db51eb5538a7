"""Which task of many is where: on a machine, waiting, over; how much of its own time it has used. Pure.

Rules
- A task is in hand while the machine of its newest run is live: it belongs to that machine, whatever became of the
  run, until its outcome is decided. When the machine is on its way out, the task waits again, with its checkpoints.
- Waiting for a machine is never counted against a leg: its ttl counts seconds of machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from functools import cached_property
from statistics import median

from orchestrator import resume
from orchestrator.crew import Crew
from orchestrator.model import Assignment, Facts, Outcome, Policy, Reason, RentalFacts, RentalPhase, Task

ALIKE = 3  # tasks that fail alike before the rest is spared the same


class Bench:
    """The tasks of one job as the facts have them; looked up once in a decision."""

    def __init__(self, facts: Facts, policy: Policy) -> None:
        assert policy.crew is not None
        self.facts, self.policy = facts, policy
        self.crew: Crew = policy.crew
        self.taken: set[str] = set()  # given to a machine in this very decision
        self.committed: Decimal | None = None  # of all machines: spent and reserved, in the job's currency
        self.awaited = 0  # machines that are on their way, or would be rented, for tasks that wait
        self.idle = self.ready = 0  # machines for which a leg is to be drawn; and those of them that can take it now

    @cached_property
    def tasks(self) -> dict[str, Task]:
        """By id."""
        return {task.id: task for task in self.facts.tasks}

    @cached_property
    def rentals(self) -> dict[str, RentalFacts]:
        """By id."""
        return {each.rental.id: each for each in self.facts.rentals}

    @cached_property
    def runs(self) -> dict[str, list[Assignment]]:
        """The runs of each task, oldest first."""
        found: dict[str, list[Assignment]] = {}
        for run in sorted(self.facts.assignments, key=lambda run: run.n):
            found.setdefault(run.task, []).append(run)
        return found

    @cached_property
    def undecided(self) -> list[Task]:
        """Tasks without an outcome, in the order in which they are wanted."""
        return sorted((task for task in self.facts.tasks if task.outcome is None), key=lambda task: (task.seq, task.id))

    def newest(self, task: str) -> Assignment | None:
        """The newest run of a task."""
        runs = self.runs.get(task)
        return runs[-1] if runs else None

    def in_hand(self, task: str) -> bool:
        """Whether a live machine has it."""
        run = self.newest(task)
        rental = self.rentals.get(run.rental) if run is not None and not run.withdrawn else None
        return rental is not None and rental.rental.phase is RentalPhase.LIVE

    @cached_property
    def waiting(self) -> list[Task]:
        """Tasks that no live machine has; those that were begun first, since their progress is paid for."""
        begun = [task for task in self.undecided if task.id in self.runs and not self.in_hand(task.id)]
        return [*begun, *(task for task in self.undecided if task.id not in self.runs)]

    def next(self) -> Task | None:
        """The task that the next free machine gets; one whose last machine may still run it is passed over."""
        return next(self.assignable(), None)

    def assignable(self) -> Iterator[Task]:
        """Tasks that a machine could be given now."""
        return (task for task in self._ready if task.id not in self.taken)

    @cached_property
    def _ready(self) -> list[Task]:
        waiting = (task for task in self.waiting if task.cancel_at is None and task.stop_at is None)
        return [task for task in waiting if task.id not in self.runs or self.free(task.id)]

    def free(self, task: str) -> bool:
        """Whether no earlier run of it can still write; most of hundreds of tasks never had one."""
        return all(resume.over_at(run, self.rentals.get(run.rental)) is not None for run in self.runs.get(task, ()))

    @property
    def drawable(self) -> int:
        """Legs that a search may still draw."""
        return 0 if self.facts.exhausted else max(0, self.crew.trials - len(self.facts.tasks))

    @cached_property
    def _on(self) -> dict[str, list[Assignment]]:
        """The runs of each rental in their order: what has ended, what was ordered, what waits. The time of the commit
        decides only within these, since the clock may have been set back between two."""
        found: dict[str, list[Assignment]] = {}
        for run in sorted(self.facts.assignments, key=_place):
            found.setdefault(run.rental, []).append(run)
        return found

    def held(self, rental: str) -> list[Assignment]:
        """The runs that a live machine has in hand, the earlier first: one at work, and perhaps one before it whose end
        is not decided yet, or one ahead."""
        return [
            run
            for run in self._on.get(rental, ())
            if self.tasks[run.task].outcome is None and self.newest(run.task) is run and not run.withdrawn
        ]

    def held_by(self, rental: str) -> Assignment | None:
        """The run that a live machine is at; None when it is free for the next task."""
        held = self.held(rental)
        return next((run for run in held if run.exit is None), held[-1] if held else None)

    def before(self, run: Assignment) -> Assignment | None:
        """The run on the same machine that has to be over first; None when nothing is in its way."""
        held = self.held(run.rental)
        place = held.index(run) if run in held else 0
        return held[place - 1] if place else None

    @cached_property
    def ahead(self) -> list[Assignment]:
        """Runs that were given to machines at work and have not begun, as far as is known."""
        live = (r.rental.id for r in self.facts.rentals if r.rental.phase is RentalPhase.LIVE)
        return [run for rental in live for run in self.held(rental)[1:] if run.ordered_at is None]

    def brought(self, run: Assignment) -> bool:
        """Whether all that the run needs is on its machine by an earlier task's run there: code and data."""
        there = (a for a in self._on.get(run.rental, ()) if a.key != run.key)
        return not run.resume_hash and any(a.ordered_at is not None for a in there)

    def live(self) -> Iterator[RentalFacts]:
        """Machines that are there or on their way."""
        return (r for r in self.facts.rentals if r.rental.phase in (RentalPhase.INTENT, RentalPhase.LIVE))

    @cached_property
    def alike(self) -> str | None:
        """The line with which several tasks failed alike, while none was done: the others are spared it."""
        if any(task.outcome is Outcome.DONE for task in self.facts.tasks):
            return None
        if self.facts.items:
            return self._items_alike()
        found: dict[tuple[str, str, str], list[Task]] = {}
        for task in self.facts.tasks:
            run = self.newest(task.id)
            if task.outcome is not Outcome.FAILED or task.reason is not Reason.FAILED or run is None:
                continue
            if run.exit is not None:
                cause = run.cause
                mark = (cause.klass, cause.signature or cause.line) if cause is not None else ("", str(run.exit.rc))
                found.setdefault((run.exit.stage, *mark), []).append(task)
        for tasks in found.values():
            if len(tasks) >= ALIKE:
                line = tasks[0].detail or "no line says why"
                return f"the same failure in {len(tasks)} of {len(self.facts.tasks)}, and none was done: {line}"
        return None

    def _items_alike(self) -> str | None:
        whys = Counter(self.facts.items.values())
        why, count = whys.most_common(1)[0]
        if not whys[""] and count >= ALIKE:
            return f"the same failure at {count} items, and none was done: {why}"
        return None

    # --- a leg's own time ---------------------------------------------------------------------------------------------

    @cached_property
    def leg_s(self) -> float | None:
        """What a leg takes: by the spec, else the middle of what the done ones took."""
        if self.crew.leg_s is not None:
            return self.crew.leg_s
        took = [
            run.exit.at - run.ordered_at
            for task, runs in self.runs.items()
            if self.tasks[task].outcome is Outcome.DONE
            for run in runs[-1:]
            if run.exit is not None and run.ordered_at is not None
        ]
        return median(took) if took else None

    def used_s(self, run: Assignment) -> float:
        """Seconds of machines that the earlier runs of the same task had."""
        return sum(self._lasted(other) for other in self.runs[run.task] if other.n < run.n)

    def _lasted(self, run: Assignment) -> float:
        if run.ordered_at is None:
            return 0.0
        rental = self.rentals.get(run.rental)
        lost = rental.rental.quiesced_at or rental.rental.releasing_at if rental is not None else None
        ends = [at for at in (run.exit.at if run.exit else None, run.closed_at, lost) if at is not None]
        return max(0.0, min(ends, default=self.facts.now) - run.ordered_at)

    def limit_s(self, run: Assignment) -> float | None:
        """Seconds that this run may last by its leg's own ttl and budget; None without either."""
        limits = []
        if self.crew.leg_ttl_s is not None:
            limits.append(self.crew.leg_ttl_s + self.facts.job.ttl_extra_s)
        if self.crew.leg_budget is not None:
            limits.append(self._paid_s(run, self.crew.leg_budget))
        return max(0.0, min(limits) - self.used_s(run)) if limits else None

    def by_budget(self, run: Assignment) -> bool:
        """Whether the leg's money and not its ttl makes its limit."""
        ttl, budget = self.crew.leg_ttl_s, self.crew.leg_budget
        return budget is not None and (ttl is None or self._paid_s(run, budget) < ttl + self.facts.job.ttl_extra_s)

    def _paid_s(self, run: Assignment, budget: object) -> float:
        offer = self.rentals[run.rental].rental.offer
        hourly = float(offer.hourly * (self.policy.worth(offer.currency) or 1))
        return float(str(budget)) / hourly * 3600.0 if hourly > 0 else float("inf")

    def leg_end(self, run: Assignment) -> float | None:
        """When the leg's own limit comes, if it runs on from now; None without one."""
        limit = self.limit_s(run)
        return None if limit is None else (run.ordered_at or self.facts.now) + limit


def _place(run: Assignment) -> tuple[bool, bool, float, int]:
    return run.exit is None, run.ordered_at is None, run.committed_at, run.n
