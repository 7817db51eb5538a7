"""What is heard: a listing split by machine says the same as the whole one; what only shows progress wakes nobody."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import core_facts as cf
import pytest
from loop_desk import Desk

from orchestrator.hearing import is_quiet, parts
from orchestrator.messages import (
    EventSeen,
    Listed,
    Lost,
    Message,
    Poke,
    ProgressSeen,
    Reached,
    StatusSeen,
    TransferSeen,
)
from orchestrator.model import Rental, Unknown
from orchestrator.sightings import Sightings
from providers.base import Instance, Listing, Ref, Resource, Tag

RENTALS = [
    cf.rental(1, create_sent_at=cf.T0),
    cf.rental(2, create_sent_at=cf.T0, provider_id=None),
    cf.rental(3, create_sent_at=cf.T0, provider_id="i-elsewhere"),
]


def listed(rental: Rental, listing: Listing) -> Sightings:
    seen = Sightings()
    seen.listed(rental, listing, cf.T0 + 10, 50.0)
    return seen


def machine(name: str, tag: str | None) -> Instance:
    known = None if tag is None else Tag("abcdef", tag)
    return replace(cf.instance(), ref=Ref("prov", "acc", "r1", name), tag=known)


@pytest.mark.parametrize("rental", RENTALS, ids=lambda rental: rental.id)
def test_a_part_of_a_listing_shows_a_rental_what_the_whole_one_shows(rental: Rental) -> None:
    ids = (RENTALS[0].provider_id or "", "i-elsewhere", "i-new")
    tags = (None, *(r.id for r in RENTALS), "gj-others")
    for number, (name, tag, more) in enumerate(product(ids, tags, tags)):
        disk = Resource(Ref("prov", "acc", "r1", f"d-{number}", "disk"), "in-use", tag and Tag("abcdef", tag))
        whole = Listing((machine(name, tag), machine("i-second", more), machine("i-third", tag)), (disk,))
        assert listed(rental, parts(whole)(rental)) == listed(rental, whole)  # type: ignore[arg-type]


def test_a_failed_listing_is_unknown_to_every_rental() -> None:
    failed = Unknown("503", cf.T0)
    assert all(parts(failed)(rental) is failed for rental in RENTALS)


@pytest.mark.parametrize(
    ("message", "quiet"),
    [
        (ProgressSeen("gj-1", "t0.1", 5.0, None), True),
        (TransferSeen("gj-1", "t0.1", "code", 5, 10, 1.0), True),
        (TransferSeen("gj-1", "t0.1", ""), True),
        (EventSeen("gj-1", {"t": "sample", "cpu": 3}), True),
        (EventSeen("gj-1", {"t": "exit", "run": "t0.1"}), False),
        (EventSeen("gj-1", {"t": "notice"}), False),
        (EventSeen("gj-1", {}), False),
        (StatusSeen("gj-1", {}), False),
        (Reached("gj-1", {}), False),
        (Lost("gj-1", "reset", 0.1), False),
        (Poke(), False),
    ],
)
def test_only_what_decides_nothing_is_quiet(message: Message, quiet: bool) -> None:
    assert is_quiet(message) is quiet


def test_silence_and_its_end_are_told_once_each(tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        desk.apply()
        rental = desk.rent()
        desk.turn(Reached(rental.id, {"ok": True}))
        desk.turn(Lost(rental.id, "reset", 0.1), Lost(rental.id, "refused", 0.1), after=3.0)
        desk.turn(Reached(rental.id, {"ok": True}), after=4.0)
        told = [entry for entry in desk.loop.store.journal(desk.job().id) if entry.kind in ("silent", "answers")]
    assert [(entry.kind, entry.rental) for entry in told] == [("silent", rental.id), ("answers", rental.id)]
    assert "reset" in told[0].text
    assert "after 4 s" in told[1].text


def test_after_a_sleep_a_region_that_does_not_answer_holds_back_its_own_jobs_alone(tmp_path: Path) -> None:
    """Nothing is decided about a machine before its region was looked at; other regions' jobs go on at once."""
    with Desk(tmp_path) as desk:
        here, there = desk.rent(name="here"), desk.rent(name="there", offer=replace(cf.DEMAND, region="r2"))
        assert (here.offer.region, there.offer.region) == ("r1", "r2")
        desk.clock.suspend(3600.0)
        desk.turn()
        settled = desk.loop.observer.settled
        assert (settled(here), settled(there)) == (False, False)
        before = len(desk.effects())
        desk.turn(Listed("prov", "acc", "r1", desk.clock.utc(), Listing((desk.instance(here.id),))))
        assert (settled(here), settled(there)) == (True, False)
        assert {getattr(effect, "rental", here.id) for effect in desk.effects()[before:]} <= {here.id}
        desk.turn(Listed("prov", "acc", "r1", desk.clock.utc(), Unknown("503", 0.0)), after=30.0)
        assert not settled(there), "another region's answer says nothing about this one"
        desk.turn(after=40.0)
        assert settled(there), "a region that never answers holds nothing back for ever"


def test_a_stray_is_confirmed_although_other_regions_are_listed_between(tmp_path: Path) -> None:
    said: list[str] = []
    with Desk(tmp_path) as desk:
        desk.loop.alarm = lambda _job, alarm: said.append(alarm.kind)  # type: ignore[method-assign,assignment]
        tag = Tag(desk.loop.books.deployment, "gj-nobody")
        here = Listing((replace(machine("i-9", None), tag=tag),))
        for region, listing in (("r1", here), ("r2", Listing(())), ("r1", here)):
            assert said == []
            desk.turn(Listed("prov", "acc", region, desk.clock.utc(), listing))
    assert said == ["unknown-machine"]
