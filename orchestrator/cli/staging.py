"""What specs read from this computer, on its way to a controller on another host.

Rules
- All specs are valid here, with that host's defaults, before a byte is sent: errors name the user's own files.
- A path relative to the spec means the same over there, since folders keep their absolute paths below our folder at
  the far end. An absolute one would mean another computer's file, so it is refused.
- The workdir is chosen by the rules of a snapshot, on this computer, where git can be asked. Data follows links.
- Values (`--env`, `--env-file`, secrets of the environment) go with the verb, never in a command line.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits, specs
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import colourful, counted, say, size
from orchestrator.cli.remote_link import NOT_TAKEN, Link
from orchestrator.home import Home

if TYPE_CHECKING:
    from jobspecs.problems import Problem

# Listed files only, each at its own name; cut ones go on. `-s`: no shell over there reads a name.
_RSYNC = ("-sdtE", "--from0", "--files-from=-", "--no-implied-dirs", "--partial-dir=.gpujob-partial", "--timeout=60")
_CODE = ("-lp", "--checksum")  # two edits within a second may leave size and time as they were
_DATA = ("-L", "--modify-window=-1")


@dataclass(frozen=True)
class Root:
    """Files of one folder. `kind`: code or data of it, or one file."""

    kind: str
    path: str
    names: list[str]

    def send(self, link: Link, stage: str) -> None:
        """Copy what is not there yet. Raises CliError."""
        if not self.names:
            return
        dest = link.place(f"{stage}/files{self.path.rstrip('/')}/")
        names = b"\0".join(os.fsencode(name) for name in self.names)
        options = _CODE if self.kind == "code" else _DATA
        bar = ("--info=progress2",) if colourful(sys.stderr) and self.kind != "code" else ()
        command = [*link.rsync(*_RSYNC, *options, *bar), f"{self.path.rstrip('/')}/", dest]
        done = subprocess.run(command, input=names, stdout=sys.stderr, check=False)
        if done.returncode:
            raise CliError(
                f"copying it to {link.name} ended with rsync's code {done.returncode}; nothing was applied",
                where=self.path, next="the same command goes on from here", code=exits.PROVIDER,
            )  # fmt: skip


@dataclass
class Cargo:
    """Everything that goes over: files by path, folders, and for the verb its surveys, environment and stdin."""

    files: dict[str, str] = field(default_factory=dict)
    roots: list[Root] = field(default_factory=list)
    surveys: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    given: list[str] = field(default_factory=list)  # NAME=VALUE of --env and --env-file
    stdin: str | None = None
    names: list[str] = field(default_factory=list)  # of the jobs


class Asked(Mapping[str, str]):
    """Our environment, which remembers what it was asked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return os.environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)

    def __contains__(self, name: object) -> bool:
        return name in os.environ


def gather(home: Home, args: argparse.Namespace, defaults: Mapping[str, Any], host: str) -> Cargo:
    """Read and check the specs. Raises SpecErrors, SnapshotError, DataError or CliError; nothing is sent."""
    from jobspecs.problems import SpecErrors

    cargo = Cargo()
    files = specs.files_of(args)
    if specs.STDIN in files:
        data = sys.stdin.buffer.read()
        cargo.stdin = base64.b64encode(data).decode()
        sys.stdin = io.TextIOWrapper(io.BytesIO(data))
    asked = Asked()
    changes = specs.changes_of(args, len(files)) | {"environ": asked}
    loaded = specs.load_all(files, changes, defaults)
    problems = [problem for each in loaded for problem in _unreachable(each, host)]
    if problems:
        raise SpecErrors(problems)
    for each in loaded:
        if each.file != "<stdin>":
            path = Path(each.file)
            cargo.files[os.path.normpath(path.absolute())] = base64.b64encode(path.read_bytes()).decode()
        cargo.names.append(each.spec.name)
        asked.names |= {name for name in each.spec.secrets if name in os.environ}
        _add_workdir(home, cargo, each)
        _add_data(cargo, each)
    cargo.given = [f"{name}={value}" for name, value in changes["env"].items()]
    refused = sorted(name for name in asked.names if NOT_TAKEN.fullmatch(name))
    if refused:
        raise CliError(
            f"{refused[0]} steers gpujob on {host} itself, so its value is not taken from your environment",
            where="env", next=f"--env {refused[0]}=VALUE, or write it into the spec",
        )  # fmt: skip
    cargo.env = {name: os.environ[name] for name in asked.names}
    return cargo


