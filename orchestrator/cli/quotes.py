"""Asking providers for prices: all at once, each with its own trouble, and the last known prices where one fails.

Rules: reads only. One provider's failure, whatever it is, is a line of text and hides no other's offers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits
from orchestrator.cli.exits import CliError

if TYPE_CHECKING:
    from orchestrator.config import Config
    from orchestrator.home import Home
    from orchestrator.planning import Quote
    from providers.base import Ask, Offer

PATIENCE_S = 90.0  # longer than the time-outs of any built-in: only a plugin without any is left behind


def quotes(home: Home, config: Config, asks: Mapping[str, Ask | None]) -> tuple[Quote, ...]:
    """What each provider offers to its ask now, else its last known prices; None asks nothing of it.

    Raises CliError for a name that no provider has.
    """
    from providers.registry import UnknownProvider, names

    known = names()
    for name in asks:
        if name not in known:
            from providers.registry import get_provider

            try:
                get_provider(name, provider_config(home, config, name))
            except UnknownProvider as error:
                raise CliError(str(error), where="providers", next="gpujob providers", code=exits.USAGE) from error
    found: dict[str, Quote] = {}
    threads = {
        name: threading.Thread(target=lambda name=name: found.update({name: _quote(home, config, name, asks[name])}),
                               name=f"quotes-{name}", daemon=True)
        for name in asks
    }  # fmt: skip
    for thread in threads.values():
        thread.start()
    until = time.monotonic() + PATIENCE_S
    for thread in threads.values():
        thread.join(max(0.0, until - time.monotonic()))
    return tuple(found.get(name) or _no_answer(home, name, asks[name]) for name in asks)


def _no_answer(home: Home, name: str, ask: Ask | None) -> Quote:
    """Of a provider that hangs: its last known prices."""
    from orchestrator.planning import Quote

    trouble = f"no answer within {PATIENCE_S:.0f} s"
    stored = _stored(home, name, ask.at(name)) if ask is not None else None
    if stored is None:
        return Quote(name, (), time.time(), trouble)
    return Quote(name, stored[1], stored[0], trouble, stored=True)


def _quote(home: Home, config: Config, name: str, ask: Ask | None) -> Quote:
    from orchestrator import prices
    from orchestrator.planning import Quote
    from providers.errors import ProviderError
    from providers.registry import get_provider

    now, caps = time.time(), None
    ask = ask.at(name) if ask is not None else None
    try:
        provider = get_provider(name, provider_config(home, config, name))
        caps = provider.caps
        if ask is None:
            return Quote(name, (), now, "asked for regions of other providers only", caps=caps)
        offers = tuple(provider.offers(ask))
    except ProviderError as error:
        trouble = f"{error.kind}: {error}"
    except Exception as error:  # a plugin may raise anything; the others' offers are still good
        trouble = f"a bug in the provider: {type(error).__name__}: {error}"
    else:
        prices.remember(home, name, ask, offers, now)
        return Quote(name, offers, now, caps=caps)
    stored = _stored(home, name, ask) if ask is not None else None
    if stored is None:
        return Quote(name, (), now, trouble, caps=caps)
    return Quote(name, stored[1], stored[0], trouble, stored=True, caps=caps)


def provider_config(home: Home, config: Config, name: str) -> Any:
    """What the registry hands to an adapter; no verb creates machines, so the deployment is not needed here."""
    from orchestrator import credentials

    return credentials.provider_config(home, "plan", config.providers.get(name, {}))


def _stored(home: Home, provider: str, ask: Ask) -> tuple[float, tuple[Offer, ...]] | None:
    """The newest kept answer, of this computer's verbs or of the controller."""
    from orchestrator import prices

    mine = prices.recall(home, provider, ask)
    theirs = None
    if home.database.exists():
        from orchestrator.cli.reading import reader

        with reader(home) as store:
            theirs = store.prices(provider, prices.key_of(ask))
    return max((known for known in (mine, theirs) if known is not None), key=lambda known: known[0], default=None)


def configured(config: Config) -> tuple[str, ...]:
    """Who may be asked where nobody is named: every configured provider, never `local`."""
    return tuple(name for name in config.providers if name != "local")
