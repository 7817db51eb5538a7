"""`init`, `validate` and `schema`: everything about a spec that needs no network, no books and no money."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.cli import exits, specs
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import counted, print_json, put, say
from orchestrator.home import Home

DEFAULT_FILE = "gpujob.yaml"


def _add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", default=DEFAULT_FILE, help=f"default: {DEFAULT_FILE}")
    parser.add_argument("--from", dest="source", metavar="FILE", help="convert a SkyPilot, dstack or #SBATCH file")


def _add_validate(parser: argparse.ArgumentParser) -> None:
    specs.add_files(parser)
    specs.add_changes(parser)
    parser.add_argument("--strict", action="store_true", help="advice counts as an error")
    add_output(parser)


def _add_schema(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("json",), default="json", help="json is the only form")


def run_init(args: argparse.Namespace) -> int:
    """Write a spec that validates; never over an existing file."""
    from jobspecs.convert import TEMPLATE, convert
    from jobspecs.source import decode

    path = Path(args.file)
    if args.source:
        source = Path(args.source)
        text = convert(decode(source.read_bytes(), str(source)), filename=str(source))
    else:
        text = TEMPLATE.replace("name: my-job ", f"name: {_name_for(path)} ", 1)
    try:
        with path.open("x", encoding="utf-8", newline="\n") as out:
            out.write(text)
    except FileExistsError:
        raise CliError("exists already and was not changed", where=str(path), next="name another file") from None
    say(f"wrote {path}; next: gpujob validate {path}")
    return exits.OK


def _name_for(path: Path) -> str:
    """The folder's name where that may be a job's name, else a plain one."""
    from jobspecs.names import check_name
    from jobspecs.problems import Refusal

    try:
        return check_name(path.absolute().parent.name)
    except Refusal:
        return "my-job"


class GivenAtApply(Mapping[str, str]):
    """An environment that has every variable, and remembers which were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> str:
        if name not in self.asked:
            self.asked.append(name)
        return os.environ.get(name, "")

    def __iter__(self) -> Iterator[str]:
        return iter(self.asked)

    def __len__(self) -> int:
        return len(self.asked)

    def __bool__(self) -> bool:
        return True  # empty of names so far, but not absent


def run_validate(args: argparse.Namespace) -> int:
    """Check specs; all problems at once."""
    from jobspecs.problems import SpecErrors
    from orchestrator.config import load_config

    files = specs.files_of(args)
    environ = GivenAtApply()
    config = load_config(Home.from_env())
    changes = specs.changes_of(args, len(files)) | {"environ": environ}
    changes["overrides"] = [*config.environment, *changes["overrides"]]
    try:
        loaded = specs.load_all(files, changes, config.defaults)
    except SpecErrors as errors:
        if args.output == "json":
            print_json({"valid": False, "problems": [_problem(each) for each in errors.problems], "advice": []})
            return exits.USAGE
        raise
    advice = [each for one in loaded for each in _advice(one)]
    strict = args.strict and bool(advice)
    if args.output == "json":
        print_json({"valid": not strict, "problems": [], "advice": [_problem(each) for each in advice]})
        return exits.USAGE if strict else exits.OK
    for each in advice:
        say(str(each))
    missing = [name for name in environ.asked if name not in os.environ]
    if missing:
        say(f"to be given at apply: {', '.join(missing)}")
    if strict:
        counts = "counts it as an error" if len(advice) == 1 else "counts them as errors"
        say(f"gpujob: {counted(len(advice), 'piece of advice', 'pieces of advice')}, and --strict {counts}")
        return exits.USAGE
    for one in loaded:
        put(f"{one.file}: valid ({one.spec.name})")
    return exits.OK


def _advice(loaded: specs.Loaded) -> list[Any]:
    """What is valid and still likely to hurt, as problems with their place."""
    from jobspecs.files import missing_scripts
    from jobspecs.lint import warnings

    found = [*warnings(loaded.spec), *missing_scripts(loaded.spec, loaded.base_dir)]
    return [loaded.located.place(each) for each in found]


def _problem(problem: Any) -> dict[str, Any]:
    return {key: getattr(problem, key) for key in ("file", "line", "column", "key", "reason", "hint")}


def run_schema(_: argparse.Namespace) -> int:
    """The JSON Schema of a spec."""
    from jobspecs.editor import json_schema

    print_json(json_schema())
    return exits.OK


COMMANDS = {
    "init": Command(_add_init, run_init),
    "validate": Command(_add_validate, run_validate),
    "schema": Command(_add_schema, run_schema),
}
