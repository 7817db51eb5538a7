"""What must be known again when the books are lost, kept as small files beside the work: one a job, one a rental.

    jobs/JOB/job.json          the wish: spec, snapshot, folders; rewritten when the wish changes
    rentals/ID/rental.json     the offer, the attempt and the nonce, written before the create leaves; gone with the key

Rules
- Written for `adopt` only, which reads them after the database was lost or put back; nothing else trusts them.
- No secret is in them: the nonce proves a machine to us and admits nobody to it.
- A record is written before the books commit what it says: one too many is harmless, one too few loses a job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from orchestrator.home import Home
from orchestrator.model import Job, Rental
from orchestrator.ssh_files import write_private
from orchestrator.store.rows import offer_of, plain, text
from providers.base import Offer

JOB_FILE, RENTAL_FILE = "job.json", "rental.json"
#: Fields of a job that are its wish; the others are what became of it, which only the books know.
WISH = (
    "id", "name", "run", "spec", "spec_hash", "snapshot", "base_dir", "created_at", "owner", "price_cap", "currency",
    "data_manifests", "resumed_from", "results_dir", "max_cost", "replaced_n", "fresh",
)  # fmt: skip


@dataclass(frozen=True)
class RentalRecord:
    """A rental as it was when its create was about to leave."""

    id: str
    job: str
    attempt: int
    offer: Offer
    nonce: str
    created_at: float


def keep_job(home: Home, job: Job) -> None:
    """Write or replace the wish of a job."""
    document = {name: value for name, value in plain(job).items() if name in WISH}
    write_private(home.job(job.id) / JOB_FILE, text(document).encode() + b"\n")


def job_record(home: Home, job: str) -> Job | None:
    """The wish of a job; None where none was kept, or it cannot be read."""
    found = _read(home.job(job) / JOB_FILE) if _plain_name(job) else None
    if found is None or found.get("id") != job:
        return None
    try:
        known: dict[str, Any] = {name: found[name] for name in WISH if name in found}
        for name in ("price_cap", "max_cost"):
            if name in known:
                known[name] = Decimal(str(known[name]))
        return Job(**known)
    except (TypeError, ValueError, ArithmeticError):
        return None


def keep_rental(home: Home, rental: Rental) -> None:
    """Write what makes a machine ours again."""
    document = {
        "id": rental.id, "job": rental.job, "attempt": rental.attempt, "offer": plain(rental.offer),
        "nonce": rental.nonce, "created_at": rental.created_at,
    }  # fmt: skip
    write_private(home.rental(rental.id) / RENTAL_FILE, text(document).encode() + b"\n")


def rental_record(home: Home, rental: str) -> RentalRecord | None:
    """The record of a rental; None where none was kept, or it cannot be read."""
    found = _read(home.rental(rental) / RENTAL_FILE) if _plain_name(rental) else None
    if found is None or found.get("id") != rental:
        return None
    try:
        return RentalRecord(
            rental, str(found["job"]), int(found["attempt"]), offer_of(found["offer"]), str(found["nonce"]),
            float(found["created_at"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None


def _plain_name(name: str) -> bool:
    """A tag comes from a provider: it must not lead out of the folder."""
    return bool(name) and "/" not in name and not name.startswith(".")


def _read(path: Any) -> Mapping[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
