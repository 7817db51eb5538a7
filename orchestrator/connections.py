"""Kept connections to all open machines, and calls of their agents over them.

The loop says which machines to watch and where they answer now; workers ask agents over the connection that is there.
A call without a connection fails at once as unreachable: the watcher is reconnecting, and the effect is repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from orchestrator import secrets, ssh
from orchestrator.clock import Clock
from orchestrator.home import Home
from orchestrator.messages import Message
from orchestrator.model import Assignment, Job, Rental, RentalFacts
from orchestrator.ssh_errors import Unreachable
from orchestrator.watch import MachineWatch

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec

CALL_S = 30.0  # one agent call; a machine that needs longer is as good as silent


def noted_in(spec: JobSpec) -> frozenset[str]:
    """The logs that something is read from: a sweep's metric, a batch's marks."""
    if spec.sweep is not None and spec.sweep.metric is not None:
        return frozenset({"run" if spec.sweep.metric.regex else "metrics"})
    return frozenset({"done", "failed"}) if spec.batch is not None else frozenset()


class Connections:
    """Watchers by rental. `watch`, `unwatch` and `stop` are the loop's; the rest may be called by any worker."""

    def __init__(self, home: Home, clock: Clock, post: Callable[[Message], None], epoch: int) -> None:
        self._home, self._clock, self._post, self._epoch = home, clock, post, epoch
        self._watches: dict[str, MachineWatch] = {}
        self._jobs: dict[str, str] = {}
        self._environments: dict[str, dict[str, Any]] = {}  # rental -> what a machine of many tasks has
        self._brought: set[str] = set()  # rentals where code and data of a job of many tasks are verified
        self._inspected: set[str] = set()  # rentals whose machine was looked at and is well
        self._lock = threading.Lock()

    def watch(self, rental: RentalFacts, job: Job, spec: JobSpec, runs: Iterable[Assignment] = ()) -> None:
        """Keep a connection to a live machine at the address where the provider shows it now; `runs`: of its job."""
        row, instance = rental.rental, rental.sight.instance
        if instance is None or instance.endpoint is None:
            return
        target = ssh.Target(
            row.id,
            instance.endpoint.host,
            instance.endpoint.port,
            instance.endpoint.user,
            instance.host_keys,
            self._home.rental(row.id),
        )
        with self._lock:
            known = self._watches.get(row.id)
            if known is None:
                known = self._new_watch(row, job, spec)
        known.admit(frozenset(run.key for run in runs if run.rental == row.id))
        known.address(target)

    def _new_watch(self, row: Rental, job: Job, spec: JobSpec) -> MachineWatch:
        progress = spec.progress
        watch = MachineWatch(
            row.id,
            job.id,
            row.nonce,
            self._home,
            self._clock,
            self._post,
            secrets=tuple(secrets.load(self._home, job.id).values()),
            progress_regex=progress.regex if progress is not None else None,
            progress_total=float(progress.total) if progress is not None and progress.total else None,
            noted=noted_in(spec),
        )
        self._watches[row.id], self._jobs[row.id] = watch, job.id
        watch.start()
        return watch

    def unwatch(self, rental: str) -> None:
        """End the connection to a machine that is being released."""
        with self._lock:
            watch = self._watches.pop(rental, None)
            self._jobs.pop(rental, None)
            self._inspected.discard(rental)
            self._brought.discard(rental)
            self._environments.pop(rental, None)
        if watch is not None:
            watch.stop()
            if watch.target is not None:  # OpenSSH's shared connection would linger for a minute
                threading.Thread(target=ssh.stop_sharing, args=(watch.target,), daemon=True).start()

    def job_of(self, rental: str) -> str | None:
        """The job whose machine is watched under this rental; None when it is not."""
        return self._jobs.get(rental)

    def stop(self) -> None:
        """End all connections; what runs on the machines goes on."""
        for rental in list(self._watches):
            self.unwatch(rental)

    def _ask(self, rental: Rental, command: str, timeout_s: float = CALL_S, **payload: Any) -> dict[str, Any]:
        document = {"epoch": self._epoch, "nonce": rental.nonce, **payload}
        return self._connection(rental).agent(command, document, timeout_s)

    def _connection(self, rental: Rental) -> ssh.Connection:
        watch = self._watches.get(rental.id)
        connection = watch.connection if watch is not None else None
        if connection is None or not connection.alive:
            raise Unreachable("there is no connection at the moment", reason="closed", where=rental.id)
        return connection
