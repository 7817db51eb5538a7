"""Bytes of a file -> its text, or the reason why it is not text.

Rules: UTF-8 and UTF-16 with or without a byte order mark are read, CRLF and CR become LF. Characters that nobody sees
and that would change the meaning are refused at their place.
"""

from __future__ import annotations

import codecs
import re

from jobspecs.problems import Problem, SpecErrors

MAX_BYTES = 256 * 1024  # a spec is written by hand; refusing more keeps the worst case a blink
_UTF16_SHARE = 0.5  # comments may be in another script
_FORBIDDEN = re.compile("[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_INVISIBLE_INDENT = re.compile("^[ \t]*[\xa0\u2000-\u200b\u3000]", re.MULTILINE)


def refuse(file: str, line: int, column: int, reason: str, hint: str = "", key: str = "") -> SpecErrors:
    """One problem as the exception to raise."""
    return SpecErrors([Problem(file, line, column, key, reason, hint)])


def decode(data: bytes | str, file: str) -> str:
    """The text of a file with LF line ends: UTF-8 or UTF-16, with or without a byte order mark."""
    if len(data) > MAX_BYTES:
        raise refuse(file, 1, 1, f"is larger than {MAX_BYTES // 1024} KiB, so it is no spec")
    text = data if isinstance(data, str) else _decode_bytes(data, file)
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    bad = _FORBIDDEN.search(text)
    if bad:
        line, column = _position(text, bad.start())
        what = "a NUL character: a binary file" if bad[0] == "\0" else f"the invisible character U+{ord(bad[0]):04X}"
        raise refuse(file, line, column, f"contains {what}", "delete it, and save the file as UTF-8 text")
    bad = _INVISIBLE_INDENT.search(text)
    if bad and not text[: bad.start()].rstrip().endswith(("|", ">", "|-", ">-")):
        line, column = _position(text, bad.end() - 1)
        reason = f"starts a line with the invisible space U+{ord(bad[0][-1]):04X}"
        raise refuse(file, line, column, reason, "indent with ordinary spaces")
    return text


def _decode_bytes(data: bytes, file: str) -> str:
    encoding = "utf-8"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\0" in data:
        # Without a mark, UTF-16 of mostly ASCII text has a zero in nearly every second byte.
        zeros = [data[start:512:2].count(0) for start in (0, 1)]
        if max(zeros) < _UTF16_SHARE * len(data[:512:2]) or min(zeros):
            line, column = _position(data.decode("latin-1"), data.index(b"\0"))
            raise refuse(file, line, column, "contains a NUL character: a binary file", "name a text file")
        encoding = "utf-16-be" if zeros[0] else "utf-16-le"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding in ("utf-16-be", "utf-16-le"):
            raise refuse(file, 1, 1, "contains a NUL character: a binary file", "name a text file") from None
        before = data[: error.start].decode(encoding, errors="replace")
        line, column = _position(before, len(before))
        hint = "save the file as UTF-8 text"
        raise refuse(file, line, column, f"is not {encoding.upper()} text", hint) from None


def _position(text: str, offset: int) -> tuple[int, int]:
    start = text.rfind("\n", 0, offset) + 1
    return text.count("\n", 0, offset) + 1, offset - start + 1
