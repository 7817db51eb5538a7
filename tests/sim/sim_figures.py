"""Sums over many runs: job-days, faults, crashes, and what every second of a machine was good for."""

from __future__ import annotations

from collections import Counter

from sim_marks import possible
from sim_swarm import Result


class Figures:
    """Add results, then ask for the table."""

    def __init__(self) -> None:
        self.runs = self.crashes = self.turns = self.refused = 0
        self.job_days = 0.0
        self.useful = self.redone = self.wasted = self.orphaned = 0.0
        self.finish: list[float] = []
        self.recovery: list[float] = []
        self.marks: Counter[tuple[str, str]] = Counter()
        self.phases: Counter[tuple[str, str, str]] = Counter()

    def add(self, result: Result) -> None:
        prices = result.prices
        self.runs += 1
        self.crashes += result.crashes
        self.turns += result.turns
        self.refused += result.refused
        self.job_days += result.job_days
        self.useful += prices.useful_s
        self.redone += prices.redone_s
        self.wasted += prices.wasted_s
        self.orphaned += prices.orphaned_s
        self.finish += prices.after_finish
        self.recovery += prices.recovery
        self.marks.update(result.marks)
        self.phases.update(result.phases)

    @property
    def faults(self) -> int:
        """Faults that the worlds really served."""
        return sum(self.marks.values())

    def missed(self) -> list[str]:
        """The possible marks that no run has reached, for people."""
        return sorted(" ".join(mark) for mark in set(possible()) - set(self.phases))

    def _reached(self) -> str:
        every = set(possible())
        return f"{len(every & set(self.phases))} of {len(every)}"

    def text(self, seconds: float) -> str:
        worked = self.useful + self.redone
        rows = [
            ("runs", f"{self.runs}"),
            ("job-days", f"{self.job_days:.1f} ({self.job_days / max(seconds, 1e-9):.2f} per second)"),
            ("faults injected", f"{self.faults} of {len(self.marks)} kind x shape"),
            ("calls refused by outages, beside these", f"{self.refused}"),
            ("fault x shape x phase reached", self._reached()),
            ("crashes of the controller", f"{self.crashes}"),
            ("orphaned seconds per 1,000 job-days", f"{1000 * self.orphaned / max(self.job_days, 1e-9):.0f}"),
            ("work done twice", f"{100 * self.redone / max(worked, 1e-9):.2f} %"),
            ("machine time without work", f"{100 * self.wasted / max(worked + self.wasted, 1e-9):.2f} %"),
            ("billed after the program's end, p50 / p99", quantiles(self.finish)),
            ("from a loss to the next start, p50 / p99", quantiles(self.recovery)),
        ]
        return "\n".join(f"{name:45} {value}" for name, value in rows)


def quantiles(values: list[float]) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.0f} s / {ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]:.0f} s"
