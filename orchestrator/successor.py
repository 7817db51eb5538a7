"""The next machine of a job, and what a lost one leaves undecided: pure leaf rules.

A successor needs stored facts that every earlier machine can no longer run the job's code; asking for it in the same
decision that lets the old one go was the first bug that simulation found in a core that had looked finished.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from itertools import takewhile

from orchestrator import budget, placement, resume
from orchestrator.actions import (
    AskOffers,
    OpenRental,
    SetOutcome,
    StoreResultsLost,
    WaitForCapacity,
    WantEnd,
)
from orchestrator.draft import Draft
from orchestrator.model import CreateOutcome, Facts, Job, Outcome, Policy, Reason, RentalFacts, RentalPhase, Unknown
from orchestrator.pace import pace_of
from orchestrator.verdict import judge
from orchestrator.work import outcome_of
from providers.base import Offer

OFFERS_FRESH_S = 60.0  # prices older than this are asked for again before money is spent on them
USEFUL_S = 120.0  # a machine that could live shorter than this is not rented
REFUSALS_SAID = 3  # refusals in a row after which a wait names what the spec leaves no choice in
HOSTS_MAX = 6  # machines in a row that never ran anything: then a person must look
END_STEP_S = 5.0  # a wanted end moves only by more than this, so that rounding never moves timers


def deadline(job: Job, policy: Policy, now: float) -> float:
    """The job's hard end: its ttl counts from the first rental, waiting for that one does not."""
    return (job.first_rental_at if job.first_rental_at is not None else now) + policy.ttl_s + job.ttl_extra_s


def committed(facts: Facts, policy: Policy) -> Decimal:
    """Spent and reserved by all rentals of the job, in the job's currency."""
    return sum((_committed(r, policy) for r in facts.rentals), Decimal(0))


def _committed(r: RentalFacts, policy: Policy) -> Decimal:
    return (r.spent + r.rental.reserve) * _worth(r.rental.offer, policy)


def _worth(offer: Offer, policy: Policy) -> Decimal:
    """The rate of an offer that may be or was taken; one that the config has lost since leaves amounts as they are."""
    return policy.worth(offer.currency) or Decimal(1)


def money_left(facts: Facts, policy: Policy, without: str = "", total: Decimal | None = None) -> Decimal | None:
    """What budget and limits still allow, one rental left aside; None without either. `total`: `committed`, where it is
    asked for each of hundreds of rentals.
    """
    own = next((_committed(r, policy) for r in facts.rentals if r.rental.id == without), Decimal(0)) if without else 0
    caps = []
    if policy.budget is not None:
        caps.append(policy.budget - (committed(facts, policy) if total is None else total) + own)
    if facts.limits_left is not None:
        caps.append(facts.limits_left + own)
    return min(caps) if caps else None


def end_for(facts: Facts, policy: Policy, offer: Offer, start: float, without: str = "") -> tuple[float, Reason]:
    """The latest end that ttl and money allow for a machine rented at `start`, and which of them made it."""
    end = deadline(facts.job, policy, facts.now)
    left = money_left(facts, policy, without)
    if left is not None:
        paid = budget.affordable_end(offer, start, left / _worth(offer, policy), policy.release_margin_s)
        if paid < end:
            return paid, Reason.BUDGET
    return end, Reason.TTL


def keep_end(draft: Draft, rental: RentalFacts) -> None:
    """Follow an edited ttl or budget, or money that came free: commit the reserve before any timer moves."""
    row = rental.rental
    start = row.create_sent_at or row.created_at
    unlimited = replace(draft.facts, limits_left=None)
    end, reason = end_for(unlimited, draft.policy, row.offer, start, without=row.id)
    if end > row.wanted_end:  # the config's limits hold back what grows; they never cut short what runs
        limited, why = end_for(draft.facts, draft.policy, row.offer, start, without=row.id)
        if limited < end:
            end, reason = max(limited, row.wanted_end), why
    if abs(end - row.wanted_end) <= END_STEP_S:
        return
    late = max(end, row.end)  # a shorter end frees money only when every timer confirmed it
    reserve = budget.reserve(row.offer, start, late, draft.policy.release_margin_s, rental.spent)
    draft.do(WantEnd(row.id, end, reason, reserve), f"its end moves to {end:.0f} ({reason})")


