"""How a spec stands before it is applied: to the newest run of its name, to the limits, to the timers that end a
machine.

Rules: only looks, as the books have it now; the controller looks again. What is refused here would otherwise be
found out only after the user was asked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from orchestrator.cli import exits
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import local_time, money

if TYPE_CHECKING:
    from orchestrator.cli.plan import Prepared
    from orchestrator.config import Config
    from orchestrator.home import Home
    from orchestrator.model import Job


@dataclass(frozen=True)
class Standing:
    """How a prepared spec stands to the newest run of its name."""

    job: Job | None
    same: bool  # the same spec and the same files

    @property
    def live(self) -> bool:
        """The run is not over."""
        return self.job is not None and self.job.terminal_at is None


def standing_of(home: Home, prepared: Prepared) -> Standing:
    """The newest run of the same name, as the books have it now; the controller looks again."""
    if not home.database.exists():
        return Standing(None, False)
    from orchestrator.cli.reading import reader
    from orchestrator.snapshot import same_files
    from orchestrator.store import NoSuchJob

    with reader(home) as store:
        try:
            job = store.job(store.find(prepared.spec.name).job)
        except NoSuchJob:
            return Standing(None, False)
    if job.name != prepared.spec.name:  # NAME.2 found a run of NAME
        return Standing(None, False)
    shot = prepared.snapshot.hash if prepared.snapshot else ""
    files = same_files(home, job.snapshot, shot, prepared.spec_file)
    return Standing(job, job.spec_hash == prepared.spec_hash and files)


def needs_money(standing: Standing, replace: bool, again: bool) -> bool:
    """Whether a machine may be rented by this call: not when the spec is the same as a live or finished job's."""
    from orchestrator.model import Outcome

    if standing.job is None or replace or not standing.same:
        return True
    done = standing.job.outcome is Outcome.DONE
    return not (standing.live or (done and not again))


def may_rent(standing: Standing, replace: bool, again: bool) -> bool:
    """Whether this call has to be agreed to: a live job is only edited, or the controller refuses, unless replaced."""
    return needs_money(standing, replace, again) and (replace or not standing.live)


def refuse(home: Home, config: Config, prepared: Prepared, max_cost: Decimal | None) -> None:
    """What would only be found out after the question: a moment that is past, no card that holds the model, no price,
    nothing that stops the bill, limits.
    """
    from orchestrator.planning import unbound

    plan, spec = prepared.plan, prepared.spec
    _refuse_past(prepared)
    if plan.memory is not None and not any(plan.memory.fits(g.vram_gb, g.count) for g in plan.policy.ask.gpus):
        raise CliError(
            "no GPU that the spec asks for holds its model, so waiting could not help; nothing was done",
            where=spec.name,
            why=f"the model needs {plan.memory.need:.4g} GB of GPU memory",
            next="gpujob plan names cards and methods that fit; without `model` the memory is not compared",
        )
    if plan.chosen is None and plan.price_cap is None:
        troubles = "; ".join(f"{q.provider}: {q.trouble}" for q in plan.quotes if q.trouble)
        raise CliError(
            "no offer satisfies the spec now, so there is no price to hold later offers against; nothing was done",
            where=spec.name,
            why=troubles or "; ".join(sorted({out.why for out in plan.left_out})[:3]),
            next="set max_price, and the job waits for an offer; gpujob plan shows what there is",
            code=exits.NO_CAPACITY,
        )
    if unbound(plan) and "ttl-needs-controller" not in spec.allow:
        raise CliError(
            "nothing but this computer would stop the bill: neither provider nor machine has a timer; nothing was done",
            where=spec.name,
            next="an always-on controller, another provider, or allow: [ttl-needs-controller] in the spec",
        )
    problems = limits_of(home, config, prepared, max_cost)
    if problems:
        worst = f"{plan.worst_case:f}" if plan.worst_case is not None else "MONEY"
        raise CliError(
            "; ".join(problems) + "; nothing was done",
            where=spec.name,
            next=f"--max-cost {worst} for this job, or change limits in {config.path}",
        )


def _refuse_past(prepared: Prepared) -> None:
    """A job that is to be done before now would only be rented as if it had no deadline at all."""
    from jobspecs.problems import Problem, SpecErrors

    by = prepared.spec.finish_by
    if by is None or by.timestamp() > time.time():
        return
    late = f"{local_time(by.timestamp())} is past, so nothing could be steered by it"
    hint = "a later moment, or none: `ttl` and `budget` alone end a job"
    raise SpecErrors([prepared.loaded.located.place(Problem("", 0, 0, "finish_by", late, hint))])


def limits_of(home: Home, config: Config, prepared: Prepared, max_cost: Decimal | None) -> list[str]:
    """The config's limits that the job would pass."""
    from orchestrator import limits

    plan = prepared.plan
    cost = limits.Cost(plan.worst_case, plan.currency, plan.play)
    if not home.database.exists():
        return limits.passed(None, config, cost, max_cost, time.time())
    from orchestrator.cli.reading import reader

    with reader(home) as store:
        return limits.passed(store, config, cost, max_cost, time.time())


def thrown_away(home: Home, old: Job, fresh: bool) -> list[str]:
    """What --replace costs: steps that must be done again and money that bought them."""
    from orchestrator.cli.phases import steps_of
    from orchestrator.cli.reading import open_view

    view = open_view(home, old.id)
    steps = steps_of(view)
    kept = max((each.step for each in view.checkpoints), default=None)
    base = 0.0 if fresh or kept is None else float(kept)
    again = max(0.0, (steps.last or 0.0) - base)
    currency = view.rentals[-1].offer.currency if view.rentals else old.currency
    what = f"replaces {old.name}.{old.run}: {money(view.spent, currency, view.play)} were spent on it"
    start = "from the beginning" if fresh or kept is None else f"from its checkpoint of step {kept}"
    return [f"{what}; the new run starts {start}, {again:g} steps are thrown away; no checkpoint is deleted"]
