"""From what a log said and what else is known to one diagnosis.

Rules
- The first failure of the last burst decides; what the job survived, what only reports another's failure (wrappers)
  and what a failure elsewhere causes (echoes) come after it, in this order.
- What a program shows indented, as raised by somebody else, yields to what it raises itself.
- What programs print and survive (networks) yields to what the same rank raises afterwards; what they only print of
  memory, to a mistake of their own.
- A process that was killed says nothing itself: the kernel, the disk and the provider are asked, in this order.
- What the kernel says outranks a vague message of the program, and nothing else.
- A program that leaves with a code of its own has decided so: without a known message it is not started again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.diagnosis.lines import AT_WORK, clean
from orchestrator.diagnosis.scan import CONTINUES, SURVIVED, Seen, Sighting
from orchestrator.diagnosis.table import Reaction, Signature, Table

LINE_SHOWN = 300  # characters of a decisive line
EVIDENCE_MAX = 8
SIGNALS = 128  # exit codes from here on are signals; below, the program or the shell has spoken
KILLED = "ambiguous"


@dataclass(frozen=True)
class Circumstances:
    """What is known beside the log. `disk_full` and the like: None where nobody looked."""

    exit_code: int | None = None
    dmesg: tuple[str, ...] = ()  # the kernel's lines since the run began
    disk_full: bool | None = None
    provider: Literal["", "alive", "noticed", "gone"] = ""
    rebooted: bool | None = None
    foreign_processes: bool | None = None  # others' processes hold memory of the cards


@dataclass(frozen=True)
class Note:
    """Worth saying, and no failure."""

    text: str
    line: str
    line_number: int
    advice: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis:
    """What failed, by which line, and what may be done about it.

    `line_number` counts from 1 and is None where the line is not of the log; `rank` is None where lines carry none.
    """

    klass: str
    signature: str
    says: str
    line: str
    line_number: int | None
    rank: int | None
    reaction: Reaction
    advice: tuple[str, ...]
    confidence: Literal["high", "medium", "low"]
    evidence: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class _Pick:
    """The signature that decides and the line that shows it."""

    signature: Signature
    sighting: Sighting | None
    confidence: Literal["high", "medium", "low"]
    words: str = ""


def weigh(table: Table, seen: Seen, known: Circumstances) -> Diagnosis:
    """The diagnosis of one log."""
    kernel = _kernel(table, known.dmesg)
    pick = _by_circumstances(table, _from_log(table, seen, known), kernel, known)
    signature, sighting = pick.signature, pick.sighting
    reaction = signature.reaction
    if signature.kind.name == "unknown" and (known.exit_code is None or known.exit_code < SIGNALS):
        reaction = Reaction()
    if signature.advice == "oom" and known.foreign_processes:
        reaction = Reaction("other", 1, "other processes hold this machine's cards")
    line = sighting.text[:LINE_SHOWN] if sighting is not None else ""
    line = line or _last_words(table, seen)
    return Diagnosis(
        klass=signature.kind.name,
        signature=signature.id,
        says=pick.words or signature.says or signature.kind.says,
        line=line,
        line_number=sighting.number if sighting is not None and sighting.source == "log" else None,
        rank=sighting.line.rank if sighting is not None else None,
        reaction=reaction,
        advice=table.advice[signature.advice],
        confidence=pick.confidence,
        evidence=_evidence(seen, kernel, known, pick),
        notes=tuple(
            Note(notice.says, text[:LINE_SHOWN], number, table.advice[notice.advice])
            for notice, number, text in seen.notices.values()
        ),
    )


def _last_words(table: Table, seen: Seen) -> str:
    """The last line that is neither work nor a warning; empty where there is none."""
    said = (one.strip() for one in reversed(seen.last))
    return next((one for one in said if not AT_WORK.search(one) and not table.look_alike.search(one)), "")[:LINE_SHOWN]


def _kernel(table: Table, lines: Iterable[str]) -> list[Sighting]:
    found = []
    for number, raw in enumerate(lines, 1):
        line = clean(raw.encode("utf-8", "surrogateescape"))
        signature = table.match(line.text)
        if signature is not None:
            found.append(Sighting(number, line, signature, 0, source="dmesg"))
    return found


def _from_log(table: Table, seen: Seen, known: Circumstances) -> _Pick:
    """What the log alone says."""
    fatal = [s for s in seen.sightings if seen.worked_after(s) < SURVIVED]
    if any(s.raised and not s.quoted for s in fatal):
        fatal = [s for s in fatal if not s.quoted]
    first = _first(table, seen, [s for s in fatal if not s.shout and not s.signature.wrapper])
    if first is not None:
        return _Pick(first.signature, first, _confidence(table, first))
    by_code = table.exit_codes.get(known.exit_code) if known.exit_code is not None else None
    shown = next((s for s in fatal if s.signature.wrapper), None) or next((s for s in fatal if s.shout), None)
    if by_code is not None:
        return _Pick(by_code, shown, "medium")
    if shown is not None and shown.signature.wrapper:
        return _Pick(shown.signature, shown, "low")
    survived = [s for s in seen.sightings if s not in fatal and not s.shout and not s.signature.wrapper]
    if shown is None and survived:
        return _Pick(_unknown(table), survived[-1], "low", "it ended long after the last failure that it printed")
    return _Pick(_unknown(table), shown, "low")


def _first(table: Table, seen: Seen, found: list[Sighting]) -> Sighting | None:
    """The sighting that decides among those that nothing followed."""
    own = [s for s in found if not s.signature.follows]
    if seen.root_rank is not None and any(s.line.rank == seen.root_rank for s in own):
        own = [s for s in own if s.line.rank in (seen.root_rank, None)]
    if all(s.signature.vague for s in own):
        own = found  # a crash after an echo is its consequence: whichever came first
    if not own:
        return None
    first = own[0]
    if first.signature.chatter:
        later = (s for s in own if s.raised and not s.signature.chatter and s.line.rank == first.line.rank)
        first = next(later, first)
    elif first.signature.kind.passing and not first.raised:
        mistakes = (s for s in own if s.raised and table.own_error.match(s.text) and s.line.rank == first.line.rank)
        first = next(mistakes, first)
    for other in own[own.index(first) + 1 :]:
        specific = other.signature is not table.generic and not other.signature.vague
        near = other.number - first.number <= CONTINUES and other.line.rank == first.line.rank
        if specific and first.signature.vague and other.signature.kind.name == "bad-host":
            return other
        if specific and near and first.signature is table.generic and not other.text[:1].isspace():
            return other if _goes_on(first, other) else first
    return first


def _goes_on(first: Sighting, other: Sighting) -> bool:
    """Whether `other` is a later line of the same message: it ends with a colon, or says to look further."""
    return first.text.endswith(":") and other.number > first.number


def _confidence(table: Table, sighting: Sighting) -> Literal["high", "medium", "low"]:
    signature = sighting.signature
    uncertain = signature is table.generic or signature.vague or signature.follows or signature.kind.name == KILLED
    return "medium" if uncertain else "high"


def _unknown(table: Table) -> Signature:
    kind = table.kinds["unknown"]
    return replace(table.generic, id="unknown", kind=kind, reaction=kind.reaction, advice=kind.advice)


def _by_circumstances(table: Table, pick: _Pick, kernel: list[Sighting], known: Circumstances) -> _Pick:
    """Weigh what the log says against the kernel, the disk and the provider."""
    signature = pick.signature
    killed = signature.kind.name == KILLED
    open_ = killed or signature.vague or signature.wrapper or signature.follows or signature.kind.name == "unknown"
    if not open_:
        return pick
    told = next((s for s in kernel if not s.signature.vague), None)
    if told is not None:
        return _Pick(told.signature, told, "high")
    if known.disk_full and (killed or signature.kind.name == "unknown" or signature.wrapper):
        return _Pick(_of(table, signature, "disk"), pick.sighting, "medium", "it ended while the disk was full")
    taken = known.provider in ("noticed", "gone")
    if (taken or known.rebooted) and (
        killed or signature.follows or signature.kind.name == "unknown" or signature.wrapper
    ):
        words = "the machine was being taken away" if taken else "the machine was started again"
        return _Pick(_of(table, signature, "interrupted"), pick.sighting, "high" if taken else "medium", words)
    return pick


def _of(table: Table, signature: Signature, name: str) -> Signature:
    """The same line under another class."""
    kind = table.kinds[name]
    return replace(signature, kind=kind, reaction=kind.reaction, advice=kind.advice, says="")


def _evidence(seen: Seen, kernel: list[Sighting], known: Circumstances, pick: _Pick) -> tuple[str, ...]:
    """What else a person would look at: codes, the kernel, other failures; the last lines where nothing explains."""
    found = []
    if known.exit_code is not None:
        found.append(f"exit code {known.exit_code}")
    found += [f"dmesg: {s.text[:LINE_SHOWN]}" for s in kernel if s is not pick.sighting]
    if known.disk_full:
        found.append("the disk is full")
    if known.provider in ("noticed", "gone"):
        found.append(f"provider: the machine is {'being reclaimed' if known.provider == 'noticed' else 'gone'}")
    said = {pick.sighting.text} if pick.sighting is not None else set()
    for sighting in seen.sightings:
        if sighting.text not in said and not sighting.signature.wrapper:
            said.add(sighting.text)
            rank = f", rank {sighting.line.rank}" if sighting.line.rank is not None else ""
            found.append(f"line {sighting.number}{rank}: {sighting.text[:LINE_SHOWN]}")
    found = found[:EVIDENCE_MAX]
    if pick.confidence == "low":
        found += [f"end of the log: {line.strip()[:LINE_SHOWN]}" for line in seen.last]
    return tuple(found)
