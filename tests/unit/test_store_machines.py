"""Results whose store refuses come to this computer instead; a note of what is to be taken over is used once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import store_machines, store_results, store_side
from orchestrator.clock import FakeClock
from orchestrator.execute import Context, WorkFailed
from orchestrator.home import Home
from orchestrator.mirror import listing, parts_of
from orchestrator.objects.base import ObjectStore, Stored
from orchestrator.objects.checkpoints import StoreMirror
from orchestrator.objects.errors import StoreMissing, StoreUnreachable
from orchestrator.objects.layout import Layout
from orchestrator.objects.places import Place
from orchestrator.objects.settings import Location, StoreSettings
from orchestrator.resume import INHERITED
from orchestrator.ssh_errors import Unreachable
from orchestrator.store_machines import StoreMachines
from orchestrator.store_results import RemoteItem, Uploaded

ITEMS = (RemoteItem("*", "lab:out", "always"),)


@pytest.mark.parametrize("error", [StoreUnreachable("it does not answer", "s3://b"), WorkFailed("not uploaded: 500")])
def test_results_have_a_second_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(*_: Any) -> Uploaded:
        raise error

    monkeypatch.setattr(store_machines, "upload", fails)
    machines = StoreMachines(Home(tmp_path / "s", tmp_path / "c"), FakeClock(), lambda message: None, 1)
    rental, run = SimpleNamespace(id="r1"), SimpleNamespace(key="t0.1", task="t0", n=1)
    context: Any = Context(None, None, None, rental, run)  # type: ignore[arg-type]
    sent, here = machines._upload_results(context, None, ITEMS, "/out", True)  # type: ignore[arg-type]
    assert here == ITEMS
    assert sent.folders == []
    assert "they come to this computer" in sent.words[0]
    assert str(error) in sent.words[0]


def test_what_a_store_holds_is_removed_from_a_machine_whose_disk_runs_short(tmp_path: Path) -> None:
    bucket = Bucket(StoreSettings("lab", "s3://lab", "http://store", "us-east-1"))
    for step in (10, 20, 30):
        bucket.add("new", step)
    mine = list(bucket.mirror("new").listing().checkpoints)
    complete = [
        {"name": f"step_{step}.pt", "step": step, "bytes": size, "mtime": 1.5}
        for step, size in ((5, 9), (10, 10), (20, 10), (30, 10), (40, 10))
    ]
    machines = StoreMachines(Home(tmp_path / "s", tmp_path / "c"), FakeClock(), lambda message: None, 1)
    asked: list[Any] = []

    def ask(rental: Any, command: str, **payload: Any) -> dict[str, Any]:
        asked.append((command, [each["name"] for each in payload["names"]]))
        return {"removed": [each["name"] for each in payload["names"]]}

    machines._ask = ask  # type: ignore[method-assign, assignment]
    context: Any = Context(None, None, None, SimpleNamespace(id="r1"), SimpleNamespace(task="t0", n=1, key="t0.1"))  # type: ignore[arg-type]
    roomy = {"complete": complete, "disk": {"free": 1000}}
    assert machines._thin_durable(context, roomy, mine, frozenset(), 2) == []
    short = {"complete": complete, "disk": {"free": 15}}
    assert machines._thin_durable(context, short, mine[2:], frozenset(), 2) == []  # only one of two is durable
    assert asked == []
    best = frozenset({mine[0].manifest.hash})
    (words,) = machines._thin_durable(context, short, mine, best, 2)
    assert asked == [("thin", ["step_5.pt"])]  # 20 and 30 are in the store; 10 is the best one, 40 the newest
    assert "newer ones are durable" in words


class Parts:
    """Counts the uploads in parts that are open."""

    def __init__(self) -> None:
        self.open: set[str] = set()

    def multipart_start(self, key: str) -> str:
        self.open.add(f"{key}-1")
        return f"{key}-1"

    def multipart_presign(self, key: str, upload: str, number: int, seconds: int) -> str:
        return f"https://b/{key}?{upload}&{number}"

    def multipart_abort(self, key: str, upload: str) -> None:
        self.open.discard(upload)


@pytest.mark.parametrize("error", [WorkFailed("it has not moved"), Unreachable("it broke", reason="closed")])
def test_parts_of_an_upload_that_broke_off_are_not_left_to_be_paid_for(error: Exception) -> None:
    parts = Parts()
    place: Any = SimpleNamespace(store=parts)
    file = store_results._File("/out", "big.bin", place, "out/big.bin", store_results.WHOLE * 2, "a" * 64)

    def transfer(*_: Any) -> Any:
        assert parts.open == {"out/big.bin-1"}
        raise error

    side: Any = SimpleNamespace(transfer=transfer)
    with pytest.raises(type(error)):
        store_results._move(side, lambda *_, **__: {}, NEW, "results-0", "/out", [file], lambda _: None)
    assert parts.open == set()


class Still:
    """An agent whose transfer goes on for ever and moves nothing."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, command: str, **payload: Any) -> dict[str, Any]:
        self.asked.append(payload)
        return {"state": "running", "bytes": 7, "total": 100}


