"""Manifests: what a data source held at apply, file by file, and whether it still does.

A manifest is a file of JSON lines in the state folder, `manifests/HASH`, sorted by path: 100,000 files are never in
memory at once. The job keeps its summary; the machine gets the file and checks what landed by it (`agent/landing`).

    {"path": "a/b.bin", "size": 7, "sha256": "..."}       hashed whole
    {"path": "a/c.bin", "size": 9e9, "sha256": "...", "sampled": true}      its size and five pieces of it
    more keys by source: `mtime_ns` (local), `sha1_git`, `etag`, `url`

Rules
- Large files are hashed by samples: data of a terabyte must not be read twice before a machine is even rented.
- Links are followed, as the copy does (`rsync --copy-links`): data folders are often farms of links.
- What cannot be meant is refused here, by name, before money is spent: a link to nothing, a Git LFS pointer, an empty
  file that is no marker, a file that cannot be read (B063, R081, R082).
- A source whose size and time are as recorded is not read again; else its hash decides.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.home import Home
from orchestrator.snapshot import is_pointer
from orchestrator.ssh_files import write_private
from orchestrator.sync import PARTIAL

if TYPE_CHECKING:
    from orchestrator.model import Job

WHOLE_MAX = 64 * 1024 * 1024  # bytes of a file that is hashed whole
SAMPLE = 1024 * 1024
SAMPLES = 5
NAMED = 5  # so many names stand in an error, the rest is counted
MARKERS = frozenset({".gitkeep", ".keep", "__init__.py", "_SUCCESS", ".nojekyll", "py.typed"})  # empty on purpose
SETTLED_NS = 2 * 1000**3  # a file changed within 2 s of the look may change again without its time showing it
MANIFESTS_KEPT = 200  # so many are not worth a look
MANIFEST_S = 7 * 86_400.0
SOURCE_S = 90 * 86_400.0  # a source that was not applied for so long is hashed anew
UNKNOWN_SIZE = -1  # a server that does not tell


class DataError(Exception):
    """The data is not as it must be; the message says what to do. `where` names the source."""

    def __init__(self, message: str, *, where: str = "", next_step: str = "") -> None:
        super().__init__(message)
        self.where, self.next_step = where, next_step


@dataclass(frozen=True)
class DataFile:
    """One file of a source. `more`: what the source itself knows of it."""

    path: str
    size: int
    sha256: str = ""
    sampled: bool = False
    more: Mapping[str, Any] | None = None

    def line(self) -> str:
        """Its line of a manifest."""
        shown: dict[str, Any] = {"path": self.path, "size": self.size}
        if self.sha256:
            shown["sha256"] = self.sha256
        if self.sampled:
            shown["sampled"] = True
        return json.dumps({**shown, **(self.more or {})}, separators=(",", ":"))

    @property
    def identity(self) -> str:
        """What makes it the same file, whenever and wherever it lies."""
        more = self.more or {}
        known = self.sha256 or str(more.get("sha1_git") or more.get("etag") or "")
        return f"{known} {self.size} {self.path}\0"


@dataclass(frozen=True)
class Manifest:
    """The summary that a job keeps: `hash` names the stored file. `region`: where the data lies, if that is known."""

    kind: str  # local | https | hf | s3 | rclone
    source: str
    hash: str
    count: int
    bytes: int
    single: bool = False  # one file, which lands under `path` itself
    sample: float = 1.0
    region: str = ""
    origin: Mapping[str, Any] | None = None  # what the source was resolved to: a commit, an endpoint

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Manifest:
        """From the job's document."""
        names = cls.__dataclass_fields__
        return cls(**{name: value for name, value in stored.items() if name in names})


def summaries(manifests: Mapping[str, Manifest]) -> dict[str, Any]:
    """What a job keeps of its data: path on the machine -> summary."""
    return {path: asdict(manifest) for path, manifest in manifests.items()}


def manifest_of(path: Path, home: Home, *, sample: float = 1.0, allow_empty: bool = False, where: str = "") -> Manifest:
    """Read a folder, or one file under its own name, and store its manifest. Raises DataError."""
    where = where or str(path)
    kept = sampled(list(files_below(path, where)), sample)
    last = home.manifests / f"last.{hashlib.sha256(os.fsencode(path)).hexdigest()[:24]}"
    known = _known(home, last)
    try:
        files = _hashed_all(path, kept, where, allow_empty, known)
        made = store(home, files, kind="local", source=str(path), single=not path.is_dir(), sample=sample)
    except PermissionError as exc:
        raise DataError(f"{exc.filename} cannot be read: {_owner(exc.filename)}", where=where) from None
    except OSError as exc:
        raise DataError(f"{exc.filename or path} cannot be read: {exc.strerror}", where=where) from None
    write_private(last, made.hash.encode())
    return made


