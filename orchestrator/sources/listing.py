"""One data source at apply: what it holds now, as a stored manifest. Dispatches by the form of `from`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jobspecs.rules import is_remote
from orchestrator import datasets
from orchestrator.datasets import DataError, Manifest
from orchestrator.home import Home

if TYPE_CHECKING:
    from jobspecs.schema import DataSource, JobSpec


def manifests_of(home: Home, spec: JobSpec, base_dir: Path) -> dict[str, Manifest]:
    """path on the machine -> manifest of every data source as it is now. Raises DataError."""
    return {entry.path: _manifest(home, entry, base_dir) for entry in spec.data}


def _manifest(home: Home, entry: DataSource, base_dir: Path) -> Manifest:
    if is_remote(entry.source):
        raise DataError("no code serves this kind of source", where=entry.source)
    return datasets.manifest_of(
        (base_dir / Path(entry.source).expanduser()).absolute(), home, sample=entry.sample,
        allow_empty=entry.allow_empty, where=entry.source,
    )  # fmt: skip