def test_a_transfer_that_moves_no_more_is_ended_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left alone it would hold its URLs, and the next try would find it in its way."""
    monkeypatch.setattr(store_side, "STALL_S", 0.0)
    monkeypatch.setattr(store_side, "POLL_S", 0.0)
    agent, side = Still(), store_side.StoreSide(None, FakeClock().utc)  # type: ignore[arg-type]
    with pytest.raises(WorkFailed, match="has not moved"):
        side.transfer(agent, RUN, "results-0", {"kind": "up", "items": []}, False, lambda _: None)
    assert agent.asked[-1]["stop"] is True
    assert [each.get("stop") for each in agent.asked[:-1]].count(True) == 0


@pytest.mark.parametrize(
    ("error", "again"),
    [
        ("", False),
        ("step_1: no answer trouble: reset", False),
        ("step_1: 503 SlowDown: wait", False),
        ("step_1: 403 AccessDenied: the session was revoked", True),
        ("step_1: 400 ExpiredToken: it has ended", True),
        ("step_1: 403 InvalidAccessKeyId: the key was deleted", True),
        ("step_1: no answer expired: no presigned slot is left", True),
    ],
)
@pytest.mark.parametrize("role", ["", "arn:x"])
def test_access_that_the_store_no_longer_takes_is_given_anew(error: str, again: bool, role: str) -> None:
    side = store_side.StoreSide(None, FakeClock().utc)  # type: ignore[arg-type]
    settings = StoreSettings("lab", "s3://b", role_arn=role)
    mirror: Any = SimpleNamespace(layout=Layout(Location(settings, ""), "new", "t0"))
    context: Any = SimpleNamespace(assignment=RUN)
    assert side._needs_access({"until": FakeClock().utc() + 3600, "error": error}, context, mirror) is again


# --- an earlier job's checkpoints ------------------------------------------------------------------------------------


class Bucket:
    """A bucket in memory, as far as listings and small objects go."""

    def __init__(self, settings: StoreSettings) -> None:
        self.settings, self.kept = settings, dict[str, bytes]()

    @property
    def url(self) -> str:
        return self.settings.url

    def list(self, prefix: str) -> tuple[Stored, ...]:
        return tuple(self._seen(key) for key in sorted(self.kept) if key.startswith(prefix))

    def _seen(self, key: str) -> Stored:
        md5 = hashlib.md5(self.kept[key], usedforsecurity=False).hexdigest()
        return Stored(key, len(self.kept[key]), md5, etag=md5)

    def get(self, key: str, limit: int = 0) -> bytes:
        if key not in self.kept:
            raise StoreMissing("it is not there", key)
        return self.kept[key]

    def get_to(self, key: str, path: Path) -> str:
        path.write_bytes(self.kept[key])
        return hashlib.sha256(self.kept[key]).hexdigest()

    def put(self, key: str, data: bytes, *, once: bool = False) -> Stored:
        self.kept[key] = data
        return self._seen(key)

    def add(self, job: str, step: int) -> str:
        """A checkpoint of run 1 of `job`; its hash."""
        root, data = f"{job}/t0.1", f"weights {step}".encode()
        digest, md5 = hashlib.sha256(data).hexdigest(), hashlib.md5(data, usedforsecurity=False).hexdigest()
        name, size = f"step_{step}.pt", len(data)
        document = {
            "format": 1, "job": job, "task": "t0", "n": 1, "name": name, "step": step, "parent": None,
            "mark": [name, size, 1.5], "objects": [{"key": f"o/{digest}", "size": size, "sha256": digest, "md5": md5}],
            "files": [{"path": name, "size": size, "sha256": digest, "at": [[0, 0, size]]}],
        }  # fmt: skip
        self.put(f"{root}/o/{digest}", data)
        self.put(f"{root}/m/{step:012d}", json.dumps(document).encode())
        (found,) = [each for each in self.mirror(job).listing().manifests if each.step == step]
        return found.hash

    def mirror(self, job: str) -> StoreMirror:
        store: ObjectStore = self  # type: ignore[assignment]
        return StoreMirror(store, Layout(Location(self.settings, ""), job, "t0"))


class Taker(StoreMachines):
    """Machines whose places are one bucket, with a note of two checkpoints of the job `old`."""

    def __init__(self, folder: Path, earlier: Bucket) -> None:
        super().__init__(Home(folder / "s", folder / "c"), FakeClock(), lambda message: None, 1)
        store: ObjectStore = earlier  # type: ignore[assignment]
        place = Place(store, Location(earlier.settings, ""))
        self._stores.places.of = lambda _: place  # type: ignore[method-assign]
        hashes = [earlier.add("old", step) for step in (10, 20)]
        self.note = self._taken_over("new", "t0")
        self.note.parent.mkdir(parents=True)
        self.note.write_text(json.dumps({"job": "old", "place": "old:", "hashes": hashes}))

    @property
    def home_steps(self) -> list[tuple[int, int]]:
        return [(each.n, each.step) for each in listing(self._home, "new", "t0").manifests]


NEW: Any = SimpleNamespace(id="new")
RUN: Any = SimpleNamespace(task="t0", n=1, key="t0.1")
OLD = StoreSettings("old", "s3://b1")


def test_in_the_same_bucket_checkpoints_are_taken_over_without_a_copy(tmp_path: Path) -> None:
    bucket = Bucket(OLD)
    taker = Taker(tmp_path, bucket)
    assert taker._take_over(NEW, "t0", bucket.mirror("new")) == []
    assert [(each.n, each.step) for each in bucket.mirror("new").listing().manifests] == [
        (INHERITED, 10),
        (INHERITED, 20),
    ]
    assert (taker.home_steps, taker.note.exists()) == ([], False)


@pytest.mark.parametrize(
    "mirror",
    [None, StoreSettings("lab", "s3://b2"), StoreSettings("lab", "s3://b1", endpoint="https://s3.example.org")],
)
def test_from_another_bucket_the_newest_comes_to_this_computer(tmp_path: Path, mirror: StoreSettings | None) -> None:
    taker = Taker(tmp_path, Bucket(OLD))
    new = Bucket(mirror) if mirror is not None else None
    assert taker._take_over(NEW, "t0", new.mirror("new") if new is not None else None) == []
    assert taker.home_steps == [(INHERITED, 20)]
    (found,) = listing(taker._home, "new", "t0").manifests
    assert (parts_of(taker._home.mirror("new", "t0"), found) / "step_20.pt").read_bytes() == b"weights 20"
    assert new is None or new.kept == {}
    assert not taker.note.exists()
    assert taker._take_over(NEW, "t0", None) == []


def test_one_too_large_for_this_computer_is_never_left_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_machines, "HOME_MAX", 5)
    taker = Taker(tmp_path, Bucket(OLD))
    (words,) = taker._take_over(NEW, "t0", None)
    assert words.startswith("step_20.pt (0.0 GB) stays in s3://b1, which is not this job's mirror")
    assert taker.home_steps == []
