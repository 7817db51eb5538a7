"""`adopt`, `prune` and `forget`: what one does about what `audit` shows. Each change is a request to the controller.

Rules: two complete looks before anything is taken or released, and only what both of them show; nothing without our
deployment's tag is ever named in a request. A machine is asked for its end and its runs over its own key before it is
taken back; asking harms nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.cli import client, exits
from orchestrator.cli.audit import Audit, found_table, take_audit
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import local_time, money, print_json, put, say, utc_z
from orchestrator.home import Home

if TYPE_CHECKING:
    from orchestrator.interview import Heard
    from orchestrator.salvage import Found

BETWEEN_LOOKS_S = 2.0  # at least; a provider whose listings lag gets its lag, up to the next
LONGEST_BETWEEN_S = 60.0
ASKED_AT_ONCE = 16
GONE_WITHIN_S = 120.0  # a release that takes longer goes on without us, and is said
POLL_S = 0.3


@dataclass(frozen=True)
class Candidate:
    """One machine with what it said of itself."""

    found: Found
    heard: Heard
    how: str  # resume | hold | destroy

    def document(self) -> dict[str, Any]:
        """As it goes into a request."""
        each, made = self.found, self.found.instance
        return {
            "provider": each.ref.provider, "account": each.ref.account, "region": each.ref.region, "id": each.ref.id,
            "kind": each.ref.kind, "rental": each.rental, "job": each.job, "owner": each.owner,
            "hourly": f"{each.hourly:f}" if each.hourly is not None else None, "currency": each.currency,
            "machine_id": made.machine_id if made else "", "created_at": made.created_at if made else None,
            "ends_at": made.ends_at if made else None, "nonce": self.heard.nonce, "status": self.heard.status,
            "how": self.how,
        }  # fmt: skip


def two_looks(home: Home) -> Audit:
    """The second of two complete looks, with only the loose things that both show. Raises CliError (3) otherwise."""
    from orchestrator.model import Unknown

    first = take_audit(home)
    pause = max([BETWEEN_LOOKS_S, *(each.list_lag_s for each in first.looked)])
    if first.complete:
        time.sleep(min(pause, LONGEST_BETWEEN_S))
    second = take_audit(home) if first.complete else first
    for each in second.looked:
        if isinstance(each.ours, Unknown):
            where = "/".join(part for part in (each.provider, each.region) if part)
            raise CliError(
                f"{where} could not be asked, so nothing was done", why=each.ours.why,
                next="gpujob audit shows what could be; mend its access, or remove it from the config", code=3,
            )  # fmt: skip
    before = {each.ref for each in first.loose}
    kept = tuple(each for each in second.found if each not in second.loose or each.ref in before)
    return Audit(second.account, second.looked, kept, second.missing)


def ask_machines(home: Home, found: list[Found]) -> dict[str, Heard]:
    """Every machine's own word, by its id at the provider."""
    from orchestrator.interview import Heard, interview

    def one(each: Found) -> Heard:
        assert each.instance is not None
        return (
            interview(home, each.rental, each.instance) if each.rental else Heard(trouble="its tag is cut", key=False)
        )

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return dict(zip((each.ref.id for each in found), pool.map(one, found), strict=True))


def _confirm(args: argparse.Namespace, question: str) -> None:
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise CliError("there is no terminal to ask on, and -y was not given; nothing was done", next="add -y to do it")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliError("nothing was done")


# --- adopt ------------------------------------------------------------------------------------------------------------


def _add_adopt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="*", help="the provider's id of a machine, or its rental's")
    parser.add_argument("--all", action="store_true", help="every machine under our tag that the books do not know")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    add_output(parser)


def run_adopt(args: argparse.Namespace) -> int:
    """Take machines back. Exit 3 while something unknown is left."""
    if bool(args.ids) == args.all:
        raise CliError("name the machines to take back, or --all", where="gpujob adopt", next="gpujob audit lists them")
    home = Home.from_env()
    seen = two_looks(home)
    unknown = [each for each in seen.loose if each.standing == "unknown"]
    chosen = _chosen(args.ids, unknown) if args.ids else unknown
    machines = [each for each in chosen if each.instance is not None]
    known = [each for each in seen.found if each.standing == "known" and each.instance and seen.doubtful]
    heard = ask_machines(home, [*machines, *known])
    take: list[Candidate] = []
    left = [each for each in unknown if each not in machines]
    for each in machines:
        word = heard[each.ref.id]
        if word.status is None and word.key and not args.ids:
            say(f"gpujob: {each.ref.id} is left: {word.trouble}; `gpujob adopt {each.ref.id}` keeps it to its own end")
            left.append(each)
            continue
        if word.status is None:
            say(f"gpujob: {each.ref.id}: {word.trouble}; it is kept, untouched, to its own end")
        take.append(Candidate(each, word, "resume" if word.status is not None else "hold"))
    if not take and not seen.doubtful:
        return _nothing(args, left)
    if take and not args.yes:
        say(found_table(home, tuple(each.found for each in take)))
    _confirm(args, f"Take {len(take)} machine(s) back into the books?" if take else "Accept the books as they are?")
    answer = client.request(home, "adopt", {
        "deployment": seen.account.deployment, "machines": [each.document() for each in take],
        "known": [Candidate(each, heard[each.ref.id], "known").document() for each in known],
        "complete": not left, "alive": [each.rental for each in seen.found if each.standing != "stranger"],
    })  # fmt: skip
    _report(args, answer, left)
    return exits.PROVIDER if left else exits.OK


