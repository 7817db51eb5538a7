"""Refuse what no commit may contain: registry hosts, one machine's paths, secrets, big files.

Runs over the files that git tracks, as they are on disk. Prints one line a finding (file:line: what, why) and
exits 1 when there is any. The patterns are put together from parts so that this file passes its own check.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 1_000_000  # a larger file makes every clone slower for ever; recordings and data are generated


@dataclass(frozen=True)
class Rule:
    """One forbidden pattern; `allowed_in` are path prefixes where a person may well write it."""

    pattern: re.Pattern[str]
    why: str
    allowed_in: tuple[str, ...] = ()


def _any_of(*parts: str) -> str:
    return "|".join(parts)


RULES = (
    Rule(
        re.compile(
            _any_of(
                r"files\.python" + r"hosted\.org",
                r"\bpy" + r"pi\.org",
                r"registry\." + r"npmjs",
                r"registry\." + r"yarnpkg",
                r"\b(?:deb|security)\." + r"debian\.org",
                r"\b(?:archive|security|ports)\." + r"ubuntu\.com",
                r"\bcrates" + r"\.io\b",
                r"proxy\." + r"golang\.org",
                r"conda\." + r"anaconda\.org",
            )
        ),
        "names a package registry's host; people use mirrors, so leave the index to their own settings",
    ),
    Rule(
        re.compile(r"(?<![\w.~$}*/-])/(?:wo" + r"rk|farm|opt/pyp" + r"i|opt/whe" + r"els)/"),
        "an absolute path of one machine",
    ),
    Rule(
        re.compile(r"(?<![\w.~$}/-])/(?:home|Users)/(?!(?:user|you|me|gpu|USER|alice|bob|\$|\{|<|%))\w+"),
        "a home folder of one person; write ~ or an invented user",
        allowed_in=("examples/",),
    ),
    Rule(
        re.compile(
            _any_of(
                r"-----BEGIN (?:[A-Z]+ )?PRIVATE" + r" KEY-----\s*\n?[A-Za-z0-9+/=]{40}",
                r"\bAKI" + r"A(?!IOSFODNN7EXAMPLE)[0-9A-Z]{16}\b",
                r"\bghp" + r"_[A-Za-z0-9]{36}\b",
                r"\bhf" + r"_[A-Za-z]{34}\b",
                r"\bsk" + r"-(?:proj-|ant-)?[A-Za-z0-9]{32,}\b",
                r"\bxox" + r"[abprs]-[0-9]{8,}-",
            )
        ),
        "looks like a real secret; if it is a test's stand-in, build it from parts",
    ),
)


def tracked_files(root: Path) -> list[Path]:
    """Paths relative to root; a file deleted but not yet committed is left out."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True).stdout
    paths = [Path(name.decode()) for name in listed.split(b"\0") if name]
    return [path for path in paths if (root / path).is_file() and not (root / path).is_symlink()]


def findings(path: Path, data: bytes) -> Iterator[str]:
    """Lines to print for one file; `path` is relative to the root, `data` its content."""
    if len(data) > MAX_BYTES:
        yield f"{path}: {len(data)} bytes; at most {MAX_BYTES} are kept in git"
    if b"\0" in data:
        return
    text = data.decode("utf-8", errors="replace")
    for rule in RULES:
        if path.as_posix().startswith(rule.allowed_in):
            continue
        for match in rule.pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: {match.group(0)[:40]!r}: {rule.why}"


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    found = [line for path in tracked_files(root) for line in findings(path, (root / path).read_bytes())]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
