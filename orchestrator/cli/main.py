"""The entry point: find the verb, run it, and turn whatever happens into an exit code and a sentence.

Rules: nothing heavy is imported before a verb asks for it. No traceback ever reaches the user: a bug leaves a crash
report without secrets, and one line that names it. Ctrl-C ends only this command: the job goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from orchestrator.cli import commands, exits
from orchestrator.cli.exits import CliError

#: These neither read the books nor need a controller, or are about the controller itself.
_NO_WAKE = frozenset({"breakeven", "completion", "controller", "estimate", "init", "schema"})


def usage() -> str:
    """The text of `gpujob --help`."""
    lines = [
        "usage: gpujob VERB [OPTIONS]",
        "",
        "Runs a job on rented GPUs from one YAML file, and gives the machines back.",
        "",
        *(f"  {verb:<11} {help}" for verb, (help, _) in commands.VERBS.items()),
        "",
        "`gpujob VERB --help` lists a verb's options.",
        "JOB is NAME, NAME.2 (a run), NAME@3 (an attempt), NAME/LEG (of a sweep) or NAME/best.",
        "Options of every verb: --help, --no-color; -o json on every verb that prints. `gpujob --version`.",
        "",
        "Exit codes:",
        *(f"  {code:<3} {text}" for code, text in exits.MEANINGS.items()),
    ]
    return "\n".join(lines) + "\n"


def dispatch(argv: Sequence[str]) -> int:
    """Run the verb in `argv` and return its exit code; raises what the verb raises."""
    words = list(argv)
    while words and words[0] == "--no-color":
        words.pop(0)
        _forbid_colour()
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(usage())
        return exits.OK if words else exits.USAGE
    if words[0] in ("-V", "--version"):
        from orchestrator.version import installed

        print(f"gpujob {installed()}")
        return exits.OK
    verb, rest = words[0], words[1:]
    if verb == "_remote":  # what gpujob on another computer runs here
        from orchestrator.cli import far_end

        return far_end.run(rest)
    if verb.startswith("-"):
        raise CliError(f"unknown option {verb}", next="see `gpujob --help`")
    if verb not in commands.VERBS:
        raise commands.unknown_verb(verb)
    parser, command = commands.parser_of(verb)
    args = parser.parse_args(rest) if command.rest else parser.parse_intermixed_args(rest)
    args.verb = verb
    if args.no_color:
        _forbid_colour()
    if verb not in _NO_WAKE:
        _wake()
    if os.environ.get("GPUJOB_CONTROLLER", "").startswith("ssh:"):
        from orchestrator.cli import remote

        if remote.runs_there(args):
            return remote.run(args, rest)
    return command.run(args)


def _forbid_colour() -> None:
    from orchestrator.cli.output import forbid_colour

    forbid_colour()


def _wake() -> None:
    """Restart a dead controller while anything is open: nothing may bill because nobody looked."""
    from orchestrator.home import Home

    home = Home.from_env()
    if home.database.exists():
        from orchestrator.cli.client import wake

        wake(home)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `gpujob`; returns the exit code and never raises, except SystemExit(0) from argparse's --help."""
    words = sys.argv[1:] if argv is None else list(argv)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # a service or a shell closed it: what is said there has no reader
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        code = dispatch(words)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse's --help
        return stop.code if isinstance(stop.code, int) else exits.OK
    except KeyboardInterrupt:
        _complain(["", "gpujob: interrupted; a job that was applied goes on (`gpujob ps`)"])
        return exits.INTERRUPTED
    except BrokenPipeError:
        # Whatever is still buffered has no reader: keep the interpreter's own flush from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.CLOSED_PIPE
    except CliError as error:
        _complain(error.lines())
        return error.code
    except Exception as error:
        from orchestrator.cli.trouble import explain

        lines, code = explain(error, words[0] if words else "")
        _complain(lines)
        return code


def _complain(lines: list[str]) -> None:
    from orchestrator.cli import stage
    from orchestrator.cli.output import say

    say(stage.shown("\n".join(lines)))


if __name__ == "__main__":
    sys.exit(main())
