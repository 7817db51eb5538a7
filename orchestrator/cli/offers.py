"""`offers`: what can be rented now at every configured provider, cheapest first; the last known prices offline.

Rules: `local` is asked only when it is named. Prices of one currency are compared with another's by the config's
rates; where there is none, they stand last. A provider that fails is named below the offers of the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import counted, local_time, money, print_json, put, say, span, table, utc_z
from orchestrator.home import Home

if TYPE_CHECKING:
    from orchestrator.config import Config
    from orchestrator.planning import Quote
    from providers.base import Ask, GpuWish, Offer

COUNTS = (1, 2, 4, 8)  # cards of a machine, where no GPU is named
SHOWN = 40  # rows of a table; a market has thousands


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", metavar="GPU", help="as in a spec: RTX-4090, A100-80GB:2, '>=24GB', none for a CPU")
    parser.add_argument("--provider", action="append", default=[], metavar="NAME", help="only this one; several times")
    parser.add_argument("--region", action="append", default=[], metavar="REGION", help="only this one; several times")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--spot", action="store_true", help="only interruptible machines")
    kind.add_argument("--on-demand", action="store_true", help="only machines that are not interrupted")
    parser.add_argument("--max-price", metavar="MONEY", help="per machine-hour")
    parser.add_argument("--limit", type=int, default=SHOWN, metavar="N", help=f"rows of the table ({SHOWN}); 0: all")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the offers. Exit 3 when no provider answered and nothing is known, 4 when nothing matches."""
    from orchestrator.cli.quotes import quotes
    from orchestrator.config import load_config
    from orchestrator.planning import ask_for

    home = Home.from_env()
    config = load_config(home)
    ask, max_price = ask_of(args)
    found = quotes(home, config, {name: ask_for(ask, name) for name in names_of(args.provider, config)})
    rates = config.rates_to(config.currency)
    offers = by_price([offer for quote in found for offer in quote.offers], config.currency, rates)
    offers = _under(offers, max_price, config)
    play = frozenset(quote.provider for quote in found if quote.caps and quote.caps.play)
    if args.output == "json":
        print_json(_json(offers, found, play))
    else:
        for line in _text(offers, found, play, args.limit):
            put(line)
    if offers:
        return exits.OK
    return exits.PROVIDER if all(quote.trouble and not quote.stored for quote in found) else exits.NO_CAPACITY


def names_of(named: Sequence[str], config: Config) -> tuple[str, ...]:
    """Whom to ask. Raises CliError when nobody is configured and nobody is named."""
    from orchestrator.cli.quotes import configured

    names = tuple(dict.fromkeys(named)) or configured(config)
    if not names:
        raise CliError(
            "no provider is configured, and none is named",
            where="gpujob offers",
            next="--provider local shows this computer's play prices; `gpujob providers` lists all",
        )
    return names


def ask_of(args: argparse.Namespace) -> tuple[Ask, tuple[Decimal, str] | None]:
    """The options as an ask, and the highest price with its currency. Raises CliError."""
    from jobspecs.problems import Refusal
    from jobspecs.units import parse_money
    from providers.base import Ask

    try:
        gpus = wishes_of(args.gpu)
        most = parse_money(args.max_price) if args.max_price else None
    except Refusal as refusal:
        raise CliError(refusal.reason, where="gpujob offers", next=refusal.hint) from None
    spot = True if args.spot else False if args.on_demand else None
    return Ask(gpus=gpus, regions=tuple(args.region), spot=spot), (most.amount, most.currency) if most else None


def wishes_of(gpu: str | None) -> tuple[GpuWish, ...]:
    """The cards of a GPU as a spec writes it; without one all classes in usual counts. Raises Refusal."""
    from jobspecs.gpus import GPU_CLASSES, parse_gpu
    from orchestrator.policy import wishes
    from providers.base import GpuWish

    if gpu is not None:
        return wishes(parse_gpu(gpu))
    return tuple(GpuWish(each.name, each.vram_gb, count) for each in GPU_CLASSES for count in COUNTS)


def by_price(offers: Sequence[Offer], currency: str, rates: Mapping[str, Decimal]) -> list[Offer]:
    """Cheapest first in `currency`; those without a rate last, cheapest first among themselves."""
    worth = {currency: Decimal(1), **rates}

    def rank(offer: Offer) -> tuple[bool, Decimal, str, str]:
        known = offer.currency in worth
        return (not known, offer.hourly * worth.get(offer.currency, Decimal(1)), offer.provider, offer.key)

    return sorted(offers, key=rank)


