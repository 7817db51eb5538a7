"""A TCP proxy that cuts connections after so many bytes, and counts what passed to the machine."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading


class CuttingProxy:
    """Listens on a loopback port before `target`. `cut_at`: bytes after which everything is reset, once."""

    def __init__(self, target: int) -> None:
        self.target, self.up, self.cut_at = target, 0, 0
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # or an accept under way takes one connection more
        self._listener.close()
        self._reset()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.target))
                except OSError:  # the machine is gone
                    near.close()
                    continue
                self._open += [near, far]
                threading.Thread(target=self._pass, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
                self.up += len(data) * up
                if self.cut_at and self.up >= self.cut_at:
                    self.cut_at = 0
                    self._reset()
                    return
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _reset(self) -> None:
        """A reset, not an orderly end: what was under way is lost."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.close()
        self._open.clear()
