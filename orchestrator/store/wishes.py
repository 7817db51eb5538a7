"""What users change: new jobs, cancel, extend, live edits. Only the controller calls these, answering a request.

To answer exactly once, the controller groups the change and the answer: `with store.transaction(): ...`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from orchestrator.model import Job, Task
from orchestrator.store.decisions import Decisions
from orchestrator.store.errors import NameTaken, StoreError
from orchestrator.store.rows import money, text


class Wishes(Decisions):
    """Changes of jobs that a person asked for."""

    def add_job(self, job: Job, tasks: Iterable[Task]) -> None:
        """Store a new job with its tasks; `NameTaken` while another run of the name is live."""
        with self.transaction():
            live = self._one("live_job_of_name", name=job.name)
            if live is not None:
                raise NameTaken(job.name, live["id"])
            self._run(
                "add_job", id=job.id, name=job.name, run=job.run, spec=text(job.spec), spec_hash=job.spec_hash,
                snapshot=job.snapshot, base_dir=job.base_dir, created_at=job.created_at, owner=job.owner,
                price_cap=money(job.price_cap), currency=job.currency, data_manifests=text(job.data_manifests),
                resumed_from=job.resumed_from, results_dir=job.results_dir, max_cost=money(job.max_cost),
                git_commit=job.git_commit,
            )  # fmt: skip
            for task in tasks:
                self._add_task(task)
            self.add_journal(job.created_at, "add_job", f"run {job.run} of {job.name}", job=job.id)

    def add_task(self, task: Task, now: float) -> bool:
        """A leg that was drawn, or that an edit of the sweep added; False when it is there already."""
        with self.transaction():
            added = self._add_task(task)
            if added:
                self.add_journal(now, "add_task", task.id, job=task.job, data={"params": task.params})
        return added

    def _add_task(self, task: Task) -> bool:
        added = self._run("add_task", job=task.job, id=task.id, params=text(task.params)) > 0
        if added and task.seq:
            self._run(
                "place_task", job=task.job, id=task.id, seq=task.seq, items=text(task.items), outcome=task.outcome,
                reason=task.reason, detail=task.detail, exit_code=task.exit_code, outcome_at=task.outcome_at,
                stop_why=task.stop_why, kept_from=task.kept_from, results_dir=task.results_dir,
            )  # fmt: skip
        return added

    def keep_reports(self, job: str, old: str, task: str) -> None:
        """The reports of a leg that an earlier run did are this run's too."""
        with self.transaction():
            self._run("keep_reports", job=job, old=old, task=task)

    def cancel_task(self, job: str, task: str, now: float) -> bool:
        """The user wants one task to end; False when it is over."""
        with self.transaction():
            changed = self._run("cancel_task", job=job, task=task, now=now) > 0
            if changed:
                self.add_journal(now, "cancel_task", task, job=job)
        return changed

    def cancel(self, job: str, now: float, *, at_once: bool = False) -> None:
        """The user wants it to end; `at_once` skips saving. The first time stays, a later `at_once` is added."""
        self._edit("cancel_job", job, now, f"cancel{' now' if at_once else ''}", at_once=at_once)

    def extend(self, job: str, extra_s: float, now: float) -> None:
        """Add to the ttl. Not idempotent: group it with the request's answer."""
        self._edit("extend_job", job, now, f"extend by {extra_s:.0f} s", extra_s=extra_s)

    def edit_spec(
        self, job: str, spec: Mapping[str, Any], spec_hash: str, price_cap: Decimal | None, now: float
    ) -> None:
        """A change of live keys only (ttl, budget, max_price ...): the document is replaced."""
        self._edit(
            "edit_spec", job, now, "spec edited", spec=text(spec), spec_hash=spec_hash, price_cap=money(price_cap)
        )

    def end_hold(self, job: str, now: float) -> None:
        """The user needs the held machine no longer."""
        with self.transaction():
            self._run("end_hold", job=job, now=now)

    def go_on(self, wish: Job, replaced_n: int, fresh: bool, now: float) -> None:
        """`--replace` on a held machine: the job gets the spec and files of `wish`, and its work is open again.

        Runs up to `replaced_n` belong to what was replaced. `StoreError` unless the job failed and is held at `now`.
        """
        said = f"replaced on the held machine; run {replaced_n + 1} is the first of the new spec"
        with self.transaction():
            self._edit(
                "go_on", wish.id, now, said,
                spec=text(wish.spec), spec_hash=wish.spec_hash, snapshot=wish.snapshot, base_dir=wish.base_dir,
                owner=wish.owner, price_cap=money(wish.price_cap), data_manifests=text(wish.data_manifests),
                results_dir=wish.results_dir, max_cost=money(wish.max_cost), git_commit=wish.git_commit,
                replaced_n=replaced_n, fresh=fresh,
            )  # fmt: skip
            self._run("reopen_tasks", job=wish.id)

    def _edit(self, name: str, job: str, now: float, said: str, **values: Any) -> None:
        with self.transaction():
            if not self._run(name, job=job, now=now, **values):
                raise StoreError(f"{job} is over, or was never here: nothing to change; `gpujob ps -a` lists all jobs")
            self.add_journal(now, name, said, job=job)
