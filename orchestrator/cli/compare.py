"""`compare`: the legs of a sweep side by side, and which is the best: a table, CSV, JSON, one HTML page.

Rules: CSV and JSON have every digit and every parameter, exactly as typed; the table shows what fits 100 columns and
says what it leaves out. Only what can be the winner is ranked (see `orchestrator.legs`); NaN stays visible.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.cli import exits
from orchestrator.cli.commands import Command
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import (
    MIN_COLUMN,
    counted,
    cut,
    line_width,
    money,
    money_json,
    print_json,
    put,
    say,
    span,
    table,
    utc_z,
    width_of,
)
from orchestrator.cli.sweeps import SweepView, open_sweep
from orchestrator.home import Home
from orchestrator.legs import Leg, LegState, Report

SORTS = ("rank", "order", "leg", "state", "last", "best", "step", "cost", "time", "attempts")
METRIC_WIDTH = 14  # a longer name of the metric is cut in the table; its values need no more
PARAM = "param_"  # before parameters in CSV, so that none can take the name of another column
FIXED = (
    "rank", "winner", "leg", "state", "reason", "last", "last_step", "best", "best_step", "reports", "cost", "currency",
    "play", "seconds", "attempts", "results",
)  # fmt: skip


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweep", metavar="SWEEP", help="NAME (newest run) or NAME.2 (a run) of a sweep")
    parser.add_argument(
        "-o", "--output", choices=("table", "csv", "json"), default="table", help="table (default), csv or json"
    )
    parser.add_argument("--html", metavar="FILE", help="also write a page with charts, in one file without a network")
    parser.add_argument("--curves", action="store_true", help="every report instead of a line a leg (csv, json)")
    parser.add_argument("--metric", metavar="NAME", help="refuse unless this is the sweep's metric")
    parser.add_argument(
        "--sort", metavar="COLUMN", default="rank", help=f"{', '.join(SORTS)} or a parameter; default: rank"
    )
    parser.add_argument("--reverse", action="store_true", help="the other way round")


def run(args: argparse.Namespace) -> int:
    """Print the legs, and write the page where one is asked for."""
    view = open_sweep(Home.from_env(), args.sweep)
    if args.metric and args.metric != view.metric:
        raise CliError(
            f"{view.job.name} reports {view.metric or 'no metric'}, not {args.metric}",
            next="other values stand in the legs' logs and results: gpujob pull",
        )
    if args.curves and args.output == "table":
        raise CliError("--curves has no table", next="add -o csv or -o json, or write --html FILE to see them")
    legs = ordered(view, args.sort)
    if args.reverse:
        legs.reverse()
    if args.html:
        write_page(view, Path(args.html))
    if args.output == "json":
        print_json(curves_json(legs) if args.curves else as_json(view, legs))
    elif args.output == "csv":
        sys.stdout.write(curves_csv(legs) if args.curves else as_csv(view, legs))
    else:
        put(as_table(view, legs))
    return exits.OK


def write_page(view: SweepView, file: Path) -> None:
    """Write the page, whole or not at all, and say where it is."""
    from orchestrator.cli.compare_page import page

    part = file.with_name(f".{file.name}.part")
    try:
        part.write_text(page(view), encoding="utf-8")
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CliError(f"cannot write {file}", why=error.strerror or str(error)) from None
    say(f"page: {file} ({counted(len(view.legs), 'leg')})")


# --- order ---------------------------------------------------------------------------------------------


def ordered(view: SweepView, column: str) -> list[Leg]:
    """The legs by one column, the least or best first; what has no value comes last."""
    if column == "rank":
        return list(view.ranked)
    if column == "order":
        return list(view.legs)
    keys: dict[str, Callable[[Leg], Any]] = {
        "leg": lambda leg: leg.id,
        "state": lambda leg: leg.state.value,
        "last": lambda leg: _number(leg.last),
        "best": lambda leg: _number(leg.best(view.goal)),
        "step": lambda leg: leg.last.step if leg.last else math.inf,
        "cost": lambda leg: leg.cost,
        "time": lambda leg: leg.seconds,
        "attempts": lambda leg: leg.attempts,
    }
    if column in keys:
        return sorted(view.ranked, key=keys[column])
    if column in view.parameters:
        return sorted(view.ranked, key=lambda leg: _natural(leg.params.get(column)))
    raise CliError(f"{view.job.name} has no column {column!r}", next=f"sort by {', '.join((*SORTS, *view.parameters))}")


def _number(report: Report | None) -> float:
    return report.value if report is not None and math.isfinite(report.value) else math.inf


def _natural(value: str | None) -> tuple[int, float, str]:
    """Numbers by their size, then words, then nothing."""
    if value is None:
        return 2, 0.0, ""
    try:
        number = float(value)
    except ValueError:
        return 1, 0.0, value
    return (0, number, value) if math.isfinite(number) else (1, 0.0, value)


# --- for people ----------------------------------------------------------------------------------------


def as_table(view: SweepView, legs: Sequence[Leg]) -> str:
    """The table, and below it what it left out, the counts, the money and the best leg."""
    if not legs:
        return f"{view.job.name} has no legs yet"
    varying, same = _parameters(view)
    metric = (_metric_head(view), "STEP", "BEST") if view.metric else ()
    reasons = ("REASON",) if any(_reason(leg) for leg in legs) else ()
    heads = (*metric, "STATE", *reasons, f"COST {'(play)' if view.play else view.currency}", "TIME")
    tail = [_tail(view, leg, bool(reasons)) for leg in legs]
    widths = [max([width_of(head), *(width_of(row[i]) for row in tail)]) for i, head in enumerate(heads)]
    room = line_width() - sum(widths) - len(widths) - max(len(leg.id) for leg in legs) - 2
    shown = varying[: max(1, room // (MIN_COLUMN + 1))]
    columns = {name: shortened([leg.params.get(name, "-") for leg in legs]) for name in shown}
    rows = [
        ("*" if leg is view.winner else "", leg.id, *(columns[name][at] for name in shown), *tail[at])
        for at, leg in enumerate(legs)
    ]
    right = (*metric, *heads[-2:])
    text = table(("", "LEG", *shown, *heads), rows, shrink=(*shown, *reasons), right=right, state="STATE")
    return "\n".join([text, "", *_notes(view, varying[len(shown) :], same)])


def _metric_head(view: SweepView) -> str:
    return cut(view.metric.upper(), METRIC_WIDTH)


def _parameters(view: SweepView) -> tuple[list[str], dict[str, str]]:
    """(parameters that differ between legs, those that are the same in all)."""
    values = {name: {leg.params.get(name) for leg in view.legs} for name in view.parameters}
    if len(view.legs) == 1:
        return list(values), {}
    same = {name: str(next(iter(found))) for name, found in values.items() if len(found) == 1}
    return [name for name in values if name not in same], same


def _tail(view: SweepView, leg: Leg, reasons: bool) -> tuple[str, ...]:
    """The cells behind the parameters."""
    last, top = leg.last, leg.best(view.goal)
    metric = (
        shown(last.value) if last else "-",
        f"{last.step}" if last else "-",
        shown(top.value) if top else "-",
    )
    amount, time = (money(leg.cost, "").strip(), span(leg.seconds)) if leg.attempts else ("-", "-")
    reason = (_reason(leg) or "-",) if reasons else ()
    return (*(metric if view.metric else ()), leg.state.value.upper(), *reason, amount, time)


def _reason(leg: Leg) -> str:
    """What the state alone does not say."""
    return "" if leg.state is LegState.STOPPED else leg.reason


def shown(value: float) -> str:
    """Six digits for people; `nan` and `inf` as they are."""
    return f"{value:.6g}"


def shortened(values: Sequence[str]) -> list[str]:
    """Paths without the folder that they share, since a narrow column would show only that."""
    folder = values[0].rpartition("/")[0] if values else ""
    while folder and not all(value.startswith(f"{folder}/") for value in values):
        folder = folder.rpartition("/")[0]
    return [f"…/{value[len(folder) + 1 :]}" for value in values] if folder else list(values)


def _notes(view: SweepView, left_out: Sequence[str], same: dict[str, str]) -> list[str]:
    lines = []
    if same:
        lines.append(f"the same in all legs: {', '.join(f'{name}={value}' for name, value in same.items())}")
    if left_out:
        lines.append(f"not shown: {', '.join(left_out)} (-o csv and --html have them)")
    counts = ", ".join(f"{count} {state.value}" for state, count in view.counts.items())
    spent = f"{money(view.spent, view.currency, view.play)} spent"
    if view.idle:
        spent += f", {money(view.idle, view.currency, view.play)} of it for machines that ran no leg"
    lines.append(f"{counted(len(view.legs), 'leg')}: {counts}; {spent}")
    if view.strange:
        lines.append(f"not counted: what was paid in {', '.join(view.strange)}; add `rates` to the config")
    lines.append(winner_line(view))
    return lines


def winner_line(view: SweepView) -> str:
    """Which leg is the best, by what, and how to get what it made."""
    if not view.metric:
        return "no best leg: the sweep declares no metric"
    better = "less is better" if view.goal == "minimize" else "more is better"
    winner = view.winner
    if winner is None or winner.last is None:
        return f"no best leg yet: no leg has a usable {view.metric} ({better})"
    so_far = "" if winner.state is LegState.DONE else f" so far (it is {winner.state.value})"
    return (
        f"* best{so_far}: {view.job.name}/{winner.id}, {view.metric} {shown(winner.last.value)} at step "
        f"{winner.last.step} ({better})\n  gpujob pull {view.job.name}/best"
    )


# --- for programs --------------------------------------------------------------------------------------


def record(view: SweepView, leg: Leg, rank: int | None) -> dict[str, Any]:
    """One leg with every digit; values that are no finite number stay what they are."""
    last, top = leg.last, leg.best(view.goal)
    return {
        "rank": rank,
        "winner": leg is view.winner,
        "leg": leg.id,
        "state": leg.state.value,
        "reason": leg.reason or None,
        "last": last.value if last else None,
        "last_step": last.step if last else None,
        "best": top.value if top else None,
        "best_step": top.step if top else None,
        "reports": len(leg.curve),
        "cost": f"{leg.cost:f}",
        "currency": view.currency,
        "play": view.play,
        "seconds": round(leg.seconds, 3),
        "attempts": leg.attempts,
        "results": view.results.get(leg.id),
    }


def ranks(view: SweepView) -> dict[str, int]:
    """Place of each leg that has a usable last value, from 1."""
    usable = [leg for leg in view.ranked if leg.last is not None and math.isfinite(leg.last.value)]
    return {leg.id: place for place, leg in enumerate(usable, start=1)} if view.metric else {}


def as_csv(view: SweepView, legs: Sequence[Leg]) -> str:
    """One line a leg; nothing where there is no value, `nan` and `inf` where that was reported."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*FIXED, *(f"{PARAM}{name}" for name in view.parameters)))
    places = ranks(view)
    for leg in legs:
        row = record(view, leg, places.get(leg.id))
        cells = [_cell(row[name]) for name in FIXED]
        writer.writerow((*cells, *(leg.params.get(name, "") for name in view.parameters)))
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else value


