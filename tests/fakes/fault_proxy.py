"""An HTTP proxy before a real S3 server that misbehaves on demand.

    proxy = FaultProxy(lambda: server.port)
    proxy.fault = lambda method, path, number: "500" if method == "PUT" and number <= 2 else None

Faults: "500", "412", "403", "expired" (ExpiredToken), "full" (507),
"skew" (403 RequestTimeTooSkewed with a Date header), "cut" (half of the request's body is taken,
then the connection is reset), "cut-answer" (half of the answer is given), "alter" (one byte of the answer is another
one), "lose" (200 without asking the server), "hold" (nothing happens until `release` is set). `number` counts this
method's requests from 1. Host headers pass unchanged, so signatures hold.
"""

from __future__ import annotations

import http.client
import socket
import socketserver
import struct
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

REFUSALS = {
    "500": (500, "InternalError"),
    "412": (412, "PreconditionFailed"),
    "403": (403, "AccessDenied"),
    "expired": (400, "ExpiredToken"),
    "full": (507, "XMinioStorageFull"),
    "skew": (403, "RequestTimeTooSkewed"),
}
HOP = ("content-length", "transfer-encoding", "connection")
Fault = Callable[[str, str, int], str | None]


class FaultProxy:
    """Listens on a loopback port; counts what passed."""

    def __init__(self, target: Callable[[], int]) -> None:
        self.target = target
        self.fault: Fault = lambda method, path, number: None
        self.skew_s = 0.0  # what the Date header of a "skew" answer says beyond the real time
        self.counts: Counter[str] = Counter()
        self.bytes_up = 0
        self.lock = threading.Lock()
        self.release = threading.Event()
        proxy = self

        class Handler(_Handler):
            world = proxy

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.port: int = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is what this is about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world: FaultProxy

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        world = self.world
        with world.lock:
            world.counts[self.command] += 1
            number = world.counts[self.command]
        fault = world.fault(self.command, self.path, number)
        length = int(self.headers.get("Content-Length") or 0)
        if fault == "cut":
            self.rfile.read(length // 2)
            with world.lock:
                world.bytes_up += length // 2
            self._reset()
            return
        if fault == "hold":
            world.release.wait(60.0)
        body = self.rfile.read(length)
        with world.lock:
            world.bytes_up += len(body)
        if fault in REFUSALS:
            self._answer(fault)
            return
        if fault == "lose":
            self._send(200, [("ETag", '"0"')], b"")
            return
        far = http.client.HTTPConnection("127.0.0.1", world.target(), timeout=60)
        try:
            far.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                far.putheader(name, value)
            far.endheaders(body)
            answer = far.getresponse()
            data = answer.read()
            headers = [(k, v) for k, v in answer.getheaders() if k.lower() not in HOP]
            if self.command == "HEAD":
                headers.append(("Content-Length", answer.getheader("Content-Length") or "0"))
        finally:
            far.close()
        if fault == "alter" and data:
            data = data[:-1] + bytes([data[-1] ^ 1])
        self._send(answer.status, headers, data, cut=fault == "cut-answer")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def _answer(self, fault: str) -> None:
        import email.utils
        import time

        status, code = REFUSALS[fault]
        date = email.utils.formatdate(time.time() + self.world.skew_s, usegmt=True)
        self._send(status, [("Date", date)], f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode())

    def _send(self, status: int, headers: list[tuple[str, str]], data: bytes, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut:
            self.wfile.write(data[: len(data) // 2])
            self._reset()
        else:
            self.wfile.write(data)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
