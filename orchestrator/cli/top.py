"""`top`: running jobs and how busy their machines are, again and again; one job card by card; Prometheus' text.

Rules: it reads the books and the series on this computer, never a machine. Without a terminal, with `--once`, with
`-o json` and with `--prometheus` it prints once.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import clock_time, money_json, print_json, span, table
from orchestrator.cli.ps import is_play_line, mark_of
from orchestrator.cli.reading import open_view, picture_of_summary, reader
from orchestrator.cli.vitals import (
    Vitals,
    alarm_json,
    alarm_lines,
    as_json,
    card_words,
    chart,
    cpu_words,
    disk_words,
    flow,
    known,
    of,
    pace_words,
    vitals_of,
)
from orchestrator.home import Home
from orchestrator.model import Assignment, Rental
from orchestrator.store.rows import Progress
from orchestrator.words import Words, newest_run, words_of

if TYPE_CHECKING:
    from orchestrator.cli.reading import View
    from orchestrator.store.listing import Summary

HEADERS = ("NAME", "STATUS", "STEP", "PACE", "GPU", "MEMORY", "TEMP", "POWER", "CPU", "RAM", "SEEN", "ALARM")
RIGHT = ("STEP", "PACE", "GPU", "MEMORY", "TEMP", "POWER", "CPU", "RAM", "SEEN")
MACHINES = ("LEG", "MACHINE", *HEADERS[2:])
AGAIN_S = 2.0
MAX_JOBS = 100_000


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", help="one job, card by card; left out: all that are not over")
    parser.add_argument("--once", action="store_true", help="print once; so it is without a terminal")
    parser.add_argument("--prometheus", action="store_true", help="print Prometheus' text format, once")
    parser.add_argument("--to", metavar="FILE", help="write that text to FILE, whole, for a textfile collector")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print once, or until Ctrl-C."""
    home = Home.from_env()
    if args.prometheus or args.to:
        return _prometheus(home, args)
    live = sys.stdout.isatty() and not args.once and args.output != "json"
    while True:
        shown = _one(home, args) if args.job else _all(home, args)
        if live:
            sys.stdout.write("\x1b[H\x1b[2J")
        sys.stdout.write(shown)
        sys.stdout.flush()
        if not live:
            return exits.OK
        try:
            time.sleep(AGAIN_S)
        except KeyboardInterrupt:  # the way out of a watch, no interruption of anything
            return exits.OK


def _prometheus(home: Home, args: argparse.Namespace) -> int:
    from orchestrator.cli import prometheus

    now = time.time()
    page = prometheus.text([sick_of(line, words, found) for line, words, found in _lines(home, args.job, now)], now)
    if not args.to:
        sys.stdout.write(page)
        return exits.OK
    try:
        prometheus.write(Path(args.to), page)
    except OSError as error:
        raise CliError(
            f"cannot be written: {error.strerror}", where=args.to, next="name a folder that is there"
        ) from None
    return exits.OK


def _lines(home: Home, name: str | None, now: float) -> list[tuple[Summary, Words, Vitals | None]]:
    """Every job that is not over, newest first, with its newest machine's vitals; or the one that is meant."""
    if name is not None:
        wanted = open_view(home, name).job.id
    if not home.database.exists():
        return []
    with reader(home) as store:
        lines = store.summaries(live_only=name is None, limit=MAX_JOBS, now=now)
    found = []
    for line in lines:
        if name is None or line.id == wanted:
            vitals = vitals_of(home, line.id, line.rental, now) if line.rental else None
            found.append((line, words_of(picture_of_summary(line), now), vitals))
    return found


def sick_of(line: Summary, words: Words, found: Vitals | None) -> Any:
    """One job for the metrics."""
    from orchestrator.cli.prometheus import Sick

    return Sick(
        labels={"job": line.id, "name": line.name},
        info={
            "state": str(words.state), "reason": words.reason, "provider": line.provider, "region": line.region,
            "gpu": line.gpu, "gpu_count": str(line.gpu_count), "spot": str(line.spot).lower(), "rental": line.rental,
            "stand_in": str(line.stand_in).lower(), "currency": line.currency,
            "play": str(is_play_line(line)).lower(),
        },
        spent={currency: float(amount) for currency, amount in (line.spent or {line.currency: Decimal(0)}).items()},
        hourly=float(line.hourly) if line.hourly is not None and line.open_rentals else 0.0,
        step=line.step if line.step is not None else math.nan,
        total=line.total if line.total is not None else math.nan,
        alarms=[str(each.get("kind")) for each in line.alarms],
        vitals=found,
    )  # fmt: skip


def _all(home: Home, args: argparse.Namespace) -> str:
    now = time.time()
    lines = _lines(home, None, now)
    if args.output == "json":
        print_json([line_json(line, words, found, now) for line, words, found in lines])
        return ""
    if not lines:
        return "no job is running; `gpujob ps -a` lists the others\n"
    rows = [row(line, words, found, now) for line, words, found in lines]
    return f"{clock_time(now)}\n{table(HEADERS, rows, shrink=('NAME', 'ALARM'), right=RIGHT)}\n"


def row(line: Summary, words: Words, found: Vitals | None, now: float) -> tuple[str, ...]:
    """The cells of one job; of one of many tasks the rows of `top JOB` tell more."""
    step = f"{line.tasks_over}/{line.tasks} over" if line.tasks else step_words(line.step, line.total)
    return cells((line.name, str(words.state)), step, found, now, mark_of(line) or "-")


def step_words(step: float | None, total: float | None) -> str:
    """`300/1000`, `300` where the last step is not known, `-` before the first."""
    return "-" if step is None else f"{step:g}/{total:g}" if total else f"{step:g}"


