"""A TCP proxy that can turn into a black hole: it takes what it is given and brings nothing on."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable


class Proxy:
    """Listens on a loopback port; `target` names the port behind it, asked at every connection."""

    def __init__(self, target: Callable[[], int]) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self) -> None:
        """From now on nothing passes; connections stay open and new ones are taken."""
        self._open.clear()

    def resume(self) -> None:
        """What was held back passes."""
        self._open.set()

    def close(self) -> None:
        self._closed = True
        self._open.set()
        self._shut(self._listener)
        for each in self._sockets:
            self._shut(each)

    @staticmethod
    def _shut(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(near)
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target()), timeout=5.0)
        except OSError:
            self._shut(near)
            return
        far.settimeout(None)
        self._sockets.append(far)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                sink.sendall(data)
        self._shut(source)
        self._shut(sink)
