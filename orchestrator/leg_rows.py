"""The legs of a job as its books have them, for what the loop decides about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.leg_books import Books, legs_of
from orchestrator.legs import Leg

if TYPE_CHECKING:
    from orchestrator.store import Store


def legs_in(store: Store, job: str, now: float) -> tuple[Leg, ...]:
    """Every leg with its reports; money is left aside."""
    rows = Books(store.tasks(job), store.assignments(job), store.rentals(job), (), store.reports(job), now)
    return tuple(legs_of(rows))
