"""The controller's machine side in the simulator: connections that break, and effects on simulated machines.

It has the methods of `orchestrator.machine.Machines`, the retry times of `orchestrator.watch`, and keeps checkpoints in
the real mirror (`orchestrator.mirror`), parts first and manifest last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sim_box import Box
from sim_time import SimClock, Timer

from orchestrator import actions as act
from orchestrator.execute import Context, WorkFailed
from orchestrator.home import Home
from orchestrator.inherit import inherit
from orchestrator.lineage import passed_over
from orchestrator.messages import Lost, Message, Reached, StatusSeen, TransferSeen
from orchestrator.mirror import (
    Manifest,
    StoredFile,
    content_hash,
    listing,
    manifest_path,
    parts_of,
    problem,
    prune,
    to_bytes,
)
from orchestrator.model import CheckpointRow, Facts, Job, Reason, Rental, RentalFacts
from orchestrator.ssh_errors import AgentRefused, TransferError, Unreachable
from orchestrator.ssh_files import write_private
from orchestrator.watch import CONNECT_S, RETRY_FIRST_S, RETRY_MAX_S, SILENCE_S
from providers.base import Caps

if TYPE_CHECKING:
    from sim_controller import Controller

PAUSE_MAX_S = 700.0  # the longest pause after failures, and a margin
PUSH_S = 0.3  # from a change on the machine to the controller's queue


class Link:
    """One kept connection, from the moment it is wanted until it is not."""

    def __init__(self, machines: SimMachines, rental: str, job: str, nonce: str, address: str) -> None:
        self.machines, self.world = machines, machines.world
        self.rental, self.job, self.nonce, self.address = rental, job, nonce, address
        self.box: Box | None = None
        self.stopped = False
        self._pause = RETRY_FIRST_S
        self._since: float | None = None
        self._timer: Timer | None = None
        self._dirty = False
        self._next(0.3)

    def _next(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.world.heap.after(seconds, self._try)

    def _try(self) -> None:
        controller = self.machines.controller
        if self.stopped or controller.dead or self.box is not None:
            return
        if controller.paused:
            self.world.heap.at(controller.paused_until, self._try)
            return
        box = self.world.answering_at(self.address)
        if box is None:
            self.world.heap.after(CONNECT_S, self._failed, "connection timed out")
        elif box.nonce != self.nonce:
            self._failed("the machine does not know the rental's nonce (yet)")
        else:
            self.box, self._pause = box, RETRY_FIRST_S
            self.world.oracle.connected(box, self.rental)
            self._post(Reached(self.rental, box.status()))

    def _failed(self, why: str) -> None:
        if self.stopped or self.machines.controller.dead or self.box is not None:
            return
        self._report(why, fresh=False)
        self._pause = min(self._pause * 1.6, RETRY_MAX_S)
        self._next(self._pause)

    def _report(self, why: str, fresh: bool) -> None:
        now = self.machines.clock.awake()
        since = now if fresh or self._since is None else self._since
        self._since = now
        self._post(Lost(self.rental, why, min(now - since, 60.0)))

    def disturb(self, seconds: float = SILENCE_S) -> None:
        """The way to the machine may be broken; found out by silence."""
        if self.box is not None:
            self.world.heap.after(seconds, self._check)

    def _check(self) -> None:
        if self.box is not None and not self.stopped and self.world.answering_at(self.address) is not self.box:
            self.drop("no beat for 9 s")

    def drop(self, why: str) -> None:
        """The connection is gone, and known to be."""
        if self.box is None or self.stopped or self.machines.controller.dead:
            return
        self.box = None
        self._report(why, fresh=True)
        self._next(self._pause)

    def move(self, address: str) -> None:
        if address != self.address:
            self.address, self.box = address, None
            self._next(0.1)

    def changed(self) -> None:
        """The agent's state is another one; several changes at once are one line."""
        if self.box is not None and not self._dirty:
            self._dirty = True
            self.world.heap.after(PUSH_S, self._push)

    def _push(self) -> None:
        self._dirty = False
        if self.box is not None and not self.stopped and self.world.answering_at(self.address) is self.box:
            self._post(StatusSeen(self.rental, self.box.status()))

    def _post(self, message: Message) -> None:
        self.machines.post(message)

    def stop(self) -> None:
        self.stopped, self.box = True, None
        if self._timer is not None:
            self._timer.cancel()