def cells(who: tuple[str, ...], step: str, found: Vitals | None, now: float, mark: str) -> tuple[str, ...]:
    """How one machine does: cards by their mean use, the fullest and the hottest of them, the sum of power."""
    if found is None:
        return (*who, step, *["-"] * 8, mark)
    last, cards = found.last, found.last.cards
    full = max((card.full for card in cards if card.full == card.full), default=math.nan)
    temp = max((card.temp for card in cards if card.temp == card.temp), default=math.nan)
    power = [card.power for card in cards if card.power == card.power]
    count = f" x{len(cards)}" if len(cards) > 1 else ""
    ram = 100 * last.mem_used / last.mem_total if last.mem_total > 0 else math.nan
    return (
        *who, step, pace_words(found.pace).replace(" steps", ""),
        known(last.use, "%").replace(" ", "") + count, known(full, "%").replace(" ", ""),
        known(temp, "°C").replace(" ", ""), known(sum(power) if power else math.nan, "W").replace(" ", ""),
        known(last.cpu, "%").replace(" ", ""), known(ram, "%").replace(" ", ""), span(now - last.at), mark,
    )  # fmt: skip


def line_json(line: Summary, words: Words, found: Vitals | None, now: float) -> dict[str, Any]:
    """One job as documented in the reference of the JSON output."""
    return {
        "id": line.id,
        "name": line.name,
        "run": line.run,
        "state": str(words.state),
        "reason": words.reason or None,
        "rental": line.rental or None,
        "provider": line.provider or None,
        "gpu": line.gpu or None,
        "gpu_count": line.gpu_count,
        "stand_in": line.stand_in,
        "hourly": money_json(line.hourly, line.currency, is_play_line(line)),
        "step": line.step,
        "total": line.total,
        "health": as_json(found),
        "alarms": [alarm_json(each) for each in line.alarms],
    }


def _one(home: Home, args: argparse.Namespace) -> str:
    now = time.time()
    found = _lines(home, args.job, now)
    line, words, vitals = found[0]
    view = open_view(home, args.job)
    if view.many:
        at_work = machines_of(home, view, now)
        if args.output == "json":
            machines = [machine_json(*each) for each in at_work]
            print_json({**line_json(line, words, None, now), "rental": None, "machines": machines})
            return ""
        if view.whole:
            return _machines(view, at_work, now)
        words, vitals = view.words, at_work[0][2] if at_work else None
    elif args.output == "json":
        print_json(line_json(line, words, vitals, now))
        return ""
    return "\n".join(_cards(view, line, words, vitals, now)) + "\n"


AtWork = tuple[Rental, Assignment | None, Vitals | None, Progress | None]


def machines_of(home: Home, view: View, now: float) -> list[AtWork]:
    """The machines of many tasks that live, each with the run that it is at."""
    found: list[AtWork] = []
    seen = {(each.task, each.n): each for each in view.progress}
    for rental in view.open_rentals:
        runs = [run for run in view.runs if run.rental == rental.id and run.results_at is None and not run.results_lost]
        run = newest_run(runs)
        vitals = vitals_of(home, view.job.id, rental.id, now)
        found.append((rental, run, vitals, seen.get((run.task, run.n)) if run is not None else None))
    return found


def _machines(view: View, at_work: list[AtWork], now: float) -> str:
    """One line a machine."""
    words = view.words
    rows = []
    for rental, run, vitals, seen in at_work:
        alarms = [str(each.get("kind")) for each in seen.alarms] if seen is not None else []
        step = step_words(seen.step, seen.total) if seen is not None else "-"
        who = (run.task if run is not None else "-", rental.id)
        rows.append(cells(who, step, vitals, now, f"! {alarms[0]}" if alarms else "-"))
    head = f"{clock_time(now)}  {view.job.name}  {words.state}  {words.detail}"
    if not rows:
        return f"{head}\nno machine is at work\n"
    return f"{head}\n{table(MACHINES, rows, shrink=('MACHINE', 'ALARM'), right=RIGHT, state='')}\n"


def machine_json(rental: Rental, run: Assignment | None, vitals: Vitals | None, seen: Progress | None) -> Any:
    """One machine of many tasks."""
    return {
        "rental": rental.id,
        "provider": rental.offer.provider,
        "leg": run.task if run is not None else None,
        "step": seen.step if seen is not None else None,
        "total": seen.total if seen is not None else None,
        "health": as_json(vitals),
        "alarms": [alarm_json(each) for each in seen.alarms] if seen is not None else [],
    }


def _cards(view: View, line: Summary, words: Words, found: Vitals | None, now: float) -> Iterator[str]:
    yield f"{clock_time(now)}  {line.name}  {words.state}  {words.reason or words.detail}".rstrip()
    if found is None:
        yield "no sample of its machine yet"
        return
    last = found.last
    rows = []
    for index, card in enumerate(last.cards):
        uses = [p.cards[index].util if index < len(p.cards) else math.nan for p in found.minutes]
        rows.append((str(index), card_words(card), chart(uses, 100.0)))
    if rows:
        yield table(("CARD", "USE, MEMORY, TEMPERATURE, POWER", "THE LAST HOUR"), rows)
    yield f"steps  {pace_words(found.pace)}  {chart(found.paces)}".rstrip()
    yield f"CPU    {cpu_words(last)}"
    yield f"RAM    {of(last.mem_used, last.mem_total)}"
    yield f"disk   {disk_words(last)}"
    yield f"net    {flow(last.net_in)} in, {flow(last.net_out)} out"
    yield f"seen   {span(now - last.at)} ago"
    yield from alarm_lines(line.alarms, now)


COMMANDS = {"top": Command(_add, run)}
