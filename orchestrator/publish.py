"""Results from staging into the user's folder.

Rules
- A folder with another run's results (or anything that is not ours) is moved to NAME~RUN, never mixed or overwritten.
- A file appears whole or not at all, the manifest last: it says that all is there (B138). An interrupted publication
  is known by its mark and goes on.
- Nothing is written through a link.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from errno import ELOOP
from pathlib import Path
from typing import Any

from orchestrator.artifacts import ArtifactPlan, Piece, Results
from orchestrator.home import Home
from orchestrator.mirror import Manifest, parts_of
from orchestrator.ssh_files import fsync_folder, write_private

PUBLISHED = ".gpujob-manifest.json"
PUBLISHING = ".gpujob-publishing"


class ResultsError(Exception):
    """Results cannot be published; the message says what to do."""


@dataclass(frozen=True)
class Published:
    """Where results are. `moved`: folders of other runs and where they went; `files` counts all destinations."""

    path: Path
    files: int
    bytes: int
    moved: tuple[tuple[Path, Path], ...] = ()


def publish(
    home: Home,
    *,
    job: str,
    task: str,
    n: int,
    plan: ArtifactPlan,
    results: Results,
    success: bool,
    checkpoint: Manifest | None = None,
    outcome: str = "",
) -> Published:
    """Copy staging to the user's folders; repeating goes on where it stopped. ResultsError when a folder refuses."""
    pieces: dict[Path, list[tuple[Path, Piece]]] = {item.dest: [] for item in plan.wanted(success)}
    staging = home.results(job, task, n)
    for piece in results.pieces:
        pieces.setdefault(piece.dest, []).append((staging / piece.staged, piece))
    if checkpoint is not None and not plan.items:
        parts = parts_of(home.mirror(job, task), checkpoint)
        pieces[plan.dest] += [
            (parts / piece.path.partition("/")[2], piece) for piece in _checkpoint(plan, results, checkpoint)
        ]
    moved = []
    for dest, found in pieces.items():
        try:
            aside = _make_room(dest, job, task)
            if aside is not None:
                moved.append((dest, aside))
            shown = _copy_all(dest, found)
            record = {
                "job": job, "task": task, "n": n, "outcome": outcome or ("done" if success else "failed"),
                "verified": results.verified, "problems": results.problems,
                "lost": results.lost or None, "refused": results.refused,
                "left": results.left, "checkpoint": checkpoint.name if checkpoint else None, "files": shown,
            }  # fmt: skip
            write_private(dest / PUBLISHED, json.dumps(record, indent=1).encode() + b"\n")
            (dest / PUBLISHED).chmod(0o644)
            (dest / PUBLISHING).unlink(missing_ok=True)
        except OSError as exc:
            raise ResultsError(
                f"results cannot be written to {dest}: {exc.strerror}; they are kept in {staging}"
            ) from exc
    every = [piece for found in pieces.values() for _, piece in found]
    path = plan.dest if not plan.items else next(iter(pieces), plan.dest)
    return Published(path, len(every), sum(piece.size for piece in every), tuple(moved))


def discard(home: Home, job: str, task: str, n: int) -> None:
    """Remove the staging of a run, once published."""
    shutil.rmtree(home.results(job, task, n), ignore_errors=True)


def _checkpoint(plan: ArtifactPlan, results: Results, manifest: Manifest) -> list[Piece]:
    """The newest checkpoint as pieces: it is in the mirror already and costs no second transfer."""
    taken = {piece.path.split("/")[0] for piece in results.pieces if piece.dest == plan.dest}
    folder = "checkpoint" if "checkpoint" not in taken else "checkpoint~"
    return [Piece("", plan.dest, f"{folder}/{file.path}", file.size, file.sha256, file.link) for file in manifest.files]


def _make_room(dest: Path, job: str, task: str) -> Path | None:
    """Make `dest` ours; where another run's results (or anything else) lie, move them aside and say where."""
    ours = f"{job} {task}\n"
    aside = None
    if dest.is_dir() and any(dest.iterdir()):
        if _text(dest / PUBLISHING) == ours:
            return None  # this very publication was interrupted
        label = _label(dest / PUBLISHED)
        if label != (job, task):
            name = label[0] if label is not None else "old"
            aside = next(path for path in _free(dest.parent / f"{dest.name}~{name}") if not os.path.lexists(path))
            dest.rename(aside)
    dest.mkdir(parents=True, exist_ok=True)
    (dest / PUBLISHING).write_text(ours)
    return aside


def _free(path: Path) -> Iterable[Path]:
    yield path
    for number in range(2, 10_000):
        yield path.with_name(f"{path.name}.{number}")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def owner_of(folder: Path) -> str:
    """The job whose results a folder holds; empty where we published none."""
    found = _label(folder / PUBLISHED)
    return found[0] if found else ""


def _label(path: Path) -> tuple[str, str] | None:
    """Job and task that published a folder, None when it was not us."""
    try:
        record = json.loads(_text(path))
        return str(record["job"]).replace("/", "_"), str(record["task"])
    except (ValueError, KeyError, TypeError):
        return None


def _copy_all(dest: Path, found: list[tuple[Path, Piece]]) -> list[dict[str, Any]]:
    """Copy every piece, each by rename; returns the manifest's lines."""
    shown = []
    folders = {dest}
    for source, piece in found:
        path = dest / piece.path
        if any(above.is_symlink() for above in path.parents if dest in above.parents):
            raise OSError(ELOOP, "it would be written through a link", str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        folders.add(path.parent)
        digest = piece.sha256
        if piece.link:
            temporary = path.with_name(f".gpujob-{os.getpid()}-link")
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(piece.link)
            os.replace(temporary, path)
        else:
            digest = _copy(source, path)
        shown.append({**asdict(piece), "sha256": digest, "dest": None, "staged": None})
    for folder in folders:
        fsync_folder(folder)
    return [{k: v for k, v in line.items() if v not in (None, "")} for line in shown]


def _copy(source: Path, path: Path) -> str:
    """Copy by rename, durable; return the SHA-256 of what was written. An equal file is left as it is."""
    with source.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if path.is_file() and not path.is_symlink() and path.stat().st_size == os.fstat(opened.fileno()).st_size:
            with path.open("rb") as there:
                if hashlib.file_digest(there, "sha256").hexdigest() == digest:
                    return digest
        opened.seek(0)
        fd, temporary = tempfile.mkstemp(prefix=".gpujob-", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as dest:
                shutil.copyfileobj(opened, dest, 1024 * 1024)
                dest.flush()
                os.fsync(dest.fileno())
            os.chmod(temporary, source.stat().st_mode & 0o777 | 0o600)
            os.utime(temporary, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    return digest
