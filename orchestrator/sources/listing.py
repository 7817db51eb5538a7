"""One data source at apply: what it holds now, as a stored manifest. Dispatches by the form of `from`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jobspecs.rules import is_remote
from orchestrator import datasets, space
from orchestrator.config import load_config
from orchestrator.datasets import DataError, DataFile, Manifest
from orchestrator.home import Home

if TYPE_CHECKING:
    from jobspecs.schema import DataSource, JobSpec
    from orchestrator.objects import StoreSettings


def manifests_of(home: Home, spec: JobSpec, base_dir: Path) -> dict[str, Manifest]:
    """path on the machine -> manifest of every data source as it is now. Raises DataError.

    Also when the disk that the spec asks for does not hold them (R203).
    """
    found = {entry.path: _manifest(home, spec, entry, base_dir) for entry in spec.data}
    data = sum(each.bytes for each in found.values())
    asked = spec.disk.data.bytes if spec.disk is not None and spec.disk.data is not None else None
    if asked is not None and asked < (wanted := space.needed(spec, data)):
        raise DataError(
            f"disk.data is {space.gb(asked)}, and data ({space.gb(data)}), checkpoints and a margin need "
            f"{space.gb(wanted)}",
            where=spec.name, next_step="raise disk.data, or leave it out",
        )  # fmt: skip
    return found


def _manifest(home: Home, spec: JobSpec, entry: DataSource, base_dir: Path) -> Manifest:
    source = entry.source
    if not is_remote(source):
        return datasets.manifest_of(
            (base_dir / Path(source).expanduser()).absolute(), home, sample=entry.sample,
            allow_empty=entry.allow_empty, where=source,
        )  # fmt: skip
    if source.startswith(("https://", "http://")):
        from orchestrator.sources import web

        return datasets.store(
            home, [web.look(source)], kind="https", source=web.shown(source), single=True, region=entry.region or ""
        )
    if source.startswith("hf://"):
        return _hub(home, spec, entry)
    stores = load_config(home).stores
    name = source.partition(":")[0]
    if source.startswith("s3://") or name in stores:
        from orchestrator.sources import store

        files, single, place = store.look(source, stores, home)
        return datasets.store(
            home, chosen(files, entry.sample), kind="s3", source=source, single=single, sample=entry.sample,
            region=entry.region or _own_region(place.settings),
        )  # fmt: skip
    if "://" in source:
        raise DataError(
            "no code serves this kind of address", where=source,
            next_step="s3://, hf://, https://, a store of the config (NAME:prefix) or an rclone remote",
        )  # fmt: skip
    from orchestrator.sources import rclone

    files, single = rclone.look(source)
    return datasets.store(
        home, chosen(files, entry.sample), kind="rclone", source=source, single=single, sample=entry.sample,
        region=entry.region or "",
    )  # fmt: skip


def _own_region(settings: StoreSettings) -> str:
    """Of a bucket at AWS, whose machines pay for traffic between regions; elsewhere regions have other names."""
    return f"aws/{settings.region}" if settings.region and not settings.endpoint else ""


def _hub(home: Home, spec: JobSpec, entry: DataSource) -> Manifest:
    from orchestrator.secrets import resolve
    from orchestrator.sources import hub

    token = resolve([hub.TOKEN], home).values.get(hub.TOKEN, "")
    found = hub.look(entry.source, token)
    if found.closed and hub.TOKEN not in spec.secrets:
        raise DataError(
            "this repository is private or gated, and the machine fetches it itself", where=entry.source,
            next_step=f"write `secrets: [{hub.TOKEN}]`, so that the machine gets your token",
        )  # fmt: skip
    files = chosen(found.files, entry.sample)
    if found.single:
        files = [
            DataFile(each.path, each.size, each.sha256,
                     more={**(each.more or {}), "url": hub.address(entry.source, found.commit)})
            for each in files
        ]  # fmt: skip
    origin: Mapping[str, str] = {"commit": found.commit, "base": found.base}
    return datasets.store(
        home, files, kind="hf", source=entry.source, single=found.single, sample=entry.sample,
        region=entry.region or "", origin=origin,
    )  # fmt: skip


def chosen(files: Iterable[DataFile], share: float) -> list[DataFile]:
    """The share of the files that `sample` means."""
    by_path = {file.path: file for file in files}
    return [by_path[path] for path in datasets.sampled(list(by_path), share)]
