"""What can be read from the books, as the dataclasses of `model`. A read never waits for a writer (WAL)."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from orchestrator.model import Assignment, Attempt, CheckpointRow, Job, Rental, Task
from orchestrator.store.connection import Connection
from orchestrator.store.errors import StoreError
from orchestrator.store.rows import (
    AskedFor,
    Bill,
    Entry,
    ItemRow,
    PastRun,
    Preflight,
    Progress,
    ReportRow,
    build,
    build_all,
    in_currency,
    offer_of,
)
from providers.base import Offer

FORGET_REST_S = 86_400.0  # a pool that refused a day ago says nothing about today
FORGET_MACHINE_S = 30 * 86_400.0  # a machine that was bad a month ago has been repaired, or is not offered any more
BENCHMARKS_MIN = 3  # fewer machines of a class have no usual speed
NO_RATES: Mapping[str, Decimal] = {}


class Reads(Connection):
    """Rows of one job, of all open rentals, money, prices and the journal."""

    def stored_epoch(self) -> int:
        """The epoch of the newest controller that opened these books; 0 for new ones."""
        row = self._one("get_meta", key="epoch")
        return int(row["value"]) if row else 0

    def deployment(self) -> str:
        """The deployment whose tag the machines of these books carry; empty for new books."""
        row = self._one("get_meta", key="deployment")
        return row["value"] if row else ""

    def milestones(self) -> int:
        """How much has ever happened: rentals opened and gone, jobs over. An older copy has fewer."""
        return int(self._rows("milestones")[0]["n"])

    def job(self, job: str) -> Job:
        """One job by its id; `StoreError` when there is none."""
        row = self._one("job", id=job)
        if row is None:
            raise StoreError(f"the books have no job {job}")
        return build(Job, row)

    def jobs(self, live_only: bool = False, limit: int = 1000) -> tuple[Job, ...]:
        """Newest first."""
        return build_all(Job, self._rows("jobs", live_only=live_only, limit=limit))

    def jobs_of_name(self, name: str, run: int, limit: int = 40) -> tuple[Job, ...]:
        """The jobs of a name up to this run, newest first."""
        return build_all(Job, self._rows("jobs_of_name", name=name, run=run, limit=limit))

    def active_jobs(self) -> tuple[Job, ...]:
        """All that are not terminal, oldest first."""
        return build_all(Job, self._rows("active_jobs"))

    def next_run(self, name: str) -> int:
        """The number that the next run of this name gets."""
        return int(self._rows("next_run", name=name)[0]["run"])

    def tasks(self, job: str) -> tuple[Task, ...]:
        return self._all(Task, "tasks", "tasks", job)

    def attempts(self, job: str) -> tuple[Attempt, ...]:
        return build_all(Attempt, self._rows("attempts", job=job))

    def rental(self, rental: str) -> Rental:
        """One rental by its id; `StoreError` when there is none."""
        row = self._one("rental", id=rental)
        if row is None:
            raise StoreError(f"the books have no rental {rental}")
        return build(Rental, row)

    def rentals(self, job: str) -> tuple[Rental, ...]:
        """All rentals of a job, in the order of its attempts."""
        return self._all(Rental, "rentals_of_job", "rentals", job)

    def open_rentals(self) -> tuple[Rental, ...]:
        """Everything that may still bill, of all jobs."""
        return build_all(Rental, self._rows("open_rentals"))

    def tombstones(self, now: float) -> tuple[Rental, ...]:
        """Gone rentals whose machine might still be born late."""
        return build_all(Rental, self._rows("tombstones", now=now))

    def assignments(self, job: str) -> tuple[Assignment, ...]:
        return self._all(Assignment, "assignments", "assignments", job)

    def assignment(self, job: str, task: str, n: int) -> Assignment | None:
        row = self._one("assignment", job=job, task=task, n=n)
        return None if row is None else build(Assignment, row)

    def checkpoints(self, job: str) -> tuple[CheckpointRow, ...]:
        """Durable ones that were not pruned, oldest first within a run."""
        return self._all(CheckpointRow, "checkpoints", "checkpoints", job)

    def reports(self, job: str, task: str = "") -> tuple[ReportRow, ...]:
        """Values of a sweep's metric, of one task or of all, by task and step."""
        return tuple(  # not by `build_all`: there are tens of thousands of them, and one value to convert
            ReportRow(r["job"], r["task"], r["step"], math.nan if r["value"] is None else r["value"], r["n"], r["at"])
            for r in self._rows("reports", job=job, task=task)
        )

    def items(self, job: str) -> tuple[ItemRow, ...]:
        """Items of a batch that are over."""
        return build_all(ItemRow, self._rows("items", job=job))

    def progress(self, job: str) -> tuple[Progress, ...]:
        return build_all(Progress, self._rows("progress", job=job))

    def preflights(self, job: str) -> tuple[Preflight, ...]:
        """What was found on the job's machines, oldest first."""
        return build_all(Preflight, self._rows("preflights", job=job))

    def benchmarks(self, gpu: str, count: int, but: str) -> dict[str, float]:
        """The median of what such cards measured, `tflops` and `allreduce_gbps`, from three machines on."""
        rows = self._rows("benchmarks", gpu=gpu, count=count, but=but)
        found = {}
        for key in ("tflops", "allreduce_gbps"):
            values = [float(row[key]) for row in rows if isinstance(row[key], (int, float))]
            if len(values) >= BENCHMARKS_MIN:
                found[key] = statistics.median(values)
        return found

    def spent(self, job: str, rates: Mapping[str, Decimal] = NO_RATES) -> Decimal:
        """What the job has cost so far, in its own currency; play money counts, since it is this job's budget."""
        rows = self._rows("spent_of_job", job=job)
        return in_currency(((Decimal(r["amount"]), r["currency"]) for r in rows), self._currency(job), rates)

    def spent_by_rental(self, job: str) -> dict[str, Decimal]:
        """Rental id -> what it has cost so far, in its offer's currency."""
        total: dict[str, Decimal] = {}
        for row in self._rows("spent_of_rentals", job=job):
            total[row["rental"]] = total.get(row["rental"], Decimal(0)) + Decimal(row["amount"])
        return total

    def reserved(self, job: str, now: float, rates: Mapping[str, Decimal] = NO_RATES) -> Decimal:
        """The worst case still to come of the job's rentals, in the job's currency."""
        rows = self._rows("reserved_of_job", job=job, now=now)
        return in_currency(((Decimal(r["reserve"]), r["currency"]) for r in rows), self._currency(job), rates)

    def _currency(self, job: str) -> str:
        return self.job(job).currency

    def committed_since(
        self,
        since: float,
        now: float,
        currency: str,
        rates: Mapping[str, Decimal] = NO_RATES,
        play_providers: frozenset[str] = frozenset({"local"}),
    ) -> Decimal:
        """Real money that counts against a limit: every bill that grew since then, and all that is reserved."""
        bills = ((Decimal(r["amount"]), r["currency"]) for r in self._rows("billed_since", since=since))
        rows = self._rows("reserved_of_all", now=now)
        kept = ((Decimal(r["reserve"]), r["currency"]) for r in rows if r["provider"] not in play_providers)
        return in_currency(bills, currency, rates) + in_currency(kept, currency, rates)

    def billed(self, rental: str, kind: str) -> tuple[Decimal, float] | None:
        """(amount, until) of one line of the ledger."""
        row = self._one("ledger_row", rental=rental, kind=kind)
        return (Decimal(row["amount"]), float(row["until"])) if row is not None else None

    def ledger(self, job: str = "", since: float = 0.0) -> tuple[Bill, ...]:
        """Bills of one job, or of all; those that ended before `since` are left out."""
        return build_all(Bill, self._rows("ledger", job=job, since=since))

    def journal(self, job: str = "", since_id: int = 0, limit: int = 1000) -> tuple[Entry, ...]:
        """Oldest first, after `since_id`; without it the newest `limit` lines. No job: all jobs."""
        if since_id:
            return build_all(Entry, self._rows("journal", job=job, since_id=since_id, limit=limit))
        return build_all(Entry, self._rows("newest_journal", job=job, limit=limit))

    def resting(self, now: float) -> dict[str, str]:
        """What rests now -> why; the keys are those of `placement`."""
        return {row["key"]: row["reason"] for row in self._rows("resting", now=now)}

    def rested(self, key: str, now: float) -> int:
        """How often this rested before, as far as that still says something."""
        kept = FORGET_MACHINE_S if key.startswith("machine:") else FORGET_REST_S
        row = self._one("rest_count", key=key, since=now - kept)
        return int(row["count"]) if row else 0

    def past_runs(self, name: str, limit: int = 100) -> tuple[PastRun, ...]:
        """The runs of done jobs of this name, newest job first."""
        return build_all(PastRun, self._rows("past_runs", name=name, limit=limit))

    def saves(self, name: str, limit: int = 50) -> tuple[Mapping[str, Any], ...]:
        """The newest `checkpoint` events of all jobs of this name."""
        return tuple(json.loads(row["data"]) for row in self._rows("saves", name=name, limit=limit))

    def spot_use(self, since: float, now: float) -> dict[str, tuple[int, float]]:
        """Provider -> (reclaims, hours) of its spot machines that were rented since then."""
        rows = self._rows("spot_use", since=since, now=now)
        return {row["provider"]: (int(row["reclaims"]), float(row["hours"])) for row in rows}

    def asked_of_providers(self, since: float) -> tuple[AskedFor, ...]:
        """One row for each create that was sent since then, and what became of it."""
        return build_all(AskedFor, self._rows("asked_of_providers", since=since))

    def prices(self, provider: str, ask: str) -> tuple[float, tuple[Offer, ...]] | None:
        """(when, offers) of the last answer to this question; None when it was never asked."""
        row = self._one("prices", provider=provider, ask=ask)
        if row is None:
            return None
        return float(row["at"]), tuple(offer_of(one) for one in json.loads(row["offers"]))