def _known(home: Home, last: Path) -> dict[str, DataFile]:
    """The files of the source's last manifest whose times were old enough to be believed when it was made."""
    try:
        made = home.manifests / last.read_text()
        before = made.stat().st_mtime_ns - SETTLED_NS
    except FileNotFoundError:
        return {}
    files = load(home, Manifest("local", "", made.name, 0, 0))
    return {file.path: file for file in files if int((file.more or {}).get("mtime_ns", before)) < before}


def store(
    home: Home, files: Iterable[DataFile], *, kind: str, source: str, single: bool = False, sample: float = 1.0,
    region: str = "", origin: Mapping[str, Any] | None = None,
) -> Manifest:  # fmt: skip
    """Write the manifest of `files` (sorted by path) and return its summary."""
    home.manifests.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest, count, size = hashlib.sha256(), 0, 0
    fd, name = tempfile.mkstemp(prefix=".new.", dir=home.manifests)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as out:
            for file in files:
                if kind != "local":
                    _path_of_a_file(file.path, source)
                digest.update(file.identity.encode("utf-8", "surrogateescape"))
                count, size = count + 1, size + max(file.size, 0)
                out.write(file.line() + "\n")
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, home.manifests / digest.hexdigest())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Manifest(kind, source, digest.hexdigest(), count, size, single, sample, region, origin)


