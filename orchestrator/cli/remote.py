"""`GPUJOB_CONTROLLER=ssh://HOST`: verbs run on HOST, where the controller, its books and its keys are.

A verb is laid down over there with what it reads of this computer, then called over ssh with our stdin, stdout,
stderr, terminal and signals; files that it writes for us come back by rsync.

Rules
- What needs no controller (specs, estimates, a log file) stays here and asks no network.
- A connection that breaks ends this command only. After a broken `apply` the far end is asked what it accepted.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.cli import exits
from orchestrator.cli.commands import VERBS
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import say
from orchestrator.cli.remote_link import LOST, Link, ended, link
from orchestrator.home import Home

HERE = frozenset({"init", "validate", "schema", "completion", "estimate", "breakeven", "doctor"})
_READS_STDIN = frozenset({"ssh", "secret", "login", "host"})
_ITS_OWN_CODES = frozenset({"ssh", "attach"})  # their exit code is another program's, 255 as well


def runs_there(args: argparse.Namespace) -> bool:
    """Whether this verb belongs to the controller's host."""
    if args.verb == "diagnose":
        from orchestrator.cli.diagnose import names_a_file

        return args.log is not None and args.log != "-" and not names_a_file(args.log)
    return args.verb in VERBS and args.verb not in HERE


def run(args: argparse.Namespace, words: list[str]) -> int:
    """Run the verb over there; its exit code."""
    far = link(Home.from_env())
    special: Mapping[str, Callable[[Link, argparse.Namespace, list[str]], int]] = {
        "apply": _apply, "plan": _apply, "pull": _pull, "forward": _forward,
    }  # fmt: skip
    if getattr(args, "dmesg", None):
        raise CliError(
            "the kernel's lines are taken for a log file of this computer", next="gpujob diagnose FILE --dmesg FILE"
        )
    if args.verb == "top" and args.to:
        raise CliError("--to writes on the controller's host", next=f"gpujob top --prometheus > {args.to}")
    if args.verb == "compare" and args.html:
        return _compare(far, args, words)
    return special.get(args.verb, _plain)(far, args, words)


def _plain(far: Link, args: argparse.Namespace, words: list[str]) -> int:
    return _called(far, args.verb, far.ask({"call": call_of(far, args.verb, words)})["token"])


def call_of(far: Link, verb: str, words: list[str], **more: Any) -> dict[str, Any]:
    """The document of one call."""
    from orchestrator.config import CONFIG_VARIABLES, SPEC_VARIABLES

    names = ("NO_COLOR", "TZ", *SPEC_VARIABLES, *CONFIG_VARIABLES)
    env = {name: os.environ[name] for name in names if name in os.environ}
    zone = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    if zone:
        env.setdefault("TZ", zone)  # tables show local time, which is the reader's
    call = {"words": [verb, *words], "cwd": os.getcwd(), "env": env, "surveys": {}, "host": far.name}
    return call | more | {"env": {**env, **more.get("env", {})}}


def _called(far: Link, verb: str, token: str) -> int:
    """Call a laid-down verb to its end. Raises CliError when the connection breaks."""
    terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    sys.stdout.flush()
    code = ended(far.call(token, terminal=terminal, stdin=verb in _READS_STDIN))
    if code == LOST and verb not in _ITS_OWN_CODES:
        raise CliError(
            f"the connection to {far.name} broke; what was under way there goes on", where=f"gpujob {verb}",
            next=f"gpujob {verb} again, or gpujob ps", code=exits.PROVIDER,
        )  # fmt: skip
    return code


