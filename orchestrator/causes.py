"""Why a run failed, asked once it is closed: its log here, and what its machine says of kernel, disk and cards.

Rules: one short command, and a machine that does not answer it costs nothing but that knowledge. Everything of the run
is dead by now, so memory that is still taken on a card belongs to somebody else.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from orchestrator.model import Assignment, Cause

if TYPE_CHECKING:
    from orchestrator import ssh

LOG_BYTES = 64 * 1024 * 1024  # of a log's end: more than any failure prints, and half a second of work
LOOK_S = 20.0
FULL_PERCENT = 99.0  # file systems keep a little for root, and a failed write leaves a little free
FOREIGN_MIB = 1000  # what a driver and its services take on an idle card is below half of this

LOOK_EXIT = 78  # the agent's EX_CONFIG: it stopped the run for what it found
OWN_BYTES, OWN_LINES = 16 << 10, 8
OWN_WORD = re.compile(r"gpujob: \[(config|bad-host|smoke)\] .*")
OWN_CLASSES: dict[str, tuple[str, Literal["no", "other"], int | None]] = {
    "config": ("config-env", "no", None),
    "smoke": ("config", "no", None),
    "bad-host": ("bad-host", "other", 3),
}

KERNEL_WORDS = "Xid|NVRM|[Oo]ut of memory|oom-kill|Killed process"
KERNEL_TIME = re.compile(r"^\[\s*(\d+\.\d+)\]")
CAPACITY = re.compile(r"\s(\d+)%\s+/")
SECTION = "--gpujob--"


class Known(TypedDict, total=False):
    """What a machine says of a failure: fields of `diagnosis.Circumstances`."""

    dmesg: tuple[str, ...]
    disk_full: bool | None
    foreign_processes: bool | None


def look_command(folders: tuple[str, ...]) -> str:
    """What is asked of a machine after a failure; each part may be missing there."""
    paths = " ".join(shlex.quote(folder) for folder in folders)
    mark = f"echo {SECTION}"
    return (
        f"cat /proc/uptime; {mark}; dmesg 2>/dev/null | grep -aE {shlex.quote(KERNEL_WORDS)} | tail -n 50; {mark}; "
        f"df -P {paths} 2>/dev/null; df -Pi {paths} 2>/dev/null; {mark}; "
        "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null; true"
    )


def circumstances(connection: ssh.Connection, folders: tuple[str, ...], run: Assignment, now: float) -> Known:
    """What the machine knows of the failure. Raises SshError when it does not answer."""
    answer = connection.run(look_command(folders), timeout_s=LOOK_S)
    return parse(answer.out.decode("utf-8", "replace"), now - (run.ordered_at or now))


def parse(text: str, running_s: float) -> Known:
    """The machine's answer; the kernel's lines are those of the last `running_s` seconds."""
    parts = [part.strip() for part in text.split(SECTION)]
    if len(parts) != 4:
        return {}
    up, kernel, disks, cards = parts
    began = float(up.split()[0]) - running_s if up else 0.0
    lines = [(KERNEL_TIME.match(line), line) for line in kernel.splitlines()]
    used = [float(percent) for percent in CAPACITY.findall(disks)]
    memory = [float(line) for line in cards.splitlines() if line.strip().isdigit()]
    return {
        "dmesg": tuple(line for at, line in lines if at is not None and float(at[1]) >= began),
        "disk_full": max(used) >= FULL_PERCENT if used else None,
        "foreign_processes": max(memory) >= FOREIGN_MIB if memory else None,
    }


def cause_of(log: Path, rc: int, known: Known | None = None) -> Cause:
    """The stored form of a diagnosis of the log's end."""
    from orchestrator.diagnosis import Circumstances, diagnose, the_end_of

    own = _own_word(log) if rc == LOOK_EXIT else None
    if own is not None:
        return own
    found = diagnose(the_end_of(log, LOG_BYTES), Circumstances(exit_code=rc, provider="alive", **(known or {})))
    reaction = found.reaction
    return Cause(
        klass=found.klass,
        signature=found.signature,
        line=found.line,
        rank=found.rank,
        where=reaction.where if found.confidence != "low" or found.klass in ("unknown", "ambiguous") else "no",
        times=reaction.times,
        first=reaction.first,
    )


def _own_word(log: Path) -> Cause | None:
    """Why gpujob's own look or trial stopped the run: the agent's words are the last of the log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - OWN_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    mine = [found for found in map(OWN_WORD.match, lines[-OWN_LINES:]) if found is not None]
    if not mine:
        return None
    first = next((found for found in mine if found[1] != "bad-host"), mine[0])  # no machine can mend the others
    klass, where, times = OWN_CLASSES[first[1]]
    return Cause(klass=klass, signature=f"gpujob-{first[1]}", line=first[0], where=where, times=times)


def in_words(cause: Cause) -> str:
    """`[class] line`, as it stands in a job's detail."""
    last = "no known error; its last line: " if cause.signature == "unknown" and cause.line else ""
    return f"[{cause.klass}] {last}{cause.line}".rstrip()
