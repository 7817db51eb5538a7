"""What every benchmark measures with: CPU seconds and memory of a process from /proc, and figures printed as one table.

CPU seconds and ratios are quoted rather than wall time where that is possible, since they hold on a busy computer too.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

NANOSECONDS = 1e9


@dataclass(frozen=True)
class Figure:
    """One measured thing; `limit` is the bar, in `unit`, for the value that `judged` names. No limit: just to know."""

    what: str
    values: tuple[float, ...]
    unit: str
    limit: float | None = None
    judged: Literal["median", "max", "p95"] = "median"

    @property
    def value(self) -> float:
        """What is held against the bar."""
        if self.judged == "median":
            return statistics.median(self.values)
        return max(self.values) if self.judged == "max" else percentile(self.values, 0.95)

    @property
    def holds(self) -> bool:
        return self.limit is None or self.value < self.limit

    @property
    def margin(self) -> str:
        """`< 5 s p95: yes`, empty without a bar."""
        if self.limit is None:
            return ""
        return f"{self.judged} < {self.limit:g}: {'yes' if self.holds else 'NO'}"


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least `share` of all do not pass."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * round(share * 100) // 100))
    return ordered[rank - 1]


def table(figures: Sequence[Figure]) -> str:
    """A Markdown table, also readable as it is."""
    head = ("figure", "n", "min", "median", "p95", "max", "unit", "bar")
    rows = [head, *map(_row, figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _row(figure: Figure) -> tuple[str, ...]:
    values = figure.values
    shown = (min(values), statistics.median(values), percentile(values, 0.95), max(values))
    return figure.what, str(len(values)), *(f"{value:.3g}" for value in shown), figure.unit, figure.margin


def show(figures: Sequence[Figure]) -> int:
    """Print the table with the computer's load; exit code 1 when a bar is missed."""
    print(f"\n{computer()}\n\n{table(figures)}", flush=True)
    return 0 if all(figure.holds for figure in figures) else 1


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def computer() -> str:
    """Processor, cores, Python and load, as a line for the page."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    python, now = sys.version.split()[0], time.strftime("%Y-%m-%d %H:%M")
    return f"{now}, {os.cpu_count()} x {model}, Python {python}, load {load}"


@dataclass(frozen=True)
class Used:
    """What a command used: its own and its children's CPU seconds, wall seconds, peak memory in MB, output.

    The kernel counts the memory of this process at the fork into the peak, so it is right only from a small process.
    """

    cpu: float
    wall: float
    peak_mb: float
    out: str


def run(command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Used:
    """Run a command to its end; raises with its words unless it exits 0."""
    began = time.monotonic()
    with subprocess.Popen(
        command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        out = process.stdout.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}\n{out}")
    return Used(used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024, out)


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process so far, in nanosecond steps; ended threads are counted by the ticks."""
    live = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            live += int((task / "schedstat").read_text().split()[0]) / NANOSECONDS
        except (FileNotFoundError, ProcessLookupError):
            continue
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return max(live, ticks)


def rss_mb(pid: int) -> float:
    """Resident memory in MB (10^6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ProcessLookupError(pid)


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))