def _under(offers: list[Offer], most: tuple[Decimal, str] | None, config: Config) -> list[Offer]:
    """Those up to the highest price; one that cannot be compared is left out, and that is said."""
    if most is None:
        return offers
    worth = {most[1]: Decimal(1), **config.rates_to(most[1])}
    strange = sorted({offer.currency for offer in offers} - set(worth))
    if strange:
        say(f"left out: offers in {', '.join(strange)}; add `rates` to the config to compare them with {most[1]}")
    return [offer for offer in offers if offer.currency in worth and offer.hourly * worth[offer.currency] <= most[0]]


def cheapest_on_demand(gpu: str, currency: str) -> tuple[Decimal, str]:
    """The lowest price of machines that are not interrupted, in `currency`, and a line on where it comes from.

    Raises Refusal for what is no GPU, CliError when nobody offers one.
    """
    from orchestrator.cli.quotes import configured, quotes
    from orchestrator.config import load_config
    from providers.base import Ask

    home = Home.from_env()
    config = load_config(home)
    ask = Ask(gpus=wishes_of(gpu), spot=False)
    found = quotes(home, config, dict.fromkeys(configured(config) or ("local",), ask))
    worth = {currency: Decimal(1), **config.rates_to(currency)}
    offers = [(offer.hourly * worth[offer.currency], offer, quote) for quote in found for offer in quote.offers
              if offer.currency in worth]  # fmt: skip
    if not offers:
        why = "; ".join(f"{quote.provider}: {quote.trouble or 'no offer'}" for quote in found)
        raise CliError(f"no price of {gpu} in {currency}", where="gpujob breakeven", why=why, next="give --hourly")
    hourly, offer, quote = min(offers, key=lambda each: each[0])
    cards = f"{offer.gpu_count} x {offer.gpu}" if offer.gpu_count > 1 else offer.gpu
    play = ", play money" if quote.caps and quote.caps.play else ""
    return hourly, f"{cards} at {offer.provider}, {_when(quote)}{play}"


def _when(quote: Quote) -> str:
    return f"prices of {local_time(quote.at)}" if quote.stored else "asked now"


def _text(offers: list[Offer], found: Sequence[Quote], play: frozenset[str], limit: int) -> Iterator[str]:
    shown = offers[:limit] if limit > 0 else offers
    if shown:
        headers = ("PROVIDER", "REGION", "GPU", "VRAM", "SPOT", "PRICE/H", "AT LEAST", "STEP")
        rows = [_row(offer, offer.provider in play) for offer in shown]
        yield table(headers, rows, right=("VRAM", "PRICE/H", "AT LEAST", "STEP"), shrink=("REGION", "GPU"), state="")
    else:
        yield "no offer matches"
    if len(offers) > len(shown):
        yield f"... and {len(offers) - len(shown)} more (--limit 0 shows all)"
    yield ""
    for quote in found:
        trouble = f"; {quote.trouble}" if quote.trouble else ""
        yield f"{quote.provider}: {counted(len(quote.offers), 'offer')}, {_when(quote)}{trouble}"


def _row(offer: Offer, play: bool) -> tuple[str, ...]:
    count = f":{offer.gpu_count}" if offer.gpu_count > 1 else ""
    gpu = f"{offer.gpu}{count}{' stand-in' if offer.stand_in else ''}" if offer.gpu else f"CPU x {offer.cpus}"
    return (
        offer.provider,
        offer.region,
        gpu,
        f"{offer.vram_gb} GB" if offer.vram_gb else "-",
        "spot" if offer.spot else "no",
        money(offer.hourly, offer.currency, play),
        span(offer.min_billing_s) if offer.min_billing_s else "-",
        span(offer.billing_step_s),
    )


def _json(offers: list[Offer], found: Sequence[Quote], play: frozenset[str]) -> dict[str, Any]:
    from orchestrator.cli.plan_json import offer_json

    at = {quote.provider: quote for quote in found}
    return {
        "offers": [
            {**offer_json(offer, offer.provider in play), "at": utc_z(at[offer.provider].at),
             "stored": at[offer.provider].stored}
            for offer in offers
        ],
        "providers": [
            {"provider": quote.provider, "offers": len(quote.offers), "at": utc_z(quote.at), "stored": quote.stored,
             "trouble": quote.trouble or None}
            for quote in found
        ],
    }  # fmt: skip


COMMANDS = {"offers": Command(_add, run)}
