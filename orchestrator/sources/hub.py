"""`from: hf://datasets/NAME[@REV][/path]` and `hf://MODEL[@REV][/path]`: a repository of the Hugging Face Hub.

    datasets/ORG/NAME   models: ORG/NAME   (old ones have no ORG)   REV: a branch, tag or commit, refs/pr/N

Rules
- The revision is resolved to a commit at apply; sizes and hashes come from the Hub (SHA-256 of LFS files, git's own of
  the others), so the machine proves every byte without a second download.
- HF_ENDPOINT names another Hub. A token is used here for the listing; the machine gets it only where the spec lists it
  in `secrets`, since it can do more than read one data set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from orchestrator.datasets import DataError, DataFile
from orchestrator.sources.client import ask, json_of

ENDPOINT = "https://huggingface.co"
TOKEN = "HF_TOKEN"
_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')
_REV = re.compile(r"(refs/(?:convert|pr)/[^/]+|[^/]+)(?:/(.*))?\Z")


@dataclass(frozen=True)
class Place:
    """A repository, a revision and a path in it."""

    kind: str  # datasets | models | spaces
    name: str
    revision: str
    path: str

    @property
    def api(self) -> str:
        """Below the endpoint."""
        return f"/api/{self.kind}/{self.name}"

    def base(self, commit: str) -> str:
        """What the addresses of all files begin with, below the endpoint."""
        kind = "" if self.kind == "models" else f"/{self.kind}"
        inner = f"{quote(self.path)}/" if self.path else ""
        return f"{kind}/{self.name}/resolve/{commit}/{inner}"


@dataclass(frozen=True)
class Found:
    """A resolved source: `single` when `path` names one file; `closed`: only a token opens it."""

    commit: str
    files: tuple[DataFile, ...]
    single: bool
    closed: bool
    base: str


def endpoint() -> str:
    """The Hub's address, without a slash at its end."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or ENDPOINT


def parse(source: str) -> Place:
    """`hf://...` in parts. Raises DataError."""
    text = source.removeprefix("hf://").strip("/")
    kind = next((each for each in ("datasets", "models", "spaces") if text.startswith(f"{each}/")), "")
    rest = text.removeprefix(f"{kind}/") if kind else text
    name, at, behind = rest.partition("@")
    revision, path = "main", ""
    if at:
        match = _REV.match(behind)
        if match is None:
            raise DataError("there is no revision behind @", where=source)
        revision, path = match[1], match[2] or ""
    else:
        parts = rest.split("/", 2)
        name, path = "/".join(parts[:2]), parts[2] if len(parts) > 2 else ""
    dots = {".", ".."}.intersection([*name.split("/"), *path.split("/")]) or revision in (".", "..")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or dots:
        raise DataError(f"{name!r} is no repository", where=source, next_step="write hf://datasets/ORG/NAME")
    return Place(kind or "models", name, revision, path.strip("/"))


def look(source: str, token: str = "") -> Found:
    """The files behind `source` as they are now. Raises DataError."""
    place, hub = parse(source), endpoint()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    info = _document(f"{hub}{place.api}/revision/{quote(place.revision, safe='')}", headers, source, token)
    commit = str(info.get("sha", ""))
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise DataError("the Hub named no commit", where=source)
    files = sorted(_tree(f"{hub}{place.api}/tree/{commit}", place.path, headers, source, token), key=_by_bytes)
    if place.path and [each.path for each in files] == [""]:
        one = files[0]
        name = place.path.rpartition("/")[2]
        return Found(commit, (DataFile(name, one.size, one.sha256, more=one.more),), True, _closed(info), "")
    return Found(commit, tuple(files), False, _closed(info), hub + place.base(commit))


def address(source: str, commit: str) -> str:
    """Where a single file of `source` is fetched from."""
    place = parse(source)
    return (endpoint() + place.base(commit)).rstrip("/")


def _closed(info: dict[str, Any]) -> bool:
    return bool(info.get("private")) or bool(info.get("gated"))


def _by_bytes(file: DataFile) -> bytes:
    return os.fsencode(file.path)


def _tree(url: str, path: str, headers: dict[str, str], source: str, token: str) -> Iterator[DataFile]:
    """Every file below `path`, by its name there; the name is empty when `path` is a file itself. All pages."""
    folder = path.rpartition("/")[0]
    found = False
    for inner, wanted in ((path, ""), (folder, path)):
        # a path that is a file has no tree of its own: it stands in its folder's
        start = f"{inner}/" if inner else ""
        page = f"{url}/{quote(inner)}".rstrip("/") + ("?recursive=true" if not wanted else "")
        while page:
            answer = ask("GET", page, where=source, headers=headers)
            if answer.status_code == 404 and path:
                break
            for row in _rows(_checked(answer, source, token), source):
                name = str(row.get("path", ""))
                if row.get("type") == "file" and (name == wanted if wanted else name.startswith(start)):
                    found = True
                    yield _file("" if wanted else name[len(start) :], row)
            link = _NEXT.search(answer.headers.get("Link", ""))
            page = urljoin(page, link[1]) if link else ""
            if page and urlsplit(page)[:2] != urlsplit(url)[:2]:  # the token is for the Hub alone
                raise DataError(f"its list goes on at another host, {urlsplit(page).hostname}", where=source)
        if found or not path:
            break
    if not found:
        raise DataError(f"there is nothing at {path or 'its root'}", where=source, next_step="look at the files' page")


def _rows(page: Any, source: str) -> list[dict[str, Any]]:
    if not isinstance(page, list) or not all(isinstance(row, dict) for row in page):
        raise DataError("the Hub's list of files is none", where=source)
    return page


def _file(path: str, row: dict[str, Any]) -> DataFile:
    lfs = row.get("lfs") or {}
    if lfs:
        return DataFile(path, int(lfs.get("size", row.get("size", 0))), str(lfs.get("oid", "")).removeprefix("sha256:"))
    return DataFile(path, int(row.get("size", 0)), more={"sha1_git": str(row.get("oid", ""))})


def _document(url: str, headers: dict[str, str], source: str, token: str) -> dict[str, Any]:
    found = _checked(ask("GET", url, where=source, headers=headers), source, token)
    return found if isinstance(found, dict) else {}


def _checked(answer: Any, source: str, token: str) -> Any:
    """The answer's document, or a DataError that says what is missing."""
    if answer.status_code == 200:
        return json_of(answer, source)
    code = answer.headers.get("X-Error-Code", "")
    if code == "GatedRepo":
        raise DataError(
            "this repository is gated", where=source, next_step="accept its terms on its page, with your token"
        )
    if answer.status_code == 404 or code in ("RepoNotFound", "RevisionNotFound"):
        hint = "check the name and the revision" + ("" if token else f"; a private one needs {TOKEN}")
        raise DataError("the Hub knows no such repository or revision", where=source, next_step=hint)
    if answer.status_code in (401, 403):
        hint = f"gpujob secret set {TOKEN}" if not token else f"the token in {TOKEN} may not read it"
        raise DataError("the Hub denies access", where=source, next_step=hint)
    raise DataError(f"the Hub answers {answer.status_code} {answer.reason_phrase}", where=source)
