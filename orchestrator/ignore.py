"""What of a folder is sent: git's ignore rules, ours on top, and what never leaves this computer.

For one path, the first that has an opinion decides:
1. `.gpujobignore` files, the deepest folder first; `!name` sends even what 2 would keep back;
2. the never-sent names (keys, environments, version control, caches, results);
3. `.gitignore` files, the deepest first, up to the top of the repository, then .git/info/exclude; files that git
   tracks are sent whatever those say, as for `git check-ignore`.
A folder that is left out is not looked into, so nothing below it can be asked back: ask for the folder itself.
The user's global excludes are not read: another person's apply must send the same.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.wildmatch import Pattern, patterns_of, verdict

OURS = ".gpujobignore"
RESULTS = "gpujob-results"
# Names as in interface and documentation; the caches would give the same code another hash after each test run.
NEVER = (
    ".git", ".env*", "*.pem", "id_*", ".ssh/", ".aws/", f"{RESULTS}/",
    "__pycache__/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".ipynb_checkpoints/", ".DS_Store",
)  # fmt: skip
ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")  # one of these inside: a Python environment
GIT_TIMEOUT_S = 30


NEVER_PATTERNS = patterns_of("\n".join(NEVER).encode())


@dataclass
class Rules:
    """The rules for one workdir; `enter` reads those of a folder before its entries are judged."""

    root: Path
    excluded: frozenset[Path]  # absolute folders that hold results
    tracked: frozenset[str] = frozenset()  # paths that git tracks, and the folders above them
    _above: tuple[tuple[str, tuple[Pattern, ...]], ...] = ()  # (workdir's path below it, patterns)
    _git: dict[str, tuple[Pattern, ...]] = field(default_factory=dict)
    _ours: dict[str, tuple[Pattern, ...]] = field(default_factory=dict)

    def enter(self, folder: str) -> None:
        """Read the ignore files of `folder` (relative to the root, "" for itself)."""
        for name, kept in ((".gitignore", self._git), (OURS, self._ours)):
            patterns = _read(self.root / folder / name)
            if patterns:
                kept[folder] = patterns

    def reason(self, path: str, is_folder: bool) -> str:
        """Why `path` is left out, or "" when it is sent."""
        if self.root / path in self.excluded:
            return "results"
        asked = _nested(self._ours, path, is_folder)
        if asked is not None:
            return OURS if asked else ""
        if verdict(NEVER_PATTERNS, os.fsencode(path), is_folder):
            return f"never sent; `!{Path(path).name}` in {OURS} asks for it"
        if is_folder and any((self.root / path / mark).exists() for mark in ENVIRONMENT_MARKS):
            return f"a Python environment; `!{Path(path).name}` in {OURS} asks for it"
        if path in self.tracked:
            return ""
        ignored = _nested(self._git, path, is_folder)
        for prefix, patterns in self._above:
            if ignored is not None:
                break
            ignored = verdict(patterns, os.fsencode(prefix + path), is_folder)
        return ".gitignore" if ignored else ""


def _nested(by_folder: Mapping[str, tuple[Pattern, ...]], path: str, is_folder: bool) -> bool | None:
    """The verdict of the deepest folder above `path` that has one."""
    folder = os.path.dirname(path)
    while True:
        if folder in by_folder:
            below = path[len(folder) + 1 :] if folder else path
            found = verdict(by_folder[folder], os.fsencode(below), is_folder)
            if found is not None:
                return found
        if not folder:
            return None
        folder = os.path.dirname(folder)


def _read(path: Path) -> tuple[Pattern, ...]:
    try:
        if path.is_symlink():
            return ()  # git does not follow it either
        return patterns_of(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ()


def git(workdir: Path, *words: str) -> bytes | None:
    """What git prints in `workdir`, or None where it is not installed, fails, or there is no repository."""
    command = ["git", "-C", str(workdir), "-c", "core.fsmonitor=false", *words]
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        ran = subprocess.run(command, capture_output=True, timeout=GIT_TIMEOUT_S, env=env, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return ran.stdout if ran.returncode == 0 else None


def rules_for(workdir: Path, exclude: Iterable[Path] = ()) -> Rules:
    """The rules of `workdir` (absolute, resolved), with what git knows about it."""
    excluded = frozenset(Path(os.path.abspath(path)) for path in exclude)
    shown = git(workdir, "rev-parse", "--show-toplevel", "--git-path", "info/exclude")
    if shown is None:
        return Rules(workdir, excluded)
    top_line, exclude_line = os.fsdecode(shown).rstrip("\n").split("\n")
    top = Path(top_line)
    tracked: set[str] = set()
    for name in os.fsdecode(git(workdir, "ls-files", "-z") or b"").split("\0"):
        while name and name not in tracked:
            tracked.add(name)
            name = os.path.dirname(name)
    above = []
    folder = workdir
    while folder != top and top in folder.parents:
        folder = folder.parent
        above.append((f"{workdir.relative_to(folder).as_posix()}/", _read(folder / ".gitignore")))
    prefix = f"{workdir.relative_to(top).as_posix()}/" if workdir != top else ""
    above.append((prefix, _read(workdir / exclude_line)))
    return Rules(workdir, excluded, frozenset(tracked), tuple(above))
