"""A workdir frozen in the content store: every attempt runs exactly what was there at apply.

    blobs/ab/abcd...   one file's bytes by SHA-256, read-only, copied (a link would change with the user's file)
    snapshots/HASH     the manifest: every entry with its mode and hash; written last, so one that exists is whole

Rules
- The same content gives the same hash, whoever applies and whenever: times, owners and umasks are not in it.
- Secrets and what can be made again never leave this computer (`ignore`); all that is left out is listed.
- A file that changes while it is read is read again, so that the snapshot holds a state that existed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from orchestrator.home import Home
from orchestrator.ignore import Rules, git, rules_for
from orchestrator.ssh_files import fsync_folder, write_private

FORMAT = 1
LARGE = 2 * 1000**3  # bytes; more is data, which belongs under `data`
LARGEST_SHOWN = 5
CHUNK = 1024 * 1024
READ_AGAIN = 5  # how often a file that changes under our hands is read before we give up
SYNC_EACH = 256  # up to so many new blobs each is synced alone; beyond, the whole system once
LFS_HEAD = b"version https://git-lfs.github.com/spec/"
LFS_MAX = 1024  # bytes; longer is no pointer by its own specification
COUNTED = 2000  # files of a left-out folder that are counted for its size
# Rebuilt files get a time made from their content: rsync's quick check and Python's bytecode cache then see every
# change, although both only look at size and time, and a second rebuild sends nothing.
EPOCH, EPOCHS = 1_000_000_000, 500_000_000  # 2001 to 2017


class SnapshotError(Exception):
    """The workdir cannot be frozen, or a stored snapshot is damaged; the message says what to do."""


class TooLarge(SnapshotError):
    """Over the limit, or a home folder; `largest` are (path, bytes) of the top entries."""

    def __init__(self, message: str, largest: tuple[tuple[str, int], ...]) -> None:
        super().__init__(message)
        self.largest = largest


@dataclass(frozen=True)
class Entry:
    """One entry; `mode` is 0o644 or 0o755 for files, `target` a link's text."""

    path: str
    kind: Literal["file", "link", "folder"]
    mode: int = 0
    size: int = 0
    sha256: str = ""
    target: str = ""


@dataclass(frozen=True)
class LeftOut:
    """Something not sent; `bytes` is a lower bound where `more`."""

    path: str
    reason: str
    bytes: int
    more: bool = False


@dataclass(frozen=True)
class Snapshot:
    """`commit` is the git commit, or empty; `dirty`: the workdir differs from it; `origin`: "main of https://...".

    `pointers`: files that are Git LFS pointers instead of what they stand for.
    """

    hash: str
    files: tuple[Entry, ...]
    bytes: int
    left_out: tuple[LeftOut, ...]
    commit: str = ""
    dirty: bool = False
    origin: str = ""
    pointers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Survey:
    """What of a workdir is sent, and what git says of it; taken on the computer where the workdir really lies."""

    found: tuple[Entry, ...]
    left_out: tuple[LeftOut, ...]
    commit: str = ""
    dirty: bool = False


def survey(workdir: Path, home: Home, *, exclude: Iterable[Path] = (), allow_large: bool = False) -> Survey:
    """Look at `workdir` without storing anything. `exclude`: folders that hold results. Raises as `take`."""
    root = _root(workdir)
    if not allow_large:
        _refuse_home(root)
    left_out: list[LeftOut] = []
    never = (*exclude, home.state, home.config)  # our own books and secrets may lie inside of the workdir
    found = tuple(_walk(root, "", rules_for(root, never), left_out))
    if not allow_large:
        _refuse_large(found)
    head = git(root, "rev-parse", "HEAD")
    dirty = bool(git(root, "status", "--porcelain", "--", ".")) if head else False
    return Survey(found, tuple(left_out), head.decode().strip() if head else "", dirty)


def take(
    workdir: Path, home: Home, *, exclude: Iterable[Path] = (), allow_large: bool = False, seen: Survey | None = None
) -> Snapshot:
    """Freeze `workdir`. `exclude`: folders that hold results. Raises SnapshotError or TooLarge.

    `seen`: the survey of another computer, whose files were copied to `workdir`; no rule is applied to them again.
    """
    root = _root(workdir)
    seen = seen or survey(workdir, home, exclude=exclude, allow_large=allow_large)
    new: list[Path] = []
    entries = [_stored(root, entry, home, new) if entry.kind == "file" else entry for entry in seen.found]
    _make_durable(new)
    entries.sort(key=lambda entry: os.fsencode(entry.path))
    text = _manifest_text(entries)
    digest = hashlib.sha256(text).hexdigest()
    if not (home.snapshots / digest).exists():
        write_private(home.snapshots / digest, text)
    size = sum(entry.size for entry in entries)
    pointers = tuple(entry.path for entry in entries if is_pointer(root / entry.path, entry.size, entry.kind))
    return Snapshot(digest, tuple(entries), size, seen.left_out, seen.commit, seen.dirty, pointers=pointers)


