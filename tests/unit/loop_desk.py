"""The real loop over a real store, with everything that reaches the world played: effects are only recorded."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import core_facts as cf

from jobspecs.schema import from_document, spec_hash, to_document
from orchestrator import actions as act
from orchestrator.clock import FakeClock
from orchestrator.execute import Context
from orchestrator.home import Home
from orchestrator.loop import Loop
from orchestrator.messages import Message, Receipt
from orchestrator.model import Job, Rental, RentalPhase
from providers.base import Caps, Instance, Offer, Tag
from providers.errors import ProviderError


class Accounts:
    """One provider, `prov`, with two offers; listings are handed in by the test."""

    configured = ("prov",)

    def __init__(self, *_: Any) -> None:
        self.listed_now = 0
        self.broken: ProviderError | None = None

    def caps(self, _: str) -> Caps:
        if self.broken is not None:
            raise self.broken
        return cf.CAPS

    def list_now(self) -> None:
        self.listed_now += 1

    def list_due(self, *_: Any, **__: Any) -> None: ...
    def list_everywhere(self) -> None: ...

    def next_due(self) -> float:
        return 0.0

    def stop(self) -> None: ...


class Machines:
    """No connection to anything; every rental is watched."""

    def __init__(self, *_: Any) -> None:
        self.watched: dict[str, str] = {}
        self.forgotten: list[str] = []

    def watch(self, rental: Any, job: Job, _spec: Any, _runs: Any = ()) -> None:
        self.watched[rental.rental.id] = job.id

    def unwatch(self, rental: str) -> None:
        self.watched.pop(rental, None)

    def job_of(self, rental: str) -> str | None:
        return self.watched.get(rental)

    def forget(self, job: Job, *_: Any) -> None:
        self.forgotten.append(job.id)

    def explain(self, _job: Job, write: act.SetOutcome, *_: Any) -> act.SetOutcome:
        return write

    def inherit(self, _old: Job, _new: Job, rows: Any) -> list[Any]:
        return [row for row in rows if row.job]

    def stop(self) -> None: ...


class Recorder:
    """Takes effects and does nothing."""

    def __init__(self, *_: Any) -> None:
        self.taken: list[tuple[act.Effect, Context]] = []

    def submit(self, effect: act.Effect, context: Context) -> None:
        self.taken.append((effect, context))

    def stop(self) -> None: ...


class Desk:
    """`with Desk(tmp_path) as desk:` a loop that turns only when told to."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(state=folder / "state", config=folder / "config").make()
        self.clock = FakeClock(utc=cf.T0)
        self.loop = Loop(
            self.home,
            queue.SimpleQueue(),
            clock=self.clock,
            accounts=Accounts,  # type: ignore[arg-type]
            machines=Machines,  # type: ignore[arg-type]
            executor=Recorder,  # type: ignore[arg-type]
        )
        self.store = self.loop.store
        self.accounts: Accounts = self.loop.accounts  # type: ignore[assignment]
        self.machines: Machines = self.loop.machines  # type: ignore[assignment]
        self.executor: Recorder = self.loop.executor  # type: ignore[assignment]

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.store.close()

    # --- asking as a verb does ---

    def wish(self, name: str = "train", **changes: Any) -> dict[str, Any]:
        """What `apply` hands over for a small spec."""
        spec = from_document({"name": name, "gpu": "RTX-4090", "run": "python train.py", **changes.pop("spec", {})})
        return {
            "name": name, "spec": to_document(spec), "spec_hash": spec_hash(spec), "snapshot": "s1",
            "base_dir": "/here", "price_cap": "5", "currency": "USD", "results_dir": "/here/results", **changes,
        }  # fmt: skip

    def ask(self, verb: str, **args: Any) -> Mapping[str, Any] | None:
        """Append the request, turn once, and take the answer."""
        number = self.store.ask(verb, args)
        self.turn()
        return self.store.answer_of(number)

    def apply(self, *, mode: str = "new", **changes: Any) -> Mapping[str, Any] | None:
        flags = {key: changes.pop(key) for key in ("replace_name", "fresh", "max_cost") if key in changes}
        return self.ask("apply", job=self.wish(**changes), mode=mode, **flags)

    def job(self, name: str = "train") -> Job:
        return self.store.job(self.store.find(name).job)

    def write(self, job: str, *writes: act.Write) -> None:
        """Something was decided about the job; the loop goes on from there."""
        self.store.apply(job, writes, self.clock.utc())
        self.loop.touch(job)
        self.turn(after=1.0)

    # --- what the world answers ---

    def turn(self, *messages: Message, after: float = 0.0) -> None:
        self.clock.advance(after)
        self.loop.turn(list(messages))

    def effects(self, kind: type | None = None) -> list[Any]:
        """What was sent to the world so far."""
        return [effect for effect, _ in self.executor.taken if kind is None or isinstance(effect, kind)]

    def receipt(self, effect: act.Effect, status: Any = "done", **more: Any) -> None:
        """The world answers the effect."""
        job = next(context.job.id for taken, context in reversed(self.executor.taken) if taken == effect)
        self.turn(Receipt(effect, job, status, self.clock.utc(), **more))

    def rent(self, offer: Offer = cf.DEMAND, **changes: Any) -> Rental:
        """Apply a job and answer until its machine, on demand, is live; the rental."""
        answer = self.apply(**changes)
        assert answer is not None
        assert answer["ok"], answer
        [offers] = self.effects(act.AskOffers)[-1:]
        self.receipt(offers, data={"offers": (cf.OFFER, offer), "failed": {}})
        [create] = self.effects(act.SendCreate)[-1:]
        self.receipt(create, data={"instance": self.instance(create.rental)})
        rental = self.store.rental(create.rental)
        assert rental.phase is RentalPhase.LIVE
        return rental

    def instance(self, rental: str, status: str = "running") -> Instance:
        return replace(cf.instance(1, status), tag=Tag(self.loop.books.deployment, rental))
