"""A machine's metadata service (IMDSv2), asked for a reclaim notice in a thread of its own, because it can hang."""

from __future__ import annotations

import http.client
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestrator.agent.files import note

if TYPE_CHECKING:
    from collections.abc import Callable

METADATA_LOOK_S = 5.0  # as often as Amazon advises
METADATA_WAIT_S = 2.0
TOKEN_S = 21600  # six hours, the most that is given
TOKEN_PATH = "/latest/api/token"
NOTICE_PATH = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"


class MetadataWatch(threading.Thread):
    """Looks until a notice is there. `found` is its text; a rebalance hint is reported once and changes nothing."""

    def __init__(self, base: str, report: Callable[..., None]) -> None:
        super().__init__(daemon=True)
        self.base = base
        self.report = report
        self.found: str | None = None
        self.hinted = self.troubled = self.stopped = False
        self.token = ""

    def run(self) -> None:
        while self.found is None and not self.stopped:
            try:
                self.look()
                self.troubled = False
            except (OSError, http.client.HTTPException, ValueError) as error:
                if not self.troubled:  # not every five seconds of an outage
                    note("metadata service: %s" % error)
                self.troubled = True
            time.sleep(METADATA_LOOK_S)

    def look(self) -> None:
        self.found = self.get(NOTICE_PATH)
        hint = None if self.hinted else self.get(REBALANCE_PATH)
        if hint is not None:
            self.hinted = True
            self.report("rebalance", said=hint[:200])

    def get(self, path: str) -> str | None:
        """The text at `path`, None where there is none; a token that is no longer valid is replaced once."""
        for fresh in (False, True):
            if fresh or not self.token:
                status, self.token = self.ask("PUT", TOKEN_PATH, {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)})
                if status != 200:
                    self.token = ""
                    raise ValueError("no token: status %d" % status)
            status, text = self.ask("GET", path, {"X-aws-ec2-metadata-token": self.token})
            if status == 200:
                return text
            if status == 404:
                return None
            if status != 401:
                break
        raise ValueError("%s: status %d" % (path, status))

    def ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        place: Any = urlsplit(self.base)
        connection = http.client.HTTPConnection(place.hostname, place.port or 80, timeout=METADATA_WAIT_S)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(4096).decode("utf-8", "replace").strip()
        finally:
            connection.close()
