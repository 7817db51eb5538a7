"""Checkpoints as objects: how files are cut, what a manifest must be, where runs lie in a store."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.pieces import CHUNK_MAX, CHUNK_MIN, checkpoint_files, chunk_size, cut
from orchestrator.agent.wire import FilesChanged, Wire, WireError, read_spans
from orchestrator.objects.layout import Layout, filled
from orchestrator.objects.manifests import NotAManifest, inherited, parse
from orchestrator.objects.settings import Location, StoreSettings

MB = 1 << 20
STORE = StoreSettings("lab", "s3://b/team")
ROOT = "team/job.1/t0.3"


def document(**change: Any) -> dict[str, Any]:
    """A good manifest: two files in one packed object, one of two chunks, one empty, one link."""
    sums = [{"sha256": f"{n:x}" * 64, "md5": f"{n:x}" * 32} for n in range(3)]
    objects = [
        {"key": f"o/{each['sha256']}", "size": size, **each} for each, size in zip(sums, (30, 8, 5), strict=True)
    ]
    files = [
        {"path": "step_9/a", "size": 10, "sha256": "a" * 64, "at": [[0, 0, 10]]},
        {"path": "step_9/b", "size": 20, "sha256": "b" * 64, "at": [[0, 10, 20]]},
        {"path": "step_9/c", "size": 13, "sha256": "c" * 64, "at": [[1, 0, 8], [2, 0, 5]]},
        {"path": "step_9/empty", "size": 0, "sha256": "d" * 64, "at": []},
        {"path": "step_9/latest", "link": "a"},
    ]
    whole = {
        "format": 1, "job": "job.1", "task": "t0", "n": 3, "name": "step_9", "step": 9, "bytes": 43, "parent": None,
        "mark": ["step_9", 43, 1.5], "files": files, "objects": objects,
    }  # fmt: skip
    return {**whole, **change}


def read(shown: dict[str, Any], n: int = 3) -> Any:
    return parse(json.dumps(shown).encode(), "job.1", "t0", n, f"{ROOT}/m/x", ROOT)


def test_a_manifest_says_where_every_byte_lies() -> None:
    found = read(document())
    assert (found.manifest.step, found.manifest.bytes, found.manifest.name) == (9, 43, "step_9")
    assert [ref.key for ref in found.objects] == [f"{ROOT}/o/{n * 64}" for n in "012"]
    assert found.by_object() == [[("step_9/a", 0, 10), ("step_9/b", 0, 20)], [("step_9/c", 0, 8)], [("step_9/c", 8, 5)]]
    assert found.manifest.files[-1].link == "a"
    assert (found.best, read(document(best="step_4")).best) == ("", "step_4")


def changed(which: int, **change: Any) -> dict[str, Any]:
    files = document()["files"]
    return document(files=[{**row, **change} if number == which else row for number, row in enumerate(files)])


@pytest.mark.parametrize(
    "shown",
    [
        document(format=2),
        document(task="t1"),
        document(step=-1),
        document(step="9"),
        document(parent="short"),
        document(root="other"),
        document(objects=[]),
        changed(0, path="step_9/../x"),
        changed(0, path="/step_9/a"),
        changed(0, path="step_8/a"),
        changed(0, path="step_9/b"),
        changed(0, path="step_9/latest/in"),
        changed(0, sha256="short"),
        changed(0, size=11),
        changed(0, at=[[0, 0, 10], [7, 0, 1]]),
        changed(1, at=[[0, 5, 20]]),
        changed(1, at=[[0, 11, 20]]),
        changed(4, link="../../.ssh/id"),
        changed(4, link="/etc/passwd"),
        {**document(), "name": "a/b"},
        [],
    ],
)
def test_what_is_no_manifest_of_this_run_is_refused(shown: Any) -> None:
    with pytest.raises(NotAManifest):
        read(shown)


@pytest.mark.parametrize("key", ["../t0.2/o/" + "0" * 64, "m/x", "s/12", "o/" + "g" * 64, "/o/" + "0" * 64])
def test_objects_lie_below_the_runs_own_prefix(key: str) -> None:
    objects = document()["objects"]
    with pytest.raises(NotAManifest):
        read(document(objects=[{**objects[0], "key": key}, *objects[1:]]))


def test_a_later_job_takes_a_checkpoint_over_without_copying_it() -> None:
    found = read(document())
    taken = inherited(found, ROOT, "job.2")
    again = parse(json.dumps(taken).encode(), "job.2", "t0", 0, "k", "team/job.2/t0.0")
    assert again.objects == found.objects
    assert again.manifest.files == found.manifest.files
    assert (again.manifest.job, again.manifest.n) == ("job.2", 0)
    with pytest.raises(NotAManifest):  # only run 0, which the controller writes, may point elsewhere
        parse(json.dumps({**taken, "n": 3, "job": "job.1"}).encode(), "job.1", "t0", 3, "k", ROOT)


@pytest.mark.parametrize("mirror", ["team", "", "team/{attempt}/x", "a{attempt}"])
def test_runs_have_prefixes_of_their_own(mirror: str) -> None:
    layout = Layout(Location(STORE, mirror), "job.1", "t0")
    keys = {n: f"{layout.run(n)}/m/x" for n in (1, 2, 12)}
    assert len({key.rpartition("/m/")[0] for key in keys.values()}) == 3
    for n, key in keys.items():
        assert key.startswith(layout.listed)
        assert layout.place(key) == (n, "m/x")
    assert layout.place(f"{mirror}/job.2/t0.1/m/x".lstrip("/")) is None
    assert layout.place(f"{mirror}/job.1/t0.1".lstrip("/")) is None
    assert layout.place(f"elsewhere/{layout.run(1)}/m/x") is None


def test_names_are_filled_into_places() -> None:
    assert filled("lab:{job}/{leg}/{attempt}", "lora", "t0") == "lab:lora/t0/{attempt}"
    assert filled("lab:{job}/{leg}/{attempt}", "lora", "t0", "2") == "lab:lora/t0/2"


def test_large_files_are_cut_alike_and_small_ones_packed(tmp_path: Path) -> None:
    top = tmp_path / "step_1"
    (top / "sub").mkdir(parents=True)
    big = os.urandom(20 * MB + 7)
    (top / "big").write_bytes(big)
    (top / "empty").touch()
    (top / "link").symlink_to("big")
    for number in range(5):
        (top / "sub" / str(number)).write_bytes(bytes([number]) * 1000)
    files = checkpoint_files(str(top))
    pieces = list(cut(str(tmp_path), files, 8 * MB))
    assert sorted(piece.size for piece in pieces) == [5000, 4 * MB + 7, 8 * MB, 8 * MB]
    for piece in pieces:
        data = b"".join(map(bytes, read_spans(piece.spans)))
        assert hashlib.sha256(data).hexdigest() == piece.sha256
    sums = {entry["path"]: entry.get("sha256") for entry in files}
    assert sums["step_1/big"] == hashlib.sha256(big).hexdigest()
    assert sums["step_1/link"] is None
    assert sums["step_1/empty"] == hashlib.sha256(b"").hexdigest()
    (top / "big").write_bytes(big[:-1])
    with pytest.raises(FilesChanged):
        list(cut(str(tmp_path), files, 8 * MB))


@pytest.mark.parametrize(
    ("total", "objects", "wanted"),
    [(1, 4000, CHUNK_MIN), (2 << 30, 4000, 8 * MB), (8 << 30, 4000, 32 * MB), (200 << 30, 4000, CHUNK_MAX),
     (2 << 40, 4000, 1 << 30),
     (2 << 30, 16, 128 * MB)],
)  # fmt: skip
def test_chunks_grow_with_the_checkpoint(total: int, objects: int, wanted: int) -> None:
    assert chunk_size(total, objects) == wanted


def test_patience_is_for_trouble_and_the_servers_clock_is_learnt_once() -> None:
    pauses: list[float] = []
    wire = Wire(tries=4, pause=pauses.append)
    answers = [WireError("trouble", 500, "", ""), WireError("trouble", 503, "SlowDown", "", 7.0)]

    def attempt() -> str:
        if answers:
            raise answers.pop(0)
        return "there"

    assert wire.call(attempt) == "there"
    assert 0.1 < pauses[0] < 0.5
    assert pauses[1] == 7.0  # what the store asked for
    answers[:] = [WireError("refused", 403, "AccessDenied", "")]
    with pytest.raises(WireError):
        wire.call(attempt)
    assert len(pauses) == 2
    answers[:] = [WireError("refused", 403, "RequestTimeTooSkewed", "")]
    assert wire.call(attempt) == "there"
    answers[:] = [WireError("refused", 403, "RequestTimeTooSkewed", "")] * 2
    with pytest.raises(WireError):
        wire.call(attempt)
    wire.learn_clock("Thu, 01 Jan 2099 00:00:00 GMT")
    assert wire.skew_s > 10**9
    wire.learn_clock("nonsense")
    assert wire.skew_s > 10**9
