"""What the lines of a log say: the one that explains a failure, and how far the job is.

Tables and two small walks over them. A line is judged after colours, what `\\r` overwrote and rank prefixes are gone.
Of several explanations the first of the last burst counts: one rank fails, the others follow; a failure that the
job survived (it went on to report steps) is not the cause.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

LAST_BYTES = 1024 * 1024  # as far back as `decisive_line` looks
LINE_SHOWN = 300  # characters of a decisive line

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
RANK = re.compile(r"^(?:\[(?:rank|default)?\d+\](?:<std(?:err|out)>)?:\s?|\(\w+ pid=\d+[^)]*\)\s|\d{1,3}: )")
TRACEBACK = "Traceback (most recent call last):"
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")

# Names that only report that something else failed; what they wrap was printed before them
WRAPPERS = re.compile(
    r"^(?:[\w.]*\.)?(?:ChildFailedError|CalledProcessError|SystemExit|BrokenProcessPool|ProcessRaisedException"
    r"|ProcessExitedException|RayTaskError\S*|SignalException)\b"
    r"|^RuntimeError: DataLoader worker \(pid\(?s?\)? .* exited unexpectedly"
    r"|^ERROR:torch\.distributed\.elastic\."
    r"|^srun: error: "
    r"|^make: \*\*\* "
    r"|^error: subprocess-exited-with-error"
)
EXCEPTION = re.compile(r"^(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure|Exit)(?::|\s*$)")
AFTER_TRACEBACK = re.compile(r"^(?:\w+\.)*\w+(?:: .*)?$")

# Lines that explain by themselves, each as a whole line or from its start
STRONG = (
    re.compile(r"^(?:\S+: line \d+:\s+\d+ )?(?:Killed|Segmentation fault|Bus error|Aborted|Illegal instruction)\b"),
    re.compile(r"^Out of memory: Killed process "),
    re.compile(r"^(?:/\S*/)?(?:ba|da|z|)sh: "),
    re.compile(r"^/\S+: line \d+: .+"),
    re.compile(r"(?:command not found|bad interpreter: No such file or directory)$"),
    re.compile(r"^\S+: error: "),  # argparse, gcc
    re.compile(r"^[\w./-]+: (?:cannot|can't) .+: (?:No such file or directory|Permission denied)"),
    re.compile(r"^(?:fatal|FATAL|Fatal)(?: error)?:"),
    re.compile(r"^ERROR: (?!Exception:)"),  # pip
    re.compile(r"^E: "),  # apt
    re.compile(r"^npm ERR! "),
    re.compile(r"^(?:thread '.*' )?panicked at |^panic: "),
    re.compile(r"No space left on device"),
    re.compile(r"^NVRM: Xid "),
    re.compile(r"^terminate called after throwing "),
    re.compile(r"^Failed to initialize NVML"),
    re.compile(r"^Watchdog caught collective operation timeout"),
)

# Lines that look like failures and are not: never the answer while there is another
LOOK_ALIKES = (
    re.compile(r"^\S*(?:WARNING|WARN|INFO|DEBUG)\b"),
    re.compile(r"(?:User|Future|Deprecation|Runtime|Resource)Warning: "),
    re.compile(r"^wandb: (?!ERROR)"),
    re.compile(r"^Found cached dataset "),
    re.compile(r"^\*{5,}$|^={5,}$|^-{5,}$"),
)
# A bar or a metric line: the job was at work here, whatever was printed before was survived
AT_WORK = re.compile(r"\d+%\|.*\|\s*\d+/\d+|(?:^|\s)(?:step|epoch|iter(?:ation)?|loss)[ =:]+\d", re.IGNORECASE)
REGION = 80  # lines before the last explanation in which an earlier one may be its cause


def clean(data: bytes) -> list[str]:
    """Lines as a person sees them at the end: without colours, and what `\\r` overwrote left out."""
    lines = []
    for raw in data.decode("utf-8", errors="replace").split("\n"):
        parts = [part for part in ANSI.sub("", raw).split("\r") if part.strip()]
        line = RANK.sub("", parts[-1]).rstrip() if parts else ""
        lines.append(line)
    return lines


def decisive_line(path: Path) -> str | None:
    """The line of the stored log that explains a failure, at most 300 characters; None for an empty log."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - LAST_BYTES)
            file.seek(start)
            lines = clean(file.read(LAST_BYTES))
    except FileNotFoundError:
        return None
    return decisive_in(lines[1 if start else 0 :])


