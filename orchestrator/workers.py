"""The machines of a job of many tasks: which task each gets next, until when each lives, when another one is rented.

Rules
- A machine serves one task after the other; serving more moves no end by itself. Its first end is what the first task
  should take, half as much again; while a task runs that end moves out in steps, each paid for before it is armed. So a
  budget is not reserved away by machines that will not need it.
- Machines are spread over pools where prices are near: what reclaims one spot machine reclaims its neighbours too.
- A machine goes on while that is cheaper than a new one; one without a task to come is released.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal

from orchestrator import budget, placement, resume
from orchestrator.actions import AskOffers, DrawLegs, OpenRental, Release, WaitForCapacity, WantEnd, Withdraw
from orchestrator.bench import Bench
from orchestrator.draft import Draft
from orchestrator.ending import SAVE_MIN_S, ending
from orchestrator.model import Assignment, Facts, Reason, RentalFacts, RentalPhase, SignalWhy, Unknown
from orchestrator.successor import END_STEP_S, OFFERS_FRESH_S, USEFUL_S, committed, deadline, money_left
from orchestrator.transitions import DISRUPTIONS
from orchestrator.work import commit_run, work_on
from providers.base import Offer

GUESS_S = 3600.0  # what a leg is thought to take while nobody knows
EXPECTED_SHARE = 1.5  # a machine's first end is this much of what its first task should take
STEP_MIN_S = 600.0  # an end moves out by so much at least
STEP_AHEAD_S = 300.0  # and so long before saving would have to start: a controller that restarts is not that slow
SPREAD = Decimal("0.05")  # for each machine in the same spot pool an offer counts so much dearer ...
SPREAD_MAX = Decimal("0.25")  # ... but never so much that a far dearer pool is taken for it
CHEAPER = Decimal("0.8")  # a new machine must cost less than this share of going on: prices move by themselves
TAKE_OVER_S = 30.0  # a leg ahead that should begin within this where it is stays there: taking it back costs calls
IDLE_S = 600.0  # how long a machine is kept for a task whose last machine is not yet proved dead
HIRES_MAX = 32  # rentals opened by one decision: each is an insert in one transaction
LOSSES_MAX = 10  # times in a row that one leg is lost without a checkpoint; its machines cost what all others do
HOSTS_MAX = 6  # machines in a row that never ran anything, beyond those that the crew may have at a time


# --- one live machine ------------------------------------------------------------------------------------------------


def run_step(draft: Draft, bench: Bench, rental: RentalFacts) -> None:
    """Move the work on one live machine on by one step."""
    held = bench.held(rental.rental.id)
    for run in held:
        if not draft.decided_for(rental.rental.id, Release):
            work_on(draft, rental, run)
    if not held:
        _next(draft, bench, rental)


def _next(draft: Draft, bench: Bench, rental: RentalFacts) -> None:
    """A free machine: the next task, or its release."""
    row, machine = rental.rental, rental.machine
    if draft.facts.job.cancel_at is not None or bench.alike is not None:
        return  # decided for the whole job, once nothing is in hand
    why = ending(draft, rental)
    if why is SignalWhy.INTERRUPTION:
        draft.do(Release(row.id, Reason.INTERRUPTED, "reclaimed between two tasks", interrupted=True))
        return
    task = bench.next()
    if task is None:
        if why is not None or not _take_over(draft, bench, rental):
            _idle(draft, bench, rental)
        return
    if why is not None and row.wanted_end <= row.end and not draft.decided_for(row.id, WantEnd):
        draft.do(Release(row.id, row.end_reason, "its end is near"), "no task fits any more")
        return
    if row.ready_at is None or not (machine.connected and machine.end_confirmed):
        draft.say("PROVISIONING", machine.trouble or "waiting for the machine to answer")
        bench.taken.add(task.id)  # it will be this machine's: no other one is rented for it
        return
    if _cheaper_elsewhere(draft, bench, row.offer):
        draft.do(Release(row.id, Reason.DONE, "a new machine is cheaper by now"), "going on here costs more")
        return
    bench.taken.add(task.id)
    commit_run(draft, rental, task)


def _take_over(draft: Draft, bench: Bench, rental: RentalFacts) -> bool:
    """A free machine takes what another one was given ahead, unless that one will come to it soon."""
    for run in bench.ahead:
        at_work, other = bench.before(run), bench.rentals[run.rental]
        if run.task in bench.taken or at_work is None or at_work.exit is not None or not other.machine.connected:
            continue
        if bench.leg_s is not None and abs((at_work.ordered_at or 0.0) + bench.leg_s - draft.now) < TAKE_OVER_S:
            continue
        bench.taken.add(run.task)
        if rental.rental.ready_at is None or not rental.machine.connected:
            draft.say("PROVISIONING", rental.machine.trouble or "waiting for the machine to answer")
        else:
            draft.do(Withdraw(run.rental, run.task, run.n), f"{rental.rental.id} is free for it now")
        return True
    return False


def stage(draft: Draft, bench: Bench) -> None:
    """Give machines at work their next leg ahead, the one that began first first, but none that a machine on its way
    is for: so each begins its next one by itself. A search draws its legs when a machine is free, knowing more."""
    if bench.crew.kind != "sweep" or draft.facts.job.cancel_at is not None or bench.alike is not None:
        return
    spare = list(bench.assignable())[bench.awaited :]  # the first ones are begun sooner by machines on their way
    runs = filter(None, (_at_work(draft, bench, rental) for rental in bench.live()))
    machines = [bench.rentals[run.rental] for run in sorted(runs, key=lambda run: run.ordered_at or 0.0)]
    for rental, task in zip(machines, spare, strict=False):
        if not _cheaper_elsewhere(draft, bench, rental.rental.offer):
            bench.taken.add(task.id)
            commit_run(draft, rental, task)


def _at_work(draft: Draft, bench: Bench, rental: RentalFacts) -> Assignment | None:
    """The one run of a machine, while its program runs and nothing will end it."""
    held, machine = bench.held(rental.rental.id), rental.machine
    run = held[0] if len(held) == 1 else None
    seen = machine.runs.get(run.key) if run is not None else None
    if run is None or seen is None or run.ordered_at is None or run.exit is not None or not machine.connected:
        return None
    well = seen.state == "run" and seen.signalled is None and not seen.dead and machine.end_confirmed
    if not well or draft.decided_for(rental.rental.id, Release) or ending(draft, rental, run) is not None:
        return None
    return run


def _idle(draft: Draft, bench: Bench, rental: RentalFacts) -> None:
    """Nothing to do now: kept while a task may come soon, else released."""
    row = rental.rental
    if bench.drawable > bench.idle and _affordable(draft, bench, rental):
        bench.idle += 1  # a leg is drawn for it, once it is there
        if row.ready_at is not None:
            bench.ready += 1
        return
    blocked = [task for task in bench.waiting if task.id not in bench.taken and task.cancel_at is None]
    since = max(
        (run.exit.at for run in draft.facts.assignments if run.rental == row.id and run.exit is not None),
        default=row.ready_at or row.created_at,
    )
    if blocked and draft.now - since < IDLE_S:
        bench.taken.add(blocked[0].id)
        draft.wake(since + IDLE_S)
        return
    draft.do(Release(row.id, Reason.DONE, "no task is left for it"), "no task is left for it")


def _affordable(draft: Draft, bench: Bench, rental: RentalFacts) -> bool:
    """Whether the money lasts for one more leg on this machine."""
    row = rental.rental
    start = row.create_sent_at or row.created_at
    end, _ = _most(draft, bench, row.offer, start, without=row.id)
    needed = USEFUL_S if bench.leg_s is None else bench.leg_s + draft.policy.grace_s
    return end - draft.now >= needed


def _cheaper_elsewhere(draft: Draft, bench: Bench, offer: Offer) -> bool:
    """Whether prices that were read lately make a new machine cheaper for the next task, its startup included."""
    facts, policy = draft.facts, draft.policy
    stale = facts.offers_at is None or draft.now - facts.offers_at > OFFERS_FRESH_S
    if bench.leg_s is None or stale or isinstance(facts.offers, Unknown) or not facts.offers:
        return False
    ranked = placement.rank(facts.offers, policy, facts.resting).ranked
    if not ranked:
        return False
    best = ranked[0]
    startup = policy.work.startup_s if policy.work is not None else GUESS_S / 6
    new = budget.cost(startup + bench.leg_s, best) * (policy.worth(best.currency) or 1)
    here = offer.hourly * Decimal(f"{bench.leg_s:.3f}") / 3600 * (policy.worth(offer.currency) or 1)
    return new < here * CHEAPER


# --- ends ------------------------------------------------------------------------------------------------------------


def _window(draft: Draft) -> float:
    """Seconds before an end in which saving goes on."""
    return draft.policy.grace_s + max(SAVE_MIN_S, draft.facts.save_s)


def _most(draft: Draft, bench: Bench, offer: Offer, start: float, without: str = "") -> tuple[float, Reason]:
    """The latest end that the job's own ttl and money allow for one machine, and which of them made it."""
    facts, policy = draft.facts, draft.policy
    end = float("inf") if bench.crew.kind == "sweep" else deadline(facts.job, policy, facts.now)
    if bench.committed is None:
        bench.committed = committed(facts, policy)
    left = money_left(facts, policy, without, bench.committed)
    if left is None:
        return end, Reason.TTL
    paid = budget.affordable_end(
        offer, start, left / (policy.worth(offer.currency) or Decimal(1)), policy.release_margin_s
    )
    return (paid, Reason.BUDGET) if paid < end else (end, Reason.TTL)


