"""The tasks of a new job: those that were asked for, and those that an earlier run of the name has done already.

Rules
- A leg that is done is kept when nothing but which legs there are, money, time and place has changed since: the same
  spec, the same code. It is not run again, its reports count, and its results stay where they are.
- Legs that were begun go on from their checkpoints; failed ones run again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.model import Job, Outcome, Task
from orchestrator.snapshot import same_files
from orchestrator.store.rows import ItemRow

if TYPE_CHECKING:
    from orchestrator.loop import Loop

MANY = ("sweep", "batch", "replicas")
#: What says which legs there are, and what says when, where and for how much: not what a leg computes.
ASIDE = frozenset({
    *MANY, "ttl", "budget", "finish_by", "max_price", "retry", "notify", "labels", "alarms", "artifacts", "providers",
    "regions", "spot", "expected", "wait", "hold_on_failure", "allow", "grace",
})  # fmt: skip


def of(document: Mapping[str, Any]) -> bool:
    """Whether a wish or a spec is of many tasks."""
    spec = document.get("spec", document)
    return any(spec.get(key) for key in MANY)


def whole(loop: Loop, job: Job) -> bool:
    """Whether nothing of a done job is missing: of a sweep some legs may have failed."""
    return not of(job.spec) or all(task.outcome is Outcome.DONE for task in loop.store.tasks(job.id))


def tasks_of(loop: Loop, job: Job, wish: Mapping[str, Any]) -> list[Task]:
    """What was asked for: one task `t0`, or many; legs that a run of this name did already have their outcome."""
    if not of(wish):
        return [Task(job.id, "t0")]
    known = {} if wish.get("again") else done_before(loop, job.name, wish)
    wanted = [
        Task(job.id, str(row["id"]), dict(row.get("params") or {}), seq=number, items=tuple(row.get("items") or ()))
        for number, row in enumerate(wish.get("tasks") or (), 1)
    ]
    if job.spec.get("batch"):
        over = {} if wish.get("again") else items_before(loop, job.name, wish)
        left = [replace(task, items=tuple(item for item in task.items if item not in over)) for task in wanted]
        return [task for task in left if task.items]
    if job.spec.get("sweep", {}).get("search", {}).get("trials"):  # drawn legs are remembered, not asked for
        ids = {task.id for task in wanted}
        drawn = [task for task in known.values() if task.id not in ids]
        wanted += [Task(job.id, t.id, t.params, seq=len(wanted) + at) for at, t in enumerate(drawn, 1)]
    return [kept(task, known[task.id]) if task.id in known and not task.items else task for task in wanted]


def kept(task: Task, done: Task) -> Task:
    """The task as an earlier run did it."""
    return Task(
        task.job, task.id, task.params, done.outcome, task.seq, task.items, done.reason, done.detail, done.exit_code,
        done.outcome_at, stop_why=done.stop_why, kept_from=done.kept_from or done.job, results_dir=done.results_dir,
    )  # fmt: skip


def same(loop: Loop, old: Job, wish: Mapping[str, Any]) -> bool:
    """Whether the legs of an earlier run computed what those of the wish compute."""
    if not of(wish) or not of(old.spec) or same_work(old.spec) != same_work(wish["spec"]):
        return False
    files = same_files(loop.home, old.snapshot, str(wish.get("snapshot") or ""), str(wish.get("spec_file") or ""))
    return files and old.data_manifests == (wish.get("data_manifests") or {})


def done_before(loop: Loop, name: str, wish: Mapping[str, Any]) -> dict[str, Task]:
    """The done legs of the newest earlier run of the name that computed the same."""
    old = loop.store.newest_of(name)
    if old is None or not same(loop, old, wish):
        return {}
    return {task.id: task for task in loop.store.tasks(old.id) if task.outcome is Outcome.DONE}


def items_before(loop: Loop, name: str, wish: Mapping[str, Any]) -> dict[str, ItemRow]:
    """Items that earlier runs of the name did, by the same spec and code."""
    old = loop.store.newest_of(name)
    if old is None or not same(loop, old, wish):
        return {}
    return {row.item: row for row in loop.store.items(old.id) if row.state == "done"}


def same_work(spec: Mapping[str, Any]) -> str:
    """A hash of what a leg computes, whichever legs there are."""
    document = {key: value for key, value in spec.items() if key not in ASIDE}
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()


def keep(loop: Loop, job: Job, items: Mapping[str, ItemRow]) -> None:
    """The reports of kept legs are this run's too, and so are the done items of a batch."""
    for row in items.values():
        loop.store.item_over(job.id, row.task, row.item, row.state, row.detail, row.at)
    for task in loop.store.tasks(job.id):
        if task.kept_from:
            loop.store.keep_reports(job.id, task.kept_from, task.id)


def only_adds(loop: Loop, old: Job, wish: Mapping[str, Any]) -> bool:
    """Whether a live sweep may be edited in place: the search is the same, and no leg is taken away."""
    before, after = old.spec.get("sweep") or {}, wish["spec"].get("sweep") or {}
    same = all(before.get(key) == after.get(key) for key in ("metric", "search"))
    if (before.get("search") or {}).get("trials"):  # its legs are drawn: those of another space would be another search
        return same and before.get("parameters") == after.get("parameters")
    ids = {str(row["id"]) for row in wish.get("tasks") or ()}
    return same and all(task.id in ids for task in loop.store.tasks(old.id)) and bool(before) and bool(after)


def add(loop: Loop, old: Job, wish: Mapping[str, Any]) -> None:
    """The legs of an edited sweep that it did not have before."""
    there = len(loop.store.tasks(old.id))
    known = {task.id for task in loop.store.tasks(old.id)}
    fresh = [row for row in wish.get("tasks") or () if str(row["id"]) not in known]
    for number, row in enumerate(fresh, there + 1):
        task = Task(old.id, str(row["id"]), dict(row.get("params") or {}), seq=number)
        loop.store.add_task(task, loop.clock.utc())