def settle_lost(draft: Draft) -> None:
    """Decide what a machine that is gone or going has left undecided."""
    facts, policy = draft.facts, draft.policy
    if not facts.rentals:
        return
    last = max(facts.rentals, key=lambda r: r.rental.attempt)
    if last.rental.phase in (RentalPhase.LIVE, RentalPhase.INTENT):
        return
    mine = [a for a in facts.assignments if a.rental == last.rental.id and a.n > facts.job.replaced_n]
    newest = max(mine, key=lambda a: a.n, default=None)
    if newest is not None and newest.exit is not None and newest.results_at is None:
        verdict = judge(facts, policy, last, newest)
        by_end = last.rental.reason in (Reason.TTL, Reason.BUDGET)
        if verdict.kind in ("failed", "ended") or (verdict.kind == "done" and by_end):
            lost = newest.results_lost or "the machine went before the results were home"
            if policy.results and not newest.results_lost:
                draft.do(StoreResultsLost(newest.task, newest.n, lost))
            if verdict.kind == "done":
                words = f"the program had finished, but {lost}"
                draft.do(SetOutcome(Outcome.FAILED, last.rental.reason or Reason.TTL, words, 0))
            else:
                draft.do(outcome_of(verdict, newest), "decided although the machine is lost")
            return
    if last.rental.reason in (Reason.TTL, Reason.BUDGET):
        words = f"{last.rental.reason} reached; what was not durable by then is lost"
        draft.do(SetOutcome(Outcome.FAILED, last.rental.reason, words), "the end wins")


def successor(draft: Draft) -> None:
    """Open the first or the next rental, if the work needs one and nothing forbids it."""
    facts, policy, job = draft.facts, draft.policy, draft.facts.job
    if draft.decided(SetOutcome) or not any(t.outcome is None for t in facts.tasks):
        return
    if any(r.rental.phase in (RentalPhase.INTENT, RentalPhase.LIVE) for r in facts.rentals):
        return
    if job.cancel_at is not None:
        draft.do(SetOutcome(Outcome.CANCELLED, Reason.CANCELLED, "cancelled with no machine rented"))
        return
    if not all(_out_of_the_way(r) for r in facts.rentals):
        draft.say("RECOVERING", "waiting until the lost machine can no longer write")
        return
    if _exhausted(draft):
        return
    if facts.offers_at is None or draft.now - facts.offers_at > OFFERS_FRESH_S or isinstance(facts.offers, Unknown):
        why = facts.offers.why if isinstance(facts.offers, Unknown) else "reading prices"
        draft.say("RECOVERING" if facts.rentals else "PENDING", why)
        draft.do(AskOffers(policy.ask, policy.providers), "prices are needed")
        return
    _open(draft, facts.offers or ())


def _out_of_the_way(rental: RentalFacts) -> bool:
    """By stored facts: its user code can never run again."""
    row = rental.rental
    return row.phase is RentalPhase.GONE or row.quiesced_at is not None


def _exhausted(draft: Draft) -> bool:
    """Bounds on relaunching: progress, hosts, time."""
    facts, policy = draft.facts, draft.policy
    fruitless = resume.losses_without_progress(facts)
    if fruitless >= policy.no_progress_max:
        words = f"{fruitless} attempts in a row were lost without a new checkpoint"
        ordered = sorted((a for a in facts.assignments if a.ordered_at is not None), key=lambda a: a.n)
        words = "; ".join(filter(None, (resume.not_working(facts, ordered[-fruitless:]), words)))
        draft.do(SetOutcome(Outcome.FAILED, Reason.NO_PROGRESS, words), "relaunching has not helped")
        return True
    hosts = resume.lost_hosts(facts)
    if hosts >= HOSTS_MAX:
        last = max(facts.rentals, key=lambda r: r.rental.attempt).rental
        draft.do(
            SetOutcome(
                Outcome.FAILED,
                Reason.BAD_HOST,
                f"{hosts} machines in a row were unusable; the last: {last.detail}",
            )
        )
        return True
    return False


