"""Files up to an object store, or objects down into files, by presigned URLs that the controller gave for just these.

Rules
- Each item is a URL and pieces of files; an item that is done is noted, so a repeat sends only the rest.
- What comes down is compared with its hash before it counts, and each file's hash is taken on its way; what goes up is
  hashed as it goes, for the comparison with what the store holds.
- A process of its own: the controller may sleep meanwhile. Its list of URLs is removed when it is done.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import signal
import subprocess
import threading
import time
import traceback
from functools import partial
from typing import Any

from orchestrator.agent.arrival import Arrivals, Writer
from orchestrator.agent.asks import admit, need, need_name, need_run, patience, wait_while_running
from orchestrator.agent.files import command_lock, jot, note, read_json, read_text, replace, size_of, to_json
from orchestrator.agent.inventory import hashed_all, walk_files
from orchestrator.agent.launch import own_argv, spawn_detached, start_command
from orchestrator.agent.layout import Refusal
from orchestrator.agent.pieces import new_md5
from orchestrator.agent.processes import look_at, send, wake_supervisor
from orchestrator.agent.runs import Run
from orchestrator.agent.wire import Wire, WireError

BAD_TRIES = 3  # the network's fault is gone by then; a store that has other bytes will have them for ever
LOCK_TRIES = 5
STOP_S = 5.0
WORKERS = 8
WORKERS_OF_SMALL = 32  # each of them waits for the store's answer most of the time
SMALL_ITEM = 1 << 20  # bytes; the mean of the items


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
    """Begin moving items, or say how it stands where the same id was begun; `again` forgets what was done, `stop` ends
    it. Other items than those under way end that process first: what it has done counts where the items are the same.

    `wait`: the answer may come that many seconds later, as soon as it has ended: one start of Python instead of many.
    """
    run, name = need_run(ask), need_name(ask, "id")
    wait = patience(ask)
    child: subprocess.Popen[bytes] | None = None
    with command_lock():
        admit(ask)
        os.makedirs(run.folder, mode=0o700, exist_ok=True)
        at = Move(run, name)
        if ask.get("stop"):
            at.stop()
            at.forget("json")
            jot(at.path("state"), to_json({"state": "failed", "bytes": 0, "total": 0, "error": "stopped"}))
        elif "items" in ask:
            if need(ask, "kind", str) not in ("up", "down"):
                raise Refusal("invalid", "kind is up or down")
            need(ask, "root", str)
            need(ask, "items", list)
            if ask.get("again"):
                at.stop()
                at.forget("done", "state")
            kept = {key: ask[key] for key in ("kind", "root", "items", "make", "rate", "list") if key in ask}
            if not at.alive() or read_json(at.path("json")) != kept:
                at.stop()
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


def mark_of_item(item: dict[str, Any]) -> list[Any]:
    """What an item is beside its id: the same id may come again with other bytes."""
    announced = item.get("sha256") or item.get("headers", {}).get("x-amz-checksum-sha256", "")
    return [item["size"], announced]


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

    def stop(self) -> None:
        """End the process that holds it, if one does."""
        words = read_text(self.path("lock")).split()
        if len(words) == 2 and self.alive():
            until = time.monotonic() + STOP_S
            while self.alive() and time.monotonic() < until:
                send(int(words[0]), int(words[1]), signal.SIGKILL)  # what it had done is noted
                time.sleep(0.01)

    def forget(self, *kinds: str) -> None:
        for kind in kinds:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(kind))

    def main(self, ask: dict[str, Any]) -> None:
        self.kind, self.root = ask["kind"], ask["root"]
        self.wire = Wire(float(ask.get("rate") or 0))
        make = ask.get("make", ())
        self.arrivals = Arrivals({self.path_of(each["path"]): each["size"] for each in make if "link" not in each})
        items = {str(item["id"]): item for item in ask["items"]}
        told = self.done_before(items)
        spans = (span for item in items.values() for span in item["spans"])
        self.whole = {name for name, *at in spans if self.arrivals.is_whole(self.path_of(name), *at)}
        for entry in make:
            self.make(entry)
        self.state["total"] = sum(item["size"] for item in items.values())
        left: queue.Queue[dict[str, Any]] = queue.Queue()
        for name, item in items.items():
            if name in told:
                self.count(item, told[name])
                self.settle(item, told[name])
            else:
                left.put(item)
        errors: list[str] = []
        workers = WORKERS if self.state["total"] > SMALL_ITEM * len(items) else WORKERS_OF_SMALL
        workers = min(workers, left.qsize())
        threads = [threading.Thread(target=self.work, args=(left, errors), daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not errors and ask.get("list"):
            self.state["files"] = self.listed(ask["list"])
        self.state["state"] = "failed" if errors else "done"
        self.state["error"] = errors[0] if errors else ""
        self.tell(force=True)

    def done_before(self, items: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """What a process before this one has done of just these items, and is still there."""
        found = {}
        for line in read_text(self.path("done")).splitlines():
            entry = json.loads(line) if line.endswith("}") else {}  # the last one may have been cut by a kill
            item = items.get(str(entry.get("id")))
            if item is not None and entry.get("of", mark_of_item(item)) == mark_of_item(item):
                paths = [path for path, _, _ in self.spans(item)] if self.kind == "down" else []
                if all(size_of(path) == self.arrivals.sizes.get(path) for path in paths):
                    found[str(entry["id"])] = entry
        return found

    def count(self, item: dict[str, Any], entry: dict[str, Any]) -> None:
        self.state["bytes"] += item["size"]
        if self.kind == "up":
            self.state["items"][str(item["id"])] = entry

    def settle(self, item: dict[str, Any], entry: dict[str, Any]) -> None:
        """An object that came down before: its files' hashes as far as they were noted."""
        if self.kind == "down":
            writer = Writer(self.arrivals, self.spans(item))
            writer.noted = {path: (mark, digest) for path, mark, digest in entry.get("noted", ())}
            writer.settle()

    def listed(self, name: str) -> list[dict[str, Any]]:
        """The files at `name` below the root as `manifest` tells them, read only where they were not on their way."""
        top = self.path_of(name)
        base = top if os.path.isdir(top) and not os.path.islink(top) else os.path.dirname(top)
        return hashed_all(base, list(walk_files(top)) if os.path.lexists(top) else [], self.arrivals.noted)

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
                self.count(item, entry)
                with open(self.path("done"), "ab") as file:
                    file.write(to_json({**entry, "of": mark_of_item(item)}) + b"\n")
            self.tell()
        self.wire.drop()

    def make(self, entry: dict[str, Any]) -> None:
        """A link, or a file of its full size for the pieces to come; one that comes whole is made by its writer."""
        path = self.path_of(entry["path"])
        if "link" in entry:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            os.symlink(entry["link"], path)
        elif entry["path"] not in self.whole:
            fd = self.arrivals.open(path, False)
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
        writer = Writer(self.arrivals, self.spans(item))
        try:
            self.wire.get(item["url"], {}, writer.take)
        finally:
            writer.close()
        if writer.sha256.hexdigest() != item["sha256"]:
            item["bad"] = item.get("bad", 0) + 1
            kind = "trouble" if item["bad"] < BAD_TRIES else "refused"
            raise WireError(kind, 200, "", "it came with other bytes than announced")
        writer.settle()
        return {"id": item["id"], "noted": [[path, *noted] for path, noted in writer.noted.items()]}

    def tell(self, force: bool = False) -> None:
        now = time.monotonic()
        with self.lock:
            if not force and now - self.told < 1.0:
                return
            self.told = now
            shown = dict(self.state) if force else {**self.state, "items": {}}
            jot(self.path("state"), to_json({**shown, "resent": self.wire.resent}))


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
    me = look_at(os.getpid())
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d %d" % (os.getpid(), me.start if me else 0), 0)
    ask = read_json(at.path("json"))
    if ask is None:
        return 0
    try:
        at.main(ask)
    except Exception as error:  # whoever waits must hear of it
        note(traceback.format_exc())
        jot(at.path("state"), to_json({"state": "failed", "error": "%s: %s" % (type(error).__name__, error)}))
    at.forget("json")
    return 0
