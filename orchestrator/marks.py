"""Items of a batch that a run has marked, read from its notes as they are stored here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.model import Assignment, Task

if TYPE_CHECKING:
    from orchestrator.home import Home


def marks_of(home: Home, run: Assignment, task: Task) -> tuple[str, ...]:
    """Items that a run says are done, as far as its marks are stored here; in the order of the slice."""
    said = set(lines_of(home.log(run.job, run.task, run.n, "done")))
    return tuple(item for item in task.items if item in said)


def lines_of(path: Path) -> list[str]:
    """Whole lines; one that was cut off by a lost machine is no mark."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()