def _root(workdir: Path) -> Path:
    root = Path(os.path.realpath(workdir))
    if not root.is_dir():
        raise SnapshotError(f"workdir {workdir} is not a folder")
    return root


def is_pointer(path: Path, size: int, kind: str = "file") -> bool:
    """Whether a file is a Git LFS pointer: a few lines in place of the content, which fails far from here (B063)."""
    if kind != "file" or not len(LFS_HEAD) < size <= LFS_MAX:
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(LFS_HEAD)) == LFS_HEAD
    except OSError:
        return False  # gone since: the snapshot has it, and nothing more can be said


def load(home: Home, digest: str) -> tuple[Entry, ...]:
    """Entries of a stored snapshot; SnapshotError when it is missing or damaged."""
    try:
        text = (home.snapshots / digest).read_bytes()
    except FileNotFoundError:
        raise SnapshotError(f"snapshot {digest[:12]} is not in {home.snapshots}: apply again") from None
    if hashlib.sha256(text).hexdigest() != digest:
        raise SnapshotError(f"snapshot {digest[:12]} in {home.snapshots} is damaged: remove that file, apply again")
    return tuple(Entry(**entry) for entry in json.loads(text)["entries"])


def same_files(home: Home, one: str, other: str, but: str = "") -> bool:
    """Whether two stored snapshots hold the same files, `but` (a path in them) left out: a spec that lies in its own
    workdir is compared as a spec.
    """
    if one == other or not one or not other:
        return one == other
    try:
        first, second = ([e for e in load(home, digest) if e.path != but] for digest in (one, other))
    except SnapshotError:
        return False
    return first == second


def materialize(home: Home, digest: str, dest: Path) -> Path:
    """Rebuild the folder at `dest`, whole or not at all; an existing one is taken as it is."""
    if dest.exists():
        return dest
    entries = load(home, digest)
    dest.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{dest.name}.", dir=dest.parent))
    try:
        for entry in entries:
            path = building / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if entry.kind == "folder":
                path.mkdir(exist_ok=True)
            elif entry.kind == "link":
                path.symlink_to(entry.target)
            else:
                _rebuild(home, entry, path)
        building.chmod(0o755)
        building.rename(dest)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return dest


def _walk(root: Path, folder: str, rules: Rules, left_out: list[LeftOut]) -> Iterator[Entry]:
    """Entries below `folder` that are sent; an empty folder is an entry of its own."""
    rules.enter(folder)
    try:
        names = sorted(os.listdir(root / folder))
    except PermissionError:
        raise SnapshotError(f"{root / folder} cannot be read: fix its mode, or name it in .gpujobignore") from None
    for name in names:
        path = f"{folder}/{name}" if folder else name
        info = (root / path).lstat()
        is_folder = stat.S_ISDIR(info.st_mode)
        reason = rules.reason(path, is_folder)
        if reason:
            size, more = _size(root / path, info)
            left_out.append(LeftOut(path + "/" * is_folder, reason, size, more))
        elif is_folder:
            empty = True
            for each in _walk(root, path, rules, left_out):
                empty = False
                yield each
            if empty:
                yield Entry(path, "folder")
        elif stat.S_ISLNK(info.st_mode):
            target = os.readlink(root / path)
            if why := _link_problem(root, path, target):
                left_out.append(LeftOut(path, f"{why}; only the link itself is sent", 0))
            yield Entry(path, "link", target=target)
        elif stat.S_ISREG(info.st_mode):
            mode = 0o755 if info.st_mode & stat.S_IXUSR else 0o644
            yield Entry(path, "file", mode, info.st_size)
        else:
            left_out.append(LeftOut(path, "not a file, folder or link", 0))


def _link_problem(root: Path, path: str, target: str) -> str:
    where = os.path.realpath(root / path)
    if where != str(root) and not where.startswith(f"{root}/"):
        return f"a link out of workdir, to {target}"
    return "" if os.path.exists(where) else f"a link to nothing, {target}"


def _size(path: Path, info: os.stat_result) -> tuple[int, bool]:
    """Bytes of a left-out entry, and whether there is more than was counted."""
    if not stat.S_ISDIR(info.st_mode):
        return info.st_size, False
    total = count = 0
    for top, _, names in os.walk(path):
        for name in names:
            if count == COUNTED:
                return total, True
            count += 1
            try:
                total += os.lstat(os.path.join(top, name)).st_size
            except FileNotFoundError:
                pass  # gone since it was listed, and not sent anyway
    return total, False