def prune(home: Home, jobs: Callable[[], Iterable[Job]], now: float) -> int:
    """Remove stored manifests that nothing refers to, once there are many; how many went.

    One stays as long as a job that is not done may be relaunched or resumed with it, as long as it spares the next
    apply of its source the hashing, and for a week: an apply stores its manifest before its job is in the books.
    """
    from orchestrator.model import Outcome

    try:
        there = [entry for entry in os.scandir(home.manifests) if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return 0
    if len(there) <= MANIFESTS_KEPT:
        return 0
    old = {entry.name for entry in there if entry.stat().st_mtime < now - MANIFEST_S}
    lasts = {entry.name for entry in there if entry.name.startswith("last.")}
    unused = {name for name in lasts if (home.manifests / name).stat().st_mtime < now - SOURCE_S}
    wanted = {(home.manifests / name).read_text() for name in lasts - unused}
    for job in jobs():
        if job.outcome is not Outcome.DONE or job.terminal_at is None:
            wanted |= {str(each.get("hash")) for each in job.data_manifests.values() if isinstance(each, Mapping)}
    gone = unused | (old - lasts - wanted)
    for name in gone:
        (home.manifests / name).unlink(missing_ok=True)
    return len(gone)


def _path_of_a_file(path: str, source: str) -> None:
    """DataError for a name in somebody else's listing that would be written outside of the data's folder."""
    parts = path.split("/")
    if PARTIAL in parts or any(part in ("", ".", "..") for part in parts) or any(ord(char) < 32 for char in path):
        raise DataError(f"{path!r} in its list is no path of a file", where=source)


def load(home: Home, manifest: Manifest) -> Iterator[DataFile]:
    """The stored files, one by one. Raises DataError when the file is gone."""
    try:
        stored = (home.manifests / manifest.hash).open(encoding="ascii")
    except FileNotFoundError:
        raise DataError(
            f"the list of its files is not in {home.manifests} any more: apply again", where=manifest.source
        ) from None
    with stored:
        for line in stored:
            row = json.loads(line)
            path, size = str(row.pop("path")), int(row.pop("size"))
            yield DataFile(path, size, str(row.pop("sha256", "")), bool(row.pop("sampled", False)), row)


def sampled(paths: list[str], share: float) -> list[str]:
    """The share of `paths` with the lowest hashes, at least one: the same everywhere and in every attempt."""
    if share >= 1 or not paths:
        return paths
    count = max(1, round(len(paths) * share))
    chosen = sorted(paths, key=lambda path: hashlib.sha256(os.fsencode(path)).digest())[:count]
    return sorted(chosen, key=os.fsencode)


def files_below(path: Path, where: str) -> Iterator[str]:
    """Paths of all files of a folder (a single file: its name), sorted as bytes. Raises DataError."""
    if not os.path.lexists(path):
        raise DataError("it does not exist", where=where, next_step="it starts beside the spec")
    if not path.exists():
        raise DataError(f"{path} is a dangling link, to {os.readlink(path)}", where=where)
    if not path.is_dir():
        yield path.name
        return
    yield from _below(str(path), "", (), where)


def _below(root: str, folder: str, above: tuple[tuple[int, int], ...], where: str) -> Iterator[str]:
    full = os.path.join(root, folder)
    try:
        info = os.stat(full)
        entries = list(os.scandir(full))
    except PermissionError as exc:
        raise DataError(f"{exc.filename} cannot be read: {_owner(exc.filename)}", where=where) from None
    here = (info.st_dev, info.st_ino)
    if here in above:
        raise DataError(f"{full} is a link to a folder that it lies in: remove it", where=where)
    # a folder sorts with its slash, so that whole paths come out in order without being collected first
    for _, entry in sorted((os.fsencode(each.name + "/" * _is_folder(each)), each) for each in entries):
        path = f"{folder}/{entry.name}" if folder else entry.name
        if entry.name == PARTIAL:
            continue  # of a copy into this folder that was cut
        if _is_folder(entry):
            yield from _below(root, path, (*above, here), where)
        elif entry.is_file():
            yield path
        elif entry.is_symlink():
            target = os.readlink(entry.path)
            raise DataError(
                f"{path} is a dangling link, to {target}", where=where, next_step="remove it, or bring what it names"
            )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _hashed_all(
    root: Path, paths: list[str], where: str, allow_empty: bool, known: Mapping[str, DataFile]
) -> Iterator[DataFile]:
    empty, pointers, folder = [], [], root.is_dir()
    for path in paths:
        full = root / path if folder else root
        file = known.get(path)
        if file is None or _touched(full, file):
            file = hashed(path, full)
        if file.size == 0 and os.path.basename(path) not in MARKERS:
            empty.append(path)
        if is_pointer(full, file.size):
            pointers.append(path)
        yield file
    if pointers:
        raise DataError(
            f"{names(pointers)}: Git LFS pointers, not the content", where=where, next_step="`git lfs pull` there"
        )
    if empty and not allow_empty:
        raise DataError(
            f"{names(empty)}: zero-byte files, as a broken copy leaves them", where=where,
            next_step="copy the data anew; if they are meant, write `allow_empty: true` beside `from`",
        )  # fmt: skip


def hashed(name: str, path: Path) -> DataFile:
    """One file read: whole, or its size and some pieces. Raises OSError."""
    with path.open("rb") as file:
        info = os.fstat(file.fileno())
        size, more = info.st_size, {"mtime_ns": info.st_mtime_ns}
        if size <= WHOLE_MAX:
            return DataFile(name, size, hashlib.file_digest(file, "sha256").hexdigest(), more=more)
        hasher = hashlib.sha256(str(size).encode())
        for piece in range(SAMPLES):
            file.seek((size - SAMPLE) * piece // (SAMPLES - 1))
            hasher.update(file.read(SAMPLE))
    return DataFile(name, size, hasher.hexdigest(), sampled=True, more=more)


def changes(home: Home, manifest: Manifest) -> list[str]:
    """What of a local source is not as it was at apply; empty: nothing. Reads only what looks changed."""
    root = Path(manifest.source)
    now = iter(files_below(root, manifest.source))
    found: list[str] = []
    here = next(now, None)
    for file in load(home, manifest):
        while here is not None and os.fsencode(here) < os.fsencode(file.path):
            if manifest.sample >= 1:
                found.append(f"{here} is new")
            here = next(now, None)
        if here != file.path:
            found.append(f"{file.path} was removed")
            continue
        here = next(now, None)
        if _differs(root / file.path if root.is_dir() else root, file):
            found.append(f"{file.path} was changed")
    if manifest.sample >= 1:
        found += [f"{path} is new" for path in (*(() if here is None else (here,)), *now)]
    return found


def _differs(path: Path, file: DataFile) -> bool:
    return _touched(path, file) and hashed(file.path, path).sha256 != file.sha256


def _touched(path: Path, file: DataFile) -> bool:
    """Whether size or time are others than recorded."""
    info = path.stat()
    return (info.st_size, info.st_mtime_ns) != (file.size, (file.more or {}).get("mtime_ns"))


def names(paths: Iterable[str]) -> str:
    """Some names and the count of the others, for a sentence."""
    listed = list(paths)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more


def _owner(path: str) -> str:
    try:
        info = os.stat(path)
    except OSError:
        return "permission denied"
    return f"it belongs to user {info.st_uid} with mode {info.st_mode & 0o7777:04o}"
