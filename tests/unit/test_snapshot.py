"""Snapshots of a workdir."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import snapshot
from orchestrator.home import Home
from orchestrator.snapshot import SnapshotError, TooLarge, materialize, take


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(state=tmp_path / "state", config=tmp_path / "config").make()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def sent(taken: snapshot.Snapshot) -> list[str]:
    return [entry.path for entry in taken.files]


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    ran = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return ran.stdout


def test_the_same_content_has_the_same_hash_wherever_it_lies(home: Home, work: Path, tmp_path: Path) -> None:
    fill(work, {"train.py": "print(1)", "pkg/a.py": "a"})
    (work / "train.py").chmod(0o600)
    copy = fill(tmp_path / "copy", {"pkg/a.py": "a", "train.py": "print(1)"})
    first, second = take(work, home), take(copy, home)
    assert first.hash == second.hash
    assert sent(first) == ["pkg/a.py", "train.py"]
    assert first.bytes == 9
    (copy / "train.py").chmod(0o755)
    assert take(copy, home).hash != first.hash


def test_the_store_is_read_only_and_independent_of_the_users_files(home: Home, work: Path) -> None:
    fill(work, {"a": "original"})
    taken = take(work, home)
    blob = home.blobs / taken.files[0].sha256[:2] / taken.files[0].sha256
    assert blob.stat().st_mode & 0o777 == 0o444
    assert blob.stat().st_nlink == 1
    (work / "a").write_text("changed!")
    assert blob.read_text() == "original"
    assert snapshot.load(home, taken.hash) == taken.files


def test_a_rebuilt_folder_is_the_one_that_was_taken(home: Home, work: Path, tmp_path: Path) -> None:
    fill(work, {"run.sh": "#!/bin/sh", "pkg/a.py": "a", "odd\nname": "x"})
    (work / "run.sh").chmod(0o750)
    (work / "empty").mkdir()
    (work / "link").symlink_to("pkg/a.py")
    os.makedirs(os.fsencode(work) + b"/latin-\xe9")
    taken = take(work, home)
    dest = materialize(home, taken.hash, tmp_path / "sent" / "code")
    assert take(dest, home).hash == taken.hash
    assert (dest / "run.sh").stat().st_mode & 0o777 == 0o755
    assert os.readlink(dest / "link") == "pkg/a.py"
    assert (dest / "empty").is_dir()
    assert materialize(home, taken.hash, dest) == dest
    assert [path.name for path in dest.parent.iterdir()] == ["code"]


def test_equal_sizes_with_other_bytes_get_other_times(home: Home, work: Path, tmp_path: Path) -> None:
    fill(work, {"a.py": "x = 1"})
    first = materialize(home, take(work, home).hash, tmp_path / "one")
    fill(work, {"a.py": "x = 2"})
    second = materialize(home, take(work, home).hash, tmp_path / "two")
    assert first.joinpath("a.py").stat().st_mtime != second.joinpath("a.py").stat().st_mtime


def test_what_is_secret_or_made_again_is_never_sent_but_listed(home: Home, work: Path) -> None:
    never = [".env", ".env.local", "key.pem", "id_rsa", ".ssh/config", ".aws/credentials", ".git/config"]
    made = ["__pycache__/a.pyc", "sub/.venv/pyvenv.cfg", "gpujob-results/x", "env/conda-meta/history"]
    fill(work, dict.fromkeys((*never, *made, "a.py", "sub/b.py"), "secret"))
    taken = take(work, home, exclude=[work / "results"])
    assert sent(taken) == ["a.py", "sub/b.py"]
    listed = {each.path: each for each in taken.left_out}
    assert set(listed) == {
        ".env", ".env.local", "key.pem", "id_rsa", ".ssh/", ".aws/", ".git/", "__pycache__/", "sub/.venv/",
        "gpujob-results/", "env/",
    }  # fmt: skip
    assert listed[".env"].reason == "never sent; `!.env` in .gpujobignore asks for it"
    assert listed["key.pem"].bytes == 6
    assert "Python environment" in listed["sub/.venv/"].reason


def test_gpujobignore_asks_back_and_leaves_out(home: Home, work: Path) -> None:
    fill(work, {".env": "a", "x.pem": "b", "sub/.env": "c", "big.bin": "d", "keep.bin": "e", "w.pt": "f"})
    fill(work, {".gitignore": "*.pt\n!.env\n", ".gpujobignore": "!/.env\n!w.pt\n*.bin\n!keep.bin\n"})
    assert sent(take(work, home)) == [".env", ".gitignore", ".gpujobignore", "keep.bin", "sub", "w.pt"]


def test_results_folders_are_left_out(home: Home, work: Path) -> None:
    fill(work, {"a.py": "a", "out/digits/curve.png": "x"})
    taken = take(work, home, exclude=[work / "out"])
    assert sent(taken) == ["a.py"]
    assert [(each.path, each.reason) for each in taken.left_out] == [("out/", "results")]


def test_links_are_kept_and_the_dangling_and_escaping_ones_listed(home: Home, work: Path, tmp_path: Path) -> None:
    fill(tmp_path / "outside", {"secret": "s"})
    fill(work, {"a": "a"})
    (work / "inside").symlink_to("a")
    (work / "nothing").symlink_to("missing")
    (work / "out").symlink_to(tmp_path / "outside")
    taken = take(work, home)
    assert sent(taken) == ["a", "inside", "nothing", "out"]
    assert {each.path: each.reason.split(",")[0] for each in taken.left_out} == {
        "nothing": "a link to nothing",
        "out": "a link out of workdir",
    }


def test_fifos_are_listed_and_do_not_hang(home: Home, work: Path) -> None:
    fill(work, {"a": "a"})
    os.mkfifo(work / "pipe")
    taken = take(work, home)
    assert sent(taken) == ["a"]
    assert taken.left_out[0].reason == "not a file, folder or link"


def test_a_home_folder_is_refused(home: Home, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "me").mkdir()
    monkeypatch.setenv("HOME", str(work / "me"))
    for folder in (work / "me", work):
        with pytest.raises(TooLarge, match="home folder"):
            take(folder, home)
    fill(work / "me" / "project", {"a": "a"})
    assert sent(take(work / "me" / "project", home)) == ["a"]


def test_too_much_is_refused_with_the_largest(home: Home, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(work, {"data/a": "x" * 70, "data/b": "x" * 50, "w.bin": "x" * 90, "a.py": "x"})
    monkeypatch.setattr(snapshot, "LARGE", 200)
    with pytest.raises(TooLarge, match=r"largest: data/ .*, w.bin ") as caught:
        take(work, home)
    assert caught.value.largest[:2] == (("data/", 120), ("w.bin", 90))
    assert not home.snapshots.exists()
    assert take(work, home, allow_large=True).bytes == 211
    fill(work, {".gitignore": "data\n"})
    assert take(work, home).bytes == 91 + 5


def test_a_file_that_changes_while_it_is_read_is_read_again(
    home: Home, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fill(work, {"a": "old bytes"}) / "a"
    original: Callable[..., tuple[str, int]] = snapshot._copy
    edits = iter(["new bytes", "newer"])

    def slow(source: object, dest: object) -> tuple[str, int]:
        copied = original(source, dest)
        if edit := next(edits, None):
            path.write_text(edit)
            os.utime(path, ns=(len(edit), len(edit)))
        return copied

    monkeypatch.setattr(snapshot, "_copy", slow)
    taken = take(work, home)
    assert taken.files[0].size == 5
    assert materialize(home, taken.hash, work.parent / "out").joinpath("a").read_text() == "newer"


def test_a_file_that_never_settles_is_named(home: Home, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fill(work, {"a": "0"}) / "a"
    original: Callable[..., tuple[str, int]] = snapshot._copy
    count = iter(range(1000))

    def moving(source: object, dest: object) -> tuple[str, int]:
        path.write_text("x" * next(count))
        return original(source, dest)

    monkeypatch.setattr(snapshot, "_copy", moving)
    with pytest.raises(SnapshotError, match="/a keeps changing while it is read"):
        take(work, home)


def test_damage_in_the_store_is_found_and_healed_by_the_next_apply(home: Home, work: Path, tmp_path: Path) -> None:
    fill(work, {"a": "good"})
    taken = take(work, home)
    blob = home.blobs / taken.files[0].sha256[:2] / taken.files[0].sha256
    blob.chmod(0o644)
    blob.write_text("evil")
    with pytest.raises(SnapshotError, match="a is damaged"):
        materialize(home, taken.hash, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    take(work, home)
    assert materialize(home, taken.hash, tmp_path / "out").joinpath("a").read_text() == "good"
    (home.snapshots / taken.hash).write_text("{}")
    with pytest.raises(SnapshotError, match="is damaged"):
        snapshot.load(home, taken.hash)
    with pytest.raises(SnapshotError, match="apply again"):
        snapshot.load(home, "0" * 64)


def test_the_commit_is_recorded_and_tracked_files_are_sent_even_when_ignored(home: Home, work: Path) -> None:
    fill(work, {"a.py": "a", "w/model.bin": "m", "w/other.bin": "o", ".gitignore": "*.bin\nsub/*.tmp\n"})
    fill(work, {"sub/b.py": "b", "sub/x.tmp": "x", "sub/deep/y.log": "y"})
    git(work, "init", "-q")
    (work / ".git" / "info").mkdir(exist_ok=True)
    (work / ".git" / "info" / "exclude").write_text("*.log\n")
    git(work, "add", "-f", "a.py", "w/model.bin", ".gitignore", "sub/b.py")
    git(work, "commit", "-q", "-m", "one")
    taken = take(work, home)
    assert sent(taken) == [".gitignore", "a.py", "sub/b.py", "sub/deep", "w/model.bin"]
    assert taken.commit == git(work, "rev-parse", "HEAD").strip()
    assert not taken.dirty
    # A part of a repository obeys the ignore files above it
    assert sent(take(work / "sub", home)) == ["b.py", "deep"]
    (work / "a.py").write_text("changed")
    assert take(work, home).dirty
    assert not take(work / "sub", home).dirty
