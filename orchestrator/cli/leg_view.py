"""One leg of a job of many tasks, as verbs see it (`NAME/LEG`), and the lines of `ps NAME` and `describe NAME`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.cli.exits import CliError
from orchestrator.cli.output import counted, cut, money, money_json, table
from orchestrator.leg_rows import legs_in
from orchestrator.model import Job, Outcome, Task

if TYPE_CHECKING:
    from orchestrator.cli.reading import View
    from orchestrator.legs import Leg
    from orchestrator.store import Store
    from orchestrator.store.rows import JobRef

LABEL_MAX = 44


def resolved(store: Store, ref: JobRef) -> JobRef:
    """`NAME/best` as the leg that it means now."""
    if ref.leg != "best":
        return ref
    from orchestrator.legs import best

    job = store.job(ref.job)
    metric = (job.spec.get("sweep") or {}).get("metric")
    if not metric:
        raise CliError(
            f"{job.name} has no best leg: it declares no metric", next="add metric: {name, goal} to the sweep"
        )
    legs = legs_in(store, job.id, time.time())
    winner = best(legs, metric["goal"])
    if winner is None:
        told = sum(leg.last is not None for leg in legs)
        why = f"legs with reports: {told}, none of them with a usable result" if told else "no leg has reported yet"
        raise CliError(f"{job.name} has no best leg so far: {why}", next=f"gpujob ps {job.name}")
    return replace(ref, leg=winner.id)


def only(view: View, leg: str) -> View:
    """The view of one leg: its runs, the machines that ran it, its checkpoints and progress."""
    runs = tuple(run for run in view.runs if run.task == leg)
    used = {run.rental for run in runs}
    return replace(
        view,
        tasks=tuple(task for task in view.tasks if task.id == leg),
        runs=runs,
        rentals=tuple(rental for rental in view.rentals if rental.id in used),
        checkpoints=tuple(c for c in view.checkpoints if c.task == leg),
        progress=tuple(p for p in view.progress if p.task == leg),
        bills=tuple(bill for bill in view.bills if bill.rental in used),
    )


def legs_of_view(view: View) -> list[Leg]:
    """The legs with their state, newest report, time and share of the cost."""
    from orchestrator.leg_books import Books, legs_of

    rows = Books(view.tasks, view.runs, view.rentals, view.bills, view.reports, view.now, view.job.currency)
    return legs_of(rows)


def name_of(task: Task) -> str:
    """What people read: the parameters of a leg, how many items a slice has, the number of a replica."""
    from jobspecs.sweep import label

    if task.params:
        return label(task.params)
    return f"{counted(len(task.items), 'item')} from {task.items[0]}" if task.items else f"replica {task.id}"


def wanted(job: Job, tasks: Sequence[Task]) -> int:
    """How many tasks there will be: a search draws its legs one after the other."""
    search = (job.spec.get("sweep") or {}).get("search") or {}
    return max(len(tasks), int(search.get("trials") or 0))


def counts(job: Job, tasks: Sequence[Task], running: int) -> str:
    """`12 of 40 over (11 done, 1 failed), 8 running`."""
    over = Counter(word_of(task) for task in tasks if task.outcome is not None)
    said = ", ".join(f"{count} {word}" for word, count in over.items())
    return (
        f"{sum(over.values())} of {wanted(job, tasks)} over" + (f" ({said})" if said else "") + f", {running} running"
    )


def word_of(task: Task) -> str:
    """Where a task stands: stopped early is no failure."""
    if task.outcome is None:
        return "waiting"
    if task.outcome is Outcome.DONE and task.reason is not None and str(task.reason) != "done":
        return str(task.reason)
    return str(task.outcome)


def legs_table(view: View) -> str:
    """One line a leg."""
    legs = {leg.id: leg for leg in legs_of_view(view)}
    rows = []
    for task in view.tasks:
        leg, run = legs[task.id], next((r for r in reversed(view.runs) if r.task == task.id), None)
        rental = next((r for r in view.rentals if run is not None and r.id == run.rental), None)
        last = leg.last
        rows.append(
            (
                task.id,
                cut(name_of(task), LABEL_MAX),
                str(leg.state) if task.outcome is None else word_of(task),
                str(leg.attempts),
                rental.offer.provider if rental is not None else "kept" if task.kept_from else "-",
                f"{last.value:.5g}" if last is not None else "-",
                money(leg.cost, leg.currency, leg.play) if leg.attempts else "-",
            )
        )
    headers = ("LEG", "WHAT", "STATUS", "RUNS", "PROVIDER", "LAST", "COST")
    return table(headers, rows, state="", shrink=("WHAT",), right=("RUNS", "LAST", "COST"))


def legs_json(view: View) -> list[dict[str, Any]]:
    """The same as documents."""
    found = []
    for task, leg in zip(view.tasks, legs_of_view(view), strict=True):
        last = leg.last
        found.append(
            {
                "leg": task.id,
                "name": name_of(task),
                "params": dict(task.params),
                "items": list(task.items),
                "state": str(leg.state) if task.outcome is None else word_of(task),
                "outcome": str(task.outcome) if task.outcome else None,
                "reason": str(task.reason) if task.reason else None,
                "detail": task.detail,
                "exit_code": task.exit_code,
                "runs": leg.attempts,
                "kept_from": task.kept_from or None,
                "step": last.step if last is not None else None,
                "value": last.value if last is not None and last.value == last.value else None,
                "seconds": round(leg.seconds, 3),
                "cost": money_json(leg.cost, leg.currency, leg.play),
                "results": task.results_dir or None,
            }
        )
    return found


def failed_items(rows: Sequence[Any]) -> list[Mapping[str, str]]:
    """Items of a batch that could not be done, with their reasons."""
    return [{"item": row.item, "why": row.detail} for row in rows if row.state == "failed"]