def as_json(view: SweepView, legs: Sequence[Leg]) -> dict[str, Any]:
    """The sweep as documented in the reference of the JSON output."""
    places = ranks(view)
    return {
        "id": view.job.id,
        "name": view.job.name,
        "run": view.job.run,
        "outcome": view.job.outcome,
        "metric": {"name": view.metric, "goal": view.goal} if view.metric else None,
        "parameters": view.parameters,
        "winner": view.winner.id if view.winner else None,
        "counts": {state.value: count for state, count in view.counts.items()},
        "spent": money_json(view.spent, view.currency, view.play),
        "idle": money_json(view.idle, view.currency, view.play),
        "strange": list(view.strange),
        "at": utc_z(view.now),
        "legs": [_leg_json(view, leg, places.get(leg.id)) for leg in legs],
    }


def _leg_json(view: SweepView, leg: Leg, rank: int | None) -> dict[str, Any]:
    row = record(view, leg, rank)
    del row["currency"], row["play"]
    row["cost"] = money_json(leg.cost, view.currency, view.play)
    row["last"] = number_json(row["last"])
    return {**row, "params": dict(leg.params)}


def number_json(value: float | None) -> float | str | None:
    """A finite number, or the word for what JSON has no number for: "NaN", "Infinity", "-Infinity"."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def curves_csv(legs: Sequence[Leg]) -> str:
    """One line a report."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("leg", "step", "value", "at"))
    writer.writerows(
        (leg.id, report.step, repr(report.value), utc_z(report.at)) for leg in legs for report in leg.curve
    )
    return out.getvalue()


def curves_json(legs: Sequence[Leg]) -> list[dict[str, Any]]:
    """All reports of each leg: [step, value]."""
    return [
        {"leg": leg.id, "curve": [[report.step, number_json(report.value)] for report in leg.curve]} for leg in legs
    ]


COMMANDS = {"compare": Command(_add, run)}
