"""Small answers of the web for this computer: a head, a page of JSON; patient with what passes by itself."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.agent.web import TRANSIENT, retry_after
from orchestrator.datasets import DataError

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 30.0
TRIES = 6
PAUSE_S, PAUSE_MAX_S = 1.0, 30.0
_sleep = time.sleep  # tests have no time


def ask(
    method: str, url: str, *, where: str, headers: Mapping[str, str] | None = None, stream: bool = False
) -> httpx.Response:
    """One answered request, redirects followed. Transient trouble is tried again with a growing, random pause.

    `stream`: the body is not read. Raises DataError for what does not pass: the network, and 5xx or 429 that stay.
    """
    import httpx

    why, after = "", 0.0
    for tried in range(TRIES):
        if tried:
            _sleep(max(after, min(PAUSE_MAX_S, PAUSE_S * 2**tried) * (0.5 + random.random())))
        after = 0.0
        try:
            with httpx.Client(timeout=TIMEOUT_S, follow_redirects=True) as client:
                request = client.build_request(method, url, headers={"User-Agent": "gpujob", **(headers or {})})
                answer = client.send(request, stream=stream)
                if stream:
                    answer.close()
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects) as error:
            raise DataError(f"this is no address of a file: {error}", where=where) from None
        except httpx.RequestError as error:
            why = f"{type(error).__name__}: {error}"
            continue
        if answer.status_code not in TRANSIENT:
            return answer
        why = f"{answer.status_code} {answer.reason_phrase}"
        after = retry_after(answer.headers.get("Retry-After", ""))
    raise DataError(f"no answer in {TRIES} tries: {why}", where=where, next_step="check the address and the network")


def json_of(answer: httpx.Response, where: str) -> Any:
    """The document of an answer. Raises DataError where it is none."""
    try:
        return answer.json()
    except (ValueError, RecursionError):
        raise DataError(f"{answer.url.host} answered something that is not JSON", where=where) from None
