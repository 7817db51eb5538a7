"""Files that come down in pieces: their hashes are taken on the way, in whatever order the pieces come."""

from __future__ import annotations

import hashlib
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.agent.arrival import Arrivals, Writer
from orchestrator.agent.files import mark_of

PIECE = 1000


def test_pieces_in_any_order_by_any_thread_make_one_hash(tmp_path: Path) -> None:
    data = os.urandom(200 * PIECE + 7)
    path = str(tmp_path / "deep" / "big")
    arrivals = Arrivals({path: len(data)})
    offsets = list(range(0, len(data), PIECE))
    random.Random(4).shuffle(offsets)

    def bring(offset: int) -> None:
        block = data[offset : offset + PIECE]
        writer = Writer(arrivals, [(path, offset, len(block))])
        for at in range(0, len(block), 300):  # as the network gives it
            writer.take(memoryview(block)[at : at + 300])
        writer.close()
        writer.settle()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(bring, offsets))
    assert Path(path).read_bytes() == data
    assert arrivals.noted == {path: (mark_of(os.stat(path)), hashlib.sha256(data).hexdigest())}


def test_a_file_that_is_not_all_there_has_no_hash(tmp_path: Path) -> None:
    path = str(tmp_path / "big")
    arrivals = Arrivals({path: 2000})
    for offset in (1000, 0):
        assert arrivals.noted == {}
        writer = Writer(arrivals, [(path, offset, 1000)])
        writer.take(memoryview(b"x" * 1000))
        writer.close()
        writer.settle()
    assert list(arrivals.noted) == [path]


def test_an_object_of_several_files_notes_each_and_only_when_it_is_settled(tmp_path: Path) -> None:
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    Path(first).write_bytes(b"longer than before")
    arrivals = Arrivals({first: 3, second: 4})
    writer = Writer(arrivals, [(first, 0, 3), (second, 0, 4)])
    writer.take(memoryview(b"onetwo!"))
    writer.close()
    assert arrivals.noted == {}  # its own hash may be another one
    writer.settle()
    sums = {path: digest for path, (_, digest) in arrivals.noted.items()}
    assert sums == {first: hashlib.sha256(b"one").hexdigest(), second: hashlib.sha256(b"two!").hexdigest()}
    assert Path(first).read_bytes() == b"one"
    with pytest.raises(OSError, match="more bytes than announced"):
        writer.take(memoryview(b"more"))


def test_a_link_in_the_way_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"kept")
    (tmp_path / "a").symlink_to(tmp_path / "outside")
    arrivals = Arrivals({str(tmp_path / "a"): 3})
    with pytest.raises(OSError, match="symbolic links"):
        Writer(arrivals, [(str(tmp_path / "a"), 0, 3)]).take(memoryview(b"new"))
    assert (tmp_path / "outside").read_bytes() == b"kept"
