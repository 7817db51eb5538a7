"""Checkpoints between machines and the mirror on this computer: brought here, verified, sent to the next machine.

Rules
- Parts first, manifest last: everything before the manifest can be repeated, after a kill as well.
- A copy counts only when every byte of it has the hash that the machine announced, the machine's files did not
  change meanwhile, and the format shows no damage.
- What a machine names stays inside of the checkpoint; links out of it are refused.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from orchestrator import sync
from orchestrator.agent.formats import flaw_of
from orchestrator.home import Home
from orchestrator.lineage import passed_over, resume_choice
from orchestrator.mirror import (
    Broken,
    CheckpointError,
    DamagedCheckpoint,
    Listing,
    Manifest,
    StillChanging,
    StoredFile,
    content_hash,
    listing,
    manifest_path,
    parts_of,
    problem,
    prune,
    to_bytes,
)
from orchestrator.ssh_errors import AgentRefused, TransferError, Unsafe
from orchestrator.ssh_files import Target, fsync_folder, write_private

__all__ = [
    "Broken", "CheckpointError", "Listing", "Manifest", "StillChanging", "StoredFile",
    "listing", "mirror_one", "passed_over", "prune", "push_resume", "resume_choice",
]  # fmt: skip

HASH_TIMEOUT_S = 1800.0  # the machine reads all bytes of the checkpoint


class Agent(Protocol):
    """What is needed of `ssh.Connection`."""

    def agent(self, command: str, payload: dict[str, Any], timeout_s: float = ...) -> dict[str, Any]: ...


def mirror_one(
    conn: Agent,
    target: Target,
    home: Home,
    *,
    job: str,
    task: str,
    n: int,
    name: str,
    step: int,
    remote_path: str,
    parent: str | None,
    progress: Callable[[sync.Progress], None] | None = None,
    limits: sync.Limits | None = None,
    tap: Callable[[str], None] = lambda point: None,
) -> Manifest:
    """Copy the checkpoint at the absolute `remote_path` into the mirror and verify it; repeating is harmless.

    StillChanging: it was written to meanwhile. CheckpointError: what came is damaged, or not what was announced.
    `tap` is called between the steps; tests die there.
    """
    if "/" in sync.safe_name(name) or os.path.basename(remote_path) != name:
        raise Unsafe(f"{name[:120]!r} is not the name of one checkpoint")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Unsafe(f"{name[:120]!r} is not a name in UTF-8") from None
    before = _look(conn, remote_path, name, with_hash=True)
    manifest = _announced(job, task, n, name, step, before, parent)
    mirror = home.mirror(job, task)
    path = manifest_path(mirror, manifest)
    if path.exists() and not problem(mirror, manifest):
        return manifest
    tap("looked")
    parts = parts_of(mirror, manifest)
    _copy(target, remote_path, manifest, parts, progress, limits, tap)
    after = _look(conn, remote_path, name, with_hash=False)
    if _times(before) != _times(after):
        raise StillChanging(f"{name} was written to while it was copied")
    tap("verified")
    try:
        _check_structure(parts, manifest)
    except CheckpointError:
        shutil.rmtree(parts)  # it stays on the machine, where a person can look
        raise
    _make_durable(parts, manifest)
    tap("durable")
    write_private(path, to_bytes(manifest))
    tap("written")
    return manifest


def push_resume(
    conn: Agent,
    target: Target,
    home: Home,
    manifest: Manifest,
    remote_dir: str,
    *,
    progress: Callable[[sync.Progress], None] | None = None,
    limits: sync.Limits | None = None,
) -> str:
    """Send a checkpoint into the absolute `remote_dir` and verify it there; return its absolute path."""
    parts = parts_of(home.mirror(manifest.job, manifest.task), manifest)
    wrong = _differences(parts, manifest)
    if wrong:
        raise DamagedCheckpoint(f"{manifest.name} in the mirror is damaged: {wrong[0]}")
    names = [file.path for file in manifest.files]
    remote = f"{remote_dir.rstrip('/')}/{manifest.name}"
    for again in (False, True):
        sync.push(
            target, parts, remote_dir, files_from=names, append=not again, again=again, progress=progress, limits=limits
        )
        found = _stored(_look(conn, remote, manifest.name, with_hash=True), manifest.name)
        if set(found) == set(manifest.files):
            return remote
    raise CheckpointError(f"{manifest.name} did not arrive on {target.where} as it was sent")


def stored_as(files: object, name: str) -> list[StoredFile]:
    """The agent's own list of a checkpoint's files, checked for sense."""
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise CheckpointError(f"the agent's manifest of {name} is malformed")
    return _stored(files, name)


def stored_there(conn: Agent, remote_path: str, name: str) -> list[StoredFile]:
    """The files of the checkpoint at `remote_path` as the machine has them now, hashed there."""
    return _stored(_look(conn, remote_path, name, with_hash=True), name)


# --- looking -------------------------------------------------------------------------------------------


def _look(conn: Agent, remote_path: str, name: str, with_hash: bool) -> list[dict[str, Any]]:
    """The agent's list of the checkpoint's files, checked for sense."""
    ask = {"path": remote_path, "hash": with_hash, "pattern": ""}
    try:
        files = conn.agent("manifest", ask, HASH_TIMEOUT_S)["files"]
    except AgentRefused as exc:
        if exc.error == "missing":
            raise StillChanging(f"{name} is no longer there") from exc
        raise
    except KeyError:
        raise CheckpointError(f"the agent's manifest of {name} has no files") from None
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise CheckpointError(f"the agent's manifest of {name} is malformed")
    return files


def _stored(files: list[dict[str, Any]], name: str) -> list[StoredFile]:
    """The agent's files as ours: names checked, links kept only inside of the checkpoint."""
    single = len(files) == 1 and files[0].get("path") == name
    stored: dict[str, StoredFile] = {}
    for file in files:
        path = str(file.get("path", ""))
        path = sync.safe_name(path if single else f"{name}/{path}")
        if path in stored:
            raise Unsafe(f"{path[:120]!r} is named twice")
        if "link" in file:
            link = sync.safe_link(path, str(file["link"]), floor=1)
            stored[path] = StoredFile(path, link=link)
            continue
        if "error" in file:
            raise CheckpointError(f"{path} cannot be read on the machine: {file['error']}")
        size, digest = file.get("size"), file.get("sha256")
        if not isinstance(size, int) or size < 0:
            raise CheckpointError(f"{path} has no size")
        if digest is None:
            raise StillChanging(f"{path} is being written to")
        if not isinstance(digest, str) or len(digest) != 64:
            raise CheckpointError(f"{path} has no hash")
        stored[path] = StoredFile(path, size, digest)
    below = sync.refuse_under_links(stored, [path for path in stored if stored[path].link])
    if below:
        raise Unsafe(f"{below[0][:120]!r} lies below a link")
    return [stored[path] for path in sorted(stored)]


