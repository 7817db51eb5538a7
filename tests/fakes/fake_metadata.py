"""A machine's metadata service as AWS describes version 2: a token first, then 404 until there is a notice.

One server stands for the services of several machines: a token belongs to the machine that was the newest when it was
given.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NOTICE = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class FakeMetadata:
    """`announce` and `hint` make it speak; `asked` are (method, path, status)."""

    def __init__(self) -> None:
        self.machines: list[str] = ["first"]
        self.tokens: dict[str, str] = {}
        self.notices: dict[str, str] = {}
        self.hints: dict[str, str] = {}
        self.asked: list[tuple[str, str, int]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> FakeMetadata:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def announce(self, machine: str, at: float, action: str = "terminate") -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
        self.notices[machine] = json.dumps({"action": action, "time": when})

    def hint(self, machine: str) -> None:
        self.hints[machine] = json.dumps({"noticeTime": "2026-11-30T10:00:00Z"})

    def answer(self, method: str, path: str, token: str) -> tuple[int, str]:
        if (method, path) == ("PUT", "/latest/api/token"):
            made = f"token-{len(self.tokens)}"
            self.tokens[made] = self.machines[-1]
            return 200, made
        machine = self.tokens.get(token)
        if machine is None:
            return 401, ""
        found = {NOTICE: self.notices, REBALANCE: self.hints}.get(path, {}).get(machine)
        return (200, found) if found is not None else (404, "")


def _handler(service: FakeMetadata) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            status, text = service.answer(self.command, self.path, self.headers.get("X-aws-ec2-metadata-token", ""))
            service.asked.append((self.command, self.path, status))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_PUT = answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
