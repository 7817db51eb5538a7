"""Files up to an object store, or objects down into files, by presigned URLs that the controller gave for just these.

Rules
- Each item is a URL and pieces of files; an item that is done is noted, so a repeat sends only the rest.
- What comes down is compared with its hash before it counts; what goes up is hashed as it goes, for the comparison with
  what the store holds.
- A process of its own: the controller may sleep meanwhile. Its list of URLs is removed when it is done.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import queue
import subprocess
import threading
import time
import traceback
from functools import partial
from typing import Any

from orchestrator.agent.asks import admit, need, need_name, need_run, patience, wait_while_running
from orchestrator.agent.files import command_lock, jot, note, read_json, read_text, replace, to_json
from orchestrator.agent.launch import own_argv, spawn_detached, start_command
from orchestrator.agent.layout import Refusal
from orchestrator.agent.pieces import new_md5
from orchestrator.agent.processes import wake_supervisor
from orchestrator.agent.runs import Run
from orchestrator.agent.wire import Wire, WireError

BAD_TRIES = 3  # the network's fault is gone by then; a store that has other bytes will have them for ever
LOCK_TRIES = 5
WORKERS = 8  # of many small files each waits for the store's answer most of the time


def store_command(ask: dict[str, Any]) -> dict[str, Any]:
    """Keep what a run may do in its store, 0600; the supervisor then sees the mirror running. Repeated: replaced."""
    run, access = need_run(ask), need(ask, "store", dict)
    for key in ("base", "prefix", "job", "task"):
        need(access, key, str)
    with command_lock():
        admit(ask)
        if run.closed:
            raise Refusal("closed", "%s is closed" % run.key)
        os.makedirs(run.folder, mode=0o700, exist_ok=True)
        replace(run.path("store.json"), to_json(access))
    start_command({})
    wake_supervisor()
    return {"ok": True}


def transfer_command(ask: dict[str, Any]) -> dict[str, Any]:
    """Begin moving items, or say how it stands where the same id was begun; `again` forgets what was done.

    `wait`: the answer may come that many seconds later, as soon as it has ended: one start of Python instead of many.
    """
    run, name = need_run(ask), need_name(ask, "id")
    wait = patience(ask)
    child: subprocess.Popen[bytes] | None = None
    with command_lock():
        admit(ask)
        os.makedirs(run.folder, mode=0o700, exist_ok=True)
        at = Move(run, name)
        if "items" in ask:
            if need(ask, "kind", str) not in ("up", "down"):
                raise Refusal("invalid", "kind is up or down")
            need(ask, "root", str)
            need(ask, "items", list)
            if ask.get("again"):
                for path in (at.path("done"), at.path("state")):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
            kept = {key: ask[key] for key in ("kind", "root", "items", "make", "rate") if key in ask}
            replace(at.path("json"), to_json(kept))
            jot(at.path("state"), to_json({"state": "running", "bytes": 0, "total": 0, "error": ""}))
            child = spawn_move(run.key, name)
    state = wait_while_running(at.path("state"), wait, child)
    if state is None:
        raise Refusal("missing", "no transfer %s of %s" % (name, run.key))
    if state["state"] == "running" and not (child and child.poll() is None) and not at.alive():
        state = read_json(at.path("state")) or state  # it may have ended between the two looks
        if state["state"] == "running" and not os.path.exists(at.path("json")):
            raise Refusal("missing", "transfer %s of %s broke off" % (name, run.key))
        if state["state"] == "running":
            spawn_move(run.key, name)
    return {"ok": True, **state}


def spawn_move(key: str, name: str) -> subprocess.Popen[bytes]:
    return spawn_detached(own_argv("_transfer", key, name))


class Move:
    """One transfer of one run: its list, what is done, how it stands."""

    def __init__(self, run: Run, name: str) -> None:
        self.run, self.name = run, name
        self.state: dict[str, Any] = {"state": "running", "bytes": 0, "total": 0, "error": "", "items": {}}
        self.lock, self.told = threading.Lock(), 0.0

    def path(self, kind: str) -> str:
        return self.run.path("transfer-%s.%s" % (self.name, kind))

    def alive(self) -> bool:
        """Whether a process holds it."""
        fd = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def main(self, ask: dict[str, Any]) -> None:
        self.kind, self.root = ask["kind"], ask["root"]
        self.wire = Wire(float(ask.get("rate") or 0))
        for entry in ask.get("make", ()):
            self.make(entry)
        items = {str(item["id"]): item for item in ask["items"]}
        done = [json.loads(line) for line in read_text(self.path("done")).splitlines() if line.endswith("}")]
        told = {str(entry["id"]): entry for entry in done}
        self.state["total"] = sum(item["size"] for item in items.values())
        for name in items:
            if name in told:
                self.state["items"][name] = told[name]
                self.state["bytes"] += items[name]["size"]
        left: queue.Queue[dict[str, Any]] = queue.Queue()
        for name, item in items.items():
            if name not in told:
                left.put(item)
        errors: list[str] = []
        threads = [threading.Thread(target=self.work, args=(left, errors), daemon=True) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.state["state"] = "failed" if errors else "done"
        self.state["error"] = errors[0] if errors else ""
        self.tell(force=True)

    def work(self, left: queue.Queue[dict[str, Any]], errors: list[str]) -> None:
        while not errors:
            try:
                item = left.get_nowait()
            except queue.Empty:
                break
            try:
                entry = self.wire.call(partial(self.send if self.kind == "up" else self.fetch, item))
            except Exception as error:  # told by `main`: the first one ends all
                errors.append("%s: %s" % (item.get("name") or item["id"], error))
                note("transfer %s: %s" % (self.name, errors[-1]))
                break
            with self.lock:
                self.state["items"][str(item["id"])] = entry
                self.state["bytes"] += item["size"]
                with open(self.path("done"), "ab") as file:
                    file.write(to_json(entry) + b"\n")
            self.tell()
        self.wire.drop()

    def make(self, entry: dict[str, Any]) -> None:
        """A link, or a file of its full size for the pieces to come."""
        path = self.path_of(entry["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if "link" in entry:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            os.symlink(entry["link"], path)
            return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            os.ftruncate(fd, entry["size"])
        finally:
            os.close(fd)

    def path_of(self, name: str) -> str:
        """Absolute; names were checked by the controller, and are checked again here."""
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError("%r leaves its folder" % name)
        return os.path.join(self.root, name)

    def spans(self, item: dict[str, Any]) -> list[tuple[str, int, int]]:
        """Absolute pieces of files."""
        return [(self.path_of(name), offset, length) for name, offset, length in item["spans"]]

    def send(self, item: dict[str, Any]) -> dict[str, Any]:
        """One object up; hashed as it is sent, for the controller to compare with what the store says."""
        md5 = new_md5()
        headers = {"content-type": "application/octet-stream", **item.get("headers", {})}
        answer = self.wire.put(item["url"], headers, self.spans(item), item["size"], md5.update)
        return {"id": item["id"], "etag": answer.get("etag", ""), "md5": md5.hexdigest()}

    def fetch(self, item: dict[str, Any]) -> dict[str, Any]:
        """One object down into its pieces of files; other bytes than announced are trouble, and asked for again."""
        writer = Writer(self.spans(item))
        try:
            self.wire.get(item["url"], {}, writer.take)
        finally:
            writer.close()
        if writer.sha256.hexdigest() != item["sha256"]:
            item["bad"] = item.get("bad", 0) + 1
            kind = "trouble" if item["bad"] < BAD_TRIES else "refused"
            raise WireError(kind, 200, "", "it came with other bytes than announced")
        return {"id": item["id"]}

    def tell(self, force: bool = False) -> None:
        now = time.monotonic()
        with self.lock:
            if not force and now - self.told < 1.0:
                return
            self.told = now
            shown = dict(self.state) if force else {**self.state, "items": {}}
            jot(self.path("state"), to_json({**shown, "resent": self.wire.resent}))


class Writer:
    """Bytes of one object into its pieces of files, one after another."""

    def __init__(self, spans: list[tuple[str, int, int]]) -> None:
        self.spans, self.sha256 = list(spans), hashlib.sha256()
        self.fd, self.at, self.left = -1, 0, 0

    def take(self, view: memoryview) -> None:
        self.sha256.update(view)
        while view:
            if not self.left:
                self.next()
            count = os.pwrite(self.fd, view[: self.left], self.at)
            self.at += count
            self.left -= count
            view = view[count:]

    def next(self) -> None:
        if not self.spans:
            raise OSError("the object has more bytes than announced")
        self.close()
        path, self.at, self.left = self.spans.pop(0)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def move(key: str, name: str) -> int:
    """The process of one transfer."""
    at = Move(Run(key), name)
    fd = os.open(at.path("lock"), os.O_RDWR | os.O_CREAT, 0o600)
    for left in reversed(range(LOCK_TRIES)):  # whoever asks whether it is held holds it for a moment
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not left:
                return 0
            time.sleep(0.02)
    ask = read_json(at.path("json"))
    if ask is None:
        return 0
    try:
        at.main(ask)
    except Exception as error:  # whoever waits must hear of it
        note(traceback.format_exc())
        jot(at.path("state"), to_json({"state": "failed", "error": "%s: %s" % (type(error).__name__, error)}))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(at.path("json"))
    return 0
