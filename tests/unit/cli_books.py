"""Books with jobs in every state, for the tests of verbs: made through the real store, read through the real CLI."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestrator import actions
from orchestrator.home import Home
from orchestrator.model import Exit, Job, Outcome, Reason, Rental, SignalWhy, Task
from orchestrator.store import Store
from providers.base import Instance, Offer, Ref

EPOCH = 1000


def home_at(folder: Path) -> Home:
    """A home below `folder`, as GPUJOB_HOME would give it."""
    return Home.from_env({"GPUJOB_HOME": str(folder), "HOME": str(folder)}).make()


def writer(home: Home) -> Store:
    """The controller's door."""
    return Store.open_writer(home, EPOCH, deployment="d3p1oy", network=lambda _: None)


def offer(provider: str = "local", hourly: str = "0.34", spot: bool = True, **more: Any) -> Offer:
    """One offer of a stand-in RTX-4090."""
    values: dict[str, Any] = {"gpu": "RTX-4090", "gpu_count": 1, "vram_gb": 24, "stand_in": True}
    return Offer(
        provider=provider, account="a", region="host", key="k", spot=spot, hourly=Decimal(hourly), currency="USD",
        **(values | more),
    )  # fmt: skip


class Books:
    """A job driven by hand through the store's own writes."""

    def __init__(self, store: Store, name: str = "digits", run: int = 1, now: float = 1000.0, **spec: Any) -> None:
        self.store = store
        self.id = f"{name}.{run}-abcd"
        self.now = now
        document = {"name": name, "gpu": "RTX-4090", "run": "python train.py", "ttl": "12h", "retry": {"max": 0}}
        self.store.add_job(
            Job(
                id=self.id, name=name, run=run, spec={**document, **spec}, spec_hash="h", snapshot="s" * 64,
                base_dir="/base", created_at=now, results_dir="/base/gpujob-results/digits",
            ),
            [Task(self.id, "t0")],
        )  # fmt: skip

    def apply(self, *writes: actions.Write) -> tuple[Rental, ...]:
        """Commit writes one second later."""
        self.now += 1
        return self.store.apply(self.id, writes, self.now, nonce=lambda: "n" * 32).opened

    def rent(self, ready: bool = True, hourly: str = "0.34", spot: bool = True, provider: str = "local") -> str:
        """A machine, live and ready unless told otherwise; its id."""
        end = self.now + 3600
        made = self.apply(actions.OpenRental(offer(provider, hourly, spot), end, Reason.TTL, Decimal("0.40")))
        rental = made[0].id
        self.store.create_sent(rental, self.now)
        ref = Ref(provider, "a", "host", f"i-{rental}")
        self.apply(actions.RecordInstance(rental, Instance(ref, "running", None)))
        if ready:
            self.apply(actions.StoreReady(rental))
        return rental

    def run(self, rental: str, n: int = 1, stage: str = "run", ordered: bool = True, resume: str = "") -> None:
        """Commit and order run `n` on a machine, seen in `stage`."""
        step = int(resume.split("_")[-1].split(".")[0]) if resume else None
        self.apply(actions.CommitAssignment("t0", n, rental, (), "", resume, step))
        if ordered:
            self.store.ordered(self.id, "t0", n, self.now)
            self.store.progress_seen(self.id, "t0", n, self.now, step=300.0, total=1000.0, sample=SAMPLE, phase=stage)

    def exit(self, n: int = 1, rc: int = 0, stage: str = "run", signalled: SignalWhy | None = None) -> None:
        """The run ended, by itself unless `signalled`."""
        self.apply(actions.StoreExit("t0", n, Exit(stage, rc, self.now, signalled)))

    def lose(self, rental: str, reason: Reason = Reason.INTERRUPTED, quiesced: bool = True, gone: bool = True) -> None:
        """The machine was taken, and is gone."""
        self.apply(actions.Release(rental, reason, "reclaimed", interrupted=reason is Reason.INTERRUPTED))
        if quiesced:
            self.apply(actions.StoreQuiesced(rental))
        if gone:
            self.apply(actions.StoreGone(rental))

    def pay(self, rental: str, amount: str, play: bool = True) -> None:
        """A bill so far."""
        self.store.bill(rental, "instance", Decimal(amount), self.now, play=play)

    def decide(self, outcome: Outcome, reason: Reason, detail: str = "", rc: int | None = None) -> None:
        """Set the outcome."""
        self.apply(actions.SetOutcome(outcome, reason, detail, rc))

    def decide_done(self, rental: str) -> None:
        """The work is done and the machine is gone."""
        self.decide(Outcome.DONE, Reason.DONE)
        self.finish(rental)

    def finish(self, rental: str, reason: Reason = Reason.DONE) -> None:
        """Release the machine and close the books of this job."""
        self.lose(rental, reason)
        self.apply(actions.FinishJob())


SAMPLE: Mapping[str, Any] = {
    "gpus": [{"index": 0, "util": 93, "mem_used": 8 * 10**9, "mem_total": 24 * 10**9}],
    "cpu": 40,
}
