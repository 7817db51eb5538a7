"""Why one offer and not another: rows with reasons, which filter removed how many, spot against on demand.

Rules: no I/O and no clock. It explains what `placement` decided and decides nothing itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from orchestrator.budget import billed_seconds, breakeven_reclaims, cost, machine_seconds, to_finish, traffic
from orchestrator.model import Policy
from orchestrator.placement import in_the_end
from orchestrator.planning import Plan
from orchestrator.space import gb
from providers.base import Ask, Offer
from providers.fields import number

# Keys of a spec by which `placement` leaves offers out, in the order in which it looks.
FILTERS = ("account", "spot", "model", "image", "data-region", "currency", "max_price", "bad-host", "capacity")
PACKAGE_S = 100 * 3600.0  # of the 168 h of a week; weekly prices are mostly those of four or five days
DAY_S = 86_400
PACKAGES = {"day": DAY_S, "week": 7 * DAY_S, "month": 30 * DAY_S}  # what some companies sell by hand beside the hour
NOTICEABLE = 1.005  # a total within half a per cent is the same


@dataclass(frozen=True)
class Row:
    """One offer: what it costs in the end (in the plan's currency; None when that is unknown), and why it is not or
    is taken.
    """

    offer: Offer
    total: Decimal | None
    why: str


@dataclass(frozen=True)
class SpotChoice:
    """The best spot offer beside the best one on demand."""

    spot: Offer
    demand: Offer
    reclaims_per_h: float  # that were counted with
    breakeven_per_h: float | None  # at which both cost the same; None: on demand is never dearer


def rows(plan: Plan, offers: Iterable[Offer]) -> list[Row]:
    """All offers, cheapest in the end first, each with why it is not the chosen one; the chosen one says so."""
    cap = "max_price" if plan.price_cap_given else "the price cap"
    reasons = {id(out.offer): out.why.replace("max_price", cap) for out in plan.left_out}
    chosen, policy, found = plan.chosen, plan.policy, []
    least = in_the_end(chosen, policy) if chosen is not None and _comparable(chosen, policy) else None
    for offer in offers:
        total = in_the_end(offer, policy) if _comparable(offer, policy) else None
        why = "chosen" if offer is chosen else reasons.get(id(offer)) or _dearer(offer, total, least, plan)
        found.append(Row(offer, total, why))
    return sorted(found, key=lambda row: (_order(row, plan.policy), row.offer.key))


def _comparable(offer: Offer, policy: Policy) -> bool:
    return policy.work is not None and policy.worth(offer.currency) is not None


def _order(row: Row, policy: Policy) -> tuple[bool, Decimal, Decimal]:
    worth = policy.worth(row.offer.currency)
    hourly = row.offer.hourly * (worth or 1)
    return worth is None, row.total if row.total is not None else hourly, hourly


def _dearer(offer: Offer, total: Decimal | None, least: Decimal | None, plan: Plan) -> str:
    """Why an offer that may be taken is not the best. `least`: what the chosen one costs in the end."""
    policy, chosen = plan.policy, plan.chosen
    if total is None or least is None or chosen is None:
        return "not cheaper than the chosen one"
    worth, best = policy.worth(offer.currency) or Decimal(1), policy.worth(chosen.currency) or Decimal(1)
    if offer.hourly * worth >= chosen.hourly * best:
        return "not cheaper than the chosen one" if total >= least else "its pool was reclaimed lately"
    return "cheaper an hour, not in the end: " + (", ".join(_burdens(offer, policy)) or "about the same")


def _burdens(offer: Offer, policy: Policy) -> Iterator[str]:
    """What makes a low price an hour a high one in the end."""
    work = policy.work
    assert work is not None
    rate = work.reclaims.get(offer.provider, work.reclaims_per_h) if offer.spot else 0.0
    total, machines = machine_seconds(offer, work, rate)
    if math.isinf(total):
        yield f"{rate:.2g} reclaims an hour eat all progress"
        return
    if machines > NOTICEABLE:
        yield f"{machines - 1:.1f} reclaims expected"
    billed = billed_seconds(total / machines, offer) * machines
    if billed > total * NOTICEABLE:
        yield f"billed for {billed / 3600:.1f} h"
    data = traffic(offer, work, machines)
    if data > in_the_end(offer, policy) * Decimal(NOTICEABLE - 1):
        yield f"{data:.2f} {offer.currency} to bring the data"
    own = work.run_on.get(f"{offer.gpu}:{offer.gpu_count}")
    if own is not None and own > work.run_s * NOTICEABLE:
        yield f"took {own / 3600:.1f} h there before"


def removed(plan: Plan) -> list[tuple[str, int]]:
    """(filter, how many offers it removed), in the order in which they apply; filters that removed none are left
    out.
    """
    counts = Counter(out.by for out in plan.left_out)
    return [(name, counts[name]) for name in FILTERS if counts[name]]


def funnel(ask: Ask, offers: Iterable[Offer]) -> list[tuple[str, int]]:
    """(key of the spec, how many of the remaining offers it removes), when nothing at all satisfies an ask.

    `offers` are those of the ask's GPUs alone.
    """
    left = list(offers)
    steps = (
        ("regions", lambda offer: not ask.regions or offer.region in ask.regions),
        ("spot", lambda offer: ask.spot in (None, offer.spot)),
        ("cpus", lambda offer: offer.cpus >= ask.cpus_min),
        ("memory", lambda offer: offer.memory >= ask.memory_min),
        ("disk", lambda offer: offer.disk >= ask.disk_min),
    )
    found = []
    for key, keeps in steps:
        kept = [offer for offer in left if keeps(offer)]
        if len(kept) < len(left):
            found.append((key, len(left) - len(kept)))
        left = kept
    return found


def spot_choice(plan: Plan) -> SpotChoice | None:
    """Spot against on demand, where both may be taken and the job's length is known."""
    work, policy = plan.policy.work, plan.policy
    if work is None:
        return None
    best = [next((offer for offer in plan.ranked if offer.spot is kind), None) for kind in (True, False)]
    allowed = [offer for offer in best if offer is not None]
    if not plan.price_cap_given:  # the cap follows from the offer that was chosen, and must not decide the comparison
        allowed += [out.offer for out in plan.left_out if out.by == "max_price"]
    totals = {id(offer): in_the_end(offer, policy) for offer in allowed}
    spot, demand = (
        min((offer for offer in allowed if offer.spot is kind), key=lambda offer: totals[id(offer)], default=None)
        for kind in (True, False)
    )
    if spot is None or demand is None:
        return None
    worth = policy.worth(spot.currency) or Decimal(1)
    most = to_finish(demand, work) * (policy.worth(demand.currency) or Decimal(1))
    rate = work.reclaims.get(spot.provider, work.reclaims_per_h)
    return SpotChoice(spot, demand, rate, breakeven_reclaims(spot, worth, most, work))


def expected_seconds(plan: Plan) -> float | None:
    """Seconds of machines that the whole job is expected to take on the chosen offer; None when that is unknown."""
    work, chosen = plan.policy.work, plan.chosen
    if work is None or chosen is None:
        return None
    rate = work.reclaims.get(chosen.provider, work.reclaims_per_h) if chosen.spot else 0.0
    return machine_seconds(chosen, work, rate)[0]


def warnings(plan: Plan, nvlink: bool = True) -> list[str]:
    """What the chosen offer means for the spec's own limits, in sentences. `nvlink`: its cards have a link."""
    found: list[str] = []
    policy, chosen = plan.policy, plan.chosen
    seconds = expected_seconds(plan)
    if chosen is None:
        return found
    of_legs = policy.crew is not None and policy.crew.kind == "sweep"  # a leg's ttl counts its runs, no machine's start
    if seconds is not None and seconds > policy.ttl_s and not policy.serve and not of_legs:
        found.append(f"{_hours(seconds)} with starts and rework are longer than the ttl, which ends the job before")
    if plan.expected_cost is not None and policy.budget is not None and plan.expected_cost > policy.budget:
        found.append(
            f"{plan.expected_cost:.2f} {plan.currency} are expected, and the budget ends the job at {policy.budget:f}"
        )
    if policy.homeless and not chosen.spot:
        found.append(
            f"a checkpoint is about {gb(policy.homeless)}: spot is left out until `checkpoint.mirror` names an object "
            "store, or `.` for this computer"
        )
    if chosen.gpu_count > 1 and not nvlink:
        found.append(f"{chosen.gpu_count} x {chosen.gpu} have no NVLink: what they exchange goes over PCIe")
    return found


def billing_mode(plan: Plan) -> str:
    """By what to rent: a bid where interruptions cost only rework, a package where weeks are needed, else the hour."""
    seconds = expected_seconds(plan)
    if plan.chosen is not None and plan.chosen.spot:
        return "by bid (spot): the job resumes, so an interruption costs only rework"
    package = _package(plan.chosen, seconds) if plan.chosen is not None and seconds is not None else ""
    if package:
        return package
    if seconds is not None and seconds >= PACKAGE_S:
        return f"{_hours(seconds)} without a break: ask for a weekly or monthly price before renting by the hour"
    return "by the hour"


def _package(offer: Offer, seconds: float) -> str:
    """The package of an offer that costs less than its hours, as a sentence; empty when none does. Packages are what
    the adapter tells in `raw`: name -> price of one card, as typed.
    """
    told = offer.raw.get("packages")
    if not isinstance(told, Mapping) or math.isinf(seconds):
        return ""
    found: list[tuple[Decimal, int, str]] = []
    for name, length_s in PACKAGES.items():
        price = number(str(told.get(name, "")).removesuffix(offer.currency).strip())
        if price is not None and price > 0:
            count = math.ceil(seconds / length_s)
            found.append((price * count * max(1, offer.gpu_count), count, name))
    hours = cost(seconds, offer)
    if not found or min(found)[0] >= hours:
        return ""
    total, count, name = min(found)
    some = f"{count} {name}s" if count > 1 else f"a {name}"
    return (
        f"{_hours(seconds)} by {some} at {offer.provider} would be {total:.2f} instead of {hours:.2f} {offer.currency} "
        "by the hour: rent it in its console and add it by `gpujob host add`"
    )


def _hours(seconds: float) -> str:
    return "no end" if math.isinf(seconds) else f"{seconds / 3600:.1f} h"
