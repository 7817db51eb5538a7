"""REST for adapters: one call, its answer or a class of `providers.errors`; and names, numbers, listings they share.

Rules
- Nothing is repeated but a read whose kept connection had died under it, once: the server never saw it.
- A status that the adapter's own rules do not know: 401 auth, 402 funds, 429 rate limit, other 4xx invalid; whatever
  leaves open whether it happened (time-out, reset, 3xx, 5xx, an unreadable body) is `Ambiguous`.
- An account's rate is kept here for all jobs: calls wait their turn for moments, longer waits are `RateLimited`, and
  after a 429 nothing of that kind is sent until the provider's own time has passed. A destroy is never held back.
- A key appears in no message. Numbers are read as `Decimal`; whatever is missing or of another type reads as None.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from providers.base import ProviderConfig
from providers.errors import Ambiguous, AuthFailed, Invalid, NoFunds, ProviderError, RateLimited
from providers.fields import number, parsed, retry_after

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

CONNECT_S = 10.0
ANSWER_S = 45.0  # some companies take half a minute to place a machine
TURN_MAX_S = 5.0  # a longer wait for one's turn is said instead of slept
REST_DEFAULT_S = 5.0  # a 429 that names no time
EVIDENCE_MAX = 300
HOURS_PER_MONTH = Decimal(730)  # what all of them divide a monthly price by


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; `body` is None where it is empty or no JSON."""

    status: int
    body: Any
    text: str
    headers: Mapping[str, str]

    @property
    def words(self) -> str:
        """The body as said, cut to what a person reads."""
        return " ".join(self.text.split())[:EVIDENCE_MAX]


Judge = Callable[[Answer, str], ProviderError | None]


class Rest:
    """Calls to one API with one key. Thread-safe. `judge` maps the company's own error bodies; None: the rules above.

    `what` of a call is the verb that it serves (`create`, `list`, `destroy`, ...); a 429 holds back calls of the same
    `what`, or all where `shared_limit`. `scheme` stands before the key in the Authorization header.
    """

    def __init__(
        self,
        provider: str,
        base: str,
        key: Callable[[], str],
        judge: Judge,
        *,
        per_second: float,
        burst: int,
        shared_limit: bool = False,
        scheme: str = "Bearer ",
    ) -> None:
        self.provider, self.base = provider, base.rstrip("/")
        self._key, self._judge, self._shared, self._scheme = key, judge, shared_limit, scheme
        self._per_second, self._burst = per_second, float(burst)
        self._tokens, self._filled = float(burst), time.monotonic()
        self._resting: dict[str, float] = {}
        self._lock = threading.Lock()
        self._made: httpx.Client | None = None

    def call(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Any = None,
        may: Sequence[int] = (),
        reads: bool | None = None,
    ) -> Answer:
        """One request. Statuses of `may` are returned as 2xx are; every other one raises. `reads` says of a POST that
        it only asks, as some companies list; without it a GET does.
        """
        key = self._key()
        self._take_turn(what)
        answer = self._send(method, path, what, query, body, key, method == "GET" if reads is None else reads)
        if answer.status in may:
            return answer
        if 200 <= answer.status < 300:
            if answer.body is None and answer.text.strip():
                raise self.unreadable(what, answer.text)
            return answer
        raise self.problem(answer, what)

    def problem(self, answer: Answer, what: str) -> ProviderError:
        """The class of an answer that is no success; a rate limit is kept to from now on."""
        problem = self._judge(answer, what) or self._by_status(answer, what)
        if isinstance(problem, RateLimited):
            self._rest(what, problem.retry_after_s)
        return problem

    def unreadable(self, what: str, text: object) -> Ambiguous:
        """The error for an answer that does not say what it must."""
        words = " ".join(str(text).split())[:EVIDENCE_MAX]
        return Ambiguous(
            f"{self.provider} gave an answer to {what} that cannot be read: {words or 'nothing'}",
            provider=self.provider, what=what, evidence=words,
        )  # fmt: skip

    def _send(
        self, method: str, path: str, what: str, query: Mapping[str, str | int] | None, body: Any, key: str, reads: bool
    ) -> Answer:
        import httpx
        from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

        stale = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)
        attempts = Retrying(
            stop=stop_after_attempt(2 if reads else 1), retry=retry_if_exception_type(stale), reraise=True
        )
        content = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"{self._scheme}{key}", "Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        try:
            got = attempts(
                self._client().request, method, self.base + path, params=query, content=content, headers=headers
            )
            text = got.text
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            words = str(problem).replace(key, "***") or type(problem).__name__
            raise Ambiguous(
                f"{self.provider} did not answer to {what}: {words}", provider=self.provider, what=what, evidence=words
            ) from None
        return Answer(got.status_code, parsed(text), text.replace(key, "***"), got.headers)

    def _client(self) -> httpx.Client:
        with self._lock:
            if self._made is None:
                import httpx  # a third of a second that no other verb pays

                timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
                self._made = httpx.Client(timeout=timeout, follow_redirects=False)
                weakref.finalize(self, self._made.close)
            return self._made

    def _by_status(self, answer: Answer, what: str) -> ProviderError:
        said = f"{self.provider} refused {what} ({answer.status}): {answer.words or 'no reason given'}"
        more = {"provider": self.provider, "what": what, "evidence": answer.words}
        if answer.status == 429:
            return RateLimited(said, retry_after_s=retry_after(answer.headers), **more)
        if answer.status == 401:
            return AuthFailed(f"{said}; set a valid key with `gpujob login {self.provider}`", **more)
        if answer.status == 402:
            return NoFunds(said, **more)
        # A destroy that was refused for an unknown reason must be tried again, so nobody may call it settled.
        if 400 <= answer.status < 500 and answer.status not in (408, 425) and what != "destroy":
            return Invalid(said, **more)
        return Ambiguous(f"{self.provider} failed at {what} ({answer.status}): {answer.words}", **more)

    def _take_turn(self, what: str) -> None:
        """Wait for a token of the account's rate; say it instead where that takes long."""
        with self._lock:
            now = time.monotonic()
            resting = self._resting.get("" if self._shared else what, 0.0) - now
            self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._per_second)
            self._filled = now
            wait = max(0.0, 1.0 - self._tokens) / self._per_second
            if what == "destroy":
                resting = wait = 0.0
            if max(resting, wait) > TURN_MAX_S or resting > 0:
                left = max(resting, wait)
                raise RateLimited(
                    f"{self.provider} is asked again for {what} in {left:.0f} s: its rate limit",
                    retry_after_s=left, provider=self.provider, what=what,
                )  # fmt: skip
            self._tokens -= 1.0
        if wait > 0:
            time.sleep(wait)

    def _rest(self, what: str, seconds: float | None) -> None:
        with self._lock:
            until = time.monotonic() + (REST_DEFAULT_S if seconds is None else seconds)
            self._resting["" if self._shared else what] = until


