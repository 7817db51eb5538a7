"""`secret set|ls|rm`: values that specs name under `secrets`.

Rules: a value is read without echo or from stdin, never from the command line, where every user of the host could
read it and the shell would keep it. Values are never printed.
"""

from __future__ import annotations

import argparse
import re
import sys

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import print_json, put, say
from orchestrator.home import Home


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("set", "ls", "rm"))
    parser.add_argument("name", metavar="NAME", nargs="?", help="as the variable that the job sees: HF_TOKEN")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """One of the three."""
    home = Home.from_env()
    if args.action == "ls":
        return _list(home, args.output)
    if not args.name:
        raise CliError(f"secret {args.action} needs a name", next=f"gpujob secret {args.action} HF_TOKEN")
    name, equals, _ = args.name.partition("=")
    if equals:
        raise CliError(
            "a value on the command line is seen by every user of this host and kept by the shell; it was not stored",
            next=f"gpujob secret set {name}   (asks without echo), or: ... | gpujob secret set {name}",
        )
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
        raise CliError(f"{name!r} cannot name an environment variable", next="use letters, digits and _")
    return _set(home, name) if args.action == "set" else _remove(home, name)


def _value(name: str) -> str:
    """From the terminal without echo, else all of stdin without its last line end."""
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass(f"{name}: ")
    return sys.stdin.read().removesuffix("\n").removesuffix("\r")


def _set(home: Home, name: str) -> int:
    from orchestrator import secrets

    value = _value(name)
    if not value:
        raise CliError("the value is empty; nothing was stored", where=name)
    home.make()
    where = secrets.set_secret(home, name, value)
    say(f"{name} is stored in {where}; name it in a spec: secrets: [{name}]")
    return exits.OK


def _list(home: Home, output: str) -> int:
    from orchestrator import secrets

    names = sorted(secrets.names(home))
    if output == "json":
        print_json([{"name": name} for name in names])
    else:
        put("\n".join(names) if names else "no secrets are stored")
    return exits.OK


def _remove(home: Home, name: str) -> int:
    from orchestrator import secrets

    if not secrets.remove(home, name):
        raise CliError(f"there is no stored secret {name}", next="gpujob secret ls")
    say(f"{name} is removed; jobs that were applied keep theirs until they end")
    return exits.OK


COMMANDS = {"secret": Command(_add, run)}
