"""What legs report, from their stored logs into the books, and which of them are to stop. Runs in the loop's thread.

Rules
- Reports come from the log as it is stored here, from a mark that is committed with them: after a crash the same bytes
  are read again or not at all, so no report is lost or doubled.
- A leg that resumed replays steps: the same step is the same report.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.early_stop import Rule, stops
from orchestrator.leg_rows import legs_in
from orchestrator.marks import lines_of, marks_of
from orchestrator.metric_lines import from_json, from_log
from orchestrator.model import Assignment

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec
    from orchestrator.loop import Loop

EVERY_S = 1.0
SHARE = 10.0  # of the time that comparing takes: a tenth of a core at most
CHUNK = 1 << 20  # a turn of the loop reads no more of one log
NUMBER = re.compile(r"[0-9]{1,9}")  # of a run


def marks(loop: Loop, job_id: str, rental: str, key: str) -> None:
    """Items that a run of a batch has marked: failed ones are over at once, done ones once what they made is home."""
    job = loop.store.job(job_id)
    run = run_of(loop, job_id, rental, key)
    task = next((t for t in loop.store.tasks(job_id) if run is not None and t.id == run.task), None)
    if run is None or task is None or not task.items or not job.spec.get("batch"):
        return
    loop.observer.of(rental).marked[key] = marks_of(loop.home, run, task)
    for line in lines_of(loop.home.log(job_id, run.task, run.n, "failed"), task):
        item, _, why = line.partition("\t")
        if item in task.items:
            loop.store.item_over(
                job_id, task.id, item, "failed", why.strip()[:500] or "no reason given", loop.clock.utc()
            )
    loop.touch(job_id)


def read_all(loop: Loop, job: str, rental: str) -> None:
    """The same for every run of a machine: what an earlier controller stored and had no time to read."""
    spec = loop.store.job(job).spec
    for run in loop.store.assignments(job) if spec.get("sweep") or spec.get("batch") else ():
        if run.rental == rental and run.closed_at is None:
            read(loop, job, rental, run.key)
            marks(loop, job, rental, run.key)


def read(loop: Loop, job_id: str, rental: str, key: str, *, complete: bool = False) -> None:
    """Take in what one run, committed on this rental, has reported since the last look. `complete`: its whole log is
    here, so that its last line needs no end.
    """
    job = loop.store.job(job_id)
    if not job.spec.get("sweep"):
        return
    spec, _ = loop.spec_of(job)
    run = run_of(loop, job_id, rental, key)
    if spec.sweep is None or spec.sweep.metric is None or run is None:
        return
    found = 0
    while run is not None:
        text, read_to = _new_lines(loop.home.log(job_id, run.task, run.n, stage_of(spec)), run.read_to, complete)
        if read_to == run.read_to:
            break
        rows = list(_rows(spec, text, _known(loop, run)))
        loop.store.reported(run, rows, read_to, loop.clock.utc())
        found += len(rows)
        run = run_of(loop, job_id, rental, key)
    if found and spec.sweep.stop_early is not None and spec.sweep.stop_early.method != "none":
        loop.judging.wants(job_id)


def run_of(loop: Loop, job: str, rental: str, key: str) -> Assignment | None:
    """The run that a machine calls so, if it was committed on this very rental."""
    task, _, n = key.rpartition(".")
    if not NUMBER.fullmatch(n):
        return None
    run = loop.store.assignment(job, task, int(n))
    return run if run is not None and run.rental == rental else None


def stage_of(spec: JobSpec) -> str:
    """The log that a sweep's metric is read from."""
    assert spec.sweep is not None
    assert spec.sweep.metric is not None
    return "run" if spec.sweep.metric.regex else "metrics"


def _new_lines(path: Path, mark: int, complete: bool) -> tuple[str, int]:
    """Whole lines after the mark, and where they end: half a line would be half a number. Only a line of a megabyte is
    cut, and the last one of a log that is `complete` needs no end.
    """
    try:
        with path.open("rb") as log:
            log.seek(mark)
            data = log.read(CHUNK)
    except FileNotFoundError:
        return "", mark
    whole = data.rfind(b"\n") + 1
    if (complete and len(data) < CHUNK) or (not whole and len(data) == CHUNK):
        whole = len(data)
    return data[:whole].decode("utf-8", "replace"), mark + whole


def _rows(spec: JobSpec, text: str, known: int) -> list[tuple[int, float]]:
    assert spec.sweep is not None
    assert spec.sweep.metric is not None
    metric = spec.sweep.metric
    if metric.regex is None:
        return list(from_json(text, metric.name, known))
    progress = re.compile(spec.progress.regex) if spec.progress is not None else None
    return list(from_log(text, re.compile(metric.regex), progress, known))


def _known(loop: Loop, run: Assignment) -> int:
    """Reports of the leg before the next one, for a program that names no steps: those of this run, and those that the
    earlier ones had made by the time of the checkpoint that it resumed from.
    """
    if not run.resume_hash:
        return run.reported
    row = next((c for c in loop.store.checkpoints(run.job) if c.task == run.task and c.hash == run.resume_hash), None)
    reports = loop.store.reports(run.job, run.task)
    if row is None:
        return run.reported
    if 0 <= row.step <= max((r.step for r in reports if r.n < run.n), default=0):
        return row.step + run.reported  # one report for each step that checkpoints are counted by
    return sum(r.n < run.n and r.at <= row.verified_at for r in reports) + run.reported


class Judging:
    """Which sweeps have new reports that were not yet compared. Comparing 500 legs takes a while, and a leg may report
    hundreds of times a second: so once a second at most, and less often where it takes long.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: set[str] = set()
        self._not_before: dict[str, float] = {}

    def wants(self, job: str) -> None:
        """A leg of this sweep has reported."""
        self._waiting.add(job)

    def due(self) -> None:
        """Compare the legs of every sweep whose time has come."""
        boot = self._loop.clock.boot()
        for job in [job for job in self._waiting if self._not_before.get(job, 0.0) <= boot]:
            self._waiting.discard(job)
            self._judge(job)
            now = self._loop.clock.boot()
            self._not_before[job] = now + max(EVERY_S, SHARE * (now - boot))

    def _judge(self, job_id: str) -> None:
        loop = self._loop
        job, now = loop.store.job(job_id), loop.clock.utc()
        sweep = loop.spec_of(job)[0].sweep
        if sweep is None or sweep.metric is None or sweep.stop_early is None or job.outcome is not None:
            return
        rule = Rule(sweep.stop_early.method, sweep.stop_early.min_reports, sweep.stop_early.eta)
        for leg, stop in stops(rule, sweep.metric.goal, legs_in(loop.store, job_id, now)).items():
            if loop.store.stop_task(job_id, leg, stop.why, now):
                loop.touch(job_id)
