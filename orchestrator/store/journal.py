"""The journal: what was decided and what was seen to change. Bounded, so that no night of flapping fills a disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.store.connection import Connection
from orchestrator.store.rows import text

KEEP_LINES = 20_000  # of all jobs together: about 5 MB, and weeks of an ordinary user's jobs
PRUNE_EVERY = 500  # lines between two prunings: a delete per insert would double the writes


class Journal(Connection):
    """Appending to the journal."""

    def add_journal(
        self,
        now: float,
        kind: str,
        said: str,
        *,
        job: str = "",
        rental: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> int:
        """One line, and its id; joins the open transaction. `data` must hold no secret."""
        said = said.encode("utf-8", "backslashreplace").decode()  # a machine's file names are any bytes
        with self.transaction():
            row = self._rows(
                "add_journal", at=now, job=job, rental=rental, kind=kind, text=said, data=text(data or {})
            )[0]
            if row["id"] % PRUNE_EVERY == 0:
                self._run("prune_journal", upto=row["id"] - KEEP_LINES)
        return int(row["id"])
