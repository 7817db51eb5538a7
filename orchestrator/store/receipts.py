"""What effects and observations report: each stored in a transaction of its own, or in the caller's.

A receipt can come late, twice, or after the row has moved on; then the first word stays and nothing is undone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from orchestrator.model import Assignment, Cause, CheckpointRow, CreateOutcome
from orchestrator.store.decisions import Decisions
from orchestrator.store.reads import FORGET_MACHINE_S, FORGET_REST_S
from orchestrator.store.rows import Preflight, cause_text, money, offer_text, plain, text
from orchestrator.transitions import IllegalStep
from providers.base import Instance, Offer


class Receipts(Decisions):
    """Creates, destroys, runs, checkpoints, bills, prices."""

    def create_sent(self, rental: str, now: float) -> None:
        """Must be committed before the create call leaves. `IllegalStep` for a second one (one create per rental,
        ever), and for a rental that has left `intent` meanwhile: nothing may be sent then.
        """
        with self.transaction():
            if not self._run("create_sent", id=rental, now=now):
                raise IllegalStep(f"{rental}: its create was sent before, or the rental is not wanted any more")

    def create_result(
        self, rental: str, outcome: CreateOutcome, instance: Instance | None, detail: str, now: float
    ) -> None:
        """The answer of the one create. MADE needs the instance; a rental already being released stays so."""
        if (outcome is CreateOutcome.MADE) is not (instance is not None):
            raise ValueError(f"{outcome} with instance {instance}")
        with self.transaction():
            old = self.rental(rental)
            if instance is not None:
                self._name_instance(old, instance.ref.id, instance.machine_id, made=True)
            elif old.provider_id is None and old.create_outcome is None:
                self._run("create_outcome", id=rental, outcome=outcome.value, detail=detail)
            said = f"{outcome}: {instance.ref.id if instance else detail}"
            self.add_journal(now, "create_result", said, job=old.job, rental=rental)

    def destroy_sent(self, rental: str, now: float) -> None:
        with self.transaction():
            self._run("destroy_sent", id=rental, now=now)

    def destroy_acked(self, rental: str, now: float) -> None:
        """The provider knew the machine and took the order; "missing" is no acknowledgement."""
        with self.transaction():
            if self._run("destroy_acked", id=rental, now=now):
                self.add_journal(now, "destroy_acked", "", job=self.rental(rental).job, rental=rental)

    def ordered(self, job: str, task: str, n: int, now: float) -> None:
        """The agent has taken the order to run (task, n)."""
        self._of_run("ordered", job, task, n, now)

    def closed(self, job: str, task: str, n: int, now: float, cause: Cause | None = None) -> None:
        """The agent says that every process of the run is dead and its key closed; `cause`: why it failed, if so."""
        self._of_run("closed", job, task, n, now, cause=None if cause is None else cause_text(cause))
        if cause is not None:
            self.add_journal(now, "diagnosis", f"{task}.{n} [{cause.klass}] {cause.line}", job=job, data=plain(cause))

    def _of_run(self, name: str, job: str, task: str, n: int, now: float, **more: str | None) -> None:
        with self.transaction():
            if not self._run(name, job=job, task=task, n=n, now=now, **more):
                raise IllegalStep(f"{job} has no run {task}.{n}")
            self.add_journal(now, name, f"{task}.{n}", job=job)

    def results_done(self, job: str, task: str, n: int, folder: str, now: float) -> None:
        """Results of the run are verified at home, in `folder` (absolute; empty when there were none to bring)."""
        with self.transaction():
            self._of_run("results_done", job, task, n, now)
            if folder:
                self._run("set_results_dir", job=job, folder=folder)

    def results_moved(self, job: str, folder: str, aside: str) -> None:
        """Results of earlier runs that lay in `folder` were moved `aside` to make room for those of `job`."""
        with self.transaction():
            self._run("move_results", job=job, folder=folder, aside=aside)

    def task_results(self, job: str, task: str, folder: str) -> None:
        """Where the results of one of many tasks are."""
        with self.transaction():
            self._run("set_task_results", job=job, task=task, folder=folder)

    def stop_task(self, job: str, task: str, why: str, now: float) -> bool:
        """A leg's reports say that it is not worth its money; False when that is known, or it is over."""
        with self.transaction():
            changed = self._run("stop_task", job=job, task=task, why=why, now=now) > 0
            if changed:
                self.add_journal(now, "stop_task", f"{task}: {why}", job=job)
        return changed

    def reported(self, run: Assignment, found: Iterable[tuple[int, float]], read_to: int, now: float) -> int:
        """(step, value) found in a run's log up to the byte `read_to`, in one transaction with that mark: a crash
        reads the same bytes again, or not at all. Returns how many reports were stored.
        """
        found = list(found)
        with self.transaction():
            for step, value in found:
                shown = None if math.isnan(value) else value
                self._run("add_report", job=run.job, task=run.task, step=step, value=shown, n=run.n, at=now)
            self._run(
                "read_to", job=run.job, task=run.task, n=run.n, read_to=read_to, reported=run.reported + len(found)
            )
        return len(found)

    def item_over(self, job: str, task: str, item: str, state: str, detail: str, now: float) -> bool:
        """An item of a batch is `done`, and what it made is home, or `failed`; the first word stays."""
        with self.transaction():
            return self._run("add_item", job=job, task=task, item=item, state=state, detail=detail, at=now) > 0

    def last_step(self, job: str, task: str, n: int, step: int) -> None:
        """The newest step that is durable from this run; never goes back."""
        with self.transaction():
            self._run("last_step", job=job, task=task, n=n, step=step)

    def environment(self, job: str, task: str, n: int, found: Mapping[str, Any]) -> None:
        """What the run had: driver, CUDA, packages, commit."""
        with self.transaction():
            self._run("environment", job=job, task=task, n=n, environment=text(found))

    def put_preflight(self, found: Preflight) -> None:
        """What a look at a machine found; a later look at the same takes its place."""
        with self.transaction():
            row = {**plain(found), "findings": text(found.findings), "facts": text(found.facts)}
            self._run("put_preflight", **row)
            words = "; ".join(f"[{f['klass']}] {f['name']}: {f['measured']}" for f in found.findings) or "nothing amiss"
            run, _, stage = found.run.partition("/")
            what = f"{run} {stage or 'after setup'}: {words}" if run else words
            self.add_journal(found.at, "preflight", what[:500], job=found.job, rental=found.rental)

    def checkpoint_durable(self, row: CheckpointRow) -> None:
        """Its manifest is verified in the mirror. Repeated: the same row."""
        with self.transaction():
            self._run("checkpoint_durable", **plain(row))
            self._run("last_step", job=row.job, task=row.task, n=row.n, step=row.step)
            self.add_journal(
                row.verified_at, "checkpoint", f"{row.task}.{row.n} {row.name} step {row.step}", job=row.job
            )

    def checkpoint_pruned(self, job: str, task: str, n: int, hash_: str, now: float) -> None:
        with self.transaction():
            self._run("checkpoint_pruned", job=job, task=task, n=n, hash=hash_, now=now)

    def progress_seen(
        self,
        job: str,
        task: str,
        n: int,
        now: float,
        *,
        step: float | None = None,
        total: float | None = None,
        sample: Mapping[str, Any] | None = None,
        phase: str = "",
        transfer: Mapping[str, Any] | None = None,
    ) -> None:
        """The newest progress of a run; what is not given keeps the last one, and an empty `transfer` clears it."""
        with self.transaction():
            self._run(
                "put_progress",
                job=job,
                task=task,
                n=n,
                at=now,
                step=step,
                total=total,
                sample=text(sample or {}),
                phase=phase,
                transfer=None if transfer is None else text(transfer),
            )

    def alarms_hold(self, job: str, task: str, n: int, alarms: Sequence[Mapping[str, Any]]) -> None:
        """The alarms that hold for a run at this moment; none when all is well."""
        with self.transaction():
            self._run("set_alarms", job=job, task=task, n=n, alarms=text(alarms))

    def stop_run(self, job: str, task: str, n: int, why: str, now: float) -> bool:
        """An alarm wants the run to save and stop; False when it is told already, or has ended."""
        with self.transaction():
            changed = self._run("stop_run", job=job, task=task, n=n, why=why) > 0
            if changed:
                self.add_journal(now, "stop", f"{task}.{n} {why}", job=job)
        return changed

    def bill(
        self, rental: str, kind: str, amount: Decimal, until: float, *, play: bool = False, since: float | None = None
    ) -> None:
        """The rental has cost `amount` (its whole sum, in the offer's currency) for `kind` until then, `since` its
        create unless told.

        What is spent leaves the reserve in the same transaction, so that their sum stays; an amount never shrinks.
        """
        with self.transaction():
            old = self.rental(rental)
            row = self._one("ledger_row", rental=rental, kind=kind)
            before = Decimal(row["amount"]) if row else Decimal(0)
            amount = max(amount, before)
            since = since if since is not None else old.create_sent_at or old.created_at
            self._run(
                "bill", rental=rental, kind=kind, amount=money(amount), currency=old.offer.currency, play=play,
                since=since, until=until,
            )  # fmt: skip
            wanted = self._rows("rental", id=rental)[0]["wanted_reserve"]
            self._run(
                "set_reserves",
                id=rental,
                until=until,
                reserve=money(max(Decimal(0), old.reserve - (amount - before))),
                wanted_reserve=None if wanted is None else money(max(Decimal(0), Decimal(wanted) - (amount - before))),
            )

    def rest(self, key: str, until: float, reason: str, now: float) -> int:
        """Leave a pool, machine or account alone until then; returns how often in a row it was, for backing off."""
        with self.transaction():
            self._run("forget_rest", before=now - FORGET_REST_S, machines_before=now - FORGET_MACHINE_S)
            self._run("rest", key=key, until=until, reason=reason)
            row = self._one("rest_count", key=key, since=0.0)
        return int(row["count"]) if row else 0

    def put_prices(self, provider: str, ask: str, offers: Iterable[Offer], now: float) -> None:
        """The newest answer to a question; `ask` is any stable text that names it."""
        document = "[" + ",".join(offer_text(offer) for offer in offers) + "]"
        with self.transaction():
            self._run("put_prices", provider=provider, ask=ask, at=now, offers=document)
