"""Following a job: its log on stdout as it comes, its state and progress on stderr, until it is over.

Rules: with a terminal on stderr there is one live line (state, step and time left by progress or what is being copied,
GPU use, spend, hard end); without one a plain line for each change, and for a copy that lasts. Log bytes go to stdout
untouched unless both are the same terminal. Ctrl-C ends the looking only; the job goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli import client
from orchestrator.cli.leg_view import legs_of_view, name_of, wanted, word_of
from orchestrator.cli.output import clock_time, colourful, counted, local_time, money, moved, say, span
from orchestrator.cli.reading import View, reader, view_of
from orchestrator.home import Home
from orchestrator.logs import read_from

if TYPE_CHECKING:
    from orchestrator.store import JobRef

STAGES = ("setup", "smoke", "run")
TICK_S = 0.25  # log bytes reach this computer within half a second
LOOK_S = 0.5  # the books change far more slowly than a log
WAKE_S = 5.0  # how often a dead controller is looked for
TRANSFER_S = 10.0  # without a terminal: a copy that lasts longer gets a line, and another each time


@dataclass
class LogCursor:
    """How far the logs of one job were printed: over stages and attempts, each byte once."""

    home: Home
    job: str
    stages: tuple[str, ...] = STAGES
    offsets: dict[Path, int] = field(default_factory=dict)

    def fresh(self, view: View) -> list[tuple[str, bytes]]:
        """(run/stage, bytes) that came since the last call, in the order of the runs."""
        found = []
        for run in view.runs:
            for stage in self.stages:
                path = self.home.log(self.job, run.task, run.n, stage)
                while data := read_from(path, self.offsets.get(path, 0)):
                    self.offsets[path] = self.offsets.get(path, 0) + len(data)
                    found.append((f"{run.key}/{stage}", data))
        return found

    def skip(self, view: View, keep: Callable[[Path], int]) -> None:
        """Start at `keep(path)` of every log that exists."""
        for run in view.runs:
            for stage in self.stages:
                path = self.home.log(self.job, run.task, run.n, stage)
                if path.exists():
                    self.offsets[path] = keep(path)


def follow(home: Home, ref: JobRef, cursor: LogCursor, until_released: bool, logs: bool = True) -> View:
    """Print until the work is decided (or the machine is released); returns the last view."""
    screen = _Live() if colourful(sys.stderr) else _Plain()
    named = _Named()
    looked = woke = 0.0
    view: View | None = None
    with reader(home) as store, screen:
        while True:
            now = time.monotonic()
            if view is None or now - looked >= LOOK_S:
                view, looked = view_of(store, ref), now
                screen.show(view)
            if logs:
                for key, data in cursor.fresh(view):
                    screen.log(named.lines(key, data) if view.whole else data)
            over = view.job.terminal_at is not None or (not until_released and view.job.outcome is not None)
            if over:
                # what was written between our last look and the end is still to come
                for key, data in cursor.fresh(view) if logs else ():
                    screen.log(named.lines(key, data) if view.whole else data)
                screen.log(named.rest())
                return view
            if now - woke >= WAKE_S:
                client.wake(home)
                woke = now
            time.sleep(TICK_S)


def state_line(view: View) -> str:
    """`18:04:05  RUNNING  attempt 1  ...`: what changed, in one plain line."""
    words = view.words
    parts = [str(words.state)]
    if words.reason:
        parts.append(words.reason)
    if words.attempt:
        parts.append(f"attempt {words.attempt_text}")
    when = f" ({local_time(words.next_at)})" if words.next_at else ""
    said = "; ".join(text for text in (words.detail, words.next + when) if text)
    return f"{clock_time(view.now)}  {view.job.name}  {'  '.join(parts)}  {said}".rstrip()


def task_lines(view: View, last: dict[str, str]) -> Iterator[str]:
    """`18:04:05  sweep/554yyzek  done  lr=0.1` for each of many tasks that stands elsewhere than `last` says."""
    if not view.whole:
        return
    states = {leg.id: str(leg.state) for leg in legs_of_view(view)}
    for task in view.tasks:
        word = states[task.id] if task.outcome is None else word_of(task)
        if word != last.get(task.id, "waiting"):
            last[task.id] = word
            why = f": {task.detail}" if task.detail else ""
            yield f"{clock_time(view.now)}  {view.job.name}/{task.id}  {word}  {name_of(task)}{why}"


def gauges(view: View) -> list[str]:
    """GPU use, spend and time left, each as a few characters."""
    found = []
    progress = None if view.whole else view.current_progress
    gpus = progress.sample.get("gpus") if progress else None
    if isinstance(gpus, list) and gpus:
        said = [gpu.get("util") for gpu in gpus if isinstance(gpu, dict)]
        used = [each for each in said if isinstance(each, (int, float))]
        if used:
            found.append(f"GPU {sum(used) / len(used):.0f}%")
    if view.rentals:
        found.append(money(view.spent, view.rentals[-1].offer.currency, view.play))
    if view.whole:
        found.append(counted(len(view.open_rentals), "machine"))
    elif view.open_rentals:
        found.append(f"{span(view.open_rentals[-1].end - view.now)} to the hard end")
    return found


def transfer_words(view: View) -> str:
    """`code 12.3/40.1 MB 8.1 MB/s`; empty when nothing is copied."""
    seen = {} if view.whole else view.transfer
    return f"{seen['what']} {moved(seen['bytes'], seen['total'], seen['rate'])}" if seen else ""


def eta_s(view: View) -> float | None:
    """Seconds to the last step by the pace of the present run; None where that is not known."""
    progress, run = view.current_progress, view.current
    if progress is None or run is None or run.ordered_at is None or not progress.total or not progress.step:
        return None
    done = progress.step - float(run.resume_step or 0)
    took = progress.at - run.ordered_at
    if done <= 0 or took <= 0 or progress.step >= progress.total:
        return None
    return (progress.total - progress.step) * took / done


class _Named:
    """The lines of many tasks' logs, each behind the name of its task: `554yyzek  step=5`."""

    def __init__(self) -> None:
        self._parts: dict[str, bytes] = {}  # begun lines, by run and stage

    def lines(self, key: str, data: bytes) -> bytes:
        """What is whole of one run's log; the begun line waits for its end."""
        *whole, self._parts[key] = (self._parts.get(key, b"") + data).split(b"\n")
        return b"".join(self._line(key, line) for line in whole)

    def rest(self) -> bytes:
        """The lines that nothing will end any more."""
        parts, self._parts = self._parts, {}
        return b"".join(self._line(key, part) for key, part in parts.items() if part)

    def _line(self, key: str, line: bytes) -> bytes:
        return key.partition(".")[0].encode() + b"  " + line.rstrip(b"\r").rpartition(b"\r")[2] + b"\n"


