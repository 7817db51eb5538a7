"""The machine side of every effect: what is sent to a machine, what is asked of its agent, what is brought home.

Runs in worker threads with a frozen context; opens no books. Secrets are read from their 0600 files at the moment they
are sent, and travel only inside an order on a connection that has proved the rental's nonce.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from orchestrator import actions as act
from orchestrator import (
    artifacts,
    causes,
    checkpoints,
    inspection,
    landing,
    run_files,
    secrets,
    snapshot,
    space,
    ssh,
    sync,
)
from orchestrator.connections import CALL_S
from orchestrator.execute import Context, WorkFailed
from orchestrator.images import container_of
from orchestrator.mirror import DamagedCheckpoint, listing
from orchestrator.mirror_run import bring
from orchestrator.model import PLAIN_TASK, Assignment, Cause, Facts, Job, Outcome, Reason, Rental
from orchestrator.publish import discard, publish
from orchestrator.result_plan import RESULTS, checkpoint_root, plan_of
from orchestrator.retention import retain, thin
from orchestrator.ssh_errors import SshError
from orchestrator.ssh_files import write_private
from orchestrator.store_machines import RUN_RECORD, StoreMachines
from orchestrator.store_results import Uploaded, remote_items
from orchestrator.store_side import mirror_place
from orchestrator.transfers import Teller
from orchestrator.verdict import CHECKPOINTED_EXIT
from providers.base import Caps

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec

log = structlog.get_logger()

Outcomes = act.SetOutcome | act.SetTaskOutcome

CLOSE_S = 45.0  # ending everything of a run: TERM, KILL, and proof
LOG_TAIL_S = 15.0  # how long no byte of an ended run's log may arrive while some are still to come


class Machines(StoreMachines):
    """The work on all open machines."""

    def forget(self, job: Job, rentals: Iterable[Rental]) -> None:
        """A job is over: its secrets and keys are removed from this computer, and its copy of the code."""
        secrets.forget(self._home, job.id)
        self._stores.forget(job.id)
        for folder in (self._home.job(job.id) / "code", *(self._home.rental(rental.id) for rental in rentals)):
            shutil.rmtree(folder, ignore_errors=True)

    # --- agent calls --------------------------------------------------------------------------------------------------

    def arm(self, context: Context, end: float, caps: Caps) -> None:
        """Move the machine's own deadline."""
        rental = context.the_rental()
        self._ask(
            rental,
            "arm",
            end=end,
            now=self._clock.utc(),
            grace_s=int(context.policy.grace_s),
            action="poweroff" if caps.power_off_allowed else "kill",
            notice_file=caps.spot_notice_file if rental.offer.spot else "",
        )

    def order(self, context: Context) -> Mapping[str, Any]:
        """Order the run of (task, n), once ever."""
        rental, run, spec, job = context.the_rental(), context.the_run(), context.spec, context.job
        resume = run.resume_name
        given = self.renew_store(context) if mirror_place(spec) else {}
        folder = spec.checkpoint is not None and spec.checkpoint.resume == "folder"
        checkpoint = spec.checkpoint
        answer = self._ask(
            rental,
            "order",
            job=job.id,
            task=run.task,
            n=run.n,
            code=job.snapshot,
            stages=stages(spec, job, smoked=context.smoked),
            look=inspection.look_wanted(context),
            smoke=inspection.smoke_wanted(context, self._clock.utc()),
            env=run_files.environment(context),
            **run_files.given(context),
            secrets=secrets.load(self._home, job.id),
            resume_from=resume,
            resume_mode="folder" if folder else "env",
            signal=spec.grace.signal.removeprefix("SIG"),
            grace_s=int(context.policy.grace_s),
            checkpoint={
                "path": checkpoint.path if checkpoint is not None and checkpoint.path != "." else "",
                "pattern": checkpoint.pattern if checkpoint is not None else None,
            },
            after=context.after,
            room_s=round(context.room_s, 1),
            **container_of(spec, rental.offer),
        )
        return {"already": answer.get("already", False), "after": context.after, **given}

    def withdraw(self, context: Context) -> Mapping[str, Any]:
        """Take back an order that was given ahead."""
        rental, run = context.the_rental(), context.the_run()
        return self._ask(rental, "withdraw", job=context.job.id, task=run.task, n=run.n)

    def signal(self, context: Context, effect: act.SendSignal) -> Mapping[str, Any]:
        """The job's own signal, and its grace."""
        return self._ask(
            context.the_rental(), "signal", job=context.job.id,
            task=effect.task, n=effect.n, why=str(effect.why), grace_s=effect.grace_s,
        )  # fmt: skip

    def move_limit(self, context: Context) -> Mapping[str, Any]:
        """How long a run may last, as it is by now."""
        rental, run = context.the_rental(), context.the_run()
        limit = run_files.limit(context)
        if limit:
            self._ask(rental, "limit", job=context.job.id, task=run.task, n=run.n, limit=limit)
        return {"limit_s": limit.get("s")}

    def close(self, context: Context) -> Mapping[str, Any]:
        """End what is left of a run, close its key, and have the whole log here."""
        rental, run = context.the_rental(), context.the_run()
        answer = self._ask(rental, "close", timeout_s=CLOSE_S, job=context.job.id, task=run.task, n=run.n)
        self._whole_logs(rental, run, answer.get("logs", {}))
        dead = answer.get("dead") is True
        return {"dead": dead, "cause": self._cause(context, rental, run) if dead else None}

    def _cause(self, context: Context, rental: Rental, run: Assignment) -> Cause | None:
        """Why a run ended with an error that neither we nor it asked for."""
        end, job = run.exit, context.job.id
        if end is None or end.rc in (0, CHECKPOINTED_EXIT) or end.signalled is not None:
            return None
        known: causes.Known = {}
        try:
            folders = self._ask(rental, "prepare", job=job)
            places = tuple(str(folders[name]) for name in ("base", "ckpt_root", "out_root") if name in folders)
            known = causes.circumstances(self._connection(rental), places, run, self._clock.utc())
        except SshError as error:  # the log alone must do: what is known of the machine only sharpens it
            log.warning("no look after a failure", job=job, run=run.key, why=str(error))
        return causes.cause_of(self._home.log(job, run.task, run.n, end.stage), end.rc, known)

    def _whole_logs(self, rental: Rental, run: Assignment, sizes: Mapping[str, Any]) -> None:
        """Wait until the stream has brought every byte of the run's logs; a log that lags is said, not hidden."""
        watch = self._watches.get(rental.id)
        before, until = -1, 0.0
        while watch is not None and any(watch.received(run.key, s) < n for s, n in sizes.items() if isinstance(n, int)):
            here = sum(watch.received(run.key, stage) for stage in sizes)
            if here > before:  # a log of gigabytes takes its time
                before, until = here, self._clock.awake() + LOG_TAIL_S
            if self._clock.awake() >= until:
                watch.reconnect()  # a stream that has lost its place finds it again from what is stored here
                raise WorkFailed("the last bytes of the log have not arrived yet")
            time.sleep(0.05)
        if watch is not None:
            watch.flush(run.key)

    # --- before the run -----------------------------------------------------------------------------------------------

    def prepare(self, context: Context) -> Mapping[str, Any]:
        """Code, data and the resume point: there, and verified there."""
        rental, run = context.the_rental(), context.the_run()
        connection = self._connection(rental)
        folders, looked = self._first_look(context)
        began = time.monotonic()
        with Teller(self._post, rental.id, run.key) as teller:
            if rental.id not in self._brought:
                self._bring(context, connection, folders, teller)
            if run.resume_hash:
                self._send_resume(context, connection, f"{folders['resume_root']}/{run.key}", teller)
        return {"seconds": time.monotonic() - began, **looked}

    def _first_look(self, context: Context) -> tuple[dict[str, Any], dict[str, Any]]:
        """The job's folders, and the preflight: once for each machine, before anything is sent to it."""
        rental, job, now = context.the_rental(), context.job, self._clock.utc()
        if rental.id in self._inspected:
            return self._ask(rental, "prepare", job=job.id), {}
        answer = self._ask(rental, "prepare", job=job.id, preflight=inspection.facts_wanted(context, now))
        record = inspection.inspect(answer, context, now)
        if record is None:
            return answer, {}
        inspection.stop_for(record)
        self._inspected.add(rental.id)
        return answer, {"preflight": record}

    def _bring(self, context: Context, connection: ssh.Connection, folders: Mapping[str, Any], teller: Teller) -> None:
        """Code and data; of many tasks on one machine only before the first, as far as this process knows."""
        job = context.job
        if job.snapshot:
            self._send_code(job, connection.target, str(folders["code"]), teller)
        known = [m.bytes for m in listing(self._home, job.id, context.the_run().task).manifests]
        checkpoint = space.checkpoint_bytes(context.spec, known)
        ask = partial(self._ask, context.the_rental())
        landing.land(connection, self._home, job, context.spec, folders, teller, checkpoint, ask)
        if context.the_run().task != PLAIN_TASK:
            self._brought.add(context.the_rental().id)

    def _send_resume(self, context: Context, connection: ssh.Connection, remote: str, teller: Teller) -> None:
        """The checkpoint that the run was sealed to resume from."""
        run, job = context.the_run(), context.job
        found = [m for m in listing(self._home, job.id, run.task).manifests if m.hash == run.resume_hash]
        if not found and self._fetch_resume(context, connection, remote, teller):
            return
        if not found:
            words = f"checkpoint {run.resume_name} is not whole in the mirror any more"
            raise WorkFailed(words, data={"damaged": run.resume_hash})
        tell = teller.of(f"checkpoint {found[0].name}", found[0].bytes)
        try:
            checkpoints.push_resume(connection, connection.target, self._home, found[0], remote, progress=tell)
        except DamagedCheckpoint as error:
            raise WorkFailed(str(error), data={"damaged": run.resume_hash}) from error

    def _send_code(self, job: Job, target: ssh.Target, remote: str, teller: Teller) -> None:
        staging = self._home.job(job.id) / "code"
        if not (staging / ".complete").exists():
            snapshot.materialize(self._home, job.snapshot, staging / "tree")
            (staging / ".complete").touch()
        sync.push(target, staging / "tree", remote, delete=True, progress=teller.of("code"))

    # --- during and after the run -------------------------------------------------------------------------------------

    def mirror(self, context: Context) -> Mapping[str, Any]:
        """Make the newest complete checkpoints of a run durable, manifest last; prune what retention allows."""
        rental, run, job = context.the_rental(), context.the_run(), context.job
        connection = self._connection(rental)
        store = self._stores.mirror_of(context.spec, job, run.task)
        done = self._mirror_in_store(context, connection, store) if store is not None else None
        if done is not None:
            return done
        spec = context.spec.checkpoint
        keep = spec.keep if spec is not None else 3
        status = connection.agent("status", {"nonce": rental.nonce}, CALL_S)
        from orchestrator.sightings import parse_status

        seen = parse_status(status).runs.get(run.key)
        complete = sorted((c for c in seen.checkpoints if c.complete), key=lambda c: (c.step, c.mtime)) if seen else []
        folders = self._ask(rental, "prepare", job=job.id)
        root = checkpoint_root(context.spec, str(folders["ckpt_root"]), run.key)
        began = time.monotonic()
        before = listing(self._home, job.id, run.task).manifests
        new = [c for c in complete if (run.key, c.name, c.bytes, c.mtime) not in context.mirrored]
        with Teller(self._post, rental.id, run.key) as teller:
            brought = bring(
                connection, self._home, job=job.id, task=run.task, n=run.n, root=root, parent=run.resume_hash or None,
                wanted=new, slots=sum(c in new for c in complete[-keep:]),
                ordinal=max([run.resume_step or 0, *(m.step for m in before if m.n == run.n)]),
                tell=lambda found: teller.of(f"checkpoint {found.name}", found.bytes),
            )  # fmt: skip
        retained = retain(self._home, job.id, run.task, keep, run.resume_hash)
        mine = [manifest for manifest in retained.held if manifest.n == run.n]
        thinned = thin(self._thinner(context), status, complete, mine, keep, retained.best)
        sent, spent = sum(m.bytes for m in brought.manifests if m not in before), time.monotonic() - began
        again = [found for found, _ in brought.failed]
        done = {
            "rows": [self._row(m) for m in brought.manifests],
            "pruned": [self._row(m) for m in retained.removed],
            "mirrored": {(run.key, c.name, c.bytes, c.mtime) for c in complete if c not in again},
            "words": [*(words for _, words in brought.refused), *thinned],
            "rate": sent / spent if sent and spent > 0.1 else None,
        }
        if brought.failed:
            raise WorkFailed(brought.failed[0][1], data=done)
        return done

    def _record_once(self, context: Context, connection: ssh.Connection) -> dict[str, Any] | None:
        """What the run has, the first time that something of it comes home: a run that is lost later has said it."""
        return None if context.the_run().environment else self._record(context, connection)

    def collect(self, context: Context, effect: act.CollectResults) -> Mapping[str, Any]:
        """Bring results home: bit by bit during the run; verified, recorded and published at its end."""
        rental, run, job = context.the_rental(), context.the_run(), context.job
        connection = self._connection(rental)
        folders = self._ask(rental, "prepare", job=job.id)
        many = run.task != PLAIN_TASK
        plan = plan_of(context.spec, job, run, f"{folders['out_root']}/{run.key}", many)
        remote = remote_items(context.spec, job, run)
        sent = Uploaded()
        if remote and effect.final:
            sent, here = self._upload_results(context, connection, remote, plan.out, effect.success)
            second = Path(job.base_dir) / RESULTS / job.name
            plan = replace(plan, items=(*plan.items, *(artifacts.Item(each.path, second, each.when) for each in here)))
        if remote and not plan.items:
            if not effect.final:
                return {"rate": None, "bytes_left": 0}
            return self._stored_results(sent, self._record(context, connection), many)
        began = time.monotonic()
        marked = run_files.marked(self._home, context)  # before anything is listed: what these made is there by now
        # a list of packages takes as long as most transfers
        with Teller(self._post, rental.id, run.key) as teller, ThreadPoolExecutor(1, "record") as beside:
            recorded = beside.submit(self._record, context, connection) if effect.final else None
            found = artifacts.collect(
                connection, connection.target, self._home, job=job.id, task=run.task, n=run.n, plan=plan,
                final=effect.final, success=effect.success if effect.final else None, progress=teller.of("results"),
            )  # fmt: skip
            rate = _rate(found.bytes, began)
        if recorded is None:
            return {
                "rate": rate,
                "bytes_left": 0,
                "items": marked,
                "environment": self._record_once(context, connection),
            }
        if not found.verified and not found.lost:
            raise WorkFailed("; ".join(found.problems) or "the results could not be verified")
        record = recorded.result()
        before = artifacts.earlier_runs(self._home, job.id, run.task, run.n)
        last = run_files.made(context, found)
        cut_off = artifacts.earlier(self._home, job.id, run.task, run.n, plan, effect.success, last)
        found = replace(found, pieces=(*found.pieces, *cut_off))
        published = publish(
            self._home, job=job.id, task=run.task, n=run.n, plan=plan, results=found, success=effect.success,
            checkpoint=self._newest_checkpoint(context) if not plan.items else None,
        )  # fmt: skip
        write_private(published.path / RUN_RECORD, json.dumps(record, indent=1, default=str).encode() + b"\n")
        (published.path / RUN_RECORD).chmod(0o644)  # the user's own file, as the other results are
        for n in (*before, run.n):
            discard(self._home, job.id, run.task, n)
        if found.lost:  # what there was is home all the same
            raise WorkFailed(found.lost, Reason.FAILED)
        words = [f"{path} is not brought home: {size} bytes are over the limit" for path, size in found.left]
        words += [*sent.words, *found.refused, *(f"earlier results moved to {aside}" for _, aside in published.moved)]
        moved = [(str(dest), str(aside)) for dest, aside in published.moved]
        return {
            "environment": record,
            "folder": str(published.path),
            "rate": rate,
            "words": words,
            "moved": moved,
            "many": many,
            "items": marked,
        }

    def _record(self, context: Context, connection: ssh.Connection) -> dict[str, Any]:
        """What the run had and was: kept with the job and beside its results."""
        rental, run, job = context.the_rental(), context.the_run(), context.job
        found = self._environments.get(rental.id)
        if found is None:
            try:
                found = connection.agent("environment", {"job": job.id}, 60.0)
            except SshError as error:
                found = {"missing": str(error)}
            found.pop("ok", None)
            if run.task != PLAIN_TASK:  # a list of packages takes seconds, and the next task's is the same
                self._environments[rental.id] = found
        return {
            "job": job.id,
            "run": run.key,
            "snapshot": job.snapshot,
            "commit": job.git_commit,
            **(run_files.recorded(context)),
            "provider": rental.offer.provider,
            "gpu": rental.offer.gpu,
            "stand_in": rental.offer.stand_in,
            **found,
        }

    # --- words --------------------------------------------------------------------------------------------------------

    def explain(self, job: Job, write: Outcomes, facts: Facts) -> Outcomes:
        """Add the log line that decided a failure; that of a job of many tasks is in its words already."""
        failed = [a for a in facts.assignments if a.exit is not None and a.exit.rc != 0]
        if isinstance(write, act.SetTaskOutcome):
            failed = [a for a in failed if a.task == write.task]
        elif any(task.seq for task in facts.tasks):
            return write
        if write.outcome is not Outcome.FAILED or write.reason is not Reason.FAILED or not failed:
            return write
        last = max(failed, key=lambda a: a.n)
        assert last.exit is not None
        cause = last.cause or causes.cause_of(self._home.log(job.id, last.task, last.n, last.exit.stage), last.exit.rc)
        return replace(write, detail=f"{write.detail}: {causes.in_words(cause)}") if cause.line else write


def stages(spec: JobSpec, job: Job, *, smoked: bool) -> list[dict[str, str]]:
    """setup once a machine; smoke until one of this wish's runs has passed it; then run."""
    found: list[dict[str, str]] = []
    if spec.setup:
        once = hashlib.sha256(f"{job.snapshot}\0{spec.setup}".encode()).hexdigest()
        found.append({"name": "setup", "script": spec.setup, "once": once})
    if spec.smoke and not smoked:
        found.append({"name": "smoke", "script": spec.smoke})
    return [*found, {"name": "run", "script": spec.run}]


def _rate(sent: int, began: float) -> float | None:
    spent = time.monotonic() - began
    return sent / spent if sent > 100_000 and spent > 0.1 else None
