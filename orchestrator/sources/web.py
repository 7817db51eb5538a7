"""`from: https://...`: one file, as the server described it at apply.

Rules: the size and the ETag (or the time of change) are what makes it the same file later; `#sha256=HEX` behind the
address is checked on the machine. A server that does not tell a size is taken at its word: what comes is what it is.
"""

from __future__ import annotations

import re
from urllib.parse import urldefrag, urlsplit

from orchestrator.datasets import UNKNOWN_SIZE, DataError, DataFile
from orchestrator.sources.client import ask

# One byte, as it is: a compressed answer has another length, and often another ETag, than what the machine gets
HEADERS = {"Range": "bytes=0-0", "Accept-Encoding": "identity"}
_HASH = re.compile(r"sha256[=:]([0-9a-fA-F]{64})")


def look(source: str) -> DataFile:
    """The file behind the address. Raises DataError."""
    url, fragment = urldefrag(source)
    wanted = _HASH.fullmatch(fragment)
    if fragment and wanted is None:
        raise DataError(f"#{fragment} says nothing", where=source, next_step="only #sha256=HEX is understood")
    # a GET of one byte: many servers answer HEAD wrongly, and this tells whether they know ranges
    answer = ask("GET", url, where=shown(source), headers=HEADERS, stream=True)
    if answer.status_code in (401, 403):
        raise DataError(
            f"access denied ({answer.status_code})", where=shown(source),
            next_step="use an address that the machine may read, or a store with its own key",
        )  # fmt: skip
    if answer.status_code not in (200, 206, 416):
        raise DataError(f"the server answers {answer.status_code} {answer.reason_phrase}", where=shown(source))
    if "text/html" in answer.headers.get("Content-Type", "") and not urlsplit(url).path.endswith((".html", ".htm")):
        raise DataError("this is a web page, not a file", where=shown(source), next_step="copy the download's own link")
    ranges = answer.status_code == 206
    size = answer.headers.get("Content-Range" if ranges else "Content-Length", "").rpartition("/")[2]
    more: dict[str, object] = {"url": url}
    if not ranges:
        more["ranges"] = False
    etag = answer.headers.get("ETag", "")
    if etag and not etag.startswith("W/"):
        more["etag"] = etag.strip('"')
    name = urlsplit(url).path.rstrip("/").rpartition("/")[2] or "data"
    found = wanted[1].lower() if wanted else ""
    if answer.status_code == 416:
        size = "0"
    return DataFile(name, int(size) if size.isdigit() else UNKNOWN_SIZE, found, more=more)


def shown(source: str) -> str:
    """The address without what may be a key in it."""
    parts = urlsplit(source)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
