"""What a job of many tasks may have: how many machines at one time, and what each of its tasks may take."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal


@dataclass(frozen=True)
class Crew:
    """How a job of many tasks is worked off; a plain job has none. Made by `policy.policy_of`."""

    kind: Literal["sweep", "batch", "replicas"]
    parallel: int  # machines at one time
    leg_ttl_s: float | None = None  # a leg ends after so many seconds of machines; None: the job's ttl alone binds
    leg_budget: Decimal | None = None  # and after so much money
    leg_s: float | None = None  # what a leg takes, setup aside, by the spec; None: what the first ones took
    trials: int = 0  # legs that are drawn one after the other, up to this many

    @property
    def all_must_succeed(self) -> bool:
        """Whether one bad task makes the job a failure: half a batch or class is not the whole, but a sweep has its
        winner as soon as one leg is done."""
        return self.kind != "sweep"
