"""`providers`: who can be asked for machines, whether they are configured, and what differs between them."""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.output import counted, money, money_json, print_json, put, span, table
from orchestrator.home import Home

if TYPE_CHECKING:
    from orchestrator.history import Record


def _add(parser: argparse.ArgumentParser) -> None:
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """List every registered provider; one that cannot be loaded is a line with its reason."""
    from orchestrator.cli.balances import balances
    from orchestrator.cli.quotes import provider_config
    from orchestrator.config import load_config
    from orchestrator.planning import timers
    from providers.errors import ProviderError
    from providers.registry import get_provider, names

    home = Home.from_env()
    config = load_config(home)
    rows: list[dict[str, Any]] = []
    tellers: dict[str, Any] = {}
    for name in names():
        row: dict[str, Any] = {"name": name, "configured": name in config.providers or name == "local", "trouble": None}
        try:
            provider = get_provider(name, provider_config(home, config, name))
            caps = provider.caps
        except ProviderError as error:
            rows.append({**row, "trouble": str(error)})
            continue
        row |= {
            "play": caps.play,
            "spot": caps.spot,
            "spot_notice_s": caps.spot_notice_s,
            "self_end": caps.self_end,
            "server_ttl": caps.server_ttl,
            "boot_hook": caps.boot_hook,
            "min_billing_s": caps.min_billing_s,
            "billing_step_s": caps.billing_step_s,
            "stop_bills": caps.stop_bills,
            "disks_outlive": caps.disks_outlive,
            "timers": [each.name for each in timers(caps) if each.binds],
            "as_of": caps.as_of,
        }
        if row["configured"] and caps.balance:
            tellers[name] = provider
        rows.append(row)
    told, records = balances(tellers), _records(home)
    for row in rows:
        record = records.get(row["name"])
        row["record"] = dataclasses.asdict(record) if record is not None else None
        about = told.get(row["name"])
        row["balance"] = None if about is None or isinstance(about, str) else money_json(about.amount, about.currency)
        row["balance_trouble"] = about if isinstance(about, str) else None
    if args.output == "json":
        print_json(rows)
        return exits.OK
    put(table(("NAME", "CONFIGURED", "MONEY", "SPOT", "NOTICE", "ENDS WITHOUT US BY", "BILLED IN", "AS OF"),
                [_cells(row) for row in rows], shrink=("ENDS WITHOUT US BY",), state=""))  # fmt: skip
    for name, about in sorted(told.items()):
        if isinstance(about, str):
            put(f"{name}: its balance is not known: {about}")
        else:
            put(f"{name}: {money(about.amount, about.currency)} to spend")
    for name, record in sorted(records.items()):
        put(f"{name}: {_record_text(record)}")
    put("\nA spec without `providers` may use every configured one, but never `local`.")
    return exits.OK


def _records(home: Home) -> dict[str, Record]:
    """What the books say of each provider; nothing where there are none."""
    from orchestrator.history import records_of

    if not home.database.exists():
        return {}
    from orchestrator.cli.reading import reader

    with reader(home) as store:
        return records_of(store, time.time())


def _record_text(record: Record) -> str:
    """`12 machines asked for in 90 days: 2 refused, 1 bad host, 3 reclaimed; ready after 1m35s (median)`."""
    counts = (
        (record.refused, "refused"), (record.unanswered, "without an answer"), (record.bad_hosts, "on bad hosts"),
        (record.reclaimed, "reclaimed"),
    )  # fmt: skip
    failures = ", ".join(f"{count} {word}" for count, word in counts if count) or "no failure"
    ready = f"; ready after {span(record.ready_s)} (median)" if record.ready_s is not None else ""
    return f"{counted(record.creates, 'machine')} asked for in 90 days: {failures}{ready}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    name, configured = row["name"], "yes" if row["configured"] else "no"
    if row["trouble"]:
        return (name, configured, "-", "-", "-", row["trouble"], "-", "-")
    return (
        name,
        configured,
        "(play)" if row["play"] else "real",
        "yes" if row["spot"] else "no",
        span(row["spot_notice_s"]) if row["spot"] else "-",
        ", ".join(row["timers"]) or "nothing",
        f"{row['billing_step_s']}s, at least {span(row['min_billing_s'])}",
        row["as_of"],
    )


COMMANDS = {"providers": Command(_add, run)}
