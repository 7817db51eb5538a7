"""What worker threads tell the loop. They never touch the database: they put one of these on the queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.actions import Effect
from orchestrator.model import Reason, Unknown
from orchestrator.points import Point
from providers.base import Listing


@dataclass(frozen=True)
class Listed:
    """One complete listing of one account and region, or why there is none. `began` is UTC."""

    provider: str
    account: str
    region: str
    began: float
    listing: Listing | Unknown


@dataclass(frozen=True)
class Reached:
    """A connection that proved the rental's nonce; `status` is the agent's first."""

    rental: str
    status: Mapping[str, Any]


@dataclass(frozen=True)
class StatusSeen:
    """The agent's state changed."""

    rental: str
    status: Mapping[str, Any]


@dataclass(frozen=True)
class Lost:
    """A connection broke, or an attempt failed. `tried_s`: awake seconds of the attempt and the wait before it."""

    rental: str
    trouble: str
    tried_s: float
    epoch_refused: bool = False


@dataclass(frozen=True)
class EventSeen:
    """One of the agent's events."""

    rental: str
    event: Mapping[str, Any]


@dataclass(frozen=True)
class ProgressSeen:
    """The job's own progress, read from its log."""

    rental: str
    run: str
    step: float
    total: float | None


@dataclass(frozen=True)
class Noted:
    """More of a log is stored that something is read from: what a leg reports, which items of a batch are done."""

    rental: str
    run: str
    stage: str


@dataclass(frozen=True)
class PointSeen:
    """How busy the machine is just now, with its run's progress."""

    rental: str
    point: Point


@dataclass(frozen=True)
class TransferSeen:
    """How far a copy to or from a run's machine is; an empty `what`: nothing is copied any more. `rate`: bytes/s."""

    rental: str
    run: str
    what: str
    bytes: int = 0
    total: int | None = None
    rate: float = 0.0


@dataclass(frozen=True)
class Receipt:
    """How one effect ended. `ambiguous`: it may or may not have happened. `fatal`: repeating cannot help."""

    action: Effect
    job: str
    status: Literal["done", "refused", "ambiguous", "failed"]
    at: float
    detail: str = ""
    fatal: Reason | None = None
    retry_after_s: float | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Poke:
    """Somebody appended a request, or wants the loop to look around."""


#: What is heard about one watched machine.
Word = Reached | StatusSeen | Lost | EventSeen | ProgressSeen | PointSeen | TransferSeen | Noted
Message = Listed | Word | Receipt | Poke
