"""`report`: what a month or the last days cost, on what, and how much of it computed. Reads the books; asks nobody."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import local_time, money, money_json, print_json, put, span, table, utc_z
from orchestrator.home import Home

if TYPE_CHECKING:
    from orchestrator.money_report import Amounts, GpuLine, Machine, Report
    from orchestrator.store import Store

DAY_S = 86_400
NAMES_SHOWN = 10
PHASE_WORDS = {
    "boot": "until the machine answered",
    "transfer": "code, data, results",
    "setup": "setup and smoke",
    "train": "the program itself",
    "idle": "after the program's end",
    "teardown": "from the release to its confirmation",
    "unassigned": "not recorded",
    "rounding": "minimum billing and steps",
}


def _add(parser: argparse.ArgumentParser) -> None:
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--month", metavar="YYYY-MM", help="a month, UTC; left out: this one")
    when.add_argument("--since", metavar="TIME", help="the last 30d, 2w, 12h")
    parser.add_argument("--play", action="store_true", help="play money too, as sums of its own")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    now = time.time()
    since, until = period(args, now)
    found = load(Home.from_env(), since, until, now, args.play)
    if args.output == "json":
        print_json(as_json(found))
    else:
        put("\n".join(text(found)))
    return exits.OK


def period(args: argparse.Namespace, now: float) -> tuple[float, float]:
    """[since, until) of the options, UTC epoch seconds. Raises CliError."""
    if args.since:
        from jobspecs.problems import Refusal
        from jobspecs.units import parse_duration

        try:
            length = parse_duration(args.since).seconds
        except Refusal as refusal:
            raise CliError(refusal.reason, where="--since", next=refusal.hint) from None
        return now - length, now
    said = args.month or datetime.fromtimestamp(now, UTC).strftime("%Y-%m")
    match = re.fullmatch(r"(\d{4})-(\d{2})", said, re.ASCII)
    if not match or not 1 <= int(match[2]) <= 12 or int(match[1]) < 1970:
        raise CliError(f"{said!r} is not a month", where="--month", next="write it like 2026-11")
    year, month = int(match[1]), int(match[2])
    first = datetime(year, month, 1, tzinfo=UTC)
    following = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    return first.timestamp(), min(following.timestamp(), max(now, first.timestamp()))


def load(home: Home, since: float, until: float, now: float, play: bool) -> Report:
    """The report of [since, until), from the books and the stored events of its machines."""
    from orchestrator.cli.reading import reader
    from orchestrator.config import load_config
    from orchestrator.money_report import report

    config = load_config(home)
    currency, rates = config.currency, config.rates_to(config.currency)
    if not home.database.exists():
        return report((), {}, {}, since, until, currency, rates)
    with reader(home) as store:
        bills = [bill for bill in store.ledger(since=since) if bill.since < until and (play or not bill.play)]
        names = {job: store.job(job).name for job in {bill.job for bill in bills}}
        ends: dict[str, float] = {}
        for bill in bills:
            ends[bill.rental] = max(ends.get(bill.rental, 0.0), bill.until)
        machines = dict(_machines(home, store, ends, since, until))
    return report(bills, machines, names, since, until, currency, rates)


def _machines(
    home: Home, store: Store, ends: Mapping[str, float], since: float, until: float
) -> Iterator[tuple[str, Machine]]:  # fmt: skip
    """What was recorded of each rental."""
    from orchestrator.money_report import Machine
    from orchestrator.paid_time import busy_of, phases_of, read_events, stages_of

    for rental_id, end in ends.items():
        rental = store.rental(rental_id)
        job = store.job(rental.job)
        runs = [run for run in store.assignments(rental.job) if run.rental == rental_id]
        events = list(read_events(home.events(rental.job, rental_id)))
        start = rental.create_sent_at or rental.created_at
        yield (
            rental_id,
            Machine(
                rental,
                phases_of(rental, runs, stages_of(events), end, (since, until)),
                busy_of(events, max(start, since), min(end, until)),
                orphaned=rental.open and job.terminal_at is not None,
            ),
        )


def amounts(found: Amounts) -> str:
    """`12.40 USD + 3.00 (play)`; `-` for nothing."""
    shown = [money(amount, unit.currency, unit.play) for unit, amount in sorted(found.items()) if amount]
    return " + ".join(shown) or "-"


def text(found: Report) -> Iterator[str]:
    """The lines for a terminal."""
    yield f"{local_time(found.since)} to {local_time(found.until)}"
    yield ""
    rows = [(name, amounts(found.classes[name]), _share(found, name)) for name in found.classes]
    yield table(("SPENT ON", "AMOUNT", "SHARE"), [*rows, ("all", amounts(found.total), "")],
                right=("AMOUNT", "SHARE"), state="")  # fmt: skip
    if not found.gpus:
        return
    yield ""
    columns = ("MACHINES", "N", "HOURS", "PRICE/H", "AMOUNT", "BUSY H", "BUSY")
    yield table(columns, [_gpu_row(line) for line in found.gpus], right=columns[1:], state="")
    yield ""
    yield table(("PAID TIME", "HOURS", "SHARE", "WHAT"), list(_phase_rows(found)), right=("HOURS", "SHARE"), state="")
    yield ""
    if found.bad_host_s:
        yield f"bad hosts  {span(found.bad_host_s)} on machines that were unusable, {amounts(found.bad_host)}"
    yield _demand(found)
    for flag in found.flags:
        yield f"look at    {flag.text}: {money(flag.amount, flag.unit.currency, flag.unit.play)}"
    yield ""
    yield table(("JOB", "AMOUNT"), [(name, amounts(each)) for name, each in found.names[:NAMES_SHOWN]],
                right=("AMOUNT",), shrink=("JOB",), state="")  # fmt: skip
    if len(found.names) > NAMES_SHOWN:
        yield f"... and {len(found.names) - NAMES_SHOWN} more"


def _share(found: Report, name: str) -> str:
    """Of the whole, where all of it is in one unit."""
    if len(found.total) != 1:
        return ""
    (unit, whole), = found.total.items()  # fmt: skip
    return f"{100 * found.classes[name].get(unit, Decimal(0)) / whole:.0f} %" if whole else ""


def _gpu_row(line: GpuLine) -> tuple[str, ...]:
    seen = line.seen_s > 0
    return (
        line.gpu,
        str(line.machines),
        f"{line.billed_s / 3600:.2f}",
        money(line.price, line.unit.currency, line.unit.play),
        money(line.amount, line.unit.currency, line.unit.play),
        f"{line.busy_s / 3600:.2f}" if seen else "-",
        f"{100 * line.busy_s / line.billed_s:.0f} %" if seen and line.billed_s else "-",
    )


def _phase_rows(found: Report) -> Iterable[tuple[str, ...]]:
    whole = sum(found.phases.values())
    for phase, seconds in found.phases.items():
        if seconds >= 0.5:
            yield phase, f"{seconds / 3600:.2f}", f"{100 * seconds / whole:.0f} %", PHASE_WORDS[phase]
    yield "all", f"{whole / 3600:.2f}", "", "billed"


def _demand(found: Report) -> str:
    demand = found.demand
    if demand is None:
        return "use        no samples of the cards were recorded"
    kind, peak, mean = demand
    ratio = f"{peak / mean:.1f} times the mean" if mean else ""
    advice = "a load for renting" if kind == "spiky" else "compare with owning: gpujob breakeven"
    return f"use        {kind}: {peak:.2f} h computed on the peak day, {ratio} of {mean:.2f} h; {advice}"


def _money_list(found: Amounts) -> list[dict[str, Any] | None]:
    return [money_json(amount, unit.currency, unit.play) for unit, amount in sorted(found.items())]


def as_json(found: Report) -> dict[str, Any]:
    """The report as documented in the reference of the JSON output."""
    demand = found.demand
    return {
        "since": utc_z(found.since),
        "until": utc_z(found.until),
        "classes": {name: _money_list(each) for name, each in found.classes.items()},
        "total": _money_list(found.total),
        "machines": [
            {
                "gpu": line.gpu, "machines": line.machines, "billed_s": round(line.billed_s, 3),
                "price": money_json(line.price.quantize(Decimal("0.000001")), line.unit.currency, line.unit.play),
                "amount": money_json(line.amount, line.unit.currency, line.unit.play),
                "sampled_s": round(line.seen_s, 3), "busy_s": round(line.busy_s, 3),
            }
            for line in found.gpus
        ],
        "phases_s": {phase: round(seconds, 3) for phase, seconds in found.phases.items()},
        "bad_host_s": round(found.bad_host_s, 3),
        "bad_host": _money_list(found.bad_host),
        "jobs": [{"name": name, "amount": _money_list(each)} for name, each in found.names],
        "use": {"kind": demand[0], "peak_day_h": demand[1], "mean_day_h": demand[2]} if demand else None,
        "flags": [
            {"text": flag.text, "amount": money_json(flag.amount, flag.unit.currency, flag.unit.play)}
            for flag in found.flags
        ],
    }  # fmt: skip


COMMANDS = {"report": Command(_add, run)}
