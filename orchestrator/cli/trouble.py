"""What a failure looks like to the user: known errors in their own words, a bug as one line and a crash report.

Rules: a crash report holds the frames and the error's type; its message only when it cannot hold a secret. It lies
in the state folder, mode 0600, and never holds the command's arguments or local variables.
"""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli import exits
from orchestrator.cli.exits import CliError

if TYPE_CHECKING:
    from jobspecs.problems import SpecErrors

_KEPT_REPORTS = 20  # enough to see a pattern; they are never sent anywhere


def explain(error: Exception, verb: str) -> tuple[list[str], int]:
    """The lines for stderr and the exit code of an exception that no verb handled."""
    from jobspecs.problems import SpecErrors

    if isinstance(error, SpecErrors):
        return spec_lines(error), exits.USAGE
    known = _known(error)
    if known is not None:
        return known.lines(), known.code
    return _crash(error, verb), exits.PROVIDER


def spec_lines(errors: SpecErrors) -> list[str]:
    """Every problem of a spec, one a line, and how many there are."""
    problems = errors.problems
    count = f"{len(problems)} problem" + ("s" if len(problems) != 1 else "")
    return [*(str(problem) for problem in problems), f"gpujob: {count}; nothing was done"]


def _known(error: Exception) -> CliError | None:
    """The errors of other modules that are not bugs, as the user reads them."""
    from jobspecs.problems import Refusal
    from providers.errors import AuthFailed, NoCapacity, ProviderError

    if isinstance(error, CliError):
        return error
    if isinstance(error, ProviderError):
        code = exits.NO_CAPACITY if isinstance(error, NoCapacity) else exits.PROVIDER
        step = f"gpujob doctor, then check the key of {error.provider}" if isinstance(error, AuthFailed) else ""
        return CliError(str(error), where=error.provider, why=error.evidence, next=step, code=code)
    if isinstance(error, Refusal):
        return CliError(error.reason, next=error.hint)
    # Errors of ours that carry their own explanation (store, config, secrets, ssh ...) say so by this attribute.
    if type(error).__module__.startswith(("orchestrator.", "providers.", "jobspecs.")):
        own = getattr(error, "exit_code", None)
        return CliError(
            str(error),
            where=str(getattr(error, "where", "") or ""),
            why=str(getattr(error, "why", "") or ""),
            next=str(getattr(error, "next_step", "") or getattr(error, "hint", "") or ""),
            code=own if isinstance(own, int) else exits.USAGE,
        )
    if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)):
        return CliError(error.strerror or str(error), where=str(error.filename or ""))
    if isinstance(error, OSError):
        where = str(error.filename or "")
        return CliError(error.strerror or str(error), where=where, code=exits.PROVIDER, next="gpujob doctor")
    return None


def _crash(error: Exception, verb: str) -> list[str]:
    name = type(error).__name__
    lines = [f"gpujob: a bug in gpujob stopped `{verb or 'gpujob'}`: {name}"]
    try:
        lines.append(f"  report: {_write_report(error, verb)} (no secrets, no arguments)")
    except OSError as failed:
        lines.append(f"  no report could be written: {failed.strerror}")
    lines.append("  next: running jobs go on; `gpujob ps` shows them, `gpujob doctor` checks this computer")
    return lines


def _write_report(error: Exception, verb: str) -> Path:
    from orchestrator.home import Home

    folder = Home.from_env().state / "crashes"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in sorted(folder.glob("*.txt"))[:-_KEPT_REPORTS]:
        old.unlink(missing_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = folder / f"{stamp}-{os.getpid()}.txt"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(report_text(error, verb))
    return path


def report_text(error: BaseException, verb: str) -> str:
    """The body of a crash report: versions, verb, and the chain of errors with their frames."""
    lines = [f"verb: {verb}", f"python: {sys.version.split()[0]}", f"system: {platform.platform()}", ""]
    seen: BaseException | None = error
    while seen is not None:
        lines.append(f"{type(seen).__module__}.{type(seen).__name__}: {_message(seen)}")
        frames = traceback.extract_tb(seen.__traceback__)
        lines += [f"  {frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        seen = seen.__cause__ or seen.__context__
    return "\n".join(lines) + "\n"


def _message(error: BaseException) -> str:
    """The message, unless it could hold a value that somebody typed: only bugs with plain words keep theirs."""
    from jobspecs.problems import looks_like_secret_value

    text = " ".join(str(error).split())[:500]
    plain = isinstance(error, (AttributeError, ImportError, NameError, TypeError, NotImplementedError))
    return text if plain and not looks_like_secret_value(text) else "(message left out)"
