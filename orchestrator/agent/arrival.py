"""Objects that come down into pieces of files, and the hash of each file taken while it comes.

Rules
- A file that comes in one piece has the hash of the bytes on their way; one that comes in several is read again behind
  them, in order, while they are still in memory. So nothing is read once more at the end.
- A hash is noted with the file's marks of that moment: whoever writes to the file later changes them, and it is read.
"""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Any

from orchestrator.agent.files import Noted, mark_of

READ_BYTES = 1 << 20


class Following:
    """The hash of one file that comes in several pieces."""

    def __init__(self, path: str, size: int, noted: Noted) -> None:
        self.path, self.size, self.noted = path, size, noted
        self.sha256, self.at, self.busy = hashlib.sha256(), 0, False
        self.came: dict[int, int] = {}
        self.lock = threading.Lock()

    def arrived(self, offset: int, length: int) -> None:
        """A piece is there: hash on as far as there is no gap, unless another thread is at it and will see this one."""
        with self.lock:
            self.came[offset] = length
            if self.busy:
                return
            self.busy = True
        with open(self.path, "rb", buffering=0) as file:
            room = memoryview(bytearray(READ_BYTES))
            while True:
                with self.lock:
                    left = self.came.pop(self.at, None)
                    if left is None:
                        if self.at == self.size:
                            self.noted[self.path] = (mark_of(os.fstat(file.fileno())), self.sha256.hexdigest())
                        self.busy = False
                        return
                file.seek(self.at)
                self.at += left
                while left:
                    count = file.readinto(room[: min(left, READ_BYTES)])
                    if not count:
                        raise OSError("%s became shorter" % self.path)
                    self.sha256.update(room[:count])
                    left -= count


class Arrivals:
    """The files of one transfer, by absolute path."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.noted: Noted = {}
        self.following: dict[str, Following] = {}
        self.folders: set[str] = set()
        self.lock = threading.Lock()

    def is_whole(self, path: str, offset: int, length: int) -> bool:
        """Whether this piece is all of its file."""
        return offset == 0 and self.sizes.get(path) == length

    def open(self, path: str, whole: bool) -> int:
        """A descriptor to write a piece with; a file that comes in one is begun anew. Links are not followed."""
        folder = os.path.dirname(path)
        if folder not in self.folders:
            os.makedirs(folder, exist_ok=True)
            self.folders.add(folder)
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | (os.O_TRUNC if whole else 0)
        return os.open(path, flags, 0o644)

    def arrived(self, path: str, offset: int, length: int) -> None:
        """A piece of a file that comes in several is written, and its object's hash was right."""
        with self.lock:
            if path not in self.following:
                self.following[path] = Following(path, self.sizes[path], self.noted)
            file = self.following[path]
        file.arrived(offset, length)


class Writer:
    """Bytes of one object into its pieces of files, one after another."""

    def __init__(self, arrivals: Arrivals, spans: list[tuple[str, int, int]]) -> None:
        self.arrivals, self.spans, self.sha256 = arrivals, list(spans), hashlib.sha256()
        self.alone = len(spans) == 1  # then the object's hash is the piece's as well
        self.fd, self.at, self.left, self.path = -1, 0, 0, ""
        self.of_file: Any = None
        self.noted: Noted = {}
        self.pieces = [span for span in spans if not arrivals.is_whole(*span)]

    def take(self, view: memoryview) -> None:
        self.sha256.update(view)
        while view:
            if not self.left:
                self.next()
            block = view[: self.left]
            if self.of_file is not None and not self.alone:
                self.of_file.update(block)
            count = 0
            while count < len(block):
                count += os.pwrite(self.fd, block[count:], self.at + count)
            self.at += count
            self.left -= count
            view = view[count:]

    def next(self) -> None:
        if not self.spans:
            raise OSError("the object has more bytes than announced")
        self.close()
        self.path, self.at, self.left = self.spans.pop(0)
        whole = self.arrivals.is_whole(self.path, self.at, self.left)
        self.fd = self.arrivals.open(self.path, whole)
        self.of_file = (self.sha256 if self.alone else hashlib.sha256()) if whole else None

    def close(self) -> None:
        """The piece under way ends; a file that is whole with it is noted."""
        if self.fd < 0:
            return
        if self.of_file is not None and not self.left:
            self.noted[self.path] = (mark_of(os.fstat(self.fd)), self.of_file.hexdigest())
        os.close(self.fd)
        self.fd, self.of_file = -1, None

    def settle(self) -> None:
        """The object is what was announced: what was noted on its way counts."""
        self.arrivals.noted.update(self.noted)
        for span in self.pieces:
            self.arrivals.arrived(*span)
