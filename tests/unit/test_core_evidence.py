"""What is proof of a machine's loss, and what is not: rules that the simulated world taught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import core_facts as cf
import pytest
from core_facts import T0

from orchestrator import actions as act
from orchestrator.lifecycle import SETTLE_S
from orchestrator.model import Facts, Reason, Sight, Unknown
from orchestrator.observe import Observer
from orchestrator.reconcile import reconcile
from orchestrator.sightings import Sightings
from providers.base import Listing, Ref, Resource, Tag

SILENT = cf.machine(connected=False, lost_at=T0 + 500, failures=3, failed_awake_s=90.0)


def releases(found: Facts) -> list[act.Release]:
    return [a for a in reconcile(found, cf.POLICY).actions if isinstance(a, act.Release)]


def missing(count: int, span_s: float) -> Sight:
    return Sight(
        instance=cf.instance(), got="missing", got_at=T0 + 599, absent_count=count, absent_span_s=span_s, others=()
    )


@pytest.mark.parametrize(("count", "span_s"), [(0, 0.0), (1, 0.0), (3, 300.0), (4, 90.0)])
def test_a_missing_get_and_a_few_listings_lose_no_machine(count: int, span_s: float) -> None:
    assert releases(cf.facts(cf.live(sight=missing(count, span_s), machine=SILENT))) == []


def test_a_missing_get_and_enough_listings_do() -> None:
    (release,) = releases(cf.facts(cf.live(sight=missing(4, 120.0), machine=SILENT)))
    assert (release.reason, release.interrupted) == (Reason.INTERRUPTED, True)


def test_a_machine_that_never_answered_may_still_be_on_its_way_into_view() -> None:
    row = cf.rental(ready_at=None)
    young = cf.facts(cf.live(row=row, sight=missing(9, 250.0), machine=SILENT), now=T0 + SETTLE_S - 1)
    old = cf.facts(cf.live(row=row, sight=missing(9, 250.0), machine=SILENT), now=T0 + SETTLE_S + 1)
    assert releases(young) == []
    assert [r.reason for r in releases(old)] == [Reason.INTERRUPTED]


@pytest.mark.parametrize(("dark", "reasons"), [(True, []), (False, [Reason.UNREACHABLE])])
def test_a_network_that_blocks_ssh_makes_no_machine_unreachable(dark: bool, reasons: list[Reason]) -> None:
    found = cf.facts(cf.live(machine=replace(SILENT, failed_awake_s=1300.0)), ssh_dark=dark)
    assert [r.reason for r in releases(found)] == reasons
    alarms = [a.kind for a in reconcile(found, cf.POLICY).actions if isinstance(a, act.Alarm)]
    assert alarms == (["no-ssh"] if dark else [])


@pytest.mark.parametrize(
    ("status", "failed_s", "reasons"),
    [("stopped", 61.0, [Reason.INTERRUPTED]), ("stopped", 20.0, []), ("running", 61.0, [])],
)
def test_an_outbid_machine_is_taken_although_it_is_not_dead(
    status: str, failed_s: float, reasons: list[Reason]
) -> None:
    shown = cf.instance(status=status)
    sight = Sight(instance=shown, got=shown, got_at=T0 + 599, others=())
    found = cf.facts(cf.live(sight=sight, machine=replace(SILENT, failed_awake_s=failed_s)))
    assert [r.reason for r in releases(found)] == reasons


def watched(connected: bool, failed_s: float, *, ready: bool = True, live: bool = True) -> Sightings:
    shown = cf.instance() if ready else cf.instance(status="stopped")
    seen = Sightings(sight=Sight(instance=shown), machine=cf.machine(connected=connected, failed_awake_s=failed_s))
    seen.watched = live
    return seen


@pytest.mark.parametrize(
    ("machines", "dark"),
    [
        ([watched(False, 90.0), watched(False, 90.0)], True),
        ([watched(False, 90.0)], False),  # one may well be dead
        ([watched(False, 90.0), watched(False, 90.0), watched(True, 0.0)], False),
        ([watched(False, 90.0), watched(False, 5.0)], False),
        ([watched(False, 90.0), watched(False, 90.0, ready=False)], False),  # the provider knows why it is silent
        ([watched(False, 90.0), watched(False, 90.0), watched(True, 0.0, live=False)], True),  # its link is not kept
    ],
)
def test_ssh_is_dark_when_several_machines_should_answer_and_none_does(machines: list[Any], dark: bool) -> None:
    observer = Observer(store=None, caps=None)  # type: ignore[arg-type]
    observer.rentals = {str(n): seen for n, seen in enumerate(machines)}
    silent = cf.live(machine=SILENT)
    assert observer.ssh_dark([silent], T0) is dark
    assert observer.ssh_dark([cf.live()], T0) is False  # nobody of this job is silent: not even looked up
    observer.rentals.clear()
    assert observer.ssh_dark([silent], T0 + 0.5) is dark  # asked again within the second
    assert observer.ssh_dark([silent], T0 + 1.5) is False


def test_leftovers_are_counted_from_the_death_on() -> None:
    row, dead, seen = cf.rental(), frozenset({"terminated"}), Sightings()
    alive = Listing((cf.instance(),))
    disk = Resource(Ref("prov", "acc", "r1", "d", "disk"), "available", Tag("abcdef", row.id))
    counts = []
    listings = (alive, alive, Listing((cf.instance(status="terminated"),)), Listing(), Listing((), (disk,)), Listing())
    for n, listing in enumerate(listings):
        seen.listed(row, listing, T0 + 10 + n, 1000.0 + n, dead)
        counts.append(seen.sight.others_absent_count)
    assert counts == [0, 0, 1, 2, 0, 1]
    seen.listed(row, Unknown("500"), T0 + 20, 1010.0, dead)
    assert seen.sight.others_absent_count == 0
