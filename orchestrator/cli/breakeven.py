"""`breakeven`: from which use on an own machine is cheaper than a rented one.

Use is time in which the cards compute, not time in which they are powered on: a month of 720 h at the hourly rent is
compared with what owning costs a month, whatever it does.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import money_json, print_json, put, table

MONTH_H = 720  # 30 days
DAYS = 30
SENSITIVITY_ROWS = 4  # of a range of rents: both ends and two between
PART_OPTIONS = ("capex", "kw", "hosting", "ops")


@dataclass(frozen=True)
class Part:
    """One part of what owning costs a month, and how it came about."""

    name: str
    monthly: Decimal
    how: str


def own_parts(
    capex: Decimal, months: int, kw: Decimal, hours_per_day: Decimal, tariff: Decimal, hosting: Decimal, ops: Decimal
) -> list[Part]:
    """The parts that are not zero: the price over its months, power, hosting with bandwidth, and people."""
    parts = [
        Part("machine", capex / months, f"{capex:f} over {months} months"),
        Part("power", kw * hours_per_day * DAYS * tariff, f"{kw:f} kW x {hours_per_day:f} h x {DAYS} x {tariff:f}"),
        Part("hosting", hosting, "hosting and bandwidth"),
        Part("people", ops, "share of a person who looks after it"),
    ]
    return [part for part in parts if part.monthly]


def share(monthly: Decimal, hourly: Decimal) -> Decimal:
    """The use of a month, in percent, at which both cost the same; above 100 renting is always cheaper."""
    return 100 * monthly / (hourly * MONTH_H)


def rents(low: Decimal, high: Decimal) -> list[Decimal]:
    """The rents to show: one, or both ends of a range and evenly between."""
    if low == high:
        return [low]
    step = (high - low) / (SENSITIVITY_ROWS - 1)
    return [low + step * row for row in range(SENSITIVITY_ROWS)]


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--own-monthly", metavar="MONEY", help="what owning costs a month; or give its parts:")
    parser.add_argument("--capex", metavar="MONEY", help="price of the machine")
    parser.add_argument("--months", type=int, default=36, metavar="N", help="that it is used for (36)")
    parser.add_argument("--kw", metavar="N", help="power that it draws, in kW")
    parser.add_argument("--hours-per-day", default="24", metavar="N", help="at that power (24)")
    parser.add_argument("--tariff", metavar="MONEY", help="price of a kWh")
    parser.add_argument("--hosting", metavar="MONEY", help="hosting and bandwidth a month")
    parser.add_argument("--ops", metavar="MONEY", help="people a month")
    parser.add_argument("--hourly", metavar="MONEY", help="rent of an equal machine: 120, or a range 80..200")
    parser.add_argument("--gpu", metavar="GPU", help="instead of --hourly: the cheapest on-demand offer of these cards")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the break-even use, with the parts and the sensitivity where they were given."""
    from jobspecs.problems import Refusal

    try:
        parts, monthly, currency = _own(args)
        low, high, source = _rent(args, currency)
    except Refusal as refusal:
        raise CliError(refusal.reason, where="gpujob breakeven", next=refusal.hint) from None
    rows = [(hourly, share(monthly, hourly)) for hourly in rents(low, high)]
    if args.output == "json":
        print_json(_json(parts, monthly, currency, rows, source))
    else:
        put("\n".join(_text(parts, monthly, currency, rows, source)))
    return exits.OK


def _own(args: argparse.Namespace) -> tuple[list[Part], Decimal, str]:
    """Parts, their sum, and the currency that all amounts share."""
    from jobspecs.problems import Refusal
    from jobspecs.units import parse_money, parse_number

    given = [name for name in PART_OPTIONS if getattr(args, name) is not None]
    if bool(given) == (args.own_monthly is not None):
        raise Refusal("give --own-monthly, or its parts", "--capex, --kw with --tariff, --hosting, --ops")
    if args.kw is not None and args.tariff is None:
        raise Refusal("--kw needs --tariff, the price of a kWh")
    if args.months < 1:
        raise Refusal(f"--months must be 1 or more, got {args.months}")
    if args.own_monthly is not None:
        own = parse_money(args.own_monthly)
        return [], own.amount, own.currency
    currencies = []
    amounts = {}
    for name in ("capex", "tariff", "hosting", "ops"):
        text = getattr(args, name)
        amounts[name] = Decimal(0)
        if text not in (None, "0"):
            amount = parse_money(text)
            amounts[name] = amount.amount
            currencies.append(amount.currency)
    if len(set(currencies)) > 1:
        raise Refusal(f"the parts are in {' and '.join(sorted(set(currencies)))}", "write all in one currency")
    kw, hours = parse_number(args.kw or "0"), parse_number(args.hours_per_day)
    if kw < 0 or not 0 <= hours <= 24:
        raise Refusal("power is 0 kW or more for 0 to 24 hours a day")
    parts = own_parts(amounts["capex"], args.months, kw, hours, amounts["tariff"], amounts["hosting"], amounts["ops"])
    monthly = sum((part.monthly for part in parts), Decimal(0))
    if not monthly:
        raise Refusal("owning costs nothing by these parts", "give at least one that costs something")
    return parts, monthly, currencies[0]


