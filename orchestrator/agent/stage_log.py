"""The output of one stage: the log file first, the tmux pane second."""

from __future__ import annotations

import contextlib
import os

LOG_LIMIT = 2 << 30  # bytes of one stage's log; a runaway print loop must not fill the disk of the checkpoints


class StageLog:
    """The log file first, the tmux pane second. Neither a full disk nor a dead pane stops the job."""

    def __init__(self, path: str, limit: int) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.room = limit - os.fstat(self.fd).st_size
        self.limit = limit
        self.lost = 0
        self.pane: int | None = 1

    def write(self, data: bytes) -> None:
        if self.room > 0:
            keep = data[: self.room]
            self.room -= len(keep)
            gap = b"\n[gpujob] %d bytes of output are lost: the disk was full\n" % self.lost if self.lost else b""
            if not gap or self.append(gap) == len(gap):
                self.lost = len(keep) - self.append(keep)
            else:
                self.lost += len(keep)
            if self.room <= 0:
                self.append(b"\n[gpujob] the log's limit of %d bytes is reached; nothing more is kept\n" % self.limit)
        self.show(data)

    def append(self, data: bytes) -> int:
        try:
            return os.write(self.fd, data)
        except OSError:
            return 0

    def show(self, data: bytes) -> None:
        """The pane is non-blocking: what a paused terminal does not take is only not shown."""
        if self.pane is not None:
            try:
                os.write(self.pane, data)
            except BlockingIOError:
                return
            except OSError:
                self.pane = None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.fsync(self.fd)
        os.close(self.fd)
