"""What is told of copies: those that last, twice a second, and that they are over, also after a failure."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import actions as act
from orchestrator import artifacts, checkpoints, sync
from orchestrator.clock import FakeClock
from orchestrator.datasets import manifest_of, summaries
from orchestrator.execute import WorkFailed
from orchestrator.home import Home
from orchestrator.machine import Machines
from orchestrator.messages import Message, TransferSeen
from orchestrator.model import AgentCheckpoint
from orchestrator.ssh_errors import Unreachable
from orchestrator.sync import Progress, how_far
from orchestrator.transfers import Teller


class Told:
    """Collects what is posted, under a clock of its own."""

    def __init__(self) -> None:
        self.seen: list[TransferSeen] = []
        self.now = 100.0
        self.teller = Teller(self.seen.append, "gj-1", "t0.1", lambda: self.now)


def test_a_copy_is_told_twice_a_second_from_its_first_word_on() -> None:
    told = Told()
    with told.teller as teller:
        tell = teller.of("code")
        for tenth in range(13):
            told.now = 100.0 + tenth / 8
            tell(Progress(tenth, 100, 8.0))
    assert [seen.bytes for seen in told.seen] == [4, 8, 12, 0]
    assert told.seen[0] == TransferSeen("gj-1", "t0.1", "code", 4, 100, 8.0)
    assert told.seen[-1] == TransferSeen("gj-1", "t0.1", "")


def test_a_copy_that_is_over_at_once_is_not_told() -> None:
    told = Told()
    with told.teller as teller:
        tell = teller.of("results")
        tell(Progress(1, 2, 1.0))
        told.now += 0.4
        tell(Progress(2, 2, 1.0))
    assert told.seen == []


def test_a_failure_takes_back_what_was_told() -> None:
    told = Told()
    with contextlib.suppress(Unreachable), told.teller as teller:
        tell = teller.of("data set", total=50)
        tell(Progress(0, None, 0.0))
        told.now += 1.0
        tell(Progress(9, 45, 9.0))
        raise Unreachable("gone", reason="reset")
    assert [(seen.what, seen.total) for seen in told.seen] == [("data set", 50), ("", None)]


def test_a_name_that_a_machine_gave_is_cut_and_harmless() -> None:
    told = Told()
    tell = told.teller.of("checkpoint \x1b[2J\n" + "x" * 500)
    tell(Progress(0, None, 0.0))
    told.now += 1.0
    tell(Progress(1, None, 1.0))
    assert told.seen[0].what == "checkpoint ?[2J?" + "x" * 44


def test_progress_lines_of_rsync() -> None:
    assert how_far(b"") is None
    assert how_far(b"\r          0   0%    0.00kB/s    0:00:00  ") == (0, None)
    lines = b"\r    32768  25%   31.25MB/s    0:00:00  \r    65536  50%   20.83MB/s    0:00:00 (xfr#1, to-chk=1/3)"
    assert how_far(lines) == (65536, 131072)
    listing = b"\r    65536  99%   20.83MB/s    0:00:00 (xfr#1, ir-chk=1000/2003)"
    assert how_far(listing) == (65536, None)


def machines_that_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Machines, list[Message]]:
    """A second passes between any two looks at the clock."""
    posted: list[Message] = []
    clock = iter(range(1000))
    monkeypatch.setattr(Teller.__init__, "__defaults__", (lambda: float(next(clock)),))
    return Machines(Home(state=tmp_path, config=tmp_path), FakeClock(), posted.append, 1), posted


def told_by(posted: list[Message]) -> list[tuple[str, int, int | None]]:
    return [(seen.what, seen.bytes, seen.total) for seen in posted if isinstance(seen, TransferSeen)]


def copy(*_: Any, progress: Any, **__: Any) -> Any:
    progress(Progress(0, None, 0.0))
    progress(Progress(3, 4, 2.0))
    return SimpleNamespace(bytes=3)


def test_the_machines_tell_what_they_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code, data and the resume point, each by its name, and the end of it all."""
    machines, posted = machines_that_tell(tmp_path, monkeypatch)
    monkeypatch.setattr(sync, "push", copy)
    monkeypatch.setattr(checkpoints, "push_resume", copy)
    manifest = SimpleNamespace(hash="h", name="step_3.bin", bytes=7)
    monkeypatch.setattr("orchestrator.machine.listing", lambda *_: SimpleNamespace(manifests=[manifest]))
    answers = {"room": {"systems": []}, "landed": {"done": True, "bytes": 5, "faults": {}, "named": []}}
    faulty = iter([{"done": True, "faults": {"missing": 1}, "named": []}])  # it has not landed before
    line = SimpleNamespace(
        target=None,
        agent=lambda command, *_: next(faulty, answers[command]) if command == "landed" else answers[command],
    )
    monkeypatch.setattr(machines, "_connection", lambda _: line)
    folders = {"base": "/b", "code": "/c", "data": "/d", "ckpt_root": "/k", "resume_root": "/r"}
    monkeypatch.setattr(machines, "_first_look", lambda _: (folders, {}))
    (tmp_path / "set").write_bytes(b"12345")
    made = manifest_of(tmp_path / "set", machines._home)
    code = machines._home.job("j") / "code"
    code.mkdir(parents=True)
    (code / ".complete").touch()
    context: Any = SimpleNamespace(
        the_rental=lambda: SimpleNamespace(id="gj-1"),
        the_run=lambda: SimpleNamespace(key="t0.1", task="t0", resume_hash="h", resume_name="step_3.bin"),
        job=SimpleNamespace(id="j", snapshot="s", base_dir=str(tmp_path), data_manifests=summaries({"set": made})),
        spec=SimpleNamespace(data=[SimpleNamespace(source="set", path="set")], model=None, checkpoint=None),
    )
    machines.prepare(context)
    names = [
        ("code", 3, 4),
        ("list of data set", 3, 4),
        ("data set", 3, 5),
        ("checkpoint step_3.bin", 3, 7),
    ]
    assert told_by(posted) == [*names, ("", 0, None)]


