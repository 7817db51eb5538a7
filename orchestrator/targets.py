"""Where notifications go: the targets of the config, and one message to one of them by apprise.

Rules: an address is a secret (tokens stand in it): it is never printed, logged or stored; what went wrong is said
without it. A send never raises anything but `NotSent`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOPICS = ("outcome", "alarm", "reclaim", "waiting", "release")
CONNECT_S = 5.0
ANSWER_S = 10.0


class NotSent(Exception):
    """A message that did not reach its target, in words without the address."""


class NoApprise(NotSent):
    """Nothing can be sent to anybody."""

    def __init__(self) -> None:
        super().__init__("apprise is not installed: install gpujob with its extra `notify`")


@dataclass(frozen=True)
class Target:
    """One target: its address, or the variable that holds it where the controller runs; and what it wants to hear."""

    url: str = field(default="", repr=False)
    url_env: str = ""
    topics: frozenset[str] = frozenset(TOPICS)

    def address(self, env: Mapping[str, str] | None = None) -> str:
        """The address. Raises `NotSent` when the variable is not set."""
        if not self.url_env:
            return self.url
        found = (os.environ if env is None else env).get(self.url_env, "").strip()
        if not found:
            raise NotSent(f"the variable {self.url_env} is not set where the controller runs")
        return found


def send(target: Target, title: str, body: str) -> None:
    """Send one message now; returns when the target took it. Takes a quarter of a minute at most, or so."""
    try:
        import apprise
    except ImportError:
        raise NoApprise from None
    server = _service(apprise, target.address())
    server.socket_connect_timeout, server.socket_read_timeout = CONNECT_S, ANSWER_S
    box = apprise.Apprise()
    box.add(server)
    with apprise.LogCapture(level=apprise.logging.WARNING) as said:  # type: ignore[no-untyped-call]
        try:
            taken = bool(box.notify(body=body, title=title))
        except Exception as error:  # a plugin's own bug, or a library that it needs and lacks
            raise NotSent(f"{type(server).__name__}: {type(error).__name__}") from None
        words = said.getvalue()
    if not taken:
        raise NotSent(_why(words))


def _service(apprise: Any, address: str) -> Any:
    """apprise's own addresses (mailto://, slack://, ...) and web addresses that it knows; any other web address is
    posted to as JSON. Raises `NotSent` for what is none."""
    try:
        found = apprise.Apprise.instantiate(address, suppress_exceptions=True)
        if found is None and re.match(r"https?://", address):
            found = apprise.Apprise.instantiate("json" + address[4:])
    except Exception as error:
        raise NotSent(f"the address cannot be read ({type(error).__name__})") from None
    if found is None:
        raise NotSent("the address is none that apprise knows: json://, mailto://, slack://, ntfy://, ...")
    return found


def _why(log: str) -> str:
    """What apprise's own log says, without anything of the address."""
    code = re.search(r"error=(\d{3})", log)
    if code:
        return f"it answered HTTP {code[1]}"
    if re.search(r"[Cc]onnection error|timed? ?out|[Ss]ocket", log):
        return "there is no connection to it, or it did not answer in time"
    if "SMTP" in log or "mail" in log.lower():
        return "the mail server did not take it"
    return "it did not take the message"
