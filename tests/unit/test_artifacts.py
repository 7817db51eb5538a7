"""What is wanted of a machine's files, which of its names are refused, and how results are published."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import arrival, artifacts, publish
from orchestrator.artifacts import ArtifactPlan, Item, Piece, Results, split_absolute
from orchestrator.home import Home
from orchestrator.mirror import Manifest, StoredFile, parts_of
from orchestrator.publish import PUBLISHED, PUBLISHING, ResultsError
from orchestrator.ssh_errors import Unsafe
from orchestrator.sync import safe_link


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(state=tmp_path / "state", config=tmp_path / "config").make()


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "gpujob-results" / "digits"


def staged(home: Home, dest: Path, files: dict[str, str], job: str = "digits.1") -> Results:
    pieces = []
    for name, text in files.items():
        path = home.results(job, "t0", 1) / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        pieces.append(Piece(f"out/{name}", dest, name, len(text), digest))
    return Results(tuple(pieces), True)


def published(home: Home, dest: Path, results: Results, job: str = "digits.1", **more: Any) -> publish.Published:
    plan = more.pop("plan", ArtifactPlan("/out", dest))
    return publish.publish(
        home, job=job, task="t0", n=1, plan=plan, results=results, success=more.pop("success", True), **more
    )


def tree(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != PUBLISHED
    }


def test_without_items_all_of_out_is_wanted_after_every_end(dest: Path) -> None:
    for success in (True, False, None):
        assert ArtifactPlan("/m/out", dest).wanted(success) == (Item("*", dest),)


def test_items_are_wanted_only_after_their_end(dest: Path) -> None:
    items = (Item("*.png", dest, "success"), Item("logs", dest, "failure"), Item("/root/x", dest))
    plan = ArtifactPlan("/m/out", dest, items)
    assert plan.wanted(True) == (items[0], items[2])
    assert plan.wanted(False) == items[1:]
    assert plan.wanted(None) == items


@pytest.mark.parametrize(
    ("pattern", "path", "wanted"),
    [
        ("*", "a/b.txt", True),
        (".", "a/b.txt", True),
        ("*.png", "plots/a.png", True),
        ("plots", "plots/a.png", True),
        ("plots/", "plots/deep/a.png", True),
        ("plots/*.png", "other/plots/a.png", False),
        ("./final.pt", "final.pt", True),
        ("!odd", "!odd", True),
        ("#odd", "#odd", True),
        ("*.png", "a.txt", False),
    ],
)
def test_patterns(pattern: str, path: str, wanted: bool) -> None:
    assert artifacts._matcher(pattern)(path) is wanted


@pytest.mark.parametrize(
    ("path", "root", "pattern"),
    [
        ("/root/logs/*.txt", "/root/logs", "/*.txt"),
        ("/root/logs", "/root", "/logs"),
        ("/root/*/x", "/root", "/*/x"),
        ("/*", "/", "/*"),
        ("/x", "/", "/x"),
    ],
)
def test_absolute_paths_are_looked_for_in_their_folder(path: str, root: str, pattern: str) -> None:
    assert split_absolute(path) == (root, pattern)


@pytest.mark.parametrize(
    ("path", "link"),
    [
        ("a", "/etc"), ("a", ".."), ("d/a", ".."), ("a", "../x"), ("d/a", "../../x"), ("a", "b/../../x"),
        ("d/e/f/a", "x/../y"), ("a", ""), ("a", "x\0y"),
    ],
)  # fmt: skip
def test_links_that_may_lead_out_are_refused(path: str, link: str) -> None:
    with pytest.raises(Unsafe):
        safe_link(path, link)


def test_links_that_stay_are_kept() -> None:
    assert safe_link("a", "b/c") == "b/c"
    assert safe_link("d/a", "../b") == "../b"
    assert safe_link("d/e/a", "./../../b/c") == "./../../b/c"
    with pytest.raises(Unsafe):
        safe_link("ckpt-1/a", "../b", floor=1)


def test_hostile_names_are_refused_by_name_and_the_rest_comes() -> None:
    source = artifacts._Source(
        "out", "/m/out",
        [
            {"path": "fine", "size": 1},
            {"path": "../../.ssh/authorized_keys", "size": 1},
            {"path": "out", "link": "/home"},
            {"path": "inner", "link": "fine"},
            {"path": "inner/authorized_keys", "size": 1},
            {"path": "no-size", "size": "1"},
        ],
        lambda path: [(Path("/d"), path)],
    )  # fmt: skip
    assert sorted(source.wanted()) == ["fine", "inner"]
    assert len(source.refused) == 4


def test_results_are_published_with_a_manifest(home: Home, dest: Path) -> None:
    done = published(home, dest, staged(home, dest, {"curve.png": "png", "deep/a.txt": "a"}))
    assert (done.path, done.files, done.bytes, done.moved) == (dest, 2, 4, ())
    assert tree(dest) == {"curve.png": "png", "deep/a.txt": "a"}
    record = json.loads((dest / PUBLISHED).read_text())
    assert (record["job"], record["outcome"], record["verified"]) == ("digits.1", "done", True)
    assert record["files"][0] == {"path": "curve.png", "size": 3, "sha256": hashlib.sha256(b"png").hexdigest()}
    assert not (dest / PUBLISHING).exists()


def test_another_runs_results_are_moved_aside_and_never_mixed(home: Home, dest: Path) -> None:
    published(home, dest, staged(home, dest, {"a": "first"}))
    second = published(home, dest, staged(home, dest, {"b": "second"}, job="digits.2"), job="digits.2")
    third = published(home, dest, staged(home, dest, {"c": "third"}, job="digits.3"), job="digits.3")
    assert tree(dest) == {"c": "third"}
    assert second.moved == ((dest, dest.with_name("digits~digits.1")),)
    assert third.moved == ((dest, dest.with_name("digits~digits.2")),)
    assert tree(dest.with_name("digits~digits.1")) == {"a": "first"}


def test_what_the_user_put_there_is_moved_aside_too(home: Home, dest: Path) -> None:
    dest.mkdir(parents=True)
    (dest / "thesis.tex").write_text("mine")
    dest.with_name("digits~old").mkdir()
    done = published(home, dest, staged(home, dest, {"a": "first"}))
    assert done.moved == ((dest, dest.with_name("digits~old.2")),)
    assert tree(dest.with_name("digits~old.2")) == {"thesis.tex": "mine"}


def test_an_interrupted_publication_goes_on(home: Home, dest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = staged(home, dest, {"a": "one", "b": "two"})
    copy = publish._copy

    def dies(source: Path, path: Path) -> str:
        if path.name == "b":
            raise KeyboardInterrupt
        return copy(source, path)

    monkeypatch.setattr(publish, "_copy", dies)
    with pytest.raises(KeyboardInterrupt):
        published(home, dest, results)
    assert not (dest / PUBLISHED).exists()
    monkeypatch.setattr(publish, "_copy", copy)
    first = (dest / "a").stat().st_ino
    done = published(home, dest, results)
    assert done.moved == ()
    assert tree(dest) == {"a": "one", "b": "two"}
    assert (dest / "a").stat().st_ino == first
    assert published(home, dest, results).moved == ()  # and once more, as after a kill before the books knew


def test_a_full_or_forbidden_folder_is_named_and_the_staging_stays(home: Home, dest: Path) -> None:
    dest.parent.mkdir()
    dest.write_text("a file is in the way")
    with pytest.raises(ResultsError, match="results cannot be written to"):
        published(home, dest, staged(home, dest, {"a": "one"}))
    assert tree(home.results("digits.1", "t0", 1)) == {"out/a": "one"}


def test_nothing_is_written_through_a_link(home: Home, dest: Path, tmp_path: Path) -> None:
    results = staged(home, dest, {"sub/a": "one"})
    published(home, dest, results)
    (dest / "sub" / "a").unlink()
    (dest / "sub").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (dest / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResultsError, match="through a link"):
        published(home, dest, results)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_newest_checkpoint_comes_from_the_mirror(home: Home, dest: Path) -> None:
    digest = hashlib.sha256(b"weights").hexdigest()
    manifest = Manifest("digits.1", "t0", 2, "step_9.npz", 9, (StoredFile("step_9.npz", 7, digest),), 7, None, "f" * 64)
    part = parts_of(home.mirror("digits.1", "t0"), manifest) / "step_9.npz"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"weights")
    published(home, dest, staged(home, dest, {"a": "one"}), checkpoint=manifest)
    assert tree(dest) == {"a": "one", "checkpoint/step_9.npz": "weights"}
    other = dest.with_name("other")
    published(home, other, staged(home, other, {"checkpoint/mine": "m"}), checkpoint=manifest)
    assert tree(other)["checkpoint~/step_9.npz"] == "weights"
    assert tree(other)["checkpoint/mine"] == "m"


def test_links_and_modes_survive(home: Home, dest: Path) -> None:
    results = staged(home, dest, {"run.sh": "x"})
    staging = home.results("digits.1", "t0", 1) / "out"
    (staging / "run.sh").chmod(0o755)
    (staging / "latest").symlink_to("run.sh")
    results = Results((*results.pieces, Piece("out/latest", dest, "latest", 0, "", "run.sh")), True)
    published(home, dest, results)
    published(home, dest, results)
    assert os.readlink(dest / "latest") == "run.sh"
    assert (dest / "run.sh").stat().st_mode & 0o777 == 0o755


def test_an_end_without_files_still_says_so(home: Home, tmp_path: Path) -> None:
    plan = ArtifactPlan("/out", tmp_path / "d", (Item("*.png", tmp_path / "r" / "digits", "success"),))
    done = published(home, tmp_path / "d", Results((), True), plan=plan, success=False)
    assert done.files == 0
    assert not (tmp_path / "r").exists()
    done = published(home, tmp_path / "d", Results((), True), plan=plan, success=True)
    assert json.loads((tmp_path / "r" / "digits" / PUBLISHED).read_text())["files"] == []


def test_a_file_that_cannot_be_read_costs_none_of_the_others() -> None:
    files: list[dict[str, Any]] = [
        {"path": "fine", "size": 1},
        {"path": "root's", "size": 1, "error": "Permission denied"},
        {"path": ".", "error": "Permission denied"},
    ]
    source = artifacts._Source("out", "/m/out", files, lambda path: [(Path("/d"), path)])
    assert sorted(source.wanted()) == ["fine"]
    assert source.refused == [
        "root's cannot be read on the machine: Permission denied",
        "/m/out cannot be read on the machine: Permission denied",
    ]


# --- what comes first, what is one name, what is no folder ---


def test_what_matters_comes_first_and_bulk_last() -> None:
    sizes = {
        "logs/train.txt": 10, "train.log": 10, "events.out.tfevents.17.host": 10, "wandb/run/metrics.json": 10,
        "weights.bin": 900_000_000, "plot.png": 50_000, "sub/metrics.jsonl": 4_000_000, "samples.tar": 20_000_000,
        "metrics.json": 300, "a.txt": 5,
    }  # fmt: skip
    files = [("out", path, {"size": size}) for path, size in sizes.items()]
    files.append(("workdir", "summary.csv", {"size": 3}))
    assert list(arrival.by_value(files)) == [
        ("out", ["metrics.json", "sub/metrics.jsonl"]),
        ("workdir", ["summary.csv"]),
        ("out", ["a.txt", "plot.png"]),
        ("out", ["samples.tar"]),
        ("out", ["weights.bin"]),
        ("out", ["events.out.tfevents.17.host", "logs/train.txt", "train.log", "wandb/run/metrics.json"]),
    ]


@given(
    st.dictionaries(st.from_regex(r"[ab-]{1,3}(/[ab.-]{0,3}b)?", fullmatch=True), st.integers(0, 10**10), max_size=12)
)
def test_every_file_is_brought_once_the_small_of_a_kind_before_the_large(sizes: dict[str, int]) -> None:
    found = list(arrival.by_value(("out", path, {"size": size}) for path, size in sizes.items()))
    names = [name for _, batch in found for name in batch]
    assert sorted(names) == sorted(sizes)
    for _, batch in found:
        assert [sizes[name] for name in batch] == sorted(sizes[name] for name in batch)


def test_names_that_are_one_name_here_do_not_overwrite_each_other() -> None:
    files = [
        {"path": path, "size": 1} for path in ("Model.pt", "model.pt", "Sub/a", "sub/b", "caf\u00e9", "cafe\u0301")
    ]
    place = {"place": lambda path: [(Path("/d"), path)]}
    source = artifacts._Source("out", "/m/out", files, **place)
    assert sorted(source.wanted(folds=True)) == ["Model.pt", "Sub/a", "cafe\u0301"]
    assert len(source.refused) == 3
    assert sorted(source.refused)[0] == "Model.pt and model.pt are one name on this computer; only the first came"
    assert len(artifacts._Source("out", "/m/out", files, **place).wanted()) == 6


def test_a_file_system_is_asked_whether_it_folds_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not arrival.folds_case(tmp_path / "not" / "there")
    monkeypatch.setattr(os.path, "lexists", lambda path: True)
    assert arrival.folds_case(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"kind": "link", "leads_to": "/data/out"}, "a link to /data/out, which is not followed"),
        ({"kind": "file"}, "a file and no folder"),
    ],
)
def test_a_place_that_is_no_folder_is_said(answer: dict[str, Any], words: str, home: Home, dest: Path) -> None:
    class Machine:
        def agent(self, command: str, payload: dict[str, Any], timeout_s: float = 1.0) -> dict[str, Any]:
            return {"base": "/w", "files": []} if command == "changed" else {**answer, "files": [{"path": "t0.1"}]}

    def collected(plan: ArtifactPlan) -> Results:
        return artifacts.collect(
            Machine(), None, home, job="digits.1", task="t0", n=1, plan=plan, final=True, success=True  # type: ignore[arg-type]
        )  # fmt: skip

    found = collected(ArtifactPlan("/m/out/t0.1", dest))
    assert found.lost == f"$GPUJOB_OUT is {words}: nothing that should be in it came home"
    assert not found.verified
    found = collected(ArtifactPlan("/m/out/t0.1", dest, (Item("/data/logs/*.txt", dest),)))
    assert found.lost == f"/data/logs is {words}: nothing of /data/logs/*.txt came home"
