"""One line of a log as a person reads it: without colours, time stamps and bars; the mark of its rank is kept apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.log_lines import ANSI

LINE_MAX = 8192  # characters of a line that are looked at: its first half and its last, a message is at one of the ends
#: A bar that the next words are glued to, since it ends without a newline.
BAR = re.compile(r"^.{0,200}?\d+%\|[^|]*\|\s*[\d.,kMG?]+/[\d.,kMG?]+ \[[^\]]*\]\s*(?=\S)")
STAMP = re.compile(
    r"^(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? (?:std(?:out|err) [FP] )?"
    r"|\[\s*\d+\.\d{3,}\] )"  # dmesg
)
#: What loggers put before each line of a traceback that they were handed.
LOGGER = re.compile(
    r"^(?:(?:ERROR|CRITICAL|FATAL) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \[?[\w./-]+:\d+\] ?"
    r"|E\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./-]+:\d+\] ?)"
)
RANK = re.compile(
    r"^(?:\[(?:rank|default)?(?P<a>\d+)\](?:<std(?:err|out)>)?:\s?|\[\d+,(?P<b>\d+)\]<std(?:err|out)>:\s?"
    r"|\(\w+ (?:rank=(?P<c>\d+) )?pid=(?P<pid>\d+)[^)]*\)\s|(?P<d>\d{1,4}): |\[[Rr]ank (?P<e>\d+)\]:?\s)"
)
#: A bar or a metric: the job was at work here, so whatever was printed before was survived.
AT_WORK = re.compile(
    r"\d+%\|.*\|\s*\d+/\d+|(?:^|[\s{\"'\[(|,_])(?:step|epoch|iter(?:ation)?|loss)[\"']?\s*[=: ]+\s*\d|\blr[=:] ?\d"
    r"|^\[?\s*\d+ ?/ ?\d+\]?:? .*\d\.\d",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Line:
    """A cleaned line. `rank` is None where nothing marks it; of marks by process id the id stands for the rank."""

    text: str
    rank: int | None
    glued: bool = False  # it came after a bar in the same line


def clean(raw: bytes) -> Line:
    """The line without its newline, cleaned."""
    if len(raw) > LINE_MAX:
        raw = raw[: LINE_MAX // 2] + b" ... " + raw[-LINE_MAX // 2 :]
    text = raw.decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    text = text.rstrip()
    rank = None
    for _ in range(2):  # a stamp before the rank or after it
        if stamp := STAMP.match(text):
            text = text[stamp.end() :]
        if rank is None and (mark := RANK.match(text)):
            rank = next(int(group) for group in (*mark.group("a", "b", "c", "d", "e"), mark["pid"]) if group)
            text = text[mark.end() :]
        if text[:1] in "ECF" and (logger := LOGGER.match(text)):
            text = text[logger.end() :]
    bar = BAR.match(text) if "%|" in text else None
    return Line(text[bar.end() :] if bar else text, rank, bar is not None)
