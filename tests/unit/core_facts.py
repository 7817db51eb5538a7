"""Builders of facts for tests of the pure core: a job in each stage of its life, with every value open to change."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from orchestrator.model import (
    AgentRun,
    Assignment,
    CheckpointRow,
    CreateOutcome,
    Exit,
    Facts,
    Job,
    Machine,
    Policy,
    Reason,
    Rental,
    RentalFacts,
    RentalPhase,
    Sight,
    SignalWhy,
    Task,
)
from providers.base import Ask, Caps, Endpoint, Instance, Offer, Ref, Tag

T0 = 1_800_000_000.0  # when the first rental was opened
HOUR = 3600.0

CAPS = Caps(
    dead_statuses=frozenset({"terminated", "interrupted"}),
    self_end="nothing",
    server_ttl=True,
    boot_hook="every_boot",
    spot=True,
    ready_within_s=600.0,
)
OFFER = Offer("prov", "acc", "r1", "m1-spot", True, Decimal("1.00"), "USD", gpu="RTX-4090", gpu_count=1, pool="m1")
DEMAND = replace(OFFER, key="m1", spot=False, hourly=Decimal("3.00"), pool="m1-od")
POLICY = Policy(
    ask=Ask(),
    spot="auto",
    providers=("prov",),
    price_cap=None,
    budget=None,
    ttl_s=12 * HOUR,
    grace_s=120.0,
    retry_max=0,
    retry_codes=frozenset(),
    resumable=True,
    checkpoints=True,
    wait_s=HOUR,
    hold_s=0.0,
)


def job(**changes: Any) -> Job:
    base = Job("j-1-aaaa", "j", 1, {}, "hash", "snap", "/spec", T0 - 5, first_rental_at=T0)
    return replace(base, **changes)


def rental(n: int = 1, phase: RentalPhase = RentalPhase.LIVE, **changes: Any) -> Rental:
    end = T0 + 12 * HOUR
    base = Rental(
        id=f"gj-abcdef-{n}", job="j-1-aaaa", attempt=n, offer=OFFER, phase=phase, end=end, wanted_end=end,
        end_reason=Reason.TTL, reserve=Decimal("12.2"), nonce="nonce", created_at=T0,
    )  # fmt: skip
    if phase is not RentalPhase.INTENT:
        base = replace(
            base,
            create_sent_at=T0,
            create_outcome=CreateOutcome.MADE,
            provider_id=f"i-{n}",
            ready_at=T0 + 30,
        )
    if phase is RentalPhase.RELEASING:
        base = replace(base, reason=Reason.DONE, releasing_at=T0 + 100)
    if phase is RentalPhase.GONE:
        base = replace(base, reason=Reason.INTERRUPTED, quiesced_at=T0 + 100, gone_at=T0 + 120)
    return replace(base, **changes)


def instance(n: int = 1, status: str = "running", **changes: Any) -> Instance:
    base = Instance(
        Ref("prov", "acc", "r1", f"i-{n}"), status, Tag("abcdef", f"gj-abcdef-{n}"), ready=status == "running",
        endpoint=Endpoint("127.0.0.1", 22, "u"), ends_at=T0 + 12 * HOUR,
    )  # fmt: skip
    return replace(base, **changes)


def machine(**changes: Any) -> Machine:
    base = Machine(connected=True, proven=True, end=T0 + 12 * HOUR, end_confirmed=True, supervisor=True)
    return replace(base, **changes)


def live(n: int = 1, *, row: Rental | None = None, **changes: Any) -> RentalFacts:
    """A machine that runs and answers."""
    found = instance(n)
    sight = Sight(instance=found, seen_at=T0 + 50, got=found, got_at=T0 + 50, others=())
    base = RentalFacts(row or rental(n), CAPS, sight, machine())
    return replace(base, **changes)


def assignment(n: int = 1, on: int = 1, **changes: Any) -> Assignment:
    base = Assignment(
        "j-1-aaaa", "t0", n, f"gj-abcdef-{on}", (), "", "", None, committed_at=T0 + 31, ordered_at=T0 + 40
    )
    return replace(base, **changes)


def ended(rc: int, why: SignalWhy | None = None, **changes: Any) -> Exit:
    return replace(Exit("run", rc, T0 + 500, why), **changes)


def run(state: str = "run", **changes: Any) -> AgentRun:
    return replace(AgentRun(state=state, stage="run"), **changes)  # type: ignore[arg-type]


def checkpoint(step: int, n: int = 1, **changes: Any) -> CheckpointRow:
    base = CheckpointRow("j-1-aaaa", "t0", n, f"step_{step}.pt", step, f"h{n}-{step}", 1000, "", T0 + step)
    return replace(base, **changes)


def facts(*rentals: RentalFacts, now: float = T0 + 600, **changes: Any) -> Facts:
    base = Facts(
        now=now, job=job(), tasks=(Task("j-1-aaaa", "t0"),), rentals=rentals, assignments=(), checkpoints=(),
        offers=(OFFER, DEMAND), offers_at=now - 1,
    )  # fmt: skip
    return replace(base, **changes)
