"""A plugin provider with as many offers as MARKET_OFFERS says: cards, countries and prices, spot and not."""

from __future__ import annotations

import os
from decimal import Decimal
from typing import Any

from jobspecs.gpus import GPU_CLASSES
from providers.base import Ask, Caps, Offer

NAME = "market"
CAPS = Caps(dead_statuses=frozenset({"gone"}), self_end="destroys", server_ttl=False, boot_hook="every_boot", spot=True)


def market(count: int) -> tuple[Offer, ...]:
    """Offers as a market has them: some of the cards are too small, some prices too high, each machine its own pool."""
    return tuple(
        Offer(
            NAME, "default", f"country-{number % 60}", f"ask-{number}", number % 3 == 0,
            Decimal("0.10") + Decimal(number % 400) / 100, "USD", gpu.name, 1 + number % 2, gpu.vram_gb, 16, 64 * 2**30,
            10**12, pool=f"machine {number}", min_billing_s=(number % 5) * 600, billing_step_s=1 + 59 * (number % 2),
            raw={"machine_id": number},
        )
        for number, gpu in ((number, GPU_CLASSES[number % len(GPU_CLASSES)]) for number in range(count))
    )  # fmt: skip


class MarketProvider:
    """Nothing can be rented: only prices are asked for."""

    name, account, caps = NAME, "default", CAPS

    def __init__(self, config: Any) -> None:
        pass

    def offers(self, ask: Ask) -> tuple[Offer, ...]:
        """All of them, as a market's search would have chosen them."""
        return market(int(os.environ.get("MARKET_OFFERS", "5000")))

    def _never(self, *_: Any) -> Any:
        raise NotImplementedError

    regions = create = list = get = destroy = set_expiry = _never
