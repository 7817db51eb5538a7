"""`audit`: everything that bills at every provider, against the books. It only looks.

Rules: providers first, books second, so that a machine made meanwhile has its row. A provider that cannot be asked is
said, and nothing is called clean then. Other deployments' machines are shown where the provider lists them. Needs no
controller and no database: with the config folder's deployment file every machine is found by its tag.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.output import local_time, money, money_json, print_json, put, say, table, utc_z

if TYPE_CHECKING:
    from orchestrator.books import Verdict
    from orchestrator.config import Config
    from orchestrator.home import Home
    from orchestrator.model import Rental
    from orchestrator.salvage import Found, Looked

LOOKERS = 8  # regions asked side by side; each call has its adapter's own time-out


@dataclass(frozen=True)
class Account:
    """What the books say. `trouble` is why they could not be read; they are empty then."""

    deployment: str
    verdict: Verdict
    rows: dict[str, Rental]
    trouble: str = ""


@dataclass(frozen=True)
class Audit:
    """One look at everything."""

    account: Account
    looked: tuple[Looked, ...]
    found: tuple[Found, ...]
    missing: tuple[Rental, ...]

    @property
    def complete(self) -> bool:
        """Every provider answered for every region."""
        from orchestrator.model import Unknown

        return not any(isinstance(each.ours, Unknown) for each in self.looked)

    @property
    def loose(self) -> tuple[Found, ...]:
        """What bills and nobody sees to."""
        from orchestrator.salvage import LOOSE

        return tuple(each for each in self.found if each.standing in LOOSE)

    @property
    def doubtful(self) -> bool:
        """The books are lost, old or unreadable."""
        from orchestrator.books import Verdict

        return self.account.verdict is not Verdict.OK


def take_audit(home: Home) -> Audit:
    """Ask every configured provider and `local`, then read the books."""
    from orchestrator.config import load_config
    from orchestrator.salvage import compare, missing

    config = load_config(home)
    looked = look_around(home, config, deployment_of(home))
    account = account_of(home)
    found = compare(looked, account.rows, account.deployment)
    return Audit(account, looked, found, missing(found, looked, account.rows))


def deployment_of(home: Home) -> str:
    """The id under which machines are rented here; empty when none ever was."""
    return account_of(home).deployment


def account_of(home: Home) -> Account:
    """The books and how they stand. The file beside the database is read first: the database is never behind it."""
    from orchestrator.books import Books, Verdict
    from orchestrator.store import Store, StoreError

    books = Books(home) if home.deployment_file.exists() else None
    rows: dict[str, Rental] = {}
    epoch, deployment, milestones, trouble = 0, "", 0, ""
    if home.database.exists():
        try:
            with Store.open_reader(home) as store:
                epoch, deployment, milestones = store.stored_epoch(), store.deployment(), store.milestones()
                rows = {row.id: row for row in store.all_rentals()}
        except StoreError as error:
            trouble = str(error)
    if books is None:
        return Account(deployment, Verdict.LOST if trouble else Verdict.OK, rows, trouble)
    verdict = Verdict.LOST if trouble else books.look(epoch, deployment, milestones)
    return Account(books.deployment, verdict, rows, trouble)


def look_around(home: Home, config: Config, deployment: str) -> tuple[Looked, ...]:
    """One listing of each account and region; a failure is a listing that is Unknown."""
    from orchestrator.credentials import provider_config
    from orchestrator.model import Unknown
    from orchestrator.salvage import Looked
    from providers.base import Provider
    from providers.errors import ProviderError
    from providers.registry import get_provider

    asked: list[tuple[Provider, str]] = []
    looked: list[Looked] = []
    for name in sorted({*config.providers, "local"}):
        try:
            provider = get_provider(name, provider_config(home, deployment, config.providers.get(name, {})))
            asked += [(provider, region) for region in provider.regions()]
        except ProviderError as error:
            looked.append(Looked(name, "", "", Unknown(str(error))))
    with ThreadPoolExecutor(LOOKERS) as pool:
        looked += pool.map(lambda pair: _look(*pair), asked)
    return tuple(looked)


def _look(provider: Any, region: str) -> Looked:
    from orchestrator.model import Unknown
    from orchestrator.salvage import Looked
    from providers.base import Listing, ListsStrangers
    from providers.errors import ProviderError

    ours: Listing | Unknown
    strangers = None
    try:
        ours = provider.list(region)
        if isinstance(provider, ListsStrangers):
            strangers = provider.list_all(region)
    except ProviderError as error:
        ours = Unknown(str(error))
    except Exception as error:  # an adapter's own bug is a look that failed, not a reason to show nothing
        ours = Unknown(f"{type(error).__name__}: {error}")
    caps = provider.caps
    return Looked(
        provider.name, provider.account, region, ours, strangers, caps.dead_statuses, caps.play, caps.list_lag_s
    )


# --- printing ---------------------------------------------------------------------------------------------------------


def _add(parser: argparse.ArgumentParser) -> None:
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Exit 0 when all that bills is known, else 3."""
    from orchestrator.home import Home

    home = Home.from_env()
    seen = take_audit(home)
    clean = seen.complete and not seen.loose and not seen.account.trouble
    if args.output == "json":
        print_json(audit_json(home, seen, clean))
    else:
        _print(home, seen)
    return exits.OK if clean else exits.PROVIDER


