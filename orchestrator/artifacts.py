"""Results: what is wanted, brought from the machine into staging bit by bit, and verified at the end.

Rules
- A call during the run leaves little for the end; the final one, after the last process has ended, verifies.
- What is verified has the size and SHA-256 that the machine announced then.
- Names and links that leave their folder are refused and said; nothing of the machine's is followed.
- The small and vital first: metrics and manifests, then the small, then the large, logs and traces last. An end may
  come before all is here, and the newest checkpoint is in the mirror before any of it.
- A place that is a file or a link is not followed; what should have come from it is said to be lost.
- Without `artifacts` in the spec: all of OUT, changed files of workdir, and the newest checkpoint, which is in the
  mirror already and costs no second transfer. `publish` puts all of it into the user's folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

from pathspec import GitIgnoreSpec

from orchestrator import sync
from orchestrator.arrival import by_value, collisions, folds_case
from orchestrator.home import Home
from orchestrator.ssh_errors import AgentRefused, TransferError, Unsafe
from orchestrator.ssh_files import Target

CHANGED_LIMIT = 5 * 1000**3  # bytes of files under workdir that come home unasked
LIST_TIMEOUT_S = 300.0
HASH_TIMEOUT_S = 1800.0
GLOB = frozenset("*?[")

When = Literal["success", "failure", "always"]


class Agent(Protocol):
    """What is needed of `ssh.Connection`."""

    def agent(self, command: str, payload: dict[str, Any], timeout_s: float = ...) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Item:
    """One entry of `artifacts`: `path` relative to OUT or absolute, with globs; `dest` the absolute folder here."""

    path: str
    dest: Path
    when: When = "always"


@dataclass(frozen=True)
class ArtifactPlan:
    """What is wanted. Without `items` the default: all of OUT, changed files of workdir, the newest checkpoint."""

    out: str  # the run's OUT, absolute on the machine
    dest: Path  # folder of the default plan
    items: tuple[Item, ...] = ()
    limit: int = CHANGED_LIMIT

    def wanted(self, success: bool | None) -> tuple[Item, ...]:
        """Items for this end; None: not known yet, so all that could be wanted."""
        if not self.items:
            return (Item("*", self.dest),)
        ok = {"always", "success", "failure"} if success is None else {"always", "success" if success else "failure"}
        return tuple(item for item in self.items if item.when in ok)


@dataclass(frozen=True)
class Piece:
    """One file or link in staging, and where it is published, relative to `dest`."""

    staged: str
    dest: Path
    path: str
    size: int
    sha256: str = ""
    link: str = ""


@dataclass(frozen=True)
class Results:
    """What was brought. `verified`: nothing is missing or damaged. `left`: (path, bytes) beyond the limit. `lost`: why
    a whole place could not be brought, which waiting does not mend; empty when every one could."""

    pieces: tuple[Piece, ...] = ()
    verified: bool = False
    problems: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    left: tuple[tuple[str, int], ...] = ()
    lost: str = ""

    @property
    def files(self) -> int:
        return len(self.pieces)

    @property
    def bytes(self) -> int:
        return sum(piece.size for piece in self.pieces)


@dataclass
class _Source:
    """One folder of the machine: what of it is wanted, and where that goes."""

    label: str  # folder in staging
    root: str
    files: list[dict[str, Any]]
    place: Callable[[str], list[tuple[Path, str]]]  # path below root -> (dest, path there), empty: not wanted
    refused: list[str] = field(default_factory=list)

    def wanted(self, folds: bool = False) -> dict[str, dict[str, Any]]:
        """Entries by path: safe, asked for, and links only inside of the folder. `folds`: names that differ in case
        only are the same here."""
        found: dict[str, dict[str, Any]] = {}
        for file in self.files:
            path = str(file.get("path", ""))
            if path == "." and "error" in file:
                self.refused.append(f"{self.root} cannot be read on the machine: {file['error']}")
                continue
            try:
                sync.safe_name(path)
            except Unsafe as exc:
                self.refused.append(str(exc))
                continue
            if not self.place(path):
                continue
            if "link" in file:
                try:
                    sync.safe_link(path, str(file["link"]))
                except Unsafe as exc:
                    self.refused.append(str(exc))
                    continue
            elif "error" in file:  # of another user, most often: waiting would not bring it, and would cost the rest
                self.refused.append(f"{path} cannot be read on the machine: {file['error']}")
                continue
            elif not isinstance(file.get("size"), int):
                self.refused.append(f"{path} has no size")
                continue
            found[path] = file
        for path in sync.refuse_under_links(found, [path for path, file in found.items() if "link" in file]):
            self.refused.append(f"{path[:120]} lies below a link")
            del found[path]
        for path, other in collisions(found) if folds else ():
            self.refused.append(f"{path[:120]} and {other[:120]} are one name on this computer; only the first came")
            del found[other]
        return found


def collect(
    conn: Agent,
    target: Target,
    home: Home,
    *,
    job: str,
    task: str,
    n: int,
    plan: ArtifactPlan,
    final: bool,
    success: bool | None = None,
    progress: Callable[[sync.Progress], None] | None = None,
    limits: sync.Limits | None = None,
) -> Results:
    """Bring what `plan` wants into staging. `final`: the run is dead; everything is hashed on both sides."""
    staging = home.results(job, task, n)
    sources, left, lost = sources_of(conn, plan, job, task, n, success, final)
    folds = any(folds_case(place) for place in {staging, *(item.dest for item in plan.wanted(success))})
    wanted = {source.label: source.wanted(folds) for source in sources}
    refused = [words for source in sources for words in source.refused]
    for source in sources:
        if final:
            _drop_others(staging / source.label, wanted[source.label])
    batches = by_value((source.label, path, file) for source in sources for path, file in wanted[source.label].items())
    roots = {source.label: source.root for source in sources}
    words: dict[str, str] = {}
    for label, names in batches:
        said = _pull(target, roots[label], staging / label, names, False, progress, limits)
        words[label] = said or words.get(label, "")
    problems: list[str] = []
    pieces: list[Piece] = []
    for source in sources:
        folder, mine = staging / source.label, wanted[source.label]
        if final:
            said = words.get(source.label, "")
            problems += _verified(target, source.root, folder, mine, refused, said, progress, limits)
        for path, file in sorted(mine.items()):
            if not os.path.lexists(folder / path):
                continue  # a problem in the final pass; a file that went away before
            link, size, digest = str(file.get("link", "")), int(file.get("size") or 0), str(file.get("sha256") or "")
            for dest, shown in source.place(path):
                pieces.append(Piece(f"{source.label}/{path}", dest, shown, size, digest, link))
    verified = final and not problems and not lost
    return Results(tuple(pieces), verified, tuple(problems), tuple(refused), tuple(left), lost)


def earlier(
    home: Home, job: str, task: str, n: int, plan: ArtifactPlan, success: bool, last: frozenset[str] | None = None
) -> list[Piece]:
    """What had arrived of this task's runs before `n`, which were cut off: under `attempts/`, since a later run has not
    made it again. Links are left out; nobody verified these files. `last`, of a batch's slice: what its last run made
    (paths in OUT); what the others made is as much its result, and lies beside it.
    """
    place = _by_patterns([item for item in plan.wanted(success) if not item.path.startswith("/")])
    staging, found = home.results(job, task, n), list[Piece]()
    for number in sorted(earlier_runs(home, job, task, n)):
        folder = home.results(job, task, number) / "out"
        for path in sorted(each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()):
            name = path.relative_to(folder).as_posix()
            if sync.PARTIAL not in path.parts:
                staged = os.path.relpath(path, staging)
                aside = last is None or name in last
                shown = f"attempts/{task}.{number}/{name}" if aside else name
                found += [Piece(staged, dest, shown, path.stat().st_size) for dest, _ in place(name)]
    return found


def earlier_runs(home: Home, job: str, task: str, n: int) -> list[int]:
    """Numbers of the task's runs before `n` of which something lies in staging."""
    folders = home.results(job, task, n).parent.glob(f"{task}.*")
    numbers = (folder.name.rpartition(".")[2] for folder in folders)
    return [int(number) for number in numbers if number.isdigit() and int(number) < n]


