"""The shape of a verb, the parser that all verbs share, and the table of verbs.

Rules: the table holds (one-line help, module) only; a module is imported when its verb is typed. Everything here is
standard library, since `gpujob --help` pays for it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

from orchestrator.cli.exits import CliError


class Command(NamedTuple):
    """One verb: `add` declares its options, `run` does its work and returns an exit code."""

    add: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    rest: bool = False  # everything after the first positional belongs to another program (`ssh JOB CMD...`)


#: verb -> (one line for --help, module below orchestrator.cli). In the order in which one meets them.
VERBS: Mapping[str, tuple[str, str]] = {
    "init": ("write a first spec, or convert one of SkyPilot, dstack or Slurm", "spec"),
    "validate": ("check specs; no network, no cost", "spec"),
    "plan": ("show offers, hours, worst case and what ends the machine", "plan"),
    "apply": ("run a spec, or change the live job of that name", "apply"),
    "resume": ("go on with an ended job from its newest checkpoint", "change"),
    "ps": ("list jobs", "ps"),
    "top": ("how busy running jobs are, live; or as Prometheus text", "top"),
    "describe": ("one job: phases, attempts, machines, money, what happens next", "describe"),
    "logs": ("show or follow a job's log", "logs"),
    "diagnose": ("why a job or a log failed, and what helps; also from a pipe", "diagnose"),
    "diff": ("what differs between two runs or attempts", "diff"),
    "ssh": ("open a shell on the job's machine", "shell"),
    "attach": ("look into the job's terminal (tmux)", "shell"),
    "forward": ("forward the job's ports to this computer", "shell"),
    "compare": ("the legs of a sweep side by side, and the best: table, CSV, JSON, one HTML page", "compare"),
    "pull": ("copy results or other files of a job to this computer", "pull"),
    "cancel": ("end jobs: save, bring results home, release", "change"),
    "down": ("the same as cancel", "change"),
    "extend": ("move a job's hard end", "change"),
    "wait": ("wait for a job's outcome or release", "change"),
    "providers": ("who can be asked for machines, and how they differ", "providers"),
    "offers": ("what can be rented now, cheapest first", "offers"),
    "estimate": ("the GPU memory that a model needs, and the cards that hold it", "estimate"),
    "breakeven": ("from which use on owning is cheaper than renting", "breakeven"),
    "report": ("what was spent, on what, and how much of it computed", "report"),
    "audit": ("what bills at every provider, against the books: exit 3 when something unknown does", "audit"),
    "adopt": ("take machines that the books do not know back, without harming what runs", "adopt"),
    "prune": ("release machines under our own tag that the books do not know", "adopt"),
    "forget": ("end a release by hand that cannot be confirmed", "adopt"),
    "login": ("keep the key of a provider, after one call that tries it", "login"),
    "host": ("machines of your own: host add|ls|rm", "host"),
    "secret": ("set, list and remove secrets: secret set|ls|rm", "secret"),
    "controller": ("the background process: controller status|run|stop", "controller"),
    "doctor": ("check this computer", "doctor"),
    "schema": ("print the JSON Schema of a spec, for editors", "spec"),
    "completion": ("print completion for bash, zsh or tcsh", "completion"),
}

#: What people type out of habit -> what to type here. Nothing is done, since `stop` elsewhere goes on billing.
REDIRECTIONS: Mapping[str, str] = {
    "stop": "gpujob cancel JOB   (saves, brings results home and releases the machine; nothing is only paused)",
    "kill": "gpujob cancel JOB --now   (--now skips the job's time to save)",
    "delete": "gpujob cancel JOB   (an ended job needs no deleting: nothing of it bills)",
    "rm": "gpujob cancel JOB   (an ended job needs no removing: nothing of it bills)",
    "destroy": "gpujob cancel JOB",
    "terminate": "gpujob cancel JOB",
    "launch": "gpujob apply SPEC.yaml",
    "submit": "gpujob apply SPEC.yaml",
    "run": "gpujob apply SPEC.yaml",
    "start": "gpujob apply SPEC.yaml   (or: gpujob resume JOB)",
    "create": "gpujob apply SPEC.yaml",
    "up": "gpujob apply SPEC.yaml",
    "sbatch": "gpujob init --from JOB.sh gpujob.yaml, then gpujob apply gpujob.yaml",
    "status": "gpujob ps   (or: gpujob describe JOB)",
    "queue": "gpujob ps",
    "squeue": "gpujob ps",
    "ls": "gpujob ps",
    "list": "gpujob ps",
    "get": "gpujob ps   (or: gpujob describe JOB)",
    "show": "gpujob describe JOB",
    "exec": "gpujob ssh JOB COMMAND",
    "log": "gpujob logs JOB",
    "cp": "gpujob pull JOB [GLOB]",
    "download": "gpujob pull JOB [GLOB]",
    "check": "gpujob doctor",
    "lint": "gpujob validate SPEC.yaml",
    "autostop": "ttl: in the spec, or gpujob extend JOB 2h",
    "help": "gpujob --help",
    "version": "gpujob --version",
}


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, whose errors are ours and name the nearest option."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False, add_help=True)

    def error(self, message: str) -> NoReturn:
        words = [w for w in message.split() if w.startswith("-")] if "unrecognized" in message else []
        options = [o for action in self._actions for o in action.option_strings]
        near = [n for w in words for n in difflib.get_close_matches(w.split("=")[0], options, n=1)]
        hint = f"did you mean {near[0]}? " if near else ""
        raise CliError(message, where=self.prog, next=f"{hint}see `{self.prog} --help`")


def add_output(parser: argparse.ArgumentParser) -> None:
    """`-o table|json`, for every verb that prints."""
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="table (default) or json")


def add_job(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """The positional JOB."""
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs=nargs,
        help="NAME (newest run), NAME.2 (a run), NAME@3 (an attempt), NAME/LEG, NAME/best",
    )


def load(verb: str) -> Command:
    """Import the verb's module and return its command."""
    module = importlib.import_module(f"orchestrator.cli.{VERBS[verb][1]}")
    command: Command = module.COMMANDS[verb]
    return command


def parser_of(verb: str) -> tuple[Parser, Command]:
    """The finished parser of one verb."""
    command = load(verb)
    parser = Parser(f"gpujob {verb}", VERBS[verb][0])
    parser.add_argument("--no-color", action="store_true", help="no colours (as NO_COLOR)")
    command.add(parser)
    return parser, command


def unknown_verb(word: str) -> CliError:
    """What to say to a word that is no verb: the right command, the nearest verb, or where to look."""
    if word in REDIRECTIONS:
        return CliError(f"there is no `gpujob {word}`; nothing was done", next=REDIRECTIONS[word])
    near = difflib.get_close_matches(word, [*VERBS, *REDIRECTIONS], n=1, cutoff=0.6)
    if near:
        verb = near[0]
        return CliError(f"there is no verb {word!r}", next=REDIRECTIONS.get(verb) or f"did you mean `gpujob {verb}`?")
    if word.endswith((".yaml", ".yml")):
        return CliError(f"{word!r} is a file, not a verb", next=f"gpujob apply {word}")
    return CliError(f"there is no verb {word!r}", next="see `gpujob --help`")
