"""Results of a run into an object store, from the machine itself, verified by size and hash before it goes.

Rules
- The controller signs one URL for each file (parts of large ones), so the machine needs no key; each PUT carries the
  hash that the machine announced, and the store's own listing is compared at the end. No exit code is believed.
- Small files first: when time is short, the many and vital ones are there.
- A manifest comes last. What lies there of another job is never written over: the new results get a name of their own.
- Links cannot be kept in a store; they are named in the manifest.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import artifacts
from orchestrator.execute import Context, WorkFailed
from orchestrator.model import PLAIN_TASK
from orchestrator.objects.base import ObjectStore, Stored
from orchestrator.objects.errors import StoreError, StoreMissing
from orchestrator.objects.layout import filled
from orchestrator.objects.places import Place
from orchestrator.publish import PUBLISHED
from orchestrator.store_side import GET_S, StoreSide
from orchestrator.sync import Progress

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec
    from orchestrator.model import Assignment, Job
    from orchestrator.ssh import Connection

Ask = Callable[..., dict[str, Any]]
WHOLE = 64 << 20  # bytes: larger files go in parts, so that a cut costs one part
PARTS_MAX = 9000  # of one object; stores allow 10,000
PLACE = Path("/")


@dataclass(frozen=True)
class RemoteItem:
    """One entry of `artifacts` whose `to` is a store."""

    path: str
    to: str
    when: artifacts.When


@dataclass
class _File:
    """One file on its way: where it is on the machine, its key, what the machine announced, and its parts."""

    root: str
    path: str
    place: Place
    key: str
    size: int
    sha256: str
    upload: str = ""  # of a large one
    part: int = 0

    @property
    def ids(self) -> list[str]:
        """The ids of its items."""
        if not self.upload:
            return [self.key]
        return [f"{self.key}#{self.upload}#{number}" for number in range(1, -(-self.size // self.part) + 1)]


@dataclass
class Uploaded:
    """What is in the store. `folders`: URLs; `words`: what is worth saying."""

    folders: list[str] = field(default_factory=list)
    places: list[tuple[Place, str]] = field(default_factory=list)  # and the prefix
    files: int = 0
    bytes: int = 0
    words: list[str] = field(default_factory=list)


def remote_items(spec: JobSpec, job: Job, run: Assignment) -> tuple[RemoteItem, ...]:
    """The entries that go to a store, with their names filled in."""
    from jobspecs.rules import is_remote

    listed = spec.artifacts if isinstance(spec.artifacts, tuple) else ()
    return tuple(
        RemoteItem(each.path, filled(each.to, job.name, run.task, str(run.n)), each.when)
        for each in listed
        if each.to and is_remote(each.to)
    )


def upload(
    side: StoreSide, ask: Ask, connection: Connection, context: Context, items: tuple[RemoteItem, ...], out: str,
    success: bool, tell: Callable[[Progress], None],
) -> Uploaded:  # fmt: skip
    """All of `items` into their stores. A StoreError or WorkFailed says why it did not succeed; repeating goes on."""
    job, run = context.job, context.assignment
    assert run is not None
    done = Uploaded()
    own = job.name if run.task == PLAIN_TASK else f"{job.name}/{run.task}"  # of many tasks each has its own
    folders = _folders(side, items, job, own)
    plan = artifacts.ArtifactPlan(
        out, PLACE, tuple(artifacts.Item(each.path, PLACE / str(at), each.when) for at, each in enumerate(items))
    )
    sources, _, lost = artifacts.sources_of(connection, plan, job.id, run.task, run.n, success, True)
    if lost:
        raise WorkFailed(lost)
    files: list[_File] = []
    links: dict[str, list[dict[str, str]]] = {}
    for source in sources:
        wanted = source.wanted()
        done.words += source.refused
        for path, entry in sorted(wanted.items()):
            for dest, shown in source.place(path):
                place, prefix = folders[int(dest.name)]
                if "link" in entry:
                    links.setdefault(prefix, []).append({"path": shown, "link": str(entry["link"])})
                    continue
                if not isinstance(entry.get("sha256"), str):
                    raise WorkFailed(f"{path} is still being written to")
                files.append(_File(source.root, path, place, f"{prefix}/{shown}", int(entry["size"]), entry["sha256"]))
    files.sort(key=lambda each: (each.size, each.key))
    told: dict[str, Any] = {}
    for at, root in enumerate(dict.fromkeys(each.root for each in files)):
        mine = [each for each in files if each.root == root]
        told |= _move(side, ask, run, f"results-{at}", root, mine, tell)
    for place, prefix in dict.fromkeys(folders.values()):
        here = [each for each in files if each.key.startswith(f"{prefix}/") and each.place == place]
        _check(place.store, prefix, here, told)
        rows = [{"path": each.key[len(prefix) + 1 :], "size": each.size, "sha256": each.sha256} for each in here]
        record = {
            "job": job.id, "task": run.task, "n": run.n, "outcome": "done" if success else "failed", "verified": True,
            "files": [*rows, *links.get(prefix, ())],
        }  # fmt: skip
        place.store.put(f"{prefix}/{PUBLISHED}", json.dumps(record, indent=1).encode())
        done.places.append((place, prefix))
        done.folders.append(f"s3://{place.settings.bucket}/{prefix}")
        done.files, done.bytes = done.files + len(here), done.bytes + sum(each.size for each in here)
    for prefix, found in links.items():
        done.words.append(f"{len(found)} links are in the manifest of {prefix} only: an object store has none")
    return done


def _folders(side: StoreSide, items: Iterable[RemoteItem], job: Job, own: str) -> dict[int, tuple[Place, str]]:
    """For each item its store and the prefix `to/NAME`, or `to/NAME~JOB` where another job's results lie."""
    found: dict[int, tuple[Place, str]] = {}
    for at, item in enumerate(items):
        place = side.places.of(item.to)
        prefix = place.location.key(own)
        try:
            other = json.loads(place.store.get(f"{prefix}/{PUBLISHED}")).get("job")
        except StoreMissing:
            other = job.id
        except (ValueError, AttributeError, RecursionError):
            other = None
        found[at] = (place, prefix if other == job.id else f"{prefix}~{job.id}")
    return found


