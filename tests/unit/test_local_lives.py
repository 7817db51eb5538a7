"""Looking at a machine while something happens to it: a living one must never be taken for dead."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from providers.local_machine import lives
from providers.local_machine.folder import Record, World
from providers.local_machine.process import boot_id, stat_of


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def machine(world: World, pid: str | None, *, age_s: float = 0.0) -> Record:
    tag = {"deployment": "dep", "rental": "r", "job": "", "owner": ""}
    born = time.time() - age_s
    record = Record("m1", "here", "cpu:spot", True, "0.1", born, "bwrap", "gpu", 1, "ssh-ed25519 A", tag)
    building = world.build("m1")
    (building / "ctl").mkdir()
    if pid is not None:
        (building / "ctl/pid").write_text(pid)
    world.publish(building, record)
    return record


def nobody() -> str:
    return f"{boot_id()}\n999999999 1\n"


def ourselves() -> str:
    seen = stat_of(os.getpid())
    assert seen is not None
    return f"{boot_id()}\n{os.getpid()} {seen[0]}\n"


def status_of_the_dead(world: World) -> str:
    stone = world.tombstone("m1", time.time())
    assert stone is not None
    return stone.status


def test_alive_is_starting_until_its_sshd_answered(world: World) -> None:
    record = machine(world, ourselves())
    assert lives.look(world, record) == "starting"
    (world.folder("m1") / "ctl/up").touch()
    assert lives.look(world, record) == "running"


def test_a_dead_pid_1_is_a_crash_and_the_files_go(world: World) -> None:
    record = machine(world, nobody())
    assert lives.look(world, record) is None
    assert status_of_the_dead(world) == "crashed"
    assert world.ids() == []


@pytest.mark.parametrize(
    ("fate", "doom", "status"),
    [
        ("interrupted 5.0\n", "", "interrupted"),
        ("ended 5.0\n", lives.DESTROYED, "ended"),
        ("", lives.DESTROYED, "terminated"),
        ("", "found dead\n", "crashed"),
    ],
)
def test_the_last_word_counts_then_our_order(world: World, fate: str, doom: str, status: str) -> None:
    record = machine(world, nobody())
    for name, text in (("fate", fate), ("doom", doom)):
        if text:
            (world.folder("m1") / "ctl" / name).write_text(text)
    assert lives.look(world, record) is None
    assert status_of_the_dead(world) == status


def test_a_first_word_that_comes_while_we_look_is_heard(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between "no pid yet" and "too old to be starting" the machine speaks."""
    record = machine(world, None, age_s=1000.0)
    reads = iter([None, ourselves()])
    monkeypatch.setattr(lives, "_identity_text", lambda *_: next(reads))
    assert lives.look(world, record) == "starting"
    assert world.ids() == ["m1"], "a living machine was buried"


def test_a_reboot_that_ends_while_we_look_is_no_death(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    record = machine(world, nobody())
    pid = world.folder("m1") / "ctl/pid"

    def rebooted_meanwhile(processes: object) -> bool:
        pid.write_text(ourselves())
        return False

    monkeypatch.setattr(lives, "any_alive", rebooted_meanwhile)
    assert lives.look(world, record) == "starting"
    assert world.ids() == ["m1"], "a living machine was buried"


def test_a_rebooting_machine_is_not_dead(world: World) -> None:
    record = machine(world, nobody())
    (world.folder("m1") / "ctl/rebooting").touch()
    assert lives.look(world, record) == "starting"


def test_destroying_what_never_spoke_waits_for_no_word(world: World) -> None:
    record = machine(world, None, age_s=1000.0)
    lives.destroy(world, record)
    assert status_of_the_dead(world) == "terminated"


def test_a_machine_buried_by_somebody_else_is_left_alone(world: World) -> None:
    record = machine(world, nobody())
    world.bury(record, "ended", 5.0, 6.0)
    assert lives.look(world, record) is None


def test_a_full_disk_does_not_save_a_machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tombstone cannot be written until the machine's own files are gone."""
    record = machine(world, nobody())
    (world.folder("m1") / "big").touch()
    honest = World._set_stone

    def full(self: World, *arguments: object) -> None:
        if list(self.home.rglob("big")):
            raise OSError(28, "No space left on device")
        honest(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(World, "_set_stone", full)
    lives.destroy(world, record)
    assert world.ids() == []
    assert status_of_the_dead(world) == "terminated"
