"""A sweep in real books, driven by hand through the store's own writes, for the tests of what looks at sweeps."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import cli_books as cb

from jobspecs.sweep import leg_id
from orchestrator import actions as act
from orchestrator.legs import LegState
from orchestrator.model import Assignment, Exit, Job, Outcome, Reason, Task
from orchestrator.search import Choice, Space, Uniform, Whole, random_legs
from orchestrator.store import Store
from providers.base import Instance, Ref

METRIC = {"name": "val_loss", "goal": "minimize", "regex": "val_loss=([0-9.eE+-]+)"}
ENDS = {
    LegState.DONE: (Outcome.DONE, Reason.DONE),
    LegState.STOPPED: (Outcome.DONE, Reason.STOPPED_EARLY),
    LegState.FAILED: (Outcome.FAILED, Reason.FAILED),
    LegState.CANCELLED: (Outcome.CANCELLED, Reason.BUDGET),
}


@dataclass(frozen=True)
class LegRow:
    """What one leg is to look like: it reported `values` at steps 10, 20, ... and took `seconds` of the machine."""

    params: Mapping[str, str]
    values: Sequence[float] = ()
    state: LegState = LegState.DONE
    seconds: float = 100.0
    reason: Reason | None = None


def make(
    store: Store,
    legs: Iterable[LegRow],
    name: str = "tune",
    paid: str = "1",
    play: bool = False,
    machines: int = 1,
    began: float = 1_000_000.0,
    **sweep: Any,
) -> Job:
    """A sweep whose legs ran one after the other on so many machines, each of which cost `paid`."""
    rows = list(legs)
    document = {"metric": METRIC, "budget": "60 USD", **sweep}
    spec = {"name": name, "gpu": "RTX-4090", "run": "python train.py", "sweep": document}
    job = Job(
        id=f"{name}.1-abcd", name=name, run=1, spec=spec, spec_hash="h", snapshot="s" * 64, base_dir="/base",
        created_at=began,
    )  # fmt: skip
    legs_of = [(leg_id(row.params), row) for row in rows]
    store.add_job(job, [Task(job.id, each, row.params, seq=n) for n, (each, row) in enumerate(legs_of, 1)])
    now = began
    for number in range(machines):
        own = [(each, row) for each, row in legs_of[number::machines] if row.state is not LegState.WAITING]
        now = began
        rental = rent(store, job, number, now)
        for each, row in own:
            now = go(store, job, rental, each, row, now)
        store.bill(rental, "instance", Decimal(paid), now, play=play)
        if not any(row.state is LegState.RUNNING for _, row in own):
            over = (act.Release(rental, Reason.DONE), act.StoreQuiesced(rental), act.StoreGone(rental))
            store.apply(job.id, over, now)
    if all(row.state in ENDS for row in rows):
        store.apply(job.id, [act.SetOutcome(Outcome.DONE, Reason.DONE, "", 0), act.FinishJob()], now)
    return store.job(job.id)


def rent(store: Store, job: Job, worker: int, now: float) -> str:
    opened = store.apply(
        job.id,
        [act.OpenRental(cb.offer("vast", "0.50"), now + 3600, Reason.TTL, Decimal(1), worker)],
        now,
        nonce=lambda: "n" * 32,
    ).opened
    rental = opened[0].id
    store.create_sent(rental, now)
    made = Instance(Ref("vast", "a", "host", f"i-{rental}"), "running", None)
    store.apply(job.id, [act.RecordInstance(rental, made), act.StoreReady(rental)], now)
    return rental


def go(store: Store, job: Job, rental: str, leg: str, row: LegRow, now: float) -> float:
    """One leg on one machine; returns when it was over."""
    store.apply(job.id, [act.CommitAssignment(leg, 1, rental, (), "", "", None)], now)
    store.ordered(job.id, leg, 1, now)
    if row.values:
        run = Assignment(job.id, leg, 1, rental, (), "", "", None, now)
        store.reported(run, [(10 * n, value) for n, value in enumerate(row.values, 1)], 1, now + row.seconds / 2)
    if row.state is LegState.RUNNING:
        return now + row.seconds
    outcome, reason = ENDS[row.state]
    rc = 1 if row.state is LegState.FAILED else 0
    ended = now + row.seconds
    writes = [
        act.StoreExit(leg, 1, Exit("run", rc, ended)),
        act.SetTaskOutcome(leg, outcome, row.reason or reason, "", rc),
    ]
    store.apply(job.id, writes, ended)
    store.closed(job.id, leg, 1, ended)
    return ended


SPACE: Space = {
    "lr": Uniform(1e-5, 1e-2, log=True), "batch": Choice(("16", "32", "64")), "layers": Whole(2, 8),
    "config": Choice(("configs/base.yaml", "configs/wide.yaml")),
}  # fmt: skip
PARAMETERS = {
    "lr": {"log_uniform": [1e-5, 1e-2]}, "batch": {"values": ["16", "32", "64"]}, "layers": {"int": [2, 8]},
    "config": {"files": "configs/*.yaml"},
}  # fmt: skip


def drawn(count: int, reports: int = 40, seed: int = 1) -> list[LegRow]:
    """Legs as of a real sweep: most done, some stopped early, some failed; the last go on or wait, one diverged."""
    chance = random.Random(seed)
    rows = []
    for number, params in enumerate(random_legs(SPACE, seed, count)):
        floor = 0.1 + 0.3 * chance.random()
        values = [floor + (1 - floor) * (t + 1) ** -0.7 + 0.01 * chance.gauss(0, 1) for t in range(1, reports + 1)]
        state = chance.choices((LegState.DONE, LegState.STOPPED, LegState.FAILED), (8, 6, 1))[0]
        if number >= count - 2 and count > 4:
            state = LegState.WAITING if number == count - 1 else LegState.RUNNING
        cut = {LegState.STOPPED: reports // 4, LegState.FAILED: reports // 5, LegState.WAITING: 0}.get(state, reports)
        if number == 3 and count > 4:  # a leg that diverged
            state, cut, values = LegState.DONE, reports, [*values[:-2], 1e9, float("nan")]
        rows.append(LegRow(params, values[:cut], state, 60.0 + 5 * cut + chance.random() * 60))
    return rows
