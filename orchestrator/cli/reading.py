"""What verbs read from the books: one job with all its rows, or the lines of all jobs. Never a write.

Rules: a missing database is no error for a list, and a clear one for a job. Everything of one view comes from one
open reader, and is gone when the command ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits
from orchestrator.cli.exits import CliError
from orchestrator.model import (
    PLAY_PROVIDER,
    Assignment,
    Attempt,
    CheckpointRow,
    Job,
    Outcome,
    Reason,
    Rental,
    RentalPhase,
    SignalWhy,
    Task,
)
from orchestrator.words import Picture, State, Words, attempt_shown, newest_run, picture_of, words_of

if TYPE_CHECKING:
    from orchestrator.home import Home
    from orchestrator.store import Store
    from orchestrator.store.listing import Summary
    from orchestrator.store.rows import Bill, Entry, ItemRow, JobRef, Notice, Preflight, Progress, ReportRow

TRANSFER_OLD_S = 15.0  # its last word is lost with a machine or a controller that goes away
JOURNAL_LINES = 200  # what `describe` may show; the rest is in the books


@dataclass(frozen=True)
class View:
    """One job with its rows at one moment. Sequences are oldest first."""

    job: Job
    ref: JobRef
    tasks: tuple[Task, ...]
    attempts: tuple[Attempt, ...]
    rentals: tuple[Rental, ...]
    runs: tuple[Assignment, ...]
    checkpoints: tuple[CheckpointRow, ...]
    bills: tuple[Bill, ...]
    progress: tuple[Progress, ...]
    journal: tuple[Entry, ...]
    now: float
    reports: tuple[ReportRow, ...] = ()
    items: tuple[ItemRow, ...] = ()
    looks: tuple[Preflight, ...] = ()
    notices: tuple[Notice, ...] = ()  # the last try of each target

    @cached_property
    def current(self) -> Assignment | None:
        """The newest run, or that of the attempt which was named (`NAME@3`)."""
        runs = list(self.runs)
        if self.ref.attempt is not None:
            rentals = {rental.id for rental in self.rentals if rental.attempt == self.ref.attempt}
            runs = [run for run in runs if run.rental in rentals]
        return newest_run(runs)

    @property
    def many(self) -> bool:
        """Whether the job has many tasks."""
        return any(task.seq for task in self.tasks)

    @property
    def whole(self) -> bool:
        """Whether this is all of a job of many tasks, so that no run's figures are the job's."""
        return self.many and not self.ref.leg

    @property
    def leg(self) -> Task | None:
        """The task that `NAME/LEG` named."""
        return self.tasks[0] if self.ref.leg and self.tasks else None

    @property
    def results_dir(self) -> str:
        """Where results are: of the leg that was named, else of the job."""
        return self.leg.results_dir if self.leg is not None else self.job.results_dir

    @cached_property
    def current_progress(self) -> Progress | None:
        """What was last seen of the newest run."""
        run = self.current
        found = [p for p in self.progress if run is not None and (p.task, p.n) == (run.task, run.n)]
        return found[-1] if found else None

    @property
    def alarms(self) -> list[Mapping[str, Any]]:
        """Those that hold, of all runs that have not ended."""
        live = {(run.task, run.n) for run in self.runs if run.exit is None}
        return [each for seen in self.progress if (seen.task, seen.n) in live for each in seen.alarms]

    @property
    def transfer(self) -> Mapping[str, Any]:
        """What is being copied for the newest run at this moment; empty when nothing is, or nothing was heard of it."""
        progress = self.current_progress
        found = progress.transfer if progress is not None else {}
        return found if self.now - float(found.get("at", 0.0)) < TRANSFER_OLD_S else {}

    @cached_property
    def words(self) -> Words:
        """State, reason and what happens next."""
        if self.leg is not None and self.leg.outcome is not None:
            return leg_words(self.job.name, self.leg, len(self.runs))
        stage = self.current_progress.phase if self.current_progress else ""
        picture = picture_of(self.job, self.rentals, self.runs, stage, bool(self.checkpoints))
        if self.many and not self.ref.leg:
            from orchestrator.cli.leg_view import wanted

            over = sum(task.outcome is not None for task in self.tasks)
            tasks = wanted(self.job, self.tasks)
            picture = replace(picture, tasks=tasks, tasks_over=over, tasks_running=running_in(self))
        return words_of(picture, self.now)

    @property
    def play(self) -> bool:
        """Whether the job's money is not real."""
        return any(bill.play for bill in self.bills) or any(is_play(rental) for rental in self.rentals)

    @property
    def spent(self) -> Decimal:
        """What was paid so far, in the job's currency where all bills are in it."""
        return sum((bill.amount for bill in self.bills), Decimal(0))

    @property
    def open_rentals(self) -> list[Rental]:
        """Everything that may still bill."""
        return [rental for rental in self.rentals if rental.open]

    @property
    def hard_end(self) -> float | None:
        """When the ttl ends the job; None before its first machine."""
        from jobspecs.units import parse_duration

        if self.job.first_rental_at is None:
            return None
        ttl = parse_duration(str(self.job.spec.get("ttl", "12h"))).seconds
        return self.job.first_rental_at + ttl + self.job.ttl_extra_s


