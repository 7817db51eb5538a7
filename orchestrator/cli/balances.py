"""What the accounts of configured providers can still spend, all asked at once and none waited for long.

Rules: only a configured provider whose `caps.balance` says so is asked; what goes wrong is a text in its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def _ask(name: str, provider: Any, found: dict[str, Balance | str]) -> None:
    from providers.errors import ProviderError

    try:
        found[name] = provider.balance()
    except ProviderError as error:
        found[name] = str(error)
    except Exception as error:  # a plugin may raise anything; the table is shown all the same
        found[name] = f"a bug in the provider: {type(error).__name__}: {error}"
