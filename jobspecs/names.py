"""Names: what a job may be called, and what a provider may call it.

Rules: a mapped name depends on nothing but the name and the provider's rule, so it is the same after a restart; two
names never map to one, because whatever looks mapped is itself mapped.
"""

from __future__ import annotations

import hashlib
import re

from jobspecs.problems import Refusal, shown

MAX_NAME = 40
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
# Long enough that two of a million names share a suffix with a chance below one in two million.
_DIGEST_DIGITS = 10
_MAPPED = re.compile(rf".*-[0-9a-f]{{{_DIGEST_DIGITS}}}")


def check_name(text: str) -> str:
    """A job's name: 1 to 40 ASCII letters, digits, `.`, `_`, `-`, the first a letter or digit. Raises Refusal."""
    if len(text) > MAX_NAME:
        raise Refusal(f"{shown(text)} has {len(text)} characters", f"at most {MAX_NAME}")
    if not _NAME.fullmatch(text):
        raise Refusal(f"{shown(text)} is not a name", "use letters, digits, ., _ and -, a letter or digit first")
    return text


def cloud_name(name: str, *, max_len: int = MAX_NAME, pattern: str = r"[a-z][a-z0-9-]*") -> str:
    """`name` as a provider with this rule accepts it: unchanged where possible, else cleaned and with a digest.

    `pattern` must accept lower-case letters, digits and `-` after a letter; `max_len` must be at least 13.
    """
    if len(name) <= max_len and re.fullmatch(pattern, name, re.ASCII) and not _MAPPED.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_DIGITS]
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not stem[:1].isalpha():
        stem = f"j-{stem}".strip("-")
    return f"{stem[: max_len - _DIGEST_DIGITS - 1].rstrip('-')}-{digest}"
