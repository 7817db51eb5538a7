"""What gpujob asks of an object store.

Rules
- A listing is complete or an error: a part of it would look like things that are gone.
- A write is proved by what the store says it holds (size and hash), never by a call that returned.
- Keys are whole keys of the bucket; times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Stored:
    """An object as the store describes it. `md5`, `sha256`: hex, empty where it does not say; `modified`: UTC."""

    key: str
    size: int
    md5: str = ""
    sha256: str = ""
    modified: float = 0.0
    etag: str = ""


@dataclass(frozen=True)
class Access:
    """What a machine gets to write below one prefix. `keys`: access, secret, token, region; empty: presigned URLs only.
    `until`: UTC epoch at which it ends; None: never."""

    keys: Mapping[str, str]
    until: float | None
    kind: str  # sts | scoped | presigned


class ObjectStore(Protocol):
    """One bucket. Every method raises a StoreError and nothing else."""

    @property
    def url(self) -> str:
        """s3://bucket."""
        ...

    @property
    def base_url(self) -> str:
        """The bucket's own http(s) URL, which presigned and signed requests go to."""
        ...

    def put(self, key: str, data: bytes, *, once: bool = False) -> Stored:
        """Write a small object. `once`: StoreExists when there is one already (If-None-Match)."""
        ...

    def get(self, key: str, limit: int = ...) -> bytes:
        """Read a small object; StoreRefused when it has more than `limit` bytes."""
        ...

    def get_to(self, key: str, path: Path) -> str:
        """Read an object into a file; returns the SHA-256 of what came."""
        ...

    def put_from(self, path: Path, key: str) -> Stored:
        """Write an object from a file, in parts where it is large."""
        ...

    def sha256(self, key: str) -> str:
        """Read an object for its hash: when the store cannot say it."""
        ...

    def head(self, key: str) -> Stored | None:
        """What the store says of an object, None when it is not there."""
        ...

    def list(self, prefix: str) -> tuple[Stored, ...]:
        """Every object whose key begins with `prefix`, all pages, or an error."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is not there counts as removed."""
        ...

    def presign_get(self, key: str, seconds: int) -> str:
        """A URL that reads one object."""
        ...

    def presign_put(self, key: str, seconds: int, headers: Mapping[str, str] | None = None) -> str:
        """A URL that writes one object; `headers` must be sent with it as given."""
        ...

    def multipart_start(self, key: str) -> str:
        """Begin an object in parts; its upload id."""
        ...

    def multipart_presign(self, key: str, upload: str, number: int, seconds: int) -> str:
        """A URL that writes part `number` (from 1)."""
        ...

    def multipart_complete(self, key: str, upload: str, etags: Iterable[str]) -> None:
        """Join the parts, in order."""
        ...

    def multipart_abort(self, key: str, upload: str) -> None:
        """Forget the parts; an upload that is not there counts as forgotten."""
        ...

    def access(self, prefix: str, seconds: int, name: str) -> Access:
        """Credentials that can read and write below `prefix` only, for about `seconds`."""
        ...
