"""`apply`: run specs, change live jobs, or say that nothing changes.

Rules: all specs are valid or nothing happens. What it costs at most, and what ends the machine, is shown before the
question; without a terminal and without -y nothing is rented. The decision itself is the controller's: this verb
freezes the code, resolves the secrets, and asks.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli import client, exits, specs
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.handover import handed_over, values_of
from orchestrator.cli.output import money, money_json, print_json, put, say
from orchestrator.cli.standing import Standing, may_rent, needs_money, refuse, standing_of, thrown_away
from orchestrator.home import Home

if TYPE_CHECKING:
    from orchestrator.cli.plan import Prepared
    from orchestrator.config import Config

# The old run saves, brings its results home and is seen gone before the new one is made.
REPLACE_WITHIN_S = 4 * 3600.0
# Anything of this says that the machine we are on will not outlive the command by much.
CI_VARIABLES = ("CI", "GITHUB_ACTIONS", "GITLAB_CI", "JENKINS_URL", "BUILDKITE", "TF_BUILD")
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


def _add(parser: argparse.ArgumentParser) -> None:
    specs.add_files(parser)
    specs.add_changes(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--follow", action="store_true", help="show log and progress until the machine is released")
    parser.add_argument(
        "--replace", nargs="?", const="", metavar="NAME",
        help="end the live job of that name and go on from its checkpoints; =NAME when it has another folder",
    )  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="with --replace: start from the beginning")
    parser.add_argument("--again", action="store_true", help="run an ended spec anew, from the beginning")
    parser.add_argument("--max-cost", metavar="MONEY", help="allow a worst case above the config's limits, up to this")
    parser.add_argument("--dry-run", "--dryrun", action="store_true", help="the same as plan")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Apply every spec; with --follow stay until each is released."""
    from orchestrator.cli import plan
    from orchestrator.config import load_config, write_defaults

    _check_flags(args)
    if args.dry_run:
        return plan.run(args)
    home = Home.from_env()
    config = load_config(home)
    loaded = plan.load_specs(args, config)
    short_lived = "" if args.follow else _short_lived()
    max_cost = _max_cost(args.max_cost)
    if args.yes and not short_lived:
        client.start_early(home)
    prepared = [plan.prepare(home, config, each) for each in loaded]
    standings = [standing_of(home, each) for each in prepared]
    if any(may_rent(each, args.replace is not None, args.again) for each in standings):
        _refuse_short_lived(short_lived)
        _ask_possible(args)
    if write_defaults(home):
        say(f"wrote the default limits to {home.config_file}")
    for each, standing in zip(prepared, standings, strict=True):
        if needs_money(standing, args.replace is not None, args.again):
            refuse(home, config, each, max_cost)
    secrets = [values_of(home, each.spec.secrets, f"{each.spec.name}: secrets") for each in prepared]
    _confirm(args, prepared, standings, home)
    answers = [
        _ask(home, config, args, each, values, max_cost)
        for each, values in zip(prepared, secrets, strict=True)
    ]  # fmt: skip
    return _report(home, args, prepared, answers)


def _check_flags(args: argparse.Namespace) -> None:
    if args.again and args.replace is not None:
        raise CliError("--again starts anew and --replace goes on: only one of them", where="gpujob apply")
    if args.fresh and args.replace is None:
        raise CliError("--fresh belongs to --replace", where="gpujob apply", next="add --replace, or use --again")
    # `--replace job.yaml` looks natural and would take the file for a name
    if args.replace and args.replace.endswith((".yaml", ".yml")):
        args.specs.append(args.replace)
        args.replace = ""


def _short_lived() -> str:
    """What says that the controller may not outlive this command, as in CI or a container; "" where nothing does."""
    if os.environ.get("GPUJOB_CONTROLLER"):
        return ""
    where = next((f"${name}" for name in CI_VARIABLES if os.environ.get(name)), "")
    return where or next((mark for mark in CONTAINER_MARKS if Path(mark).exists()), "")


