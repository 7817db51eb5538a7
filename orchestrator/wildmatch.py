"""git's ignore patterns, byte for byte: what one line of an ignore file says about one entry of a folder.

Role: a port of the rules that git itself follows (its parsing of a line, `**`, classes, anchoring), since two libraries
that come near differ on escapes, byte order marks and `**` beside other letters. tests/unit/test_ignore_git.py holds it
to `git check-ignore` on generated trees.

Rules: names are bytes, as for git, so `?` is one byte. Pure: no file is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

GLOB = b"*?[\\"  # letters that end the literal beginning of a pattern
BOM = b"\xef\xbb\xbf"
_CLASSES: dict[bytes, Callable[[bytes], bool]] = {
    b"alnum": bytes.isalnum, b"alpha": bytes.isalpha, b"digit": bytes.isdigit, b"lower": bytes.islower,
    b"upper": bytes.isupper, b"space": bytes.isspace, b"blank": lambda c: c in b" \t",
    b"cntrl": lambda c: c < b" " or c == b"\x7f", b"graph": lambda c: b" " < c < b"\x7f",
    b"print": lambda c: b" " <= c < b"\x7f", b"xdigit": lambda c: c in b"0123456789abcdefABCDEF",
    b"punct": lambda c: b" " < c < b"\x7f" and not c.isalnum(),
}  # fmt: skip


@dataclass(frozen=True)
class Pattern:
    """One line. `negated`: asks back; `folders`: about folders only; `anywhere`: about a name at any depth."""

    text: bytes
    negated: bool
    folders: bool
    anywhere: bool
    literal: int  # bytes before the first special letter

    def matches(self, path: bytes, is_folder: bool) -> bool:
        """Whether the line is about `path`, relative to the folder of its ignore file."""
        if self.folders and not is_folder:
            return False
        if self.anywhere:
            name = path[path.rfind(b"/") + 1 :]
            if self.literal == len(self.text):
                return name == self.text
            return _wild(self.text, name, False)
        head, rest = self.text[: self.literal], self.text[self.literal :]
        return path.startswith(head) and _wild(rest, path[len(head) :], True)


def patterns_of(text: bytes) -> tuple[Pattern, ...]:
    """The lines of an ignore file that say something, the last one first, as the last match wins."""
    found = []
    for line in text.removeprefix(BOM).split(b"\n"):
        kept = _trimmed(line.removesuffix(b"\r"))
        if kept and not kept.startswith(b"#"):
            found.append(_pattern(kept))
    return tuple(reversed(found))


def verdict(patterns: Iterable[Pattern], path: bytes, is_folder: bool) -> bool | None:
    """True: left out, False: asked for, None: no opinion."""
    for pattern in patterns:
        if pattern.matches(path, is_folder):
            return not pattern.negated
    return None


def _trimmed(line: bytes) -> bytes:
    """Without spaces at the end, unless a backslash keeps them."""
    end = at = 0
    while at < len(line):
        if line[at : at + 1] == b"\\":
            if at + 1 == len(line):
                return line
            at += 1
        elif line[at : at + 1] == b" ":
            at += 1
            continue
        at += 1
        end = at
    return line[:end]


def _pattern(line: bytes) -> Pattern:
    negated, text = line.startswith(b"!"), line.removeprefix(b"!")
    folders, text = text.endswith(b"/"), text.removesuffix(b"/")
    anywhere = b"/" not in text
    text = text.removeprefix(b"/")
    literal = next((at for at, letter in enumerate(text) if letter in GLOB), len(text))
    return Pattern(text, negated, folders, anywhere, literal)


@lru_cache(maxsize=4096)
def _wild(pattern: bytes, text: bytes, pathname: bool) -> bool:
    """Whether the whole `text` matches. `pathname`: one `*`, `?` or class never stands for a slash, `**` may."""
    at = 0
    for place in range(len(text) + 1):
        if at == len(pattern):
            return place == len(text)
        letter = pattern[at : at + 1]
        if letter == b"*":
            return _star(pattern, at, text[place:], pathname)
        here = text[place : place + 1]
        if not here:
            return False
        if letter == b"?":
            matched, at = not (pathname and here == b"/"), at + 1
        elif letter == b"[":
            matched, at = _class(pattern, at, here)
            matched = matched and not (pathname and here == b"/")
        else:
            at += letter == b"\\"
            matched, at = pattern[at : at + 1] == here, at + 1
        if not matched:
            return False
    return False


def _star(pattern: bytes, at: int, text: bytes, pathname: bool) -> bool:
    """The match of `pattern` from the star at `at` on."""
    end = at
    while pattern[end : end + 1] == b"*":
        end += 1
    rest = pattern[end:]
    slashes = not pathname
    if pathname and end - at > 1 and (at == 0 or pattern[at - 1 : at] == b"/"):
        slashes = not rest or rest.startswith((b"/", b"\\/"))
        if rest.startswith(b"/") and _wild(rest[1:], text, pathname):
            return True  # `**/` may stand for nothing
    if not rest:
        return slashes or b"/" not in text
    for place in range(len(text) + 1):
        if _wild(rest, text[place:], pathname):
            return True
        if not slashes and text[place : place + 1] == b"/":
            return False
    return False


def _class(pattern: bytes, at: int, here: bytes) -> tuple[bool, int]:
    """Whether `here` is in the class at `at`, and where it ends; one that does not end matches nothing."""
    at += 1
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    matched, before, first = False, b"", True
    while first or pattern[at : at + 1] != b"]":
        first = False
        letter = pattern[at : at + 1]
        if letter == b"-" and before and pattern[at + 1 : at + 2] not in (b"", b"]"):
            at += 1
            at += pattern[at : at + 1] == b"\\"
            matched, before = matched or before <= here <= pattern[at : at + 1], b""
        elif letter == b"[" and pattern[at + 1 : at + 2] == b":" and (end := pattern.find(b"]", at + 2)) > 0:
            known = _CLASSES.get(pattern[at + 2 : end - 1]) if pattern[end - 1 : end] == b":" else None
            if known is None:
                return False, len(pattern)
            matched, before, at = matched or bool(known(here)), b"", end
        else:
            at += letter == b"\\"
            before = pattern[at : at + 1]
            matched = matched or before == here
        if at >= len(pattern):
            return False, len(pattern)
        at += 1
        if at >= len(pattern):
            return False, len(pattern)
    return matched != negated, at + 1
