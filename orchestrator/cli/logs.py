"""`logs`: what a job printed, of any attempt; kept on this computer for as long as the job is.

Rules: stdout is the log itself, byte for byte (secrets masked when it was stored); everything else is on stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_job, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.follow import STAGES, LogCursor, follow
from orchestrator.cli.output import say
from orchestrator.cli.reading import View, exit_code_of, open_view
from orchestrator.home import Home
from orchestrator.model import Assignment
from orchestrator.words import newest_run


def _add(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on printing, over attempts, until the job ends")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--attempt", type=int, metavar="N", help="of this attempt (as JOB@N)")
    which.add_argument("-p", "--previous", action="store_true", help="of the attempt before the newest")
    parser.add_argument("--setup", action="store_true", help="setup and smoke instead of run")
    parser.add_argument("--tail", type=_lines, metavar="N", help="only the last N lines")
    parser.add_argument("--since", metavar="10m", help="only what was printed since then")
    add_output(parser)


def _lines(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Print, and with -f go on."""
    home = Home.from_env()
    ref = args.job if args.attempt is None else f"{args.job}@{args.attempt}"
    view = open_view(home, ref)
    since = _since(args.since, view.now)
    if args.follow:
        return _follow(home, view, args, since)
    chosen = _choose(view, args.previous)
    if chosen is None:
        words = view.words
        say(f"{view.job.name} has printed nothing yet: {words.state} {words.reason}, {words.next}")
        return exits.OK
    stages = _stages(home, view.job.id, chosen, args.setup)
    if not any(home.log(view.job.id, chosen.task, chosen.n, stage).exists() for stage in stages):
        say(f"{' and '.join(stages)} of {view.job.name} printed nothing so far: {view.words.state}, {view.words.next}")
    for stage in stages:
        path = home.log(view.job.id, chosen.task, chosen.n, stage)
        data = part(path, args.tail, since)
        if args.output == "json":
            _print_json(chosen, stage, data)
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return exits.OK


def _choose(view: View, previous: bool) -> Assignment | None:
    if not previous:
        return view.current
    newest = newest_run(view.runs)
    before = newest_run(run for run in view.runs if run is not newest)
    if before is None:
        raise CliError(f"{view.job.name} has no attempt before the newest", next=f"gpujob logs {view.job.name}")
    return before


def _stages(home: Home, job: str, run: Assignment, setup: bool) -> Sequence[str]:
    """The stages to print: those asked for, or what there is when the run itself never started."""
    if setup:
        return ("setup", "smoke")
    there = [stage for stage in STAGES if home.log(job, run.task, run.n, stage).exists()]
    if "run" not in there and there:
        say(f"run has not started; this is {' and '.join(there)}")
        return there
    return ("run",)


def _since(text: str | None, now: float) -> float | None:
    if text is None:
        return None
    from jobspecs.problems import Refusal
    from jobspecs.units import parse_duration

    try:
        return now - parse_duration(text).seconds
    except Refusal as refusal:
        raise CliError(refusal.reason, where="--since", next=refusal.hint) from None


def part(path: Path, lines: int | None, since: float | None) -> bytes:
    """The part of a log that was asked for, in memory only as far as it must be."""
    from orchestrator.logs import offset_at, read_from, tail

    start = offset_at(path, since) if since is not None else 0
    if lines is not None and not start:
        return tail(path, lines)
    data = b""
    while chunk := read_from(path, start + len(data)):
        data += chunk
    return data if lines is None else b"".join(data.splitlines(keepends=True)[-lines:] if lines else [])


def _print_json(run: Assignment, stage: str, data: bytes) -> None:
    for line in data.decode("utf-8", "replace").splitlines():
        sys.stdout.write(json.dumps({"run": run.key, "stage": stage, "line": line}, ensure_ascii=False) + "\n")


def _follow(home: Home, view: View, args: argparse.Namespace, since: float | None) -> int:
    if args.output == "json":
        raise CliError("-f prints the log itself", next="leave -o json out, or -f")
    stages = ("setup", "smoke") if args.setup else STAGES
    cursor = LogCursor(home, view.job.id, stages)
    earlier = [run for run in view.runs if view.current is not None and run.n < view.current.n]
    for run in earlier:  # only the newest attempt is shown from its start
        for stage in STAGES:
            path = home.log(view.job.id, run.task, run.n, stage)
            if path.exists():
                cursor.offsets[path] = path.stat().st_size
    if view.current is not None and (args.tail is not None or since is not None):
        for stage in stages:
            path = home.log(view.job.id, view.current.task, view.current.n, stage)
            if path.exists():
                cursor.offsets[path] = path.stat().st_size - len(part(path, args.tail, since))
    last = follow(home, view.ref, cursor, until_released=False)
    words = last.words
    say(f"{last.job.name}: {last.job.outcome} ({words.reason}) {last.job.detail}".rstrip())
    return exit_code_of(last.job)


COMMANDS = {"logs": Command(_add, run)}
