"""One S3 request after another over kept connections: sent from files, repeated with patience, slowed down where asked.

Rules
- Nothing is held in memory but one block; the body is read from the files while it is sent.
- Repeated: no answer, a broken or slow connection, 5xx, 429, and a clock that differs (then by the server's). Not
  repeated: what the store decided.
- A store that says that the bytes are not those of the hash means that the files changed: that is told apart.
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import ssl
import threading
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, List, Tuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SEND_BLOCK = 256 << 10  # bytes: a block is what a bandwidth limit waits for
WIRE_ANSWER_S = 60.0  # without a byte for so long a connection is dead or too slow to be of use
TRIES = 8  # with the pauses below about two minutes of trouble; the caller goes on after that
WIRE_PAUSE_S = 0.25
WIRE_PAUSE_MAX_S = 30.0
ERROR_BYTES = 64 << 10
CHANGED_CODES = ("BadDigest", "XAmzContentSHA256Mismatch", "InvalidDigest", "XAmzContentChecksumMismatch")
EXPIRED_CODES = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId")
BUSY_CODES = ("SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "OperationAborted")

# What is sent: pieces of files, one after another
Spans = List[Tuple[str, int, int]]


class WireError(Exception):
    """A request that did not succeed. `kind`: changed | expired | refused | trouble."""

    def __init__(self, kind: str, status: int, code: str, detail: str, pause: float = 0.0) -> None:
        super().__init__("%s %s: %s" % (status or "no answer", code or kind, detail[:300]))
        self.kind, self.status, self.code, self.pause = kind, status, code, pause


class Throttle:
    """Bytes a second for all threads together; 0 is no limit."""

    def __init__(self, rate: float) -> None:
        self.rate, self.lock, self.free_at = rate, threading.Lock(), 0.0

    def take(self, count: int) -> None:
        if self.rate <= 0:
            return
        with self.lock:
            now = time.monotonic()
            self.free_at = max(self.free_at, now - 0.5) + count / self.rate
            wait = self.free_at - now
        if wait > 0:
            time.sleep(wait)


class Wire:
    """Connections of one thread each; `skew_s` is how far the server's clock is ahead of this machine's."""

    def __init__(self, rate: float = 0.0, tries: int = TRIES, pause: Callable[[float], None] = time.sleep) -> None:
        self.throttle, self.tries, self.sleep = Throttle(rate), tries, pause
        self.local = threading.local()
        self.skew_s = 0.0
        self.sent = 0
        self.resent = 0

    def call(self, attempt: Callable[[], Any]) -> Any:
        """Do `attempt` until it succeeds, is decided against, or has failed `tries` times."""
        skewed = False
        for count in range(1, self.tries + 1):
            try:
                return attempt()
            except WireError as error:
                if error.code == "RequestTimeTooSkewed" and not skewed:
                    skewed = True  # `skew_s` is known now: once more at once
                    continue
                if error.kind != "trouble" or count == self.tries:
                    raise
                self.resent += 1
                pause = min(WIRE_PAUSE_MAX_S, WIRE_PAUSE_S * 2 ** (count - 1))
                self.sleep(max(error.pause, pause * (0.5 + random.random())))
        raise AssertionError("not reached")

    def put(
        self,
        url: str,
        headers: Mapping[str, str],
        spans: Spans | bytes,
        size: int,
        seen: Callable[[bytes | memoryview], None] | None = None,
    ) -> dict[str, str]:
        """One PUT, once; returns the answer's headers in lower case. `seen` gets the bytes as they are sent."""
        body: Iterator[bytes | memoryview] = iter([spans]) if isinstance(spans, bytes) else read_spans(spans)
        if seen is not None:
            body = tapped(body, seen)
        return self.exchange("PUT", url, {**headers, "content-length": str(size)}, body, None)

    def get(self, url: str, headers: Mapping[str, str], take: Callable[[memoryview], None]) -> dict[str, str]:
        """One GET, once; `take` gets the bytes as they come, in a buffer that the next ones are written into."""
        return self.exchange("GET", url, headers, None, take)

    def exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Iterator[bytes | memoryview] | None,
        take: Callable[[memoryview], None] | None,
    ) -> dict[str, str]:
        parts = urlsplit(url)
        where = parts.path + ("?" + parts.query if parts.query else "")
        try:
            connection = self.connection(parts.scheme, parts.netloc)
            connection.putrequest(method, where, skip_host=True, skip_accept_encoding=True)
            for name, value in {"host": parts.netloc, **headers}.items():
                connection.putheader(name, value)
            connection.endheaders()
            broken: OSError | None = None
            try:
                for block in body or ():
                    self.throttle.take(len(block))
                    connection.send(block)
                    self.sent += len(block)
            except OSError as error:  # a server that refuses early closes while we send: its answer may be there
                if isinstance(error, FileNotFoundError):
                    raise FilesChanged(str(error)) from None
                broken = error
            try:
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException):
                if broken is not None:
                    raise broken from None
                raise
            if answer.status // 100 != 2:
                raise self.refusal(answer)
            if take is not None:
                left = answer.length
                # one buffer again and again: memory made for each block costs as much as its hash
                room = memoryview(bytearray(SEND_BLOCK if left is None else min(SEND_BLOCK, max(left, 1))))
                for count in iter(lambda: answer.readinto(room), 0):
                    self.throttle.take(count)
                    take(room[:count])
                    left = None if left is None else left - count
                if left:
                    raise OSError("the answer broke off")
            else:
                answer.read()
            if answer.will_close:
                self.drop()
            return {name.lower(): value for name, value in answer.getheaders()}
        except WireError:
            self.drop()
            raise
        except FilesChanged as error:
            self.drop()
            raise WireError("changed", 0, "", str(error)) from None
        except (OSError, http.client.HTTPException, ssl.SSLError) as error:
            self.drop()
            raise WireError("trouble", 0, "", "%s: %s" % (type(error).__name__, error)) from None

    def connection(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        known = getattr(self.local, "known", None)
        if known is not None and known[0] == (scheme, netloc):
            kept: http.client.HTTPConnection = known[1]
            return kept
        self.drop()
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        connection = kind(netloc, timeout=WIRE_ANSWER_S)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.local.known = ((scheme, netloc), connection)
        return connection

    def drop(self) -> None:
        known = getattr(self.local, "known", None)
        self.local.known = None
        if known is not None:
            known[1].close()

    def refusal(self, answer: http.client.HTTPResponse) -> WireError:
        text = answer.read(ERROR_BYTES).decode("utf-8", "replace")
        found = re.search(r"<Code>([^<]*)</Code>", text)
        code, status = found.group(1) if found else "", answer.status
        said = re.search(r"<Message>([^<]*)</Message>", text)
        detail = said.group(1) if said else text[:200]
        if code == "RequestTimeTooSkewed":
            self.learn_clock(answer.headers.get("Date", ""))
        pause = answer.headers.get("Retry-After", "")
        seconds = min(float(pause), WIRE_PAUSE_MAX_S) if pause.isdigit() else 0.0
        if code in CHANGED_CODES:
            return WireError("changed", status, code, detail)
        if code in EXPIRED_CODES:
            return WireError("expired", status, code, detail)
        if status >= 500 or status in (408, 429) or code in BUSY_CODES:
            return WireError("trouble", status, code, detail, seconds)
        return WireError("refused", status, code, detail)

    def learn_clock(self, date: str) -> None:
        """The server's clock rules over signatures; this machine's may be wrong."""
        try:
            self.skew_s = parsedate_to_datetime(date).timestamp() - time.time()
        except (TypeError, ValueError, IndexError):
            return


class FilesChanged(Exception):
    """A file that is being sent went away or became shorter."""


def tapped(
    blocks: Iterator[bytes | memoryview], seen: Callable[[bytes | memoryview], None]
) -> Iterator[bytes | memoryview]:
    for block in blocks:
        seen(block)
        yield block


def read_spans(spans: Spans) -> Iterator[memoryview]:
    """The bytes of pieces of files, in blocks of one buffer that is used again; FilesChanged where a file has fewer."""
    room = memoryview(bytearray(min(SEND_BLOCK, max([length for _, _, length in spans], default=0))))
    for path, offset, length in spans:
        try:
            with open(path, "rb", buffering=0) as file:
                file.seek(offset)
                left = length
                while left:
                    count = file.readinto(room[: min(len(room), left)])
                    if not count:
                        raise FilesChanged("%s became shorter" % path)
                    left -= count
                    yield room[:count]
        except FileNotFoundError as error:
            raise FilesChanged("%s went away" % path) from error
