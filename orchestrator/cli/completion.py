"""`completion`: the script that teaches a shell our verbs and options, generated from the finished parsers."""

from __future__ import annotations

import argparse
import sys

from orchestrator.cli import exits
from orchestrator.cli.commands import VERBS, Command, load

SHELLS = ("bash", "zsh", "tcsh")
_WHERE = {
    "bash": "gpujob completion bash > ~/.local/share/bash-completion/completions/gpujob",
    "zsh": "gpujob completion zsh > a folder of $fpath, named _gpujob",
    "tcsh": "gpujob completion tcsh > ~/.gpujob.csh, sourced by ~/.tcshrc",
}


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="; ".join(_WHERE.values()))


def full_parser() -> argparse.ArgumentParser:
    """One parser with every verb below it, as shtab and the reference page read it."""
    top = argparse.ArgumentParser(prog="gpujob", allow_abbrev=False)
    top.add_argument("--no-color", action="store_true", help="no colours (as NO_COLOR)")
    top.add_argument("--version", action="store_true", help="print the version")
    # shtab walks subparsers; ours take (prog, description) only, so the plain class stands in for it here.
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=argparse.ArgumentParser)
    for verb, (help, _) in VERBS.items():
        parser = verbs.add_parser(verb, help=help, description=help, allow_abbrev=False)
        load(verb).add(parser)
    return top


def run(args: argparse.Namespace) -> int:
    """Print the script for one shell."""
    import shtab

    sys.stdout.write(shtab.complete(full_parser(), shell=args.shell))
    return exits.OK


COMMANDS = {"completion": Command(_add, run)}