def _rent(args: argparse.Namespace, currency: str) -> tuple[Decimal, Decimal, str]:
    """Lowest and highest rent an hour, in `currency`, and where they come from."""
    from jobspecs.problems import Refusal
    from jobspecs.units import parse_money

    if (args.hourly is None) == (args.gpu is None):
        raise Refusal("give --hourly, or --gpu for the price of an offer", "--hourly 120, or --hourly 80..200")
    if args.gpu is not None:
        from orchestrator.cli.offers import cheapest_on_demand

        hourly, source = cheapest_on_demand(args.gpu, currency)
        return hourly, hourly, source
    first, dots, last = args.hourly.partition("..")
    high = parse_money(last if dots else first)
    low = parse_money(first if not dots or first.strip()[-1:].isalpha() else f"{first} {high.currency}")
    if {low.currency, high.currency} != {currency}:
        raise Refusal(f"the rent is in {high.currency} and owning in {currency}", "write both in one currency")
    if low.amount > high.amount:
        raise Refusal(f"the range {args.hourly} ends before it starts")
    return low.amount, high.amount, "as given"


def _whole(amount: Decimal) -> str:
    return f"{amount:,.0f}"


def _text(
    parts: list[Part], monthly: Decimal, currency: str, rows: list[tuple[Decimal, Decimal]], source: str
) -> Iterator[str]:  # fmt: skip
    if parts:
        lines = [(part.name, _whole(part.monthly), part.how) for part in parts]
        lines.append(("sum", _whole(monthly), f"{currency} a month"))
        yield table(("OWNING", "A MONTH", "FROM"), lines, right=("A MONTH",), state="")
        yield ""
    else:
        yield f"owning    {_whole(monthly)} {currency} a month"
    if len(rows) == 1:
        hourly, percent = rows[0]
        yield f"renting   {hourly:f} {currency} an hour, {_whole(hourly * MONTH_H)} for a whole month ({source})"
        yield f"break-even at {percent:.1f} % of the month, {percent * MONTH_H / 100:.0f} of {MONTH_H} h that compute"
    else:
        cells = [(f"{hourly.quantize(Decimal('0.01')):f}", f"{percent:.1f} %", f"{percent * MONTH_H / 100:.0f} h")
                 for hourly, percent in rows]  # fmt: skip
        headers = (f"{currency}/H", "BREAK-EVEN", "OF 720 H")
        yield table(headers, cells, right=headers, state="")
    yield ""
    if rows[0][1] > 100:
        yield "above 100 %: at that rent owning is never cheaper"
    yield "below that use renting is cheaper. Count hours that compute, not hours of power: `gpujob report` has both"


def _json(
    parts: list[Part], monthly: Decimal, currency: str, rows: list[tuple[Decimal, Decimal]], source: str
) -> dict[str, Any]:  # fmt: skip
    cents = Decimal("0.01")
    return {
        "own_monthly": money_json(monthly.quantize(cents), currency),
        "parts": [
            {"part": part.name, "monthly": money_json(part.monthly.quantize(cents), currency), "from": part.how}
            for part in parts
        ],
        "rent": source,
        "break_even": [
            {"hourly": money_json(hourly.quantize(cents), currency), "percent": round(float(percent), 1),
             "hours": round(float(percent) * MONTH_H / 100, 1)}
            for hourly, percent in rows
        ],
    }  # fmt: skip


COMMANDS = {"breakeven": Command(_add, run)}
