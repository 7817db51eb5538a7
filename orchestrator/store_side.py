"""The object-store side of effects: what a machine is given, what it mirrored, what it fetches to resume.

Runs in worker threads beside `machine.Machines`; opens no books. The machine moves the bytes; this side gives it what
it may do (`objects.base.Access`), and believes the store only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from orchestrator import checkpoints
from orchestrator.execute import Context, WorkFailed
from orchestrator.model import Assignment, Job
from orchestrator.objects.checkpoints import StoreListing, StoreMirror
from orchestrator.objects.layout import Layout, filled
from orchestrator.objects.places import Place, Places
from orchestrator.ssh_errors import AgentRefused, SshError
from orchestrator.sync import Progress

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec
    from orchestrator.objects.manifests import StoredCheckpoint
    from orchestrator.ssh import Connection

Ask = Callable[..., dict[str, Any]]
Tell = Callable[[Progress], None]

ACCESS_OVER = ("slot is left", "403", "ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "TokenRefreshRequired")
LATE_S = 3600.0  # access outlives a machine's end by this: its end may be moved out while this computer sleeps
OBJECT_SLOTS, MANIFEST_SLOTS = 3000, 400  # a night of checkpoints, in about 2 MB of URLs
SLOTS_LOW = OBJECT_SLOTS // 2
RENEW_SHARE = 0.5  # access is renewed after half of its life, so that a short sleep of ours does not matter
GET_S = 6 * 3600  # a URL to fetch one object: longer than any resume takes
WAIT_S = 4.0  # one look at a mirror that is at work; the loop comes again
POLL_S = 0.5
LISTEN_S = 2.0  # the agent answers when a transfer ends, after so long at the latest: a start of it costs 0.15 CPU-s
STALL_S = 600.0  # a transfer that has not moved for so long has failed

log = structlog.get_logger()


class StoreSide:
    """The places of all jobs, and the work on them."""

    def __init__(self, places: Places, utc: Callable[[], float]) -> None:
        self.places, self._utc = places, utc
        self._mirrors: dict[tuple[str, str, str], StoreMirror] = {}
        self._said: set[tuple[str, str]] = set()

    # --- places -------------------------------------------------------------------------------------------------------

    def mirror_of(self, spec: JobSpec, job: Job, task: str) -> StoreMirror | None:
        """The task's mirror in an object store; None when this computer is the mirror."""
        place = mirror_place(spec)
        if place is None:
            return None
        opened = self.places.of(filled(place, job.name, task))
        layout = Layout(opened.location, job.id, task)
        mark = (job.id, task, opened.location.url)
        known = self._mirrors.get(mark)
        if known is None or known.store is not opened.store:
            known = self._mirrors[mark] = StoreMirror(opened.store, layout)
        return known

    def forget(self, job: str) -> None:
        """A job is over."""
        self._mirrors = {mark: mirror for mark, mirror in self._mirrors.items() if mark[0] != job}

    # --- what a machine is given --------------------------------------------------------------------------------------

    def give(self, ask: Ask, context: Context, mirror: StoreMirror, told: dict[str, Any] | None = None) -> float:
        """Give a run what it may do below its own prefix; UTC at which that is to be renewed. `told`: its mirror's
        state as the agent told it, for the numbers of the next slots."""
        run, job, rental = context.assignment, context.job, context.rental
        assert run is not None
        assert rental is not None
        prefix, now = mirror.layout.run(run.n), self._utc()
        seconds = int(max(rental.end, rental.wanted_end) - now + LATE_S)
        access = mirror.store.access(prefix, max(seconds, 0), f"gpujob-{job.id}-{run.key}")
        spec = context.spec.checkpoint
        document: dict[str, Any] = {
            "base": mirror.store.base_url, "prefix": prefix, "kind": access.kind, "keys": dict(access.keys),
            "until": access.until, "job": job.id, "task": run.task, "n": run.n, "keep": spec.keep if spec else 3,
            "parent": run.resume_hash or None, "ordinal": run.resume_step or 0,
            "rate": mirror.layout.mirror.settings.bandwidth_bytes,
        }  # fmt: skip
        if not access.keys:
            left = int((access.until or now + seconds) - now)
            document["slots"] = slots(mirror, prefix, told or {}, left)
        ask("store", task=run.task, n=run.n, store=document)
        return now + RENEW_SHARE * (access.until - now) if access.until is not None else now + LATE_S * 24

    # --- mirroring ----------------------------------------------------------------------------------------------------

    def follow(
        self, ask: Ask, connection: Connection, context: Context, mirror: StoreMirror, tell: Callable[[str], Tell]
    ) -> tuple[dict[str, Any], bool]:
        """The agent's word on a run's mirror, after a moment in which it may get on; True: access was given anew."""
        run, rental = context.assignment, context.rental
        assert run is not None
        assert rental is not None
        until, given, began = time.monotonic() + WAIT_S, False, time.monotonic()
        while True:
            status = connection.agent("status", {"nonce": rental.nonce})
            seen = status.get("runs", {}).get(run.key, {})
            told = seen.get("mirror") or {}
            if not given and self._needs_access(told, context, mirror):
                self.give(ask, context, mirror, told)
                given = True
            busy = told.get("busy") or {}
            if busy.get("total"):
                spent = max(0.1, time.monotonic() - began)
                tell(str(busy.get("name", "checkpoint")))(
                    Progress(int(busy.get("sent") or 0), int(busy["total"]), int(told.get("sent") or 0) / spent)
                )
            complete = [c for c in seen.get("checkpoints", ()) if c.get("complete")]
            if not left_of(complete, told, context) or told.get("error") or time.monotonic() >= until:
                return {
                    **told,
                    "complete": complete,
                    "disk": status.get("disk"),
                    "dead": seen.get("dead") is True,
                }, given
            time.sleep(POLL_S)

    def _needs_access(self, told: dict[str, Any], context: Context, mirror: StoreMirror) -> bool:
        until = told.get("until")
        if not told or (until is not None and until - self._utc() < 300.0):
            return True
        error = str(told.get("error") or "")  # a session that was revoked, a key that was changed, slots that ran out
        return context.assignment is not None and any(word in error for word in ACCESS_OVER)

    def listing(self, mirror: StoreMirror) -> tuple[StoreListing, list[str]]:
        """The complete listing, and words on what does not hold, each said once."""
        listed = mirror.listing()
        words = []
        for broken in listed.broken:
            if (broken.key, broken.why) not in self._said:
                self._said.add((broken.key, broken.why))
                words.append(f"{broken.key} is not resumed from: {broken.why}")
        return listed, words

    # --- resuming -----------------------------------------------------------------------------------------------------

    def bring_down(
        self, ask: Ask, connection: Connection, context: Context, found: StoredCheckpoint, mirror: StoreMirror,
        remote: str, tell: Tell,
    ) -> None:  # fmt: skip
        """The machine fetches a checkpoint into the absolute folder `remote`; every file is compared with its hash."""
        run = context.assignment
        assert run is not None
        manifest = found.manifest
        make = [
            {"path": file.path, "link": file.link} if file.link else {"path": file.path, "size": file.size}
            for file in manifest.files
        ]
        for again in (False, True):
            items = [
                {"id": number, "name": ref.key.rpartition("/")[2], "url": mirror.store.presign_get(ref.key, GET_S),
                 "size": ref.size, "sha256": ref.sha256, "spans": [list(span) for span in spans]}
                for number, (ref, spans) in enumerate(zip(found.objects, found.by_object(), strict=True))
            ]  # fmt: skip
            state = self.transfer(
                ask, run, f"resume-{manifest.id}",
                {"kind": "down", "root": remote, "items": items, "make": make, "list": manifest.name}, again, tell,
            )  # fmt: skip
            if state["state"] == "done":
                if "files" in state:  # hashed on their way
                    there = checkpoints.stored_as(state["files"], manifest.name)
                else:  # by an agent that does not list what it brought
                    there = checkpoints.stored_there(connection, f"{remote}/{manifest.name}", manifest.name)
                if set(there) == set(manifest.files):
                    return
            elif "other bytes" not in str(state.get("error")):
                raise WorkFailed(f"checkpoint {manifest.name} was not fetched: {state.get('error')}")
        mirror.mark_damaged(found)
        words = f"checkpoint {manifest.name} in {mirror.layout.mirror.url} is damaged: it came with other bytes"
        raise WorkFailed(words, data={"damaged": manifest.hash})

    def transfer(
        self, ask: Ask, run: Assignment, name: str, wanted: dict[str, Any], again: bool, tell: Tell
    ) -> dict[str, Any]:
        """Have the agent move items, and wait for its end; WorkFailed when nothing moves any more."""
        asked = time.monotonic()
        begun = ask("transfer", task=run.task, n=run.n, id=name, again=again, wait=LISTEN_S, **wanted)
        moved, at, began = -1, time.monotonic(), time.monotonic()
        state = begun
        while state.get("state") == "running":
            if int(state.get("bytes") or 0) > moved:
                moved, at = int(state.get("bytes") or 0), time.monotonic()
                spent = max(0.1, time.monotonic() - began)
                tell(Progress(moved, int(state.get("total") or 0) or None, moved / spent))
            if time.monotonic() - at > STALL_S:
                ask("transfer", task=run.task, n=run.n, id=name, stop=True)  # what it did is noted: a repeat goes on
                raise WorkFailed(f"transfer {name} has not moved for {STALL_S / 60:.0f} minutes")
            time.sleep(max(0.0, asked + POLL_S - time.monotonic()))  # of an agent that does not wait by itself
            asked = time.monotonic()
            state = ask("transfer", task=run.task, n=run.n, id=name, wait=LISTEN_S)
        return state