def first_end(draft: Draft, bench: Bench, offer: Offer) -> float:
    """How long a machine that is rented now should live at first: its startup and one task, half as much again."""
    policy, crew = draft.policy, bench.crew
    if crew.kind == "replicas":  # somebody works on it: it lives as long as the job
        return deadline(draft.facts.job, policy, draft.now)
    leg = GUESS_S if bench.leg_s is None else bench.leg_s
    ttl = crew.leg_ttl_s if crew.leg_ttl_s is not None else policy.ttl_s
    startup = policy.work.startup_s if policy.work is not None else STEP_MIN_S
    return draft.now + startup + min(leg * EXPECTED_SHARE, ttl) + _window(draft)


def keep_end(draft: Draft, bench: Bench, rental: RentalFacts) -> None:
    """Move the end of a machine out while there is work for it; its reserve is committed before any timer moves."""
    row = rental.rental
    start = row.create_sent_at or row.created_at
    most, by = _most(draft, bench, row.offer, start, without=row.id)
    wanted, reason = row.wanted_end, row.end_reason
    if most < row.wanted_end - END_STEP_S and by is Reason.TTL:
        wanted, reason = most, by  # the job's ttl was shortened
    elif bench.crew.kind == "replicas":
        wanted, reason = max(row.wanted_end, min(most, deadline(draft.facts.job, draft.policy, draft.now))), by
    else:
        lead = _window(draft) + STEP_AHEAD_S
        life = row.wanted_end - row.created_at
        due = row.wanted_end - min(lead, life / 2)  # a short life is not all lead
        draft.wake(due)
        if draft.now >= due and _has_work(draft, bench, row.id):
            step = max(STEP_MIN_S, lead, (bench.leg_s or 0.0) / 2)
            wanted = min(row.wanted_end + step, most, _horizon(draft, bench, row.id))
            reason = by if wanted >= most - END_STEP_S else Reason.TTL
    if wanted - row.wanted_end <= END_STEP_S and not wanted < row.wanted_end - END_STEP_S:
        return
    late = max(wanted, row.end)  # a shorter end frees money only when every timer confirmed it
    reserve = budget.reserve(row.offer, start, late, draft.policy.release_margin_s, rental.spent)
    draft.do(WantEnd(row.id, wanted, reason, reserve), f"its end moves to {wanted:.0f} ({reason})")


