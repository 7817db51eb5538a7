"""Named SQL: `orchestrator/sql/*.sql`, each statement under a line `-- name: open_rentals`, read once.

SQL lives in files of its own so that it can be read, and explained by SQLite's tools, as SQL.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

SQL_FOLDER = Path(__file__).parent.parent / "sql"
MIGRATIONS = SQL_FOLDER / "migrations"

_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)
_WRITES = re.compile(r"(?:INSERT(?: OR \w+)? INTO|REPLACE INTO|UPDATE(?: OR \w+)?|DELETE FROM)\s+(\w+)")


@functools.cache
def queries(folder: Path = SQL_FOLDER) -> dict[str, str]:
    """Name -> statement; a name given twice is a ValueError, since one of the two would never run."""
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*.sql")):
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"{file.name}: the query {name} exists already")
            found[name] = _without_comments(text)
    return found


@functools.cache
def tables_written(folder: Path = SQL_FOLDER) -> dict[str, str]:
    """Name of each statement that writes -> the table that it writes to."""
    found = ((name, _WRITES.match(text)) for name, text in queries(folder).items())
    return {name: match.group(1) for name, match in found if match is not None}


def _without_comments(text: str) -> str:
    """A comment before the next name would otherwise travel with the statement above it."""
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return "\n".join(lines).strip()
