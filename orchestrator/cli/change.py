"""`cancel` (`down`), `extend`, `resume` and `wait`: what one does to a job that is there.

Rules: every change is a request to the controller. Names are resolved first, all or none. A repeat is harmless.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

from orchestrator.cli import client, exits
from orchestrator.cli.commands import Command, add_job, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.handover import handed_over, values_of
from orchestrator.cli.output import local_time, print_json, put, say, utc_z
from orchestrator.cli.phases import billing_lines
from orchestrator.cli.reading import View, exit_code_of, open_view, reader, view_of
from orchestrator.home import Home

POLL_S = 0.3
WAKE_S = 5.0  # how often a dead controller is looked for while we wait


def _seconds(text: str | None, where: str) -> float | None:
    if text is None:
        return None
    from jobspecs.problems import Refusal
    from jobspecs.units import parse_duration

    try:
        return float(parse_duration(text).seconds)
    except Refusal as refusal:
        raise CliError(refusal.reason, where=where, next=refusal.hint) from None


def _add_cancel(parser: argparse.ArgumentParser) -> None:
    add_job(parser, "*")
    parser.add_argument("--all", action="store_true", help="every live job")
    parser.add_argument("--now", action="store_true", help="do not give the job its time to save")
    add_output(parser)


def run_cancel(args: argparse.Namespace) -> int:
    """Ask for the end of jobs; returns at once, `wait --for released` waits."""
    home = Home.from_env()
    if bool(args.job) == args.all:
        raise CliError("name the jobs to cancel, or --all", where=f"gpujob {args.verb}", next="gpujob ps lists them")
    jobs = _live_jobs(home) if args.all else [open_view(home, ref) for ref in args.job]
    said: list[dict[str, Any]] = []
    for view in jobs:
        job = view.job
        over = job.terminal_at is not None or (view.leg is not None and view.leg.outcome is not None)
        if not over:
            leg = view.leg.id if view.leg is not None else ""
            client.request(home, "cancel", {"job": job.id, "now": args.now} | ({"task": leg} if leg else {}))
            if leg and args.output == "table":
                put(f"{job.name}/{leg} is told to save; the others go on; `gpujob ps {job.name}` shows them")
                said.append({"id": job.id, "name": job.name, "run": job.run, "was_over": False})
                continue
        said.append({"id": job.id, "name": job.name, "run": job.run, "was_over": over})
        if args.output == "table":
            if over and job.terminal_at is None and view.leg is not None:
                ended = f"{job.name}/{view.leg.id} is over already ({view.leg.outcome})"
                put(f"{ended}; the others go on; `gpujob ps {job.name}` shows them")
            elif over:
                put(f"{job.name}.{job.run} is over already ({job.outcome}); nothing of it bills")
            else:
                how = "is stopped at once" if args.now else "is told to save"
                put(f"{job.name}.{job.run} {how}, then released; `gpujob wait {job.name} --for released`")
    if args.output == "json":
        print_json(said)
    elif not said:
        put("no live jobs")
    return exits.OK


def _live_jobs(home: Home) -> list[View]:
    if not home.database.exists():
        return []
    with reader(home) as store:
        return [view_of(store, store.find(job.id)) for job in store.active_jobs()]


def _add_extend(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("time", metavar="TIME", help="how much later it ends: 2h")
    add_output(parser)


def run_extend(args: argparse.Namespace) -> int:
    """Move the hard end; says what the end is then, and which of ttl and budget makes it."""
    home = Home.from_env()
    seconds = _seconds(args.time, "gpujob extend")
    view = open_view(home, args.job)
    answer = client.request(home, "extend", {"job": view.job.id, "seconds": seconds})
    end, binds = float(answer["end"]), str(answer.get("binds", "ttl"))
    if args.output == "json":
        print_json({"id": view.job.id, "name": view.job.name, "end": utc_z(end), "binds": binds})
        return exits.OK
    put(f"{view.job.name}.{view.job.run} ends at {local_time(end)} ({binds})")
    if binds == "budget":
        put("the budget ends it before its ttl: raise budget in the spec and apply it again")
    return exits.OK


def _add_resume(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--ttl", metavar="TIME", help="another ttl, counted from the new run's first machine")
    parser.add_argument("--budget", metavar="MONEY", help="another budget, for the new run")
    add_output(parser)


def run_resume(args: argparse.Namespace) -> int:
    """A new run of an ended job, from its newest checkpoint."""
    from jobspecs.problems import Refusal
    from jobspecs.units import parse_money

    home = Home.from_env()
    _seconds(args.ttl, "--ttl")
    try:
        budget = str(parse_money(args.budget)) if args.budget else None
    except Refusal as refusal:
        raise CliError(refusal.reason, where="--budget", next=refusal.hint) from None
    view = open_view(home, args.job)
    values = values_of(home, [str(name) for name in view.job.spec.get("secrets", ())], f"{view.job.name}: secrets")
    client.restart_older(home)
    with handed_over(home, values) as spool:
        wish = {"job": view.job.id, "ttl": args.ttl, "budget": budget, "spool": spool}
        answer = client.request(home, "resume", wish)
    if args.output == "json":
        print_json({"id": answer["id"], "name": view.job.name, "run": answer.get("run"), "resumed_from": view.job.id})
    else:
        step = max((each.step for each in view.checkpoints), default=None)
        start = f"from its checkpoint of step {step}" if step is not None else "from the start: it left no checkpoint"
        put(f"{view.job.name}.{answer.get('run')} applied ({answer['id']}), {start}")
    return exits.OK


def _add_wait(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument(
        "--for", dest="what", choices=("outcome", "released"), default="outcome",
        help="outcome: the work is decided (default); released: nothing of it bills",
    )  # fmt: skip
    parser.add_argument("--timeout", metavar="TIME", help="give up after this long (exit 6, or 3 for a release)")
    add_output(parser)


def run_wait(args: argparse.Namespace) -> int:
    """Wait; the exit code is the job's."""
    home = Home.from_env()
    seconds = _seconds(args.timeout, "--timeout")
    view = open_view(home, args.job)
    until = time.monotonic() + seconds if seconds is not None else None
    woke = time.monotonic()
    with reader(home) as store:
        while not _reached(view, args.what):
            now = time.monotonic()
            if until is not None and now >= until:
                return _timed_out(view, args)
            if now - woke >= WAKE_S:
                client.wake(home)
                woke = now
            time.sleep(POLL_S)
            view = view_of(store, view.ref)
    _print_end(view, args.output)
    if view.leg is not None and view.leg.outcome is not None:
        return exit_code_of(replace(view.job, outcome=view.leg.outcome, reason=view.leg.reason))
    return exit_code_of(view.job)


