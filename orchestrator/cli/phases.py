"""Where the time, the steps and the money of a job went: read from its rows and from its agents' stage events.

Rules: pure but for reading the event files. Seconds are of the wall; a phase that is not over counts until now.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from orchestrator.cli import own_hosts
from orchestrator.cli.output import counted, money, span
from orchestrator.cli.reading import View, is_play
from orchestrator.home import Home
from orchestrator.model import Assignment, Outcome, Rental
from orchestrator.paid_time import read_events

if TYPE_CHECKING:
    from orchestrator.interval import Saving

FAILED_SHOWN = 3  # of the legs that failed
ORDER = ("waiting", "machine", "code and data", "setup", "smoke", "run", "results", "release")


@dataclass(frozen=True)
class Steps:
    """How far the job came, and what losses of machines cost it."""

    last: float | None
    total: float | None
    lost: float


def phase_seconds(view: View, stages: Mapping[str, float]) -> dict[str, float]:
    """Seconds in each phase over all attempts; phases that took no time at all are left out."""
    seconds = dict.fromkeys(ORDER, 0.0)
    first = min((rental.created_at for rental in view.rentals), default=None)
    until = view.job.outcome_at or view.now
    seconds["waiting"] = max(0.0, (first if first is not None else until) - view.job.created_at)
    for rental in view.rentals:
        over = rental.releasing_at or rental.gone_at or view.now
        seconds["machine"] += max(0.0, (rental.ready_at or over) - rental.created_at)
        if rental.releasing_at is not None:
            seconds["release"] += (rental.gone_at or view.now) - rental.releasing_at
    rentals = {rental.id: rental for rental in view.rentals}
    for run in view.runs:
        rented = rentals.get(run.rental)
        if rented is not None and rented.ready_at is not None:
            given_up = rented.releasing_at or rented.gone_at or view.now  # before anything was ordered
            seconds["code and data"] += max(0.0, (run.ordered_at or given_up) - rented.ready_at)
        if run.exit is not None and run.results_at is not None:
            seconds["results"] += max(0.0, run.results_at - run.exit.at)
    for stage, spent in stages.items():
        if stage in seconds:
            seconds[stage] += spent
    return {phase: round(value, 1) for phase, value in seconds.items() if value >= 0.05}


def stage_seconds(home: Home, view: View) -> dict[str, float]:
    """Seconds of setup, smoke and run from the stored events of all machines."""
    total: dict[str, float] = {}
    for rental in view.rentals:
        for stage, seconds in stage_times(read_events(home.events(view.job.id, rental.id)), view.now).items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total


def stage_times(events: Iterable[Mapping[str, Any]], now: float) -> dict[str, float]:
    """Stage -> seconds, from `stage` events; one without an end lasts until the last event of its machine, or now."""
    started: dict[tuple[str, str], float] = {}
    total: dict[str, float] = {}
    last = now
    for event in events:
        at = event.get("at")
        if not isinstance(at, (int, float)):
            continue
        last = float(at)
        if event.get("t") != "stage":
            continue
        key = (str(event.get("run")), str(event.get("stage")))
        if event.get("state") == "start":
            started[key] = last
        elif key in started:
            total[key[1]] = total.get(key[1], 0.0) + last - started.pop(key)
    for (_, stage), at in started.items():
        total[stage] = total.get(stage, 0.0) + max(0.0, last - at)
    return total


def steps_of(view: View) -> Steps:
    """The last step, and the steps that had to be done again after a loss."""
    seen = {(p.task, p.n): p for p in view.progress}
    runs = sorted(view.runs, key=lambda run: (run.task, run.n))
    lost = 0.0
    for earlier, later in itertools.pairwise(runs):
        done = _last_step(earlier, seen)
        if earlier.task == later.task and done is not None:
            lost += max(0.0, done - float(later.resume_step or 0))
    newest = view.current_progress
    return Steps(newest.step if newest else None, newest.total if newest else None, lost)


def _last_step(run: Assignment, seen: Mapping[tuple[str, int], Any]) -> float | None:
    progress = seen.get((run.task, run.n))
    if progress is not None and progress.step is not None:
        return float(progress.step)
    return float(run.last_step) if run.last_step is not None else None


def spent_of(view: View, rental: Rental) -> Decimal:
    """What one machine has cost so far."""
    return sum((bill.amount for bill in view.bills if bill.rental == rental.id), Decimal(0))


def billing_lines(view: View) -> list[str]:
    """One line for each thing that still bills; empty when nothing does."""
    return [
        f"{rental.id} ({rental.offer.provider}) still bills "
        f"{money(rental.offer.hourly, rental.offer.currency, is_play(rental))}/h"
        for rental in view.open_rentals
    ]


def kept_lines(home: Home, view: View) -> list[str]:
    """One line for each machine of the user's own that the job used and that goes on costing."""
    closed = {rental.offer.region for rental in view.rentals if rental.offer.provider == own_hosts.PROVIDER}
    return own_hosts.still_yours(home, closed) if closed else []


