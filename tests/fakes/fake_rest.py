"""A stateful stand-in of a company's API: HTTP on loopback, virtual delays, scripted faults, bodies held to the API.

    with FakeRunPod() as company:
        provider = RunPodProvider(company.config(tmp_path))
        company.fault("POST", "/v2/pods$", "lost")       # made, and the answer is not

Rules
- What it is sent and what it says is checked against the company's document where that is present; `violations` must be
  empty at the end, which leaving the context asserts.
- Time is the host's plus what `advance` added: nothing here sleeps.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from fake_machines import Banner, Machines
from fake_spec import Document, Origin, document

from providers.base import GpuRow, ProviderConfig

KEY = "a-key-of-the-fake"
GPUS = (
    GpuRow("RTX-4090", 24),
    GpuRow("A10", 24),
    GpuRow("A100-80GB-SXM", 80, ("A100-SXM4-80GB",)),
    GpuRow("H100-SXM", 80, ("H100-80GB-HBM3", "H100-SXM5")),
    GpuRow("RTX-4090D", 24),
    GpuRow("H800", 80),
)

FaultKind = Literal["refuse", "lost", "cut", "garbage", "answer-after"]


@dataclass(frozen=True)
class Request:
    """One request as a route sees it."""

    method: str
    path: str
    parts: tuple[str, ...]
    query: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Reply:
    """What a route answers; `body` None is an empty one."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Fault:
    """What goes wrong, on the next `times` requests that fit.

    refuse        nothing happens, `reply` is said
    cut           nothing happens, the connection closes
    lost          it happens, the connection closes without an answer
    garbage       it happens, the answer is a page of HTML with status 200
    answer-after  it happens, `reply` is said
    """

    method: str
    path: str
    kind: FaultKind
    reply: Reply = field(default_factory=lambda: Reply(500, None))
    times: int = 1


Route = tuple[str, str, Callable[[Request], Reply]]


class FakeApi:
    """One company. A subclass gives `name`, `spec`, `origin`, `provider`, `routes()` and its shapes."""

    name = ""
    spec = ""  # file name of its document
    origin: Origin = "derived"  # what that document is
    forgiven: tuple[str, ...] = ()  # JSON paths at which the document is known to be wrong

    def __init__(self, machines: Machines | None = None) -> None:
        self.machines: Machines = machines or Banner()
        self.document: Document | None = document(self.spec)
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, str, int]] = []
        self.violations: list[str] = []
        self.lock = threading.RLock()
        self.key = KEY
        self._ahead = 0.0
        self._made = 0
        self._server: ThreadingHTTPServer | None = None

    def routes(self) -> tuple[Route, ...]:
        raise NotImplementedError

    def authorizes(self, header: str) -> bool:
        """Whether an Authorization header is the account's."""
        return header == f"Bearer {self.key}"

    def unauthorized(self, request: Request) -> Reply:
        raise NotImplementedError

    # --- use ----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Any:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
        self.machines.close()
        if kind is None:
            assert self.violations == [], self.violations

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def settings(self) -> dict[str, Any]:
        """The block of the config that leads an adapter here, at a pace that no test waits for."""
        return {"url": self.url, "requests_per_s": 10_000}

    def config(self, home: Path, deployment: str = "contract", **settings: Any) -> ProviderConfig:
        secret: Callable[[str], str | None] = lambda variable: self.key  # noqa: E731
        return ProviderConfig(deployment, home, GPUS, self.settings() | settings, secret)

    def fault(self, method: str, path: str, kind: FaultKind, *, times: int = 1, **reply: Any) -> None:
        """Add a fault; `path` is a regular expression; `status`, `body`, `headers` make its reply."""
        self.faults.append(Fault(method, path, kind, Reply(**{"status": 500, **reply}), times))

    def now(self) -> float:
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._ahead += seconds

    def sent(self, method: str, path: str) -> int:
        """How many requests fit."""
        return sum(1 for m, p, _ in self.calls if m == method and re.search(path, p))

    def next_number(self) -> int:
        self._made += 1
        return self._made

    # --- serving ------------------------------------------------------------------------------------------------------

    def serve(self, request: Request, authorized: bool) -> tuple[Reply | None, str]:
        """(the answer or None to close the connection, raw text instead of a body)."""
        with self.lock:
            fault = self._fault(request)
            if fault is not None and fault.kind in ("refuse", "cut"):
                return (fault.reply if fault.kind == "refuse" else None), ""
            reply = self._route(request) if authorized else self.unauthorized(request)
            self._check(request, reply)
            if fault is None:
                return reply, ""
            if fault.kind == "lost":
                return None, ""
            return (Reply(200), "<html>busy</html>") if fault.kind == "garbage" else (fault.reply, "")

    def _fault(self, request: Request) -> Fault | None:
        for fault in self.faults:
            if fault.times != 0 and fault.method == request.method and re.search(fault.path, request.path):
                fault.times -= 1
                return fault
        return None

    def _route(self, request: Request) -> Reply:
        for method, pattern, serve in self.routes():
            found = re.fullmatch(pattern, request.path.rstrip("/"))
            if method == request.method and found:
                parts = tuple(unquote(each) for each in found.groups())
                return serve(Request(request.method, request.path, parts, request.query, request.body))
        self.violations.append(f"{request.method} {request.path}: no such address")
        return Reply(404, {})

    def _check(self, request: Request, reply: Reply) -> None:
        if self.document is None:
            return
        about = f"{request.method} {request.path}"
        bodies = ((None, request.body), (reply.status, reply.body))
        for status, body in bodies:
            if status is None and (body is None or 400 <= reply.status < 500):
                continue  # a request that was refused for its shape is allowed to be wrong
            found = self.document.errors(request.method, request.path, status, body)
            wrong = [each for each in found if not any(re.search(path, each) for path in self.forgiven)]
            self.violations += [f"{about} {status or 'request'}: {each}" for each in wrong]


def _handler(company: FakeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # headers and body in one packet

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            data = self.rfile.read(length)
            address = urlsplit(self.path)
            body = json.loads(data) if data else None
            request = Request(self.command, address.path, (), dict(parse_qsl(address.query)), body)
            authorized = company.authorizes(self.headers.get("Authorization") or "")
            reply, raw = company.serve(request, authorized)
            company.calls.append((self.command, address.path, reply.status if reply else 0))
            if reply is None:
                self.close_connection = True
                return
            text = raw or ("" if reply.body is None else json.dumps(reply.body))
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "text/html" if raw else "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
