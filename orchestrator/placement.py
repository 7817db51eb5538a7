"""Which offer to take, pure: filter with reasons first, then the cheapest to finish.

Each offer left out keeps the reason, since "no offers" alone is what users complain about (eight causes, one text).
Pools that were reclaimed lately count dearer than they are; pools that refused are left out until their rest is over;
accounts that cannot work (key, funds, quota) are left out with that word.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from jobspecs import cuda
from jobspecs.gpus import GPU_CLASSES
from orchestrator.budget import to_finish
from orchestrator.model import Policy, Reason
from orchestrator.pace import ANY, Pace
from orchestrator.space import gb
from providers.base import Offer

RATE_LIMIT = "rate-limit"  # how the words begin of an account that rests for having been asked too often
RECLAIMED_PENALTY = Decimal("1.25")  # a pool that was just reclaimed counts a quarter dearer: its rework is likely


@dataclass(frozen=True)
class LeftOut:
    """One offer that was not taken, why, and by which filter; `blocked` is set when only a person or another account
    can help.
    """

    offer: Offer
    why: str
    by: str
    blocked: Reason | None = None


@dataclass(frozen=True)
class Ranking:
    """Acceptable offers, best first, and the others with their reasons."""

    ranked: tuple[Offer, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def blocked(self) -> Reason | None:
        """The one reason why nothing can be rented by waiting, if that is so."""
        reasons = {out.blocked for out in self.left_out}
        return reasons.pop() if not self.ranked and len(reasons) == 1 else None


def pool_key(offer: Offer) -> str:
    """What rests after a refusal for capacity."""
    return f"pool:{offer.provider}/{offer.account}/{offer.region}/{offer.pool or offer.key}"


def reclaimed_key(offer: Offer) -> str:
    """What counts as dearer for a while after a reclaim."""
    return f"reclaimed:{offer.provider}/{offer.account}/{offer.region}/{offer.pool or offer.key}"


def account_key(provider: str, account: str) -> str:
    """What rests when the account itself is refused."""
    return f"account:{provider}/{account}"


def machine_key(provider: str, machine: str) -> str:
    """What rests when a machine was bad."""
    return f"machine:{provider}/{machine}"


def spot_allowed(policy: Policy, losses_without_progress: int) -> bool | None:
    """True: spot only; False: on-demand only; None: both. `auto` leaves spot after two losses without a checkpoint."""
    if policy.spot == "always":
        return True
    if policy.spot == "never" or not policy.resumable:
        return False
    return False if losses_without_progress >= 2 else None


def rank(
    offers: Iterable[Offer],
    policy: Policy,
    resting: Mapping[str, str],
    losses_without_progress: int = 0,
    pace: Pace = ANY,
) -> Ranking:
    """Order the offers that may be taken by what they cost in the end, with the reasons for the rest.

    `auto` that has left spot after losses comes back to it when nothing on demand may be taken: the price cap of a spot
    offer is often below every price on demand, and the losses are bounded elsewhere. A deadline's `pace` comes first.
    """
    if pace.kind != "any":
        return _paced(tuple(offers), policy, resting, pace)
    ranking = _rank(offers := tuple(offers), policy, resting, spot_allowed(policy, losses_without_progress))
    if not ranking.ranked and losses_without_progress:
        return _rank(offers, policy, resting, spot_allowed(policy, 0))
    return ranking


def _paced(offers: tuple[Offer, ...], policy: Policy, resting: Mapping[str, str], pace: Pace) -> Ranking:
    """By the rules of `pace`; on demand falls back to spot, since a late machine is better than none."""
    first = _rank(offers, policy, resting, spot=pace.kind != "demand")
    if first.ranked or pace.kind == "spot-or-wait":
        return first
    second = _rank(offers, policy, resting, spot=pace.kind == "demand")
    return second if second.ranked else _rank(offers, policy, resting, None)


def narrowed_by(policy: Policy, ranking: Ranking) -> tuple[str, ...]:
    """Keys of the spec that leave little choice, the widest first: what to write wider when nothing can be had."""
    ask, removed = policy.ask, {out.by for out in ranking.left_out}
    narrow = (
        ("providers", len(policy.providers) == 1), ("regions", bool(ask.regions)),
        ("gpu", len({wish.name for wish in ask.gpus}) == 1), ("spot", policy.spot == "always"),
        ("cpus", ask.cpus_min > 0), ("memory", ask.memory_min > 0), ("disk", ask.disk_min > 0),
    )  # fmt: skip
    told = tuple(key for key, is_narrow in narrow if is_narrow)
    return told + tuple(key for key in ("max_price", "model", "image") if key in removed)


def in_the_end(offer: Offer, policy: Policy) -> Decimal:
    """What the whole job costs on such machines, in the job's currency; the hour's price when its length is unknown."""
    worth = policy.worth(offer.currency) or Decimal(0)
    return worth * (offer.hourly if policy.work is None else to_finish(offer, policy.work))


def _rank(offers: tuple[Offer, ...], policy: Policy, resting: Mapping[str, str], spot: bool | None) -> Ranking:
    good: list[tuple[Decimal, Decimal, str, Offer]] = []
    out: list[LeftOut] = []
    for offer in offers:
        verdict = _refuse(offer, policy, resting, spot)
        if verdict is not None:
            out.append(verdict)
            continue
        penalty = RECLAIMED_PENALTY if reclaimed_key(offer) in resting else Decimal(1)
        hourly = offer.hourly * (policy.worth(offer.currency) or 0)
        good.append((in_the_end(offer, policy) * penalty, hourly, offer.key, offer))
    good.sort(key=lambda row: row[:3])
    return Ranking(tuple(row[3] for row in good), tuple(out))


def _refuse(offer: Offer, policy: Policy, resting: Mapping[str, str], spot: bool | None) -> LeftOut | None:
    account = resting.get(account_key(offer.provider, offer.account))
    if account is not None:
        if account.startswith(RATE_LIMIT):  # over in a moment: a wait, not an end
            return LeftOut(offer, account, "account")
        return LeftOut(offer, account, "account", Reason.QUOTA if account.startswith("quota") else Reason.PROVIDER)
    if spot is not None and offer.spot is not spot:
        return LeftOut(offer, _not_wanted(offer, policy), "spot")
    held, needed = offer.vram_gb * offer.gpu_count, policy.vram_gb + policy.vram_more_gb * (offer.gpu_count - 1)
    if policy.vram_gb and held < needed:
        return LeftOut(offer, f"{held} GB of GPU memory, the model needs {needed:.4g}", "model")
    if policy.ask.images and (misfit := _misfit(policy.ask.at(offer.provider).image, offer.gpu)):
        return LeftOut(offer, f"the image of {offer.provider}: {misfit}", "image")
    away = _away(offer, policy.data_regions)
    if away:
        return LeftOut(offer, f"the data lies in {away}, this machine in {offer.region}", "data-region")
    worth = policy.worth(offer.currency)
    if worth is None:
        return LeftOut(offer, f"no rate from {offer.currency} to {policy.currency} in the config", "currency")
    if policy.price_cap is not None and offer.hourly * worth > policy.price_cap:
        return LeftOut(
            offer, f"{offer.hourly:f} {offer.currency}/h is above max_price {policy.price_cap:f}", "max_price"
        )
    machine = str(offer.raw.get("machine_id") or "")  # a market's offer names its machine
    bad = resting.get(machine_key(offer.provider, machine)) if machine else None
    if bad is not None:
        return LeftOut(offer, f"this machine was bad lately: {bad}", "bad-host")
    refused = resting.get(pool_key(offer))
    if refused is not None:
        return LeftOut(offer, f"refused lately: {refused}", "capacity")
    return None


def _not_wanted(offer: Offer, policy: Policy) -> str:
    if policy.finish_by is not None and policy.resumable and policy.spot == "auto":
        return "finish_by leaves no time for spot" if offer.spot else "waiting for spot: finish_by leaves time"
    if policy.homeless and offer.spot:
        return f"spot needs an object store for checkpoints of {gb(policy.homeless)}"
    return "spot needs a resumable job" if offer.spot else "only spot was asked for"


@functools.cache
def _misfit(image: str, gpu: str) -> str:
    """Why a provider's own image cannot run on a card; one image for all has left such cards out of the ask."""
    known = next((each for each in GPU_CLASSES if each.name == gpu), None)
    return cuda.misfit(cuda.cuda_of_image(image), known.capability) if known is not None else ""


def _away(offer: Offer, data_regions: Iterable[str]) -> str:
    """The region of data that would have to cross to this offer; empty: none."""
    for place in sorted(data_regions):
        provider, slash, region = place.rpartition("/")
        if (not slash or provider == offer.provider) and region != offer.region:
            return place
    return ""
