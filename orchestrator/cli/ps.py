"""`ps`: one line a job, newest first.

Rules: it is run in loops and prompts, so it reads the books by a constant number of queries and imports neither the
spec's model nor a terminal library. Jobs that are over are shown with `-a`, and for a while after their end.
"""

from __future__ import annotations

import argparse
import sys
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits, own_hosts
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import (
    age,
    colourful,
    cut,
    line_width,
    money,
    money_json,
    print_json,
    put,
    span,
    table,
    utc_z,
)
from orchestrator.cli.reading import open_view, picture_of_summary, reader
from orchestrator.home import Home
from orchestrator.model import PLAY_PROVIDER
from orchestrator.words import Words, words_of

if TYPE_CHECKING:
    from orchestrator.store.listing import Summary

HEADERS = ("NAME", "STATUS", "REASON", "GPU", "PROVIDER", "SPOT", "ATTEMPT", "AGE", "LEFT", "COST")
RECENT_S = 24 * 3600.0  # an ended job is still what one asks about the next morning
WATCH_S = 2.0
MAX_JOBS = 100_000


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", help="the legs of this job")
    parser.add_argument("-a", "--all", action="store_true", help="also jobs that ended more than a day ago")
    parser.add_argument("-w", "--watch", action="store_true", help="again every 2 s, until Ctrl-C")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the list once, or until Ctrl-C."""
    home = Home.from_env()
    while True:
        if args.job:
            _legs(home, args)
            if not args.watch or not _paused():
                return exits.OK
            continue
        now = time.time()
        lines = _lines(home, args.all, now)
        if args.watch and colourful(sys.stdout):
            sys.stdout.write("\x1b[H\x1b[2J")
        if args.output == "json":
            print_json([as_json(line, words, now) for line, words in lines])
        else:
            _print(home, lines, args.all, now)
        if not args.watch:
            return exits.OK
        if not _paused():
            return exits.OK


def _paused() -> bool:
    """Wait for the next look; False when Ctrl-C ends the watch, which interrupts nothing."""
    sys.stdout.flush()
    try:
        time.sleep(WATCH_S)
    except KeyboardInterrupt:
        return False
    return True


def _legs(home: Home, args: argparse.Namespace) -> None:
    """One line a leg, slice or replica."""
    from orchestrator.cli.leg_view import legs_json, legs_table

    view = open_view(home, args.job)
    if not view.many:
        raise CliError(f"{view.job.name} is one task, not many", next=f"gpujob describe {view.job.name}")
    if args.watch and colourful(sys.stdout):
        sys.stdout.write("\x1b[H\x1b[2J")
    if args.output == "json":
        print_json(legs_json(view))
        return
    put(f"{view.job.name}.{view.job.run}  {view.words.state}  {view.words.reason}  {view.words.detail}".rstrip())
    put(legs_table(view))


def _lines(home: Home, everything: bool, now: float) -> list[tuple[Summary, Words]]:
    if not home.database.exists():
        return []
    with reader(home) as store:
        lines = store.summaries(live_only=False, limit=MAX_JOBS, now=now)
    shown = [line for line in lines if everything or line.terminal_at is None or now - line.terminal_at < RECENT_S]
    return [(line, words_of(picture_of_summary(line), now)) for line in shown]


def _print(home: Home, lines: list[tuple[Summary, Words]], everything: bool, now: float) -> None:
    if not lines:
        put("no jobs" if everything else "no jobs; `gpujob ps -a` lists older ones, `gpujob init` writes a spec")
        return
    newest: dict[str, int] = {}
    for line, _ in lines:
        newest[line.name] = max(line.run, newest.get(line.name, 0))
    rows = [row(line, words, now, line.run == newest[line.name]) for line, words in lines]
    put(table(HEADERS, rows, shrink=("NAME", "REASON"), right=("AGE", "LEFT", "COST")))
    for line, _ in lines:
        if mark_of(line):
            put(cut(f"! {line.name}: {line.alarms[0].get('text')} (gpujob describe {line.name})", line_width()))
    over = [(line, words) for line, words in lines if line.terminal_at is None and line.outcome is not None]
    for line, words in over:
        if line.open_rentals:
            rate = money(line.hourly, line.currency, is_play_line(line))
            put(f"{line.name} is {line.outcome}, but {line.rental} still bills {rate}/h: {words.next}")
    if any(line.provider == own_hosts.PROVIDER and not line.open_rentals for line, _ in lines):
        for text in own_hosts.still_yours(home):
            put(text)


def row(line: Summary, words: Words, now: float, newest: bool) -> tuple[str, ...]:
    """The cells of one job; NAME alone would mean the newest run."""
    gpu = f"{line.gpu}:{line.gpu_count}" if line.gpu_count > 1 else line.gpu
    if line.stand_in and gpu:
        gpu += " stand-in"
    ended = line.terminal_at
    left = (
        line.end - now
        if line.end is not None and ended is None and line.outcome is None and line.open_rentals
        else None
    )
    return (
        line.name if line.run == 1 and newest else f"{line.name}.{line.run}",
        words.state,
        words.reason or mark_of(line) or "-",
        gpu or "-",
        line.provider or "-",
        "-" if not line.rental else "spot" if line.spot else "no",
        words.attempt_text,
        age(now - line.created_at),
        span(left),
        _cost(line),
    )


def mark_of(line: Summary) -> str:
    """`! stalled`: money goes and the work does not; the most telling alarm that holds, empty when none does."""
    held = [str(each.get("kind")) for each in line.alarms] if line.terminal_at is None and line.outcome is None else []
    return f"! {held[0]}" if held else ""


def _cost(line: Summary) -> str:
    if not line.spent:
        return money(Decimal(0), line.currency, is_play_line(line)) if line.rental else "-"
    return " + ".join(money(amount, currency, is_play_line(line)) for currency, amount in line.spent.items())


def is_play_line(line: Summary) -> bool:
    """Whether the money of this job is not real; known before its first bill by the provider's name."""
    return line.play or line.provider == PLAY_PROVIDER


def as_json(line: Summary, words: Words, now: float) -> dict[str, Any]:
    """One job as documented in the reference of the JSON output."""
    return {
        "id": line.id,
        "name": line.name,
        "run": line.run,
        "state": str(words.state),
        "reason": words.reason or None,
        "detail": words.detail,
        "next": words.next,
        "next_at": utc_z(words.next_at),
        "outcome": line.outcome,
        "exit_code": line.exit_code,
        "attempt": words.attempt,
        "attempts_max": words.attempts_max,
        "gpu": line.gpu or None,
        "gpu_count": line.gpu_count,
        "stand_in": line.stand_in,
        "provider": line.provider or None,
        "region": line.region or None,
        "spot": line.spot,
        "rental": line.rental or None,
        "open_rentals": line.open_rentals,
        "hourly": money_json(line.hourly, line.currency, is_play_line(line)),
        "created_at": utc_z(line.created_at),
        "end": utc_z(line.end),
        "terminal_at": utc_z(line.terminal_at),
        "tasks": {"all": line.tasks, "over": line.tasks_over, "running": line.tasks_running} if line.tasks else None,
        "step": line.step,
        "total": line.total,
        "spent": [money_json(amount, currency, is_play_line(line)) for currency, amount in line.spent.items()],
        "reserved": [money_json(amount, currency, is_play_line(line)) for currency, amount in line.reserved.items()],
        "age_s": round(now - line.created_at, 3),
        "alarms": [str(each.get("kind")) for each in line.alarms],
    }


COMMANDS = {"ps": Command(_add, run)}