class SharedRead(Generic[T]):
    """One read for all who ask at once: each gets an answer whose request began after its own question."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._turn = threading.Condition()
        self._begun = self._ended = 0
        self._busy = False
        self._outcome: tuple[int, T | None, BaseException | None] = (0, None, None)

    def get(self) -> T:
        """The answer, or what the read raised."""
        with self._turn:
            wanted = self._begun + 1
            while self._busy and self._ended < wanted:
                self._turn.wait()
            if self._ended >= wanted:
                return self._result()
            self._busy, self._begun = True, self._begun + 1
        value, problem = None, None
        try:
            value = self._read()
        except BaseException as error:  # handed to everybody who waits for this read
            problem = error
        with self._turn:
            self._busy, self._ended = False, self._begun
            self._outcome = (self._ended, value, problem)
            self._turn.notify_all()
            return self._result()

    def _result(self) -> T:
        _, value, problem = self._outcome
        if problem is not None:
            raise problem
        return value  # type: ignore[return-value]


# --- what the user set ------------------------------------------------------------------------------------------------


def api_key(config: ProviderConfig, provider: str, variable: str) -> str:
    """The account's key, looked up anew at each call, so that a new login needs no restart."""
    key = (config.secret(variable) or os.environ.get(variable) or "").strip()
    if not key:
        raise AuthFailed(
            f"there is no key for {provider}: run `gpujob login {provider}`, or export {variable}",
            provider=provider, what="key",
        )  # fmt: skip
    if not key.isascii() or not key.isprintable():
        raise AuthFailed(
            f"{variable} holds characters that no key has; run `gpujob login {provider}`", provider=provider, what="key"
        )
    return key


def setting(config: ProviderConfig, name: str) -> tuple[str, ...]:
    """A setting that may be one word or a list of words."""
    value = config.settings.get(name)
    if value is None:
        return ()
    return tuple(str(each) for each in value) if isinstance(value, list | tuple) else (str(value),)


def flag(config: ProviderConfig, name: str) -> bool:
    """A yes-or-no setting, as YAML or text."""
    return str(config.settings.get(name, "")).lower() in ("true", "yes", "1")


def pace(config: ProviderConfig, usual: float) -> float:
    """Requests a second; `requests_per_s` of the config for accounts with another limit."""
    found = number(config.settings.get("requests_per_s"))
    return float(found) if found is not None and found > 0 else usual


def address(config: ProviderConfig, usual: str) -> str:
    """The API's address; `url` of the config for a proxy or a stand-in."""
    return str(config.settings.get("url") or usual)
