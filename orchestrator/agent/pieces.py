"""A checkpoint as objects: large files cut into chunks, small ones packed together; and the hashes of all of it.

A chunk begins at a multiple of its length in its file and is known by its content, so a file that did not change since
the last checkpoint is not sent again, and a cut connection costs one chunk.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from orchestrator.agent.inventory import walk_files
from orchestrator.agent.wire import FilesChanged, Spans

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL_FILE = 4 << 20  # bytes: files up to this are packed
CHUNK_MIN, CHUNK_MAX = 8 << 20, 64 << 20
CHUNKS_AIMED_AT = 256  # of one checkpoint: a process that is killed with four of them under way costs little
OBJECTS_MAX = 4000  # a checkpoint of terabytes gets larger chunks than CHUNK_MAX
PACK_FILES = 2000
HASH_BLOCK = 1 << 20


def chunk_size(total: int, objects: int = OBJECTS_MAX) -> int:
    """Bytes of one chunk for a checkpoint of `total` bytes: a power of two, so that neighbours are cut alike."""
    wanted = max(CHUNK_MIN, min(CHUNK_MAX, total // CHUNKS_AIMED_AT), total // max(1, objects))
    return 1 << (wanted - 1).bit_length()


def checkpoint_files(top: str) -> list[dict[str, Any]]:
    """Files and links of the checkpoint at `top`, by paths that begin with its name. OSError for an unreadable one."""
    name, folder = os.path.basename(top), os.path.isdir(top) and not os.path.islink(top)
    found = []
    for entry in walk_files(top):
        if "error" in entry:
            raise PermissionError("%s cannot be read: %s" % (entry["path"], entry["error"]))
        found.append({**entry, "path": name + "/" + entry["path"] if folder else name})
    return sorted(found, key=lambda entry: entry["path"])


class Piece:
    """One object to be: where its bytes lie, and once they were read their hashes."""

    def __init__(self) -> None:
        self.spans: Spans = []  # (absolute path, offset, length)
        self.parts: list[tuple[int, int, int]] = []  # (index of the file, offset in this object, length)
        self.size = 0
        self.sha256 = self.md5 = ""

    def add(self, number: int, path: str, offset: int, length: int) -> None:
        self.spans.append((path, offset, length))
        self.parts.append((number, self.size, length))
        self.size += length


def cut(root: str, files: list[dict[str, Any]], chunk: int) -> Iterator[Piece]:
    """All pieces, hashed as they come; `files` get their `sha256`. FilesChanged where one is not as it was listed.

    `root`: the folder that the files' paths count from.
    """
    pack = Piece()
    for number, entry in enumerate(files):
        if "link" in entry or not entry["size"]:
            if "link" not in entry:
                entry["sha256"] = hashlib.sha256(b"").hexdigest()
            continue
        path = os.path.join(root, entry["path"])
        if entry["size"] > SMALL_FILE:
            yield from large(number, path, entry, chunk)
            continue
        if pack.size + entry["size"] > chunk or len(pack.spans) >= PACK_FILES:
            yield packed(pack, files)
            pack = Piece()
        pack.add(number, path, 0, entry["size"])
    if pack.size:
        yield packed(pack, files)


def large(number: int, path: str, entry: dict[str, Any], chunk: int) -> Iterator[Piece]:
    whole = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for offset in range(0, entry["size"], chunk):
                piece = Piece()
                piece.add(number, path, offset, min(chunk, entry["size"] - offset))
                sha256, md5 = hashlib.sha256(), new_md5()
                left = piece.size
                while left:
                    block = file.read(min(HASH_BLOCK, left))
                    if not block:
                        raise FilesChanged("%s became shorter" % path)
                    for each in (whole, sha256, md5):
                        each.update(block)
                    left -= len(block)
                piece.sha256, piece.md5 = sha256.hexdigest(), md5.hexdigest()
                if offset + piece.size == entry["size"]:
                    entry["sha256"] = whole.hexdigest()
                yield piece
    except FileNotFoundError as error:
        raise FilesChanged("%s went away" % path) from error


def packed(pack: Piece, files: list[dict[str, Any]]) -> Piece:
    sha256, md5 = hashlib.sha256(), new_md5()
    for (path, _, length), (number, _, _) in zip(pack.spans, pack.parts):
        try:
            with open(path, "rb") as file:
                data = file.read(length)
        except FileNotFoundError as error:
            raise FilesChanged("%s went away" % path) from error
        if len(data) != length:
            raise FilesChanged("%s became shorter" % path)
        files[number]["sha256"] = hashlib.sha256(data).hexdigest()
        sha256.update(data)
        md5.update(data)
    pack.sha256, pack.md5 = sha256.hexdigest(), md5.hexdigest()
    return pack


def new_md5() -> Any:
    """What stores call an object by (its ETag); not a secret. Python 3.8 has no `usedforsecurity`."""
    try:
        return hashlib.new("md5", usedforsecurity=False)  # type: ignore[call-arg, unused-ignore]
    except TypeError:
        return hashlib.new("md5")