class SimMachines:
    """What `Loop` and `perform` ask of `Machines`."""

    def __init__(
        self, controller: Controller, home: Home, clock: SimClock, post: Callable[[Message], None], epoch: int
    ) -> None:
        self.controller, self.world = controller, controller.world
        self.home, self.clock, self.post, self.epoch = home, clock, post, epoch
        self.links: dict[str, Link] = {}

    # --- connections --------------------------------------------------------------------------------------------------

    def watch(self, rental: RentalFacts, job: Job, spec: object, runs: object = ()) -> None:
        row, instance = rental.rental, rental.sight.instance
        if instance is None or instance.endpoint is None:
            return
        link = self.links.get(row.id)
        if link is None:
            self.links[row.id] = Link(self, row.id, job.id, row.nonce, instance.endpoint.host)
        else:
            link.move(instance.endpoint.host)

    def unwatch(self, rental: str) -> None:
        link = self.links.pop(rental, None)
        if link is not None:
            link.stop()

    def job_of(self, rental: str) -> str | None:
        link = self.links.get(rental)
        return link.job if link is not None else None

    def stop(self) -> None:
        for rental in list(self.links):
            self.unwatch(rental)

    def forget(self, job: Job, rentals: Iterable[Rental]) -> None:
        pass  # no secrets here

    def explain(
        self, job: Job, write: act.SetOutcome | act.SetTaskOutcome, facts: Facts
    ) -> act.SetOutcome | act.SetTaskOutcome:
        return write

    # --- calls --------------------------------------------------------------------------------------------------------

    def _box(self, context: Context) -> Box:
        """The machine at the other end of the kept connection."""
        assert context.rental is not None
        link = self.links.get(context.rental.id)
        if link is None or link.box is None:
            if self.controller.dead:  # the command had left before the controller died
                found = self.world.box_of_rental(context.rental.id)
                if found is not None and self.world.reachable(found):
                    return found
            raise Unreachable("there is no connection at the moment", reason="closed", where=context.rental.id)
        if self.world.answering_at(link.address) is not link.box:
            self.world.slow(30.0)
            raise Unreachable("no answer", reason="timeout", where=context.rental.id)
        if self._hits("ssh-cut", context):
            link.drop("connection reset")
            raise Unreachable("reset", reason="reset", where=context.rental.id)
        return link.box

    def _hits(self, kind: str, context: Context) -> bool:
        hit = self.world.faults.hits(kind, self.world.heap.now)
        found = self.world.box_of_rental(context.rental.id) if hit and context.rental is not None else None
        if found is not None:
            self.world.oracle.disturb_box(found.id, PAUSE_MAX_S)
        return hit

    def _answered(self, context: Context) -> None:
        """The agent has done it; the answer may not arrive."""
        if self._hits("answer-lost", context):
            raise Unreachable("reset after the command", reason="reset", where=context.job.id)

    def _copied(self, context: Context, what: str) -> None:
        """A copy that was told once, and taken back."""
        assert context.rental is not None
        assert context.assignment is not None
        rental, run = context.rental.id, context.assignment.key
        self.post(TransferSeen(rental, run, what, 50, 100, 10.0))
        self.post(TransferSeen(rental, run, ""))

    def arm(self, context: Context, end: float, caps: Caps) -> None:
        box = self._box(context)
        assert context.rental is not None
        if self._hits("arm-fails", context):
            raise AgentRefused("io", "No space left on device", {})
        box.command(self.epoch, context.rental.nonce)
        # The agent measures the end on its own clock from the sender's, so a wrong wall clock shifts nothing here
        true_end = end - self.clock.skew
        box.arm(true_end, end, context.policy.grace_s, "poweroff" if caps.power_off_allowed else "kill")
        self._answered(context)

    def order(self, context: Context) -> Mapping[str, Any]:
        box = self._box(context)
        rental, run = context.rental, context.assignment
        assert rental is not None
        assert run is not None
        box.command(self.epoch, rental.nonce)
        already = box.order(
            context.job.id, run.task, run.n, self.world.program(context.job.name), run.resume_name, context.after,
            context.room_s, context.limit_s,
        )  # fmt: skip
        self._answered(context)
        return {"already": already, "after": context.after}

    def withdraw(self, context: Context) -> Mapping[str, Any]:
        box = self._box(context)
        rental, run = context.rental, context.assignment
        assert rental is not None
        assert run is not None
        box.command(self.epoch, rental.nonce)
        box.withdraw(context.job.id, run.task, run.n)
        self._answered(context)
        return {}

    def move_limit(self, context: Context) -> Mapping[str, Any]:
        box = self._box(context)
        rental, run = context.rental, context.assignment
        assert rental is not None
        assert run is not None
        box.command(self.epoch, rental.nonce)
        there = box.runs.get(run.key)
        if there is None:
            raise AgentRefused("missing", f"{run.key} was never ordered", {})
        there.limit_s = context.limit_s
        self._answered(context)
        return {"limit_s": context.limit_s}

    def signal(self, context: Context, effect: act.SendSignal) -> Mapping[str, Any]:
        box = self._box(context)
        assert context.rental is not None
        box.command(self.epoch, context.rental.nonce)
        answer = box.signal(f"{effect.task}.{effect.n}", str(effect.why), effect.grace_s)
        self._answered(context)
        return answer

    def close(self, context: Context) -> Mapping[str, Any]:
        box = self._box(context)
        rental, run = context.rental, context.assignment
        assert rental is not None
        assert run is not None
        box.command(self.epoch, rental.nonce)
        dead = box.close(context.job.id, run.task, run.n)
        self._answered(context)
        return {"dead": dead}

    def prepare(self, context: Context) -> Mapping[str, Any]:
        assert context.rental is not None
        box = self.world.box_of_rental(context.rental.id)
        try:
            done = self._prepared(context)
        except (Unreachable, TransferError):
            if box is not None:
                self.world.oracle.failed_prepares[box.id] += 1
            raise
        if box is not None:
            self.world.oracle.failed_prepares[box.id] = 0  # five in a row make a bad host
        return done

    def _prepared(self, context: Context) -> Mapping[str, Any]:
        box, run = self._box(context), context.assignment
        assert run is not None
        self._copied(context, "code")
        self.world.slow(10.0)
        if self._hits("prepare-fails", context):
            raise TransferError("rsync: connection unexpectedly closed", code=12)
        if run.resume_hash:
            found = [m for m in listing(self.home, context.job.id, run.task).manifests if m.hash == run.resume_hash]
            if not found:
                raise WorkFailed(f"{run.resume_name} is not in the mirror any more", Reason.CHECKPOINT)
            box.prepared[run.key] = found[0].step
        return {"seconds": 10.0}

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def mirror(self, context: Context) -> Mapping[str, Any]:
        box, run, job = self._box(context), context.assignment, context.job
        assert run is not None
        self._copied(context, "checkpoint")
        self.world.slow(3.0)
        if self._hits("mirror-fails", context):
            raise TransferError("rsync: read error", code=23)
        there = box.runs.get(run.key)
        complete = sorted((c for c in there.checkpoints if c.complete), key=lambda c: c.step) if there else []
        keep = context.spec.checkpoint.keep if context.spec.checkpoint is not None else 3
        rows = []
        for found in complete[-keep:]:
            if (run.key, found.name, 1000 + found.step, found.begun) not in context.mirrored:
                rows.append(self._store(job.id, run.task, run.n, found.name, found.step, run.resume_hash or None))
        protected = frozenset({run.resume_hash} if run.resume_hash else ())
        pruned = [self._row(m) for m in prune(self.home, job.id, run.task, keep, protected)]
        self.world.oracle.mirror_changed(self.home, job.id, run.task)
        seen = {(run.key, c.name, 1000 + c.step, c.begun) for c in complete}
        return {"rows": rows, "pruned": pruned, "mirrored": seen, "rate": None, "words": []}

    def _store(self, job: str, task: str, n: int, name: str, step: int, parent: str | None) -> CheckpointRow:
        """Parts, then the manifest."""
        data = f"{job} {task} {n} {step}".encode()
        files = (StoredFile(name, len(data), hashlib.sha256(data).hexdigest()),)
        bare = Manifest(job, task, n, name, step, files, len(data), parent, "")
        manifest = Manifest(job, task, n, name, step, files, len(data), parent, content_hash(bare))
        mirror = self.home.mirror(job, task)
        path = manifest_path(mirror, manifest)
        if not path.exists() or problem(mirror, manifest):
            parts = parts_of(mirror, manifest)
            parts.mkdir(parents=True, exist_ok=True)
            (parts / name).write_bytes(data)
            write_private(path, to_bytes(manifest))
            self.world.oracle.durable(job, task, n, step)
        return self._row(manifest)

    def list_mirror(self, context: Context, task: str) -> Mapping[str, Any]:
        found = listing(self.home, context.job.id, task)
        over = passed_over(found.manifests)
        return {
            "rows": [self._row(m) for m in found.manifests], "passed_over": {m.hash for m, _ in over}, "words": [],
            "began": self.clock.utc(),
        }  # fmt: skip

    def inherit(self, old: Job, new: Job, rows: tuple[CheckpointRow, ...]) -> list[CheckpointRow]:
        return [self._row(m) for m in inherit(self.home, old.id, new.id, "t0", (row.hash for row in rows))]

    def _row(self, m: Manifest) -> CheckpointRow:
        return CheckpointRow(m.job, m.task, m.n, m.name, m.step, m.hash, m.bytes, m.parent or "", self.clock.utc())

    # --- results ------------------------------------------------------------------------------------------------------

    def collect(self, context: Context, effect: act.CollectResults) -> Mapping[str, Any]:
        box, run = self._box(context), context.assignment
        assert run is not None
        self.world.slow(self.world.program(context.job.name).upload_s if effect.final else 1.0)
        if self._hits("collect-fails", context):
            raise TransferError("rsync: connection reset", code=12)
        if effect.final:
            self.world.results[context.job.id] = (box.id, run.key)
            return {"environment": {}, "folder": "", "rate": None, "words": []}
        return {"rate": None, "bytes_left": 0}
