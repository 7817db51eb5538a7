"""A controller that only answers requests, for the tests of verbs: a real socket, a real store, scripted answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from cli_books import writer

from orchestrator.home import Home
from orchestrator.version import installed

Answers = Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any] | None]]


class ScriptedController:
    """Answers each verb by a function of its arguments; `asked` keeps what came but pings, in order."""

    def __init__(self, home: Home, answers: Answers) -> None:
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self._home, self._answers = home, {"ping": lambda args: {"ok": True, "version": installed()}, **answers}
        self._stop, self._ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def end_soon(self) -> None:
        """Leave after the present request, as after a stop."""
        self._stop.set()

    def _serve(self) -> None:
        with writer(self._home) as store, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            self._home.socket.unlink(missing_ok=True)
            door.bind(str(self._home.socket))
            door.listen(16)
            door.settimeout(0.01)
            self._ready.set()
            while not self._stop.is_set():
                try:
                    door.accept()[0].close()
                except TimeoutError:
                    pass  # nobody knocked: a request may be there all the same
                for request in store.open_requests():
                    if request.verb != "ping":
                        self.asked.append((request.verb, request.args))
                    answer = self._answers[request.verb](request.args)
                    if answer is not None:
                        store.answer(request.id, answer, request.at)
        self._home.socket.unlink(missing_ok=True)