def _has_work(draft: Draft, bench: Bench, rental: str) -> bool:
    run = bench.held_by(rental)
    return (run is not None and run.exit is None) or bench.next() is not None


def _horizon(draft: Draft, bench: Bench, rental: str) -> float:
    """No end lies beyond what the task at hand may still take by its own ttl."""
    run = bench.held_by(rental)
    ttl = bench.crew.leg_ttl_s
    end = bench.leg_end(run) if run is not None else draft.now + ttl if ttl is not None else None
    return float("inf") if end is None else end + 2 * _window(draft)


# --- further machines ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shortage:
    """Why no machine is rented although a task waits: the money, or no offer may be taken now."""

    ranking: placement.Ranking | None = None

    @property
    def money(self) -> bool:
        """Nothing useful could be paid for."""
        return self.ranking is None


def draw(draft: Draft, bench: Bench) -> None:
    """Have a search draw a leg for each machine that is free."""
    if bench.ready:
        draft.do(DrawLegs(bench.ready, len(draft.facts.tasks)), "machines are free for further legs")


def hire(draft: Draft, bench: Bench) -> Shortage | None:
    """Rent what the waiting tasks need and everything allows; the money of several is added up before it is spent."""
    facts, policy = draft.facts, draft.policy
    free = _free_slots(bench)
    coming = sum(1 for r in bench.live() if r.rental.phase is RentalPhase.INTENT)
    wanted = min(_needed(bench) - coming, len(free), HIRES_MAX)
    if facts.machines_left is not None:
        wanted = min(wanted, facts.machines_left)
    bench.awaited = coming + max(0, wanted)
    if wanted <= 0 or facts.job.cancel_at is not None:
        return None
    if facts.offers_at is None or draft.now - facts.offers_at > OFFERS_FRESH_S or isinstance(facts.offers, Unknown):
        why = facts.offers.why if isinstance(facts.offers, Unknown) else "reading prices"
        draft.say("RECOVERING" if facts.rentals else "PENDING", why)
        draft.do(AskOffers(policy.ask, policy.providers), "prices are needed")
        return None
    losses = max((fruitless(facts, bench, task.id) for task in bench.waiting), default=0)
    ranking = placement.rank(facts.offers or (), policy, facts.resting, losses)
    if not ranking.ranked:
        bench.awaited = coming
        return Shortage(ranking)
    if facts.job.wait_since is not None:
        draft.do(WaitForCapacity(clear=True))
    pools = Counter(placement.pool_key(r.rental.offer) for r in bench.live() if r.rental.offer.spot)
    reserved, used = Decimal(0), {r.rental.offer.key for r in bench.live() if r.rental.phase is RentalPhase.INTENT}
    for slot in free[:wanted]:
        offer = _spread(ranking.ranked, draft, pools, used)
        opened = _rental(draft, bench, offer, slot, reserved)
        if opened is None:
            bench.awaited = coming
            return Shortage()
        draft.do(opened, f"{offer.provider} {offer.key} for worker {slot}")
        reserved += opened.reserve * (policy.worth(offer.currency) or Decimal(1))
        pools[placement.pool_key(offer)] += offer.spot
        used.add(offer.key)
    draft.say("PROVISIONING", f"renting {wanted} machines")
    return None


