"""docs/reference/cli.md and exit-codes.md, from the same parsers and tables that `gpujob` runs on."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from orchestrator.cli import commands, exits

CLI_INTRODUCTION = """\
# The command line

Data goes to stdout, progress and errors to stderr. `-o json` is stable; times in it are UTC. JOB is `NAME` (its newest
run), `NAME.2` (a run) or `NAME@3` (an attempt). `gpujob VERB --help` prints one of these sections. Every
verb also takes `--help` and `--no-color` (as NO_COLOR).

| verb | what it does |
|---|---|
"""

# Said once, in the introduction
OF_EVERY_VERB = ("help", "no_color")

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
            "\n## Words from elsewhere\n\nThese do nothing but name the right command.\n",
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
    # Not argparse's own usage line: its wrapping differs between versions of Python
    yield f"```text\n{' '.join([parser.prog, '[OPTIONS]', *_positionals(parser)])}\n```\n"
    yield from _arguments(parser)


def _positionals(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if not action.option_strings and action.help != argparse.SUPPRESS:
            several = " ..." if action.nargs in ("*", "+", argparse.REMAINDER) else ""
            optional = action.nargs in ("*", "?", argparse.REMAINDER)
            yield f"[{_name(action)}{several}]" if optional else f"{_name(action)}{several}"


def _arguments(parser: argparse.ArgumentParser, prefix: str = "") -> Iterator[str]:
    """A table of what one parser takes, then one for each of its subcommands."""
    rows: list[str] = []
    nested: list[str] = []
    for action in parser._actions:
        if action.dest in OF_EVERY_VERB or action.help == argparse.SUPPRESS:
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
