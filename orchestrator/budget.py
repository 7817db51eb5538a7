"""Money rules, pure: what a time costs, what must be reserved, how long the money lasts.

A rental's reserve and what it has spent always add up to its worst case: renting until its own end, rounded as the
provider bills, plus the release margin. So the sum over a job can be held under its budget at every commit, whatever
happens to the controller in between.
"""

from __future__ import annotations

import math
from decimal import ROUND_UP, Decimal

from orchestrator.model import Work
from providers.base import Offer

HOUR_S = 3600
GB = 10**9
BISECTIONS = 40  # halve an interval of hours down to well below a second
CENT = Decimal("0.000001")  # amounts are kept to a millionth: per-second prices of small machines need it


def billed_seconds(seconds: float, offer: Offer) -> int:
    """The seconds that are paid for a use of `seconds`: at least the minimum, in whole billing steps."""
    step = max(1, offer.billing_step_s)
    return max(offer.min_billing_s, math.ceil(max(0.0, seconds) / step) * step)


def cost(seconds: float, offer: Offer) -> Decimal:
    """What renting for `seconds` is billed, in the offer's currency; rounded up."""
    return (offer.hourly * billed_seconds(seconds, offer) / 3600).quantize(CENT, rounding=ROUND_UP)


def worst_case(offer: Offer, start: float, end: float, margin_s: float) -> Decimal:
    """The most that a machine rented at `start` can cost, if its end and then its release are late by the margin."""
    return cost(end - start + margin_s, offer)


def reserve(offer: Offer, start: float, end: float, margin_s: float, spent: Decimal) -> Decimal:
    """What must still be set aside for it, never below zero: an overrun is a liability, not a credit."""
    return max(Decimal(0), worst_case(offer, start, end, margin_s) - spent)


def affordable_end(offer: Offer, start: float, left: Decimal, margin_s: float) -> float:
    """The latest end whose worst case stays within `left`; before `start` when not even the minimum fits."""
    if offer.hourly <= 0:
        return math.inf
    if cost(0, offer) > left:
        return start - 1.0
    step = max(1, offer.billing_step_s)
    seconds = int(left * 3600 / offer.hourly)
    seconds -= seconds % step
    end = start + seconds - margin_s
    while end > start and worst_case(offer, start, end, margin_s) > left:  # rounding up may cost one step more
        end -= step
    return end


def machine_seconds(offer: Offer, work: Work, reclaims_per_h: float) -> tuple[float, float]:
    """Seconds of machines until the work is done, and how many machines; infinite when losses eat all progress.

    Of every hour, `reclaims_per_h` losses each take a startup and the rework, so with r losses a second and `again`
    seconds each, startup + run + r * T * again = T.
    """
    rate, again = reclaims_per_h / HOUR_S, work.startup_s + work.rework_s
    if rate * again >= 1:
        return math.inf, math.inf
    run = work.run_on.get(f"{offer.gpu}:{offer.gpu_count}", work.run_s)
    total = (work.startup_s + run) / (1 - rate * again)
    return total, 1 + rate * total


def to_finish(offer: Offer, work: Work, reclaims_per_h: float | None = None) -> Decimal:
    """The expected cost of the whole work on such machines, in the offer's currency: startups, rework, what every
    one of them is billed at least, and the data that each is brought. Infinity when it would never end.
    """
    if reclaims_per_h is None:
        reclaims_per_h = work.reclaims.get(offer.provider, work.reclaims_per_h) if offer.spot else 0.0
    total, machines = machine_seconds(offer, work, reclaims_per_h)
    if math.isinf(total):
        return Decimal("Infinity")
    billed = Decimal(f"{machines * billed_seconds(total / machines, offer):.3f}")
    return (offer.hourly * billed / HOUR_S + traffic(offer, work, machines)).quantize(CENT, rounding=ROUND_UP)


def traffic(offer: Offer, work: Work, machines: float) -> Decimal:
    """What it costs to bring the data to so many machines, where the company bills that."""
    if not offer.in_per_gb or not work.in_bytes:
        return Decimal(0)
    return offer.in_per_gb * work.in_bytes / GB * Decimal(f"{machines:.3f}")


def breakeven_reclaims(spot: Offer, spot_worth: Decimal, most: Decimal, work: Work) -> float | None:
    """The reclaims an hour at which the spot offer costs `most` in the end; None when it does even without any.

    `spot_worth` brings the offer's currency into that of `most`.
    """
    again = work.startup_s + work.rework_s
    if again <= 0 or to_finish(spot, work, 0.0) * spot_worth >= most:
        return None
    low, high = 0.0, HOUR_S / again
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if to_finish(spot, work, middle) * spot_worth < most:
            low = middle
        else:
            high = middle
    return low
