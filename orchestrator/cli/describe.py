"""`describe`: everything about one job: state, what comes next, time, attempts, machines with their money, events."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_job, add_output
from orchestrator.cli.follow import transfer_words
from orchestrator.cli.leg_view import counts, failed_items, legs_json, name_of, word_of
from orchestrator.cli.looks import look_json, look_lines
from orchestrator.cli.output import (
    clock_time,
    cut,
    line_width,
    local_time,
    money,
    money_json,
    paint_state,
    print_json,
    put,
    size,
    span,
    table,
    utc_z,
)
from orchestrator.cli.phases import (
    billing_lines,
    kept_lines,
    of_machines,
    phase_seconds,
    saving_words,
    spent_of,
    stage_seconds,
    steps_of,
)
from orchestrator.cli.reading import View, is_play, open_view, running_in
from orchestrator.cli.sweeps import best_line
from orchestrator.cli.vitals import alarm_json, alarm_lines, health_lines, notice_words, vitals_of
from orchestrator.cli.vitals import as_json as vitals_json
from orchestrator.home import Home
from orchestrator.model import Assignment, Rental

if TYPE_CHECKING:
    from orchestrator.interval import Saving

EVENTS_SHOWN = 15  # the last ones; -o json has more
CHECKPOINTS_SHOWN = 3
ITEMS_SHOWN = 4
_SHOWN_ABOVE = frozenset({"job", "run", "provider", "snapshot", "stand_in", "gpu"})


def _add(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print one job."""
    home = Home.from_env()
    view = open_view(home, args.job)
    if args.output == "json":
        print_json(as_json(home, view))
    else:
        put("\n".join(text(home, view)))
    return exits.OK


def text(home: Home, view: View) -> Iterator[str]:
    """The lines for a terminal."""
    job, words = view.job, view.words
    yield f"{job.name} (run {job.run}, {job.id})"
    reason = f"  {words.reason}" if words.reason else ""
    attempt = "" if view.whole else f"   attempt {words.attempt_text}"
    yield f"  status    {paint_state(words.state)}{reason}{attempt}"
    if words.detail:
        yield f"  why       {words.detail}"
    when = f" at {local_time(words.next_at)} (in {span(words.next_at - view.now)})" if words.next_at else ""
    yield f"  next      {words.next}{when}"
    yield from _decisive(home, view)
    yield f"  applied   {local_time(job.created_at)}" + (f" by {job.owner}" if job.owner else "")
    if view.hard_end is not None and job.terminal_at is None:
        yield f"  ttl       ends {local_time(view.hard_end)} (in {span(view.hard_end - view.now)})"
    steps = steps_of(view)
    if steps.last is not None and not view.whole:
        total = f" of {steps.total:g}" if steps.total else ""
        yield f"  progress  step {steps.last:g}{total}; {steps.lost:g} steps done again after losses"
    kept = None if view.whole else _saving(home, view)
    if kept is not None:
        yield f"  saving    {saving_words(kept)}"
    moving = transfer_words(view)
    if moving:
        yield f"  copying   {moving}"
    seconds = phase_seconds(view, stage_seconds(home, view))
    spent = " · ".join(f"{phase} {value:g} s" for phase, value in seconds.items())
    yield f"  time      {of_machines(view)}{spent}" if spent else "  time      -"
    yield f"  money     {_money_line(view)}"
    if view.results_dir:
        there = "" if any(run.results_at for run in view.runs) else " (not there yet)"
        yield f"  results   {view.results_dir}{there}"
    for notice in view.notices:
        yield cut(f"  notify    {notice_words(notice, view.now)}", line_width())
    if view.leg is not None:
        yield f"  leg       {view.leg.id}  {name_of(view.leg)}  {word_of(view.leg)}  {view.leg.detail}".rstrip()
    elif view.many:
        yield f"  legs      {counts(view.job, view.tasks, running_in(view))}; gpujob ps {job.name} lists them"
        best = best_line(view)
        if best:
            yield f"  best      {best}"
    for row in failed_items(view.items):
        yield f"  failed    {row['item']}  {row['why']}"
    yield f"  snapshot  {job.snapshot[:12] or 'none'}   spec {job.spec_hash[:12]}"
    yield from _health(home, view)
    yield from _tables(view)
    yield from look_lines(view.looks)
    yield from _environment(view.current)
    if view.journal:
        yield ""
        yield "EVENTS"
        for entry in view.journal[-EVENTS_SHOWN:]:
            where = f" {entry.rental}" if entry.rental else ""
            yield cut(f"  {clock_time(entry.at)}  {entry.kind}{where}  {entry.text}", line_width())
    yield ""
    yield from billing_lines(view) or kept_lines(home, view) or ["nothing is billing"]


