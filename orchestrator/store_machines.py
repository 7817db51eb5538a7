"""Effects on mirrors: listed, taken over from an earlier job; in an object store: access, mirroring, resumes.

The part of `machine.Machines` that looks into mirrors and stores; `store_side.StoreSide` has the work itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from jobspecs.rules import is_remote
from orchestrator.connections import CALL_S, Connections
from orchestrator.execute import Context, WorkFailed
from orchestrator.inherit import as_inherited, inherit
from orchestrator.lineage import passed_over, resume_choice
from orchestrator.mirror import listing, manifest_path, parts_of, to_bytes
from orchestrator.model import AgentCheckpoint, CheckpointRow, Job
from orchestrator.objects.checkpoints import StoreMirror, fetch
from orchestrator.objects.errors import StoreError
from orchestrator.objects.layout import Layout, filled
from orchestrator.objects.places import Places
from orchestrator.objects.settings import same_bucket
from orchestrator.retention import thin
from orchestrator.ssh_errors import AgentRefused, SshError
from orchestrator.ssh_files import write_private
from orchestrator.store_results import RemoteItem, Uploaded, upload
from orchestrator.store_side import StoreSide, left_of, old_agent
from orchestrator.transfers import Teller

if TYPE_CHECKING:
    from orchestrator.mirror import Manifest
    from orchestrator.objects.manifests import StoredCheckpoint
    from orchestrator.ssh import Connection


log = structlog.get_logger()

RUN_RECORD = "gpujob-run.json"  # what the run had and was, beside its results
TAKEN_OVER = "inherit-{}.json"  # in the job's folder: what is still to be taken over from an earlier job's mirror
HOME_MAX = 2 * 10**9  # bytes of a checkpoint that is fetched beside the results; a larger one stays in the store


class StoreMachines(Connections):
    """Connections, and what passes between machines and stores."""

    @cached_property
    def _stores(self) -> StoreSide:
        return StoreSide(Places(self._home), self._clock.utc)

    def renew_store(self, context: Context) -> Mapping[str, Any]:
        """Give a run what it may do in its store; nothing where its agent knows no stores."""
        run = context.the_run()
        mirror = self._stores.mirror_of(context.spec, context.job, run.task)
        if mirror is None:
            return {"store_until": math.inf}
        status = self._connection(context.the_rental()).agent("status", {"nonce": context.the_rental().nonce}, CALL_S)
        told = status.get("runs", {}).get(run.key, {}).get("mirror")
        try:
            return {"store_until": self._stores.give(partial(self._ask, context.the_rental()), context, mirror, told)}
        except AgentRefused as error:
            if not old_agent(error):
                raise
            return {"store_until": math.inf}

    def _fetch_resume(self, context: Context, connection: Connection, remote: str, teller: Teller) -> bool:
        """The same from the object store, straight to the machine; False when it is not there either."""
        run = context.the_run()
        mirror = self._stores.mirror_of(context.spec, context.job, run.task)
        if mirror is None:
            return False
        held = self._stores.listing(mirror)[0].checkpoints
        found = next((each for each in held if each.manifest.hash == run.resume_hash), None)
        if found is None:
            return False
        tell = teller.of(f"checkpoint {found.manifest.name}", found.manifest.bytes)
        self._stores.bring_down(
            partial(self._ask, context.the_rental()), connection, context, found, mirror, remote, tell
        )
        return True

    def _mirror_in_store(
        self, context: Context, connection: Connection, mirror: StoreMirror
    ) -> Mapping[str, Any] | None:
        """What the machine has mirrored by itself, verified in the store. None: this computer is to be the mirror,
        because the store refuses what a run that is over has saved, or because its agent knows no stores."""
        run = context.the_run()
        ask = partial(self._ask, context.the_rental())
        with Teller(self._post, context.the_rental().id, run.key) as teller:
            try:
                told, given = self._stores.follow(
                    ask, connection, context, mirror, lambda name: teller.of(f"checkpoint {name} to the store")
                )
            except AgentRefused as error:
                if old_agent(error):
                    return None
                raise
        listed, words = self._stores.listing(mirror)
        mine = [each for each in listed.checkpoints if each.manifest.n == run.n]
        marks = {each.mark for each in mine}
        left = [(c["name"], c["bytes"], c["mtime"]) for c in left_of(told["complete"], {"done": ()}, context)]
        earlier = [(c["name"], c["bytes"], c["mtime"]) for c in told["complete"]]
        waiting = [mark for mark in left if mark not in marks]
        if told.get("error") and told["dead"] and waiting and not given:
            return None
        protected = mirror.best(listed) | ({run.resume_hash} if run.resume_hash else set())
        keep = context.spec.checkpoint.keep if context.spec.checkpoint is not None else 3
        over = frozenset(n for n in {each.manifest.n for each in listed.checkpoints} if 0 < n < run.n)
        pruned = mirror.prune(listed, keep, protected, over) if not waiting else ()
        done = {
            "rows": [self._row(each.manifest) for each in mine],
            "pruned": [self._row(manifest) for manifest in pruned],
            "mirrored": {(run.key, *mark) for mark in earlier if mark not in waiting},
            "words": [*words, *self._thin_durable(context, told, mine, mirror.best(listed), keep)],
            "rate": None,
        }
        if waiting and told.get("error"):
            raise WorkFailed(f"the machine cannot mirror to {mirror.layout.mirror.url}: {told['error']}", data=done)
        return done

    def _thin_durable(
        self, context: Context, told: Mapping[str, Any], mine: list[StoredCheckpoint], best: frozenset[str], keep: int
    ) -> list[str]:
        """Where the machine's disk runs short, what newer ones in the store have made dispensable goes there."""
        complete = [AgentCheckpoint(c["name"], c["step"], c["bytes"], True, c["mtime"]) for c in told["complete"]]
        complete.sort(key=lambda c: (c.step, c.mtime))
        durable = [each.manifest for each in mine]
        spared = frozenset(manifest.name for manifest in durable if manifest.hash in best)
        return thin(self._thinner(context), told, complete, durable, keep, spared)

    def _thinner(self, context: Context) -> Callable[[list[dict[str, Any]]], Mapping[str, Any]]:
        """Asks the machine to remove checkpoints; that it does not is no reason to doubt what is durable here."""
        rental, run = context.the_rental(), context.the_run()

        def ask(names: list[dict[str, Any]]) -> Mapping[str, Any]:
            try:
                return self._ask(rental, "thin", task=run.task, n=run.n, names=names)
            except SshError as error:
                log.warning("disk not thinned", job=context.job.id, run=run.key, why=str(error))
                return {}

        return ask

    def _upload_results(
        self, context: Context, connection: Connection, items: tuple[RemoteItem, ...], out: str, success: bool
    ) -> tuple[Uploaded, tuple[RemoteItem, ...]]:
        """Results into their stores; what cannot be uploaded is for this computer, the second home, and said."""
        ask = partial(self._ask, context.the_rental())
        with Teller(self._post, context.the_rental().id, context.the_run().key) as teller:
            try:
                sent = upload(self._stores, ask, connection, context, items, out, success, teller.of("results"))
                return sent, ()
            except (StoreError, WorkFailed, AgentRefused) as error:
                words = f"results could not be uploaded, so they come to this computer: {error}"
                return Uploaded(words=[words]), items

    def _stored_results(self, sent: Uploaded, record: dict[str, Any], many: bool) -> Mapping[str, Any]:
        """All results are in stores: the run's record goes beside them."""
        for place, prefix in sent.places:
            place.store.put(f"{prefix}/{RUN_RECORD}", json.dumps(record, indent=1, default=str).encode())
        folder = sent.folders[0] if sent.folders else ""
        shown = {"environment": record, "folder": folder, "rate": None, "words": sent.words, "moved": []}
        return {**shown, "many": many}

    # --- mirrors ------------------------------------------------------------------------------------------------------

    def list_mirror(self, context: Context, task: str) -> Mapping[str, Any]:
        """The complete listing of a task's mirror."""
        began = self._clock.utc()
        store = self._stores.mirror_of(context.spec, context.job, task)
        words = self._take_over(context.job, task, store)
        found = listing(self._home, context.job.id, task)
        manifests, broken_hashes = found.manifests, set()
        over = passed_over(manifests)
        words += [f"{m.name} of run {m.n} is not resumed from: {why}" for m, why in over]
        words += [f"{broken.path.name} was set aside: {broken.why}" for broken in found.broken]
        if store is not None:
            listed, more = self._stores.listing(store)
            manifests, words = (*manifests, *listed.manifests), [*words, *more]
            over = passed_over(manifests)
            broken_hashes = {each.hash for each in listed.broken if each.hash}
        return {
            "rows": [self._row(m) for m in manifests],
            "passed_over": {m.hash for m, _ in over} | broken_hashes,
            "words": words,
            "began": began,
        }

    def inherit(self, old: Job, new: Job, rows: tuple[CheckpointRow, ...]) -> list[CheckpointRow]:
        """Take over the durable checkpoints of an earlier job: the same parts under new manifests of run 0."""
        found = []
        for task in dict.fromkeys(row.task for row in rows):
            mine = (row.hash for row in rows if row.task == task)
            found += [self._row(m) for m in inherit(self._home, old.id, new.id, task, mine)]
        self._remember_stored(old, new, rows)
        return found

    def _newest_checkpoint(self, context: Context) -> Manifest | None:
        """What the default results have beside OUT; one that lies in a store is fetched where it is small."""
        found = resume_choice(listing(self._home, context.job.id, context.the_run().task).manifests)
        return self._checkpoint_home(context) or found

    def _checkpoint_home(self, context: Context) -> Manifest | None:
        """The newest checkpoint of the store among this computer's own, where it is small enough to be fetched."""
        run, job = context.the_run(), context.job
        mirror = self._stores.mirror_of(context.spec, job, run.task)
        if mirror is None:
            return None
        held = self._stores.listing(mirror)[0].checkpoints
        choice = resume_choice([each.manifest for each in held])
        found = next((each for each in held if choice is not None and each.manifest.hash == choice.hash), None)
        if found is None or found.manifest.bytes > HOME_MAX:
            return None
        fetch(mirror.store, found, parts_of(self._home.mirror(job.id, run.task), found.manifest))
        return found.manifest

    def _remember_stored(self, old: Job, new: Job, rows: tuple[CheckpointRow, ...]) -> None:
        """Note which checkpoints of an earlier job are to be taken over: a store is not asked in the loop's thread."""
        place = (old.spec.get("checkpoint") or {}).get("mirror") or ""
        if not is_remote(place):
            return
        for task in {row.task for row in rows}:
            hashes = [row.hash for row in rows if row.task == task]
            wanted = {"job": old.id, "place": filled(place, old.name, task), "hashes": hashes}
            write_private(self._taken_over(new.id, task), json.dumps(wanted).encode())

    def _taken_over(self, job: str, task: str) -> Path:
        return self._home.job(job) / TAKEN_OVER.format(task)

    def _take_over(self, job: Job, task: str, mirror: StoreMirror | None) -> list[str]:
        """Take over what was noted, once: in the same store as run 0 of the job's own mirror, without a copy; from
        another one the newest comes to this computer. Words on what could not be taken over.
        """
        note = self._taken_over(job.id, task)
        try:
            wanted = json.loads(note.read_bytes())
        except FileNotFoundError:
            return []
        opened = self._stores.places.of(wanted["place"])
        earlier = StoreMirror(opened.store, Layout(opened.location, wanted["job"], task))
        hashes, words = frozenset(wanted["hashes"]), []
        if mirror is not None and same_bucket(opened.settings, mirror.layout.mirror.settings):
            mirror.inherit(earlier, hashes)
        else:
            words = self._bring_over(job, task, earlier, hashes)
        note.unlink()
        return words

    def _bring_over(self, job: Job, task: str, earlier: StoreMirror, hashes: frozenset[str]) -> list[str]:
        held = [each for each in earlier.listing().checkpoints if each.manifest.hash in hashes]
        choice = resume_choice([each.manifest for each in held])
        found = next((each for each in held if each.manifest == choice), None)
        if found is None:
            return []
        where = earlier.layout.mirror.url
        if found.manifest.bytes > HOME_MAX:
            shown = f"{found.manifest.name} ({found.manifest.bytes / 1e9:.1f} GB)"
            return [f"{shown} stays in {where}, which is not this job's mirror, and is not resumed from"]
        mine, mirror = as_inherited(found.manifest, job.id), self._home.mirror(job.id, task)
        fetch(earlier.store, found, parts_of(mirror, mine))
        write_private(manifest_path(mirror, mine), to_bytes(mine))
        return []

    def _row(self, manifest: Manifest) -> CheckpointRow:
        return CheckpointRow(
            job=manifest.job,
            task=manifest.task,
            n=manifest.n,
            name=manifest.name,
            step=manifest.step,
            hash=manifest.hash,
            bytes=manifest.bytes,
            parent=manifest.parent or "",
            verified_at=self._clock.utc(),
        )