def _free_slots(bench: Bench) -> list[int]:
    """Numbers of workers whose last machine can run nothing any more."""
    taken = {
        r.rental.worker
        for r in bench.facts.rentals
        if r.rental.phase is not RentalPhase.GONE and r.rental.quiesced_at is None
    }
    return [number for number in range(bench.crew.parallel) if number not in taken]


def _needed(bench: Bench) -> int:
    """Tasks, and legs still to be drawn, that no machine that is there is free for. What machines at work have ahead
    waits as well: a further machine would take it."""
    waiting = sum(1 for _ in bench.assignable()) + sum(run.task not in bench.taken for run in bench.ahead)
    return waiting + max(0, bench.drawable - bench.idle)


def _spread(ranked: tuple[Offer, ...], draft: Draft, pools: Counter[str], used: set[str]) -> Offer:
    """The cheapest to finish, where each machine in a spot pool makes its pool count a little dearer. An offer that is
    one machine (its pool has its own name) is not taken twice."""

    def dearer(position: int) -> tuple[bool, Decimal, int]:
        offer = ranked[position]
        penalty = min(SPREAD_MAX, SPREAD * pools[placement.pool_key(offer)]) if offer.spot else Decimal(0)
        taken = not offer.pool and offer.key in used
        return taken, placement.in_the_end(offer, draft.policy) * (1 + penalty), position

    return ranked[min(range(len(ranked)), key=dearer)]


def _rental(draft: Draft, bench: Bench, offer: Offer, slot: int, reserved: Decimal) -> OpenRental | None:
    """The next machine with its first end; None when the money does not last for anything useful."""
    facts, policy = draft.facts, draft.policy
    end = first_end(draft, bench, offer)
    left = money_left(facts, policy)
    reason = Reason.TTL
    if left is not None:
        worth = policy.worth(offer.currency) or Decimal(1)
        share = (left - reserved) / worth
        paid = budget.affordable_end(offer, draft.now, share, policy.release_margin_s)
        if paid < end:
            end, reason = paid, Reason.BUDGET
    if bench.crew.kind != "sweep":
        end = min(end, deadline(facts.job, policy, draft.now))
    useful = min(USEFUL_S, policy.ttl_s / 2) if bench.leg_s is None else bench.leg_s
    if end - draft.now < useful:
        return None
    return OpenRental(offer, end, reason, budget.worst_case(offer, draft.now, end, policy.release_margin_s), slot)


# --- losses ----------------------------------------------------------------------------------------------------------


def fruitless(facts: Facts, bench: Bench, task: str) -> int:
    """How often in a row a task was lost with its machine, after its program had started, without a new checkpoint."""
    count = 0
    for run in reversed(bench.runs.get(task, [])):
        if run.ordered_at is None:
            continue
        rental = bench.rentals.get(run.rental)
        lost = rental is not None and rental.rental.reason in DISRUPTIONS
        if not lost or resume.progressed(facts, run):
            break
        count += 1
    return count


def lost_hosts(facts: Facts) -> int:
    """How many of the latest machines that are over never came to run anything, in a row."""
    ran = {run.rental for run in facts.assignments if run.ordered_at is not None}
    count = 0
    for r in sorted(facts.rentals, key=lambda r: r.rental.attempt, reverse=True):
        if r.rental.id in ran:
            break
        over = r.rental.phase in (RentalPhase.RELEASING, RentalPhase.GONE)
        bad = r.rental.reason in DISRUPTIONS
        count += over and bad and r.rental.provider_id is not None
    return count
