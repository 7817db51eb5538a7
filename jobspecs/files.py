"""Checks of a spec against the folder that it stands in.

Rules: reads, never writes, and never leaves this computer. What only a machine can know (paths below its own root)
is not judged here. Problems have a key and no place; `Located.place` adds it.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from jobspecs.problems import Problem
from jobspecs.rules import is_remote
from jobspecs.schema import JobSpec

# Programs that read the script named next, so that its line ends matter.
_INTERPRETERS = ("bash", "sh", "source", ".", "dash", "zsh")
_RUNNERS = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun|bash|sh|deepspeed)", re.ASCII)
_SCRIPT = re.compile(r"[\w./-]+\.(sh|bash|py|pl|rb)", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.ASCII)
# Enough to see the first line ends of a script.
_HEAD_BYTES = 65_536


def check_files(spec: JobSpec, base_dir: Path) -> list[Problem]:
    """Problems with local files that the spec names; relative paths start at `base_dir`, the spec's folder."""
    problems = _sources(spec, base_dir)
    folder: Path | None = None
    if isinstance(spec.workdir, str) and not is_remote(spec.workdir):
        folder = base_dir / Path(spec.workdir).expanduser()
        if not folder.exists():
            problems.append(_problem("workdir", f"there is no folder {spec.workdir}", "it starts beside the spec"))
            return problems
        if not folder.is_dir():
            problems.append(_problem("workdir", f"{spec.workdir} is a file, not a folder"))
            return problems
    if spec.workdir is not None and folder is None:
        return problems  # a repository: `check_commands` looks once it is checked out
    return problems + check_commands(spec, folder)


def check_commands(spec: JobSpec, folder: Path | None) -> list[Problem]:
    """Problems with the files that the first words of setup, smoke and run name; `folder` is the workdir, if any."""
    problems: list[Problem] = []
    for key in ("setup", "smoke", "run"):
        command = getattr(spec, key)
        if command is not None:
            problems += _first_words(key, command, folder, made_by_setup=key != "setup" and spec.setup is not None)
    return problems


def missing_scripts(spec: JobSpec, base_dir: Path) -> list[Problem]:
    """Scripts that smoke and run hand to an interpreter and that workdir does not bring: advice, since a program may
    make them on the machine.
    """
    folder: Path | None = None
    if spec.workdir is not None:
        if not isinstance(spec.workdir, str) or is_remote(spec.workdir):
            return []
        folder = base_dir / Path(spec.workdir).expanduser()
    found = []
    for key in ("smoke", "run"):
        words = _words(getattr(spec, key) or "")
        script = next((word for word in words[1:] if _SCRIPT.fullmatch(word)), "")
        if not script or script.startswith("/") or not _RUNNERS.fullmatch(words[0]):
            continue
        if folder is None:
            found.append(_problem(key, f"runs {script}, and no workdir brings it", "add `workdir: .`"))
        elif not (folder / script).exists() and not (
            spec.setup and not (folder / Path(script).parts[0]).exists() and len(Path(script).parts) > 1
        ):
            found.append(_problem(key, f"runs {script}, which is not in workdir", f"write {script}, or name your own"))
    return found


def _problem(key: str, reason: str, hint: str = "") -> Problem:
    return Problem("", 0, 0, key, reason, hint)


def _sources(spec: JobSpec, base_dir: Path) -> list[Problem]:
    problems = []
    for position, entry in enumerate(spec.data):
        source = entry.source
        if not is_remote(source) and not os.path.lexists(base_dir / Path(source).expanduser()):
            key = f"data[{position}].from"
            problems.append(_problem(key, f"there is no {source}", "it starts beside the spec"))
    return problems


def _first_words(key: str, command: str, folder: Path | None, *, made_by_setup: bool) -> list[Problem]:
    """Problems with the file that the first line of a shell text runs."""
    words = _words(command)
    if not words:
        return []
    first = words[0]
    if first in _INTERPRETERS:
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        return _line_ends(key, folder / script) if folder and _SCRIPT.fullmatch(script) else []
    if first.startswith(("/", "~", "$")) or not ("/" in first or _SCRIPT.fullmatch(first)):
        return []
    if folder is None:
        return [_problem(key, f"starts with the file {first}, and no workdir brings it", "add `workdir: .`")]
    path = folder / first
    parts = Path(first).parts
    if made_by_setup and len(parts) > 1 and not (folder / parts[0]).exists():
        return []  # a folder such as .venv that setup makes
    if not path.exists():
        return [_problem(key, f"there is no file {first} in workdir", "its first word looks like a file")]
    if path.is_dir():
        return [_problem(key, f"{first} is a folder, not a program")]
    if "/" not in first:
        return [_problem(key, f"the shell does not look for {first} in workdir", f"write ./{first} or bash {first}")]
    if not os.access(path, os.X_OK):
        return [_problem(key, f"{first} is not executable", f"chmod +x {first}, or write bash {first}")]
    return _line_ends(key, path)


def _words(command: str) -> list[str]:
    """The words of the first command, without variables set before it."""
    lines = [line for line in command.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    try:
        words = shlex.split(lines[0].strip(), comments=True) if lines else []
    except ValueError:
        words = lines[0].split()  # a quote that goes on in the next line
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    return words


def _line_ends(key: str, script: Path) -> list[Problem]:
    try:
        with script.open("rb") as source:
            head = source.read(_HEAD_BYTES)
    except OSError:
        return []  # a missing script of an interpreter may be made by an earlier step
    name = script.name
    if b"\r\n" in head:
        hint = f"sed -i 's/\\r$//' {name}, or set the editor to LF"
        return [_problem(key, f"{name} has CRLF line ends, and bash stops at ^M", hint)]
    if head.startswith(b"\xef\xbb\xbf"):
        return [_problem(key, f"{name} starts with a byte order mark, which hides its #! line", "save it without BOM")]
    return []
