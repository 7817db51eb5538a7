"""What counts as evidence, and what a stranger's machine may say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import core_facts as cf
import pytest
from core_facts import T0
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.model import AgentCheckpoint, RentalPhase, SignalWhy, Unknown
from orchestrator.sightings import Sightings, parse_status
from providers.base import Listing, Ref, Resource, Tag

ROW = cf.rental()
EMPTY = Listing()
THERE = Listing((cf.instance(),))


def heard(*listings: Listing | Unknown, row: Any = ROW, first_at: float = 0.0, every_s: float = 40.0) -> Sightings:
    """One listing every `every_s` seconds."""
    seen = Sightings()
    for number, listing in enumerate(listings):
        at = first_at + number * every_s
        seen.listed(row, listing, T0 + 1 + at, 1000.0 + at)
    return seen


def test_absence_is_counted_in_listings_and_in_time() -> None:
    sight = heard(THERE, EMPTY, EMPTY, EMPTY).sight
    assert (sight.absent_count, sight.absent_span_s) == (3, 80.0)
    assert sight.instance is not None  # what was seen last stays known


def test_a_failed_listing_takes_all_evidence_back() -> None:
    sight = heard(EMPTY, EMPTY, Unknown("502"), EMPTY).sight
    assert (sight.absent_count, sight.absent_span_s, sight.others_absent_count) == (1, 0.0, 1)


def test_one_sighting_takes_absence_back() -> None:
    assert heard(EMPTY, EMPTY, THERE).sight.absent_count == 0


def test_a_point_get_that_shows_it_running_takes_absence_back_and_one_that_shows_it_dead_does_not() -> None:
    seen = heard(EMPTY, EMPTY, EMPTY)
    seen.got(cf.instance(status="terminated", ready=False), T0 + 130)
    assert seen.sight.absent_count == 3
    seen.got(cf.instance(), T0 + 130)
    assert (seen.sight.absent_count, seen.sight.absent_span_s) == (0, 0.0)
    seen.listed(ROW, EMPTY, T0 + 141, 1140.0)
    assert (seen.sight.absent_count, seen.sight.absent_span_s) == (1, 0.0)


def test_a_listing_begun_before_the_create_was_sent_knows_nothing() -> None:
    row = replace(ROW, create_sent_at=T0 + 500)
    assert heard(EMPTY, EMPTY, row=row).sight.absent_count == 0
    unsent = cf.rental(phase=RentalPhase.INTENT)
    assert heard(EMPTY, row=unsent).sight.absent_count == 0


def test_a_clock_that_was_set_back_leaves_listings_their_worth() -> None:
    row = replace(ROW, create_sent_at=T0 + 3600)
    assert heard(EMPTY, EMPTY, row=row).sight.absent_count == 2


def test_a_sleep_takes_absence_and_silence_back() -> None:
    seen = heard(EMPTY, EMPTY, EMPTY)
    seen.lost("timeout", 0.0, T0, False)
    seen.lost("timeout", 700.0, T0 + 700, False)
    seen.got("missing", T0 + 701)
    seen.forget_silence()
    assert (seen.sight.absent_count, seen.machine.failed_awake_s) == (0, 0.0)
    assert (isinstance(seen.sight.got, Unknown), seen.sight.got_at) == (True, None)
    seen.listed(ROW, EMPTY, T0 + 9000, 99_000.0)
    assert seen.sight.absent_span_s == 0.0  # the hours in between are no evidence


def test_silence_adds_up_over_failed_attempts_and_ends_with_a_success() -> None:
    seen = Sightings()
    seen.reached(STATUS)
    for number in range(3):
        seen.lost("refused", 10.0, T0 + number, False)
    assert (seen.machine.failures, seen.machine.failed_awake_s, seen.machine.lost_at) == (3, 20.0, T0)
    assert seen.machine.connected is False
    seen.reached(STATUS)
    assert (seen.machine.failures, seen.machine.failed_awake_s, seen.machine.connected) == (0, 0.0, True)


def test_listings_without_a_machine_that_answered_meanwhile_prove_nothing() -> None:
    seen = Sightings()
    seen.reached(STATUS)
    for at in (0.0, 40.0, 80.0):
        seen.listed(ROW, EMPTY, T0 + 20 + at, 1000.0 + at)
    seen.lost("reset", 0.0, T0 + 110, False)  # a reboot
    assert (seen.sight.absent_count, seen.sight.absent_span_s) == (0, 0.0)
    seen.listed(ROW, EMPTY, T0 + 120, 1100.0)
    seen.lost("refused", 5.0, T0 + 130, False)  # still silent: what is listed from now on counts
    seen.listed(ROW, EMPTY, T0 + 160, 1140.0)
    assert (seen.sight.absent_count, seen.sight.absent_span_s) == (2, 40.0)


def test_a_late_status_of_a_lost_connection_does_not_bring_it_back() -> None:
    seen = Sightings()
    seen.reached(STATUS)
    seen.lost("reset", 0.0, T0, False)
    seen.status(STATUS)
    assert seen.machine.connected is False


def test_of_several_machines_with_one_tag_the_recorded_one_is_kept() -> None:
    two = replace(cf.instance(2), tag=Tag("abcdef", ROW.id))
    sight = heard(Listing((two, cf.instance(1)))).sight
    assert sight.instance == cf.instance(1)
    assert sight.duplicates == (two,)
    unnamed = replace(ROW, provider_id=None)
    sight = heard(Listing((two, cf.instance(1))), row=unnamed).sight
    assert sight.instance is not None
    assert sight.instance.ref.id == "i-1"  # the lowest id: every look chooses the same one


def test_disks_under_the_tag_are_seen_and_their_absence_counted() -> None:
    disk = Resource(Ref("prov", "acc", "r1", "vol-1", "disk"), "in-use", Tag("abcdef", ROW.id))
    other = replace(disk, tag=Tag("abcdef", "gj-abcdef-other"))
    assert isinstance(Sightings().sight.others, Unknown)
    assert heard(Listing((), (disk, other))).sight.others == (disk,)
    sight = heard(Listing((), (disk,)), Listing((), (other,)), EMPTY).sight
    assert (sight.others, sight.others_absent_count) == ((), 2)


def test_a_checkpoint_is_left_until_this_very_content_is_durable() -> None:
    seen = Sightings()
    seen.reached({**STATUS, "runs": {"t0.1": {"state": "run", "checkpoints": [POINT, {**POINT, "complete": False}]}}})
    assert seen.checkpoints_left("t0.1")
    seen.mirrored.add(("t0.1", "step_3", 10, 5.0))
    assert not seen.checkpoints_left("t0.1")
    seen.reached({**STATUS, "runs": {"t0.1": {"state": "run", "checkpoints": [{**POINT, "mtime": 6.0}]}}})
    assert seen.checkpoints_left("t0.1")  # the same name and size, written again
    assert not seen.checkpoints_left("t0.2")


def test_the_time_to_save_follows_from_the_measured_rate() -> None:
    assert Sightings(bytes_left=500).save_s() == 0.0
    assert Sightings(bytes_left=500, bytes_per_s=50.0).save_s() == 10.0


# --- the agent's status ---

POINT = {"name": "step_3", "step": 3, "bytes": 10, "complete": True, "mtime": 5.0}
STATUS: dict[str, Any] = {
    "ok": True, "supervisor": True, "boot_id": "b1", "deadline": {"end": T0 + 9, "grace": 120, "confirmed": True},
    "notice": {"at": T0 + 5, "action": "stop"},
    "runs": {"t0.1": {"state": "exited", "stage": "run", "rc": 143, "signalled": "interruption", "dead": True,
                      "closed": False, "started": T0, "ended": T0 + 4, "checkpoints": [POINT]}},
}  # fmt: skip


def test_a_status_is_read_as_facts() -> None:
    machine = parse_status(STATUS)
    assert (machine.connected, machine.proven, machine.end, machine.end_confirmed) == (True, True, T0 + 9, True)
    assert machine.notice is not None
    assert (machine.notice.at, machine.notice.action) == (T0 + 5, "stop")
    run = machine.runs["t0.1"]
    assert (run.state, run.rc, run.signalled, run.dead) == ("exited", 143, SignalWhy.INTERRUPTION, True)
    assert run.checkpoints == (AgentCheckpoint("step_3", 3, 10, True, 5.0),)


@pytest.mark.parametrize(
    ("name", "value"),
    [("name", "../../etc"), ("name", ".."), ("name", ""), ("name", 7), ("name", "x" * 300)],
)
def test_a_checkpoint_with_a_name_that_is_no_name_is_left_out(name: str, value: object) -> None:
    runs = {"t0.1": {"state": "run", "checkpoints": [{**POINT, name: value}]}}
    assert parse_status({"runs": runs}).runs["t0.1"].checkpoints == ()


def test_numbers_that_the_books_cannot_hold_are_left_out() -> None:
    wild = {"state": "exited", "rc": 10**30, "ended": 10**400, "checkpoints": [{**POINT, "step": 10**30, "bytes": -4}]}
    run = parse_status({"runs": {"t0.1": wild}, "deadline": {"end": float("nan")}}).runs["t0.1"]
    assert (run.rc, run.ended) == (None, None)
    assert run.checkpoints == (AgentCheckpoint("step_3", -1, 0, True, 5.0),)
    assert parse_status({"deadline": {"end": float("inf")}}).end is None


def test_a_reboot_is_a_loss_of_the_run() -> None:
    assert parse_status({"runs": {"t0.1": {"state": "exited", "rebooted": True}}}).runs["t0.1"].lost is True


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
RUN = st.dictionaries(
    st.sampled_from(["state", "stage", "rc", "signalled", "dead", "lost", "ended", "checkpoints"]),
    JSON | st.sampled_from(["run", "exited", "interruption"]) | st.lists(st.fixed_dictionaries({"name": JSON})),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["runs", "deadline", "notice", "boot_id", "supervisor"]),
        JSON | st.dictionaries(st.text(max_size=5), JSON | RUN, max_size=3),
    )
)
def test_whatever_a_machine_says_is_data(status: dict[str, Any]) -> None:
    machine = parse_status(status)
    assert machine.connected
    assert len(machine.boot_id) <= 64
    for run in machine.runs.values():
        assert run.state in ("queued", "setup", "smoke", "run", "exited")
        assert all("/" not in point.name for point in run.checkpoints)