class _Plain:
    """Without a terminal: a line for each change of state, of many tasks one for each of them."""

    def __init__(self) -> None:
        self._last: tuple[Any, ...] = ()
        self._tasks: dict[str, str] = {}
        self._moving = ("", 0.0)  # what is copied, and since when or when it was last told

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show(self, view: View) -> None:
        self._states(view)
        what = "" if view.whole else str(view.transfer.get("what", ""))
        if what != self._moving[0]:
            self._moving = (what, view.now)
        elif what and view.now - self._moving[1] >= TRANSFER_S:
            say(f"{clock_time(view.now)}  {view.job.name}  {transfer_words(view)}")
            self._moving = (what, view.now)

    def _states(self, view: View) -> None:
        """What has changed since the last look: the job's state, and where each of many tasks stands."""
        words = view.words
        said = (words.state, words.reason, words.attempt, words.detail)
        if said != self._last:
            self._say(state_line(view))
            self._last = said
        for line in task_lines(view, self._tasks):
            self._say(line)

    def _say(self, line: str) -> None:
        say(line)

    def log(self, data: bytes) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


class _Live(_Plain):
    """With a terminal: one line at the bottom, redrawn in place."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(stderr=True)
        self._shared = sys.stdout.isatty()
        self._part = b""
        self._bar = Progress(
            TextColumn("[bold]{task.fields[state]}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[steps]}", markup=False),  # a machine may have named what it shows
            TextColumn("[dim]{task.fields[gauges]}"),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=None, state="", steps="", gauges="")

    def __enter__(self) -> _Live:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._part:
            self._out(self._part)
        self._bar.stop()

    def show(self, view: View) -> None:
        self._states(view)
        words, progress = view.words, None if view.whole else view.current_progress
        step, total = (progress.step, progress.total) if progress else (None, None)
        steps = f"{step:g}/{total:g}" if step is not None and total else f"step {step:g}" if step is not None else ""
        left = None if view.whole else eta_s(view)
        if left is not None:
            steps += f", {span(left)} left"
        moving = {} if view.whole else view.transfer
        if moving:
            step, total, steps = moving["bytes"], moving["total"], transfer_words(view)
        if view.whole:
            step, total = (
                float(sum(task.outcome is not None for task in view.tasks)),
                float(wanted(view.job, view.tasks)),
            )
            steps = f"{step:g} of {total:g} over"
        state = f"{words.state} {words.attempt_text}" if words.attempt else str(words.state)
        self._bar.update(
            self._task, total=total, completed=step or 0, state=state, steps=steps, gauges=" · ".join(gauges(view))
        )

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, style="dim")

    def log(self, data: bytes) -> None:
        if not self._shared:
            super().log(data)
            return
        *whole, self._part = (self._part + data).split(b"\n")
        for line in whole:
            self._out(line)

    def _out(self, line: bytes) -> None:
        """One line above the bar; of what a carriage return overwrote only the last state is left."""
        from rich.text import Text

        text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
        self._console.print(Text.from_ansi(text), soft_wrap=True, highlight=False)