def sources_of(
    conn: Agent, plan: ArtifactPlan, job: str, task: str, n: int, success: bool | None, final: bool
) -> tuple[list[_Source], list[tuple[str, int]], str]:
    """The folders to bring from, the changed files that are too much, and why a place cannot be brought."""
    items = plan.wanted(success)
    inside = [item for item in items if not item.path.startswith("/")]
    sources, lost = [], ""
    if inside:
        try:
            files = _listed(conn, plan.out, final)
        except NotAFolder as exc:
            files, lost = [], f"$GPUJOB_OUT is {exc}: nothing that should be in it came home"
        sources.append(_Source("out", plan.out, files, _by_patterns(inside)))
    for number, item in enumerate(item for item in items if item.path.startswith("/")):
        root, pattern = split_absolute(item.path)
        try:
            files = _listed(conn, root, final, pattern)
        except NotAFolder as exc:
            files, lost = [], lost or f"{root} is {exc}: nothing of {item.path} came home"
        sources.append(_Source(f"absolute{number}", root, files, _to(item.dest, pattern)))
    if plan.items:
        return sources, [], lost
    answer = conn.agent("changed", {"job": job, "task": task, "n": n}, LIST_TIMEOUT_S)
    root, changed, left = str(answer.get("base", "")), [], []
    room = plan.limit
    for file in sorted(_dicts(answer.get("files")), key=lambda file: int(file.get("size") or 0)):
        room -= int(file.get("size") or 0)
        if room < 0:
            left.append((str(file.get("path")), int(file.get("size") or 0)))
        else:
            changed.append(file)
    if final and changed:
        names = [str(file.get("path")) for file in changed]
        changed = _listed(conn, root, True, names=names)
    taken = {str(file.get("path", "")).split("/")[0] for file in (sources[0].files if sources else [])}
    folder = "workdir" if "workdir" not in taken else "workdir~"
    sources.append(_Source("workdir", root, changed, lambda path: [(plan.dest, f"{folder}/{path}")]))
    return sources, left, lost


