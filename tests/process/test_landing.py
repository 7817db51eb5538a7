"""Data on a machine of `local`: each thing that can be wrong has its own name, and only what may help is repeated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rented_machine import JOB, Rented, rented

from jobspecs.load import load_spec
from jobspecs.schema import JobSpec
from orchestrator import landing, space, sync
from orchestrator.datasets import manifest_of, summaries
from orchestrator.execute import WorkFailed
from orchestrator.model import Reason
from orchestrator.transfers import Teller

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 4900000000\n"
NAMES = ("a.bin", "sub/b.bin", "sub/c.bin", "shard-09.bin")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rented]:
    with rented(tmp_path_factory.mktemp("machine")) as made:
        yield made


def spec_of(data: str, more: str = "") -> JobSpec:
    return load_spec(f"name: digits\ngpu: none\nrun: x\ndata: {data}\n{more}", "job.yaml")


class World:
    """One data folder, and a job that has it."""

    def __init__(self, machine: Rented, base: Path, path: str = "", **given: Any) -> None:
        self.machine, self.source = machine, base / "set"
        for name in NAMES:
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            (self.source / name).write_bytes(name.encode() * 100)
            os.utime(self.source / name, (1_700_000_000, 1_700_000_000))
        self.path = path or base.name
        self.spec = spec_of(f"{{from: {self.source}, path: {self.path}}}")
        self.job: Any = SimpleNamespace(id=JOB, base_dir=str(base), data_manifests=summaries(
            {self.path: manifest_of(self.source, machine.home, **given)}))  # fmt: skip
        self.dest = self.path if self.path.startswith("/") else f"{machine.folders['data']}/{self.path}"
        self.told: list[str] = []

    def land(self, checkpoint: int = 0) -> None:
        teller = Teller(lambda seen: self.told.append(seen.what), "r", "t0.1", iter(range(10**6)).__next__)
        landing.land(
            self.machine.conn,
            self.machine.home,
            self.job,
            self.spec,
            self.machine.folders,
            teller,
            checkpoint,
            self.machine.ask,
        )

    def checked(self) -> dict[str, str]:
        """What the machine finds wrong now: path -> fault."""
        each = landing._landing(self.machine.home, self.job, self.spec.data[0], self.machine.folders)
        seen = landing._check(self.machine.conn, each, lambda _: None)
        assert sum(seen["faults"].values()) == len(seen["named"])
        return {fault["path"]: f"{fault['fault']}: {fault['detail']}" for fault in seen["named"]}


@pytest.fixture
def world(machine: Rented, tmp_path: Path) -> World:
    made = World(machine, tmp_path)
    made.land()
    return made


def test_all_of_it_lands_and_is_checked_there(world: World) -> None:
    assert world.checked() == {}
    assert world.machine.sh(f"cd {world.dest} && find . -type f | sort").split() == [
        "./a.bin", "./shard-09.bin", "./sub/b.bin", "./sub/c.bin"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ("rm shard-09.bin", {"shard-09.bin": "missing: is missing"}),
        ("truncate -s 100 a.bin", {"a.bin": "cut: was cut: 100 of 500 bytes"}),
        (": > a.bin", {"a.bin": "zero-byte: has no bytes instead of 500"}),
        ("printf x >> a.bin", {"a.bin": "other-size: has 501 bytes instead of 500"}),
        ("printf x | dd of=a.bin conv=notrunc status=none", {"a.bin": "other-bytes: has other bytes"}),
        (f"printf '{POINTER}' > a.bin", {"a.bin": "lfs-pointer: is a Git LFS pointer instead of 500 bytes"}),
        ("rm a.bin; ln -s nowhere a.bin", {"a.bin": "dangling-link: is a link to nothing, nowhere"}),
        ("rm a.bin; mkdir a.bin", {"a.bin": "not-a-file: is not a file"}),
    ],
)
def test_each_damage_has_its_name_and_the_next_landing_mends_it(
    world: World, damage: str, fault: dict[str, str]
) -> None:
    world.machine.sh(f"cd {world.dest} && {damage.replace(chr(10), chr(92) + 'n')}")
    found = world.checked()
    assert found == fault
    world.land()
    assert world.checked() == {}
    assert world.machine.sh(f"cat {world.dest}/a.bin") == "a.bin" * 100


def test_the_same_size_and_time_do_not_hide_other_bytes(world: World) -> None:
    """rsync's own quick check would believe them."""
    world.machine.sh(
        f"cd {world.dest} && printf x | dd of=a.bin conv=notrunc status=none && touch -d @1700000000 a.bin"
    )
    assert sync.push(world.machine.conn.target, world.source, world.dest, copy_links=True).files == 0
    assert world.checked() == {"a.bin": "other-bytes: has other bytes"}
    world.land()
    assert world.checked() == {}


