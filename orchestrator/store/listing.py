"""The two reads that every verb needs: the lines of `ps`, and finding the job that the user means."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from orchestrator.model import Job
from orchestrator.store.connection import Connection
from orchestrator.store.errors import NoSuchJob
from orchestrator.store.rows import JobRef, build

_REF = re.compile(r"(?P<name>[^@/]+?)(?:\.(?P<run>[0-9]+))?(?:@(?P<attempt>[0-9]+))?(?:/(?P<leg>.+))?")


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of `ps`: a job, its newest rental, its newest run. Empty and None: there is none yet.

    `spent` and `reserved` are by currency, e.g. {"USD": Decimal("1.20")}; times are UTC epoch seconds.
    """

    id: str
    name: str
    run: int
    outcome: str | None
    reason: str | None
    detail: str
    exit_code: int | None
    created_at: float
    cancel_at: float | None
    wait_since: float | None
    held_until: float | None
    terminal_at: float | None
    attempts: int  # machines that were asked for
    made: int  # machines that were really made
    replaced_n: int  # runs up to this number belong to an earlier wish
    granted: int  # relaunches after failures that the spec allows
    lost: int  # machines that ended without being the job's own failure
    checkpointed: bool  # there is something durable to go on from
    open_rentals: int  # how many may still bill
    rental: str
    provider: str
    region: str
    gpu: str
    gpu_count: int
    spot: bool
    stand_in: bool
    hourly: Decimal | None
    currency: str
    phase: str
    end: float | None
    ready_at: float | None
    rental_reason: str | None
    interrupted_at: float | None
    quiesced_at: float | None
    task: str
    n: int | None
    ordered_at: float | None
    exited: bool
    signalled: str | None  # why we told the newest run to stop, if that ended it
    progress_at: float | None
    step: float | None
    total: float | None
    progress_phase: str
    alarms: tuple[dict[str, Any], ...]  # that hold for one of its live runs, the one last heard of
    tasks: int  # of a job of many; 0: a plain one
    tasks_over: int
    tasks_running: int  # at a machine now
    spent: dict[str, Decimal]
    reserved: dict[str, Decimal]
    play: bool


class Listing(Connection):
    """Lines for people."""

    def summaries(self, live_only: bool = False, limit: int = 1000, now: float = 0.0) -> list[Summary]:
        """Newest job first. A constant number of queries, whatever the number of jobs."""
        spent: dict[str, dict[str, Decimal]] = {}
        play: set[str] = set()
        for row in self._rows("spent_by_job"):
            _add(spent, row["job"], row["currency"], row["amount"])
            if row["play"]:
                play.add(row["job"])
        reserved: dict[str, dict[str, Decimal]] = {}
        still_open: dict[str, int] = {}
        for row in self._rows("reserved_of_all", now=now):
            _add(reserved, row["job"], row["currency"], row["reserve"])
            still_open[row["job"]] = still_open.get(row["job"], 0) + row["open"]
        return [
            _summary(row, spent.get(row["id"], {}), reserved.get(row["id"], {}), row["id"] in play,
                     still_open.get(row["id"], 0))
            for row in self._rows("summaries", live_only=live_only, limit=limit)
        ]  # fmt: skip

    def find(self, ref: str) -> JobRef:
        """The job meant by NAME (its newest run), NAME.2 (a run), NAME@3 (an attempt), NAME/LEG, or an id.

        Raises `NoSuchJob` with what there is: the nearest names, the runs, the attempts or the legs.
        """
        row = self._one("job_by_id", id=ref)
        if row is not None:
            return JobRef(row["id"], row["name"], row["run"])
        match = _REF.fullmatch(ref.strip())
        if match is None:
            raise NoSuchJob(f"{ref!r} is not a job: write NAME, NAME.2 (a run), NAME@3 (an attempt) or NAME/LEG")
        name, run = match["name"], match["run"]
        row = self._one("newest_run", name=f"{name}.{run}" if run else name)  # the whole word first
        if row is None and run:
            row = self._one("run_of_name", name=name, run=int(run))
        row = row or self._one("job_by_id", id=f"{name}.{run}" if run else name)
        if row is None:
            raise self._unknown(name, run)
        found = JobRef(row["id"], row["name"], row["run"], None, match["leg"] or "")
        return self._with_attempt(found, match["attempt"])

    def newest_of(self, name: str) -> Job | None:
        """The newest run of exactly this name; no search for what else could be meant."""
        row = self._one("newest_run", name=name)
        return None if row is None else build(Job, self._rows("job", id=row["id"])[0])

    def _unknown(self, name: str, run: str | None) -> NoSuchJob:
        runs = [row["run"] for row in self._rows("runs_of_name", name=name)]
        if runs:
            return NoSuchJob(f"{name} has no run {run}", tuple(f"{name}.{one}" for one in runs[-3:]))
        import difflib  # only for a message: it costs every other command its import

        names = [row["name"] for row in self._rows("job_names")]
        return NoSuchJob(f"there is no job {name!r}", tuple(difflib.get_close_matches(name, names, n=3)))

    def _with_attempt(self, found: JobRef, attempt: str | None) -> JobRef:
        if found.leg and found.leg != "best":
            rows = self._rows("tasks", job=found.job)
            legs = [row["id"] for row in rows]
            meant = _meant(found.leg, rows)
            if meant is not None:
                found = replace(found, leg=meant)
            else:
                alike = _having(found.leg, rows)
                words = f"has {len(alike)} legs with {found.leg}" if alike else f"has no leg {found.leg!r}"
                raise NoSuchJob(f"{found.name} {words}", tuple(f"{found.name}/{leg}" for leg in (alike or legs)[:3]))
        if attempt is None:
            return found
        tries = [row["n"] for row in self._rows("attempts", job=found.job)]
        if int(attempt) not in tries:
            raise NoSuchJob(
                f"{found.name}.{found.run} has no attempt {attempt}", tuple(f"{found.name}@{n}" for n in tries[-3:])
            )
        return JobRef(found.job, found.name, found.run, int(attempt), found.leg)


