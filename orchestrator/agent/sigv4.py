"""Signatures of S3 requests (AWS Signature Version 4), standard library only: in headers, or in a URL that expires.

Used by the agent with the short-lived keys that it was given, and by the controller to presign URLs: a presigned URL
lets a machine read or write one object and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

UNSIGNED = "UNSIGNED-PAYLOAD"
PRESIGN_MAX_S = 7 * 86400  # the protocol's own limit of a presigned URL
SAFE = "/-_.~"


def key_url(base: str, key: str) -> str:
    """The URL of an object below a bucket's URL."""
    return base.rstrip("/") + "/" + quote(key, safe=SAFE)


def signed_headers(
    method: str, url: str, headers: Mapping[str, str], payload: str, keys: Mapping[str, str], now: float
) -> dict[str, str]:
    """`headers` with those that sign the request. `payload`: hex SHA-256 of the body, or UNSIGNED. `keys`: access,
    secret, token ("" where there is none), region. `now`: UTC epoch, by the server's clock as far as it is known."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    parts = urlsplit(url)
    full = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    full.update({"host": parts.netloc, "x-amz-date": stamp, "x-amz-content-sha256": payload})
    if keys.get("token"):
        full["x-amz-security-token"] = keys["token"]
    names = ";".join(sorted(full))
    scope = "%s/%s/s3/aws4_request" % (stamp[:8], keys["region"])
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    digest = _request_digest(method, parts.path, _query(pairs), full, names, payload)
    signature = _signature(keys, stamp, scope, digest)
    full["authorization"] = "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s" % (
        keys["access"],
        scope,
        names,
        signature,
    )
    return full


def presigned(
    method: str, url: str, keys: Mapping[str, str], seconds: int, now: float, headers: Mapping[str, str] | None = None
) -> str:
    """`url` signed, so that anybody can do `method` on it for `seconds`; `headers` must then be sent as given."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    parts = urlsplit(url)
    full = {name.lower(): " ".join(value.split()) for name, value in (headers or {}).items()}
    full["host"] = parts.netloc
    names = ";".join(sorted(full))
    scope = "%s/%s/s3/aws4_request" % (stamp[:8], keys["region"])
    pairs = [*parse_qsl(parts.query, keep_blank_values=True)]
    pairs += [
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", keys["access"] + "/" + scope),
        ("X-Amz-Date", stamp),
        ("X-Amz-Expires", str(min(int(seconds), PRESIGN_MAX_S))),
        ("X-Amz-SignedHeaders", names),
    ]
    if keys.get("token"):
        pairs.append(("X-Amz-Security-Token", keys["token"]))
    query = _query(pairs)
    digest = _request_digest(method, parts.path, query, full, names, UNSIGNED)
    signature = _signature(keys, stamp, scope, digest)
    return "%s://%s%s?%s&X-Amz-Signature=%s" % (parts.scheme, parts.netloc, parts.path, query, signature)


def _query(pairs: list[tuple[str, str]]) -> str:
    return "&".join(sorted("%s=%s" % (quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in pairs))


def _request_digest(method: str, path: str, query: str, full: Mapping[str, str], names: str, payload: str) -> str:
    lines = "".join("%s:%s\n" % (name, full[name]) for name in sorted(full))
    request = "\n".join((method, path or "/", query, lines, names, payload))
    return hashlib.sha256(request.encode()).hexdigest()


def _signature(keys: Mapping[str, str], stamp: str, scope: str, digest: str) -> str:
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, digest))
    return hmac.new(_signing_key(keys["secret"], scope), text.encode(), hashlib.sha256).hexdigest()


@lru_cache(maxsize=8)  # the same for a day; results of 10,000 files are signed one by one
def _signing_key(secret: str, scope: str) -> bytes:
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
