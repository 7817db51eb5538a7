"""What machines of one's own go on costing after a job: with `--release none` nothing is switched off at its end."""

from __future__ import annotations

from collections.abc import Container
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from orchestrator.cli.output import money

if TYPE_CHECKING:
    from orchestrator.home import Home

PROVIDER = "ssh"


def still_yours(home: Home, names: Container[str] | None = None) -> list[str]:
    """One line for each host of the config (of `names`) that has a price and that no job gives back."""
    from jobspecs.problems import SpecErrors
    from orchestrator.config import load_config

    try:
        hosts = load_config(home).hosts
    except SpecErrors:  # said by every verb that needs the config; what this one shows does not hang on it
        return []
    lines = []
    for name, block in sorted(hosts.items()):
        amount, _, currency = str(block.get("price") or "").partition(" ")
        if (names is not None and name not in names) or str(block.get("release") or "none") != "none":
            continue
        try:
            hourly = Decimal(amount)
        except InvalidOperation:
            continue
        if hourly > 0:
            lines.append(f"{name} is yours and still bills {money(hourly, currency or 'USD')}/h until you release it")
    return lines
