"""Small rows for the tests of the store: one job, one offer, a machine that was made."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestrator import actions
from orchestrator.home import Home
from orchestrator.model import CreateOutcome, Job, Reason, Rental, Task
from orchestrator.store import Store
from providers.base import Instance, Offer, Ref

OFFER = Offer(
    "acme", "main", "eu-1", "m1", True, Decimal("1.50"), "USD", gpu="RTX-4090", gpu_count=2, raw={"id": 7}
)  # fmt: skip


def home_in(folder: Path) -> Home:
    return Home(state=folder / "state", config=folder / "config")


def writer_in(folder: Path, epoch: int = 5, **options: Any) -> Store:
    return Store.open_writer(home_in(folder), epoch, **({"deployment": "abc123"} | options))


def job_row(name: str = "demo", run: int = 1, **changes: Any) -> Job:
    values: dict[str, Any] = {
        "id": f"{name}.{run}-ab12", "name": name, "run": run, "spec": {"name": name, "gpu": ["RTX-4090"]},
        "spec_hash": "h1", "snapshot": "s1", "base_dir": "/base", "created_at": 10.0, "price_cap": Decimal("2.25"),
    }  # fmt: skip
    return Job(**(values | changes))


def add(store: Store, name: str = "demo", run: int = 1, **changes: Any) -> str:
    """A job with its one task; its id."""
    row = job_row(name, run, **changes)
    store.add_job(row, [Task(row.id, "t0", {"lr": "1e-4"})])
    return row.id


def intent(end: float = 5000.0, reserve: str = "3", offer: Offer = OFFER) -> actions.OpenRental:
    return actions.OpenRental(offer, end, Reason.TTL, Decimal(reserve))


def instance(name: str = "i-1", machine: str = "host-9") -> Instance:
    return Instance(Ref("acme", "main", "eu-1", name), "running", None, machine_id=machine)


def rent(store: Store, job: str, now: float = 20.0, reserve: str = "3", made: bool = True) -> Rental:
    """A rental in `intent`, or `live` when `made`."""
    rental = store.apply(job, [intent(reserve=reserve)], now).opened[0].id
    if made:
        store.create_sent(rental, now + 1)
        store.create_result(rental, CreateOutcome.MADE, instance(f"i-{rental[-4:]}"), "", now + 2)
    return store.rental(rental)
