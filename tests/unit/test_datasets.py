"""Manifests of local data: what is in them, what is refused, what counts as changed, what many files cost."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from store_rows import job_row

from orchestrator import controller, datasets
from orchestrator.datasets import DataError, Manifest, changes, load, manifest_of, sampled, summaries
from orchestrator.home import Home
from orchestrator.model import Job, Outcome

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 4900000000\n"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(state=tmp_path / "state", config=tmp_path / "config").make()


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_links_are_followed_and_the_whole_is_named_by_one_hash(home: Home, tmp_path: Path) -> None:
    data = fill(tmp_path / "data", {"a.txt": "one", "b/c.txt": "two"})
    (data / "linked").symlink_to(data / "b")
    made = manifest_of(data, home)
    assert [file.path for file in load(home, made)] == ["a.txt", "b/c.txt", "linked/c.txt"]
    assert (made.count, made.bytes, made.kind, made.single) == (3, 9, "local", False)
    assert next(load(home, made)).sha256 == hashlib.sha256(b"one").hexdigest()
    assert Manifest.of(summaries({"x": made})["x"]) == made
    copy = fill(tmp_path / "copy", {"a.txt": "one", "b/c.txt": "two", "linked/c.txt": "two"})
    assert manifest_of(copy, home).hash == made.hash  # times and places are not in it
    single = manifest_of(data / "a.txt", home)
    assert (single.single, [file.path for file in load(home, single)]) == (True, ["a.txt"])


def test_paths_come_in_the_order_of_their_bytes(home: Home, tmp_path: Path) -> None:
    data = fill(tmp_path / "data", dict.fromkeys(["a/b", "a.x", "a-", "a0", "a/é/z", "a/f", "B"], "x"))
    os.makedirs(os.fsencode(data) + b"/latin-\xe9")
    (data / os.fsdecode(b"latin-\xe9") / "f").write_text("x")
    paths = [file.path for file in load(home, manifest_of(data, home))]
    assert paths == sorted(paths, key=os.fsencode)
    assert len(paths) == 8


def test_every_change_since_apply_is_named(home: Home, tmp_path: Path) -> None:
    data = fill(tmp_path / "data", {"a": "one", "b/c": "two", "z": "same"})
    made = manifest_of(data, home)
    assert changes(home, made) == []
    os.utime(data / "a", (1, 1))  # another time alone is no change
    assert changes(home, made) == []
    fill(data, {"a": "ONE", "new": "n", "zz": "n"})
    (data / "b" / "c").unlink()
    assert changes(home, made) == ["a was changed", "b/c was removed", "new is new", "zz is new"]


def test_a_second_look_reads_only_what_was_touched(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = fill(tmp_path / "data", {"old": "one", "fresh": "two"})
    os.utime(data / "old", (1_000_000_000, 1_000_000_000))
    first = manifest_of(data, home)
    read: list[str] = []
    original = datasets.hashed

    def counted(name: str, path: Path) -> datasets.DataFile:
        read.append(name)
        return original(name, path)

    monkeypatch.setattr(datasets, "hashed", counted)
    assert manifest_of(data, home).hash == first.hash
    assert read == ["fresh"]  # written within two seconds of the first look: it may have changed again unseen
    (data / "old").write_text("two")
    assert manifest_of(data, home).hash != first.hash


def test_large_files_are_hashed_by_samples(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "WHOLE_MAX", 100)
    monkeypatch.setattr(datasets, "SAMPLE", 10)
    path = tmp_path / "big"
    path.write_bytes(bytes(range(200)))
    before = manifest_of(path, home)
    assert [file.sampled for file in load(home, before)] == [True]
    path.write_bytes(bytes(range(190)) + b"0123456789")  # the last piece sees it
    assert changes(home, before) == ["big was changed"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda data: (data / "x").symlink_to("nowhere"), "x is a dangling link, to nowhere"),
        (lambda data: (data / "x").symlink_to(data), "a link to a folder that it lies in"),
        (lambda data: (data / "w.pt").write_text(POINTER), "w.pt: Git LFS pointers, not the content"),
        (lambda data: (data / "a.jpg").write_text(""), "a.jpg: zero-byte files"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    home: Home, tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    data = fill(tmp_path / "data", {"good": "x", "pkg/__init__.py": ""})
    make(data)
    with pytest.raises(DataError, match=said):
        manifest_of(data, home, where="./data")
    assert [path.name for path in home.manifests.glob(".new.*")] == []


def test_missing_and_empty(home: Home, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist") as caught:
        manifest_of(tmp_path / "none", home, where="./none")
    assert caught.value.where == "./none"
    data = fill(tmp_path / "data", {"labels/1.txt": ""})
    assert manifest_of(data, home, allow_empty=True).count == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read_names_owner_and_mode(home: Home, tmp_path: Path) -> None:
    data = fill(tmp_path / "data", {"a": "x"})
    (data / "a").chmod(0)
    with pytest.raises(DataError, match=r"belongs to user .* with mode 0000"):
        manifest_of(data, home)


def test_a_tenth_is_the_same_tenth_everywhere(home: Home, tmp_path: Path) -> None:
    paths = [f"img/{number:04}.jpg" for number in range(1000)]
    first = sampled(paths, 0.1)
    assert len(first) == 100
    assert first == sampled(list(reversed(paths)), 0.1)
    assert set(sampled(paths, 0.05)) < set(first)
    # one file more moves one name at most
    assert len(set(first) - set(sampled([*paths, "img/new.jpg"], 0.1))) <= 1
    assert sampled(paths[:3], 0.1) != []
    data = fill(tmp_path / "data", dict.fromkeys(paths[:50], "x"))
    made = manifest_of(data, home, sample=0.1)
    assert made.count == 5
    fill(data, {"img/9999.jpg": "x"})  # what was not chosen may come and go
    assert changes(home, made) == []


MEMORY = """
import re, sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from orchestrator import controller, datasets
from orchestrator.home import Home
home = Home(state=Path(sys.argv[1]), config=Path(sys.argv[1])).make()
source = Path(sys.argv[2])
made = datasets.Manifest.of(eval(sys.argv[3]))
assert datasets.changes(home, made) == []
# Not getrusage: its peak begins with what the process that started this one had
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def test_the_controllers_look_at_many_files_takes_no_memory_of_their_number(home: Home, tmp_path: Path) -> None:
    """Sixty times the files cost the controller nothing that grows with them."""
    peaks = []
    for count in (100, 6000):
        data = tmp_path / f"data{count}"
        for number in range(count):
            if number % 100 == 0:
                (data / f"{number // 100:04}").mkdir(parents=True)
            (data / f"{number // 100:04}" / f"{number:06}.jpg").write_bytes(b"x")
        made = manifest_of(data, home)
        command = [sys.executable, "-c", MEMORY, str(home.state), str(data), repr(summaries({"d": made})["d"])]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(ran.stdout))
    assert peaks[1] - peaks[0] < 1500, peaks  # KiB; a list of the paths alone would take more


