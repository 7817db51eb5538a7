"""Secrets on their way from a verb to the controller: a private folder, named in the request, never in it.

Rules: values are looked up before anything is asked. The controller renames the folder when it makes a job of the
wish; in every other case the values are removed, unless the request is still open and may yet be granted.
"""

from __future__ import annotations

import secrets as randomness
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.cli import exits
from orchestrator.cli.exits import CliError

if TYPE_CHECKING:
    from orchestrator.home import Home


def values_of(home: Home, names: Iterable[str], where: str) -> Mapping[str, str]:
    """Values by name. Raises CliError for those found nowhere."""
    from orchestrator.secrets import resolve

    found = resolve(names, home)
    if found.missing:
        raise CliError(
            f"no value for {', '.join(found.missing)}; nothing was done",
            where=where,
            next=f"gpujob secret set {found.missing[0]}, or export it",
        )
    return found.values


@contextmanager
def handed_over(home: Home, values: Mapping[str, str]) -> Iterator[str]:
    """Keep the values in a spool while a request is made; yields the spool's name, empty without values."""
    if not values:
        yield ""
        return
    from orchestrator import secrets

    spool = f"spool-{randomness.token_hex(8)}"
    secrets.keep(home, spool, values)
    try:
        yield spool
    except CliError as refused:
        if refused.code not in (exits.STILL_RUNNING, exits.PROVIDER):  # in these the request may still be answered
            secrets.forget(home, spool)
        raise
    secrets.forget(home, spool)
