"""Mirrors a run's checkpoints to an object store while it runs, whether a controller listens or not.

One process for each run, of low priority, started by the supervisor where `store` left an access file. It has what that
file gives (keys that end at the run's prefix, or presigned URLs of numbered slots), and no more.

Rules
- Objects first, the manifest last: what has no manifest does not exist. The controller believes neither before it has
  compared the store's own sizes and hashes.
- A checkpoint that changes while it is sent is given up and looked at again.
- Objects of the furthest checkpoint are not sent twice. Only of that one: the controller never removes it.
- What was sent is noted, so a process that was killed goes on where it stopped; a slot is never used twice.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import queue
import threading
import time
import traceback
from typing import Any

from orchestrator.agent.best import best_named
from orchestrator.agent.checkpoints import checkpoints_of, fingerprint
from orchestrator.agent.files import jot, note, read_json, read_text, to_json
from orchestrator.agent.pieces import OBJECTS_MAX, Piece, checkpoint_files, chunk_size, cut, new_md5
from orchestrator.agent.runs import Run
from orchestrator.agent.sigv4 import key_url, signed_headers
from orchestrator.agent.wire import FilesChanged, Wire, WireError

SENDERS = 4  # connections at once
LOOK_S = 1.0  # between two looks for new checkpoints
REST_FIRST_S, REST_MAX_S = 2.0, 60.0  # between two tries of a checkpoint that failed
TELL_EVERY_S = 1.0
SLOT_SHARE = 16  # one checkpoint takes at most this part of the slots that are left: larger chunks where they run out
NICE = 10  # a tenth of a core beside programs that want all of them: at 19 nothing would ever become durable
NO_SLOT = "no presigned slot is left"
MANIFEST_FORMAT = 1


class Access:
    """The access file as it is now: who may write where, and until when."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.keys: dict[str, str] = given.get("keys") or {}
        self.slots: dict[str, Any] = given.get("slots") or {}

    def url(self, key: str) -> str:
        return key_url(self.given["base"], self.given["prefix"] + "/" + key)

    @property
    def by_slots(self) -> bool:
        return not self.keys

    def slot(self, kind: str, number: int) -> str:
        """The presigned URL of a slot; "" when it was not given."""
        at = number - int(self.slots.get("first_" + kind, 0))
        urls: list[str] = self.slots.get(kind) or []
        return urls[at] if 0 <= at < len(urls) else ""


class Ledger:
    """What this run has in the store, as lines of `mirror.log`: slots that were begun, objects, manifests."""

    def __init__(self, run: Run) -> None:
        self.path, self.lock = run.path("mirror.log"), threading.Lock()
        self.objects: dict[str, dict[str, Any]] = {}  # of the checkpoint under way and of the furthest one
        self.manifests: list[dict[str, Any]] = []
        self.next = {"objects": 0, "manifests": 0}
        for line in read_text(self.path).splitlines():
            with contextlib.suppress(ValueError):  # the last line of a process that was killed
                self.take(json.loads(line))

    def take(self, entry: dict[str, Any]) -> None:
        if "slot" in entry:
            self.next[entry["kind"]] = max(self.next[entry["kind"]], entry["slot"] + 1)
        elif "manifest" in entry:
            self.manifests.append(entry)
        elif "forget" in entry:
            self.objects = {}
        elif "sha256" in entry:
            self.objects[entry["sha256"]] = entry

    def add(self, entry: dict[str, Any]) -> None:
        with self.lock:
            self.take(entry)
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(fd, to_json(entry) + b"\n")
            finally:
                os.close(fd)

    def begin_slot(self, kind: str) -> int:
        with self.lock:
            number = self.next[kind]
            self.next[kind] = number + 1
        self.add({"slot": number, "kind": kind})
        return number

    def has(self, found: dict[str, Any]) -> bool:
        mark = [found["name"], found["bytes"], found["mtime"]]
        return any(entry["mark"] == mark for entry in self.manifests)

    @property
    def furthest(self) -> dict[str, Any] | None:
        return max(self.manifests, key=lambda entry: entry["step"], default=None)