def _refuse_short_lived(where: str) -> None:
    """Nothing is rented where nobody would stay to look after it."""
    if where:
        raise CliError(
            "this looks like CI or a container, where the controller may end with the shell; nothing was rented",
            where=where,
            next="add --follow; or, where what you start outlives the shell, set GPUJOB_CONTROLLER=here, or ssh://HOST",
        )


def _ask_possible(args: argparse.Namespace) -> None:
    if not args.yes and not sys.stdin.isatty():
        raise CliError(
            "there is no terminal to ask on, and -y was not given; nothing was done",
            where="gpujob apply",
            next="gpujob plan shows what it would do; add -y to do it",
        )
    if not args.yes and specs.STDIN in (*args.files, *args.specs):
        raise CliError("a spec from stdin leaves no way to ask; nothing was done", next="add -y")


def _max_cost(text: str | None) -> Decimal | None:
    if text is None:
        return None
    from jobspecs.problems import Refusal
    from jobspecs.units import parse_money

    try:
        return parse_money(text).amount
    except Refusal as refusal:
        raise CliError(refusal.reason, where="--max-cost", next=refusal.hint) from None


def _confirm(args: argparse.Namespace, prepared: list[Prepared], standings: list[Standing], home: Home) -> None:
    """Show the plan and what would be thrown away, and ask, unless -y or nothing would be rented."""
    from orchestrator.cli.plan_text import left_out_line, plan_text

    spending = [
        (each, standing)
        for each, standing in zip(prepared, standings, strict=True)
        if may_rent(standing, args.replace is not None, args.again)
    ]  # fmt: skip
    for each, standing in spending:
        if not args.yes:
            say("\n".join(plan_text(each)))
        else:
            plan = each.plan
            offer = f"{plan.chosen.gpu or 'CPU'} at {plan.chosen.provider}" if plan.chosen else "no offer now: it waits"
            say(
                f"{each.spec.name}: {offer}, at most {money(plan.worst_case, plan.currency, plan.play)}, "
                f"never above {money(plan.price_cap, plan.currency, plan.play)}/h"
            )
            if left := left_out_line(each):
                say(f"{each.spec.name}: {left}")
        if args.replace is not None and standing.job is not None:
            for line in thrown_away(home, standing.job, args.fresh):
                say(line)
    if args.yes or not spending:
        return
    say("")
    sys.stderr.write("Proceed? [Y/n] ")
    sys.stderr.flush()
    said = sys.stdin.readline()
    if not said or said.strip().lower() not in ("", "y", "yes"):  # the end of the input is no answer
        raise CliError("nothing was done")


def _ask(
    home: Home, config: Config, args: argparse.Namespace, prepared: Prepared, values: Mapping[str, str],
    max_cost: Decimal | None,
) -> dict[str, Any]:  # fmt: skip
    """Hand the values over in a private folder and ask the controller."""
    mode = "replace" if args.replace is not None else "again" if args.again else "new"
    patience = client.ANSWER_WITHIN_S
    if mode == "replace":
        patience = REPLACE_WITHIN_S
        say(f"{prepared.spec.name}: a live run of that name saves and is released first; a held machine is taken over")
    client.restart_older(home)
    with handed_over(home, values) as spool:
        wish = {
            "job": job_document(prepared, config.owner, spool),
            "mode": mode,
            "replace_name": args.replace or "",
            "fresh": args.fresh,
            "max_cost": str(max_cost) if max_cost is not None else None,
        }
        return client.request(home, "apply", wish, patience)