def summary_lines(home: Home, view: View) -> list[str]:
    """The closing words of a job: how it ended, attempts, steps, seconds, money, results, and what still bills."""
    job, words = view.job, view.words
    steps = steps_of(view)
    seconds = phase_seconds(view, stage_seconds(home, view))
    currency = view.rentals[-1].offer.currency if view.rentals else job.currency
    ended = str(job.outcome or words.state).upper()
    machines = ", ".join(_machine(rental) for rental in view.rentals if rental.provider_id)
    lines = [
        f"{job.name}: {ended}" + (f" ({words.reason})" if job.outcome is not Outcome.DONE and words.reason else "")
    ]
    if job.detail:
        lines.append(f"  why       {job.detail}")
    if view.whole:
        lines += [f"  {line}" for line in _of_many(view)]
    else:
        lines.append(f"  attempts  {words.attempt_text}" + (f": {machines}" if machines else ""))
    if steps.last is not None and not view.whole:
        total = f" of {steps.total:g}" if steps.total else ""
        lines.append(f"  steps     {steps.last:g}{total}, {steps.lost:g} done again after losses")
    spent = " · ".join(f"{phase} {span(value)}" for phase, value in seconds.items())
    lines.append(f"  time      {of_machines(view)}{spent}")
    lines.append(f"  money     {money(view.spent, currency, view.play)}")
    if job.results_dir and any(run.results_at is not None for run in view.runs):
        lines.append(f"  results   {job.results_dir}")
    lines += [f"  lost      {run.results_lost}" for run in view.runs if run.results_lost]
    lines += [f"  {line}" for line in billing_lines(view) or kept_lines(home, view)] or ["  nothing is billing"]
    return lines


def of_machines(view: View) -> str:
    """What the seconds of the phases are where several machines work at once: more than the clock shows."""
    return "of all machines together: " if view.whole else ""


def _of_many(view: View) -> Iterator[str]:
    """How the tasks ended, on how many machines, what was done again, and which is the best."""
    from orchestrator.cli.leg_view import counts, word_of
    from orchestrator.cli.reading import running_in
    from orchestrator.cli.sweeps import best_line

    yield f"legs      {counts(view.job, view.tasks, running_in(view))}"
    kinds = Counter(_machine(rental) for rental in view.rentals if rental.provider_id)
    said = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    yield f"machines  {said or 'none'}; {counted(len(view.runs), 'run')} of {counted(len(view.tasks), 'leg')}"
    failed = [task for task in view.tasks if word_of(task) == "failed"]
    for task in failed[:FAILED_SHOWN]:
        yield f"failed    {view.job.name}/{task.id}: {task.detail or task.reason}"
    if len(failed) > FAILED_SHOWN:
        yield f"failed    and {len(failed) - FAILED_SHOWN} more: gpujob ps {view.job.name}"
    best = best_line(view)
    if best:
        yield f"best      {best}"


def _machine(rental: Rental) -> str:
    spot = "spot" if rental.offer.spot else "on-demand"
    stand_in = " (stand-in)" if rental.offer.stand_in else ""
    gpu = rental.offer.gpu or "CPU"
    return f"{gpu}{stand_in} {spot} at {rental.offer.provider}" + (f", {rental.reason}" if rental.reason else "")


def saving_words(found: Saving) -> str:
    """What saving costs as often as it happens, and what would cost least."""
    from jobspecs.units import Duration

    def spelled(seconds: float) -> str:
        return str(Duration(round(seconds / 60) * 60 if seconds >= 120 else max(1, round(seconds))))

    rests = f"a save takes {found.save_s:.0f} s, {found.losses_per_h:.2g} losses an hour"
    best = f"{spelled(found.best_s)} would be best here"
    if found.every_s is None or found.share is None:
        return f"{best}: {found.best_share:.1%} of the time ({rests})"
    now = f"every {spelled(found.every_s)} costs {found.share:.1%} of the time ({rests})"
    if not found.better:
        return f"{now}, which is near the best"
    return f"{now}, {best} ({found.best_share:.1%})"