def test_what_has_landed_before_is_only_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run on the machine, or a leg beside it, sends nothing."""
    monkeypatch.setattr(sync, "push", lambda *_, **__: pytest.fail("something was sent"))
    world.land()
    world.machine.sh(f"touch {world.dest}/stale")
    world.land()
    assert world.machine.conn.run(f"test -e {world.dest}/stale").rc == 1


def test_wrong_modes_and_owners_are_told_apart_from_missing_files(world: World) -> None:
    world.machine.sh(f"chmod 0 {world.dest}/a.bin")
    found = world.checked()["a.bin"]
    assert found.startswith("wrong-mode: belongs to user ")
    assert "with mode 0000" in found
    world.land()
    assert world.checked() == {}
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    uid = world.machine.sh("id -u").strip()
    below = Path(world.dest).relative_to(world.machine.folders["home"])
    path = world.machine.root / "home" / below / "sub" / "b.bin"
    os.chown(path, 12345, 12345)
    path.chmod(0o600)
    found = world.checked()["sub/b.bin"]
    assert found.startswith("wrong-owner: belongs to user ")
    assert found.endswith(f"with mode 0600; the job runs as user {uid}")
    world.land()  # in our own folder it is simply replaced
    assert world.checked() == {}


def test_a_file_that_the_data_no_longer_has_goes_unless_the_folder_is_not_ours(
    machine: Rented, world: World, tmp_path: Path
) -> None:
    world.machine.sh(f"touch {world.dest}/stale")
    world.land()
    assert machine.conn.run(f"test -e {world.dest}/stale").rc == 1
    (tmp_path / "other").mkdir()
    absolute = World(machine, tmp_path / "other", path=f"{machine.folders['home']}/own-{tmp_path.name}")
    absolute.land()
    machine.sh(f"touch {absolute.dest}/precious")
    with pytest.raises(WorkFailed, match=r"1 extra\): precious is not part of the data") as caught:
        absolute.land()
    assert caught.value.fatal is Reason.DATA
    assert machine.conn.run(f"test -e {absolute.dest}/precious").rc == 0


def test_what_changed_since_apply_fails_by_name_before_anything_is_sent(world: World) -> None:
    (world.source / "sub" / "b.bin").write_bytes(b"new")
    with pytest.raises(WorkFailed, match=r"has changed since apply \(sub/b.bin was changed\)") as caught:
        world.land()
    assert caught.value.fatal is Reason.DATA


def test_what_changes_while_it_is_copied_is_told_as_such(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.machine.sh(f"rm -r {world.dest}")
    original = sync.push

    def writes_meanwhile(target: Any, source: Path, *words: Any, **given: Any) -> Any:
        if source == world.source:
            (world.source / "a.bin").write_bytes(os.urandom(500))
        return original(target, source, *words, **given)

    monkeypatch.setattr(sync, "push", writes_meanwhile)
    with pytest.raises(WorkFailed, match=r"changed while it was copied: a\.bin was changed") as caught:
        world.land()
    assert caught.value.fatal is Reason.DATA


def test_a_copy_that_says_success_and_copies_nothing_is_found_out_and_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The uploader's exit code is no proof."""
    world.machine.sh(f"rm {world.dest}/a.bin")
    original = sync.push

    def lies(target: Any, source: Path, *words: Any, **given: Any) -> Any:
        return None if source == world.source else original(target, source, *words, **given)

    monkeypatch.setattr(sync, "push", lies)
    with pytest.raises(WorkFailed, match=r"did not land whole \(1 missing\): a\.bin is missing") as caught:
        world.land()
    assert caught.value.fatal is None  # a transfer fault: it is tried again


def test_one_file_lands_under_the_name_that_path_gives_it(machine: Rented, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1,2")
    world = World(machine, tmp_path)
    world.spec = spec_of(f"{{from: {tmp_path}/x.csv, path: {tmp_path.name}.csv}}")
    made = manifest_of(tmp_path / "x.csv", machine.home)
    world.job.data_manifests = summaries({f"{tmp_path.name}.csv": made})
    world.land()
    assert machine.sh(f"cat {machine.folders['data']}/{tmp_path.name}.csv") == "1,2"
    machine.sh(f": > {machine.folders['data']}/{tmp_path.name}.csv")
    world.land()
    assert machine.sh(f"cat {machine.folders['data']}/{tmp_path.name}.csv") == "1,2"


def test_a_share_sends_its_files_only(machine: Rented, tmp_path: Path) -> None:
    world = World(machine, tmp_path, sample=0.5)
    world.land()
    assert len(world.machine.sh(f"cd {world.dest} && find . -type f").split()) == 2
    world.land()


def test_too_little_space_is_found_before_a_byte_is_sent_with_the_figures(world: World) -> None:
    path = world.path
    world.machine.sh(f"rm -r {world.dest}")
    huge = dict(world.job.data_manifests[path], bytes=900 * 10**15)
    world.job.data_manifests = {path: huge}
    world.told.clear()
    with pytest.raises(
        WorkFailed, match=r"disk too small at .*: 945,000,000\.0 GB needed .*, [\d,.]+ [GM]B free"
    ) as caught:
        world.land()
    assert caught.value.fatal is Reason.BAD_HOST
    assert world.told == []
    world.job.data_manifests = {path: dict(huge, bytes=1)}
    world.spec = spec_of(f"{{from: {world.source}, path: {path}}}", "checkpoint: {keep: 3}\n")
    with pytest.raises(WorkFailed, match=r"disk too small"):
        world.land(checkpoint=10**17)


def test_a_place_that_may_not_be_written_to_fails_at_once(machine: Rented, tmp_path: Path) -> None:
    world = World(machine, tmp_path, path="/proc/gpujob-data")
    with pytest.raises(WorkFailed, match=r"/proc may not be written to|/proc") as caught:
        world.land()
    assert caught.value.fatal in (Reason.DATA, Reason.BAD_HOST)


def test_inodes_and_quotas_count(world: World) -> None:
    seen = space.System.of(
        {"path": "/data", "need": 10**9, "files": 5000, "free": 10**12, "total": 10**12, "inodes_free": 5500}
    )
    assert space.shortage([seen]) == "too few inodes at /data: 5,000 files to come, 5,500 inodes are free"
    tight = replace(seen, inodes_free=None, quota_free=10**9)
    assert "1.0 GB left of the user's quota" in space.shortage([tight])
    assert "5,500 files left of the quota" in space.shortage([replace(seen, inodes_free=None, quota_files=5500)])
    assert space.shortage([replace(seen, inodes_free=10**6)]) == ""