def test_the_machines_tell_what_they_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint by its name, and results; the end is told also when the copy failed."""
    machines, posted = machines_that_tell(tmp_path, monkeypatch)
    seen = AgentCheckpoint("step_3.bin", 3, 9, True, 1.0)
    there = SimpleNamespace(checkpoints=[seen])
    line = SimpleNamespace(target=None, agent=lambda *_: {})
    monkeypatch.setattr(machines, "_connection", lambda _: line)
    monkeypatch.setattr(machines, "_ask", lambda *_, **__: {"ckpt_root": "/k", "out_root": "/o"})
    monkeypatch.setattr("orchestrator.sightings.parse_status", lambda _: SimpleNamespace(runs={"t0.1": there}))
    monkeypatch.setattr("orchestrator.machine.plan_of", lambda *_: None)

    def breaks(*_: Any, progress: Any, **__: Any) -> None:
        copy(progress=progress)
        raise Unreachable("gone", reason="reset")

    monkeypatch.setattr(checkpoints, "mirror_one", breaks)
    monkeypatch.setattr(artifacts, "collect", copy)
    run = SimpleNamespace(key="t0.1", task="t0", n=1, resume_hash="", resume_step=None, environment={"torch": None})
    rental = SimpleNamespace(id="gj-1", nonce="n")
    context: Any = SimpleNamespace(
        rental=rental, assignment=run, the_rental=lambda: rental, the_run=lambda: run, job=SimpleNamespace(id="j"),
        spec=SimpleNamespace(checkpoint=None, artifacts=None), mirrored=frozenset(), task=None,
    )  # fmt: skip
    with pytest.raises(WorkFailed, match="gone"):
        machines.mirror(context)
    assert told_by(posted) == [("checkpoint step_3.bin", 3, 9), ("", 0, None)]
    posted.clear()
    machines.collect(context, act.CollectResults("gj-1", "t0", 1, final=False))
    assert told_by(posted) == [("results", 3, 4), ("", 0, None)]
