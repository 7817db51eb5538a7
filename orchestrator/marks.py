"""Items of a batch that a run has marked, read from its notes as they are stored here.

Rules: the notes are read anew with every piece of them that arrives, so only as far as an honest run writes: some marks
for each item of its slice. What a stranger's machine appends beyond that costs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.model import Assignment, Task

if TYPE_CHECKING:
    from orchestrator.home import Home

NOTE_MAX = 5000  # bytes of a line: a path of Linux, and why it failed
NOTES_AN_ITEM = 4


def marks_of(home: Home, run: Assignment, task: Task) -> tuple[str, ...]:
    """Items that a run says are done, as far as its marks are stored here; in the order of the slice."""
    said = set(lines_of(home.log(run.job, run.task, run.n, "done"), task))
    return tuple(item for item in task.items if item in said)


def lines_of(path: Path, task: Task) -> list[str]:
    """Whole lines; one that was cut off by a lost machine is no mark."""
    try:
        with path.open("rb") as file:
            data = file.read(NOTE_MAX * NOTES_AN_ITEM * (len(task.items) + 1))
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()