def _meant(leg: str, rows: list[Any]) -> str | None:
    """The leg's id: by itself, by its first letters, or by its parameters (`lr=1e-4,batch=16`), also some of
    them where they tell it apart.
    """
    ids = [str(row["id"]) for row in rows]
    if leg in ids:
        return leg
    from jobspecs.sweep import label

    named = [row["id"] for row in rows if row["params"] != "{}" and label(json.loads(row["params"])) == leg]
    begun = [each for each in ids if each.startswith(leg)] if len(leg) > 2 else []
    found = named or begun or _having(leg, rows)
    return str(found[0]) if len(found) == 1 else None


def _having(leg: str, rows: list[Any]) -> list[str]:
    """The legs with all of these parameters (`lr=1e-4`), whatever their others are."""
    wanted = [part.partition("=") for part in leg.split(",")]
    if not all(equals for _, equals, _ in wanted):
        return []
    return [
        str(row["id"])
        for row in rows
        if all(json.loads(row["params"]).get(name) == value for name, _, value in wanted)
    ]  # fmt: skip


def _add(sums: dict[str, dict[str, Decimal]], job: str, currency: str, amount: str) -> None:
    of_job = sums.setdefault(job, {})
    of_job[currency] = of_job.get(currency, Decimal(0)) + Decimal(amount)


def _summary(
    row: Any, spent: dict[str, Decimal], reserved: dict[str, Decimal], play: bool, open_rentals: int
) -> Summary:
    offer = json.loads(row["offer"]) if row["offer"] else {}
    return Summary(
        id=row["id"],
        name=row["name"],
        run=row["run"],
        outcome=row["outcome"],
        reason=row["reason"],
        detail=row["detail"],
        exit_code=row["exit_code"],
        created_at=row["created_at"],
        cancel_at=row["cancel_at"],
        wait_since=row["wait_since"],
        held_until=row["held_until"],
        terminal_at=row["terminal_at"],
        attempts=row["attempts"],
        made=row["made"],
        replaced_n=row["replaced_n"],
        granted=int(row["granted"] or 0),
        lost=row["lost"],
        checkpointed=bool(row["checkpointed"]),
        open_rentals=open_rentals,
        rental=row["rental"] or "",
        provider=row["provider"] or "",
        region=row["region"] or "",
        gpu=offer.get("gpu", ""),
        gpu_count=offer.get("gpu_count", 0),
        spot=offer.get("spot", False),
        stand_in=offer.get("stand_in", False),
        hourly=Decimal(offer["hourly"]) if offer else None,
        currency=offer.get("currency", row["job_currency"]),
        phase=row["phase"] or "",
        end=row["end"],
        ready_at=row["ready_at"],
        rental_reason=row["rental_reason"],
        interrupted_at=row["interrupted_at"],
        quiesced_at=row["quiesced_at"],
        task=row["task"] or "",
        n=row["n"],
        ordered_at=row["ordered_at"],
        exited=row["exit"] is not None,
        signalled=row["signalled"],
        progress_at=row["progress_at"],
        step=row["step"],
        total=row["total"],
        progress_phase=row["progress_phase"] or "",
        alarms=tuple(json.loads(row["alarms"] or "[]")),
        tasks=row["tasks"],
        tasks_over=row["tasks_over"],
        tasks_running=row["tasks_running"],
        spent=spent,
        reserved=reserved,
        play=play,
    )
