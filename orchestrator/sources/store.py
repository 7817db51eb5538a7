"""`from: s3://bucket/prefix` and `lab:prefix` of a configured store: listed here, fetched by the machine.

Rules: the machine gets one presigned address for each file, good for a day and for reading that file; never a key. An
object's ETag and size make it the same one later. Keys that are folders' marks (`name/`, no bytes) are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from orchestrator.datasets import DataError, DataFile
from orchestrator.home import Home
from orchestrator.objects import Location, StoreError, StoreSettings, locate
from orchestrator.ssh_files import write_private

ADDRESS_S = 24 * 3600  # a presigned address; renewed when a fetch outlives it


def look(source: str, stores: Mapping[str, StoreSettings], home: Home) -> tuple[list[DataFile], bool, Location]:
    """The objects behind `source`, whether it is one object by its own key, and its place. Raises DataError."""
    from orchestrator.objects.s3 import open_store

    try:
        place = locate(source, stores)
        found = open_store(place.settings, home).list(place.prefix)
    except StoreError as error:
        raise DataError(
            str(error), where=source, next_step=str(getattr(error, "next_step", "") or "gpujob doctor")
        ) from None
    one = [each for each in found if each.key == place.prefix]
    start = f"{place.prefix}/" if place.prefix else ""
    below = [each for each in found if each.key.startswith(start) and not each.key.endswith("/")]
    if one and not below:
        name = place.prefix.rpartition("/")[2]
        return [DataFile(name, one[0].size, one[0].sha256, more=_more(one[0].key, one[0].etag))], True, place
    if not below:
        raise DataError("there is nothing below it", where=source, next_step="check the bucket and the prefix")
    files = [
        DataFile(each.key[len(start) :], each.size, each.sha256, more=_more(each.key, each.etag)) for each in below
    ]
    for file in files:
        if file.path.startswith("/") or any(part in ("", "..", ".") for part in file.path.split("/")):
            raise DataError(f"the key {file.path!r} is no path of a file", where=source)
    return sorted(files, key=lambda file: os.fsencode(file.path)), False, place


def _more(key: str, etag: str) -> dict[str, str]:
    return {"key": key, "etag": etag.strip('"')} if etag else {"key": key}


def addresses(
    source: str, files: Iterable[DataFile], stores: Mapping[str, StoreSettings], home: Home, into: Path
) -> Path:
    """Write one presigned address a file, as lines for the machine, into a private file."""
    from orchestrator.objects.s3 import open_store

    try:
        store = open_store(locate(source, stores).settings, home)
        lines = [
            json.dumps({"path": file.path, "url": store.presign_get(str((file.more or {})["key"]), ADDRESS_S)})
            for file in files
        ]
    except StoreError as error:
        raise DataError(str(error), where=source) from None
    into.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(into, ("\n".join(lines) + "\n").encode())
    return into
