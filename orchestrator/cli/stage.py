"""That this verb runs for another computer: where the files lie which that computer sent, and what it saw of them.

    files/PATH      what the client has at PATH (absolute there), as far as a spec reads it; relative paths hold
    roots/HASH      names of one folder that was sent, so that the next copy removes what is gone over there
    calls/TOKEN     one verb that waits to be called: words, folder, environment; 0600, removed when it is read
    pulls/, pages/  files on their way to the client

Rules: without a stage everything here answers for this computer. Only `far_end` sets one, before the verb runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits
from orchestrator.cli.exits import CliError

if TYPE_CHECKING:
    from orchestrator.snapshot import Survey


@dataclass(frozen=True)
class Stage:
    """`root` is the client's folder; `host` what the client calls this computer; `surveys` by the client's path."""

    root: Path
    host: str = ""
    surveys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> Path:
        return self.root / "files"

    @property
    def roots(self) -> Path:
        return self.root / "roots"

    @property
    def calls(self) -> Path:
        return self.root / "calls"

    def of(self, path: str) -> Path:
        """Where the client's absolute `path` lies here; what climbs above its root stays below ours."""
        return self.files / os.path.normpath("/" + path).lstrip("/")


current: Stage | None = None


def here(path: Path) -> Path:
    """A path of the command line: an absolute one names a file of the client."""
    return current.of(str(path)) if current is not None and path.is_absolute() else path


def shown(text: str) -> str:
    """An error with the client's own paths in it, and with the name that it has for this computer."""
    return named(text.replace(str(current.files), "")) if current is not None else text


def computer() -> str:
    """This computer, as the reader must call it."""
    return current.host if current is not None else "this computer"


def named(text: str) -> str:
    """A sentence about this computer, as the reader must be told it."""
    return text.replace("this computer", computer())


def seen(folder: Path) -> Survey | None:
    """What the client saw of a workdir; None without a client."""
    if current is None:
        return None
    from orchestrator.snapshot import Entry, LeftOut, Survey

    kept = current.surveys.get("/" + os.path.relpath(folder, current.files))
    if kept is None:
        raise CliError(
            "this folder was not sent", where=shown(str(folder)), next="gpujob apply again", code=exits.PROVIDER
        )
    return Survey(
        tuple(Entry(**each) for each in kept["found"]), tuple(LeftOut(**each) for each in kept["left_out"]),
        kept["commit"], kept["dirty"],
    )  # fmt: skip