def is_play(rental: Rental) -> bool:
    """Whether the money of this machine is not real."""
    return rental.offer.provider == PLAY_PROVIDER


@contextmanager
def reader(home: Home) -> Iterator[Store]:
    """An open reader of the books; those of an older version are first migrated by a controller of this one."""
    from orchestrator.store import Store, StoreTooOld

    try:
        store = Store.open_reader(home)
    except StoreTooOld:
        from orchestrator.cli.client import migrated

        store = migrated(home)
    with store:
        yield store


def open_view(home: Home, ref: str) -> View:
    """The job that `ref` means. Raises CliError when there are no books, and NoSuchJob with the nearest names."""
    if not home.database.exists():
        raise CliError(f"there is no job {ref!r}: no job was ever applied here", where=str(home.state))
    with reader(home) as store:
        found = store.find(ref)
        return view_of(store, found)


def view_of(store: Store, found: JobRef) -> View:
    """All rows of one job."""
    from orchestrator.cli.leg_view import only, resolved

    found = resolved(store, found)
    job = found.job
    view = View(
        job=store.job(job),
        ref=found,
        tasks=store.tasks(job),
        attempts=store.attempts(job),
        rentals=store.rentals(job),
        runs=store.assignments(job),
        checkpoints=store.checkpoints(job),
        bills=store.ledger(job),
        progress=store.progress(job),
        journal=store.journal(job, limit=JOURNAL_LINES),
        now=time.time(),
        looks=store.preflights(job),
        notices=store.newest_notices(job),
        reports=store.reports(job),
        items=store.items(job),
    )
    return only(view, found.leg) if found.leg else view


def leg_words(job: str, leg: Task, runs: int) -> Words:
    """The words of one leg that is over; its machine may go on with another one."""
    from orchestrator.cli.leg_view import word_of

    state = {Outcome.DONE: State.DONE, Outcome.FAILED: State.FAILED}.get(leg.outcome or Outcome.DONE, State.CANCELLED)
    reason = word_of(leg) if leg.reason is None else str(leg.reason)
    return Words(state, reason, leg.detail or leg.stop_why, f"`gpujob ps {job}` shows the others", None, runs)


def running_in(view: View) -> int:
    """How many tasks a machine is at."""
    live = {rental.id for rental in view.rentals if rental.phase is RentalPhase.LIVE}
    return sum(run.ordered_at is not None and run.exit is None and run.rental in live for run in view.runs)


def picture_of_summary(line: Summary) -> Picture:
    """The picture of one line of `ps`."""
    return Picture(
        name=line.name,
        outcome=Outcome(line.outcome) if line.outcome else None,
        reason=Reason(line.reason) if line.reason else None,
        detail=line.detail,
        cancel_at=line.cancel_at,
        wait_since=line.wait_since,
        held_until=line.held_until,
        terminal_at=line.terminal_at,
        attempts=attempt_shown((line.n or 0) - line.replaced_n, line.made),
        granted=line.granted,
        lost=line.lost,
        rental=line.rental,
        provider=line.provider,
        phase=RentalPhase(line.phase) if line.phase else None,
        ready=line.ready_at is not None,
        rental_reason=Reason(line.rental_reason) if line.rental_reason else None,
        interrupted_at=line.interrupted_at,
        quiesced=line.quiesced_at is not None,
        end=line.end,
        recovering=line.attempts > 1,
        run_ordered=line.ordered_at is not None,
        run_ended=line.exited,
        run_interrupted=line.signalled == SignalWhy.INTERRUPTION,
        checkpointed=line.checkpointed,
        stage=line.progress_phase,
        tasks=line.tasks,
        tasks_over=line.tasks_over,
        tasks_running=line.tasks_running,
    )


def exit_code_of(job: Job) -> int:
    """The exit code that a job's outcome means."""
    if job.outcome is Outcome.DONE:
        return exits.OK
    if job.reason is Reason.NO_CAPACITY:
        return exits.NO_CAPACITY
    if job.reason in (Reason.PROVIDER, Reason.QUOTA):
        return exits.PROVIDER
    if job.outcome is Outcome.CANCELLED or job.reason in (Reason.TTL, Reason.BUDGET, Reason.CANCELLED):
        return exits.ENDED
    return exits.JOB_FAILED
