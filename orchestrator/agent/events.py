"""The events: one JSON object a line, append-only, read by byte cursor."""

from __future__ import annotations

import fcntl
import json
import os
import time
from typing import Any

from orchestrator.agent.ends import uptime
from orchestrator.agent.files import note
from orchestrator.agent.layout import control


def record_event(kind: str, **fields: Any) -> None:
    """Append one line. A line that does not fit on the disk is dropped whole; status stays the truth."""
    line = json.dumps({"t": kind, "at": time.time(), "boot": uptime(), **fields}).encode() + b"\n"
    try:
        fd = os.open(control("events.jsonl"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        note("event %s: %s" % (kind, error))
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line  # somebody was killed in the middle of a line
        if os.write(fd, line) < len(line):
            os.ftruncate(fd, size)
    except OSError as error:
        note("event %s: %s" % (kind, error))
    finally:
        os.close(fd)
