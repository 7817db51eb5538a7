"""A plugin provider that hangs on demand: machines of this host, whose verbs wait while `<state folder>/stuck` exists.

A verb that is named in that file (one a line) answers only once the file is gone.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from providers.local import LocalProvider

NAME = "stuck"
POLL_S = 0.5


class StuckProvider(LocalProvider):
    """`local` by another name."""

    name = account = NAME

    def _wait(self, verb: str) -> None:
        file = self.config.home / "stuck"
        while file.exists() and verb in file.read_text().split():
            time.sleep(POLL_S)

    def offers(self, *args: Any) -> Any:
        self._wait("offers")
        return super().offers(*args)

    def list(self, *args: Any) -> Any:
        self._wait("list")
        return super().list(*args)

    def get(self, *args: Any) -> Any:
        self._wait("get")
        return super().get(*args)

    def destroy(self, *args: Any) -> Any:
        self._wait("destroy")
        return super().destroy(*args)


def install(folder: Path, name: str, target: str) -> Path:
    """Make a distribution that registers one provider; the folder belongs on PYTHONPATH."""
    info = folder / f"gpujob_bench_{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: gpujob-bench-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gpujob.providers]\n{name} = {target}\n")
    return folder