class NotAFolder(Exception):
    """A place that results should come from is something else; the message says what."""


def _listed(
    conn: Agent, root: str, with_hash: bool, pattern: str = "", names: list[str] | None = None
) -> list[dict[str, Any]]:
    """The agent's files below `root`; none where there is no such folder. NotAFolder where it is something else."""
    ask: dict[str, Any] = {"path": root, "hash": with_hash, "pattern": ""}
    if names is not None:
        ask["names"] = names
    try:
        answer = conn.agent("manifest", ask, HASH_TIMEOUT_S if with_hash else LIST_TIMEOUT_S)
    except AgentRefused as exc:
        if exc.error == "missing":
            return []
        raise
    files = _dicts(answer.get("files"))
    if answer.get("kind") == "link":
        raise NotAFolder(f"a link to {str(answer.get('leads_to'))[:200]}, which is not followed")
    if answer.get("kind") == "file":
        raise NotAFolder("a file and no folder")
    keep = _matcher(pattern) if pattern else None
    wanted = None if names is None else frozenset(names)
    return [
        file
        for file in files
        if (keep is None or keep(str(file.get("path")))) and (wanted is None or file.get("path") in wanted)
    ]


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def split_absolute(path: str) -> tuple[str, str]:
    """`/root/logs/*.txt` -> ("/root/logs", "/*.txt"): the folder to look into and the pattern below it."""
    parts = PurePosixPath(path).parts
    plain = next((at for at, part in enumerate(parts) if GLOB & set(part)), len(parts))
    plain = min(plain, len(parts) - 1)  # the last part is a name in its folder, file or folder alike
    return str(PurePosixPath(*parts[:plain])) if plain else "/", "/" + "/".join(parts[plain:])


def _matcher(pattern: str) -> Callable[[str], bool]:
    """As in an ignore file: `*.png` at any depth, `plots/` with all that is in it, `a/*.txt` from the top."""
    pattern = pattern.removeprefix("./")
    if pattern in ("", "."):
        pattern = "*"
    spec = GitIgnoreSpec.from_lines([f"\\{pattern}" if pattern[0] in "!#" else pattern])
    return spec.match_file


def _by_patterns(items: list[Item]) -> Callable[[str], list[tuple[Path, str]]]:
    matchers = [(_matcher(item.path), item.dest) for item in items]

    def place(path: str) -> list[tuple[Path, str]]:
        return [(dest, path) for dest in dict.fromkeys(dest for match, dest in matchers if match(path))]

    return place


def _to(dest: Path, pattern: str) -> Callable[[str], list[tuple[Path, str]]]:
    match = _matcher(pattern)
    return lambda path: [(dest, path)] if match(path) else []


# --- bringing ------------------------------------------------------------------------------------------


def _verified(
    target: Target,
    root: str,
    folder: Path,
    wanted: dict[str, dict[str, Any]],
    refused: list[str],
    words: str,
    progress: Callable[[sync.Progress], None] | None,
    limits: sync.Limits | None,
) -> list[str]:
    """Check every wanted name, bring the wrong ones again, name the rest. `words`: rsync's on what it left out."""
    wrong = [name for name in sorted(wanted) if not _holds(folder / name, wanted[name])]
    if wrong:
        words = _pull(target, root, folder, wrong, True, progress, limits) or words
    wrong = [name for name in wrong if not _holds(folder / name, wanted[name])]
    # A link that rsync left out as unsafe is no reason to hold a machine
    refused += [f"{name} is a link that was not taken" for name in wrong if "link" in wanted[name]]
    problems = [f"{name} is not as the machine announced it" for name in wrong if "link" not in wanted[name]]
    return problems + [words] * bool(problems and words)


def _pull(
    target: Target,
    root: str,
    folder: Path,
    names: list[str],
    again: bool,
    progress: Callable[[sync.Progress], None] | None,
    limits: sync.Limits | None,
) -> str:
    """Pull; files that vanished or could not be read are for the check to name: returns rsync's words on them."""
    try:
        sync.pull(target, root, folder, files_from=names, again=again, progress=progress, limits=limits)
    except TransferError as exc:
        if exc.code not in sync.SOME_FILES_CODES:
            raise
        return str(exc)
    return ""


def _holds(path: Path, file: dict[str, Any]) -> bool:
    """Whether the copy is what the machine announced."""
    if "link" in file:
        return path.is_symlink() and os.readlink(path) == file["link"]
    if path.is_symlink() or not path.is_file() or path.stat().st_size != file["size"]:
        return False
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == file.get("sha256")


def _drop_others(folder: Path, wanted: Iterable[str]) -> None:
    """Remove what an earlier pass brought and the job has removed since."""
    keep = set(wanted)
    for top, folders, names in os.walk(folder, topdown=False):
        for name in [*names, *folders]:
            path = Path(top) / name
            if path.is_symlink() or not path.is_dir():
                if path.relative_to(folder).as_posix() not in keep:
                    path.unlink()
            elif not any(path.iterdir()):
                path.rmdir()