def _move(
    side: StoreSide, ask: Ask, run: Assignment, name: str, root: str, files: list[_File],
    tell: Callable[[Progress], None],
) -> dict[str, Any]:  # fmt: skip
    """Have the agent send them; its word on each item, by id."""
    try:
        items = [item for each in files for item in _items(each)]
        state = side.transfer(ask, run, name, {"kind": "up", "root": root, "items": items}, False, tell)
        told: dict[str, Any] = state.get("items") or {}
        if state["state"] != "done":
            raise WorkFailed(f"not uploaded: {state.get('error')}")
        for each in files:
            if each.upload:
                etags = [str(told.get(mark, {}).get("etag", "")) for mark in each.ids]
                each.place.store.multipart_complete(each.key, each.upload, etags)
    except BaseException:
        _forget_parts(files)
        raise
    return told


def _forget_parts(files: list[_File]) -> None:
    """Parts that nothing joins are in no listing, and cost money for ever; the next try begins others."""
    for each in files:
        if each.upload:
            with contextlib.suppress(StoreError):
                each.place.store.multipart_abort(each.key, each.upload)


def _items(each: _File) -> Iterable[dict[str, Any]]:
    store = each.place.store
    if each.size <= WHOLE:
        headers = {"x-amz-checksum-sha256": base64.b64encode(bytes.fromhex(each.sha256)).decode()}
        yield {
            "id": each.key, "name": each.path, "url": store.presign_put(each.key, GET_S, headers), "size": each.size,
            "headers": headers, "spans": [[each.path, 0, each.size]],
        }  # fmt: skip
        return
    each.upload, each.part = store.multipart_start(each.key), max(WHOLE // 4, -(-each.size // PARTS_MAX))
    for number, mark in enumerate(each.ids, 1):
        offset = (number - 1) * each.part
        length = min(each.part, each.size - offset)
        yield {
            "id": mark, "name": each.path, "url": store.multipart_presign(each.key, each.upload, number, GET_S),
            "size": length, "spans": [[each.path, offset, length]],
        }  # fmt: skip


def _check(store: ObjectStore, prefix: str, files: list[_File], told: dict[str, Any]) -> None:
    """Every file as the machine announced it, by the store's own word."""
    there = {each.key: each for each in store.list(f"{prefix}/")}
    for each in files:
        why = _problem(store, each, there.get(each.key), told)
        if why:
            raise WorkFailed(f"{each.path} is not in {store.url} as it was announced: {why}")


def _problem(store: ObjectStore, each: _File, seen: Stored | None, told: dict[str, Any]) -> str:
    if seen is None:
        return "it is missing"
    if seen.size != each.size:
        return f"{seen.size} bytes instead of {each.size}"
    sums = [str(told.get(mark, {}).get("md5", "")) for mark in each.ids]
    if not each.upload and seen.md5 and seen.md5 == sums[0]:
        return ""
    if each.upload and all(sums):
        joined = hashlib.md5(b"".join(bytes.fromhex(each) for each in sums), usedforsecurity=False).hexdigest()
        if seen.etag == f"{joined}-{len(sums)}":
            return ""
    head = store.head(each.key)
    digest = (head.sha256 if head is not None else "") or store.sha256(each.key)
    return "" if digest == each.sha256 else "other bytes"
