"""The orders of events that a review of the design found dangerous, each played through once in the simulated world."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sim_box import Box, Program
from sim_faults import Faults, Shape
from sim_swarm import MEMORY
from sim_time import T0
from sim_world import Wish, World

from orchestrator.books import Verdict
from orchestrator.home import Home

pytestmark = [pytest.mark.sim, pytest.mark.timeout(600)]  # a loaded computer is slow, not wrong
HOUR = 3600.0
Build = Callable[..., World]


@pytest.fixture
def build() -> Iterator[Build]:
    """Makes worlds without any fault but those that the test brings."""
    made: list[tuple[World, Path]] = []

    def make(*wishes: Wish, cloud: str = "aurora", until: float = 20 * HOUR, **shapes: Shape) -> World:
        home = Path(tempfile.mkdtemp(prefix="gpujob-sim-", dir=MEMORY if MEMORY.is_dir() else None))
        faults = Faults(random.Random(5), {k.replace("_", "-"): v for k, v in shapes.items()}, T0 + until)
        world = World(5, home, faults, list(wishes), tuple(cloud.split(",")))
        made.append((world, home))
        world.start()
        return world

    yield make
    for world, home in made:
        world.close()
        shutil.rmtree(home, ignore_errors=True)


def job(hours: float = 1.0, name: str = "job", **more: Any) -> Wish:
    return Wish(name, Program(hours * HOUR), spec=more.pop("spec", {}), **more)


def ours(world: World) -> list[Box]:
    return [b for b in world.boxes() if b.tag is not None and b.tag.deployment == world.deployment]


def window(a: float, b: float) -> Shape:
    return Shape("solid", windows=((T0 + a, T0 + b),))


def outcome(world: World, name: str = "job") -> str:
    (row,) = world.oracle._rows("SELECT outcome, reason, terminal_at FROM jobs WHERE name = ?", name)
    return f"{row['outcome']}/{row['reason']}/{'over' if row['terminal_at'] else 'open'}"


def finish(world: World, limit: float = 40 * HOUR) -> None:
    world.faults.until = min(world.faults.until, world.heap.now)
    world.faults_off()
    world.run_to_end(T0 + limit)
    assert world.oracle.violations == []


def test_eight_hours_of_sleep_and_one_failed_connection_on_waking_lose_nothing(build: Build) -> None:
    world = build(job(10, spec={"ttl": "24h"}))
    world.run(T0 + HOUR)
    (box,) = ours(world)
    world.pause(8 * HOUR, asleep=True)
    world.heap.at(T0 + 9 * HOUR - 1, world.happen, "machine-partition", box, 40.0)
    world.run(T0 + 9.5 * HOUR)
    assert box.alive
    finish(world)
    assert (ours(world), outcome(world)) == ([box], "done/done/over")


def test_a_network_that_blocks_only_ssh_for_25_minutes_costs_none_of_40_machines(build: Build) -> None:
    world = build(*(job(0.6, f"leg{n}", spec={"artifacts": "none"}) for n in range(40)))
    world.run(T0 + 400)
    assert len(ours(world)) == 40
    world.happen("ssh-partition", seconds=1500.0)
    world.run(T0 + 1950)
    assert all(box.alive for box in ours(world))
    finish(world)
    assert len(ours(world)) == 40


@pytest.mark.parametrize("fault", ["agent-killed", "reboot"])
def test_the_machine_ends_itself_while_the_controller_sleeps_whatever_becomes_of_its_agent(
    build: Build, fault: str
) -> None:
    world = build(job(10, spec={"ttl": "2h"}))
    world.run(T0 + 600)
    (box,) = ours(world)
    assert box.confirmed
    world.pause(5 * HOUR, asleep=True)
    world.run(T0 + 700)
    world.happen(fault, box)
    world.run(T0 + 5 * HOUR)
    assert box.dead_at is not None
    assert box.dead_at - box.born == pytest.approx(2 * HOUR, abs=60)
    finish(world)
    assert outcome(world) == "failed/ttl/over"


def test_a_machine_born_hours_after_its_short_end_is_swept(build: Build) -> None:
    world = build(job(1, spec={"ttl": "10m", "wait": "10m"}), create_late_birth=Shape("once"))
    world.run(T0 + 30 * HOUR)
    late = [b for b in ours(world) if b.born > T0 + HOUR]
    assert len(late) == 1
    assert not late[0].alive
    assert late[0].dead_at is not None
    assert late[0].dead_at - late[0].born < 900
    finish(world)


def test_a_late_birth_without_any_hook_is_swept_by_its_tombstone(build: Build) -> None:
    world = build(job(1), cloud="ember", create_late_birth=Shape("once"))
    world.run(T0 + 30 * HOUR)
    (late,) = [b for b in ours(world) if "orphan" not in b.dead_why and b.born > T0 + HOUR]
    assert late.dead_why == "destroyed"
    finish(world)
    assert outcome(world) == "done/done/over"


def test_a_late_birth_is_swept_while_other_accounts_are_listed_too(build: Build) -> None:
    jobs = [job(0.5, name, spec={"providers": [name]}, at=T0 + n) for n, name in enumerate(("ember", "flare"))]
    world = build(*jobs, cloud="ember,flare", create_late_birth=Shape("once"))
    world.run(T0 + 30 * HOUR)
    (late,) = [b for b in ours(world) if b.born > T0 + HOUR]
    assert (late.cloud.name, late.dead_why) == ("ember", "destroyed")
    assert late.dead_at is not None
    assert late.dead_at - late.born < 900
    finish(world)


def test_an_order_whose_answer_is_lost_runs_once_also_after_a_crash(build: Build) -> None:
    world = build(job(0.2), answer_lost=Shape("once", nth=2))  # the first answered command is the arming
    world.run(T0 + 60)
    while not world.faults.marks["answer-lost", "once"]:
        world.run(world.heap.now + 0.05)
    assert world.controller is not None
    world.controller.kill()
    finish(world)
    (box,) = ours(world)
    assert list(box.runs) == ["t0.1"]
    assert outcome(world) == "done/done/over"


def test_a_task_is_not_given_away_while_its_cut_off_machine_lives(build: Build) -> None:
    world = build(job(3), destroy_ignored=window(0, 2 * HOUR))
    world.run(T0 + 600)
    (first,) = ours(world)
    world.happen("machine-partition", first, 5 * HOUR)
    world.run(T0 + 1.9 * HOUR)
    if first.alive:
        assert ours(world) == [first]
    finish(world)
    assert len(ours(world)) == 2
    assert outcome(world) == "done/done/over"


def test_a_destroy_answered_missing_by_a_lagging_replica_ends_nothing(build: Build) -> None:
    world = build(job(0.1), destroy_missing_lie=window(0, HOUR), get_missing=window(400, 2000))
    world.run(T0 + HOUR)
    finish(world)
    (box,) = ours(world)
    assert not box.alive


def test_a_tag_dropped_from_listings_loses_no_machine(build: Build) -> None:
    world = build(job(3), list_untagged=window(600, 2 * HOUR))
    world.run(T0 + 700)
    (box,) = ours(world)
    world.happen("machine-partition", box, 600.0)
    world.run(T0 + 2 * HOUR)
    assert ours(world) == [box]
    assert box.alive
    finish(world)


def test_a_checkpoint_that_became_durable_in_the_controllers_last_moment_is_resumed_from(build: Build) -> None:
    world = build(job(1))
    world.restart_s = (120.0,)
    world.crash_at_names["effect/MirrorCheckpoints/after"] = 3
    while world.crashes == 0:
        world.run(world.heap.now + 1.0)
    (box,) = ours(world)
    world.happen("preempt-silent", box)
    finish(world)
    last = ours(world)[-1]
    durable = max(s for _, n, s, _ in world.oracle._durable[last.tag.job, "t0"] if n == 1)  # type: ignore[union-attr]
    assert last.runs["t0.2"].base == durable == 1800


def test_a_store_restored_from_before_the_end_of_a_job_decides_nothing(build: Build) -> None:
    world = build(job(1), job(0.1, "short"))
    world.run(T0 + 200)
    assert world.controller is not None
    copy = world.controller.loop.store.backup("test")
    world.controller.kill()  # the next life has a higher epoch
    world.run(T0 + 1000)
    assert outcome(world, "short") == "done/done/over"
    world.controller.kill(restart=False)
    world.oracle.reopen()
    for end in ("", "-wal", "-shm"):
        Path(f"{world.home.database}{end}").unlink(missing_ok=True)
    copy.rename(world.home.database)
    before = (len(ours(world)), sum(world.oracle.creates.values()))
    world.start_controller()
    world.run(T0 + 3000)
    assert world.controller.loop.verdict is Verdict.BEHIND
    assert (len(ours(world)), sum(world.oracle.creates.values())) == before
    assert [b.alive for b in ours(world)] == [True, False]


def test_books_that_are_lost_kill_nothing_and_the_extended_end_still_holds(build: Build) -> None:
    wish = job(10, spec={"ttl": "2h"}, extend_at=T0 + 1000, extend_s=HOUR)
    world = build(wish)
    world.run(T0 + 1200)
    (box,) = ours(world)
    assert box.end is not None
    assert box.end - box.born == pytest.approx(3 * HOUR, abs=60)
    assert world.controller is not None
    world.controller.kill(restart=False)
    world.oracle.reopen()
    for end in ("", "-wal", "-shm"):
        Path(f"{world.home.database}{end}").unlink(missing_ok=True)
    world.start_controller()
    world.run(T0 + 2.9 * HOUR)
    assert world.controller.loop.verdict is Verdict.LOST
    assert box.alive
    assert sum(world.oracle.creates.values()) == 1
    world.run(T0 + 3.1 * HOUR)
    assert not box.alive


def test_two_hosts_with_one_store_run_nothing_twice(build: Build) -> None:
    from sim_controller import Controller

    world = build(job(1))
    world.run(T0 + 600)
    first = world.controller
    assert first is not None
    other = Path(tempfile.mkdtemp(prefix="gpujob-sim-", dir=world.home.state.parent))
    first.loop.store.backup("copy").rename(other / "gpujob.db")
    shutil.copytree(world.home.config, other / "config")
    second = Controller(world, Home(other, other / "config"), world.clock)
    try:
        world.run(T0 + 1200)
        (box,) = ours(world)
        world.happen("preempt-notice", box)
        world.run(T0 + 3 * HOUR)
        assert first.loop.fenced or second.loop.fenced
        assert max(world.oracle.creates.values()) == 1
        assert not [v for v in world.oracle.violations if v.name in ("NoDoubleRun", "CreateOncePerRental", "OwnedOnly")]
    finally:
        second.kill(restart=False)
        shutil.rmtree(other)


def test_a_destroy_that_answers_500_for_three_hours_holds_up_no_other_job(build: Build) -> None:
    stuck = job(8, "stuck", cancel_at=T0 + 900, cancel_now=True)
    world = build(stuck, job(1, "other", at=T0 + 1200), destroy_error_undone=window(800, 3 * HOUR + 800))
    world.run(T0 + 2.5 * HOUR)
    assert outcome(world, "stuck") == "cancelled/cancelled/open"
    assert outcome(world, "other").startswith("done/done")
    alarms = world.oracle._rows("SELECT * FROM journal WHERE kind = 'alarm:release-slow'")
    assert alarms
    finish(world)
    assert not any(box.alive for box in ours(world))


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_clock_that_is_set_by_an_hour_kills_nothing(build: Build, step: float) -> None:
    world = build(job(2))
    world.run(T0 + 1000)
    (box,) = ours(world)
    world.happen("clock-step", seconds=step)
    world.run(T0 + 1.5 * HOUR)
    assert box.alive
    finish(world)
    assert (ours(world), outcome(world)) == ([box], "done/done/over")


def test_a_ttl_lowered_while_the_machine_is_unreachable_still_saves_and_ends_in_time(build: Build) -> None:
    world = build(job(10, extend_at=T0 + 3700, extend_s=-10 * HOUR))
    world.run(T0 + 3650)
    (box,) = ours(world)
    world.happen("machine-partition", box, 900.0)
    world.run(T0 + 4000)
    assert box.end is not None
    assert box.end - box.born == pytest.approx(12 * HOUR, abs=60)  # it has not heard of it yet
    world.run(T0 + 2.1 * HOUR)
    assert box.dead_at is not None
    assert box.dead_at - box.born == pytest.approx(2 * HOUR, abs=600)
    finish(world)
    assert outcome(world) == "failed/ttl/over"


def test_a_disk_that_outlives_its_machine_keeps_the_job_from_being_over(build: Build) -> None:
    world = build(job(0.2), disk_left=window(0, HOUR), list_error=window(700, 1500))
    world.run(T0 + 1400)
    assert outcome(world) == "done/done/open"
    finish(world)
    assert outcome(world) == "done/done/over"
    assert all(disk.gone_at is not None for disk in world.clouds["aurora"].disks.values() if disk.tag is not None
               and disk.tag.deployment == world.deployment)  # fmt: skip


def test_a_machine_that_no_replica_knows_yet_is_waited_for(build: Build) -> None:
    world = build(job(0.2), create_late_seen=Shape("once"), get_missing=window(0, 200), list_stale=window(0, 300))
    world.run(T0 + 200)
    (box,) = ours(world)
    assert box.alive
    finish(world)
    assert ours(world) == [box]


def test_a_controller_that_was_away_at_a_machines_end_books_no_more_than_its_life(build: Build) -> None:
    world = build(job(5, spec={"budget": "4 USD"}))
    world.run(T0 + 600)
    (box,) = ours(world)
    assert world.controller is not None
    world.controller.kill(restart=False)
    world.run(T0 + 12 * HOUR)
    assert not box.alive
    world.start_controller()
    finish(world)
    (row,) = world.oracle._rows("SELECT amount FROM ledger")
    assert box.dead_at is not None
    assert float(row["amount"]) == pytest.approx(float(box.offer.hourly) * (box.dead_at - box.born) / 3600, rel=0.05)


def test_replicas_that_know_nothing_of_a_cut_off_machine_give_its_work_to_nobody(build: Build) -> None:
    world = build(job(3), destroy_missing_lie=window(600, 2.5 * HOUR), get_missing=window(2400, 2.5 * HOUR))
    world.run(T0 + 600)
    (first,) = ours(world)
    world.happen("machine-partition", first, 2 * HOUR)
    world.run(T0 + 2 * HOUR)
    assert ours(world) == [first]
    assert first.alive
    finish(world)
    assert len(ours(world)) == 2
    assert outcome(world) == "done/done/over"


def test_work_goes_on_elsewhere_soon_after_a_machine_was_outbid(build: Build) -> None:
    world = build(job(1), cloud="corona")
    world.run(T0 + 1300)
    (box,) = ours(world)
    world.happen("outbid", box, 2 * HOUR)
    world.run(T0 + 1700)
    assert len(ours(world)) == 2
    assert not box.alive
    finish(world)
    assert outcome(world) == "done/done/over"