class Mirror:
    """The process of one run."""

    def __init__(self, run: Run) -> None:
        self.run, self.ledger = run, Ledger(run)
        self.access = self.load()
        self.wire = Wire(float((self.access.given if self.access else {}).get("rate") or 0))
        self.base = list(self.ledger.objects.values())  # objects of the furthest checkpoint, which are not sent again
        self.busy: dict[str, Any] = {}
        self.error = ""
        self.told = 0.0

    def load(self) -> Access | None:
        given = read_json(self.run.path("store.json"))
        return Access(given) if given else None

    def main(self) -> None:
        rest, dead = REST_FIRST_S, False
        while not self.run.closed:
            self.access = self.load()
            if self.access is None:
                return
            self.wire.throttle.rate = float(self.access.given.get("rate") or 0)
            ended = dead
            dead = self.run.ended is not None  # one more look after the end: what was saved at the very last
            todo = self.todo()
            if not todo:
                self.error = ""
                self.tell(force=True)
                if ended:
                    return
                time.sleep(LOOK_S)
                continue
            try:
                self.send(todo[-1])
                self.error, rest = "", REST_FIRST_S
            except (WireError, FilesChanged, OSError) as error:
                self.failed(error)
                self.tell(force=True)
                time.sleep(LOOK_S if isinstance(error, FilesChanged) else rest)
                rest = min(REST_MAX_S, rest * 2)

    def failed(self, error: Exception) -> None:
        changed = isinstance(error, FilesChanged) or (isinstance(error, WireError) and error.kind == "changed")
        self.error = "" if changed else "%s: %s" % (self.busy.get("name", "mirror"), error)
        note("mirror %s: %s" % (self.run.key, error))

    def todo(self) -> list[dict[str, Any]]:
        """The newest complete checkpoints that are not in the store yet, oldest first."""
        assert self.access is not None
        complete = [item for item in checkpoints_of(self.run) if item["complete"]]
        complete.sort(key=lambda item: (item["step"], item["mtime"]))
        newest = complete[-int(self.access.given.get("keep") or 1) :]
        return [item for item in newest if not self.ledger.has(item)]

    def send(self, found: dict[str, Any]) -> None:
        """One checkpoint: its objects, and its manifest when it is still what it was."""
        assert self.access is not None
        assert self.run.order is not None
        wanted = self.run.order.get("checkpoint") or {}
        root = os.path.normpath(os.path.join(self.run.folders()["ckpt"], wanted.get("path") or ""))
        top = os.path.join(root, found["name"])
        before = self.look(top)
        files = checkpoint_files(top)
        total = sum(entry.get("size", 0) for entry in files)
        self.busy = {"name": found["name"], "sent": 0, "total": total}
        self.tell(force=True)
        left = len(self.access.slots.get("objects") or ()) - (
            self.ledger.next["objects"] - int(self.access.slots.get("first_objects", 0))
        )
        chunk = chunk_size(total, max(1, left // SLOT_SHARE) if self.access.by_slots else OBJECTS_MAX)
        pieces = self.send_pieces(cut(root, files, chunk))
        told = {**found, "best": best_named(top)}
        if self.look(top) != before:
            raise FilesChanged("%s was written to while it was sent" % found["name"])
        self.publish(told, files, pieces, total)
        self.busy = {}
        self.tell(force=True)

    def look(self, top: str) -> tuple[int, ...]:
        try:
            return fingerprint(top)
        except FileNotFoundError:
            raise FilesChanged("%s went away" % top) from None

    def send_pieces(self, pieces: Any) -> list[tuple[Piece, dict[str, Any]]]:
        """Hash in this thread, send in others; the first error ends all."""
        waiting: queue.Queue[Piece | None] = queue.Queue(SENDERS)
        stored: dict[int, dict[str, Any]] = {}
        made: list[Piece] = []
        errors: list[Exception] = []

        def sender() -> None:
            while True:
                piece = waiting.get()
                if piece is None:
                    self.wire.drop()
                    return
                if errors:
                    continue
                try:
                    stored[id(piece)] = self.store(piece)
                    self.busy["sent"] = self.busy.get("sent", 0) + piece.size
                    self.tell()
                except Exception as error:  # told by the thread that waits for it
                    errors.append(error)

        threads = [threading.Thread(target=sender, daemon=True) for _ in range(SENDERS)]
        for thread in threads:
            thread.start()
        try:
            for piece in pieces:
                if errors or self.run.closed:
                    break
                made.append(piece)
                waiting.put(piece)
        finally:
            for _ in threads:
                waiting.put(None)
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]
        if self.run.closed:
            raise FilesChanged("the run was closed")
        return [(piece, stored[id(piece)]) for piece in made]

    def store(self, piece: Piece) -> dict[str, Any]:
        known = self.ledger.objects.get(piece.sha256)
        if known is not None and known["size"] == piece.size:
            return known
        key = self.put("objects", "o/" + piece.sha256, piece.spans, piece.size, piece.sha256, piece.md5)
        entry = {"sha256": piece.sha256, "md5": piece.md5, "size": piece.size, "key": key}
        self.ledger.add(entry)
        return entry

    def put(self, kind: str, name: str, body: Any, size: int, sha256: str, md5: str) -> str:
        """Send one object, by keys under its own name, or into the next slot; returns its key below the prefix."""
        if self.access is not None and self.access.by_slots:
            number = self.ledger.begin_slot(kind)
            name = "%s/%06d" % ("s" if kind == "objects" else "m", number)
            self.wire.call(lambda: self.put_slot(kind, number, body, size, md5))
        else:
            self.wire.call(lambda: self.put_signed(name, body, size, sha256))
        return name

    def put_signed(self, name: str, body: Any, size: int, sha256: str) -> None:
        access = self.load()  # renewed, perhaps, since the last try
        if access is None:
            raise WireError("refused", 0, "", "the access to the store was taken away")
        url = access.url(name)
        given = {
            "x-amz-checksum-sha256": base64.b64encode(bytes.fromhex(sha256)).decode(),
            "content-type": "application/octet-stream",
        }
        headers = signed_headers("PUT", url, given, sha256, access.keys, time.time() + self.wire.skew_s)
        self.wire.put(url, headers, body, size)

    def put_slot(self, kind: str, number: int, body: Any, size: int, md5: str) -> None:
        access = self.load()
        url = access.slot(kind, number) if access is not None else ""
        if not url:
            raise WireError("expired", 0, "", NO_SLOT)
        headers = {
            "content-md5": base64.b64encode(bytes.fromhex(md5)).decode(),
            "content-type": "application/octet-stream",
        }
        self.wire.put(url, headers, body, size)

    def publish(self, found: dict[str, Any], files: list[dict[str, Any]], pieces: Any, total: int) -> None:
        """The manifest: with it the checkpoint exists."""
        assert self.access is not None
        given = self.access.given
        step = found["step"]
        if step < 0:  # a name without a number: its order of arrival
            step = max([int(given.get("ordinal") or 0), *(entry["step"] for entry in self.ledger.manifests)]) + 1
        shown: list[dict[str, Any]] = []
        for entry in files:
            kept: dict[str, Any] = {key: entry[key] for key in ("path", "size", "sha256", "link") if key in entry}
            shown.append(kept if "link" in entry else {**kept, "at": []})
        for number, (piece, _) in enumerate(pieces):
            for file, offset, length in piece.parts:
                shown[file]["at"].append([number, offset, length])
        document = {
            "format": MANIFEST_FORMAT, "job": given["job"], "task": given["task"], "n": given["n"],
            "name": found["name"], "step": step, "bytes": total, "parent": given.get("parent"),
            "mark": [found["name"], found["bytes"], found["mtime"]], "best": found["best"], "files": shown,
            "objects": [
                {key: entry[key] for key in ("key", "size", "sha256", "md5")} for _, entry in pieces
            ],
        }  # fmt: skip
        data = to_json(document)
        sha256 = hashlib.sha256(data).hexdigest()
        md5 = new_digest(data)
        key = self.put("manifests", "m/%012d-%s" % (step, sha256[:16]), data, len(data), sha256, md5)
        before = self.ledger.furthest
        self.ledger.add({"manifest": key, "mark": document["mark"], "step": step, "bytes": total})
        if before is None or step >= before["step"]:
            self.base = [entry for _, entry in pieces]
        self.ledger.add({"forget": True})  # those of all others may be removed from now on
        for entry in self.base:
            self.ledger.add(entry)

    def tell(self, force: bool = False) -> None:
        """Keep how it stands for `status`."""
        now = time.monotonic()
        if not force and now - self.told < TELL_EVERY_S:
            return
        self.told = now
        state = {
            "done": [entry["mark"] for entry in self.ledger.manifests[-20:]],
            "busy": dict(self.busy), "error": self.error, "sent": self.wire.sent, "resent": self.wire.resent,
            "next_objects": self.ledger.next["objects"], "next_manifests": self.ledger.next["manifests"],
            "until": self.access.given.get("until") if self.access else None,
        }  # fmt: skip
        old = read_json(self.run.path("mirror.json"))
        if old != state:
            jot(self.run.path("mirror.json"), to_json(state))


def new_digest(data: bytes) -> str:
    digest = new_md5()
    digest.update(data)
    text: str = digest.hexdigest()
    return text


def be_modest() -> None:
    """The job's own work comes first: a small share of the processor, disk only when nobody else wants it."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    try:
        import ctypes

        numbers = {"x86_64": 251, "aarch64": 30}
        number = numbers.get(os.uname().machine)
        if number is not None:
            ctypes.CDLL(None).syscall(number, 1, 0, 3 << 13)  # ioprio_set(process, self, idle)
    except (ImportError, OSError, AttributeError) as error:
        note("no ionice: %s" % error)


def mirror_run(key: str) -> int:
    """The process: one for each run, by lock; it ends with the run's last checkpoint, or when its access is removed."""
    run = Run(key)
    fd = os.open(run.path("mirror.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    be_modest()
    try:
        Mirror(run).main()
    except Exception:  # the supervisor starts it again; what it met is in the log
        note(traceback.format_exc())
        return 1
    if run.ended is not None:
        forget_access(run)
    return 0


def forget_access(run: Run) -> None:
    """The keys and URLs of a run that is over."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(run.path("store.json"))
