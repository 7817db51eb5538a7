"""Rows to dataclasses and back. Money is text in the database, documents are JSON, enums are their values.

A dataclass's field is its column; a field without a column, or the reverse, is found by a test.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar

from orchestrator.model import (
    Assignment,
    Attempt,
    Cause,
    CheckpointRow,
    CreateOutcome,
    Exit,
    Job,
    Outcome,
    Reason,
    Rental,
    RentalPhase,
    SignalWhy,
    Task,
)
from providers.base import Offer

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What a verb asks of the controller; `args` is the verb's own document."""

    id: int
    verb: str
    args: Mapping[str, Any]
    at: float


@dataclass(frozen=True)
class Entry:
    """One line of the journal."""

    id: int
    at: float
    job: str
    rental: str
    kind: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AskedFor:
    """One create that was sent to a provider."""

    provider: str
    create_outcome: str | None
    reason: str | None
    reclaimed: bool
    ready_s: float | None  # until the machine was ready; None: it never was


@dataclass(frozen=True)
class Bill:
    """One line of the ledger: what a rental has cost so far for one kind of thing."""

    rental: str
    job: str
    provider: str
    account: str
    region: str
    kind: str
    amount: Decimal
    currency: str
    play: bool
    since: float
    until: float


@dataclass(frozen=True)
class Progress:
    """The newest known progress of one run; `step` and `total` in the job's own unit."""

    job: str
    task: str
    n: int
    at: float
    step: float | None = None
    total: float | None = None
    sample: Mapping[str, Any] = field(default_factory=dict)
    phase: str = ""
    alarms: Sequence[Mapping[str, Any]] = ()  # kind, text, cause, next, since: those that hold
    transfer: Mapping[str, Any] = field(default_factory=dict)  # what, bytes, total, rate, at; empty: nothing is copied


@dataclass(frozen=True)
class Preflight:
    """One look at a machine: before anything was sent to it (`run` is empty), or after a run's setup."""

    rental: str
    run: str
    job: str
    at: float
    seconds: float
    findings: tuple[Mapping[str, str], ...] = ()  # name, klass, measured, wanted, next; the worst first
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Notice:
    """A notification on its way; `over`: sent, or given up with `error`."""

    id: int
    job: str
    target: str
    topic: str
    at: float
    title: str
    body: str
    tries: int
    next_at: float
    sent_at: float | None
    over: bool
    error: str


@dataclass(frozen=True)
class PastRun:
    """One run of a job that was done; times are UTC epoch seconds, `gpu` is "<class>:<cards>"."""

    job: str
    rented_at: float
    ordered_at: float
    ended_at: float
    gpu: str


@dataclass(frozen=True)
class JobRef:
    """What the user meant by NAME, NAME.2, NAME@3, NAME/LEG or an id."""

    job: str
    name: str
    run: int
    attempt: int | None = None
    leg: str = ""


@dataclass(frozen=True)
class ReportRow:
    """One value of a sweep's metric: of a step of a task, heard from run `n` at `at` (UTC epoch seconds)."""

    job: str
    task: str
    step: int
    value: float  # NaN and infinities are kept
    n: int
    at: float


@dataclass(frozen=True)
class ItemRow:
    """One item of a batch that is over: `done` and home, or `failed` and why."""

    job: str
    task: str
    item: str
    state: str
    detail: str
    at: float


def money(amount: Decimal | None) -> str | None:
    """Plain digits, never an exponent."""
    return None if amount is None else format(amount, "f")


_ENCODER = json.JSONEncoder(default=str, ensure_ascii=False, separators=(",", ":"))  # made once: a market has thousands


def text(document: Any) -> str:
    """JSON; Decimals and other values become their `str`. Half a surrogate pair (a byte of a machine's file name that
    is no UTF-8) stays the escape that JSON has for it."""
    shown = _ENCODER.encode(document)
    return shown.encode("utf-8", "backslashreplace").decode()


def plain(value: Any) -> dict[str, Any]:
    """A dataclass as a document, shallow: nested dataclasses become documents as well, None is left out."""
    found = {name: getattr(value, name) for name in _names(type(value))}
    return {
        name: plain(one) if dataclasses.is_dataclass(one) else one for name, one in found.items() if one is not None
    }


_NAMES: dict[Any, tuple[str, ...]] = {}


