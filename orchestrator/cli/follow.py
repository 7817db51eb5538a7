"""Following a job: its log on stdout as it comes, its state and progress on stderr, until it is over.

Rules: with a terminal on stderr there is one live line (state, step and time left by progress or what is being copied,
GPU use, spend, hard end); without one a plain line for each change, and for a copy that lasts. Log bytes go to stdout
untouched unless both are the same terminal. Ctrl-C ends the looking only; the job goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli import client
from orchestrator.cli.output import clock_time, colourful, local_time, money, moved, span
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
    looked = woke = 0.0
    view: View | None = None
    with reader(home) as store, screen:
        while True:
            now = time.monotonic()
            if view is None or now - looked >= LOOK_S:
                view, looked = view_of(store, ref), now
                screen.show(view)
            if logs:
                for _, data in cursor.fresh(view):
                    screen.log(data)
            over = view.job.terminal_at is not None or (not until_released and view.job.outcome is not None)
            if over:
                # what was written between our last look and the end is still to come
                for _, data in cursor.fresh(view) if logs else ():
                    screen.log(data)
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


def gauges(view: View) -> list[str]:
    """GPU use, spend and time left, each as a few characters."""
    found = []
    progress = view.current_progress
    gpus = progress.sample.get("gpus") if progress else None
    if isinstance(gpus, list) and gpus:
        said = [gpu.get("util") for gpu in gpus if isinstance(gpu, dict)]
        used = [each for each in said if isinstance(each, (int, float))]
        if used:
            found.append(f"GPU {sum(used) / len(used):.0f}%")
    if view.rentals:
        found.append(money(view.spent, view.rentals[-1].offer.currency, view.play))
    if view.open_rentals:
        found.append(f"{span(view.open_rentals[-1].end - view.now)} to the hard end")
    return found


def transfer_words(view: View) -> str:
    """`code 12.3/40.1 MB 8.1 MB/s`; empty when nothing is copied."""
    seen = view.transfer
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


class _Plain:
    """Without a terminal: a line for each change of state."""

    def __init__(self) -> None:
        self._last: tuple[Any, ...] = ()
        self._moving = ("", 0.0)  # what is copied, and since when or when it was last told

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show(self, view: View) -> None:
        words = view.words
        said = (words.state, words.reason, words.attempt, words.detail)
        if said != self._last:
            print(state_line(view), file=sys.stderr, flush=True)
            self._last = said
        what = str(view.transfer.get("what", ""))
        if what != self._moving[0]:
            self._moving = (what, view.now)
        elif what and view.now - self._moving[1] >= TRANSFER_S:
            print(f"{clock_time(view.now)}  {view.job.name}  {transfer_words(view)}", file=sys.stderr, flush=True)
            self._moving = (what, view.now)

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
        words, progress = view.words, view.current_progress
        said = (words.state, words.reason, words.attempt, words.detail)
        if said != self._last:
            self._console.print(state_line(view), highlight=False, markup=False, style="dim")
            self._last = said
        step, total = (progress.step, progress.total) if progress else (None, None)
        steps = f"{step:g}/{total:g}" if step is not None and total else f"step {step:g}" if step is not None else ""
        left = eta_s(view)
        if left is not None:
            steps += f", {span(left)} left"
        moving = view.transfer
        if moving:
            step, total, steps = moving["bytes"], moving["total"], transfer_words(view)
        state = f"{words.state} {words.attempt_text}"
        self._bar.update(
            self._task, total=total, completed=step or 0, state=state, steps=steps, gauges=" · ".join(gauges(view))
        )

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
