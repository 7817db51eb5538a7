"""`pull` of results that lie in an object store: each file whole or not at all, compared with the store's manifest.

Rules: repeated, it brings only what is not here yet. Names of the manifest that leave the folder are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli import exits
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import say

if TYPE_CHECKING:
    from orchestrator.home import Home

TRIES = 2  # a file that came with other bytes is asked for once more


def from_store(home: Home, job: str, url: str, wanted: Callable[[str], bool], dest: Path) -> None:
    """The wanted files of the results at `url` into `dest`. CliError for a store that does not give them."""
    from orchestrator import sync
    from orchestrator.objects.errors import StoreError
    from orchestrator.objects.places import Places
    from orchestrator.publish import PUBLISHED
    from orchestrator.ssh_errors import Unsafe

    try:
        place = Places(home).of(url)
        rows = json.loads(place.store.get(place.location.key(PUBLISHED)))["files"]
        for row in rows:
            name = str(row["path"])
            if "link" in row or not wanted(name):
                continue
            try:
                path = dest / sync.safe_name(name)
            except Unsafe as error:
                say(f"not taken: {error}")
                continue
            if path.is_file() and path.stat().st_size == row["size"] and _sha256(path) == row["sha256"]:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            key, beside = place.location.key(name), path.with_name(f".gpujob-{os.getpid()}-{path.name[:100]}")
            try:
                if all(place.store.get_to(key, beside) != row["sha256"] for _ in range(TRIES)):
                    raise CliError(f"{name} is damaged in the store", where=url, code=exits.PROVIDER)
                os.replace(beside, path)
            finally:
                beside.unlink(missing_ok=True)
    except StoreError as error:
        raise CliError(
            error.what, where=error.where, why=error.why, next=error.next or f"gpujob pull {job} goes on from here",
            code=exits.PROVIDER,
        ) from error  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise CliError(f"the manifest of the results cannot be read: {error}", where=url) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
