"""Whether a job with `finish_by` takes spot, waits for it, or goes on demand: the rules of Uniform Progress. Pure.

The rules are those of "Can't Be Late" (Wu et al., NSDI 2024), for the moment in which a machine is chosen:
- safety net: when what is left needs nearly all of the time, on demand, and it stays there;
- spot where there is any, however far behind: a machine that works is better than none;
- without spot: on demand when behind an even pace, else waiting, which costs nothing.

A machine that works is never left for a cheaper one. Nothing here ends a job: past `finish_by` the cheapest is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.model import Assignment, Facts, Policy, Work

# A changeover twice: the one that must still be paid, and one that a spot machine lost at once would have cost
NET_CHANGEOVERS = 2


@dataclass(frozen=True)
class Pace:
    """What to rent next. `until`: UTC time at which waiting for spot would end without any; None when it does not wait.

    `any`: no deadline steers; `spot-first`: spot, else on demand; `spot-or-wait`; `demand`: the safety net.
    """

    kind: Literal["any", "spot-first", "spot-or-wait", "demand"]
    why: str = ""
    until: float | None = None


ANY = Pace("any")


def pace_of(facts: Facts, policy: Policy) -> Pace:
    """The rule that holds for a job now."""
    return pace_at(facts.now, facts.job.created_at, done_s(facts), policy)


def pace_at(now: float, began: float, done: float, policy: Policy) -> Pace:
    """The rule that holds at `now` for a job of `began` (UTC) with `done` seconds of durable work.

    Only `spot: auto` of a job that can resume, and whose length is known, is steered.
    """
    by, work = policy.finish_by, policy.work
    if by is None or work is None or policy.spot != "auto" or not policy.resumable or now >= by:
        return ANY
    left, time = max(0.0, work.run_s - done), by - now
    net = left + NET_CHANGEOVERS * changeover_s(work)
    if time < net:
        return Pace("demand", f"{_hours(left)} of work and the changeovers fill the {_hours(time)} to finish_by")
    expected = (now - began) * work.run_s / max(by - began, 1.0)
    if done < expected:
        return Pace("spot-first", f"{_hours(expected - done)} behind an even pace to finish_by")
    even = began + (by - began) * min(1.0, done / max(work.run_s, 1.0))
    return Pace("spot-or-wait", "ahead of an even pace to finish_by", min(by - net, even))


def steers_nothing(policy: Policy) -> str:
    """Why a `finish_by` has no effect, with the way out."""
    if policy.work is None:
        return "steers nothing, since the job's length is unknown: write `expected`"
    if not policy.resumable or policy.spot == "never":
        return "steers nothing: this job runs on demand anyway"
    if policy.spot == "always":
        return "steers nothing: spot: true allows no other machine; write spot: auto"
    return "has passed, so `apply` refuses to rent by it"


def changeover_s(work: Work) -> float:
    """What moving to another machine costs: its start, and the work since the last checkpoint."""
    return work.startup_s + work.rework_s


def net_at(by: float, work: Work) -> float:
    """UTC time from which a job that has done nothing yet goes on demand."""
    return by - work.run_s - NET_CHANGEOVERS * changeover_s(work)


def done_s(facts: Facts) -> float:
    """Seconds of work that are durable: of each run that got on, from its order to its last verified checkpoint."""
    return sum(_kept_s(facts, run) for run in facts.assignments if run.ordered_at is not None)


def _kept_s(facts: Facts, run: Assignment) -> float:
    saved = [c.verified_at for c in facts.checkpoints if (c.task, c.n) == (run.task, run.n)]
    if not saved and run.last_step is not None and run.last_step > (-1 if run.resume_step is None else run.resume_step):
        # Its checkpoints were pruned for later ones, so it got on until its end
        saved = [at for at in (run.exit.at if run.exit is not None else None, run.closed_at) if at is not None]
    return max(0.0, max(saved, default=0.0) - (run.ordered_at or 0.0))


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"
