"""The mirror in an object store, as the controller sees it: what is in it, what holds, what may go.

Rules
- A listing is complete or an error, and is read after it began: what it lacks was not there.
- A checkpoint holds when the store itself says that each of its objects has the size and the hash of the manifest: by
  the listing's MD5, else by the object's own checksum, else by reading it. No machine's word is enough.
- Removed are manifests first, then objects that no other manifest names. The only verified checkpoint never goes.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from orchestrator.best import best_of
from orchestrator.lineage import resume_choice
from orchestrator.mirror import Manifest
from orchestrator.objects.base import ObjectStore, Stored
from orchestrator.objects.errors import StoreMissing, StoreRefused
from orchestrator.objects.layout import Layout
from orchestrator.objects.manifests import NotAManifest, ObjectRef, StoredCheckpoint, inherited, parse
from orchestrator.resume import INHERITED

READERS = 8
BLOCK = 1 << 20
MANIFEST_MAX = 64 << 20  # a checkpoint of a hundred thousand files


@dataclass(frozen=True)
class BrokenManifest:
    """A manifest that does not hold: its key, its hash where it could be read, and why."""

    key: str
    hash: str
    why: str


@dataclass(frozen=True)
class StoreListing:
    """All of a task's mirror: checkpoints that hold, in order of run and step, and what does not hold."""

    checkpoints: tuple[StoredCheckpoint, ...]
    broken: tuple[BrokenManifest, ...] = ()

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The mirror's own form of those that hold."""
        return tuple(each.manifest for each in self.checkpoints)


