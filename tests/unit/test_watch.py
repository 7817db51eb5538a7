"""Watchers: what is stored of a stream, what a machine must prove, and that nothing ends their thread."""

from __future__ import annotations

import base64
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import ssh, watch
from orchestrator.clock import FakeClock
from orchestrator.home import Home
from orchestrator.log_lines import Metrics, metrics
from orchestrator.messages import EventSeen, Listed, Lost, PointSeen, ProgressSeen, Reached, StatusSeen
from orchestrator.model import Unknown
from orchestrator.ssh_errors import AgentRefused, KeyRejected, SshError, Unreachable
from orchestrator.watch import MachineWatch, RegionWatch

TARGET = ssh.Target("gj-abcdef-1", "127.0.0.1", 1, "u", (), Path("/nowhere"))


class Answer:
    def __init__(self, out: bytes) -> None:
        self.out = out


class Connection:
    """What `ssh.connect` gives, played: proves, takes the agent, then streams what it was given."""

    def __init__(self, lines: list[dict[str, Any]], nonce: str = "n0nce", then: Exception | None = None) -> None:
        self.lines, self.nonce, self.then = lines, nonce, then
        self.target, self.alive = TARGET, True
        self.pushed = False
        self.asked: dict[str, Any] = {}

    def run(self, command: str, timeout_s: float) -> Answer:
        assert command == "cat ~/.gpujob/nonce"
        return Answer(self.nonce.encode() + b"\n")

    def push_agent(self, timeout_s: float) -> None:
        self.pushed = True

    def follow(self, payload: dict[str, Any], line: Callable[[dict[str, Any]], None], *_: Any, **__: Any) -> None:
        self.asked = payload
        for each in self.lines:
            line(each)
        if self.then is not None:
            raise self.then

    def close(self) -> None:
        self.alive = False


def log_line(text: bytes, offset: int = 0, run: str = "t0.1", stage: str = "run") -> dict[str, Any]:
    return {"t": "log", "run": run, "stage": stage, "offset": offset, "data": base64.b64encode(text).decode()}


class Bench:
    """One watcher whose connections are handed in; `go` lets it make them all, one after the other."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.home = Home(state=folder / "s", config=folder / "c")
        self.clock = FakeClock()
        self.heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.planned: list[Connection | SshError | Exception] = []
        self.options = options
        monkeypatch.setattr(ssh, "connect", self._connect)
        monkeypatch.setattr(watch, "RETRY_FIRST_S", 0.0)
        monkeypatch.setattr(watch, "RETRY_MAX_S", 0.0)

    def _connect(self, target: ssh.Target, timeout_s: float) -> Connection:
        self.clock.advance(7.0)
        if not self.planned:
            self.watch.stop()
            raise Unreachable("over", reason="closed")
        found = self.planned.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def go(self, *planned: Connection | Exception) -> list[Any]:
        self.planned = list(planned)
        self.watch = MachineWatch(
            "gj-abcdef-1", "train-1-aaaa", "n0nce", self.home, self.clock, self.heard.put, **self.options
        )
        self.watch.admit(frozenset({"t0.1"}))
        self.watch.start()
        self.watch.address(TARGET)
        self.watch.join(20.0)
        assert not self.watch._thread.is_alive()
        found = []
        while not self.heard.empty():
            found.append(self.heard.get())
        return found

    def log(self, stage: str = "run") -> bytes:
        return self.home.log("train-1-aaaa", "t0", 1, stage).read_bytes()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_the_stream_becomes_messages_and_files(bench: Bench) -> None:
    line = Connection(
        [
            {"t": "hello", "status": {"runs": {}}},
            log_line(b"one\n"),
            {"t": "event", "next": 40, "event": {"t": "stage", "run": "t0.1", "at": 1.0}},
            {"t": "status", "status": {"supervisor": True}},
            log_line(b"ne\ntwo\n", offset=1),
        ]
    )
    heard = bench.go(line)
    assert [type(message) for message in heard] == [Reached, EventSeen, StatusSeen, Lost]
    assert bench.log() == b"one\ntwo\n"
    assert line.asked["logs"] == {}
    again = Connection([{"t": "hello", "status": {}}])
    bench.go(again)
    assert (again.asked["events"], again.asked["logs"]) == (40, {"t0.1/run": 8})


def test_a_machine_adds_nothing_to_the_log_of_another_machines_run(bench: Bench) -> None:
    """It would be in order by its offset: the stored log of an earlier run of the same job."""
    other = bench.home.log("train-1-aaaa", "t0", 7, "run")
    other.parent.mkdir(parents=True)
    other.write_bytes(b"as it was\n")
    bench.go(Connection([{"t": "hello", "status": {}}, log_line(b"and more\n", offset=10, run="t0.7")]))
    assert other.read_bytes() == b"as it was\n"


def test_a_log_that_was_told_before_its_run_was_admitted_is_asked_for_again(bench: Bench) -> None:
    """Were it the run's only line, no gap would follow, and the run could never be closed."""
    line = Connection([{"t": "hello", "status": {}}, log_line(b"only\n", run="t0.2")])
    bench.go(line)
    closed: list[bool] = []
    bench.watch.connection = type("Open", (), {"close": lambda self: closed.append(True)})()  # type: ignore[assignment]
    bench.watch.admit(frozenset({"t0.1"}))
    assert closed == []
    bench.watch.admit(frozenset({"t0.1", "t0.2"}))
    assert closed == [True]
    bench.watch.admit(frozenset({"t0.1", "t0.2"}))
    assert closed == [True]


