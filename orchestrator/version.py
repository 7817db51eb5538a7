"""The installed version, and which of two is newer: a newer command line restarts an older controller."""

from __future__ import annotations

import functools
import re

UNKNOWN = "0+unknown"  # a checkout that was never installed


@functools.cache
def installed() -> str:
    """The version of the distribution; searching package metadata is slow, so only when asked."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gpujob")
    except PackageNotFoundError:
        return UNKNOWN


def older(one: str, other: str) -> bool:
    """Whether `one` is an older version than `other`, by their numbers; a pre-release is older than its release."""
    return _key(one) < _key(other)


def _key(version: str) -> tuple[tuple[int, ...], bool, str]:
    match = re.match(r"(\d+(?:\.\d+)*)(.*)", version.partition("+")[0])
    if match is None:
        return ((0,), False, version)
    numbers = tuple(int(part) for part in match[1].split("."))
    return (numbers, match[2] == "", match[2])
