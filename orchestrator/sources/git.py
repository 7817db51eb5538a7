"""`workdir: {git, ref}`: the repository's files at one commit, checked out here and frozen like any folder.

Rules
- A ref is resolved once, at apply; the commit is recorded, and every attempt runs its snapshot. A branch that moves on
  makes another snapshot at the next apply, never between two attempts.
- git runs on this computer with the user's own credentials and asks nothing: no password reaches a machine.
- What was not committed is not sent. In a repository of this computer that is refused with the list of files, unless
  `allow: [dirty]` says that it is meant.
- Submodules are not cloned, and a Git LFS pointer without its content stays one: both are said.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.home import Home

TIMEOUT_S = 1800.0  # the first fetch of a large repository over a slow line
DIRTY_SHOWN = 5
WORDS = 300  # characters of git's last words in an error
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_PASSWORD = re.compile(r"^[a-z][a-z0-9+.-]*://[^/@:]*:[^/@]+@", re.IGNORECASE)


class GitError(Exception):
    """The repository or the ref cannot be had; `next_step` says what helps."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.where, self.next_step = "workdir", next_step


@dataclass(frozen=True)
class Checkout:
    """Files of `commit` in `folder`, gone after the block. `notes`: (path, reason) of what is not in there."""

    folder: Path
    commit: str
    origin: str
    notes: tuple[tuple[str, str], ...]


@contextlib.contextmanager
def checkout(home: Home, git: str, ref: str, base_dir: Path, *, allow_dirty: bool = False) -> Iterator[Checkout]:
    """The files of `ref` of the repository `git` (an address, or a folder beside the spec). Raises GitError."""
    source = address(git, base_dir)
    if ref.startswith("-"):
        raise GitError(f"{ref!r} is no branch, tag or commit", "write its plain name")
    left = uncommitted(source, base_dir)
    if not allow_dirty:
        refuse_uncommitted(left)
    cache = home.repositories / f"{hashlib.sha256(source.encode()).hexdigest()[:24]}.git"
    with _locked(cache):
        commit = _resolved(cache, source, ref)
        folder = Path(tempfile.mkdtemp(prefix=".checkout.", dir=cache.parent))
        try:
            _git(cache, "worktree", "add", "--detach", "--force", str(folder), commit)
            notes = [(f"{path} (not committed)", "`allow: [dirty]`: only the commit is sent") for path in left]
            notes += [
                (f"{path}/", "a submodule, which is not cloned: clone it in setup") for path in _submodules(folder)
            ]
            yield Checkout(folder, commit, f"{ref} of {shown_address(source)}", tuple(notes))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            _git(cache, "worktree", "prune", check=False)


def refuse_uncommitted(left: list[str]) -> None:
    """Raise GitError for changes that the machine would not have."""
    if left:
        shown = ", ".join(left[:DIRTY_SHOWN]) + (f" and {len(left) - DIRTY_SHOWN} more" if left[DIRTY_SHOWN:] else "")
        raise GitError(
            f"{len(left)} changed files are not committed, so the machine would not have them: {shown}",
            "commit (and push) them, or write `allow: [dirty]` to run the commit without them",
        )


def address(git: str, base_dir: Path) -> str:
    """What git is given: an address as it is, a folder beside the spec as its absolute path. Raises GitError."""
    if _PASSWORD.match(git):
        raise GitError(
            "the address carries a password, which would be kept with the job",
            "leave it out and let git's own credential helper or an SSH key answer",
        )
    if git.startswith("-"):
        raise GitError(f"{git!r} is no address")
    if "://" in git or re.match(r"[^/]+@[^/]+:|[A-Za-z0-9._-]{2,}:(?!/)", git):
        return git
    folder = (base_dir / Path(git).expanduser()).resolve()
    if not folder.is_dir():
        raise GitError(
            f"there is no repository {git}", "it starts beside the spec; an address begins with https:// or ssh://"
        )
    return str(folder)


def shown_address(source: str) -> str:
    """The address for people: without a user's name or token in it."""
    return re.sub(r"^([a-z][a-z0-9+.-]*://)[^/@]*@", r"\1", source)