def _health(home: Home, view: View) -> Iterator[str]:
    """How the machine does and what is wrong with it, while there is one."""
    run, progress = view.current, view.current_progress
    if run is None or run.exit is not None or view.job.outcome is not None:
        return
    if view.whole:  # no machine is the job's: `top` has a line for each
        yield from ["", *alarm_lines(view.alarms, view.now)] if view.alarms else ()
        return
    found = vitals_of(home, view.job.id, run.rental, view.now)
    if found is not None:
        yield ""
        step, total = (progress.step, progress.total) if progress is not None else (None, None)
        yield from health_lines(found, step, total, view.now)
    alarms = view.alarms
    if alarms:
        yield ""
        yield from alarm_lines(alarms, view.now)


def _saving(home: Home, view: View) -> Saving | None:
    """What saving costs by the saves that were seen, at the rate of reclaims of the machine's provider."""
    events = [entry.data for entry in view.journal if entry.kind == "agent:checkpoint"]
    rental = view.rentals[-1] if view.rentals else None
    if not events or rental is None or not rental.offer.spot:
        return None
    from orchestrator.cli.plan import known
    from orchestrator.history import RECLAIMS_PER_H
    from orchestrator.interval import measured, saving

    save_s, between = measured(events)
    losses = known(home, view.job.name)[1].reclaims.get(rental.offer.provider, RECLAIMS_PER_H)
    return saving(save_s, losses, between)


def _decisive(home: Home, view: View) -> Iterator[str]:
    """Class and line of a failure, where the outcome's own words do not hold them already, and where help is."""
    run = view.current
    if run is None or run.exit is None or run.exit.rc == 0 or run.exit.signalled is not None:
        return
    from orchestrator.causes import cause_of, in_words

    cause = run.cause or cause_of(home.log(view.job.id, run.task, run.n, run.exit.stage), run.exit.rc)
    if cause.line and cause.line not in view.words.detail:
        yield f"  line      {in_words(cause)}"
    yield f"  help      gpujob diagnose {view.job.name}"


def _money_line(view: View) -> str:
    """Spent, the present rate, and the worst case if everything runs to its end."""
    currency = view.rentals[-1].offer.currency if view.rentals else view.job.currency
    rate = sum((rental.offer.hourly for rental in view.open_rentals), Decimal(0))
    worst = view.spent + sum((rental.reserve for rental in view.open_rentals), Decimal(0))
    parts = [f"{money(view.spent, currency, view.play)} spent"]
    if view.open_rentals:
        parts.append(f"{money(rate, currency, view.play)}/h now")
        parts.append(f"{money(worst, currency, view.play)} at most at the machine's end")
    budget = view.job.spec.get("budget")
    if budget:
        parts.append(f"budget {budget}")
    if view.job.price_cap is not None:
        parts.append(f"never dearer than {money(view.job.price_cap, view.job.currency, view.play)}/h")
    return ", ".join(parts)


def _tables(view: View) -> Iterator[str]:
    if view.rentals:
        yield ""
        unit = "PLAY" if view.play else view.rentals[-1].offer.currency
        rows = [_rental_row(view, rental) for rental in view.rentals]
        columns = ("N", "MACHINE", "STATE", "GPU", "WHERE", "SPOT", f"{unit}/H", f"{unit} SPENT")
        yield table(columns, rows, state="", shrink=("WHERE", "GPU"), right=columns[-2:])
    if view.runs:
        yield ""
        seen = {(each.task, each.n): each.step for each in view.progress}
        lines = [_run_row(run, view.now, seen.get((run.task, run.n))) for run in view.runs]
        headers = ("RUN", "MACHINE", "ORDERED", "LASTED", "EXIT", "RESUMED FROM", "LAST STEP", "RESULTS")
        yield table(headers, lines, state="", shrink=("MACHINE", "RESUMED FROM", "RESULTS"))
    if view.checkpoints:
        yield ""
        yield f"CHECKPOINTS ({len(view.checkpoints)} durable)"
        for each in view.checkpoints[-CHECKPOINTS_SHOWN:]:
            leg = f"{each.task}  " if view.whole else ""
            yield f"  {leg}{each.name}  step {each.step}  {size(each.bytes)}  verified {local_time(each.verified_at)}"


