"""Asking several providers for prices side by side, so that one that hangs is waited for by nobody else.

Rules
- Every provider is asked in threads of its own; jobs that may not use it never wait for it.
- Who may also use others waits `ANSWER_S` for it while another one has offers, and then goes on without it, by name.
- As long as a call of a provider has been open for that long, it is asked again only by jobs that have nobody else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import structlog

from providers.base import Offer
from providers.errors import Ambiguous, ProviderError

ANSWER_S = 20.0  # the slowest answers with offers that were seen take half of it (a cloud with many regions)
THREADS = 4  # calls of one provider at one time; its own rate is kept by the adapter

log = structlog.get_logger()

Offers = Sequence[Offer]


class Asking:
    """The threads of all providers, and since when each has had a call open. Thread-safe."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._open: dict[Future[Offers], tuple[str, float]] = {}  # call -> provider, monotonic time of its start
        self._lock = threading.Lock()

    def ask(self, names: Sequence[str], offers_of: Callable[[str], Offers]) -> tuple[list[Offer], dict[str, str]]:
        """(offers, provider -> why it gave none). `offers_of` makes one provider's call and may raise anything."""
        late = {name for name in names if self._late(name)}
        asked = [name for name in names if name not in late] or list(names)
        failed = {name: self._no_answer() for name in late - set(asked)}
        calls = {self._call(name, offers_of): name for name in asked}
        offers: list[Offer] = []
        open_calls, end = set(calls), time.monotonic() + self._answer_s
        while open_calls:
            left = max(0.0, end - time.monotonic()) if offers else None  # without any offer there is only waiting
            done, open_calls = wait(open_calls, left, FIRST_COMPLETED)
            if not done:
                failed |= {calls[call]: self._no_answer() for call in open_calls}
                break
            for call in done:
                try:
                    offers += call.result()
                except ProviderError as error:
                    failed[calls[call]] = f"{error.kind}: {error}"
                except Exception as error:  # a plugin may raise anything; the others' offers are still good
                    log.exception("offers", provider=calls[call])
                    failed[calls[call]] = f"a bug in the provider: {type(error).__name__}: {error}"
        return offers, failed

    def stop(self) -> None:
        """Take nothing new; what hangs is abandoned."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _call(self, name: str, offers_of: Callable[[str], Offers]) -> Future[Offers]:
        with self._lock:
            if name not in self._pools:
                self._pools[name] = ThreadPoolExecutor(THREADS, f"offers-{name}")
            call = self._pools[name].submit(offers_of, name)
            self._open[call] = (name, time.monotonic())
        call.add_done_callback(self._over)
        return call

    def _over(self, call: Future[Offers]) -> None:
        with self._lock:
            self._open.pop(call, None)

    def _late(self, name: str) -> bool:
        with self._lock:
            began = [at for provider, at in self._open.values() if provider == name]
        return bool(began) and time.monotonic() - min(began) > self._answer_s

    def _no_answer(self) -> str:
        return f"{Ambiguous.kind}: no answer to offers within {self._answer_s:g} s"