def audit_json(home: Home, seen: Audit, clean: bool) -> dict[str, Any]:
    """The document of `audit -o json`."""
    from orchestrator.model import Unknown

    return {
        "clean": clean,
        "deployment": seen.account.deployment,
        "books": str(seen.account.verdict),
        "books_trouble": seen.account.trouble or None,
        "asked": [
            {
                "provider": each.provider, "account": each.account, "region": each.region,
                "trouble": each.ours.why if isinstance(each.ours, Unknown) else None,
                "lists_strangers": each.strangers is not None,
            }
            for each in seen.looked
        ],
        "found": [found_json(home, each) for each in seen.found],
        "missing": [{"rental": row.id, "job": row.job, "id": row.provider_id} for row in seen.missing],
        "loose_per_hour": [money_json(amount, unit) for unit, amount in _sums(seen.loose).items()],
    }  # fmt: skip


def found_json(home: Home, each: Found) -> dict[str, Any]:
    """One machine, disk or address."""
    made = each.instance
    return {
        "provider": each.ref.provider, "account": each.ref.account, "region": each.ref.region, "id": each.ref.id,
        "kind": each.ref.kind, "status": each.status, "standing": each.standing, "rental": each.rental or None,
        "phase": str(each.phase) if each.phase else None, "job": each.row_job or each.job or None,
        "owner": each.owner or None, "deployment": each.deployment or None,
        "hourly": money_json(each.hourly, each.currency, each.play),
        "created_at": utc_z(made.created_at) if made else None, "ends_at": utc_z(made.ends_at) if made else None,
        "key": has_key(home, each),
    }  # fmt: skip


def has_key(home: Home, each: Found) -> bool:
    """Whether this computer still holds the machine's private key."""
    return each.standing != "stranger" and bool(each.rental) and (home.rental(each.rental) / "id_ed25519").exists()


def _sums(found: tuple[Found, ...]) -> dict[str, Decimal]:
    from orchestrator.salvage import hourly

    return hourly(found)


def _print(home: Home, seen: Audit) -> None:
    from orchestrator.model import Unknown

    if seen.found:
        put(found_table(home, seen.found))
    else:
        put("nothing bills under our tag, as far as could be asked")
    for row in seen.missing:
        put(f"{row.id} ({row.job}) is open in the books, and {row.offer.provider} does not list {row.provider_id}")
    for each in seen.looked:
        if isinstance(each.ours, Unknown):
            where = "/".join(part for part in (each.provider, each.region) if part)
            say(f"gpujob: {where} could not be asked: {each.ours.why}")
    if seen.account.trouble:
        say(f"gpujob: {seen.account.trouble}")
    for line in _next_steps(seen):
        say(line)


def found_table(home: Home, found: tuple[Found, ...]) -> str:
    """One line each, what nobody sees to first."""
    heads = ("STANDING", "WHERE", "ID", "JOB", "OWNER", "PER HOUR", "ENDS", "KEY")
    rows = [
        (
            each.standing + (f" ({each.phase})" if each.phase else ""),
            f"{each.ref.provider}/{each.ref.region}",
            each.ref.id if each.ref.kind == "instance" else f"{each.ref.kind} {each.ref.id}",
            each.row_job or each.job or "-",
            each.owner or (each.deployment if each.standing == "stranger" else "") or "-",
            money(each.hourly, each.currency, each.play),
            local_time(each.instance.ends_at) if each.instance and each.instance.ends_at else "-",
            "yes" if has_key(home, each) else "no" if each.standing != "stranger" else "-",
        )
        for each in found
    ]
    return table(heads, rows, shrink=("JOB", "ID", "ENDS"), right=("PER HOUR",), state="")


def _next_steps(seen: Audit) -> list[str]:
    from orchestrator.doubt import DOUBTS

    lines = []
    unknown = [each for each in seen.loose if each.standing == "unknown"]
    if seen.doubtful:
        lines.append(f"{DOUBTS[seen.account.verdict]}: nothing is decided or rented until they are accepted")
    if unknown:
        costs = ", ".join(f"{money(amount, unit)}/h" for unit, amount in _sums(tuple(unknown)).items()) or "play money"
        lines.append(f"{len(unknown)} unknown to the books, {costs}: `gpujob adopt --all` takes them back without")
        lines.append("harming what runs, `gpujob prune --dry-run` shows what it would release for good")
    elif seen.doubtful and seen.complete:
        lines.append("nothing unknown: `gpujob adopt --all` makes the books writable again")
    if any(each.standing == "gone" for each in seen.loose):
        lines.append("a machine that the books hold for gone is there: `gpujob prune` releases it")
    return lines


COMMANDS = {"audit": Command(_add, run)}