def _times(files: list[dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    return {str(file.get("path")): (file.get("size"), file.get("mtime_ns"), file.get("link")) for file in files}


# --- copying -------------------------------------------------------------------------------------------


def _copy(
    target: Target,
    remote_path: str,
    manifest: Manifest,
    parts: Path,
    progress: Callable[[sync.Progress], None] | None,
    limits: sync.Limits | None,
    tap: Callable[[str], None],
) -> None:
    """Bring the files into `parts`, and again once where they are not what was announced."""
    source = os.path.dirname(remote_path) or "/"
    wrong = [file.path for file in manifest.files]
    for again in (False, True):
        try:
            sync.pull(target, source, parts, files_from=wrong, append=not again, again=again,
                      progress=progress, limits=limits)  # fmt: skip
        except TransferError as exc:
            if exc.code in sync.SOME_FILES_CODES and "vanished" in exc.evidence + str(exc):
                raise StillChanging(f"{manifest.name} changed while it was copied") from exc
            raise
        tap("copied")
        wrong = _differences(parts, manifest)
        if not wrong:
            return
        for path in wrong:
            (parts / path).unlink(missing_ok=True)
    raise StillChanging(f"{wrong[0]} came with other bytes than the machine announced")


def _differences(parts: Path, manifest: Manifest) -> list[str]:
    """Paths whose bytes are not those of the manifest, every one of them read."""
    wrong = []
    for file in manifest.files:
        path = parts / file.path
        if path.is_symlink() or file.link:
            if not (path.is_symlink() and os.readlink(path) == file.link):
                wrong.append(file.path)
        elif not path.is_file() or path.stat().st_size != file.size or _sha256(path) != file.sha256:
            wrong.append(file.path)
    return wrong


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_structure(parts: Path, manifest: Manifest) -> None:
    """What a format shows of its own wholeness, as the agent saw it: hashes only say that the machine's bytes are
    these (B116)."""
    if not any(file.size for file in manifest.files):
        raise CheckpointError(f"{manifest.name} is empty")
    flaw = flaw_of(str(parts / manifest.name))
    if flaw:
        raise CheckpointError(f"{manifest.name} is damaged: {flaw}")


def _make_durable(parts: Path, manifest: Manifest) -> None:
    """Files, their folders, and the folders above, so that the manifest is never there before them."""
    folders = {parts, parts.parent, parts.parent.parent}
    for file in manifest.files:
        path = parts / file.path
        folders.update(each for each in path.parents if parts in each.parents or each == parts)
        if not file.link:
            with path.open("rb") as opened:
                os.fsync(opened.fileno())
    for folder in folders:
        fsync_folder(folder)


def _announced(
    job: str, task: str, n: int, name: str, step: int, files: list[dict[str, Any]], parent: str | None
) -> Manifest:
    stored = tuple(_stored(files, name))
    if not stored:
        raise CheckpointError(f"{name} is empty")
    size = sum(file.size for file in stored)
    bare = Manifest(job, task, n, name, step, stored, size, parent, "")
    return Manifest(job, task, n, name, step, stored, size, parent, content_hash(bare))