def without(words: list[str], *options: str) -> list[str]:
    """The words but for these options and their values."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*kept, word, *rest]
        if word in options:
            next(rest, None)
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept


def _apply(far: Link, args: argparse.Namespace, words: list[str]) -> int:
    """Check here, send what the specs read, run it there; after a break ask what was accepted."""
    from orchestrator.cli import staging

    if args.verb == "apply" and args.replace and args.replace.endswith((".yaml", ".yml")):
        args.specs.append(args.replace)
    defaults = far.ask({"defaults": True})["defaults"]
    cargo = staging.gather(far.home, args, defaults, far.name)
    answer = staging.send(far, cargo)
    words = [*(word for pair in cargo.given for word in ("--env", pair)), *without(words, "--env", "--env-file")]
    call = call_of(far, args.verb, words, env=cargo.env, surveys=cargo.surveys, stdin=cargo.stdin)
    token = far.ask({"call": call})["token"]
    try:
        code = _called(far, args.verb, token)
    except CliError as broken:
        if args.verb == "plan":
            raise
        raise _outcome(far, cargo.names, answer["now"], broken) from None
    if code == exits.OK and args.verb == "apply" and args.output == "table" and not args.dry_run:
        say(f"results come to {far.name}; `gpujob pull {cargo.names[0]}` brings them here")
    return code


def _outcome(far: Link, names: list[str], since: float, broken: CliError) -> CliError:
    """What became of an apply whose connection broke."""
    again = "the same gpujob apply again is safe: a job that runs is not started twice"
    try:
        accepted = far.ask({"accepted": names, "since": since})["accepted"]
    except CliError:
        return CliError(
            f"the connection to {far.name} broke; whether it accepted {', '.join(names)} is not known yet",
            where=broken.where, next=f"when it is back: gpujob ps; {again}", code=exits.PROVIDER,
        )  # fmt: skip
    if accepted:
        return CliError(
            f"the connection to {far.name} broke; {', '.join(accepted)} was accepted and goes on", where=broken.where,
            next=f"gpujob logs {names[0]} -f", code=exits.PROVIDER,
        )  # fmt: skip
    return CliError(
        f"the connection to {far.name} broke; no new job was accepted", where=broken.where, next=again,
        code=exits.PROVIDER,
    )  # fmt: skip


def _pull(far: Link, args: argparse.Namespace, words: list[str]) -> int:
    """Let the far end pull into a folder of ours, then bring that here; a cut copy goes on, in both halves."""
    from orchestrator.cli.pull import RSYNC, Brought, copied

    folder = "pulls/" + hashlib.sha256(json.dumps([args.job, args.glob]).encode()).hexdigest()[:16]
    words = ["-o", "json", *without(words, "--to", "-o", "--output")]
    token = far.ask({"call": call_of(far, "pull", words, folder=folder)})["token"]
    process = far.call(token, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read()
    code = ended(process)
    if code == LOST:
        raise CliError(
            f"the connection to {far.name} broke", where="gpujob pull", code=exits.PROVIDER,
            next="the same command goes on from there",
        )  # fmt: skip
    if code != exits.OK:
        return code
    source = str(json.loads(said)["to"])
    dest = Path(args.to or source.partition(f"/{folder}/")[2])
    brought = Brought(dest)
    dest.mkdir(parents=True, exist_ok=True)
    _, *options = RSYNC
    copied([*far.rsync(*options), far.place(f"{source}/"), f"{dest}/"], far.name, args.job)
    far.ask({"forget": [folder]})
    brought.say(args.output)
    return exits.OK


def _compare(far: Link, args: argparse.Namespace, words: list[str]) -> int:
    """The page is written over there and brought here."""
    page = "pages/" + os.urandom(8).hex()
    base = far.ask({})["stage"]
    call = call_of(far, "compare", ["--html", f"{base}/{page}", *without(words, "--html")])
    code = _called(far, "compare", far.ask({"call": call})["token"])
    if code == exits.OK:
        Path(args.html).write_bytes(base64.b64decode(far.ask({"page": page})["page"]))
    return code


def _forward(far: Link, args: argparse.Namespace, words: list[str]) -> int:
    """Two forwards in a row: here to a free port of the far end's loopback, and from there to the machine."""
    from orchestrator.cli.shell import forwards

    ports = args.ports or far.ask({"ports_of": args.job})["ports"]
    pairs = forwards(ports)
    middle = far.ask({"free_ports": len(pairs)})["free_ports"]
    words = [args.job, *(f"{port}:{machine}" for port, (_, machine) in zip(middle, pairs, strict=True))]
    token = far.ask({"call": call_of(far, "forward", words)})["token"]
    options = ["-o", "ExitOnForwardFailure=yes"]
    for port, (local, machine) in zip(middle, pairs, strict=True):
        options += ["-L", f"127.0.0.1:{local}:127.0.0.1:{port}"]
        say(f"http://127.0.0.1:{local}  ->  port {machine} of {args.job}'s machine, through {far.name}")
    # A connection of its own: through the shared one the forwards would outlive this command.
    code = ended(far.call(token, options=tuple(options), shared=False))
    if code == LOST:
        raise CliError(
            f"the forward through {far.name} ended", where="gpujob forward", code=exits.PROVIDER,
            next=f"gpujob describe {args.job} shows whether its machine is there",
        )  # fmt: skip
    return code


def finding(home: Home) -> tuple[str, str, str]:
    """For the doctor: level, text and next step of the way to that host."""
    try:
        far = link(home)
        answer = far.ask({})
    except CliError as error:
        return "fail", f"{error.where}: {error.what}" + (f" ({error.why})" if error.why else ""), error.next
    return "ok", f"{far.name} answers, gpujob {answer['version']}", f"ssh {far.host} gpujob doctor checks that side"
