"""`workdir: {git, ref}` against real repositories of this host."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobspecs.load import load_spec
from jobspecs.schema import JobSpec
from orchestrator.cli.exits import CliError
from orchestrator.cli.plan import freeze
from orchestrator.home import Home
from orchestrator.snapshot import take
from orchestrator.sources import git as source
from orchestrator.sources.git import GitError

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 4900000000\n"


@pytest.fixture(autouse=True)
def _plain_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(state=tmp_path / "state", config=tmp_path / "config").make()


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
    ran = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def commit(folder: Path, files: dict[str, str], words: str = "x") -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "-m", words)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def upstream(tmp_path: Path) -> SimpleNamespace:
    """A repository with a branch, a tag and two commits; `first` has other files than `second`."""
    folder = tmp_path / "upstream"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    first = commit(folder, {"train.py": "one", ".gitignore": "*.bin\n", "w.bin": "tracked"})
    git(folder, "tag", "-a", "v1", "-m", "annotated")
    second = commit(folder, {"train.py": "two"})
    return SimpleNamespace(folder=folder, first=first, second=second)


def spec_of(upstream: SimpleNamespace, ref: str, more: str = "") -> JobSpec:
    address = f"file://{upstream.folder}"
    text = f"name: a\ngpu: none\nrun: python train.py\nworkdir: {{git: '{address}', ref: '{ref}'}}\n{more}"
    return load_spec(text, "job.yaml")


@pytest.mark.parametrize("ref", ["v1", "tags/v1", "FIRST", "SHORT", "main~1"])
def test_tags_and_commits_are_pinned_and_sent_as_they_were(
    home: Home, upstream: SimpleNamespace, tmp_path: Path, ref: str
) -> None:
    ref = {"FIRST": upstream.first, "SHORT": upstream.first[:10]}.get(ref, ref)
    shot = freeze(home, spec_of(upstream, ref), tmp_path)
    assert shot is not None
    assert (shot.commit, shot.dirty) == (upstream.first, False)
    assert [entry.path for entry in shot.files] == [".gitignore", "train.py", "w.bin"]  # tracked, so sent
    assert shot.left_out == ()
    assert shot.origin == f"{ref} of file://{upstream.folder}"
    git(upstream.folder, "checkout", "-q", upstream.first)
    assert shot.hash == take(upstream.folder, home).hash  # the same as the folder at that commit


def test_a_branch_is_what_it_is_now(home: Home, upstream: SimpleNamespace, tmp_path: Path) -> None:
    before = freeze(home, spec_of(upstream, "main"), tmp_path)
    third = commit(upstream.folder, {"train.py": "three"})
    after = freeze(home, spec_of(upstream, "main"), tmp_path)
    assert before is not None
    assert after is not None
    assert (before.commit, after.commit) == (upstream.second, third)
    git(upstream.folder, "reset", "-q", "--hard", upstream.first)  # a forced push goes back as well
    again = freeze(home, spec_of(upstream, "main"), tmp_path)
    assert again is not None
    assert again.commit == upstream.first
    assert not list(home.repositories.glob(".checkout.*"))


def test_a_commit_that_is_here_needs_no_network(home: Home, upstream: SimpleNamespace, tmp_path: Path) -> None:
    first = freeze(home, spec_of(upstream, upstream.first), tmp_path)
    shutil.rmtree(upstream.folder)
    again = freeze(home, spec_of(upstream, upstream.first), tmp_path)
    assert first is not None
    assert again is not None
    assert again.hash == first.hash
    with pytest.raises(GitError, match="git fetch"):
        freeze(home, spec_of(upstream, "main"), tmp_path)


def test_what_is_not_there_is_said(home: Home, upstream: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(GitError, match="has no branch, tag or commit nowhere") as caught:
        freeze(home, spec_of(upstream, "nowhere"), tmp_path)
    assert "ls-remote" in caught.value.next_step
    git(upstream.folder, "branch", "v1")
    with pytest.raises(GitError, match="a branch and a tag"):
        freeze(home, spec_of(upstream, "v1"), tmp_path)
    with pytest.raises(GitError, match="carries a password"):
        source.address("https://me:token@host/repo", tmp_path)
    with pytest.raises(GitError, match="no branch, tag"):
        freeze(home, spec_of(upstream, "--upload-pack=x"), tmp_path)


@pytest.mark.parametrize(
    ("git", "wanted"),
    [
        ("git@github.com:org/repo", "git@github.com:org/repo"),
        ("https://host/r.git", "https://host/r.git"),
        ("here", "BASE/here"),
        ("./here", "BASE/here"),
    ],
)
def test_addresses_and_folders_are_told_apart(tmp_path: Path, git: str, wanted: str) -> None:
    (tmp_path / "here").mkdir()
    assert source.address(git, tmp_path) == wanted.replace("BASE", str(tmp_path))
    with pytest.raises(GitError, match=r"no repository \./nowhere"):
        source.address("./nowhere", tmp_path)


def test_uncommitted_files_are_refused_by_name_unless_allowed(
    home: Home, upstream: SimpleNamespace, tmp_path: Path
) -> None:
    (upstream.folder / "train.py").write_text("not committed")
    (upstream.folder / "new file.py").write_text("new")
    text = f"name: a\ngpu: none\nrun: python train.py\nworkdir: {{git: '{upstream.folder}', ref: main}}\n"
    with pytest.raises(GitError, match=r"2 changed files are not committed.*: train.py, new file.py"):
        freeze(home, load_spec(text, "job.yaml"), tmp_path)
    shot = freeze(home, load_spec(text + "allow: [dirty]\n", "job.yaml"), tmp_path)
    assert shot is not None
    assert shot.commit == upstream.second
    assert [entry.size for entry in shot.files if entry.path == "train.py"] == [3]  # "two"
    assert [each.path for each in shot.left_out] == ["train.py (not committed)", "new file.py (not committed)"]


def test_the_clone_that_the_spec_lies_in_is_looked_at_as_well(
    home: Home, upstream: SimpleNamespace, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", f"file://{upstream.folder}", str(clone))
    assert freeze(home, spec_of(upstream, "main"), clone) is not None
    (clone / "train.py").write_text("edited here, not pushed")
    with pytest.raises(GitError, match=r"1 changed files are not committed.*: train\.py"):
        freeze(home, spec_of(upstream, "main"), clone)


def test_submodules_and_lfs_pointers_are_said(home: Home, upstream: SimpleNamespace, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    commit(inner, {"a": "a"})
    git(upstream.folder, "submodule", "--quiet", "add", f"file://{inner}", "libs/inner")
    commit(upstream.folder, {"weights.pt": POINTER})
    shot = freeze(home, spec_of(upstream, "main"), tmp_path)
    assert shot is not None
    assert [(each.path, each.reason.partition(",")[0]) for each in shot.left_out] == [("libs/inner/", "a submodule")]
    assert shot.pointers == ("weights.pt",)


def test_a_run_that_names_a_file_that_the_commit_has_not_is_refused(
    home: Home, upstream: SimpleNamespace, tmp_path: Path
) -> None:
    text = f"name: a\ngpu: none\nrun: ./missing.sh\nworkdir: {{git: 'file://{upstream.folder}', ref: main}}\n"
    with pytest.raises(CliError, match=r"run: there is no file ./missing.sh in workdir \(at "):
        freeze(home, load_spec(text, "job.yaml"), tmp_path)
