"""docs/reference/cli.md and exit-codes.md, from the same parsers and tables that `gpujob` runs on."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from orchestrator.cli import commands, exits

CLI_INTRODUCTION = """\
# The command line

Data goes to stdout, progress and errors to stderr. `-o json` is stable; times in it are UTC. JOB is `NAME` (its newest
run), `NAME.2` (a run) or `NAME@3` (an attempt). `gpujob VERB --help` prints one of these sections.

| verb | what it does |
|---|---|
"""

EXIT_CODES_INTRODUCTION = """\
# Exit codes

A code means the same for every verb.

| code | meaning |
|---|---|
"""


def cli_page() -> str:
    rows = [f"| [`{verb}`](#{verb}) | {_cell(help)} |" for verb, (help, _) in commands.VERBS.items()]
    sections = [section for verb in commands.VERBS for section in _verb(verb)]
    redirections = [f"| `{word}` | {_cell(answer)} |" for word, answer in sorted(commands.REDIRECTIONS.items())]
    return "\n".join(
        [
            CLI_INTRODUCTION + "\n".join(rows),
            *sections,
            "## Words from elsewhere\n\nThese do nothing but name the right command.\n",
            "| word | answer |\n|---|---|",
            *redirections,
            "",
        ]
    )


def exit_codes_page() -> str:
    rows = [f"| {code} | {_cell(text)} |" for code, text in exits.MEANINGS.items()]
    return EXIT_CODES_INTRODUCTION + "\n".join(rows) + "\n"


def _verb(verb: str) -> Iterator[str]:
    parser, _ = commands.parser_of(verb)
    yield f"\n## {verb}\n\n{_sentence(parser.description or '')}\n"
    # A fixed width: COLUMNS of whoever runs this must not change the page
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
    yield f"```text\n{parser.format_usage().removeprefix('usage: ').rstrip()}\n```\n"
    yield from _arguments(parser)


def _arguments(parser: argparse.ArgumentParser, prefix: str = "") -> Iterator[str]:
    """A table of what one parser takes, then one for each of its subcommands."""
    rows: list[str] = []
    nested: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                nested += [f"\n`{prefix}{name}`\n", *_arguments(sub, f"{prefix}{name} ")]
            continue
        help = (action.help or "") % {"default": action.default, "prog": parser.prog}
        if not help and not action.choices:  # choices name themselves
            raise ValueError(f"{parser.prog}: {_name(action)} has no help text")
        rows.append(f"| `{_cell(_name(action))}` | {_cell(help)} |")
    if rows:
        yield "| argument | meaning |\n|---|---|"
        yield from rows
    yield from nested
    yield ""


def _name(action: argparse.Action) -> str:
    """`-o, --output {table,json}`, or the metavar of a positional."""
    value = action.metavar if isinstance(action.metavar, str) else None
    if value is None and action.choices is not None:
        value = "{" + ",".join(str(each) for each in action.choices) + "}"
    if not action.option_strings:
        return value or action.dest.upper()
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    value = value or action.dest.upper()
    return f"{names} [{value}]" if action.nargs == "?" else f"{names} {value}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