def uncommitted(source: str, base_dir: Path) -> list[str]:
    """Changed and new files that no commit has: of a repository on this computer, or of the spec's own clone of it."""
    if "://" not in source and os.path.isdir(source):
        return _status(Path(source))
    remotes = _git(base_dir, "config", "--get-regexp", r"^remote\..*\.url$", check=False)
    urls = {line.partition(" ")[2].removesuffix(".git") for line in remotes.splitlines()}
    return _status(base_dir) if source.removesuffix(".git") in urls else []


def _status(folder: Path) -> list[str]:
    listed = _git(folder, "status", "--porcelain", "-z", "--untracked-files=normal", check=False)
    # of a rename the old name follows as an entry of its own
    return [entry[3:] for entry in listed.split("\0") if entry[2:3] == " " and entry[:2].strip()]


def _resolved(cache: Path, source: str, ref: str) -> str:
    """The commit of a branch, a tag or a commit's own name."""
    if not (cache / "HEAD").exists():
        _git(cache.parent, "init", "--quiet", "--bare", str(cache))
        _git(cache, "config", "remote.origin.url", source)  # what LFS and relative addresses count from
    exact = _COMMIT.fullmatch(ref) is not None
    if exact and _commit(cache, ref):
        return ref  # here already; a commit never changes
    _fetch(cache, source, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
    if exact and not _commit(cache, ref):
        _fetch(cache, source, ref)  # in no branch: most servers give it by its name
    found = {kind: _commit(cache, f"refs/{kind}/{ref}") for kind in ("heads", "tags")}
    if found["heads"] and found["tags"] and found["heads"] != found["tags"]:
        raise GitError(f"{ref} is a branch and a tag with other files", f"write heads/{ref} or tags/{ref}")
    commit = found["heads"] or found["tags"] or _commit(cache, f"refs/{ref}") or _commit(cache, ref)
    if not commit:
        raise GitError(f"{shown_address(source)} has no branch, tag or commit {ref}", "`git ls-remote` lists them")
    return commit


def _fetch(cache: Path, source: str, *refs: str) -> None:
    _git(cache, "fetch", "--quiet", "--force", "--prune", "--no-write-fetch-head", "--", source, *refs)


def _commit(cache: Path, name: str) -> str:
    found = _git(cache, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False).strip()
    return found if _COMMIT.fullmatch(found) else ""


def _submodules(folder: Path) -> list[str]:
    listed = _git(folder, "ls-files", "--stage", "-z", check=False).split("\0")
    return [entry.partition("\t")[2] for entry in listed if entry.startswith("160000 ")]


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """One process at a time in one cached repository."""
    cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with cache.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _git(folder: Path, *words: str, check: bool = True) -> str:
    """What git prints in `folder`. It never asks: no terminal, and no agent's window either."""
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "-c", "advice.detachedHead=false", *words]
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("GIT_DIR", "GIT_WORK", "GIT_INDEX"))
    }
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    env.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise GitError("git is not installed on this computer", "install it, or write the folder of a clone") from None
    except subprocess.TimeoutExpired:
        raise GitError(f"git {words[0]} did not end within {TIMEOUT_S:g} s") from None
    if check and ran.returncode != 0:
        raise _named(words[0], shown_address(os.fsdecode(ran.stderr).strip()))
    return os.fsdecode(ran.stdout)


def _named(verb: str, words: str) -> GitError:
    """git's last words, and the step that helps."""
    last = next((line for line in reversed(words.splitlines()) if line.strip()), "git said nothing")[:WORDS]
    text = words.lower()
    if "could not read username" in text or "authentication failed" in text or "permission denied" in text:
        step = "git's own credentials are used: `git ls-remote ADDRESS` must work here without a question"
    elif "could not resolve" in text or "unable to access" in text or "could not read from remote" in text:
        step = "check the address and the network: `git ls-remote ADDRESS` must work here"
    else:
        step = ""
    return GitError(f"git {verb}: {last}", step)
