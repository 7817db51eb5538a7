"""The table of failure signatures, read once from `signatures.yaml` and compiled when the first log is judged.

Rules: no message is known to code, only to the table. Reading it checks it: a class, advice or place that does not
exist is an error at once, not a diagnosis that nobody can read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, get_args

Where = Literal["no", "same", "other", "any"]

#: Every line that may matter has one of these or a text of a signature in it; the rest is never looked at.
ALWAYS = (
    "Traceback",
    "above exception",
    "Logging error",
    "Error",
    "ERROR",
    "Exception",
    "CRITICAL",
    "FATAL",
    "atal: ",
    "atal error",
    "Root Cause",
    "rror: ",
)
#: Left out of lines and texts before they are compared: the same message with other numbers is one shape.
DIGITS = b"0123456789."


@dataclass(frozen=True)
class Reaction:
    """What may be tried again without asking anybody: where, how often (None: as long as it helps), after what."""

    where: Where = "no"
    times: int | None = 0
    first: str = ""

    @property
    def relaunch(self) -> bool:
        """Whether anything is tried again at all."""
        return self.where != "no"


@dataclass(frozen=True)
class Kind:
    """One class of failures: its words, its reaction and where its advice is."""

    name: str
    says: str
    reaction: Reaction
    advice: str
    chatter: bool = False
    passing: bool = False


@dataclass(frozen=True)
class Signature:
    """One entry of the table; see the head of `signatures.yaml` for what each word means."""

    id: str
    kind: Kind
    find: tuple[str, ...]
    pattern: re.Pattern[str] | None
    reaction: Reaction
    advice: str
    says: str = ""
    follows: bool = False
    vague: bool = False
    warns: bool = False
    wrapper: bool = False
    chatter: bool = False
    exact: bool = False
    sources: tuple[str, ...] = ()

    def matches(self, text: str) -> bool:
        """Whether this is the message of the cleaned line `text`."""
        if not any(one in text for one in self.find):
            return False
        return self.pattern is None or self.pattern.search(text) is not None


@dataclass(frozen=True)
class Notice:
    """No failure, and worth saying."""

    id: str
    find: tuple[str, ...]
    pattern: re.Pattern[str]
    says: str
    advice: str


@dataclass(frozen=True)
class Table:
    """Everything of `signatures.yaml`. `sieve` finds, in lines without digits and dots, those worth a closer look."""

    kinds: Mapping[str, Kind]
    advice: Mapping[str, tuple[str, ...]]
    signatures: tuple[Signature, ...]
    exit_codes: Mapping[int, Signature]
    look_alike: re.Pattern[str]
    notices: tuple[Notice, ...]
    sieve: tuple[bytes, ...]
    generic: Signature  # an exception that no signature knows
    own_error: re.Pattern[str]

    def match(self, text: str) -> Signature | None:
        """The first signature of a cleaned line; a program's own mistake is none that is repeated."""
        found = next((one for one in self.signatures if one.matches(text)), None)
        if found and found.reaction.relaunch and not found.exact and self.own_error.match(text):
            return self.generic
        return found


@functools.cache
def table() -> Table:
    """The table of this installation."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files("orchestrator.diagnosis").joinpath("signatures.yaml").read_text(encoding="utf-8")
    return compiled(yaml.load(text, Loader=loader))


def compiled(document: Mapping[str, Any]) -> Table:
    """A table from its document; ValueError or KeyError name the entry that is wrong."""
    advice = {topic: tuple(lines) for topic, lines in document["advice"].items()}
    kinds = {name: _kind(name, entry, advice) for name, entry in document["classes"].items()}
    signatures = tuple(_signature(entry, kinds, advice) for entry in document["signatures"])
    notices = tuple(_notice(entry, advice) for entry in document["notices"])
    codes = {
        int(code): _signature({"id": f"exit-{code}", "find": [], "vague": True, **entry}, kinds, advice)
        for code, entry in document["exit_codes"].items()
    }
    found = [text for one in signatures for text in one.find] + [text for one in notices for text in one.find]
    return Table(
        kinds=kinds,
        advice=advice,
        signatures=signatures,
        exit_codes=codes,
        look_alike=re.compile("|".join(document["look_alikes"])),
        notices=notices,
        sieve=shapes((*ALWAYS, *found)),
        own_error=re.compile(rf"(?:{'|'.join(document['own_errors'])}): "),
        generic=_signature({"id": "exception", "class": "user-code", "find": []}, kinds, advice),
    )


def shapes(texts: Iterable[str]) -> tuple[bytes, ...]:
    """The texts without digits and dots, and without those that contain another one: they would find nothing new."""
    bare = {text.encode().translate(None, DIGITS) for text in texts}
    if min(map(len, bare), default=3) < 3:
        raise ValueError(
            "a text to find must have three characters that are no digits, or every line would be looked at"
        )
    return tuple(sorted(one for one in bare if not any(other != one and other in one for other in bare)))


def _kind(name: str, entry: Mapping[str, Any], advice: Mapping[str, tuple[str, ...]]) -> Kind:
    topic = entry["advice"]
    if topic not in advice:
        raise ValueError(f"class {name}: there is no advice {topic!r}")
    return Kind(
        name,
        entry["says"],
        _reaction(name, entry, Reaction()),
        topic,
        bool(entry.get("chatter")),
        bool(entry.get("passing")),
    )


def _reaction(name: str, entry: Mapping[str, Any], default: Reaction) -> Reaction:
    if not {"relaunch", "times", "first"} & set(entry):
        return default
    where = entry.get("relaunch", default.where)
    if where not in get_args(Where):
        raise ValueError(f"{name}: relaunch is {where!r}, not one of {', '.join(get_args(Where))}")
    if where == "no":
        return Reaction()
    inherited = default.times if default.relaunch else None
    return Reaction(where, entry.get("times", inherited), entry.get("first", default.first))


def _signature(entry: Mapping[str, Any], kinds: Mapping[str, Kind], advice: Mapping[str, tuple[str, ...]]) -> Signature:
    name = entry["id"]
    if entry["class"] not in kinds:
        raise ValueError(f"signature {name}: there is no class {entry['class']!r}")
    kind = kinds[entry["class"]]
    topic = entry.get("advice", kind.advice)
    if topic not in advice:
        raise ValueError(f"signature {name}: there is no advice {topic!r}")
    known = {"id", "class", "find", "match", "relaunch", "times", "first", "advice", "says", "sources"}
    flags = set(entry) - known
    if flags - {"follows", "vague", "warns", "wrapper", "chatter", "exact"}:
        raise ValueError(f"signature {name}: unknown {', '.join(sorted(flags))}")
    return Signature(
        id=name,
        kind=kind,
        find=tuple(entry["find"]),
        pattern=re.compile(entry["match"]) if "match" in entry else None,
        reaction=_reaction(name, entry, kind.reaction),
        advice=topic,
        says=entry.get("says", ""),
        sources=tuple(entry.get("sources", ())),
        **{"chatter": kind.chatter, **{flag: bool(entry[flag]) for flag in flags}},
    )


def _notice(entry: Mapping[str, Any], advice: Mapping[str, tuple[str, ...]]) -> Notice:
    if entry["advice"] not in advice:
        raise ValueError(f"notice {entry['id']}: there is no advice {entry['advice']!r}")
    return Notice(entry["id"], tuple(entry["find"]), re.compile(entry["match"]), entry["says"], entry["advice"])
