"""The books against the world: what each machine, disk and address in a listing is to us. Pure; `audit` prints it.

    known       an open rental has it: the controller sees to it
    duplicate   a second machine with the tag of an open rental
    gone        the books hold its rental for gone, and it is there
    unknown     our deployment's tag and no row: our books are lost or old, since a row always precedes a create
    stranger    another deployment's, or nobody's that we know: shown, and never touched by any verb

Only `unknown` and `gone` are what `adopt` and `prune` may work on. What is dead bills nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from orchestrator.model import Rental, RentalPhase, Unknown
from providers.base import Instance, Listing, Ref, Resource

Standing = Literal["known", "duplicate", "gone", "unknown", "stranger"]
#: What nobody sees to: it bills until its own end, or for ever.
LOOSE: frozenset[Standing] = frozenset({"gone", "unknown"})


@dataclass(frozen=True)
class Looked:
    """One account and region as it was asked. `strangers` is None where the provider shows only our own."""

    provider: str
    account: str
    region: str
    ours: Listing | Unknown
    strangers: Listing | None = None
    dead_statuses: frozenset[str] = frozenset()
    play: bool = False
    list_lag_s: float = 0.0


@dataclass(frozen=True)
class Found:
    """One thing that may bill. `rental` is the tag's; `phase` and `row_job` are the books'."""

    ref: Ref
    standing: Standing
    status: str
    play: bool
    deployment: str = ""
    rental: str = ""
    job: str = ""
    owner: str = ""
    phase: RentalPhase | None = None
    row_job: str = ""
    hourly: Decimal | None = None
    currency: str = ""
    instance: Instance | None = None


def compare(looked: Iterable[Looked], rows: Mapping[str, Rental], deployment: str) -> tuple[Found, ...]:
    """Everything alive in the listings, ours first. `rows`: all rentals of the books by id, gone ones as well."""
    by_machine = {row.provider_id: row for row in rows.values() if row.provider_id is not None}
    found: dict[Ref, Found] = {}
    for region in looked:
        for listing in (region.ours, region.strangers):
            if isinstance(listing, Unknown) or listing is None:
                continue
            things: tuple[Instance | Resource, ...] = (*listing.instances, *listing.others)
            for thing in things:
                if thing.status not in region.dead_statuses and thing.ref not in found:
                    found[thing.ref] = _found(thing, region, rows, by_machine, deployment)
    order = ("unknown", "gone", "duplicate", "known", "stranger")
    return tuple(sorted(found.values(), key=lambda f: (order.index(f.standing), f.ref.provider, f.ref.id)))


def _found(
    thing: Instance | Resource, region: Looked, rows: Mapping[str, Rental], by_machine: Mapping[str, Rental], ours: str
) -> Found:
    tag = thing.tag
    row = rows.get(tag.rental) if tag is not None and tag.deployment == ours else None
    if row is None and isinstance(thing, Instance):
        row = by_machine.get(thing.ref.id)  # a listing may drop a tag; the recorded id is still ours
    if row is not None:
        standing = _of_row(thing, row)
    else:
        standing = "unknown" if tag is not None and tag.deployment == ours else "stranger"
    return Found(
        ref=thing.ref, standing=standing, status=thing.status, play=region.play,
        deployment=tag.deployment if tag else "", rental=row.id if row else tag.rental if tag else "",
        job=tag.job if tag else "", owner=tag.owner if tag else "",
        phase=row.phase if row else None, row_job=row.job if row else "",
        hourly=thing.hourly if thing.hourly is not None else row.offer.hourly if row else None,
        currency=thing.currency or (row.offer.currency if row else ""),
        instance=thing if isinstance(thing, Instance) else None,
    )  # fmt: skip


def _of_row(thing: Instance | Resource, row: Rental) -> Standing:
    if row.phase is RentalPhase.GONE:
        return "gone"
    if isinstance(thing, Instance) and row.provider_id not in (None, thing.ref.id):
        return "duplicate"
    return "known"


def missing(found: Iterable[Found], looked: Iterable[Looked], rows: Mapping[str, Rental]) -> tuple[Rental, ...]:
    """Open rentals with a machine that a complete listing of their region does not show alive."""
    there = {each.rental for each in found if each.standing == "known"}
    asked = {(r.provider, r.account, r.region) for r in looked if not isinstance(r.ours, Unknown)}
    return tuple(
        row for row in rows.values()
        if row.open and row.provider_id is not None and row.id not in there
        and (row.offer.provider, row.offer.account, row.offer.region) in asked
    )  # fmt: skip


def hourly(found: Iterable[Found]) -> dict[str, Decimal]:
    """What these cost an hour, by currency; play money is not money, and what has no known price is left out."""
    sums: dict[str, Decimal] = {}
    for each in found:
        if each.hourly is not None and not each.play:
            sums[each.currency] = sums.get(each.currency, Decimal(0)) + each.hourly
    return sums
