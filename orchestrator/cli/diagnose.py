"""`diagnose`: why a log ends as it does, for a file, a job of the books, or whatever comes through a pipe.

Rules: it reads and says, and changes nothing. Exit 0 whatever it finds: that a log explains a failure is no failure of
this command. A log is read as a stream, so it may be larger than memory.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import paint, print_json, put, say
from orchestrator.home import Home

if TYPE_CHECKING:
    from orchestrator.diagnosis import Circumstances, Diagnosis, Reaction
    from orchestrator.model import Assignment, Rental

STDIN = "-"
WHERE = {"same": "on the same machine", "other": "on another machine", "any": "on any machine"}


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="FILE|JOB|-", nargs="?", help="a file, a job (NAME@3: an attempt), - for stdin")
    parser.add_argument("--exit-code", type=int, metavar="N", help="how the program ended, where that is known")
    parser.add_argument("--dmesg", metavar="FILE", help="the kernel's lines of that machine (dmesg > FILE)")
    parser.add_argument("--disk-full", action="store_true", help="the disk was full when it ended")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Read, decide, print."""
    from orchestrator.diagnosis import Circumstances, diagnose

    known = Circumstances(
        exit_code=args.exit_code,
        dmesg=_lines(args.dmesg) if args.dmesg else (),
        disk_full=True if args.disk_full else None,
    )
    name = args.log if args.log is not None else _piped()
    if name == STDIN:
        found = diagnose(sys.stdin.buffer, known)
    elif names_a_file(name):
        found = diagnose(Path(name), known)
    else:
        found = _of_job(name, known)
    if args.output == "json":
        print_json(document(found))
    else:
        put("\n".join(report(found)))
    return exits.OK


def names_a_file(name: str) -> bool:
    """Whether the word means a log file of this computer and no job; `pull JOB` makes a folder JOB, which is no log."""
    return os.sep in name or (os.path.lexists(name) and not os.path.isdir(name))


def _piped() -> str:
    if sys.stdin.isatty():
        raise CliError("nothing to diagnose", next="gpujob diagnose FILE, gpujob diagnose JOB, or pipe a log into it")
    return STDIN


def _lines(name: str) -> tuple[str, ...]:
    return tuple(Path(name).read_text(encoding="utf-8", errors="replace").splitlines())


def _of_job(ref: str, given: Circumstances) -> Diagnosis:
    """A run of the books: its log, its exit, and what the provider said of its machine."""
    from dataclasses import replace

    from orchestrator.cli.follow import STAGES
    from orchestrator.cli.reading import open_view
    from orchestrator.diagnosis import diagnose

    home = Home.from_env()
    view = open_view(home, ref)
    chosen = view.current
    if chosen is None:
        raise CliError(f"{view.job.name} has run nothing yet", next=f"gpujob describe {view.job.name}")
    stages = [chosen.exit.stage] if chosen.exit is not None else [*STAGES[::-1]]
    paths = [home.log(view.job.id, chosen.task, chosen.n, stage) for stage in stages]
    path = next((one for one in paths if one.exists()), None)
    if path is None:
        raise CliError(f"{view.job.name} has printed nothing", next=f"gpujob describe {view.job.name}")
    if chosen.exit is None:
        say(f"{view.job.name} has not ended; this is what its log says so far")
    elif chosen.exit.rc == 0:
        say(f"{view.job.name} ended with 0; this is what its log would say of a failure")
    rental = next((one for one in view.rentals if one.id == chosen.rental), None)
    known = replace(
        given,
        exit_code=chosen.exit.rc if given.exit_code is None and chosen.exit is not None else given.exit_code,
        provider=_provider_word(chosen, rental),
    )
    return diagnose(path, known)


def _provider_word(run: Assignment, rental: Rental | None) -> Literal["", "noticed", "gone"]:
    if rental is None or rental.interrupted_at is None:
        return ""
    return "noticed" if run.exit is not None and not run.exit.lost else "gone"


# --- printing --------------------------------------------------------------------------------------------------------


def report(found: Diagnosis) -> Iterator[str]:
    """The diagnosis for people, the most important first."""
    yield f"class       {paint(found.klass, 'bold')}: {found.says}"
    place = f"line {found.line_number}" if found.line_number is not None else "not in the log"
    rank = f", rank {found.rank}" if found.rank is not None else ""
    if found.line and found.signature == "unknown":
        yield f"last line   {found.line}"
        yield "            (nothing in the log is a known error; confidence low)"
    elif found.line:
        yield f"decided by  {found.line}"
        yield f"            ({place}{rank}; {found.signature}, confidence {found.confidence})"
    yield f"again       {reaction_words(found.reaction)}"
    if found.advice:
        yield "what helps"
        yield from (f"  {number}. {step}" for number, step in enumerate(found.advice, 1))
    for note in found.notes:
        yield f"note        {note.text}"
        yield f"            (line {note.line_number}: {note.line})"
        yield from (f"            - {step}" for step in note.advice)
    if found.evidence:
        yield "evidence"
        yield from (f"  {one}" for one in found.evidence)


def reaction_words(reaction: Reaction) -> str:
    """What may be tried again, in a sentence."""
    if not reaction.relaunch:
        return "no: the same would happen again"
    often = {None: "yes", 1: "once", 2: "twice"}.get(reaction.times, f"{reaction.times} times")
    return f"{often}, {WHERE[reaction.where]}" + (f", {reaction.first}" if reaction.first else "")


def document(found: Diagnosis) -> dict[str, Any]:
    """The diagnosis for programs; the keys are listed in the reference."""
    return {
        "class": found.klass,
        "signature": found.signature,
        "says": found.says,
        "line": found.line,
        "line_number": found.line_number,
        "rank": found.rank,
        "confidence": found.confidence,
        "again": {
            "relaunch": found.reaction.relaunch,
            "where": found.reaction.where if found.reaction.relaunch else None,
            "times": found.reaction.times,
            "first": found.reaction.first,
        },
        "advice": list(found.advice),
        "evidence": list(found.evidence),
        "notes": [
            {"text": note.text, "line": note.line, "line_number": note.line_number, "advice": list(note.advice)}
            for note in found.notes
        ],
    }


COMMANDS = {"diagnose": Command(_add, run)}
