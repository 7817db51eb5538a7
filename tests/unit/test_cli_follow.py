"""Following and summing up: log cursors, time left, gauges, phases, steps lost, the closing words."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_books import Books, home_at, writer

from orchestrator import actions
from orchestrator.cli import follow, phases
from orchestrator.cli.follow import LogCursor
from orchestrator.cli.reading import View, open_view
from orchestrator.home import Home
from orchestrator.model import Outcome, Reason
from orchestrator.store import Store


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return home_at(tmp_path / "h")


@pytest.fixture
def store(home: Home) -> Iterator[Store]:
    with writer(home) as opened:
        yield opened


def write(home: Home, job: str, n: int, stage: str, text: bytes) -> None:
    path = home.log(job, "t0", n, stage)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as out:
        out.write(text)


def test_a_cursor_gives_each_byte_once_over_stages_and_attempts(home: Home, store: Store) -> None:
    books = Books(store)
    first = books.rent()
    books.run(first)
    cursor = LogCursor(home, books.id)
    view = open_view(home, "digits")
    write(home, books.id, 1, "setup", b"a\n")
    write(home, books.id, 1, "run", b"b\n")
    assert cursor.fresh(view) == [("t0.1/setup", b"a\n"), ("t0.1/run", b"b\n")]
    assert cursor.fresh(view) == []
    write(home, books.id, 1, "run", b"c\n")
    books.lose(first)
    books.run(books.rent(), n=2)
    write(home, books.id, 2, "run", b"d\n")
    assert cursor.fresh(open_view(home, "digits")) == [("t0.1/run", b"c\n"), ("t0.2/run", b"d\n")]


def test_following_ends_with_the_outcome_and_prints_the_last_bytes(
    home: Home, store: Store, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "TICK_S", 0.01)
    monkeypatch.setattr(follow, "LOOK_S", 0.01)
    monkeypatch.setattr(follow.client, "wake", lambda home: None)
    books = Books(store)
    rental = books.rent()
    books.run(rental)
    view = open_view(home, "digits")
    result: list[View] = []
    watching = threading.Thread(
        target=lambda: result.append(follow.follow(home, view.ref, LogCursor(home, books.id), until_released=True))
    )
    watching.start()
    write(home, books.id, 1, "run", b"step 1\n")
    books.exit()
    books.decide(Outcome.DONE, Reason.DONE)
    write(home, books.id, 1, "run", b"last words")
    books.finish(rental)
    watching.join(20)
    out, err = capfdbinary.readouterr()
    assert out == b"step 1\nlast words"
    assert result[0].words.state == "DONE"
    assert b"digits  DONE" in err
    assert b"\x1b" not in err


def test_the_time_left_follows_the_pace_of_this_run_only(home: Home, store: Store) -> None:
    books = Books(store)
    books.run(books.rent(), n=1, resume="step_200.npz")
    store.progress_seen(books.id, "t0", 1, books.now + 100, step=300.0, total=1000.0)
    view = open_view(home, "digits")
    assert view.current is not None
    assert view.current.ordered_at is not None
    # 100 steps took 100 s, 700 are left: the 200 steps of the first attempt do not count as pace
    assert follow.eta_s(view) == pytest.approx(700, rel=0.05)


def test_no_time_left_is_invented(home: Home, store: Store) -> None:
    books = Books(store)
    assert follow.eta_s(open_view(home, "digits")) is None
    books.run(books.rent())
    assert follow.eta_s(open_view(home, "digits")) is None  # no time has passed since the order


def test_gauges_show_gpu_money_and_the_end(home: Home, store: Store) -> None:
    books = Books(store)
    rental = books.rent()
    books.run(rental)
    books.pay(rental, "0.02")
    found = follow.gauges(open_view(home, "digits"))
    assert found[0] == "GPU 93%"
    assert found[1] == "0.02 (play)"
    assert found[2].endswith("to the hard end")


def test_stage_seconds_come_from_the_agents_events() -> None:
    events = [
        {"t": "stage", "run": "t0.1", "stage": "setup", "state": "start", "at": 10.0},
        {"t": "sample", "at": 12.0},
        {"t": "stage", "run": "t0.1", "stage": "setup", "state": "end", "at": 14.5},
        {"t": "stage", "run": "t0.1", "stage": "run", "state": "start", "at": 15.0},
        {"t": "notice", "at": 25.0},
        {"t": "stage"},
    ]
    assert phases.stage_times(events, now=99.0) == {"setup": 4.5, "run": 10.0}
    assert phases.stage_times([], now=99.0) == {}


def test_phases_add_up_over_attempts_and_a_half_written_event_is_skipped(home: Home, store: Store) -> None:
    books = Books(store)
    first = books.rent()
    books.run(first)
    books.lose(first)
    books.run(books.rent(), n=2)
    path = home.events(books.id, first)
    path.parent.mkdir(parents=True)
    lines = [{"t": "stage", "run": "t0.1", "stage": "run", "state": s, "at": a} for s, a in (("start", 1), ("end", 9))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"t": "sta')
    view = open_view(home, "digits")
    found = phases.phase_seconds(view, phases.stage_seconds(home, view))
    assert found["run"] == 8.0
    assert found["waiting"] == 1.0
    # one second each from the intent to the first connection, by the clock of these books
    assert found["machine"] == 4.0
    assert list(found) == [phase for phase in phases.ORDER if phase in found]


def test_steps_lost_are_those_after_the_checkpoint_that_was_resumed_from(home: Home, store: Store) -> None:
    books = Books(store)
    first = books.rent()
    books.run(first)  # seen at step 300
    books.lose(first)
    second = books.rent()
    books.run(second, n=2, resume="step_250.npz")
    store.progress_seen(books.id, "t0", 2, books.now, step=280.0)
    books.lose(second)
    books.run(books.rent(), n=3)  # from the start
    store.progress_seen(books.id, "t0", 3, books.now, step=10.0)
    steps = phases.steps_of(open_view(home, "digits"))
    assert (steps.last, steps.total, steps.lost) == (10.0, 1000.0, 50.0 + 280.0)


def test_the_closing_words(home: Home, store: Store) -> None:
    books = Books(store)
    first = books.rent()
    books.run(first)
    books.pay(first, "0.10")
    books.lose(first)
    second = books.rent(spot=False)
    books.run(second, n=2, resume="step_250.npz")
    books.pay(second, "0.05")
    books.exit(n=2)
    store.results_done(books.id, "t0", 2, "/base/gpujob-results/digits", books.now)
    books.decide(Outcome.DONE, Reason.DONE)
    books.finish(second)
    text = "\n".join(phases.summary_lines(home, open_view(home, "digits")))
    assert text.startswith("digits: DONE\n")
    assert "attempts  2: RTX-4090 (stand-in) spot at local, interrupted, RTX-4090 (stand-in) on-demand" in text
    assert "50 done again after losses" in text
    assert "money     0.15 (play)" in text
    assert "results   /base/gpujob-results/digits" in text
    assert text.endswith("nothing is billing")


def test_the_closing_words_say_what_still_bills_and_what_was_lost(home: Home, store: Store) -> None:
    books = Books(store)
    rental = books.rent()
    books.run(rental)
    books.apply(actions.StoreResultsLost("t0", 1, "the end came before 3 files were home"))
    books.decide(Outcome.CANCELLED, Reason.TTL)
    text = "\n".join(phases.summary_lines(home, open_view(home, "digits")))
    assert "digits: CANCELLED (ttl)" in text
    assert "lost      the end came before 3 files were home" in text
    assert f"{rental} (local) still bills 0.34 (play)/h" in text
    assert "nothing is billing" not in text