def test_lists_that_nothing_refers_to_go_once_there_are_many(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "MANIFESTS_KEPT", 3)
    now = 1_800_000_000.0
    made = {}
    for name in ("live", "failed", "done", "replaced", "fresh", "source"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.txt").write_text(name)
        made[name] = manifest_of(folder, home).hash
    days = {"live": 60, "failed": 60, "done": 60, "replaced": 60, "fresh": 1, "source": 60}
    for name, number in days.items():
        os.utime(home.manifests / made[name], (now, now - number * 86_400))
    for last in home.manifests.glob("last.*"):  # sources that nobody has applied for months, but one
        os.utime(last, (now, now - (1 if last.read_text() == made["source"] else 100) * 86_400))

    def jobs() -> list[Job]:
        def job(name: str, **more: object) -> Job:
            return job_row(name, data_manifests={"x": {"hash": made[name]}}, **more)

        over = {"terminal_at": now - 50.0}
        return [job("live"), job("failed", outcome=Outcome.FAILED, **over), job("done", outcome=Outcome.DONE, **over)]

    assert datasets.prune(home, jobs, now) == 5 + 2
    left = {entry.name for entry in home.manifests.iterdir() if not entry.name.startswith("last.")}
    assert left == {made[name] for name in ("live", "failed", "fresh", "source")}
    monkeypatch.setattr(datasets, "MANIFESTS_KEPT", 100)
    assert datasets.prune(home, lambda: pytest.fail("a few are not worth a look"), now) == 0


def test_a_controller_that_cannot_tidy_up_starts_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of data that cannot be read must not leave machines without anybody who looks after them."""
    home = Home(tmp_path, tmp_path)
    home.manifests.mkdir(parents=True)
    for n in range(datasets.MANIFESTS_KEPT + 1):
        (home.manifests / f"last.{n}").write_bytes(b"\xff\xfe damaged")
    tidied: list[int] = []
    loop: Any = SimpleNamespace(store=SimpleNamespace(jobs=lambda limit: tidied.append(limit) or ()))
    with pytest.raises(ValueError, match="codec"):
        datasets.prune(home, loop.store.jobs, 0.0)
    controller._tidy(home, loop)
    assert tidied == []