def _refuse_home(root: Path) -> None:
    home = Path(os.path.realpath(Path.home()))
    if root == home or root in home.parents:
        raise TooLarge(
            f"workdir {root} is a home folder or holds one: put the code into a folder of its own, "
            "or allow it by `allow: [large-workdir]`",
            (),
        )


def _refuse_large(entries: Sequence[Entry]) -> None:
    total = sum(entry.size for entry in entries)
    if total <= LARGE:
        return
    by_top: dict[str, int] = {}
    for entry in entries:
        top, slash, _ = entry.path.partition("/")
        by_top[top + slash] = by_top.get(top + slash, 0) + entry.size
    largest = tuple(sorted(by_top.items(), key=lambda item: -item[1])[:LARGEST_SHOWN])
    shown = ", ".join(f"{path} {size / 1e9:.2f} GB" for path, size in largest)
    raise TooLarge(
        f"workdir holds {total / 1e9:.2f} GB to send (limit {LARGE / 1e9:g} GB); largest: {shown}. "
        "Name them in .gpujobignore, move them to `data`, or set `allow: [large-workdir]`",
        largest,
    )


def _stored(root: Path, entry: Entry, home: Home, new: list[Path]) -> Entry:
    """The entry with its hash, its bytes in the store."""
    path = root / entry.path
    for _ in range(READ_AGAIN):
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                before = os.fstat(file.fileno())
                digest, size = _copy(file, None)
                blob = home.blobs / digest[:2] / digest
                if not (blob.exists() and blob.stat().st_size == size):
                    file.seek(0)
                    if not _write_blob(file, blob, digest):
                        continue
                    new.append(blob)
                after = os.fstat(file.fileno())
        except PermissionError:
            raise SnapshotError(f"{path} cannot be read: fix its mode, or name it in .gpujobignore") from None
        except OSError as exc:
            raise SnapshotError(f"{path} changed while it was read ({exc.strerror}): apply again") from None
        if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size) and size == after.st_size:
            return Entry(entry.path, "file", entry.mode, size, digest)
    raise SnapshotError(f"{path} keeps changing while it is read: stop what writes it, or name it in .gpujobignore")


def _copy(source: BinaryIO, dest: BinaryIO | None) -> tuple[str, int]:
    """Hash and length of what is left of `source`, written to `dest` on the way."""
    hasher, size = hashlib.sha256(), 0
    while chunk := source.read(CHUNK):
        hasher.update(chunk)
        size += len(chunk)
        if dest is not None:
            dest.write(chunk)
    return hasher.hexdigest(), size


def _write_blob(source: BinaryIO, blob: Path, digest: str) -> bool:
    """Copy into the store; False when the bytes are no longer those of `digest`."""
    blob.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd, name = tempfile.mkstemp(prefix=".new.", dir=blob.parent)
    try:
        with os.fdopen(fd, "wb") as dest:
            copied, _ = _copy(source, dest)
        if copied != digest:
            os.unlink(name)
            return False
        os.chmod(name, 0o444)
        os.replace(name, blob)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return True


def _make_durable(new: list[Path]) -> None:
    """All new blobs are on the disk before the manifest that names them is."""
    if len(new) > SYNC_EACH:
        os.sync()
        return
    for blob in new:
        with blob.open("rb") as file:
            os.fsync(file.fileno())
    for folder in {blob.parent for blob in new}:
        fsync_folder(folder)


def _manifest_text(entries: list[Entry]) -> bytes:
    """Canonical bytes: the hash of them is the snapshot's name. Odd file names survive as escapes."""
    shown = {"format": FORMAT, "entries": [asdict(entry) for entry in entries]}
    return json.dumps(shown, sort_keys=True, separators=(",", ":")).encode()


def _rebuild(home: Home, entry: Entry, path: Path) -> None:
    blob = home.blobs / entry.sha256[:2] / entry.sha256
    try:
        with blob.open("rb") as source, path.open("xb") as dest:
            copied, _ = _copy(source, dest)
    except FileNotFoundError:
        raise SnapshotError(f"{entry.path} is missing in {home.blobs}: apply again") from None
    if copied != entry.sha256:
        blob.rename(blob.with_suffix(".damaged"))  # so that the next apply stores it anew
        raise SnapshotError(f"{entry.path} is damaged in {home.blobs}: apply again")
    path.chmod(entry.mode)
    when = EPOCH + int(entry.sha256[:12], 16) % EPOCHS
    os.utime(path, (when, when))
