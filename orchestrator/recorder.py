"""From a machine's stream to its series: each sample with what the log and the status said meanwhile.

Runs in the watcher's thread. Samples that the machine made while nobody listened come late and in a heap; they are put
where they belong by the machine's clock, corrected by how far it is from ours. Steps have no time of their own: the one
that was read last goes with the next live sample only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from orchestrator.points import NAN, STAGES, Point, number, point_of
from orchestrator.series import Series

LATE_S = 25.0  # an older sample tells of a time that we were not there
SKEW_S = 3.0  # a smaller difference of clocks is the way that the word took

log = structlog.get_logger()


class Recorder:
    """Writes one rental's series. `tell` gets each live point as well, for whoever looks at the present."""

    def __init__(self, path: Path, utc: Callable[[], float], tell: Callable[[Point], None]) -> None:
        self._series, self._utc, self._tell = Series(path), utc, tell
        self._skew = 0.0
        self._stage = 0.0
        self._run = ""
        self._step = ("", NAN)  # and the run that named it: its log may come before the word that it runs
        self._rate = ("", NAN)
        self._log = self._saved = 0.0
        self._broken = False

    def status(self, status: Mapping[str, Any]) -> None:
        """The agent's status: which stage runs, and what its clock shows."""
        now = number(status.get("now"))
        if now == now and "boottime" in status:
            skew = self._utc() - now
            self._skew = skew if abs(skew) > SKEW_S else 0.0
        runs = status.get("runs")
        live = [
            (key, STAGES[run["state"]])
            for key, run in (runs if isinstance(runs, dict) else {}).items()
            if isinstance(run, dict) and run.get("state") in STAGES
        ]
        self._run, self._stage = max(live, key=lambda each: each[1], default=("", 0.0))

    def logged(self, count: int) -> None:
        """So many bytes of a run's log came."""
        self._log += count

    def step(self, run: str, step: float) -> None:
        """A run named its step."""
        self._step = (run, step)

    def rate(self, run: str, rate: float) -> None:
        """A run named its own throughput."""
        self._rate = (run, rate)

    def _of_run(self, said: tuple[str, float]) -> float:
        return said[1] if said[0] == self._run else NAN

    def saved(self) -> None:
        """A checkpoint became complete."""
        self._saved += 1

    def sample(self, sample: Mapping[str, Any]) -> None:
        """Write a sample; what cannot be written (a full disk) is said once and costs the series only."""
        now, told = self._utc(), number(sample.get("at"))
        at = told + self._skew if told == told else now
        if at > now or at <= 0:
            at = now
        late = now - at > LATE_S
        progress = {"step": self._of_run(self._step), "rate": self._of_run(self._rate)}
        own = {} if late else {**progress, "log": self._log, "saved": self._saved}
        point = point_of(sample, at, **{"stage": self._stage, **own})
        if not late:
            self._log = self._saved = 0.0
            self._tell(point)
        try:
            self._series.add(point)
            self._broken = False
        except OSError as error:
            if not self._broken:
                log.warning("series", path=str(self._series.path), error=str(error))
            self._broken = True

    def close(self) -> None:
        """Release the file."""
        self._series.close()
