"""From the words after a verb to specs: files or stdin, `--set`, `--env`, `--name`, `--provider`; all valid or none.

Rules: relative places of a spec count from its own folder (from the working folder for stdin). Everything wrong
with all files is reported at once. Nothing here talks to a provider or writes anything.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli import stage
from orchestrator.cli.exits import CliError

if TYPE_CHECKING:
    from jobspecs.load import Located
    from jobspecs.schema import JobSpec

STDIN = "-"


@dataclass(frozen=True)
class Loaded:
    """One valid spec, the folder that its relative places count from, and where its values came from."""

    located: Located
    base_dir: Path
    file: str
    flags: frozenset[str] = frozenset()  # top-level keys that an option of this call set

    @property
    def spec(self) -> JobSpec:
        """The spec itself."""
        return self.located.spec


def add_files(parser: argparse.ArgumentParser) -> None:
    """`[-f] SPEC...`."""
    parser.add_argument("specs", metavar="SPEC", nargs="*", help="spec files; - is stdin")
    parser.add_argument("-f", "--file", dest="files", metavar="SPEC", action="append", default=[], help="a spec file")


def add_changes(parser: argparse.ArgumentParser) -> None:
    """The options that change a spec for this one call."""
    parser.add_argument(
        "--set", dest="sets", metavar="KEY=VALUE", action="append", default=[], help="set a key: retry.max=2"
    )
    parser.add_argument(
        "--env", metavar="NAME[=VALUE]", action="append", default=[], help="a variable; without a value from yours"
    )
    parser.add_argument("--env-file", metavar="FILE", action="append", default=[], help="lines of NAME=VALUE")
    parser.add_argument("-n", "--name", help="another name than the spec's")
    parser.add_argument("--provider", metavar="NAME", action="append", default=[], help="rent here only (repeatable)")


def files_of(args: argparse.Namespace) -> list[str]:
    """The spec files that were named. Raises CliError when there are none."""
    files = [*args.files, *args.specs]
    if not files:
        raise CliError("no spec was named", where=f"gpujob {args.verb}", next=f"gpujob {args.verb} gpujob.yaml")
    if files.count(STDIN) > 1:
        raise CliError("stdin can be read once only")
    return files


def changes_of(args: argparse.Namespace, count: int) -> dict[str, Any]:
    """The arguments for `load_located` that the options stand for."""
    overrides = [_pair(text) for text in args.sets]
    if args.name:
        if count > 1:
            raise CliError("--name fits one spec only", next="write the names into the specs")
        overrides.append(("name", args.name))
    if args.provider:
        names = [name.strip() for text in args.provider for name in text.split(",") if name.strip()]
        overrides.append(("providers", json.dumps(names)))
    flags = frozenset(key.split(".")[0] for key, _ in overrides)
    return {"overrides": overrides, "env": _given_env(args), "environ": os.environ, "flags": flags}


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise CliError(f"--set {text!r} is not KEY=VALUE", next="as in --set retry.max=2")
    return key.strip(), value


def _given_env(args: argparse.Namespace) -> dict[str, str]:
    given: dict[str, str] = {}
    for file in args.env_file:
        given |= read_env_file(Path(file))
    for text in args.env:
        name, equals, value = text.partition("=")
        if equals:
            given[name] = value
        elif name in os.environ:
            given[name] = os.environ[name]
        else:
            raise CliError(
                f"{name} is not in your environment", where="--env", next=f"--env {name}=VALUE, or export it"
            )
    return given


def read_env_file(path: Path) -> dict[str, str]:
    """`NAME=VALUE` lines; `export`, blank lines, comments and one pair of quotes around the value are understood."""
    found: dict[str, str] = {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise CliError("this is not UTF-8 text", where=str(path), next="name a file of NAME=VALUE lines")
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip().removeprefix("export ").strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip().isidentifier():
            raise CliError("this line is not NAME=VALUE", where=f"{path}:{number}")
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        found[name.strip()] = value
    return found


def load_all(files: list[str], changes: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[Loaded]:
    """Every spec, or one SpecErrors with the problems of all of them; two of one name are a problem too."""
    from jobspecs.files import check_files
    from jobspecs.problems import Problem, SpecErrors

    loaded: list[Loaded] = []
    problems: list[Problem] = []
    for file in files:
        try:
            loaded.append(_load_one(file, changes, defaults))
        except SpecErrors as errors:
            problems += errors.problems
    for each in loaded:
        problems += [each.located.place(problem) for problem in check_files(each.spec, each.base_dir)]
    first: dict[str, str] = {}
    for each in loaded:
        name = each.spec.name
        if name in first:
            problem = Problem("", 0, 0, "name", f"{name!r} is the name in {first[name]} too", "one name is one job")
            problems.append(each.located.place(problem))
        first.setdefault(name, each.file)
    if problems:
        raise SpecErrors(problems)
    return loaded


def _load_one(file: str, changes: Mapping[str, Any], defaults: Mapping[str, Any]) -> Loaded:
    from jobspecs.load import load_file, load_located

    changes = dict(changes)
    flags = changes.pop("flags", frozenset())
    if file == STDIN:
        located = load_located(sys.stdin.buffer.read(), "<stdin>", defaults=defaults, **changes)
        return Loaded(located, Path.cwd(), "<stdin>", flags)
    path = stage.here(Path(file))
    located = load_file(path, defaults=defaults, **changes)
    return Loaded(located, path.absolute().parent, file, flags)


def refuse_unknown_targets(loaded: list[Loaded], targets: Iterable[str]) -> None:
    """Raise SpecErrors for every name in `notify` that the config has no target for."""
    from jobspecs.problems import Problem, SpecErrors

    known = sorted(targets)
    hint = f"the config has {', '.join(known)}" if known else "the config has none: notify: {me: {url_env: VARIABLE}}"
    problems = [
        each.located.place(Problem("", 0, 0, f"notify[{position}]", f"there is no target {name!r}", hint))
        for each in loaded
        for position, name in enumerate(each.spec.notify)
        if name not in known
    ]
    if problems:
        raise SpecErrors(problems)
    if any(each.spec.notify for each in loaded) and importlib.util.find_spec("apprise") is None:
        raise CliError(
            "nobody would be told: `notify` needs apprise, which is not installed; nothing was done",
            next="install gpujob with its extra `notify`, or leave `notify` out",
        )
