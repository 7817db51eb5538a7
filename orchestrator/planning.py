"""What `plan` and `apply` say before a machine is rented: offers with reasons, worst case, reserve, timers, what needs
this computer awake.

Rules: no I/O and no clock; everything comes in as values. The worst case is an upper bound that the reserves keep: the
price cap for the whole ttl plus a late release, or the budget where that is less. Play money counts against no limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_UP, Decimal
from typing import TYPE_CHECKING, Any

from jobspecs.rules import is_remote
from orchestrator.budget import affordable_end, cost, reserve, traffic, worst_case
from orchestrator.history import RECLAIMS_PER_H, UNKNOWN, History
from orchestrator.interval import Saving, saving
from orchestrator.model import Job, Policy
from orchestrator.pace import ANY, Pace, pace_at
from orchestrator.placement import LeftOut, in_the_end, rank
from orchestrator.policy import currency_of, estimate_of, policy_of, price_cap_of
from providers.base import Ask, Caps, Offer

if TYPE_CHECKING:
    from jobspecs.memory import Estimate
    from jobspecs.schema import JobSpec

FLAG_ORIGINS = ("flag", "environment", "spec", "config")
# Shown although nobody set them: what they say decides money or time.
ALWAYS_SHOWN = ("gpu", "spot", "providers", "max_price", "budget", "ttl", "grace", "wait", "retry", "artifacts")
CENTS = Decimal("0.01")


@dataclass(frozen=True)
class Value:
    """One effective key of the spec and where its value came from."""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True)
class Quote:
    """What one provider answered: offers as of `at`, or the trouble that it had."""

    provider: str
    offers: tuple[Offer, ...]
    at: float
    trouble: str = ""
    stored: bool = False  # not asked now: the last known prices
    caps: Caps | None = None


def _no_rates(_: str) -> Mapping[str, Decimal]:
    return {}


@dataclass(frozen=True)
class Exchange:
    """The config's currency, and for any currency what one unit of each other is worth in it."""

    currency: str = "USD"
    rates_to: Callable[[str], Mapping[str, Decimal]] = _no_rates


DOLLARS = Exchange()


@dataclass(frozen=True)
class Timer:
    """One of the three things that end a machine, whether it stops the bill by itself, and why."""

    name: str
    binds: bool
    why: str


@dataclass(frozen=True)
class Need:
    """Something that only works while this computer is awake."""

    what: str
    why: str


@dataclass(frozen=True)
class Plan:
    """The answer to "what would this do?". Amounts are in `currency`, the job's own; times in seconds."""

    name: str
    values: tuple[Value, ...]
    quotes: tuple[Quote, ...]
    ranked: tuple[Offer, ...]
    left_out: tuple[LeftOut, ...]
    policy: Policy
    price_cap: Decimal | None
    price_cap_given: bool
    currency: str
    play: bool
    expected_cost: Decimal | None  # of the whole job on the chosen offer; None when its length is unknown
    worst_case: Decimal | None
    worst_case_by: str  # ttl or budget
    reserve: Decimal | None  # set aside for the first machine when it is rented
    machine_end_s: float | None  # the first machine's own end, from its start
    timers: tuple[Timer, ...]
    needs_awake: tuple[Need, ...]
    history: History = UNKNOWN
    memory: Estimate | None = None  # of `model`
    pace: Pace = ANY  # what `finish_by` asks for now
    saving: Saving | None = None  # how often to save on the chosen machine; None before a save was measured
    tasks: int = 0  # legs, slices or replicas; 0: a plain job

    @property
    def parallel(self) -> int:
        """Machines at one time."""
        crew = self.policy.crew
        return 1 if crew is None else max(1, min(crew.parallel, self.tasks))

    @property
    def chosen(self) -> Offer | None:
        """The offer that would be rented now."""
        return self.ranked[0] if self.ranked else None