def _names(cls: Any) -> tuple[str, ...]:
    if cls not in _NAMES:
        _NAMES[cls] = tuple(one.name for one in dataclasses.fields(cls))
    return _NAMES[cls]


def offer_text(offer: Offer) -> str:
    """An offer as stored in a rental and among the prices."""
    return text(plain(offer))


def offer_of(document: Mapping[str, Any]) -> Offer:
    """The reverse; keys of another version's offer are left aside."""
    known = {name: document[name] for name in _OFFER if name in document}
    money = {name: Decimal(known[name]) for name in _OFFER_MONEY if name in known}
    return Offer(**{**known, **money})


_OFFER = _names(Offer)
_OFFER_MONEY = ("hourly", "in_per_gb")


def exit_text(end: Exit) -> str:
    return text(plain(end))


def exit_of(stored: str) -> Exit:
    document = json.loads(stored)
    why = document.get("signalled")
    return Exit(**{**document, "signalled": SignalWhy(why) if why else None})


def cause_text(cause: Cause) -> str:
    return text(plain(cause))


def cause_of(stored: str) -> Cause:
    return Cause(**json.loads(stored))


def _maybe(convert: Callable[[Any], T]) -> Callable[[Any], T | None]:
    return lambda value: None if value is None else convert(value)


_CONVERT: dict[type[Any], dict[str, Callable[[Any], Any]]] = {
    Job: {
        "spec": json.loads,
        "data_manifests": json.loads,
        "price_cap": _maybe(Decimal),
        "max_cost": _maybe(Decimal),
        "cancel_now": bool,
        "fresh": bool,
        "outcome": _maybe(Outcome),
        "reason": _maybe(Reason),
    },
    Task: {
        "params": json.loads,
        "items": lambda value: tuple(json.loads(value)),
        "outcome": _maybe(Outcome),
        "reason": _maybe(Reason),
    },
    ItemRow: {},
    Attempt: {},
    Rental: {
        "offer": lambda value: offer_of(json.loads(value)),
        "phase": RentalPhase,
        "end_reason": Reason,
        "reserve": Decimal,
        "create_outcome": _maybe(CreateOutcome),
        "reason": _maybe(Reason),
    },
    Assignment: {
        "seal": lambda value: tuple(json.loads(value)),
        "exit": _maybe(exit_of),
        "cause": _maybe(cause_of),
        "environment": json.loads,
    },
    CheckpointRow: {},
    Request: {"args": json.loads},
    Entry: {"data": json.loads},
    PastRun: {},
    Notice: {"over": bool},
    Preflight: {"findings": lambda value: tuple(json.loads(value)), "facts": json.loads},
    Bill: {"amount": Decimal, "play": bool},
    AskedFor: {"reclaimed": bool},
    Progress: {"sample": json.loads, "transfer": json.loads, "alarms": lambda value: tuple(json.loads(value))},
}
#: Asked once: a listing of 1,000 jobs builds thousands of rows.
_FIELDS: dict[type[Any], tuple[str, ...]] = {cls: _names(cls) for cls in _CONVERT}


def build(cls: type[T], row: Any) -> T:
    """A row as `cls`; columns that are only the store's own are left aside. Equal rows give the same frozen value."""
    key: Any = cls
    found: T = _built(key, row)
    return found


@functools.lru_cache(maxsize=4096)  # a turn of the loop reads the same few rows again; parsing them was half its time
def _built(cls: Any, row: Any) -> Any:
    convert = _CONVERT[cls]
    values = {name: row[name] for name in _FIELDS[cls]}
    for name, one in convert.items():
        values[name] = one(values[name])
    return cls(**values)


def build_all(cls: type[T], rows: Iterable[Any]) -> tuple[T, ...]:
    """All rows as `cls`, in order."""
    return tuple(build(cls, row) for row in rows)


def in_currency(rows: Iterable[tuple[Decimal, str]], currency: str, rates: Mapping[str, Decimal]) -> Decimal:
    """The sum in `currency`; `rates` says what one unit of another currency is worth in it.

    A missing rate is a ValueError: money that cannot be converted must not count as nothing.
    """
    total = Decimal(0)
    for amount, of in rows:
        if of == currency or not amount:
            total += amount
        elif of in rates:
            total += amount * rates[of]
        else:
            raise ValueError(f"no rate from {of} to {currency}; add one under `rates` in the config, with its date")
    return total