def _open(draft: Draft, offers: tuple[Offer, ...]) -> None:
    facts, policy, job = draft.facts, draft.policy, draft.facts.job
    pace = pace_of(facts, policy)
    ranking = placement.rank(offers, policy, facts.resting, resume.losses_without_progress(facts), pace)
    if not ranking.ranked and pace.until is not None and ranking.blocked is None:
        # By choice, so the bound on waiting for capacity does not count
        draft.say(
            "RECOVERING" if facts.rentals else "PENDING", f"waiting for spot: {pace.why}", "asked again every minute"
        )
        draft.wake(max(draft.now + 1.0, min(pace.until, draft.now + OFFERS_FRESH_S)))
        return
    if not ranking.ranked:
        wait(draft, ranking)
        return
    offer = ranking.ranked[0]
    end, reason = end_for(facts, policy, offer, draft.now)
    if end - draft.now < min(USEFUL_S, policy.ttl_s / 2):
        words = f"{reason} leaves {max(0, int(end - draft.now))} s for a machine at {offer.hourly:f} {offer.currency}/h"
        draft.do(SetOutcome(Outcome.FAILED, reason, words), "nothing useful could run")
        return
    if job.wait_since is not None:
        draft.do(WaitForCapacity(clear=True))
    reserve = budget.worst_case(offer, draft.now, end, policy.release_margin_s)
    draft.say(
        "RECOVERING" if facts.rentals else "PROVISIONING",
        f"renting {offer.gpu or 'a CPU machine'} at {offer.provider}",
    )
    draft.do(
        OpenRental(offer, end, reason, reserve), pace.why or f"{offer.provider} {offer.key} is the cheapest to finish"
    )


def _narrowed(facts: Facts, policy: Policy, ranking: placement.Ranking) -> str:
    """After some refusals in a row: the keys of the spec that may ask for what nobody has."""
    newest = sorted(facts.rentals, key=lambda r: r.rental.attempt, reverse=True)
    refused = [r.rental for r in takewhile(lambda r: r.rental.create_outcome is CreateOutcome.REFUSED, newest)]
    keys = placement.narrowed_by(policy, ranking)
    if len(refused) < REFUSALS_SAID or not keys:
        return ""
    return f" ({len(refused)} refusals in a row; the choice is narrowed by {', '.join(keys)})"


def wait(draft: Draft, ranking: placement.Ranking) -> None:
    """No offer may be taken now: wait as long as the spec allows, or end where waiting cannot help."""
    facts, policy, job = draft.facts, draft.policy, draft.facts.job
    why = ranking.left_out[0].why if ranking.left_out else "no offer matches the spec"
    why += _narrowed(facts, policy, ranking)
    blocked = ranking.blocked
    if blocked is not None:
        draft.do(SetOutcome(Outcome.FAILED, blocked, why), "waiting cannot help")
        return
    since = job.wait_since
    if since is None:
        draft.do(WaitForCapacity(), "nothing to rent now")
    elif draft.now - since >= policy.wait_s:
        draft.do(SetOutcome(Outcome.FAILED, Reason.NO_CAPACITY, f"none within {int(policy.wait_s)} s: {why}"))
        return
    draft.say(
        "RECOVERING" if facts.rentals else "PENDING",
        f"waiting for capacity: {why}",
        "asked again every minute",
    )
    draft.wake(min(draft.now + OFFERS_FRESH_S, (draft.now if since is None else since) + policy.wait_s))