def _rental_row(view: View, rental: Rental) -> tuple[str, ...]:
    offer, play = rental.offer, is_play(rental)
    count = f":{offer.gpu_count}" if offer.gpu_count > 1 else ""
    gpu = f"{offer.gpu}{count}{' stand-in' if offer.stand_in else ''}" if offer.gpu else "CPU"
    return (
        str(rental.attempt),
        rental.id,
        f"{rental.phase}, {rental.reason}" if rental.reason else str(rental.phase),
        gpu,
        f"{offer.provider}/{offer.region}",
        "spot" if offer.spot else "no",
        _amount(offer.hourly, offer.currency, play),
        _amount(spent_of(view, rental), offer.currency, play),
    )


def _amount(amount: Decimal, currency: str, play: bool) -> str:
    """The number alone: its unit is in the header."""
    return money(amount, currency, play).partition(" ")[0]


def _run_row(run: Assignment, now: float, seen: float | None) -> tuple[str, ...]:
    last = seen if seen is not None else run.last_step
    until = run.exit.at if run.exit else now
    ended = "-"
    if run.exit is not None:
        ended = f"{run.exit.stage} {run.exit.rc}" + (f" ({run.exit.signalled})" if run.exit.signalled else "")
    results = "home" if run.results_at is not None else run.results_lost or "-"
    return (
        run.key,
        run.rental,
        clock_time(run.ordered_at) if run.ordered_at else "-",
        span(until - run.ordered_at) if run.ordered_at and (run.exit or not run.closed_at) else "-",
        ended,
        run.resume_name or "the start",
        f"{last:g}" if last is not None else "-",
        results,
    )


def _environment(run: Assignment | None) -> Iterator[str]:
    if run is None or not run.environment:
        return
    yield ""
    yield "ENVIRONMENT"
    for key, value in sorted(run.environment.items()):
        if value not in (None, "", [], {}) and key not in _SHOWN_ABOVE:
            yield cut(f"  {key}: {_record(value, key)}", line_width())


