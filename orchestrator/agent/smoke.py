"""The short trial before the expensive part: what it used, how fast it was, and what the whole run would take.

Rules
- Measured while it runs: steps by the job's own regular expression, with the time at which each was printed; memory of
  the cards every SMOKE_POLL_S. The first step seen starts the clock, so that loading and compiling do not count.
- A run that cannot end in its time or money is stopped here, with a margin for a slow trial; all else is a warning.
- A trial that showed no steps says what it would need, and stops nothing.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any

from orchestrator.agent.afterlook import finding_of
from orchestrator.agent.ends import uptime
from orchestrator.agent.machine import gpu_query, gpu_rows, memory

SMOKE_POLL_S = 2.0
SMOKE_STEPS = 3  # after the first one: fewer say nothing about the whole
SMOKE_MARGIN = 1.25  # a trial is slower than the run: caches are cold, and its first steps compile
SMOKE_SHARE = 0.2  # how long a trial may take: a fifth of the time left, within these
SMOKE_MIN_S = 600.0
SMOKE_MAX_S = 3600.0
EXPECTED_MARGIN = 1.5
VRAM_NEAR = 90.0  # per cent
LINE_KEPT = 4096


class SmokeWatch:
    """Fed with the trial's output and ticks; `measured` says what was seen."""

    def __init__(self, plan: dict[str, Any], left_s: float) -> None:
        self.began = uptime()
        self.until = self.began + min(SMOKE_MAX_S, max(SMOKE_MIN_S, left_s * SMOKE_SHARE))
        regex = plan.get("regex")
        self.regex = re.compile(regex) if regex else None
        self.line = b""
        self.steps: list[tuple[float, float]] = []  # first and last: (boottime, step)
        self.seen = 0
        self.cards: dict[int, tuple[float, float]] = {}  # index -> (peak, total) in MiB
        self.ram = 0
        self.query: subprocess.Popen[bytes] | None = None
        self.due = 0.0
        self.told = False

    def feed(self, data: bytes) -> None:
        if self.regex is None:
            return
        *lines, self.line = re.split(rb"[\r\n]", self.line + data)
        self.line = self.line[-LINE_KEPT:]
        for line in lines:
            self.take(line[-LINE_KEPT:].decode("utf-8", "replace"))

    def take(self, line: str) -> None:
        assert self.regex is not None
        found = self.regex.search(line)
        try:
            step = float(found.group(1 if found.re.groups else 0)) if found else None
        except (TypeError, ValueError):
            step = None
        if step is not None and (not self.steps or step > self.steps[-1][1]):
            self.seen += 1
            self.steps = [*self.steps[:1], (uptime(), step)]

    def tick(self) -> None:
        """Ask the cards now and then; a tool that hangs is never waited for."""
        now = uptime()
        if self.query is None and now >= self.due:
            self.due = now + SMOKE_POLL_S
            self.ram = max(self.ram, memory()[0])
            argv = gpu_query()
            if argv is not None:
                null = subprocess.DEVNULL
                self.query = subprocess.Popen(argv, stdin=null, stdout=subprocess.PIPE, stderr=null)
        elif self.query is not None and self.query.poll() is not None:
            self.collect()
        elif self.query is not None and now > self.due + 10.0:
            self.query.kill()

    def collect(self) -> None:
        assert self.query is not None
        assert self.query.stdout is not None
        with self.query.stdout as pipe:
            rows = gpu_rows(pipe.read().decode("utf-8", "replace"))
        self.query = None
        for row in rows:
            used, total = row.get("mem_used"), row.get("mem_total")
            if used is not None and total:
                index = int(row["index"] or 0)
                self.cards[index] = (max(used, self.cards.get(index, (0.0, 0.0))[0]), total)

    def measured(self) -> dict[str, Any]:
        """`steps_per_s` is None where too little was seen; `vram`: [peak, total] MiB of each card."""
        if self.query is not None:
            self.query.kill()
            self.query.wait()
            self.collect()
        if self.line and self.regex is not None:
            self.take(self.line.decode("utf-8", "replace"))
        seconds = uptime() - self.began
        rate = None
        if len(self.steps) == 2 and self.steps[1][0] > self.steps[0][0]:
            rate = (self.steps[1][1] - self.steps[0][1]) / (self.steps[1][0] - self.steps[0][0])
        return {
            "seconds": round(seconds, 3),
            "steps_seen": self.seen,
            "steps_per_s": rate,
            "vram": [list(self.cards[index]) for index in sorted(self.cards)],
            "ram_peak": self.ram,
        }


