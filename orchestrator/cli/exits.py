"""Exit codes, and the one error that a verb raises on purpose.

Rules: a code means the same in every verb. An error says what, where, why and the next step, and never shows a
traceback.
"""

from __future__ import annotations

OK = 0
JOB_FAILED = 1
USAGE = 2  # usage, spec, configuration or a limit of the config
PROVIDER = 3  # a provider, the controller, or a release that is not confirmed
NO_CAPACITY = 4
ENDED = 5  # cancelled, ttl, budget
STILL_RUNNING = 6  # a wait timed out
INTERRUPTED = 130  # Ctrl-C: the job goes on
CLOSED_PIPE = 141  # the reader of our stdout went away, as the shell counts SIGPIPE

MEANINGS: dict[int, str] = {
    OK: "ok",
    JOB_FAILED: "job failed",
    USAGE: "usage, spec, configuration or a limit",
    PROVIDER: "provider or controller, or a release that is not confirmed",
    NO_CAPACITY: "no capacity",
    ENDED: "cancelled, ttl or budget",
    STILL_RUNNING: "still running when the wait timed out",
    INTERRUPTED: "Ctrl-C: the job goes on",
}


class CliError(Exception):
    """Something that the user can act on.

    `what` is the sentence; `where` the file, job or setting; `why` the cause; `next` the command or change that helps.
    """

    def __init__(self, what: str, *, code: int = USAGE, where: str = "", why: str = "", next: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.code = code
        self.where = where
        self.why = why
        self.next = next

    def lines(self) -> list[str]:
        """The message for stderr, one fact a line."""
        place = f"{self.where}: " if self.where else ""
        lines = [f"gpujob: {place}{self.what}"]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.next:
            lines.append(f"  next: {self.next}")
        return lines