def mirror_place(spec: JobSpec) -> str | None:
    """`checkpoint.mirror` where it names a store."""
    from jobspecs.rules import is_remote

    place = spec.checkpoint.mirror if spec.checkpoint is not None else None
    return place if place and is_remote(place) else None


def slots(mirror: StoreMirror, prefix: str, told: dict[str, Any], seconds: int) -> dict[str, Any]:
    """Presigned URLs of the next slots: their names are fixed, what they will hold is not known yet."""
    found: dict[str, Any] = {}
    for kind, letter, count in (("objects", "s", OBJECT_SLOTS), ("manifests", "m", MANIFEST_SLOTS)):
        first = int(told.get(f"next_{kind}") or 0)
        found[f"first_{kind}"] = first
        found[kind] = [
            mirror.store.presign_put(f"{prefix}/{letter}/{number:06d}", seconds)
            for number in range(first, first + count)
        ]
    return found


def left_of(complete: list[dict[str, Any]], told: dict[str, Any], context: Context) -> list[dict[str, Any]]:
    """The newest complete checkpoints that the agent has not sent yet."""
    run, spec = context.assignment, context.spec.checkpoint
    assert run is not None
    done = {(mark[0], mark[1], mark[2]) for mark in told.get("done", ())}
    newest = sorted(complete, key=lambda c: (c["step"], c["mtime"]))[-(spec.keep if spec is not None else 3) :]
    return [
        c for c in newest
        if (c["name"], c["bytes"], c["mtime"]) not in done
        and (run.key, c["name"], c["bytes"], c["mtime"]) not in context.mirrored
    ]  # fmt: skip


def old_agent(error: SshError) -> bool:
    """Whether a machine's agent is of a version that knows no stores: then this computer is the mirror."""
    return isinstance(error, AgentRefused) and error.error == "invalid" and "no command" in str(error)


__all__ = ["Place", "StoreSide", "left_of", "mirror_place", "old_agent", "slots"]
