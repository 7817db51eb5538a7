"""GET over kept connections: redirects, proxies, and the one question that a fetch asks, "is it worth another try?"

Rules: a credential goes to the host that it was meant for and to no other that it redirects to. A wait for bytes is
bounded, so that a connection which only stays open counts as broken.
"""

from __future__ import annotations

import email.utils
import http.client
import os
import ssl
import time
import urllib.parse
import urllib.request

STALL_S = 30.0  # without a byte; then the connection is taken for broken
REDIRECTS = 5
SMALL_BODY = 1 << 16  # of an answer that is no file; what is longer is not read to its end
RETRY_AFTER_MAX_S = 120.0
TRANSIENT = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529)


class Broken(Exception):
    """Worth another try; `after` seconds at the earliest, when the server says so."""

    def __init__(self, detail: str, after: float = 0.0) -> None:
        super().__init__(detail)
        self.after = after


class Lost(Exception):
    """Not worth another try; `kind`: changed | denied | gone | refused | disk-full."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Web:
    """The connections of one thread."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], http.client.HTTPConnection] = {}

    def get(self, url: str, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, str]:
        """The answer (200 or 206) and the address that gave it. Raises Broken or Lost."""
        for _ in range(REDIRECTS):
            answer = self.ask(url, headers)
            if answer.status in (200, 206):
                return answer, url
            if len(answer.read(SMALL_BODY)) == SMALL_BODY:
                self.forget(url)  # a page, or one without end
            if answer.status in (301, 302, 303, 307, 308) and answer.headers.get("Location"):
                there = urllib.parse.urljoin(url, answer.headers["Location"])
                if urllib.parse.urlsplit(there).scheme not in ("http", "https") or not printable(there):
                    raise Lost("refused", "it redirects to what is no address of a file")
                if urllib.parse.urlsplit(there)[:2] != urllib.parse.urlsplit(url)[:2]:
                    headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
                url = there
                continue
            raise refusal(answer, url)
        raise Lost("refused", "more than %d redirects" % REDIRECTS)

    def ask(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        parts = urllib.parse.urlsplit(url)
        key = (parts.scheme, parts.netloc)
        path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        kept = self.lines.pop(key, None)
        proxied = parts.scheme == "http" and proxy_of(parts)
        while True:
            line = kept or self.open(parts)
            try:
                line.request("GET", url if proxied else path, headers={"User-Agent": "gpujob", **headers})
                answer = line.getresponse()
                break
            except (OSError, http.client.HTTPException) as error:
                line.close()
                if kept is None:
                    host = parts.netloc.rpartition("@")[2]  # without what may be a password
                    raise Broken("%s: %s" % (host, str(error) or type(error).__name__)) from None
                kept = None  # the server closes idle connections: that is no failure
        self.lines[key] = line  # taken out again by whoever does not read to the end
        return answer

    def open(self, parts: urllib.parse.SplitResult) -> http.client.HTTPConnection:
        host, proxy = parts.netloc.rpartition("@")[2], proxy_of(parts)
        if parts.scheme == "https":
            line: http.client.HTTPConnection = http.client.HTTPSConnection(
                proxy or host, timeout=STALL_S, context=ssl.create_default_context()
            )
            if proxy:
                line.set_tunnel(host)
            return line
        return http.client.HTTPConnection(proxy or host, timeout=STALL_S)

    def forget(self, url: str) -> None:
        """Close the connection to the host of `url`: something of an answer is still on it."""
        line = self.lines.pop(urllib.parse.urlsplit(url)[:2], None)
        if line is not None:
            line.close()


def printable(url: str) -> bool:
    """Whether a request line can hold it: http.client raises on anything else."""
    return all(32 < ord(char) < 127 for char in url)


def proxy_of(parts: urllib.parse.SplitResult) -> str:
    """HOST:PORT of the machine's proxy for this address, empty without one."""
    host = parts.hostname or ""
    if not any(name in os.environ for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")):
        return ""
    if host in ("127.0.0.1", "localhost", "::1") or urllib.request.proxy_bypass(host):
        return ""
    proxy = urllib.request.getproxies().get(parts.scheme, "")
    return urllib.parse.urlsplit(proxy).netloc.rpartition("@")[2] if "://" in proxy else proxy


def refusal(answer: http.client.HTTPResponse, url: str) -> Exception:
    """The error for a status that is no success."""
    host, status = urllib.parse.urlsplit(url).netloc.rpartition("@")[2], answer.status
    what = "%s answered %d %s" % (host, status, answer.reason)
    if status in TRANSIENT:
        return Broken(what, retry_after(answer.headers.get("Retry-After", "")))
    if status in (401, 403, 407):
        return Lost("denied", what)
    if status in (404, 410):
        return Lost("gone", what)
    return Lost("changed" if status in (412, 416) else "refused", what)


def retry_after(text: str) -> float:
    """Seconds that a server asks to wait, bounded; a date is understood."""
    try:
        wait = float(text)
    except ValueError:
        try:
            wait = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (TypeError, ValueError):
            return 0.0
    return min(max(0.0, wait), RETRY_AFTER_MAX_S)
