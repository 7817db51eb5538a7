"""What a listing shows that the books do not expect. Pure.

- A machine of a gone rental (a late birth, a release that was not one) is an orphan: destroyed on the second sighting.
- A machine under our own tag without any row means that our books are lost, since a row always precedes a create: it is
  only alarmed, never destroyed from here; `audit`, `adopt` and `prune` are the user's.
- Anything without our deployment's tag does not exist for us.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.model import Rental, RentalPhase
from providers.base import Instance, Listing, Ref, Resource

SIGHTINGS = 2


@dataclass(frozen=True)
class Stray:
    """Something that bills and should not. `rental` is empty when the books do not know it."""

    ref: Ref
    rental: str
    job: str


def strays(
    listing: Listing,
    deployment: str,
    known: Mapping[str, Rental],
    dead_statuses: Iterable[str],
) -> tuple[Stray, ...]:
    """Machines and other resources of gone or unknown rentals, in one complete listing."""
    dead = frozenset(dead_statuses)
    found: list[Stray] = []
    things: tuple[Instance | Resource, ...] = (*listing.instances, *listing.others)
    for thing in things:
        tag = thing.tag
        if tag is None or tag.deployment != deployment or thing.status in dead:
            continue
        rental = known.get(tag.rental)
        if rental is None:
            found.append(Stray(thing.ref, "", tag.job))
        elif rental.phase is RentalPhase.GONE:
            found.append(Stray(thing.ref, rental.id, rental.job))
    return tuple(found)


def confirmed(counts: dict[Ref, int], seen: Iterable[Stray]) -> tuple[Stray, ...]:
    """The strays that were in enough listings of one region in a row; `counts` is its memory, updated here."""
    now = {stray.ref: stray for stray in seen}
    for ref in [ref for ref in counts if ref not in now]:
        del counts[ref]
    for ref in now:
        counts[ref] = counts.get(ref, 0) + 1
    return tuple(stray for ref, stray in now.items() if counts[ref] >= SIGHTINGS)
