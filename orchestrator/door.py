"""The socket at which verbs poke the controller. It carries no data: requests are rows of the books."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

_MAX_SOCKET_PATH = 100  # sun_path holds 104 to 108 bytes, by system


class Door:
    """A listening unix socket; every connection is a poke."""

    def __init__(self, path: Path) -> None:
        """Bind at once, so that whoever waits for the controller sees it. The caller holds the controller's lock."""
        self._path = path
        self._closed = False
        path.unlink(missing_ok=True)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = -1
        address = str(path)
        if len(os.fsencode(address)) > _MAX_SOCKET_PATH:
            folder = os.open(path.parent, os.O_RDONLY)
            address = f"/proc/self/fd/{folder}/{path.name}"
        try:
            self._sock.bind(address)
        finally:
            if folder >= 0:
                os.close(folder)
        os.chmod(path, 0o600)
        self._sock.listen(64)

    def serve(self, poke: Callable[[], None]) -> None:
        """Call `poke` for every connection, in a thread of its own."""
        threading.Thread(target=self._accept, args=(poke,), name="door", daemon=True).start()

    def _accept(self, poke: Callable[[], None]) -> None:
        poke()  # somebody may have knocked before we served
        while not self._closed:
            try:
                connection, _ = self._sock.accept()
            except OSError:
                return  # closed by `close`
            connection.close()
            poke()

    def close(self) -> None:
        """Listen no more."""
        self._closed = True
        self._path.unlink(missing_ok=True)
        self._sock.close()