def job_document(prepared: Prepared, owner: str, spool: str) -> dict[str, Any]:
    """What the controller is asked to run; no secret is in it."""
    from orchestrator.datasets import summaries

    plan, spec = prepared.plan, prepared.spec
    return {
        "name": spec.name,
        "spec": dict(prepared.document),
        "spec_hash": prepared.spec_hash,
        "snapshot": prepared.snapshot.hash if prepared.snapshot else "",
        "spec_file": prepared.spec_file,
        "commit": prepared.snapshot.commit if prepared.snapshot else "",
        "base_dir": str(prepared.loaded.base_dir),
        "owner": owner,
        "price_cap": f"{plan.price_cap:f}" if plan.price_cap is not None else None,
        "currency": plan.currency,
        "worst_case": f"{plan.worst_case:f}" if plan.worst_case is not None else None,
        "play": plan.play,
        "data_manifests": summaries(prepared.data),
        "results_dir": prepared.results_dir,
        "tasks": [{"id": t.id, "params": dict(t.params), "items": list(t.items)} for t in prepared.tasks],
        "secrets": list(spec.secrets),
        "spool": spool,
    }


def _report(home: Home, args: argparse.Namespace, prepared: list[Prepared], answers: list[dict[str, Any]]) -> int:
    """Print what became of each, follow where asked, and return the worst exit code."""
    documents = [answer_json(each, answer) for each, answer in zip(prepared, answers, strict=True)]
    if args.output == "json":
        print_json(documents[0] if len(documents) == 1 else documents)
        sys.stdout.flush()
    else:
        for each, answer in zip(prepared, answers, strict=True):
            put(answer_text(each, answer, args.follow))
            sys.stdout.flush()
    if not args.follow:
        return exits.OK
    return max(_follow(home, answer, logs=args.output != "json") for answer in answers)


def answer_json(prepared: Prepared, answer: Mapping[str, Any]) -> dict[str, Any]:
    """One object: id, name, worst_case, price_cap, results, and what was done."""
    plan = prepared.plan
    return {
        "id": answer.get("id"),
        "name": answer.get("name", prepared.spec.name),
        "run": answer.get("run"),
        "unchanged": bool(answer.get("unchanged")),
        "edited": list(answer.get("edited") or ()),
        "held_machine": answer.get("held"),
        "outcome": answer.get("outcome"),
        "worst_case": money_json(plan.worst_case, plan.currency, plan.play),
        "price_cap": money_json(plan.price_cap, plan.currency, plan.play),
        "results": prepared.results_dir or None,
    }


def answer_text(prepared: Prepared, answer: Mapping[str, Any], follow: bool) -> str:
    """One line for people."""
    name, run = prepared.spec.name, answer.get("run")
    if answer.get("finished"):
        results = answer.get("results") or prepared.results_dir
        return f"{name}.{run} is done already; results: {results or 'none'}; `gpujob apply --again` runs it anew"
    if answer.get("edited"):
        return f"{name}.{run} changed: {', '.join(answer['edited'])}"
    if answer.get("unchanged"):
        return f"{name}.{run} unchanged; `gpujob describe {name}` shows how it stands"
    if answer.get("held"):
        return f"{name}.{run} goes on on the machine that was held for it; `gpujob logs {name} -f` follows it"
    hint = "" if follow else f"; `gpujob logs {name} -f` follows it"
    return f"{name}.{run} applied ({answer.get('id')}); results: {prepared.results_dir or 'none'}{hint}"


def _follow(home: Home, answer: Mapping[str, Any], logs: bool) -> int:
    """Stay until the machine is released; the closing summary is data and goes to stdout."""
    from orchestrator.cli.follow import LogCursor, follow
    from orchestrator.cli.phases import summary_lines
    from orchestrator.cli.reading import exit_code_of, open_view

    view = open_view(home, str(answer["id"]))
    last = follow(home, view.ref, LogCursor(home, view.job.id), until_released=True, logs=logs)
    lines = "\n".join(summary_lines(home, last))
    if logs:
        put(lines)
    else:
        say(lines)
    return exit_code_of(last.job)


COMMANDS = {"apply": Command(_add, run)}