def test_without_the_nonce_nothing_is_pushed_and_nothing_followed(bench: Bench) -> None:
    stranger = Connection([{"t": "hello", "status": {}}], nonce="another")
    heard = bench.go(stranger)
    assert (stranger.pushed, stranger.asked, stranger.alive) == (False, {}, False)
    assert [type(message) for message in heard] == [Lost]
    assert "does not know the rental's nonce" in heard[0].trouble


def test_silence_counts_attempts_with_their_pauses_and_never_a_sleep(bench: Bench) -> None:
    def slow() -> Exception:
        return Unreachable("refused", reason="refused")

    heard = bench.go(slow(), slow(), slow())
    assert [message.tried_s for message in heard] == [0.0, 7.0, 7.0]

    class Stopped(Connection):
        def run(self, command: str, timeout_s: float) -> Answer:
            bench.clock.advance(50_000.0)  # the process was stopped all night
            raise Unreachable("timeout", reason="timeout")

    heard = bench.go(slow(), Stopped([]))
    assert heard[-1].tried_s == watch.ATTEMPT_MAX_S


def test_a_connection_that_was_proven_starts_the_silence_anew(bench: Bench) -> None:
    good = Connection([{"t": "hello", "status": {}}], then=Unreachable("reset", reason="reset"))
    heard = bench.go(Unreachable("x", reason="timeout"), good, Unreachable("y", reason="timeout"))
    assert [(type(m).__name__, getattr(m, "tried_s", None)) for m in heard] == [
        ("Lost", 0.0), ("Reached", None), ("Lost", 0.0), ("Lost", 7.0),
    ]  # fmt: skip


def test_what_refuses_is_told_apart(bench: Bench) -> None:
    heard = bench.go(KeyRejected("no"), AgentRefused("epoch", "newer", {"epoch": 9}))
    assert (heard[0].trouble, heard[0].epoch_refused) == ("key not accepted", False)
    assert heard[1].epoch_refused is True


@pytest.mark.parametrize("fault", [KeyError("t"), OSError(28, "No space left on device"), RecursionError("deep")])
def test_no_error_ends_the_watcher(bench: Bench, fault: Exception) -> None:
    good = Connection([{"t": "hello", "status": {}}])
    heard = bench.go(Connection([], then=fault), good)
    assert [type(message) for message in heard][:2] == [Lost, Reached]


@pytest.mark.parametrize(
    "line",
    [
        log_line(b"x", run="../../etc.1"),
        log_line(b"x", run="t0.x"),
        log_line(b"x", run="t0"),
        log_line(b"x", stage="passwd"),
        {**log_line(b"x"), "data": "!!!"},
        {**log_line(b"x"), "offset": -1},
        {**log_line(b"x"), "offset": "0"},
        {"t": "log"},
        {"t": "event", "event": [], "next": -5},
        {"t": 7},
    ],
)
def test_lines_that_make_no_sense_store_nothing(bench: Bench, line: dict[str, Any]) -> None:
    heard = bench.go(Connection([{"t": "hello", "status": {}}, line, log_line(b"good\n")]))
    assert bench.log() == b"good\n"
    logs = [path.name for path in bench.home.job("train-1-aaaa").rglob("*.log")]
    assert logs == ["run.log"]
    assert not any(isinstance(message, StatusSeen) for message in heard)


def test_missing_bytes_are_asked_for_again(bench: Bench) -> None:
    gap = Connection([{"t": "hello", "status": {}}, log_line(b"abc"), log_line(b"xyz", offset=9)])
    rest = Connection([{"t": "hello", "status": {}}, log_line(b"defghixyz", offset=3)])
    bench.go(gap, rest)
    assert rest.asked["logs"] == {"t0.1/run": 3}
    assert bench.log() == b"abcdefghixyz"


