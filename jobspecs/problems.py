"""What is wrong with a spec, and where: the only shape in which this package reports to people.

Rules: a problem names the place (file:line:column), the key, the reason and, where there is one, the next step.
Reasons never echo a value that looks like a secret. All problems of a spec are raised together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

# Shapes of credentials that are recognisable without knowing who issued them. A plain 40-digit hash is not among
# them: commits look the same.
_SECRET_VALUE = re.compile(
    r"""\b(
      hf_[A-Za-z0-9]{20,} | sk-[A-Za-z0-9_-]{20,} | gh[opusr]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,}
    | glpat-[A-Za-z0-9_-]{16,} | AKIA[0-9A-Z]{16} | ASIA[0-9A-Z]{16} | rpa_[A-Za-z0-9]{20,}
    | xox[abprs]-[A-Za-z0-9-]{10,} | eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+
    | r8_[A-Za-z0-9]{20,} | AIza[A-Za-z0-9_-]{30,}
    ) | -----BEGIN\ [A-Z ]*PRIVATE\ KEY | ://[^/\s:@]+:[^/\s:@$]{3,}@ """,
    re.VERBOSE,
)

# `TOKEN` counts only as the last word, because MAX_TOKENS, TOKENIZERS_PARALLELISM and TOKEN_LIMIT are settings.
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|APIKEY|API_KEY|ACCESS_KEY|ACCESS_KEY_ID|SECRET_KEY|"
    r"PRIVATE_KEY|CREDENTIALS?)$|(^|_)SECRET_",
    re.IGNORECASE,
)
# Tokens of a vocabulary, not of an account.
_VOCABULARY_TOKEN = re.compile(
    r"(^|_)(PAD|EOS|BOS|UNK|SEP|CLS|MASK|STOP|START|END|SPECIAL|IMAGE)_TOKEN$", re.IGNORECASE
)


def looks_like_secret_value(text: str) -> bool:
    """True when `text` contains something with the shape of a credential."""
    return _SECRET_VALUE.search(text) is not None


def looks_like_secret_name(name: str) -> bool:
    """True when a variable of this name usually holds a credential (HF_TOKEN, WANDB_API_KEY)."""
    return _SECRET_NAME.search(name) is not None and _VOCABULARY_TOKEN.search(name) is None


def shown(value: object, limit: int = 60) -> str:
    """`value` quoted for a message: one line, shortened, and masked when it looks like a credential."""
    text = str(value)
    if looks_like_secret_value(text):
        return "a value that looks like a secret"
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


class Refusal(ValueError):
    """A value that cannot be read as what its key means.

    `reason` says why, `hint` what to write instead. Raised by the parsers of this package; the loader turns it
    into a `Problem` with a place. `key`: the path of the key, where whoever raises it knows it and the loader is done.
    """

    def __init__(self, reason: str, hint: str = "", key: str = "") -> None:
        super().__init__(f"{reason} ({hint})" if hint else reason)
        self.reason = reason
        self.hint = hint
        self.key = key


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. `line` and `column` count from 1; 0 means that no place in a file is known.

    `key` is the path of the key with dots and list positions (`artifacts[0].to`), empty for the whole file.
    """

    file: str
    line: int
    column: int
    key: str
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        """`file:line:column: key: reason (hint)`, leaving out what is unknown; one line, without control characters."""
        place = self.file + (f":{self.line}:{self.column}" if self.line else "")
        said = ": ".join(part for part in (place, self.key, self.reason) if part)
        whole = f"{said} ({self.hint})" if self.hint else said
        # Keys and values come from files of others: they must not move the cursor or start a line of their own.
        return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in whole)

    def at(self, file: str, line: int, column: int) -> Problem:
        """The same finding with a place."""
        return replace(self, file=file, line=line, column=column)


class SpecErrors(Exception):
    """Every problem of a spec at once, in the order of the file; at least one."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(set(problems), key=lambda p: (p.file, p.line, p.column, p.key, p.reason))
        super().__init__("\n".join(str(problem) for problem in self.problems))