def _unreachable(loaded: specs.Loaded, host: str) -> Iterator[Problem]:
    """Paths that the controller's host would understand otherwise, each at its place in the spec."""
    from jobspecs.problems import Problem
    from jobspecs.rules import is_remote
    from orchestrator.sources.git import address

    spec = loaded.spec
    places = [(f"data[{n}].from", each.source) for n, each in enumerate(spec.data)]
    if isinstance(spec.workdir, str):
        places.append(("workdir", spec.workdir))
    elif spec.workdir is not None and os.path.isabs(address(spec.workdir.git, loaded.base_dir)):
        hint = "write its https:// or ssh:// address, or `workdir: FOLDER`"
        yield loaded.located.place(
            Problem("", 0, 0, "workdir.git", f"{host} cannot fetch from a repository of this computer", hint)
        )
    if isinstance(spec.artifacts, tuple):
        places += [(f"artifacts[{n}].to", each.to) for n, each in enumerate(spec.artifacts) if each.to]
    for key, text in places:
        if is_remote(text):
            continue
        if text.startswith(("/", "~")):
            reason = f"{text} would be a path of {host}, where the controller is"
            hint = "write it relative to the spec file, as in ../data: then it is sent along"
            if key.endswith("to"):
                hint = "leave it out, or name a store; gpujob pull brings results here"
            yield loaded.located.place(Problem("", 0, 0, key, reason, hint))
        elif os.path.realpath(loaded.base_dir / text) != os.path.realpath(os.path.normpath(loaded.base_dir / text)):
            yield loaded.located.place(
                Problem(
                    "", 0, 0, key, f"{text} leads back through a link", f"{host} has no such link: name it directly"
                )
            )


def _add_workdir(home: Home, cargo: Cargo, loaded: specs.Loaded) -> None:
    from orchestrator.cli.plan import result_folders
    from orchestrator.snapshot import survey
    from orchestrator.sources.git import address, refuse_uncommitted, uncommitted

    spec, base = loaded.spec, loaded.base_dir
    if spec.workdir is None:
        cargo.roots.append(Root("spec", os.path.normpath(base), []))
        return
    if not isinstance(spec.workdir, str):
        if "dirty" not in spec.allow:
            refuse_uncommitted(uncommitted(address(spec.workdir.git, base), base))
        return
    folder = base / spec.workdir
    large = "large-workdir" in spec.allow
    found = survey(folder, home, exclude=result_folders(spec, base, folder), allow_large=large)
    path = os.path.normpath(folder)
    cargo.roots.append(Root("code", path, [entry.path for entry in found.found]))
    cargo.surveys[path] = asdict(found)


def _add_data(cargo: Cargo, loaded: specs.Loaded) -> None:
    from jobspecs.rules import is_remote
    from orchestrator.datasets import files_below

    for entry in loaded.spec.data:
        if is_remote(entry.source):
            continue
        path = Path(os.path.normpath(loaded.base_dir / entry.source))
        names = list(files_below(path, f"{loaded.spec.name}: data {entry.source}"))
        if path.is_dir():
            cargo.roots.append(Root("data", str(path), names))
        else:
            cargo.roots.append(Root(f"file {path.name}", str(path.parent), names))


def send(link: Link, cargo: Cargo) -> dict[str, Any]:
    """Bring files and folders over; the far end's answer."""
    answer = link.ask(
        {"files": cargo.files, "roots": [{"kind": r.kind, "path": r.path, "names": r.names} for r in cargo.roots]}
    )
    for root in cargo.roots:
        if root.kind != "code" and root.names:
            total = sum(os.path.getsize(os.path.join(root.path, name)) for name in root.names)
            what = f"{counted(len(root.names), 'file')}, {size(total)}, to {link.name}"
            say(f"{root.path}: {what}; only what it has not yet is sent")
        root.send(link, answer["stage"])
    return answer
