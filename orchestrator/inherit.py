"""Checkpoints of an ended job for the next run of its name: the same files under new manifests of run 0.

The old mirror is not changed. Files are hard links where the file system has them, since a verified checkpoint is never
written again; the new manifest comes last, so a crash leaves parts that nobody reads.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from orchestrator.home import Home
from orchestrator.mirror import Manifest, content_hash, listing, manifest_path, parts_of, to_bytes
from orchestrator.resume import INHERITED
from orchestrator.ssh_files import write_private


def inherit(home: Home, old: str, new: str, task: str, wanted: Iterable[str]) -> list[Manifest]:
    """Take over the checkpoints of job `old` whose hashes are `wanted`; return them as the new job's."""
    hashes = frozenset(wanted)
    taken = []
    for manifest in listing(home, old, task).manifests:
        if manifest.hash in hashes:
            mine = as_inherited(manifest, new)
            _link(parts_of(home.mirror(old, task), manifest), parts_of(home.mirror(new, task), mine), manifest)
            write_private(manifest_path(home.mirror(new, task), mine), to_bytes(mine))
            taken.append(mine)
    return taken


def as_inherited(manifest: Manifest, job: str) -> Manifest:
    """The same checkpoint as run 0 of a later job."""
    bare = replace(manifest, job=job, n=INHERITED, parent=None, hash="")
    return replace(bare, hash=content_hash(bare))


def _link(source: Path, dest: Path, manifest: Manifest) -> None:
    for file in manifest.files:
        path = dest / file.path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() or path.is_symlink():
            continue
        try:
            os.link(source / file.path, path, follow_symlinks=False)
        except OSError:  # another file system, or one without hard links
            shutil.copy2(source / file.path, path, follow_symlinks=False)
