"""What is shown of a whole sweep: legs by name, figures of many legs, machines; never one leg's as the job's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sweep_books as sb
from cli_books import SAMPLE, home_at, writer

from jobspecs.sweep import leg_id
from orchestrator.cli import follow, phases
from orchestrator.cli.describe import text
from orchestrator.cli.leg_view import legs_table
from orchestrator.cli.main import main
from orchestrator.cli.reading import open_view
from orchestrator.home import Home
from orchestrator.legs import LegState
from orchestrator.store import Store

DONE = sb.LegRow({"lr": "0.1"}, (0.5, 0.3))
FAILED = sb.LegRow({"lr": "9"}, (5.0,), LegState.FAILED)
RUNNING = sb.LegRow({"lr": "0.2"}, (0.6,), LegState.RUNNING)
WAITING = sb.LegRow({"lr": "0.3"}, state=LegState.WAITING)
IDS = {row.params["lr"]: leg_id(row.params) for row in (DONE, FAILED, RUNNING, WAITING)}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path / "h"))
    monkeypatch.setattr("orchestrator.cli.client.wake", lambda home: None)
    return home_at(tmp_path / "h")


@pytest.fixture
def store(home: Home) -> Iterator[Store]:
    with writer(home) as opened:
        yield opened


def test_each_line_of_a_followed_sweep_names_its_leg_and_is_whole() -> None:
    named = follow._Named()
    assert named.lines("aaa.1/run", b"step=1\nste") == b"aaa  step=1\n"
    assert named.lines("bbb.1/run", b"step=7\n") == b"bbb  step=7\n"
    assert named.lines("aaa.1/run", b"p=2\n") == b"aaa  step=2\n"
    assert named.lines("bbb.1/run", b"10%\r20%\nlast words") == b"bbb  20%\n"
    assert named.rest() == b"bbb  last words\n"
    assert named.rest() == b""


def test_legs_are_told_when_they_start_and_end_each_once(home: Home, store: Store) -> None:
    sb.make(store, [DONE, FAILED, RUNNING, WAITING], machines=2)
    view = open_view(home, "tune")
    last: dict[str, str] = {}
    told = list(follow.task_lines(view, last))
    assert [line.split("  ", 1)[1] for line in told] == [
        f"tune/{IDS['0.1']}  done  lr=0.1",
        f"tune/{IDS['9']}  failed  lr=9",
        f"tune/{IDS['0.2']}  running  lr=0.2",
    ]
    assert list(follow.task_lines(view, last)) == []
    assert list(follow.task_lines(open_view(home, f"tune/{IDS['0.1']}"), {})) == []


def test_the_closing_words_of_a_sweep_are_of_all_its_legs(home: Home, store: Store) -> None:
    sb.make(store, [DONE, FAILED])
    said = "\n".join(phases.summary_lines(home, open_view(home, "tune")))
    assert "legs      2 of 2 over (1 done, 1 failed), 0 running" in said
    assert "machines  1 x RTX-4090 (stand-in) spot at vast, done; 2 runs of 2 legs" in said
    assert f"failed    tune/{IDS['9']}: " in said
    assert f"best      tune/{IDS['0.1']}, val_loss 0.3 at step 20; gpujob compare tune" in said
    assert "time      of all machines together: " in said
    assert "attempts" not in said
    assert "steps " not in said


def test_describe_of_a_sweep_shows_no_leg_s_figures_as_the_job_s(home: Home, store: Store) -> None:
    job = sb.make(store, [DONE, RUNNING, WAITING], machines=2)
    store.progress_seen(job.id, IDS["0.2"], 1, 1_000_050.0, step=7.0, total=60.0, sample=SAMPLE, phase="run")
    said = "\n".join(text(home, open_view(home, "tune")))
    assert "legs      1 of 3 over (1 done), 1 running" in said
    assert f"best      tune/{IDS['0.1']}" in said
    above = said.partition("EVENTS")[0]
    for one_leg in ("progress  step", "attempt", "saving ", "HEALTH"):
        assert one_leg not in above, one_leg
    row = next(line for line in said.splitlines() if line.startswith(f"{IDS['0.2']}.1"))
    assert row.split()[-2:] == ["7", "-"]  # the last step that was seen; results are not home


def test_a_cancel_of_a_leg_that_is_over_says_nothing_of_the_others(
    home: Home, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    sb.make(store, [DONE, RUNNING])
    assert main(["cancel", f"tune/{IDS['0.1']}"]) == 0
    assert capsys.readouterr().out == (
        f"tune/{IDS['0.1']} is over already (done); the others go on; `gpujob ps tune` shows them\n"
    )


def test_a_search_counts_over_the_legs_that_it_will_draw(home: Home, store: Store) -> None:
    sb.make(store, [DONE, RUNNING], search={"method": "tpe", "trials": 40})
    view = open_view(home, "tune")
    assert view.words.detail.startswith("1 of 40 over")
    (line,) = store.summaries(now=1_000_100.0)
    assert (line.tasks, line.tasks_over) == (40, 1)


def test_top_has_a_line_for_each_machine_with_its_leg(
    home: Home, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    running = [sb.LegRow({"lr": lr}, (0.5,), LegState.RUNNING) for lr in ("1", "2")]
    job = sb.make(store, running, machines=2)
    legs = [leg_id(row.params) for row in running]
    for leg in legs:
        store.progress_seen(job.id, leg, 1, 1_000_050.0, step=7.0, total=60.0, sample=SAMPLE, phase="run")
    assert main(["top", "tune", "--once"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].split()[:3] == ["LEG", "MACHINE", "STEP"]
    assert [line.split()[0] for line in out[2:]] == legs
    assert all("7/60" in line for line in out[2:])


def test_money_is_play_before_the_first_bill(home: Home, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.leg_books.PLAY_PROVIDER", "vast")
    sb.make(store, [RUNNING])
    assert "(play)" in legs_table(open_view(home, "tune"))
