"""The local world on disk, process identity, and what is missing on a host; no machine is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from providers.base import Ask, Boot, DestroyAck, GpuRow, ProviderConfig, Ref, Tag
from providers.errors import Invalid
from providers.local import LocalProvider
from providers.local_machine import isolation, launch, process, programs
from providers.local_machine.folder import (
    DEAD_LISTED_S,
    Record,
    World,
    new_id,
    read_text,
    remove_tree,
    write_atomic,
)

NOW = 1_800_000_000.0


def record(machine_id: str = "m1") -> Record:
    tag = {"deployment": "dep", "rental": "r", "job": "j", "owner": ""}
    return Record(machine_id, "here", "cpu:spot", True, "0.0350", NOW, "bwrap", "gpu", 2222, "ssh-ed25519 A", tag)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def make(world: World, machine_id: str = "m1") -> Path:
    return world.publish(world.build(machine_id), record(machine_id))


def test_a_machine_is_listed_from_one_rename_on(world: World) -> None:
    building = world.build("m1")
    assert world.ids() == []
    final = world.publish(building, record())
    assert world.ids() == ["m1"]
    assert final == world.folder("m1")
    assert world.record("m1") == record()
    assert world.record("m1").as_tag() == Tag("dep", "r", "j")  # type: ignore[union-attr]


def test_burying_leaves_a_tombstone_for_ten_minutes_and_no_folder(world: World) -> None:
    folder = make(world)
    (folder / "deep").mkdir()
    world.bury(record(), "interrupted", NOW - 86400, NOW)
    assert not folder.exists()
    assert list((world.home / "trash").iterdir()) == []
    stone = world.tombstone("m1", NOW + DEAD_LISTED_S - 1)
    assert stone is not None
    assert (stone.record, stone.status, stone.at) == (record(), "interrupted", NOW - 86400)
    assert world.tombstone("m1", NOW + DEAD_LISTED_S) is None
    assert [s.record.id for s in world.tombstones(NOW + 1)] == ["m1"]
    assert world.tombstones(NOW + DEAD_LISTED_S) == []
    assert list(world.dead.iterdir()) == [], "an old tombstone is deleted, not only hidden"


def test_the_first_burial_decides(world: World) -> None:
    make(world)
    world.bury(record(), "ended", NOW, NOW)
    world.bury(record(), "terminated", NOW, NOW + 5)
    stone = world.tombstone("m1", NOW)
    assert stone is not None
    assert stone.status == "ended"


def test_spot_machines_are_counted_by_job_across_threads(world: World) -> None:
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.append(world.next_spot_ordinal("dep", "a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 9))
    assert world.next_spot_ordinal("dep", "b") == 1
    assert world.next_spot_ordinal("other", "a") == 1


def test_a_killed_creators_leftovers_are_swept_and_a_fresh_build_is_not(world: World) -> None:
    old, fresh = world.build("old"), world.build("fresh")
    os.utime(old, (NOW, NOW))
    os.utime(fresh, (NOW + 500, NOW + 500))
    (world.home / "trash/half").mkdir(parents=True)
    world.sweep_leftovers(NOW + 501)
    assert not old.exists()
    assert fresh.exists()
    assert list((world.home / "trash").iterdir()) == []


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "one")
    before = path.stat().st_ino
    write_atomic(path, "two")
    assert read_text(path) == "two"
    assert path.stat().st_ino != before, "written in place: a reader could see half"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert read_text(tmp_path / "absent") is None


def test_ids_are_valid_names_and_never_repeat() -> None:
    ids = [new_id(NOW) for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(one.isalnum() and one[0] == "m" and len(one) < 32 for one in ids)


def test_removing_what_is_gone_is_fine(tmp_path: Path) -> None:
    remove_tree(tmp_path / "never")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/link").symlink_to(tmp_path)
    remove_tree(tmp_path / "dir")
    assert tmp_path.exists(), "a link was followed"


def test_a_process_is_its_pid_and_its_start() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    seen = process.stat_of(child.pid)
    assert seen is not None
    alive, stranger = process.Process(child.pid, seen[0]), process.Process(child.pid, seen[0] + 1)
    assert alive.alive()
    assert not stranger.alive(), "a reused pid passed for ours"
    stranger.kill()
    assert child.poll() is None, "a stranger was killed"
    alive.kill()
    assert process.wait_gone([alive], 10), "a zombie counts as dead"
    child.communicate()
    assert process.stat_of(child.pid) is None


def test_an_identity_of_another_boot_is_nobody() -> None:
    text = f"{process.boot_id()}\n12 34\n56 78\n"
    assert process.parse_identity(text) == (process.Process(12, 34), process.Process(56, 78))
    assert process.parse_identity("x" + text) == ()


def test_marked_processes_are_killed_and_no_others() -> None:
    environment = {**os.environ, "GJ_MARK": "yes"}
    command = [sys.executable, "-c", "input()"]
    marked = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
    other = subprocess.Popen(command, env={**environment, "GJ_MARK": "yesno"}, stdin=subprocess.PIPE)
    try:
        # Between fork and exec a child still shows our own environment, so wait for its own to appear.
        while b"GJ_MARK" not in Path(f"/proc/{marked.pid}/environ").read_bytes():
            os.sched_yield()
        assert process.kill_marked("GJ_MARK=yes") == 1
        marked.wait(timeout=10)
        assert other.poll() is None
    finally:
        for child in (marked, other):
            child.kill()
            child.communicate()


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find", lambda name: None if name in ("sshd", "tmux") else f"/bin/{name}")
    with pytest.raises(programs.MissingProgram) as missing:
        programs.check()
    text = str(missing.value)
    assert "not installed on this host: sshd, tmux." in text
    assert "apt-get install -y openssh-server tmux" in text
    assert "dnf install -y openssh-server tmux" in text
    assert "brew install openssh tmux" in text
    assert isinstance(missing.value, Invalid)


def provider(home: Path, **settings: object) -> LocalProvider:
    return LocalProvider(ProviderConfig("dep", home, (GpuRow("RTX-4090", 24),), settings))


def test_what_cannot_be_created_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUJOB_LOCAL_HOME", raising=False)
    ours = provider(tmp_path)
    offer, tag, boot = ours.offers(Ask(spot=True))[0], Tag("dep", "r1"), Boot("", "")
    with pytest.raises(Invalid, match="deployment 'other' is not 'dep'"):
        ours.create(offer, Tag("other", "r1"), NOW, boot)
    with pytest.raises(Invalid, match="a tag's parts must match"):
        ours.create(offer, Tag("dep", "r1", job="A b"), NOW, boot)
    with pytest.raises(Invalid, match="its name"):
        ours.create(offer, Tag("dep", "1r"), NOW, boot)
    monkeypatch.setenv("GPUJOB_LOCAL_RECLAIM", "after=soon")
    with pytest.raises(Invalid, match="GPUJOB_LOCAL_RECLAIM"):
        ours.create(offer, tag, NOW, boot)
    monkeypatch.delenv("GPUJOB_LOCAL_RECLAIM")
    monkeypatch.setattr(programs, "find", lambda name: None)
    with pytest.raises(programs.MissingProgram):
        ours.create(offer, tag, NOW, boot)
    assert ours.list("here").instances == ()
    assert not (tmp_path / "local/machines").exists()


def test_an_unknown_isolation_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUJOB_LOCAL_ISOLATION", "docker")
    with pytest.raises(Invalid, match="'docker': use one of bwrap, unshare, subreaper"):
        isolation.choose(tmp_path)


def test_the_home_is_the_environments_or_the_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUJOB_LOCAL_HOME", raising=False)
    assert provider(tmp_path).world.home == tmp_path / "local"
    monkeypatch.setenv("GPUJOB_LOCAL_HOME", str(tmp_path / "elsewhere"))
    assert provider(tmp_path).world.home == tmp_path / "elsewhere"


def test_regions_come_from_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUJOB_LOCAL_HOME", raising=False)
    two = provider(tmp_path, regions=["east", "west"])
    assert two.regions() == ("east", "west")
    with pytest.raises(Invalid, match="no such region: 'here'; there is east, west"):
        two.list("here")


@pytest.mark.parametrize("name", ["../../etc", "m1/../m1", "", ".", "M1"])
def test_an_id_is_never_a_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUJOB_LOCAL_HOME", raising=False)
    ours = provider(tmp_path)
    make(ours.world)
    ref = Ref("local", "local", "here", name)
    assert ours.get(ref) is None
    assert ours.destroy(ref) is DestroyAck.MISSING


def test_a_machine_that_never_spoke_starts_and_then_is_crashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUJOB_LOCAL_HOME", raising=False)
    ours = provider(tmp_path)
    ref = Ref("local", "local", "here", "m1")
    building = ours.world.build("m1")
    (building / "ctl").mkdir()
    young = Record(**{**asdict(record()), "created_at": time.time()})
    ours.world.publish(building, young)
    seen = ours.get(ref)
    assert seen is not None
    assert (seen.status, seen.ready) == ("starting", False)
    old = {**asdict(young), "created_at": time.time() - 1000}
    write_atomic(ours.world.folder("m1") / "machine.json", json.dumps(old))
    dead = ours.get(ref)
    assert dead is not None
    assert dead.status == "crashed"
    assert dead.status in ours.caps.dead_statuses


def test_the_network_of_the_host_comes_along_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in launch.NETWORK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("http_proxy", 'say "no"')
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    found = launch.environment(isolation.Inside("gpu", "/home/gpu", "/tmp", "/run/machine"), "m1")
    assert found["https_proxy"] == "http://proxy:3128"
    assert set(found) == {
        "HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TMPDIR", "TMUX_TMPDIR", launch.MARKER, "https_proxy",
    }  # fmt: skip


def test_without_namespaces_a_long_home_is_refused() -> None:
    with pytest.raises(Invalid, match="too long for tmux sockets"):
        isolation.inside("subreaper", Path("/" + "x" * 80))