def extrapolated(
    measured: dict[str, Any], plan: dict[str, Any], elapsed_s: float
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """What the whole run takes, and findings; pure. `elapsed_s`: since the order's figures were true."""
    found = vram_findings(measured)
    rate, total = measured.get("steps_per_s"), plan.get("total")
    if not rate or not total:
        need = (
            "progress.total" if rate else "more steps in the log" if plan.get("regex") else "progress: {regex, total}"
        )
        return {"unknown": "the whole run cannot be extrapolated without %s" % need}, found
    steps = max(0.0, total - (plan.get("resume_step") or 0))
    needed = steps / rate
    whole: dict[str, Any] = {"steps": steps, "needed_s": round(needed, 1)}
    price = plan.get("hourly")
    if price is not None:
        whole["cost"] = round(float(price) * needed / 3600, 4)
        whole["currency"] = plan.get("currency") or ""
    says = "at %s steps/s the %s steps take %s" % (figure(rate), f"{steps:,.0f}", hours(needed))
    sure = measured.get("steps_seen", 0) > SMOKE_STEPS
    for name, key, advice in (
        ("smoke-ttl", "ttl_left_s", "raise ttl above %s, or make it faster (a bigger batch, a faster card)"),
        (
            "smoke-budget",
            "budget_left_s",
            "the budget lasts for less: raise it, or take a cheaper or faster card (it needs %s)",
        ),
    ):
        left = plan.get(key)
        if left is None or needed <= left - elapsed_s:
            continue
        left = max(0.0, left - elapsed_s)
        klass = "config" if sure and needed > left * SMOKE_MARGIN else "warn"
        word = "ttl leaves" if name == "smoke-ttl" else "the budget lasts for"
        found.append(
            finding_of(name, klass, says, "%s %s" % (word, hours(left)), advice % hours(needed * 1.1 + elapsed_s))
        )
    expected = plan.get("expected_s")
    if expected and needed > expected * EXPECTED_MARGIN:
        found.append(
            finding_of("smoke-expected", "warn", says, "expected says %s" % hours(expected), "offers were ranked by it")
        )
    finish = plan.get("finish_left_s")
    if finish is not None and needed > finish - elapsed_s:
        found.append(
            finding_of("smoke-finish-by", "warn", says, "finish_by is in %s" % hours(max(0.0, finish - elapsed_s)))
        )
    return whole, found


def vram_findings(measured: dict[str, Any]) -> list[dict[str, str]]:
    for place, (peak, total) in enumerate(measured.get("vram") or []):
        if total and 100.0 * peak / total > VRAM_NEAR:
            says = "GPU %d: %.1f of %.1f GiB" % (place, peak / 1024, total / 1024)
            advice = "longer inputs will not fit: a smaller batch with accumulation, or checkpointing of activations"
            return [finding_of("vram", "warn", says, "below %.0f %%" % VRAM_NEAR, advice)]
    return []


def figure(value: float) -> str:
    return "%.3g" % value if value < 1000 else f"{value:,.0f}"


def hours(seconds: float) -> str:
    """`3.5 h`, `12 min`, `40 s`."""
    if seconds >= 3570:  # what would be 60 min
        return "%g h" % round(seconds / 3600, 1)
    return "%.0f min" % (seconds / 60) if seconds >= 120 else "%.0f s" % seconds
