"""Money rules, pure: what a time costs, what must be reserved, how long the money lasts.

A rental's reserve and what it has spent always add up to its worst case: renting until its own end, rounded as the
provider bills, plus the release margin. So the sum over a job can be held under its budget at every commit, whatever
happens to the controller in between.
"""

from __future__ import annotations

import math
from decimal import ROUND_UP, Decimal

from providers.base import Offer

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
