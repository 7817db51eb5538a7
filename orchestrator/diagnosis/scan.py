"""Read a log as a stream and keep the few lines that may explain its end.

Most lines of a log are one of some hundred shapes with other numbers in them. A shape (the line without digits and
dots) is looked at once; lines of shapes that hold no text of the table are never decoded. Memory is bounded by the
block, the number of shapes and the number of sightings kept, whatever the size of the log or of a line.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field, replace

from orchestrator.diagnosis.lines import AT_WORK, LINE_MAX, Line, clean
from orchestrator.diagnosis.table import DIGITS, Notice, Signature, Table

LINE_HELD = 256 * 1024  # bytes of a line without an end that are waited for; then it is taken in pieces
SHAPES_BYTES = 8 * 1024 * 1024  # of shapes that are remembered as harmless; then all are forgotten and met again
TELLING_MAX = 20_000  # shapes remembered as worth a look
SIGHTINGS_MAX = 2000  # kept: the newest of them, and the first
SURVIVED = 25  # lines of work after a failure: the job went on, it was not the cause of its end
WORK_LOOKS = 5000  # lines after a failure in which work is looked for
CONTINUES = 12  # lines in which a message may go on below its first line
LAST_LINES = 20  # kept as evidence
BELOW = 3  # lines between such words and the traceback that they speak of
FRAMES_MAX = 600  # lines of one traceback; one that is cut off must not swallow the rest of the log

TRACEBACK = "Traceback (most recent call last):"
CAUSE = "The above exception was the direct cause"
CONTEXT = "During handling of the above exception"
SHRUGGED = ("Exception ignored in", "--- Logging error ---")  # Python goes on after the traceback below
RAISED = re.compile(r"^(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure|Exit)(?:\(\S*\))?(?::|\s*$)")
AFTER_FRAMES = re.compile(r"^(?:(?:\w+\.)+\w+|[A-Z]\w*)(?:: .*|:)?$")
SHOUTED = re.compile(r"^\[?(?:ERROR|FATAL|CRITICAL)\b|^(?:[\w./-]+: )?(?:[Ff]atal|FATAL|[Ee]rror|ERROR)(?: error)?: ")
HEADLESS = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): ?$")  # the message begins on the next line
ROOT_CAUSE = "Root Cause (first observed failure)"
ROOT_RANK = re.compile(r"^\s+rank\s+: (\d+) \(local_rank")


@dataclass(frozen=True)
class Sighting:
    """A line that may explain. `worked` counts lines of work of its rank before it; `shout` is no known message."""

    number: int
    line: Line
    signature: Signature
    worked: int
    shout: bool = False
    raised: bool = False  # an exception, not a message in passing
    source: str = "log"
    quoted: bool = False  # its whole traceback is indented: a program shows what somebody else raised

    @property
    def text(self) -> str:
        return self.line.text.strip()


@dataclass
class _Stack:
    """A traceback that is being printed by one rank."""

    lines: int = 0
    cause: bool = False
    context: bool = False
    shrugged_at: int | None = None  # the line that says so
    quoted: bool = False


@dataclass
class Seen:
    """What a whole log said."""

    sightings: list[Sighting] = field(default_factory=list)
    notices: dict[str, tuple[Notice, int, str]] = field(default_factory=dict)
    work: dict[int | None, int] = field(default_factory=dict)  # lines of work by rank; None: all
    root_rank: int | None = None
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    lines: int = 0

    def worked_after(self, sighting: Sighting) -> int:
        """Lines of work of the sighting's rank that followed it."""
        return self.work.get(sighting.line.rank, 0) - sighting.worked


