"""`controller status|run|stop`: the background process that does the work.

Rules: status only looks. run stays in the foreground, for a service of the system or an always-on host. stop ends
the loop between two ticks and touches no machine: rented ones go on to their own end, and every other verb starts
it again while anything is open.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from orchestrator.cli import client, exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import print_json, put, say
from orchestrator.home import Home

PING_WITHIN_S = 5.0
TOLD = ("pid", "version", "epoch", "books", "stepped_aside")  # of what the controller answers


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("status", "run", "stop"))
    parser.add_argument("--now", action="store_true", help="stop: do not wait for what is under way")
    add_output(parser)


def status(home: Home) -> dict[str, Any]:
    """What is known of the controller, as it is printed in JSON."""
    alive = client.alive(home)
    state: dict[str, Any] = {
        "alive": alive,
        "answers": False,
        "home": str(home.state),
        "log": str(home.controller_log),
        "open_rentals": 0,
        "live_jobs": 0,
    }
    if home.database.exists():
        counts = client.read_counts(home.database)
        if counts is None:
            state["error"] = "the books cannot be read, so what is open is not known: gpujob audit looks"
        state |= counts or {}
    if alive:
        try:
            answer = client.request(home, "ping", {}, PING_WITHIN_S)
        except CliError as silent:
            state["error"] = silent.what
        else:
            state["answers"] = True
            state |= {key: value for key, value in answer.items() if key in TOLD}
    return state


def run(args: argparse.Namespace) -> int:
    """One of the three."""
    home = Home.from_env()
    if args.action == "run":
        return _run(home)
    if args.action == "stop":
        return _stop(home, args.now, args.output)
    return _print(status(home), args.output)


def _print(state: dict[str, Any], output: str) -> int:
    if output == "json":
        print_json(state)
        return exits.OK
    word = "alive" if state["answers"] else "alive, but does not answer" if state["alive"] else "not running"
    known = [f"{key} {state[key]}" for key in ("pid", "version") if state.get(key)]
    put(f"controller: {word}" + (f" ({', '.join(known)})" if known else ""))
    put(f"open rentals: {state['open_rentals']}   live jobs: {state['live_jobs']}")
    put(f"log: {state['log']}")
    if state.get("stepped_aside"):
        put("it has stepped aside: a newer controller has these machines, and this one decides nothing")
        put("(two computers with copies of one state folder, or old books)")
    if "error" in state:
        put(state["error"])
    elif not state["alive"]:
        put("the next verb starts it" if state["live_jobs"] or state["open_rentals"] else "nothing needs it")
    return exits.OK


def _run(home: Home) -> int:
    if client.alive(home):
        raise CliError(
            "a controller is running already", where=str(home.state), next="gpujob controller stop, then run"
        )
    home.make()
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "orchestrator.controller"], client.controller_environment(home))


def _stop(home: Home, now: bool, output: str) -> int:
    if not client.alive(home):
        if output == "json":
            print_json({"stopped": True, "was_alive": False})
        else:
            put("controller: not running")
        return exits.OK
    client.stop(home, now)
    counts = client.open_counts(home.database)
    if output == "json":
        print_json({"stopped": True, "was_alive": True, **counts})
    else:
        put("controller: stopped")
    if counts["open_rentals"]:
        say(
            f"{counts['open_rentals']} machine(s) go on to their own hard end; nobody recovers them or brings "
            "results home meanwhile. The next verb starts the controller again."
        )
    return exits.OK


COMMANDS = {"controller": Command(_add, run)}
