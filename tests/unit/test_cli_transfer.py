"""A copy that goes on, as `describe` and the follower show it: with a terminal, without one, and when it is old."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_books import Books, home_at, writer

from orchestrator.cli import follow
from orchestrator.cli.describe import as_json, text
from orchestrator.cli.output import moved
from orchestrator.cli.reading import View, open_view
from orchestrator.home import Home
from orchestrator.store import Store

SEEN = {"what": "data [red]set", "bytes": 12_300_000, "total": 40_100_000, "rate": 8_100_000}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return home_at(tmp_path / "h")


@pytest.fixture
def store(home: Home) -> Iterator[Store]:
    with writer(home) as opened:
        yield opened


def view_with(home: Home, store: Store, transfer: dict[str, Any], age_s: float = 1.0) -> View:
    books = Books(store)
    books.run(books.rent())
    now = open_view(home, "digits").now
    store.progress_seen(books.id, "t0", 1, now, transfer=transfer and {**transfer, "at": now})
    return replace(open_view(home, "digits"), now=now + age_s)


@pytest.mark.parametrize(
    ("done", "total", "words"),
    [
        (12_300_000, 40_100_000, "12.3/40.1 MB 2.0 MB/s"),
        (900_000, 40_100_000, "900 kB/40.1 MB 2.0 MB/s"),
        (50_000, None, "50.0 kB 2.0 MB/s"),
        (70_000, 60_000, "70.0/70.0 kB 2.0 MB/s"),
    ],
)
def test_how_far_a_copy_is_in_words(done: int, total: int | None, words: str) -> None:
    assert moved(done, total, 2e6) == words


def test_describe_shows_the_copy(home: Home, store: Store) -> None:
    view = view_with(home, store, SEEN)
    assert "  copying   data [red]set 12.3/40.1 MB 8.1 MB/s" in list(text(home, view))
    assert as_json(home, view)["progress"]["transfer"] == SEEN


def test_a_copy_of_which_nothing_was_heard_for_a_while_is_over(home: Home, store: Store) -> None:
    view = view_with(home, store, SEEN, age_s=16.0)
    assert not [line for line in text(home, view) if "copying" in line]
    assert as_json(home, view)["progress"]["transfer"] is None
    assert as_json(home, view)["progress"]["at"].endswith("Z")


def test_without_a_run_there_is_no_progress(home: Home, store: Store) -> None:
    Books(store)
    assert as_json(home, open_view(home, "digits"))["progress"] is None


def test_without_a_terminal_a_copy_that_lasts_gets_a_line_every_ten_seconds(
    home: Home, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    view = view_with(home, store, SEEN, age_s=0.0)
    screen, looks = follow._Plain(), [0.0, 9.5, 10.0, 12.0, 19.5, 20.0]
    for passed in looks:
        moving = {**SEEN, "at": view.now + passed}
        progress = tuple(replace(each, transfer=moving) for each in view.progress)
        screen.show(replace(view, now=view.now + passed, progress=progress))
    lines = [line for line in capsys.readouterr().err.splitlines() if "MB/s" in line]
    assert [line.partition("  ")[2] for line in lines] == ["digits  data [red]set 12.3/40.1 MB 8.1 MB/s"] * 2
    screen.show(replace(view, now=view.now + 40.0))
    screen.show(view_with_another(view, view.now + 41.0))
    assert "MB/s" not in capsys.readouterr().err


def view_with_another(view: View, now: float) -> View:
    moving = {**SEEN, "what": "results", "at": now}
    return replace(view, now=now, progress=tuple(replace(each, transfer=moving) for each in view.progress))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_with_a_terminal_the_bar_shows_the_copy_while_there_is_one(
    home: Home, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    view = view_with(home, store, SEEN)
    screen = follow._Live()
    screen.show(view)
    task = screen._bar.tasks[0]
    assert (task.completed, task.total) == (12_300_000, 40_100_000)
    assert task.fields["steps"] == "data [red]set 12.3/40.1 MB 8.1 MB/s"
    assert str(screen._bar.columns[2](task)) == task.fields["steps"]
    screen.show(replace(view, now=view.now + 60.0))
    task = screen._bar.tasks[0]
    assert (task.completed, task.total) == (300.0, 1000.0)
    assert task.fields["steps"].startswith("300/1000")
