"""Data that the machine brings itself, from plain or presigned addresses: parallel, ranged, resumable, hashed.

    fetch/ID/ask.json     what to fetch; 0600, since addresses and headers may be keys
    fetch/ID/state.json   how far it is, rewritten twice a second; the controller polls it
    fetch/ID/lock         held by the one process that fetches

Rules
- A process of its own, which needs no controller: a sleeping laptop stops no download. It ends with its folder.
- Files are fetched in segments into DEST/.gpujob-partial/; what a segment has is noted after each block, so that a cut
  or a kill costs less than a block of each segment under way. A file gets its name when it is whole and its hash right.
- 5xx, 429, resets and silence are tried again with a growing, random pause, as often as something arrives meanwhile;
  everything else ends the fetch, with its kind.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import http.client
import json
import os
import random
import struct
import subprocess
import threading
import time
import urllib.parse
from typing import TYPE_CHECKING, Any

from orchestrator.agent.asks import admit, need, need_name, patience, wait_while_running
from orchestrator.agent.events import record_event
from orchestrator.agent.files import command_lock, mark_of, note, read_json, replace, to_json
from orchestrator.agent.landing import PARTIAL_FOLDER, entries_of, read_seen
from orchestrator.agent.launch import own_argv
from orchestrator.agent.layout import Refusal, control
from orchestrator.agent.processes import machine_mark
from orchestrator.agent.web import Broken, Lost, Web

if TYPE_CHECKING:
    from collections.abc import Iterator

PARALLEL = 8  # segments at one time; more only help over lines with a very long round trip
SEGMENT = 16 << 20
BLOCK_BYTES = 256 << 10  # read, written and noted at a time
FETCH_TRIES = 8  # in a row without a byte
PAUSE_S = 0.5
PAUSE_MAX_S = 30.0
TELL_S = 0.5


def fetch_command(ask: dict[str, Any]) -> dict[str, Any]:
    """Start a fetch unless it is under way; the same answer as `fetched`."""
    folder = fetch_folder(ask)
    for key in ("manifest", "dest"):
        if not os.path.isabs(need(ask, key, str)):
            raise Refusal("invalid", "%s is not absolute" % key)
    with command_lock():
        admit(ask)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not is_fetching(folder):
            kept = ("job", "manifest", "dest", "single", "base", "headers", "urls", "parallel")
            replace(os.path.join(folder, "ask.json"), to_json({key: ask[key] for key in kept if key in ask}))
            replace(os.path.join(folder, "state.json"), to_json({"state": "running", "bytes": 0, "files": 0}))
            null = subprocess.DEVNULL
            subprocess.Popen(
                own_argv("_fetch", folder), stdin=null, stdout=null, stderr=null,
                start_new_session=True, cwd="/", env={**os.environ, "GPUJOB_MACHINE": machine_mark()},
            )  # fmt: skip
    return fetched_command(ask)


def fetched_command(ask: dict[str, Any]) -> dict[str, Any]:
    """How far a fetch is: state running | done | failed (with error, detail, path). `wait` as of a transfer."""
    folder, wait = fetch_folder(ask), patience(ask)
    state = wait_while_running(os.path.join(folder, "state.json"), wait)
    if not isinstance(state, dict):
        raise Refusal("missing", "nothing was asked to be fetched under this name")
    age = time.time() - os.stat(os.path.join(folder, "state.json")).st_mtime
    if state.get("state") == "running" and age > 20 * TELL_S and not is_fetching(folder):
        state = {**state, "state": "failed", "error": "killed", "detail": "the fetching process is gone"}
    return {"ok": True, **state}


def fetch_folder(ask: dict[str, Any]) -> str:
    return control("fetch", need_name(ask, "id"))


def is_fetching(folder: str) -> bool:
    try:
        with open(os.path.join(folder, "lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


class Part:
    """One file under way: its segments, what each has, and the hash of what lies there without a gap."""

    def __init__(self, entry: dict[str, Any], final: str, top: str) -> None:
        self.entry, self.final, self.size = entry, final, entry["size"]
        # another version of the file must not be gone on with
        name = "%s %s %s" % (entry["path"], entry["size"], entry.get("sha256") or entry.get("etag") or "")
        self.top, self.path = top, os.path.join(top, hashlib.sha256(os.fsencode(name)).hexdigest()[:24])
        self.location = ""  # where a redirect led to
        whole = self.size < 0 or entry.get("ranges") is False
        self.length = max(self.size, 0) if whole else SEGMENT
        self.count = 1 if whole or self.size == 0 else -(-self.size // SEGMENT)
        self.lock = threading.Lock()
        self.wanted = entry.get("sha256") or entry.get("sha1_git")
        self.hash = hashlib.sha256() if entry.get("sha256") else hashlib.sha1(b"blob %d\0" % self.size)
        self.hashing = False
        self.next = 0  # first segment that is not hashed yet
        self.whole = [False] * self.count
        self.fd = self.notes = -1

    def open(self) -> None:
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        if self.size < 0 or self.size > BLOCK_BYTES:  # else it comes in one block, and half of it is nothing to keep
            self.notes = os.open(self.path + ".have", os.O_RDWR | os.O_CREAT, 0o600)

    def close(self) -> None:
        for fd in (self.fd, self.notes):
            if fd >= 0:
                os.close(fd)
        self.fd = self.notes = -1

    def bounds(self, number: int) -> tuple[int, int]:
        """First byte of a segment, and the first after it (-1: nobody knows)."""
        if self.size < 0:
            return 0, -1
        start = number * self.length
        return start, self.size if self.count == 1 else min(start + self.length, self.size)

    def has(self, number: int) -> int:
        """Bytes of the segment that are there."""
        if self.size < 0 or self.notes < 0 or self.entry.get("ranges") is False:
            return 0
        data = os.pread(self.notes, 8, 8 * number)
        return int(struct.unpack("<Q", data)[0]) if len(data) == 8 else 0

    def note(self, number: int, count: int) -> None:
        if self.notes >= 0:
            os.pwrite(self.notes, struct.pack("<Q", count), 8 * number)

    def drop(self) -> None:
        """Remove what lies under its temporary names."""
        for path in (self.path, self.path + ".have"):
            if os.path.exists(path):
                os.unlink(path)

    def ended(self, number: int) -> bool:
        """A segment is whole: hash on as far as there is no gap. True for the one caller that has hashed the last."""
        with self.lock:
            self.whole[number] = True
            if self.hashing:
                return False  # whoever hashes sees it
            self.hashing = True
        while True:
            with self.lock:
                if self.next == self.count or not self.whole[self.next]:
                    self.hashing = False
                    return self.next == self.count
            if self.wanted:
                self.hash_segment(self.next)
            self.next += 1

    def hash_segment(self, number: int) -> None:
        start, end = self.bounds(number)
        while end < 0 or start < end:
            data = os.pread(self.fd, (1 << 20) if end < 0 else min(1 << 20, end - start), start)
            if not data:
                return
            self.hash.update(data)
            start += len(data)


class Fetch:
    """All files of one manifest; threads take segments in order, so that a file's hash follows closely."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        ask = read_json(os.path.join(folder, "ask.json"))
        assert isinstance(ask, dict)
        self.ask: dict[str, Any] = ask
        self.dest, self.listed = ask["dest"], ask["manifest"]
        top = os.path.dirname(self.dest) if ask.get("single") else self.dest
        self.partial = os.path.join(top, PARTIAL_FOLDER)
        self.urls: dict[str, str] = {}
        if ask.get("urls"):
            self.urls = {each["path"]: each["url"] for each in entries_of(ask["urls"])}
        self.bytes = self.files = 0
        self.failed: dict[str, str] | None = None
        self.lock, self.lock_of_work = threading.Lock(), threading.Lock()
        self.work = self.segments()

    def main(self) -> dict[str, Any]:
        os.makedirs(self.partial, exist_ok=True)
        threads = [threading.Thread(target=self.run, daemon=True) for _ in range(self.ask.get("parallel") or PARALLEL)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            threads[0].join(TELL_S) if threads[0].is_alive() else time.sleep(TELL_S / 5)
            if not os.path.exists(self.folder):
                os._exit(0)  # wiped
            self.tell({"state": "running"})
        if self.failed is None:
            try:
                os.rmdir(self.partial)
            except OSError as error:  # of a file that the source no longer has; removed by the check
                note("%s: %s" % (self.partial, error))
            if self.ask.get("urls"):
                os.unlink(self.ask["urls"])
        state = {"state": "done"} if self.failed is None else {"state": "failed", **self.failed}
        self.tell(state)
        record_event("fetch", **state, bytes=self.bytes, files=self.files)
        return state

    def tell(self, state: dict[str, Any]) -> None:
        replace(os.path.join(self.folder, "state.json"), to_json({**state, "bytes": self.bytes, "files": self.files}))

    def segments(self) -> Iterator[tuple[Part, int]]:
        """Every segment that is not there yet; files that have landed are counted on the way."""
        seen = read_seen(self.listed + ".seen")
        for entry in entries_of(self.listed):
            final = self.dest if self.ask.get("single") else os.path.join(self.dest, entry["path"])
            try:
                info = os.stat(final)
            except OSError:
                info = None
            # of the right size but not noted: the check reads it, and takes it away if it is wrong
            if info and (seen.get(entry["path"]) == mark_of(info) or info.st_size == entry["size"]):
                self.count_up(info.st_size, 1)
                continue
            part = Part(entry, final, self.partial)
            part.open()
            for number in range(part.count):
                yield part, number

    def count_up(self, size: int, files: int = 0) -> None:
        with self.lock:
            self.bytes += size
            self.files += files

    def run(self) -> None:
        web = Web()
        while self.failed is None:
            part = None
            try:
                with self.lock_of_work:
                    part, number = next(self.work)
                self.segment(web, part, number)
                if part.ended(number):
                    self.settle(web, part)
            except StopIteration:
                return
            except Lost as lost:
                self.fail(lost.kind, str(lost), part)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                self.fail("disk-full" if full else "io", str(error), part)
            except Exception as error:  # a thread that ended in silence would leave a file out, and nobody know why
                self.fail("io", "%s: %s" % (type(error).__name__, error), part)

    def fail(self, error: str, detail: str, part: Part | None) -> None:
        with self.lock:
            if self.failed is None:
                self.failed = {"error": error, "detail": detail, "path": part.entry["path"] if part else ""}

    def segment(self, web: Web, part: Part, number: int) -> None:
        """Bring one segment, whatever breaks on the way."""
        start, end = part.bounds(number)
        have = part.has(number)
        self.count_up(have)
        tries, pause = 0, 0.0
        while end < 0 or start + have < end:
            if self.failed is not None:
                raise Lost("stopped", "another file failed")
            before = have
            if part.size < 0:
                os.ftruncate(part.fd, 0)
            try:
                for block in self.blocks(web, part, start + have, end):
                    os.pwrite(part.fd, block, start + have)
                    have += len(block)
                    part.note(number, have)
                    self.count_up(len(block))
                if end < 0 or start + have >= end:
                    return
                raise Broken("the connection ended %d bytes early" % (end - start - have))
            except Broken as broken:
                if part.size < 0 or part.entry.get("ranges") is False:
                    self.count_up(-have)
                    have = 0  # the server cannot go on in the middle
                tries = 0 if have > before else tries + 1
                if tries >= FETCH_TRIES:
                    raise Lost("unreachable", "%s, %d times in a row" % (broken, tries)) from None
                pause = max(broken.after, min(PAUSE_MAX_S, PAUSE_S * 2**tries) * (0.5 + random.random()))
            time.sleep(pause)

    def blocks(self, web: Web, part: Part, at: int, end: int) -> Iterator[bytes]:
        """The bytes from `at` on. Raises Broken when they stop coming."""
        url = part.location or self.address(part.entry)
        headers = {} if part.location else dict(self.ask.get("headers") or {})
        ranged = part.size > 0 and part.entry.get("ranges") is not False
        if ranged:
            headers["Range"] = "bytes=%d-%d" % (at, end - 1)
        try:
            answer, place = web.get(url, headers)
        except Lost as lost:
            if part.location and lost.kind == "denied":  # a redirect's own key has ended
                part.location = ""
                raise Broken(str(lost)) from None
            raise
        refuse_changed(part.entry, answer)
        if place != url:
            part.location = place
        skip = at if ranged and answer.status == 200 else 0  # a server that knows no ranges after all
        whole = False
        try:
            while True:
                block = answer.read1(BLOCK_BYTES)  # what is there: a cut then loses nothing that had come
                if not block:
                    whole = True
                    return
                if skip:
                    gone = min(skip, len(block))
                    skip, block = skip - gone, block[gone:]
                if end >= 0:
                    block = block[: end - at]
                at += len(block)
                if block:
                    yield block
                if 0 <= end <= at:
                    whole = answer.read(1) == b""
                    return
        except (OSError, http.client.HTTPException) as error:
            raise Broken(str(error) or type(error).__name__) from None
        finally:
            if not whole:
                web.forget(place)

    def address(self, entry: dict[str, Any]) -> str:
        found = self.urls.get(entry["path"]) or entry.get("url")
        if found:
            return str(found)
        return str(self.ask["base"]) + urllib.parse.quote(os.fsencode(entry["path"]))

    def settle(self, web: Web, part: Part) -> None:
        """A whole file gets its name. One with another hash is brought once more: bytes turn over on the way, too."""
        if part.wanted and part.hash.hexdigest() != part.wanted:
            note("%s: other bytes than its hash; once more" % part.entry["path"])
            part.close()
            part.drop()
            self.count_up(-max(part.size, 0))
            part = Part(part.entry, part.final, part.top)
            part.open()
            for number in range(part.count):
                self.segment(web, part, number)
                part.ended(number)
            if part.hash.hexdigest() != part.wanted:
                part.close()
                part.drop()
                raise Lost("changed", "its bytes are not those of its hash")
        self.finish(part)

    def finish(self, part: Part) -> None:
        if part.size >= 0:
            os.ftruncate(part.fd, part.size)
        part.close()
        os.makedirs(os.path.dirname(part.final), exist_ok=True)
        os.replace(part.path, part.final)
        part.drop()
        if part.wanted:
            line = json.dumps([part.entry["path"], *mark_of(os.stat(part.final))]) + "\n"
            with self.lock, open(self.listed + ".seen", "a", encoding="ascii") as notes:
                notes.write(line)
        self.count_up(0, 1)


def refuse_changed(entry: dict[str, Any], answer: http.client.HTTPResponse) -> None:
    """A source that is another one than at apply: by its own mark, or by its size."""
    etag, wanted = answer.headers.get("ETag", ""), entry.get("etag")
    if wanted and etag and etag.strip('"') != str(wanted).strip('"') and not entry.get("sha256"):
        raise Lost("changed", "its ETag is %s instead of %s" % (etag, wanted))
    total = answer.headers.get("Content-Range", "").rpartition("/")[2]
    length = answer.headers.get("Content-Length", "")
    size = total if answer.status == 206 else length
    if entry["size"] >= 0 and size.isdigit() and int(size) != entry["size"]:
        raise Lost("changed", "it has %s bytes instead of %d" % (size, entry["size"]))


def fetch_main(folder: str) -> int:
    """The process of one fetch."""
    with open(os.path.join(folder, "lock"), "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        try:
            return 0 if Fetch(folder).main()["state"] == "done" else 1
        except (OSError, ValueError, KeyError) as error:
            state = {"state": "failed", "error": "io", "detail": str(error), "path": "", "bytes": 0, "files": 0}
            replace(os.path.join(folder, "state.json"), to_json(state))
            return 1