class StoreMirror:
    """One task's checkpoints in one store. Remembers what it has read and compared; may be used by several threads."""

    def __init__(self, store: ObjectStore, layout: Layout) -> None:
        self.store, self.layout = store, layout
        self._read: dict[tuple[str, str], StoredCheckpoint | BrokenManifest] = {}  # (key, etag) of a manifest
        self._held: set[tuple[str, str, str]] = set()  # (key, etag, sha256) of objects
        self._lock = threading.Lock()

    def listing(self) -> StoreListing:
        """Every checkpoint of every run. Raises a StoreError when any of it cannot be seen."""
        found = self.store.list(self.layout.listed)
        objects = {each.key: each for each in found}
        places = {each.key: self.layout.place(each.key) for each in found}
        wanted = [each for each in found if (place := places[each.key]) is not None and place[1].startswith("m/")]
        damaged = {place[1][7:] for place in places.values() if place is not None and place[1].startswith("broken/")}
        with ThreadPoolExecutor(READERS, "manifests") as pool:
            read = [each for each in pool.map(self._manifest, wanted) if each is not None]
            self._list_others(read, objects)
            problems = list(pool.map(lambda each: self._problem(each, objects, damaged), read))
        good, broken = [], []
        for each, why in zip(read, problems, strict=True):
            if isinstance(each, BrokenManifest):
                broken.append(each)
            elif why:
                broken.append(BrokenManifest(each.key, each.manifest.hash, why))
            else:
                good.append(each)
        good.sort(key=lambda each: (each.manifest.n, each.manifest.step, each.manifest.hash))
        return StoreListing(tuple(good), tuple(broken))

    def _manifest(self, seen: Stored) -> StoredCheckpoint | BrokenManifest | None:
        mark = (seen.key, seen.etag or f"{seen.size}/{seen.modified}")
        known = self._read.get(mark)
        if known is None:
            place = self.layout.place(seen.key)
            assert place is not None
            try:
                data = self.store.get(seen.key, MANIFEST_MAX)
            except StoreMissing:
                return None  # pruned since it was listed
            try:
                known = parse(data, self.layout.job, self.layout.task, place[0], seen.key, self.layout.run(place[0]))
            except NotAManifest as error:
                known = BrokenManifest(seen.key, "", str(error))
            self._read[mark] = known
        return known

    def _list_others(self, read: Iterable[StoredCheckpoint | BrokenManifest], objects: dict[str, Stored]) -> None:
        """Objects of an earlier job, which inherited manifests name."""
        roots = set()
        for each in read:
            if isinstance(each, StoredCheckpoint) and each.manifest.n == INHERITED and each.objects:
                roots.add(each.objects[0].key.rpartition("/")[0].rpartition("/")[0])
        for root in roots:
            objects.update((each.key, each) for each in self.store.list(f"{root}/"))

    def _problem(
        self, each: StoredCheckpoint | BrokenManifest, objects: Mapping[str, Stored], damaged: set[str]
    ) -> str:
        if isinstance(each, BrokenManifest):
            return each.why
        if each.manifest.hash in damaged:
            return "its bytes were found damaged"
        return next((why for ref in each.objects if (why := self.object_problem(ref, objects.get(ref.key)))), "")

    def object_problem(self, ref: ObjectRef, seen: Stored | None) -> str:
        """Why an object is not what the manifest says, by the store's own word; "" when it is."""
        if seen is None:
            return f"{ref.key} is missing"
        if seen.size != ref.size:
            return f"{ref.key} has {seen.size} bytes instead of {ref.size}"
        if seen.md5 == ref.md5:
            return ""
        mark = (ref.key, seen.etag, ref.sha256)
        if mark in self._held:
            return ""
        told = self.store.head(ref.key)
        digest = told.sha256 if told is not None else ""
        if not digest and told is not None:
            digest = self.store.sha256(ref.key)  # a store that says no hash: its bytes are read
        if digest != ref.sha256:
            return f"{ref.key} has other bytes"
        self._held.add(mark)
        return ""

    def mark_damaged(self, found: StoredCheckpoint) -> None:
        """Say for good that a checkpoint's bytes did not come back as they were: it is not resumed from again."""
        place = self.layout.run(found.manifest.n)
        self.store.put(f"{place}/broken/{found.manifest.hash}", found.manifest.name.encode())

    def prune(
        self, listed: StoreListing, keep: int, protected: frozenset[str], over: frozenset[int] = frozenset()
    ) -> tuple[Manifest, ...]:
        """Remove all but the newest `keep` and the `protected` (hashes); `over`: runs that write no more, of which
        objects that no manifest names go as well. Returns what was removed."""
        if keep < 1:
            raise ValueError("keep must be at least 1: less would delete every checkpoint")
        manifests = listed.manifests
        wanted = {each.hash for each in sorted(manifests, key=lambda m: (m.n, m.step))[-keep:]} | protected
        choice = resume_choice(manifests)
        if choice is not None:
            wanted.add(choice.hash)
        gone = [each for each in listed.checkpoints if each.manifest.hash not in wanted]
        kept = [each for each in listed.checkpoints if each.manifest.hash in wanted]
        self.store.delete(each.key for each in gone)
        needed = {ref.key for each in kept for ref in each.objects}
        loose = {ref.key for each in gone if each.manifest.n != INHERITED for ref in each.objects}
        for n in over:
            root = self.layout.run(n)
            loose |= {each.key for kind in ("o", "s") for each in self.store.list(f"{root}/{kind}/")}
        self.store.delete(sorted(loose - needed))
        return tuple(each.manifest for each in gone)

    def best(self, listed: StoreListing) -> frozenset[str]:
        """Hashes of what the formats call the best, which retention keeps beside the newest."""
        told = {each.manifest.hash: each.best for each in listed.checkpoints}
        return best_of(listed.manifests, lambda manifest: told[manifest.hash])

    def inherit(self, old: StoreMirror, wanted: frozenset[str]) -> None:
        """Take over checkpoints (hashes) of an earlier job in the same store: new manifests of run 0, no copies."""
        for found in old.listing().checkpoints:
            if found.manifest.hash not in wanted:
                continue
            root = found.objects[0].key.rpartition("/")[0].rpartition("/")[0]
            data = json.dumps(inherited(found, root, self.layout.job)).encode()
            key = f"{self.layout.run(INHERITED)}/m/{found.manifest.step:012d}-{found.manifest.hash[:16]}"
            self.store.put(key, data)


def fetch(store: ObjectStore, found: StoredCheckpoint, parts: Path) -> None:
    """A checkpoint's files into the folder `parts` of this computer; StoreRefused when they are not what it names."""
    for file in found.manifest.files:
        path = parts / file.path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if file.link:
            path.unlink(missing_ok=True)
            path.symlink_to(file.link)
        else:
            with path.open("ab") as opened:
                opened.truncate(file.size)
    half = parts / ".object"
    for ref, spans in zip(found.objects, found.by_object(), strict=True):
        if store.get_to(ref.key, half) != ref.sha256:
            raise StoreRefused("it came with other bytes", f"{store.url}/{ref.key}")
        with half.open("rb") as source:
            for name, offset, length in spans:
                with (parts / name).open("r+b") as dest:
                    dest.seek(offset)
                    for left in range(length, 0, -BLOCK):
                        dest.write(source.read(min(BLOCK, left)))
    half.unlink(missing_ok=True)
    for file in found.manifest.files:
        if not file.link:
            with (parts / file.path).open("rb") as opened:
                if hashlib.file_digest(opened, "sha256").hexdigest() != file.sha256:
                    raise StoreRefused("it has other bytes than its manifest", file.path)
