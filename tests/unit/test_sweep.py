"""What a listing shows that the books do not expect."""

from __future__ import annotations

from dataclasses import replace

import core_facts as cf

from orchestrator.model import RentalPhase
from orchestrator.sweep import Stray, confirmed, strays
from providers.base import Listing, Ref, Resource, Tag

OPEN, GONE = cf.rental(1), cf.rental(2, RentalPhase.GONE)
KNOWN = {OPEN.id: OPEN, GONE.id: GONE}
DEAD = cf.CAPS.dead_statuses


def found(*instances: object, others: tuple[Resource, ...] = ()) -> tuple[Stray, ...]:
    return strays(Listing(instances, others), "abcdef", KNOWN, DEAD)  # type: ignore[arg-type]


def test_a_machine_of_an_open_rental_is_expected() -> None:
    assert found(cf.instance(1)) == ()


def test_a_machine_of_a_gone_rental_is_an_orphan_unless_it_is_dead() -> None:
    assert found(cf.instance(2)) == (Stray(cf.instance(2).ref, GONE.id, GONE.job),)
    assert found(cf.instance(2, "terminated")) == ()


def test_a_machine_that_the_books_do_not_know_is_named_without_a_rental() -> None:
    unknown = cf.instance(7)
    assert found(unknown) == (Stray(unknown.ref, "", ""),)


def test_other_deployments_and_untagged_things_do_not_exist_for_us() -> None:
    strangers = [replace(cf.instance(2), tag=tag) for tag in (None, Tag("abcdeg", GONE.id), Tag("", GONE.id))]
    assert found(*strangers) == ()


def test_disks_of_a_gone_rental_are_orphans_too() -> None:
    disk = Resource(Ref("prov", "acc", "r1", "vol-9", "disk"), "available", Tag("abcdef", GONE.id))
    assert found(others=(disk,)) == (Stray(disk.ref, GONE.id, GONE.job),)


def test_only_what_is_seen_twice_in_a_row_is_confirmed() -> None:
    counts: dict[Ref, int] = {}
    one, two = found(cf.instance(2)), found(cf.instance(7))
    assert confirmed(counts, one) == ()
    assert confirmed(counts, two) == ()
    assert confirmed(counts, one) == ()  # it was away in between
    assert confirmed(counts, (*one, *two)) == one
    assert set(confirmed(counts, (*one, *two))) == {*one, *two}
