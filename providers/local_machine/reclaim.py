"""When a local spot machine is taken back: scripted or random, by GPUJOB_LOCAL_RECLAIM.

    after=20s,notice=5s              every spot machine: announced 20 s after its creation, taken 5 s later
    attempt=1,after=20s,notice=30s   only a job's first spot machine
    at-file=/tmp/now,notice=0s       announced when that file of the host appears
    rate=0.5/h,seed=7,notice=120s    at random, on average 0.5 times an hour; the seed repeats the draw

Rules: `notice` is 0 when left out; durations are a number with s, m or h. Empty: no machine is taken back.
The setting is read at create and stored with the machine, whose own pid 1 carries it out.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from providers.errors import Invalid

VARIABLE = "GPUJOB_LOCAL_RECLAIM"
KEYS = ("after", "at-file", "rate", "notice", "attempt", "seed")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Script:
    """A parsed setting; exactly one of `after_s`, `at_file`, `per_hour` is set."""

    notice_s: float = 0.0
    after_s: float | None = None
    at_file: str = ""
    per_hour: float | None = None
    seed: int = 0
    attempt: int | None = None

    def plan(self, now: float, job: str, ordinal: int) -> str:
        """The orders for one machine's pid 1, empty when it is not to be taken.

        `ordinal` is 1 for the job's first spot machine; `now` is when it is created, UTC epoch seconds.
        """
        if self.attempt is not None and self.attempt != ordinal:
            return ""
        if self.at_file:
            return f"file {self.at_file}\nnotice {self.notice_s}\n"
        if self.after_s is not None:
            return orders(now + self.after_s, self.notice_s)
        draw = random.Random(f"{self.seed}/{job}/{ordinal}")
        return orders(now + draw.expovariate((self.per_hour or 0.0) / 3600.0), self.notice_s)


def orders(at: float, notice_s: float) -> str:
    """What pid 1 reads: announce at `at` (UTC epoch s), kill `notice_s` later."""
    return f"at {at:.3f}\nnotice {notice_s}\n"


def parse(text: str) -> Script | None:
    """Read the setting; None when there is none. Raises `Invalid` with the part that is wrong."""
    if not text.strip():
        return None
    given: dict[str, str] = {}
    for part in text.split(","):
        name, sep, value = (piece.strip() for piece in part.partition("="))
        if not sep or name not in KEYS or name in given:
            why = "given twice" if name in given else f"use {', '.join(KEYS)}"
            raise _wrong(text, part.strip(), why)
        given[name] = value
    if sum(name in given for name in ("after", "at-file", "rate")) != 1:
        raise _wrong(text, text, "give exactly one of after=, at-file=, rate=")
    try:
        return Script(
            notice_s=_seconds(given.get("notice", "0s")),
            after_s=_seconds(given["after"]) if "after" in given else None,
            at_file=given.get("at-file", ""),
            per_hour=_rate(given["rate"]) if "rate" in given else None,
            seed=int(given.get("seed", "0")),
            attempt=int(given["attempt"]) if "attempt" in given else None,
        )
    except ValueError as problem:
        raise _wrong(
            text, str(problem), "durations look like 20s, rates like 0.5/h, the rest are whole numbers"
        ) from None


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(repr(text))
    return float(found[1]) * _SECONDS[found[2]]


def _rate(text: str) -> float:
    number, sep, per = text.partition("/")
    if not sep or per not in _SECONDS or float(number) <= 0:
        raise ValueError(repr(text))
    return float(number) * 3600.0 / _SECONDS[per]


def _wrong(text: str, part: str, why: str) -> Invalid:
    return Invalid(f"{VARIABLE}={text!r}: {part}: {why}", provider="local", what="create")
