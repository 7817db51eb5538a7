"""What the accounts of configured providers can still spend, all asked at once and none waited for long.

Rules: only a configured provider whose `caps.balance` says so is asked; what goes wrong is a text in its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.config import Config
    from orchestrator.home import Home
    from orchestrator.planning import Plan
    from providers.base import Balance

PATIENCE_S = 8.0  # for all together: a table is waited for


def balances(providers: Mapping[str, Any], patience_s: float = PATIENCE_S) -> dict[str, Balance | str]:
    """name -> the balance, or why it is not known."""
    found: dict[str, Balance | str] = {}
    asked = {
        name: threading.Thread(target=_ask, args=(name, each, found), daemon=True) for name, each in providers.items()
    }
    for thread in asked.values():
        thread.start()
    until = time.monotonic() + patience_s
    for thread in asked.values():
        thread.join(max(0.0, until - time.monotonic()))
    return {name: found.get(name, f"no answer within {patience_s:.0f} s") for name in asked}


def shortfall(home: Home, config: Config, plan: Plan) -> str:
    """What to do about an account that does not hold what is set aside for the first machine; empty when it does, when
    its balance is not known, or when there is no rate to compare by.
    """
    from orchestrator.cli.output import money
    from orchestrator.cli.quotes import provider_config
    from providers.registry import get_provider

    chosen, name = plan.chosen, plan.chosen.provider if plan.chosen is not None else ""
    asked = any(each.provider == name and each.caps and each.caps.balance and not each.stored for each in plan.quotes)
    if chosen is None or plan.reserve is None or not asked:
        return ""
    left = balances({name: get_provider(name, provider_config(home, config, name))})[name]
    if isinstance(left, str):
        return ""
    rates = {plan.currency: Decimal(1), **config.rates_to(plan.currency)}
    if left.currency not in rates or left.amount * rates[left.currency] >= plan.reserve:
        return ""
    has, needs = money(left.amount, left.currency), money(plan.reserve, plan.currency)
    return f"{name} has {has}, less than the {needs} set aside for the first machine: top it up before you start"


def _ask(name: str, provider: Any, found: dict[str, Balance | str]) -> None:
    from providers.errors import ProviderError

    try:
        found[name] = provider.balance()
    except ProviderError as error:
        found[name] = str(error)
    except Exception as error:  # a plugin may raise anything; the table is shown all the same
        found[name] = f"a bug in the provider: {type(error).__name__}: {error}"
