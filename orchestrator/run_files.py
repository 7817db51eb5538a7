"""What one of many tasks is given beside its scripts: its parameters, its items, its own limit. Never shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobspecs.sweep import params_json, variables
from orchestrator.marks import marks_of

if TYPE_CHECKING:
    from orchestrator.artifacts import Results
    from orchestrator.execute import Context
    from orchestrator.home import Home


def given(context: Context) -> dict[str, Any]:
    """The keys of an order that only one of many tasks has."""
    task = context.task
    if task is None or context.policy.crew is None:
        return {"workspace": "base"}
    order: dict[str, Any] = {"workspace": "own"}
    files = {}
    if context.policy.crew.kind == "sweep":
        files["GPUJOB_PARAMS"] = {"name": "params.json", "text": params_json(task.params)}
    if task.items:
        left = [item for item in task.items if item not in context.over]
        files["GPUJOB_ITEMS"] = {"name": "items.txt", "text": "".join(f"{item}\n" for item in left)}
    if files:
        order["files"] = files
    if context.limit_s is not None:
        order["limit"] = limit(context)
    return order


def limit(context: Context) -> dict[str, Any]:
    """How long the run may last by its task's own time and money; empty without such."""
    return {} if context.limit_s is None else {"s": round(context.limit_s, 1), "why": context.limit_why}


def marked(home: Home, context: Context) -> tuple[str, ...]:
    """Items of a batch that the run has marked as done, as far as its marks have arrived; of a run that ended well all
    that it did not mark as failed.
    """
    task, run = context.task, context.assignment
    if task is None or run is None or not task.items:
        return ()
    said = marks_of(home, run, task)
    if run.exit is None or run.exit.rc != 0 or run.exit.lost or run.exit.signalled is not None:
        return said
    return tuple(item for item in task.items if item not in context.over)


def made(context: Context, results: Results) -> frozenset[str] | None:
    """What a slice's last run brought from OUT; None for any other task."""
    if context.task is None or not context.task.items:
        return None
    return frozenset(piece.staged.removeprefix("out/") for piece in results.pieces if piece.staged.startswith("out/"))


def recorded(context: Context) -> dict[str, Any]:
    """What a run's record says of its task."""
    return {"params": dict(context.task.params)} if context.task is not None and context.task.params else {}


def environment(context: Context) -> dict[str, str]:
    """The spec's variables, and each parameter of the task as it was typed."""
    found = {name: value for name, value in context.spec.env.items() if value is not None}
    task, crew = context.task, context.policy.crew
    if task is None or crew is None:
        return found
    if crew.kind == "replicas":
        return {**found, "GPUJOB_REPLICA": task.id}
    return {**found, **variables(task.params)}