def test_secrets_are_masked_over_the_border_of_two_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, secrets=("hunter2!",))
    bench.go(Connection([{"t": "hello", "status": {}}, log_line(b"pw hun"), log_line(b"ter2! ok\n", offset=6)]))
    assert bench.log() == b"pw ******** ok\n"


def test_progress_is_read_from_the_runs_own_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, progress_regex=r"step=(\d+)", progress_total=50.0)
    lines = [log_line(b"step=1\n", stage="setup"), log_line(b"step=7\nstep=8\n")]
    heard = bench.go(Connection([{"t": "hello", "status": {}}, *lines]))
    assert [(m.run, m.step, m.total) for m in heard if isinstance(m, ProgressSeen)] == [("t0.1", 8.0, 50.0)]


def test_bytes_of_an_earlier_life_count_as_received(bench: Bench) -> None:
    path = bench.home.log("train-1-aaaa", "t0", 1, "run")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"12345")
    bench.go(Connection([{"t": "hello", "status": {}}]))
    assert (bench.watch.received("t0.1", "run"), bench.watch.received("t0.1", "setup")) == (5, 0)


class Adapter:
    """A provider whose `list` answers what the test says, one after the other."""

    name, account = "prov", "acc"

    def __init__(self, *answers: Exception | str) -> None:
        self.answers = list(answers)

    def list(self, region: str) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_an_adapters_bug_is_a_look_that_failed() -> None:
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    region = RegionWatch(Adapter(KeyError("instances"), "a listing"), "r1", FakeClock(), heard.put)  # type: ignore[arg-type]
    try:
        region.ask()
        first: Listed = heard.get(timeout=10)
        assert isinstance(first.listing, Unknown)
        assert "KeyError" in first.listing.why
        region.ask()
        assert heard.get(timeout=10).listing == "a listing"
    finally:
        region.stop()
    assert threading.active_count() < 50


def test_metrics_tell_the_step_and_the_throughput(bench: Bench) -> None:
    lines = b'{"step": 5, "loss": 0.1}\n{"step": 7, "total": 90, "tokens_per_s": 350.5}\n{"step": 8, "los'
    sample = {"t": "event", "next": 9, "event": {"t": "sample", "at": bench.clock.utc() + 7.0, "cpu": 1.0}}
    status = {"runs": {"t0.1": {"state": "run"}}}
    heard = bench.go(Connection([{"t": "hello", "status": status}, log_line(lines, stage="metrics"), sample]))
    assert [(m.step, m.total) for m in heard if isinstance(m, ProgressSeen)] == [(7.0, 90.0)]
    (told,) = [m.point for m in heard if isinstance(m, PointSeen)]
    assert (told.step, told.rate, told.log) == (7.0, 350.5, float(len(lines)))
    assert bench.log("metrics") == lines


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"global_step": 3}\n', Metrics(3.0, None, None)),
        ('{"step": "3", "throughput": true}', Metrics(None, None, None)),
        ('{"step": 1e30}\nno json\n', Metrics(None, None, None)),
        ("[1, 2]\nstep 5\n", None),
        ("{broken\n", None),
        ("", None),
    ],
)
def test_the_last_json_line_of_metrics(text: str, found: Metrics | None) -> None:
    assert metrics(text) == found


def test_the_logs_of_runs_that_are_over_are_not_kept_open(bench: Bench) -> None:
    """A worker of a sweep has hundreds of runs one after another."""
    found = MachineWatch("gj-abcdef-1", "train-1-aaaa", "n0nce", bench.home, bench.clock, bench.heard.put)
    runs = [f"leg{number}.1" for number in range(60)]
    found.admit(frozenset(runs))
    for run in runs:
        found._line(log_line(b"one\n", run=run))
        found.flush(run)
    logs = str(bench.home.job("train-1-aaaa"))
    links = [path for fd in Path("/proc/self/fd").iterdir() if (path := os.path.realpath(fd)).startswith(logs)]
    assert 0 < len(links) <= watch.WRITERS_OPEN
    found._line(log_line(b"ne\nlate\n", offset=1, run=runs[0]))
    assert bench.home.log("train-1-aaaa", "leg0", 1, "run").read_bytes() == b"one\nlate\n"
    assert (found.received(runs[0], "run"), found.received(runs[5], "run")) == (9, 4)
    for writer in found._writers.values():
        writer.close()
