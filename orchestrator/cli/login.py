"""`login PROVIDER`: keep a provider's key where the controller finds it again, after one call that tries it.

Rules: the key is read without echo or from stdin, never from the command line, and is never printed. It is kept only
once the provider has taken it; a provider that cannot be reached keeps nothing, unless `--unchecked` says so.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import print_json, say
from orchestrator.home import Home


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("provider", metavar="PROVIDER", help="a name of `gpujob providers`")
    parser.add_argument("--unchecked", action="store_true", help="keep the key without trying it")
    parser.add_argument("--forget", action="store_true", help="remove the kept key instead")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Ask for the key, try it with one listing, keep it."""
    from orchestrator import secrets
    from providers.registry import KEY_FORMS, KEYS, OWN_WAYS, names

    name, home = args.provider, Home.from_env()
    variable = KEYS.get(name)
    if variable is None:
        known = name in names()
        why = f"{name} has no key that could be kept" if known else f"no provider is called {name!r}"
        raise CliError(why, next=f"gpujob login {'|'.join(sorted(KEYS))}", code=exits.USAGE)
    if args.forget:
        return _forget(home, name, variable)
    key = _read(KEY_FORMS.get(name, variable)).strip()
    if not key:
        raise CliError("the key is empty; nothing was kept", where=name)
    if not args.unchecked:
        _try(home, name, key)
    home.make()
    where = secrets.set_secret(home, variable, key)
    shadowed = bool(os.environ.get(variable)) and os.environ[variable] != key
    winning = [each for each in OWN_WAYS.get(name, ()) if os.environ.get(each)]
    if args.output == "json":
        print_json({"provider": name, "variable": variable, "kept_in": where, "checked": not args.unchecked})
    else:
        seen = "the key was not tried" if args.unchecked else f"{name} took the key"
        say(f"{seen}; it is kept in {where}; a spec without `providers` may use {name} from now on")
    if shadowed:
        say(f"{variable} is set in this shell to another key, which wins while it is set")
    if winning:
        say(f"{', '.join(winning)} is set in this shell and wins over the kept key while it is set")
    return exits.OK


def _read(what: str) -> str:
    """From the terminal without echo, else the first line of stdin."""
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass(f"{what}: ")
    return sys.stdin.readline()


def _try(home: Home, name: str, key: str) -> None:
    """One listing made with `key`. Raises CliError with the provider's words."""
    from orchestrator.config import load_config
    from orchestrator.credentials import provider_config
    from providers.errors import AuthFailed, ProviderError
    from providers.registry import get_provider

    config = provider_config(home, "login", load_config(home).providers.get(name, {}))
    try:
        # Not what the shell has for this provider: the key that was given is to be tried.
        settings = {**config.settings, "credentials": "kept"}
        provider = get_provider(name, replace(config, settings=settings, secret=lambda variable: key))
        provider.list(provider.regions()[0])
    except AuthFailed as error:
        raise CliError(
            f"{name} does not take this key; nothing was kept",
            why=str(error), next=f"make a key in the console of {name}, then gpujob login {name}", code=exits.PROVIDER,
        ) from error  # fmt: skip
    except ProviderError as error:
        raise CliError(
            "the key could not be tried; nothing was kept",
            why=str(error), next=f"try again, or gpujob login {name} --unchecked", code=exits.PROVIDER,
        ) from error  # fmt: skip


def _forget(home: Home, name: str, variable: str) -> int:
    from orchestrator import secrets

    if not secrets.remove(home, variable):
        raise CliError(f"no key of {name} is kept", next="gpujob providers")
    say(f"the key of {name} is removed here; it stays valid until you revoke it in its console")
    return exits.OK


COMMANDS = {"login": Command(_add, run)}