def _record(value: Any, key: str = "") -> str:
    """One value of the environment record on one line; `-o json` has it whole."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_record(each, name)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        more = f", ... ({len(value)})" if len(value) > ITEMS_SHOWN else ""
        return ", ".join(_record(each) for each in value[:ITEMS_SHOWN]) + more
    if isinstance(value, int) and key in ("free", "total", "used"):
        return size(value)
    lines = str(value).splitlines()
    return lines[0] if len(lines) == 1 else f"{len(lines)} lines"


def as_json(home: Home, view: View) -> dict[str, Any]:
    """One job as documented in the reference of the JSON output."""
    job, words, steps = view.job, view.words, steps_of(view)
    currency = view.rentals[-1].offer.currency if view.rentals else job.currency
    worst = view.spent + sum((rental.reserve for rental in view.open_rentals), Decimal(0))
    return {
        "id": job.id,
        "name": job.name,
        "run": job.run,
        "state": str(words.state),
        "reason": words.reason or None,
        "detail": words.detail,
        "next": words.next,
        "next_at": utc_z(words.next_at),
        "outcome": str(job.outcome) if job.outcome else None,
        "exit_code": job.exit_code,
        "legs": legs_json(view) if view.many else None,
        "failed_items": failed_items(view.items),
        "attempt": words.attempt,
        "attempts_max": words.attempts_max,
        "created_at": utc_z(job.created_at),
        "first_rental_at": utc_z(job.first_rental_at),
        "outcome_at": utc_z(job.outcome_at),
        "terminal_at": utc_z(job.terminal_at),
        "ttl_end": utc_z(view.hard_end),
        "owner": job.owner,
        "spec": dict(job.spec),
        "spec_hash": job.spec_hash,
        "snapshot": job.snapshot or None,
        "resumed_from": job.resumed_from or None,
        "results": job.results_dir or None,
        "step": steps.last,
        "total": steps.total,
        "steps_lost": steps.lost,
        "progress": _progress_json(view),
        "health": _health_json(home, view),
        "notices": [
            {"target": each.target, "title": each.title, "sent_at": utc_z(each.sent_at), "tries": each.tries,
             "error": each.error or None, "next_at": None if each.over else utc_z(each.next_at)}
            for each in view.notices
        ],
        "alarms": [alarm_json(each) for each in view.alarms],
        "saving": _saving_json(home, view),
        "phases_s": phase_seconds(view, stage_seconds(home, view)),
        "price_cap": money_json(job.price_cap, job.currency),
        "spent": money_json(view.spent, currency, view.play),
        "worst_case": money_json(worst, currency, view.play),
        "rentals": [_rental_json(view, rental) for rental in view.rentals],
        "runs": [_run_json(run) for run in view.runs],
        "preflights": [look_json(look) for look in view.looks],
        "checkpoints": [
            {
                "run": f"{each.task}.{each.n}", "name": each.name, "step": each.step, "bytes": each.bytes,
                "hash": each.hash, "verified_at": utc_z(each.verified_at),
            }
            for each in view.checkpoints
        ],
        "events": [
            {"at": utc_z(entry.at), "rental": entry.rental or None, "kind": entry.kind, "text": entry.text}
            for entry in view.journal
        ],
        "billing": [rental.id for rental in view.open_rentals],
    }  # fmt: skip


def _saving_json(home: Home, view: View) -> dict[str, Any] | None:
    found = _saving(home, view)
    if found is None:
        return None
    shares = {"share": found.share, "best_share": found.best_share}
    return {"save_s": found.save_s, "losses_per_h": found.losses_per_h, "every_s": found.every_s,
            "best_s": round(found.best_s), **shares}  # fmt: skip


def _progress_json(view: View) -> dict[str, Any] | None:
    """What was last heard of the newest run, and the copy that goes on."""
    seen, moving = view.current_progress, view.transfer
    if seen is None:
        return None
    transfer = {key: moving[key] for key in ("what", "bytes", "total", "rate")} if moving else None
    return {"at": utc_z(seen.at), "transfer": transfer}


def _health_json(home: Home, view: View) -> dict[str, Any] | None:
    run = view.current
    return vitals_json(vitals_of(home, view.job.id, run.rental, view.now)) if run is not None else None


def _rental_json(view: View, rental: Rental) -> dict[str, Any]:
    offer, play = rental.offer, is_play(rental)
    return {
        "id": rental.id,
        "attempt": rental.attempt,
        "phase": str(rental.phase),
        "reason": str(rental.reason) if rental.reason else None,
        "detail": rental.detail,
        "provider": offer.provider,
        "account": offer.account,
        "region": offer.region,
        "provider_id": rental.provider_id,
        "gpu": offer.gpu or None,
        "gpu_count": offer.gpu_count,
        "stand_in": offer.stand_in,
        "spot": offer.spot,
        "hourly": money_json(offer.hourly, offer.currency, play),
        "spent": money_json(spent_of(view, rental), offer.currency, play),
        "reserve": money_json(rental.reserve, offer.currency, play),
        "created_at": utc_z(rental.created_at),
        "ready_at": utc_z(rental.ready_at),
        "end": utc_z(rental.end),
        "interrupted_at": utc_z(rental.interrupted_at),
        "releasing_at": utc_z(rental.releasing_at),
        "gone_at": utc_z(rental.gone_at),
    }


def _run_json(run: Assignment) -> dict[str, Any]:
    end = run.exit
    return {
        "run": run.key,
        "rental": run.rental,
        "resumed_from": run.resume_name or None,
        "resume_step": run.resume_step,
        "last_step": run.last_step,
        "ordered_at": utc_z(run.ordered_at),
        "exit": {
            "stage": end.stage, "code": end.rc, "at": utc_z(end.at),
            "signalled": str(end.signalled) if end.signalled else None, "lost": end.lost,
        } if end else None,
        "results_at": utc_z(run.results_at),
        "results_lost": run.results_lost or None,
        "environment": dict(run.environment),
    }  # fmt: skip


COMMANDS = {"describe": Command(_add, run)}