class Scanner:
    """Feed it blocks of any size, then `close`."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.seen = Seen()
        self._rest = b""
        self._harmless: set[bytes] = set()
        self._harmless_bytes = 0
        self._telling: set[bytes] = set()
        self._stacks: dict[int | None, _Stack] = {}
        self._chained: dict[int | None, _Stack] = {}
        self._looks = 0  # lines still to be looked at for work
        self._at_root = False
        self._headless: Sighting | None = None  # the newest exception, while its message is still to come

    def feed(self, block: bytes) -> None:
        """Take the next bytes."""
        data = self._rest + block
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1))  # a last \r may be half of \r\n
        if end < 0 and len(data) < LINE_HELD:
            self._rest = data
            return
        end = len(data) if end < 0 else end + 1
        self._rest = data[end:]
        self._take(data[:end])

    def close(self) -> Seen:
        """Take what has no newline, and return everything that was seen."""
        if self._rest:
            self._take(self._rest)
            self._rest = b""
        return self.seen

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        newlines = data.count(b"\n")
        data = data.replace(b"\r\n", b"\n")
        flat = data.replace(b"\r", b"\n") if b"\r" in data else data
        bare = flat.translate(None, DIGITS).split(b"\n")
        telling = self._judge(set(bare))
        raw: list[bytes] = []
        if telling or self._stacks or self._looks > 0:
            raw = flat.split(b"\n")
            self._walk(raw, [at for at, shape in enumerate(bare) if shape in telling], data, flat is not data)
        tail = raw[-LAST_LINES - 1 :] or flat[-64 * 1024 :].split(b"\n")[-LAST_LINES - 1 :]
        self.seen.last.extend(line.text for line in map(clean, tail) if line.text.strip())
        self.seen.lines += newlines

    def _judge(self, shapes: set[bytes]) -> set[bytes]:
        """Those shapes that may explain something."""
        fresh = shapes - self._harmless
        known = fresh & self._telling
        fresh -= known
        told = self._sift(b"\n".join(fresh))
        known |= told
        for shape in fresh - told:
            self._harmless.add(shape)
            self._harmless_bytes += len(shape) + 100
        if self._harmless_bytes > SHAPES_BYTES:
            self._harmless.clear()
            self._harmless_bytes = 0
        if len(self._telling) < TELLING_MAX:
            self._telling |= {shape for shape in told if len(shape) < LINE_MAX}
        return known

    def _sift(self, joined: bytes) -> set[bytes]:
        """The shapes that hold a text of the table. Searching for one text after the other beats any one expression."""
        told = set()
        for text in self._table.sieve:
            at = joined.find(text)
            while at >= 0:
                start, end = joined.rfind(b"\n", 0, at) + 1, joined.find(b"\n", at)
                end = len(joined) if end < 0 else end
                told.add(joined[start:end])
                at = joined.find(text, end)
        return told

    def _walk(self, raw: list[bytes], hits: list[int], data: bytes, mixed: bool) -> None:
        """Look at the telling lines, and at those in between while a traceback or a look for work is open."""
        at, next_hit, offset, counted = 0, 0, 0, 0
        while at < len(raw):
            while next_hit < len(hits) and hits[next_hit] < at:
                next_hit += 1
            open_ = bool(self._stacks) or self._looks > 0
            if not open_:
                if next_hit >= len(hits):
                    return
                at = hits[next_hit]
            if raw[at]:
                if mixed:  # lines of people end with \n only
                    offset += sum(len(raw[i]) + 1 for i in range(counted, at))
                    counted = at
                    number = data.count(b"\n", 0, offset)
                else:
                    number = at
                telling = next_hit < len(hits) and hits[next_hit] == at
                self._line(clean(raw[at]), self.seen.lines + number + 1, telling)
            at += 1

    # --- lines --------------------------------------------------------------------------------------------------------

    def _line(self, line: Line, number: int, telling: bool) -> None:
        if self._looks > 0:
            self._looks -= 1
            if AT_WORK.search(line.text):
                self._work(line.rank)
        if self._at_root and (found := ROOT_RANK.match(line.text)):
            self.seen.root_rank, self._at_root = int(found[1]), False
        text = line.text.lstrip(" |+")
        if self._headless is not None and self._headless.line.rank == line.rank and self._below(line, number):
            return
        if TRACEBACK in text:
            self._opened(line, number)
        elif line.rank in self._stacks and self._in_stack(line, text, number):
            return
        elif telling:
            self._telling_line(line, text, number)

    def _opened(self, line: Line, number: int) -> None:
        rank = line.rank
        chained = self._chained.pop(rank, None) or self._stacks.get(rank)
        stack = _Stack(cause=chained.cause, context=chained.context) if chained is not None else _Stack()
        if chained is not None and chained.shrugged_at is not None and number - chained.shrugged_at <= BELOW:
            stack.shrugged_at = chained.shrugged_at
        stack.quoted = line.text.startswith(("  ", "\t")) and line.text.lstrip().startswith(TRACEBACK)
        self._stacks[rank] = stack

    def _in_stack(self, line: Line, text: str, number: int) -> bool:
        """Whether the line belongs to the traceback of its rank; its last line is a sighting."""
        stack = self._stacks[line.rank]
        stack.lines += 1
        if stack.lines > FRAMES_MAX:
            del self._stacks[line.rank]
            return False
        if not text or (line.text[:1].isspace() and not RAISED.match(text)):
            return True
        known = self._table.match(text)
        if AT_WORK.search(text) and known is None:
            return True
        if AFTER_FRAMES.match(text) or RAISED.match(text) or (known is not None and line.text[:1].isalpha()):
            del self._stacks[line.rank]
            if stack.shrugged_at is None:
                raised = Sighting(number, replace(line, text=text), known or self._table.generic, 0, raised=True)
                self._raised(replace(raised, quoted=stack.quoted), stack)
            return True
        return False

    def _raised(self, sighting: Sighting, stack: _Stack) -> None:
        """An exception; of a chain, what Python raised at the end, unless only what it came from explains."""
        previous = next((s for s in reversed(self.seen.sightings) if s.line.rank == sighting.line.rank), None)
        new, generic = sighting.signature, self._table.generic
        if previous is not None and (stack.cause or stack.context) and not new.wrapper:
            old = previous.signature
            explains = old is not generic and not old.wrapper
            says_little = new is generic or (new.vague and new.kind is old.kind)
            if says_little and explains and (stack.cause or not old.reaction.relaunch):
                return
            self.seen.sightings.remove(previous)
        self._add(sighting)

    def _below(self, line: Line, number: int) -> bool:
        """Whether the line is the message of the exception above, which is then known by it."""
        above = self._headless
        assert above is not None
        text = line.text.strip()
        if number - above.number > CONTINUES or TRACEBACK in text or above not in self.seen.sightings:
            self._headless = None
        elif any(letter.isalpha() for letter in text):
            self._headless = None
            whole = replace(above.line, text=f"{above.text} {text}")
            signature = above.signature if above.signature is not self._table.generic else self._table.match(whole.text)
            known = replace(above, line=whole, signature=signature or self._table.generic)
            self.seen.sightings[self.seen.sightings.index(above)] = known
            return True
        return False

    def _telling_line(self, line: Line, text: str, number: int) -> None:
        if text.startswith(CAUSE):
            self._chained[line.rank] = _Stack(cause=True)
            return
        if text.startswith(CONTEXT):
            self._chained[line.rank] = _Stack(context=True)
            return
        if text.startswith(ROOT_CAUSE):
            self._at_root = True
            self._looks = max(self._looks, LAST_LINES)
            return
        if text.startswith(SHRUGGED):
            self._chained[line.rank] = _Stack(shrugged_at=number)
            return
        for notice in self._table.notices:
            if notice.id not in self.seen.notices and notice.pattern.search(text):
                self.seen.notices[notice.id] = (notice, number, text.strip())
        known = self._table.match(text)
        if self._table.look_alike.search(text) and not (known is not None and known.warns):
            return
        if known is not None:
            self._add(Sighting(number, line, known, 0, raised=RAISED.match(text) is not None))
        elif RAISED.match(text):
            self._add(Sighting(number, line, self._table.generic, 0, raised=True))
        elif SHOUTED.search(text):
            self._add(Sighting(number, line, self._table.generic, 0, shout=True))

    def _add(self, sighting: Sighting) -> None:
        kept = self.seen.sightings
        kept.append(replace(sighting, worked=self.seen.work.get(sighting.line.rank, 0)))
        if len(kept) > SIGHTINGS_MAX:
            del kept[SIGHTINGS_MAX // 4 : SIGHTINGS_MAX // 2]
        if not sighting.shout and not sighting.signature.wrapper:
            self._looks = WORK_LOOKS
            self._headless = kept[-1] if HEADLESS.match(sighting.text) else None

    def _work(self, rank: int | None) -> None:
        work = self.seen.work
        work[None] = work.get(None, 0) + 1
        if rank is not None:
            work[rank] = work.get(rank, 0) + 1
        newest = next((s for s in reversed(self.seen.sightings) if not s.shout), None)
        if newest is not None and self.seen.worked_after(newest) >= 2 * SURVIVED:
            self._looks = 0
