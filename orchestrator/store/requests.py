"""Requests: how a verb asks the controller. A verb appends a row, pokes the socket, and waits for the row's answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.store.connection import Connection, Mode
from orchestrator.store.errors import NotTheWriter
from orchestrator.store.rows import Request, build_all, text

POLL_FIRST_S, POLL_LONGEST_S = 0.01, 0.2  # an idle controller answers within milliseconds of the poke
FORGET_AFTER_S = 7 * 86_400.0  # answered ones, kept for `diagnose`


class Requests(Connection):
    """Appending, answering and waiting."""

    def ask(self, verb: str, args: Mapping[str, Any], now: float | None = None) -> int:
        """Append a request, durable when this returns; its id. `args` is JSON and must hold no secret."""
        if self.mode is Mode.READER:
            raise NotTheWriter("this door was opened for reading")
        with self._transaction():
            row = self._rows("ask", verb=verb, args=text(args), now=time.time() if now is None else now)[0]
        return int(row["id"])

    def open_requests(self) -> tuple[Request, ...]:
        """Not answered yet, oldest first."""
        return build_all(Request, self._rows("open_requests"))

    def answer(self, request: int, document: Mapping[str, Any], now: float) -> None:
        """Answer once; a second answer changes nothing. Answers older than a week are forgotten."""
        with self.transaction():
            self._run("forget_requests", before=now - FORGET_AFTER_S)
            self._run("answer", id=request, answer=text(document), now=now)

    def answer_of(self, request: int) -> Mapping[str, Any] | None:
        """The answer, or None while there is none."""
        row = self._one("get_answer", id=request)
        if row is None or row["done_at"] is None:
            return None
        document: Mapping[str, Any] = json.loads(row["answer"])
        return document

    def wait_answer(
        self,
        request: int,
        timeout_s: float,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Mapping[str, Any] | None:
        """The answer, or None when none came within `timeout_s`; the request stays asked."""
        until = monotonic() + timeout_s
        pause = POLL_FIRST_S
        while True:
            found = self.answer_of(request)
            left = until - monotonic()
            if found is not None or left <= 0:
                return found
            sleep(min(pause, left))
            pause = min(pause * 1.5, POLL_LONGEST_S)
