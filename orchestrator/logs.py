"""Logs of runs as they are stored here: written at their offsets, secrets masked, read by cursor.

    LogWriter                 stores chunks; a repeated chunk is harmless, the cursor is the file's size
    tail, read_from, follow   reading
    progress                  how far the job is (`log_lines`)

Rules
- A stored log has the same length as the machine's: a secret is replaced by as many `*` as it has bytes.
- Bytes that may be the beginning of a secret wait in memory until more arrives or the stage has ended, so a secret
  split over two chunks is masked too, and the file never ends inside one. After a crash they are asked for again.
- Nothing here ever reads a whole log: it may be larger than memory.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from orchestrator.log_lines import Progress, progress

__all__ = [
    "LogGap",
    "LogWriter",
    "Progress",
    "follow",
    "mask_bytes",
    "maskable",
    "progress",
    "read_from",
    "tail",
]

MASK_MIN = 4  # a shorter value would blacken the log and protects nothing
READ_CHUNK = 256 * 1024
POLL_S = 0.25
TIMES = ".times"  # beside a log: lines of "<UTC epoch seconds> <offset>", so that `--since` can cut it
TIMES_EVERY_S = 1.0
HELD_MAX = 1024 * 1024  # a log that repeats a secret without end would be held for ever


class LogGap(ValueError):
    """A chunk that begins after the end of what is stored: follow again from the cursor."""


def maskable(values: Iterable[str]) -> tuple[bytes, ...]:
    """What to look for: each value, and each longer line of a value of several lines (a PEM key), longest first."""
    found: set[bytes] = set()
    for value in values:
        found.add(value.strip().encode("utf-8", "surrogateescape"))
        lines = value.splitlines()
        if len(lines) > 1:
            # Short lines of a key are not secret alone, and braces of a JSON one would be everywhere
            found.update(line.strip().encode("utf-8", "surrogateescape") for line in lines if len(line) >= 12)
    return tuple(sorted((each for each in found if len(each) >= MASK_MIN), key=lambda v: (-len(v), v)))


def mask_bytes(data: bytes, secrets: tuple[bytes, ...]) -> bytes:
    """`data` with every occurrence overwritten by `*`, overlapping ones too; the length stays."""
    masked = None
    for start, end in _occurrences(data, secrets):
        masked = masked if masked is not None else bytearray(data)
        masked[start:end] = b"*" * (end - start)
    return data if masked is None else bytes(masked)


def _occurrences(data: bytes, secrets: tuple[bytes, ...]) -> list[tuple[int, int]]:
    found = []
    for secret in secrets:
        at = data.find(secret)
        while at >= 0:
            found.append((at, at + len(secret)))
            at = data.find(secret, at + 1)
    return found


class LogWriter:
    """The stored log of one stage. One thread writes at a time; `path` may be there from an earlier life."""

    def __init__(self, path: Path, secrets: Iterable[str] = ()) -> None:
        self.path = path
        self._secrets = maskable(secrets)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size
        self._held = b""  # raw bytes after `_size`, which may be the beginning of a secret
        self._timed_at = 0.0

    @property
    def cursor(self) -> int:
        """Where to go on after a restart: bytes that are stored."""
        return self._size

    @property
    def received(self) -> int:
        """Bytes that have arrived: stored, or held because a secret may begin in them."""
        return self._size + len(self._held)

    def write(self, offset: int, data: bytes) -> None:
        """Store `data`, whose first byte is byte `offset` of the machine's log. LogGap where bytes are missing."""
        end = self._size + len(self._held)
        if offset > end:
            raise LogGap(f"{self.path}: bytes {end} to {offset} are missing")
        fresh = data[end - offset :]
        if fresh:
            self._held += fresh
            self._store(self._settled())

    def finish(self) -> None:
        """The stage has ended: nothing more will complete what is held."""
        self._store(len(self._held))
        os.fsync(self._fd)

    def close(self) -> None:
        """Release the file; what is held is dropped and comes again from the cursor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _settled(self) -> int:
        """How many of the held bytes can be stored: none that a later byte could make part of a secret."""
        longest = len(self._secrets[0]) if self._secrets else 0
        size = len(self._held)
        if size > HELD_MAX:
            return size
        cut = size
        for start in range(max(0, size - longest + 1), size):
            if any(secret.startswith(self._held[start:]) for secret in self._secrets):
                cut = start
                break
        # Never cut through a whole one: its rest would lose its first half and no longer be recognised
        inside = True
        while inside:
            inside = False
            for start, end in _occurrences(self._held, self._secrets):
                if start < cut < end:
                    cut, inside = start, True
        return cut

    def _store(self, count: int) -> None:
        data = mask_bytes(self._held, self._secrets)[:count]
        if data:
            self._note_time()
        written = 0
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], self._size + written)
        self._size += len(data)
        self._held = self._held[count:]

    def _note_time(self) -> None:
        """When the bytes from here on came; once a second is enough to look back by."""
        now = time.time()
        if now - self._timed_at >= TIMES_EVERY_S:
            self._timed_at = now
            with self.path.with_name(self.path.name + TIMES).open("a", encoding="ascii") as times:
                times.write(f"{now:.3f} {self._size}\n")


def offset_at(path: Path, since: float) -> int:
    """Where the bytes begin that were stored at `since` (UTC epoch seconds) or later; the log's end when none were."""
    try:
        lines = path.with_name(path.name + TIMES).read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return 0
    for line in lines:
        at, _, offset = line.partition(" ")
        if offset.isdigit() and float(at) >= since:
            return int(offset)
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def read_from(path: Path, offset: int, limit: int = READ_CHUNK) -> bytes:
    """At most `limit` bytes from `offset`; empty at the end or where there is no log yet."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return b""


def tail(path: Path, lines: int) -> bytes:
    """The last `lines` lines with their newlines."""
    if lines <= 0:
        return b""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return b""
    with file:
        at = file.seek(0, os.SEEK_END)
        parts: deque[bytes] = deque()
        newlines = 0
        while at > 0 and newlines <= lines:
            step = min(READ_CHUNK, at)
            at -= step
            file.seek(at)
            parts.appendleft(file.read(step))
            newlines += parts[0].count(b"\n")
    return b"".join(b"".join(parts).splitlines(keepends=True)[-lines:])


def follow(path: Path, offset: int, ended: Callable[[], bool], stop: threading.Event) -> Iterator[bytes]:
    """Chunks from `offset` on as they arrive, until `ended()` and everything was read, or `stop` is set."""
    while not stop.is_set():
        last = ended()  # asked before the read: what was written until then is still handed over
        data = read_from(path, offset)
        if data:
            offset += len(data)
            yield data
        elif last:
            return
        else:
            stop.wait(POLL_S)