def make_plan(
    spec: JobSpec,
    document: Mapping[str, Any],
    origins: Mapping[str, str],
    quotes: tuple[Quote, ...],
    resting: Mapping[str, str],
    providers: tuple[str, ...],
    history: History = UNKNOWN,
    money: Exchange = DOLLARS,
    now: float = 0.0,
    data: Mapping[str, Any] | None = None,
    tasks: int = 0,
) -> Plan:
    """The plan of one spec at `now` (UTC). `providers` are those that may be used; `resting` is what refused lately ->
    why. `data`: what the job would keep of its data (`datasets.summaries`). `tasks`: how many a job of many has.
    """
    offers = [offer for quote in quotes for offer in quote.offers]
    currency = _currency(spec, offers, money)
    policy = policy_of(spec, replace(_bare_job(spec, currency), data_manifests=data or {}), history)
    policy = replace(policy, providers=providers, rates=money.rates_to(currency))
    pace = pace_at(now, now, 0.0, policy)
    first = rank(offers, policy, resting, pace=pace)
    if pace is not ANY:  # it may have to go on demand, which the price of a spot machine would forbid
        first = rank(offers, policy, resting, pace=Pace("demand"))
    cheapest = first.ranked[0] if first.ranked else None
    cap = price_cap_of(spec, in_own_money(cheapest, policy).hourly if cheapest else None)
    policy = replace(policy, price_cap=cap)
    ranking = rank(offers, policy, resting, pace=pace)
    chosen = ranking.ranked[0] if ranking.ranked else None
    caps = next((quote.caps for quote in quotes if chosen and quote.provider == chosen.provider), None)
    play = bool(caps and caps.play)
    own = in_own_money(chosen, policy) if chosen else None
    worst, by = _worst(own, policy, cap, tasks)
    end = _machine_end(own, policy)
    return Plan(
        name=spec.name,
        values=_values(document, origins),
        quotes=quotes,
        ranked=ranking.ranked,
        left_out=ranking.left_out,
        policy=policy,
        price_cap=cap,
        price_cap_given=spec.max_price is not None,
        currency=currency,
        play=play,
        expected_cost=_expected(own, chosen, policy, tasks),
        tasks=tasks,
        worst_case=worst,
        worst_case_by=by,
        reserve=reserve(own, 0.0, end, policy.release_margin_s, Decimal(0)) if own and end else None,
        machine_end_s=end,
        timers=timers(caps) if caps else (),
        needs_awake=needs_awake(spec, policy),
        history=history,
        memory=estimate_of(spec),
        pace=pace,
        saving=saving_of(chosen, policy, history),
    )


def saving_of(chosen: Offer | None, policy: Policy, history: History) -> Saving | None:
    """How often to save on a spot machine; losses of others are too rare to plan for."""
    if chosen is None or not chosen.spot or not policy.checkpoints:
        return None
    losses = history.reclaims.get(chosen.provider, RECLAIMS_PER_H)
    return saving(history.save_s, losses, policy.every_s or None)


def _bare_job(spec: JobSpec, currency: str) -> Job:
    """A job that exists only so far as `policy_of` looks at it."""
    return Job(
        id="", name=spec.name, run=1, spec={}, spec_hash="", snapshot="", base_dir="", created_at=0.0,
        currency=currency,
    )  # fmt: skip


def _currency(spec: JobSpec, offers: Iterable[Offer], money: Exchange) -> str:
    """That of the spec's own limits, else that of all offers, else the config's."""
    found = {offer.currency for offer in offers}
    return currency_of(spec) or (found.pop() if len(found) == 1 else money.currency)


def in_own_money(offer: Offer, policy: Policy) -> Offer:
    """The offer with its price in the job's currency; one without a rate is never ranked, so it stays as it is."""
    worth = policy.worth(offer.currency)
    if worth is None or not policy.currency:
        return offer
    return replace(offer, hourly=offer.hourly * worth, currency=policy.currency)


def _values(document: Mapping[str, Any], origins: Mapping[str, str]) -> tuple[Value, ...]:
    """What was set anywhere, and of the built-in values those that decide money or time."""
    keys = [key for key in document if key != "name" and (key in origins or key in ALWAYS_SHOWN)]
    keys += [key for key in ALWAYS_SHOWN if key not in document]
    if document.get("sweep") and "budget" not in origins:  # the sweep's own is shown with the sweep
        keys = [key for key in keys if key != "budget"]
    missing = {"max_price": "1.5 x the offer shown", "budget": "none", "artifacts": "everything in $GPUJOB_OUT, "
               "the newest checkpoint, changed files"}  # fmt: skip
    return tuple(
        Value(key, document.get(key, missing.get(key, "")), origins.get(key, "built-in")) for key in dict.fromkeys(keys)
    )


