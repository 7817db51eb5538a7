"""A web server for downloads on a loopback port: ranges, ETags, redirects, and every way in which one can break.

`faults` are used up one a request for a file: 503 (a status), ("retry", 429, seconds), ("cut", bytes), ("alter",)
(another first byte), ("stall", bytes) or None (no fault).
It also answers as the Hugging Face Hub for what `hub` holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


class FakeWeb:
    """Use as a context manager. `sent` counts the body bytes that left; `asked` are (path, Range, Authorization)."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.faults: list[Any] = []
        self.ranges = True
        self.sizes = True
        self.token = ""  # of closed repositories
        self.closed = False
        self.page = 1000  # rows of one page of a tree
        self.next_page = ""  # the host that a page names for the next one; itself when empty
        self.rows: list[Any] | None = None  # what a tree answers instead of its files
        self.asked: list[tuple[str, str, str]] = []
        self.encodings: set[str] = set()  # that were accepted
        self.sent = 0
        self.released = threading.Event()
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Nothing on stderr."""

            def do_GET(self) -> None:
                with contextlib.suppress(ConnectionError):
                    web.answer(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> FakeWeb:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(to.path).path)
        self.asked.append((path, to.headers.get("Range", ""), to.headers.get("Authorization", "")))
        self.encodings.add(to.headers.get("Accept-Encoding", "identity"))
        if path.startswith("/api/"):
            return self.hub(to, path)
        if path in self.redirects:
            to.send_response(302)
            to.send_header("Location", self.redirects[path])
            to.send_header("Content-Length", "0")
            return to.end_headers()
        if self.closed and to.headers.get("Authorization") != f"Bearer {self.token}":
            return self.plain(to, 401, b"")
        path = re.sub(r"^/(datasets/)?[\w-]+/[\w-]+/resolve/[0-9a-f]{40}", "", path)
        data = self.files.get(path)
        if data is None:
            return self.plain(to, 404, b"no such file")
        fault = self.faults.pop(0) if self.faults and to.headers.get("Range") != "bytes=0-0" else None
        if isinstance(fault, int):
            return self.plain(to, fault, b"trouble")
        if fault and fault[0] == "retry":
            return self.plain(to, fault[1], b"slow down", {"Retry-After": str(fault[2])})
        return self.body(to, data, fault)

    def body(self, to: BaseHTTPRequestHandler, data: bytes, fault: Any) -> None:
        if fault and fault[0] == "alter":
            data, fault = bytes([data[0] ^ 1]) + data[1:], None
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", to.headers.get("Range", "")) if self.ranges else None
        start, end = (int(found[1]), min(int(found[2] or len(data)) + 1, len(data))) if found else (0, len(data))
        if found and start >= len(data):
            return self.plain(to, 416, b"")
        to.send_response(206 if found else 200)
        to.send_header("ETag", f'"{hashlib.md5(data).hexdigest()}"')
        if found:
            to.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        if self.sizes:
            to.send_header("Content-Length", str(end - start))
        else:
            to.send_header("Connection", "close")
            to.close_connection = True
        to.end_headers()
        limit = fault[1] if fault else end - start
        for at in range(start, min(end, start + limit), 16384):
            block = data[at : min(at + 16384, end, start + limit)]
            to.wfile.write(block)
            self.sent += len(block)
        to.wfile.flush()
        if fault and fault[0] == "stall":
            self.released.wait(30)
        if fault:  # a reset, not an orderly end
            to.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            to.connection.close()
            to.close_connection = True
        return None

    def plain(
        self, to: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str] | None = None
    ) -> None:
        to.send_response(status)
        for name, value in (headers or {}).items():
            to.send_header(name, value)
        to.send_header("Content-Length", str(len(data)))
        to.end_headers()
        to.wfile.write(data)

    # --- the Hub ------------------------------------------------------------------------------------------------------

    def hub(self, to: BaseHTTPRequestHandler, path: str) -> None:
        if self.closed and to.headers.get("Authorization") != f"Bearer {self.token}":
            return self.plain(to, 401, b"{}", {"X-Error-Code": "RepoNotFound"})
        if "/revision/" in path:
            if path.rpartition("/revision/")[2] not in ("main", "v1", COMMIT, "refs/pr/1"):
                return self.plain(to, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return self.plain(to, 200, json.dumps({"sha": COMMIT, "private": self.closed, "gated": False}).encode())
        inner = path.partition(f"/tree/{COMMIT}")[2].strip("/")
        query = urlsplit(to.path).query
        names = sorted(name.strip("/") for name in self.files)
        below = [name for name in names if not inner or name.startswith(f"{inner}/")]
        if "recursive=true" not in query:
            below = [name for name in below if "/" not in name[len(inner) + 1 if inner else 0 :]]
        if not below:
            return self.plain(to, 404, b"{}", {"X-Error-Code": "EntryNotFound"})
        at = int((re.search(r"cursor=(\d+)", query) or [0, 0])[1])
        rows = self.rows if self.rows is not None else [self.row(name) for name in below[at : at + self.page]]
        headers = {}
        if at + self.page < len(below):
            there = f"{self.next_page or self.url}{to.path.partition('?')[0]}?recursive=true&cursor={at + self.page}"
            headers["Link"] = f'<{there}>; rel="next"'
        return self.plain(to, 200, json.dumps(rows).encode(), headers)

    def row(self, name: str) -> dict[str, Any]:
        data = self.files[f"/{name}"]
        row: dict[str, Any] = {"type": "file", "path": name, "size": len(data)}
        if len(data) > 1000:
            return {**row, "lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}}
        return {**row, "oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
