"""A loopback address of a machine's own: bytes go on to wherever the machine's sshd answers now."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

Place = tuple[str, int, str]


class Forward:
    """Listens at `address` until closed; a connection while the machine is dead is closed at once."""

    def __init__(self, address: tuple[str, int], place: Callable[[], Place | None]) -> None:
        self._place = place
        self._open: set[socket.socket] = set()
        self._socket = socket.create_server(address)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            found = self._place()
            try:
                if found is None:
                    raise ConnectionRefusedError
                server = socket.create_connection(found[:2], timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(one)
            threading.Thread(target=self._pump, args=(client, server), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            self._open.discard(one)

    def close(self) -> None:
        for one in (self._socket, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