def _chosen(ids: list[str], unknown: list[Found]) -> list[Found]:
    chosen = []
    for name in ids:
        match = [each for each in unknown if name in (each.ref.id, each.rental)]
        if not match:
            raise CliError(
                f"{name} is no machine under our tag that the books do not know; nothing was done",
                where="gpujob adopt", next="gpujob audit lists them",
            )  # fmt: skip
        chosen += match
    return chosen


def _nothing(args: argparse.Namespace, left: list[Found]) -> int:
    if args.output == "json":
        print_json({"taken": [], "left": [each.ref.id for each in left], "accepted": False, "ended": []})
    elif not left:
        put("nothing under our tag is unknown to the books")
    return exits.PROVIDER if left else exits.OK


def _report(args: argparse.Namespace, answer: dict[str, Any], left: list[Found]) -> None:
    if args.output == "json":
        taken = [{**each, "end": utc_z(each["end"])} for each in answer["taken"]]
        print_json({
            "taken": taken, "left": [each.ref.id for each in left], "accepted": answer["accepted"],
            "ended": answer["ended"],
        })  # fmt: skip
        return
    words = {
        "resume": "goes on as job {job}; its end is {end}",
        "hold": "is kept untouched as job {job} until {end}: {why}",
        "destroy": "is being released (job {job})",
        "known": "is known to the books already (job {job})",
    }
    for each in answer["taken"]:
        end = local_time(each["end"])
        said = words[each["how"]].format(job=each["job"], end=end, why=each.get("why", "its agent was not asked"))
        put(f"{each['provider']} {each['id']} {said}")
    for name in answer["ended"]:
        put(f"{name} has no machine any more: it ends as interrupted; `gpujob resume {name}` goes on")
    if answer["accepted"]:
        put("the books are accepted: the controller decides again")


# --- prune ------------------------------------------------------------------------------------------------------------


def _add_prune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be released")
    add_output(parser)


def run_prune(args: argparse.Namespace) -> int:
    """Release what is under our own tag and not in the books. Exit 3 when a release is not confirmed in time."""
    from orchestrator.interview import Heard

    home = Home.from_env()
    seen = two_looks(home)
    if args.output == "table" and seen.loose:
        put(found_table(home, seen.loose))
    if args.dry_run:
        if args.output == "json":
            print_json({"would_release": [each.ref.id for each in seen.loose]})
        elif not seen.loose:
            put("nothing under our tag is unknown to the books")
        else:
            put(f"{len(seen.loose)} would be released for good; nothing was done")
        return exits.OK
    if not seen.loose and not seen.doubtful:
        return _nothing(args, [])
    _confirm(args, f"Release these {len(seen.loose)} for good? What they have not saved is lost.")
    answer = client.request(home, "prune", {
        "deployment": seen.account.deployment, "complete": True,
        "machines": [Candidate(each, Heard(), "destroy").document() for each in seen.loose],
        "alive": [each.rental for each in seen.found if each.standing == "known"],
    })  # fmt: skip
    _report(args, answer, [])
    return _await_gone(home, [str(each["rental"]) for each in answer["taken"] if each["how"] == "destroy"])


def _await_gone(home: Home, rentals: list[str]) -> int:
    from orchestrator.cli.reading import reader

    until = time.monotonic() + GONE_WITHIN_S
    with reader(home) as store:
        while any(store.rental(each).open for each in rentals):
            if time.monotonic() >= until:
                break
            time.sleep(POLL_S)
        still = [row for row in map(store.rental, rentals) if row.open]
    for row in still:
        say(f"gpujob: {row.offer.provider} {row.provider_id or row.id} is not confirmed gone; the controller goes on")
    return exits.PROVIDER if still else exits.OK


# --- forget -----------------------------------------------------------------------------------------------------------


def _add_forget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rental", metavar="RENTAL", help="a rental's id, or the provider's id of its machine")
    parser.add_argument("--yes-it-is-gone", action="store_true", help="you have looked at the provider: nothing bills")
    add_output(parser)


def run_forget(args: argparse.Namespace) -> int:
    """End a liability by hand; without the flag only say what it is."""
    home = Home.from_env()
    from orchestrator.cli.reading import is_play, reader

    if not home.database.exists():
        raise CliError("there are no books here, so there is nothing to forget", where=str(home.state))
    with reader(home) as store:
        row = store.rental_named(args.rental)
    price = money(row.offer.hourly, row.offer.currency, is_play(row))
    if not args.yes_it_is_gone:
        raise CliError(
            f"{row.offer.provider} {row.provider_id or row.id} is {row.phase} and may bill {price}/h; nothing was done",
            where=row.id,
            next=f"look at the provider's own page; if it is gone: gpujob forget --yes-it-is-gone {row.id}",
        )
    answer = client.request(home, "forget", {"rental": row.id})
    if args.output == "json":
        print_json({"rental": row.id, "job": row.job, "was_gone": bool(answer.get("was_gone"))})
    elif answer.get("was_gone"):
        put(f"{row.id} was gone already")
    else:
        put(f"{row.id} is forgotten, at your word; should it be seen alive within 7 days, it is destroyed")
    return exits.OK


COMMANDS = {
    "adopt": Command(_add_adopt, run_adopt),
    "prune": Command(_add_prune, run_prune),
    "forget": Command(_add_forget, run_forget),
}
