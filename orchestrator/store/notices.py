"""Notifications on their way: made from the journal in one transaction with the cursor, kept until they were told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.store.journal import Journal
from orchestrator.store.rows import Entry, Notice, build_all

CURSOR = "notices_upto"
ONCE_S = 3600.0  # the same of a job is told a target once an hour
KEEP_S = 7 * 86_400.0


@dataclass(frozen=True)
class News:
    """What a target is to be told. `topic` names the kind, for telling the same only once an hour."""

    job: str
    target: str
    topic: str
    title: str
    body: str


class Notices(Journal):
    """The outbox."""

    def news_since(self, seen: int = 0, limit: int = 500) -> tuple[Entry, ...]:
        """Lines of the journal after `seen` that no news were made from yet, oldest first. Of books that had no outbox
        before, what was written until now is no news."""
        row = self._one("get_meta", key=CURSOR)
        if row is None:
            with self.transaction():
                self._run("put_meta", key=CURSOR, value=str(self._rows("last_journal")[0]["id"]))
            return ()
        return build_all(Entry, self._rows("journal", job="", since_id=max(seen, int(row["value"])), limit=limit))

    def put_news(self, upto: int, news: Iterable[News], now: float) -> int:
        """Put news into the outbox and remember how far the journal was read: both or neither. How many are new."""
        with self.transaction():
            added = sum(
                self._run(
                    "add_notice", job=each.job, target=each.target, topic=each.topic, now=now, title=each.title,
                    body=each.body, since=now - ONCE_S,
                )
                for each in news
            )  # fmt: skip
            self._run("put_meta", key=CURSOR, value=str(upto))
            self._run("forget_notices", before=now - KEEP_S)
        return added

    def due_notices(self, now: float) -> tuple[Notice, ...]:
        """What each target is to be told next, where that is due."""
        return build_all(Notice, self._rows("due_notices", now=now))

    def notice_tried(self, id: int, now: float, error: str, again_at: float | None) -> None:
        """It was told (no error), is tried again then, or is given up (an error and no time)."""
        with self.transaction():
            over = not error or again_at is None
            self._run(
                "notice_tried", id=id, next_at=again_at or now, sent_at=None if error else now, over=over, error=error
            )

    def newest_notices(self, job: str = "") -> tuple[Notice, ...]:
        """How the last try of each target ended, of one job or of all."""
        return build_all(Notice, self._rows("newest_notices", job=job))