def decisive_in(lines: list[str]) -> str | None:
    """As `decisive_line`, of cleaned lines."""
    found = _explanations(lines)
    causes = [at for at in found if not WRAPPERS.search(lines[at])]
    if causes:
        worked = max((at for at, line in enumerate(lines[: causes[-1]]) if AT_WORK.search(line)), default=-1)
        region = [at for at in causes if at > worked and at >= causes[-1] - REGION]
        return lines[region[0]].strip()[:LINE_SHOWN]
    if found:
        return lines[found[-1]].strip()[:LINE_SHOWN]
    plain = [line for line in lines if line.strip() and not _look_alike(line) and not AT_WORK.search(line)]
    return plain[-1].strip()[:LINE_SHOWN] if plain else None


def _look_alike(line: str) -> bool:
    return any(pattern.search(line) for pattern in LOOK_ALIKES)


def _explanations(lines: list[str]) -> list[int]:
    """Positions of explaining lines in order; of chained tracebacks only the last, which is what Python raised."""
    found: list[int] = []
    inside = False  # between "Traceback" and its exception
    chained = False  # this traceback explains the one before
    for at, line in enumerate(lines):
        text = line.lstrip(" |+")
        if text.startswith(TRACEBACK) or text.startswith("Exception Group " + TRACEBACK):
            inside = True
        elif text.startswith(CHAINED):
            chained = True
        elif inside and line[:1].isspace():
            continue  # a frame
        elif _look_alike(line):
            continue
        elif EXCEPTION.search(text) or (inside and AFTER_TRACEBACK.search(text)):
            # A wrapper never stands for what it wraps
            if chained and found and not WRAPPERS.search(text):
                found.pop()
            found.append(at)
            inside = chained = False
        elif any(pattern.search(line) for pattern in STRONG) or WRAPPERS.search(line):
            found.append(at)
    return found


# --- progress ------------------------------------------------------------------------------------------

PROGRESS_LOOKS_AT = 64 * 1024  # characters; a chunk of the stream is half of that
NUMBER = r"(\d+(?:\.\d+)?)"
DEFAULT_PROGRESS = (
    re.compile(rf"\b(?:step|iter(?:ation)?|it)\b[\s:=\[]*{NUMBER}(?:\s*(?:/|of)\s*{NUMBER})?", re.IGNORECASE),
    re.compile(rf"\d+%\|[^|]*\|\s*{NUMBER}/{NUMBER}"),  # tqdm
    re.compile(rf"\bepoch\b[\s:=\[]*{NUMBER}(?:\s*(?:/|of)\s*{NUMBER})?", re.IGNORECASE),
)


@dataclass(frozen=True)
class Progress:
    """How far a job is: `step` of `total` where a total is known."""

    step: float
    total: float | None


def progress(text: str, regex: str | None = None, total: float | None = None) -> Progress | None:
    """The last step named in `text`; a regex's first group is the step, a second one the total."""
    text = ANSI.sub("", text[-PROGRESS_LOOKS_AT:])
    for pattern in (re.compile(regex),) if regex else DEFAULT_PROGRESS:
        found = list(pattern.finditer(text))
        if not found:
            continue
        groups = found[-1].groups() or (found[-1].group(0),)
        step = _number(groups[0])
        if step is not None:
            return Progress(step, total if total is not None else _number(groups[1] if len(groups) > 1 else None))
    return None


def _number(text: str | None) -> float | None:
    try:
        return float(text.replace(",", "")) if text else None
    except ValueError:
        return None
