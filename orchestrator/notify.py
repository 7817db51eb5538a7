"""Tells people: from the journal to the targets that a job names, at least once, and the same only once an hour.

Runs in the loop's thread but for the sends, each of which has a thread of its own that ends with the process. What is
to be told is in the books before it is sent and marked there after it: a restart in between tells it again, which a
person can bear, and forgets nothing. A target that fails holds up neither the job nor another target.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import structlog

from jobspecs.problems import SpecErrors
from orchestrator.config import load_config
from orchestrator.model import Job, Outcome
from orchestrator.store.notices import News
from orchestrator.store.rows import Entry, Notice
from orchestrator.targets import NotSent, Target, send

if TYPE_CHECKING:
    from orchestrator.loop import Loop

LOOK_EVERY_S = 1.0
RETRY_S = (5.0, 30.0, 120.0, 600.0, 1800.0)  # then given up: an hour late it is no news
KEEP_EVERY_S = 600.0  # a restart looks at so much of the journal again, which makes no news twice
STUCK_S = 90.0  # a send that has not come back by then (a name server that hangs) counts as failed

log = structlog.get_logger()


class Notifier:
    """The notifications of one loop."""

    def __init__(self, loop: Loop, post: Callable[[Target, str, str], None] = send) -> None:
        self._loop, self._send = loop, post
        self._look_at = 0.0
        self._upto = 0  # the journal's last line that was looked at; in the books it may be minutes older
        self._kept_at = 0.0
        self._under_way: dict[str, tuple[Notice, float]] = {}  # target -> the notice, and since when (boot)
        self._answers: queue.SimpleQueue[tuple[str, int, str]] = queue.SimpleQueue()

    def look(self, boot: float) -> None:
        """Take answers, make news of what the journal says since the last look, and send what is due."""
        if boot < self._look_at:
            return
        self._look_at = boot + LOOK_EVERY_S
        self._take_answers(boot)
        store, now = self._loop.store, self._loop.clock.utc()
        entries = store.news_since(self._upto)
        told = [(entry, found) for entry in entries if (found := self._worth(entry)) is not None]
        if entries:
            self._upto = entries[-1].id
        if told or (entries and boot - self._kept_at >= KEEP_EVERY_S):  # no commit a second for what is no news
            self._kept_at = boot
            targets = self._targets() if told else {}
            store.put_news(self._upto, [news for each in told for news in self._news(*each, targets)], now)
        due = store.due_notices(now)
        if due:
            targets = self._targets()
            for notice in due:
                self._start(notice, targets, boot)

    def _worth(self, entry: Entry) -> tuple[str, str, str, str, tuple[str, ...] | None] | None:
        """What is to be told of a line of the journal, and to whom: None is to all."""
        if not may_be_news(entry):
            return None
        job = self._loop.store.job(entry.job) if entry.job else None
        names = None if job is None else tuple(job.spec.get("notify") or ())
        found = news_of(entry, job) if names is None or names else None
        return None if found is None else (*found, names)

    def _targets(self) -> Mapping[str, Target]:
        """As the config has them now: a target may have been added, or mended, since the controller started."""
        try:
            return load_config(self._loop.home).notify
        except SpecErrors as error:
            log.warning("config", error=str(error))
            return self._loop.config.notify

    def _news(
        self, entry: Entry, found: tuple[str, str, str, str, tuple[str, ...] | None], targets: Mapping[str, Target]
    ) -> Iterator[News]:
        topic, key, title, body, names = found
        for name in targets if names is None else names:
            target = targets.get(name)
            if target is None or topic in target.topics:
                yield News(entry.job, name, key, title, body)

    def _start(self, notice: Notice, targets: Mapping[str, Target], boot: float) -> None:
        if notice.target in self._under_way:
            return  # one at a time: the order stays
        target = targets.get(notice.target)
        if target is None:
            self._tried(notice, "the config has no such target any more")
            return
        self._under_way[notice.target] = (notice, boot)

        def work() -> None:
            try:
                self._send(target, notice.title, notice.body)
                error = ""
            except NotSent as why:
                error = str(why)
            except Exception as bug:  # whatever a plugin can raise must come back as an answer
                error = type(bug).__name__
            self._answers.put((notice.target, notice.id, error))

        threading.Thread(target=work, name=f"notify-{notice.target}", daemon=True).start()

    def _take_answers(self, boot: float) -> None:
        while not self._answers.empty():
            name, number, error = self._answers.get()
            if name in self._under_way and self._under_way[name][0].id == number:
                self._tried(self._under_way.pop(name)[0], error)
        for name, (notice, since) in list(self._under_way.items()):
            if boot - since >= STUCK_S:
                del self._under_way[name]
                self._tried(notice, "no answer for a minute and a half")

    def _tried(self, notice: Notice, error: str) -> None:
        now = self._loop.clock.utc()
        again = now + RETRY_S[notice.tries] if error and notice.tries < len(RETRY_S) else None
        self._loop.store.notice_tried(notice.id, now, error, again)
        if error:
            log.warning("not notified", target=notice.target, job=notice.job, error=error, tries=notice.tries + 1)


def may_be_news(entry: Entry) -> bool:
    """Quickly, without the job: most lines of the journal are for whoever reads it."""
    return entry.kind.startswith("alarm:") or entry.kind in ("set_outcome", "release", "wait_for_capacity")


def news_of(entry: Entry, job: Job | None) -> tuple[str, str, str, str] | None:
    """(topic, key, title, body) of a line of the journal; None when nobody needs to hear of it."""
    name = job.name if job is not None else "gpujob"
    see = f"gpujob describe {name}" if job is not None else "gpujob audit"
    if entry.kind == "set_outcome" and job is not None:
        won = job.outcome is Outcome.DONE
        title = f"{name} is done" if won else f"{name} {job.outcome}: {job.reason}"
        lines = [job.detail, f"results: {job.results_dir}" if job.results_dir else "", see]
        return "outcome", f"outcome:{entry.id}", title, _body(lines)
    if entry.kind.startswith("alarm:"):
        kind = entry.kind.removeprefix("alarm:")
        topic = "release" if kind.startswith("release") else "alarm"
        return topic, entry.kind, f"{name}: {kind}", _body([entry.text, see])
    if entry.kind == "release" and entry.data.get("interrupted"):
        lines = [str(entry.data.get("detail", "")), f"machine {entry.rental}; the job goes on elsewhere", see]
        return "reclaim", "reclaim", f"{name}: its machine was taken", _body(lines)
    if entry.kind == "wait_for_capacity" and not entry.data.get("clear"):
        lines = ["no machine is free within its prices and places; it goes on asking", see]
        return "waiting", "waiting", f"{name} waits for a machine", _body(lines)
    return None


def _body(lines: list[str]) -> str:
    return "\n".join(line for line in lines if line)