def _reached(view: View, what: str) -> bool:
    if view.leg is not None and view.leg.outcome is not None:
        return what == "outcome" or not view.open_rentals
    return view.job.terminal_at is not None or (what == "outcome" and view.job.outcome is not None)


def _timed_out(view: View, args: argparse.Namespace) -> int:
    """6 while the work goes on; 3 when it is decided and only the release is not confirmed."""
    words = view.words
    say(f"gpujob: {view.job.name} is still {words.state} after {args.timeout}: {words.next}")
    for line in billing_lines(view):
        say(f"  {line}")
    _print_end(view, args.output)
    return exits.PROVIDER if view.job.outcome is not None else exits.STILL_RUNNING


def _print_end(view: View, output: str) -> None:
    words = view.words
    if output == "json":
        print_json(
            {
                "id": view.job.id, "name": view.job.name, "run": view.job.run, "state": str(words.state),
                "reason": words.reason or None, "detail": words.detail,
                "outcome": str(view.job.outcome) if view.job.outcome else None,
                "exit_code": view.job.exit_code, "released": view.job.terminal_at is not None,
                "billing": [rental.id for rental in view.open_rentals],
            }
        )  # fmt: skip
        return
    detail = f"  {words.detail}" if words.detail else ""
    put(f"{view.job.name}.{view.job.run}  {words.state}  {words.reason}{detail}".rstrip())


COMMANDS = {
    "cancel": Command(_add_cancel, run_cancel),
    "down": Command(_add_cancel, run_cancel),
    "extend": Command(_add_extend, run_extend),
    "resume": Command(_add_resume, run_resume),
    "wait": Command(_add_wait, run_wait),
}
