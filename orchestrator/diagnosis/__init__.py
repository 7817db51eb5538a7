"""Why a job failed: its class, the decisive line, what to do, and whether trying again can help.

    diagnose(log, circumstances) -> Diagnosis    log: a path, an open binary file, or blocks of bytes

`signatures.yaml` knows the messages (`table`), `lines` cleans a line, `scan` reads a log as a stream with bounded
memory, `weigh` decides. Nothing here acts: the reaction is data, and who asked decides what to make of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from orchestrator.diagnosis.scan import Scanner
from orchestrator.diagnosis.table import Reaction, table
from orchestrator.diagnosis.weigh import Circumstances, Diagnosis, Note, weigh

__all__ = ["Circumstances", "Diagnosis", "Note", "Reaction", "advice", "diagnose", "the_end_of"]

BLOCK = 1024 * 1024
NOTHING_ELSE = Circumstances()


def diagnose(log: Path | BinaryIO | Iterable[bytes], known: Circumstances = NOTHING_ELSE) -> Diagnosis:
    """The diagnosis of a log, read once from its beginning to its end; OSError where it cannot be read."""
    scanner = Scanner(table())
    for block in _blocks(log):
        scanner.feed(block)
    return weigh(table(), scanner.close(), known)


def the_end_of(path: Path, size: int) -> Iterator[bytes]:
    """The last `size` bytes of a file in blocks, from the beginning of a line on; nothing where there is no file."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - size)
            file.seek(start)
            if start:
                file.readline(BLOCK)
            yield from _blocks(file)
    except FileNotFoundError:
        return


def advice(topic: str) -> tuple[str, ...]:
    """The steps of one topic of the table, the first to try first; KeyError for a topic that does not exist."""
    return table().advice[topic]


def _blocks(log: Path | BinaryIO | Iterable[bytes]) -> Iterator[bytes]:
    if isinstance(log, Path):
        with log.open("rb") as file:
            yield from _blocks(file)
    elif hasattr(log, "read"):
        read = getattr(log, "read1", log.read)
        while block := read(BLOCK):
            yield block
    else:
        yield from log