def _expected(own: Offer | None, chosen: Offer | None, policy: Policy, tasks: int) -> Decimal | None:
    """What the whole costs on the chosen offer; of many tasks each machine starts up once."""
    if chosen is None or own is None or policy.work is None:
        return None
    crew = policy.crew
    if crew is None:
        return in_the_end(chosen, policy)
    machines = min(crew.parallel, tasks)
    data = traffic(chosen, policy.work, machines) * (policy.worth(chosen.currency) or Decimal(0))
    whole = cost(machines * policy.work.startup_s + tasks * policy.work.run_s, own) + data
    return whole.quantize(CENTS, rounding=ROUND_UP)


def _worst(offer: Offer | None, policy: Policy, cap: Decimal | None, tasks: int) -> tuple[Decimal | None, str]:
    """The most that the whole job can cost, and which of ttl and budget makes that bound."""
    if offer is None:
        return (policy.budget, "budget") if policy.budget is not None else (None, "ttl")
    dearest = replace(offer, hourly=max(cap or offer.hourly, offer.hourly))
    by_ttl = worst_case(dearest, 0.0, policy.ttl_s, policy.release_margin_s).quantize(CENTS, rounding=ROUND_UP)
    if policy.crew is not None:  # a sweep's ttl is of each leg, that of a batch or of replicas of all their machines
        by_ttl *= max(1, tasks if policy.crew.kind == "sweep" else min(policy.crew.parallel, tasks))
    if policy.budget is not None and policy.budget < by_ttl:
        return policy.budget, "budget"
    return by_ttl, "ttl"


def _machine_end(offer: Offer | None, policy: Policy) -> float | None:
    """Seconds from the start of the first machine to its own end: the ttl, or as far as the budget goes."""
    if offer is None:
        return None
    if policy.budget is None:
        return policy.ttl_s
    return max(0.0, min(policy.ttl_s, affordable_end(offer, 0.0, policy.budget, policy.release_margin_s)))


def timers(caps: Caps) -> tuple[Timer, ...]:
    """The three timers of a machine at this provider, and which of them stop the bill without this computer."""
    provider = Timer(
        "provider", caps.server_ttl,
        "the provider itself ends the machine" if caps.server_ttl else "this provider has no timer of its own",
    )  # fmt: skip
    if caps.boot_hook == "none":
        machine = Timer("machine", False, "nothing can be started at boot here; only the agent ends the job")
    elif caps.self_end in ("destroys", "stops_all_billing"):
        machine = Timer("machine", True, "the machine ends itself, which stops the bill")
    elif caps.self_end == "leaves_disk":
        machine = Timer("machine", False, "the machine ends itself, but its disk goes on billing")
    else:
        machine = Timer("machine", False, "the machine ends the job itself, which does not stop the bill")
    return (Timer("controller", False, "only while this computer is awake"), machine, provider)


def needs_awake(spec: JobSpec, policy: Policy) -> tuple[Need, ...]:
    """What stops when this computer sleeps or goes away. The run itself does not."""
    needs = [Need("relaunch after a loss", "a new machine is rented by the controller")]
    mirror = spec.checkpoint.mirror if spec.checkpoint is not None else None
    if policy.checkpoints and not (mirror and is_remote(mirror)):
        needs.append(Need("checkpoints", "without an object store they become durable here only"))
    if policy.results:
        places = [each.to for each in spec.artifacts or () if not isinstance(each, str)]
        if not places or any(not (place and is_remote(place)) for place in places):
            needs.append(Need("results", "without an object store they come home to this computer only"))
        else:
            needs.append(Need("results", "the machine uploads them at its end, by URLs that are signed here then"))
    return tuple(needs)


def ask_for(ask: Ask, provider: str) -> Ask | None:
    """The ask as one provider understands it: `provider/region` becomes `region` there, and None elsewhere."""
    own = tuple(
        region.partition("/")[2] if "/" in region else region
        for region in ask.regions
        if "/" not in region or region.partition("/")[0] == provider
    )
    if ask.regions and not own:
        return None
    return replace(ask, regions=own)


def unbound(plan: Plan) -> bool:
    """Whether nothing but this computer stops the bill of the machine that would be rented."""
    return bool(plan.timers) and not any(timer.binds for timer in plan.timers)
