"""Where a job's checkpoints lie in a store.

    MIRROR/JOB/TASK.N/o/SHA256        objects of run N: pieces of files, by content
    MIRROR/JOB/TASK.N/s/000012        the same in numbered slots, where names are fixed before the content is known
    MIRROR/JOB/TASK.N/m/...           manifests, written last: what one names is whole once the store confirms it
    MIRROR/JOB/TASK.N/broken/HASH     says of a manifest that its bytes were found damaged

MIRROR is `checkpoint.mirror` with `{job}`, `{leg}` and `{attempt}` filled in. A run writes below its own prefix only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.objects.settings import Location

ATTEMPT = "{attempt}"
RUN = re.compile(r"\.(\d{1,9})\Z")


def filled(place: str, job: str, leg: str, attempt: str = ATTEMPT) -> str:
    """`to` or `mirror` with its names filled in; without `attempt` that one stays."""
    for name, value in (("{job}", job), ("{leg}", leg), (ATTEMPT, attempt)):
        place = place.replace(name, value)
    return place


@dataclass(frozen=True)
class Layout:
    """The prefixes of one task's runs. `mirror` may still have `{attempt}` in it."""

    mirror: Location
    job: str
    task: str

    def run(self, n: int) -> str:
        """The prefix of run `n`, without a slash at its end."""
        prefix = self.mirror.prefix.replace(ATTEMPT, str(n))
        return "/".join(part for part in (prefix, self.job, f"{self.task}.{n}") if part)

    @property
    def listed(self) -> str:
        """What the keys of all runs begin with."""
        before, attempt, _ = self.mirror.prefix.partition(ATTEMPT)
        if attempt:
            return before
        return "/".join(part for part in (before, self.job, f"{self.task}.") if part)

    def place(self, key: str) -> tuple[int, str] | None:
        """The run that a key belongs to and the rest of its name; None when it is of no run of this task."""
        mark = f"{self.job}/{self.task}."
        at = key.find(mark, max(0, len(self.listed) - len(mark)) if ATTEMPT not in self.mirror.prefix else 0)
        while at >= 0:
            number, slash, rest = key[at + len(mark) :].partition("/")
            if slash and number.isdigit() and key.startswith(f"{self.run(int(number))}/"):
                return int(number), rest
            at = key.find(mark, at + 1)
        return None
