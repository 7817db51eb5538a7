"""`top`, the health of `describe`, the mark of `ps`, and Prometheus text that a parser reads."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_books import Books, home_at, writer
from health_series import healthy

from orchestrator import actions as act
from orchestrator.cli import client, describe, main, ps, shell, top, vitals
from orchestrator.cli.reading import open_view
from orchestrator.home import Home
from orchestrator.model import Exit, Reason, Task
from orchestrator.points import Card, Point
from orchestrator.series import Series
from orchestrator.store import Store

NOW = 1_800_010_000.0
ALARM = {
    "kind": "gpu-util-below", "since": NOW - 720, "text": "GPU use 40 % in the last 15m00s", "cause": "CPU-bound",
    "next": "more workers",
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("GPUJOB_CONTROLLER", "GPUJOB_CONFIG", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client, "wake", lambda home: None)
    monkeypatch.setattr("time.time", lambda: NOW)
    return home_at(tmp_path / "h")


@pytest.fixture
def store(home: Home) -> Iterator[Store]:
    with writer(home) as opened:
        yield opened


def running(
    home: Home, store: Store, cards: int = 2, alarms: Any = (), age_s: float = 5.0, name: str = "digits"
) -> str:
    """A job whose machine was sampled for an hour, until `age_s` ago; its id."""
    books = Books(store, name=name, now=NOW - 4000)
    rental = books.rent()
    books.run(rental)
    books.pay(rental, "0.25")
    with Series(home.series(books.id, rental)) as series:
        for number in range(360):
            point = healthy(number // 6 + 10, cards=cards)
            at = NOW - age_s - 10 * (359 - number)
            series.add(
                replace(point, at=at, step=float(number), cards=(replace(point.cards[0], util=50), *point.cards[1:]))
            )
    store.alarms_hold(books.id, "t0", 1, list(alarms))
    return books.id


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main.main(list(words)) == 0
    return capsys.readouterr().out


# --- charts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "high", "shown"),
    [
        ([0, 50, 100], 100.0, "▁▅█"),
        ([0, math.nan, 100], 100.0, "▁ █"),
        ([1, 2, 4], math.nan, "▃▅█"),
        ([5, math.nan], 10.0, "▅"),
        ([0, 0], math.nan, "▁▁"),
        ([], 100.0, ""),
        ([250, -3], 100.0, "█▁"),
    ],
)
def test_a_chart(values: list[float], high: float, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert vitals.chart(values, high) == shown
    assert len(vitals.chart([1.0] * 100)) == vitals.CHART
    assert vitals.chart([100.0] * 30 + [0.0] * 30, 100.0) == "█" * 15 + "▁" * 15, "an hour in thirty characters"


def test_a_chart_for_a_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert vitals.chart([0.0, 50.0, 100.0], 100.0) == "_=#"


def test_a_pace_is_of_the_last_minutes_and_unknown_without_steps() -> None:
    minutes = [replace(healthy(m), step=m * 60.0) for m in range(20)]
    found = vitals.Vitals(minutes[-1], minutes)
    assert found.pace == pytest.approx(1.0)
    assert vitals.pace_words(found.pace) == "1.0 steps/s"
    assert vitals.pace_words(0.25) == "15.0 steps/min"
    assert vitals.pace_words(vitals.Vitals(minutes[-1], [replace(m, step=math.nan) for m in minutes]).pace) == "-"
    again = [*minutes, replace(healthy(20), step=3.0), replace(healthy(21), step=5.0)]
    assert math.isnan(vitals.Vitals(again[-1], again).pace), "a run that began again"


# --- top -------------------------------------------------------------------------------------------------------------


def test_without_a_terminal_it_prints_once(home: Home, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    running(home, store, alarms=[ALARM])
    lines = said(capsys, "top").splitlines()
    assert lines[1].split() == list(top.HEADERS)
    assert lines[2].split()[:4] == ["digits", "RUNNING", "300/1000", "6.0/min"]
    assert "71% x2" in lines[2]
    assert " 10s " in lines[2], "by the start of the ten seconds that it is of"
    assert lines[2].endswith("! gpu-util-below")
    assert all(len(line) <= 100 for line in lines)


def test_nothing_runs(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "top") == "no job is running; `gpujob ps -a` lists the others\n"
    assert json.loads(said(capsys, "top", "-o", "json")) == []


def test_a_job_without_a_sample_is_listed(home: Home, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    Books(store, now=NOW - 10).rent()
    assert said(capsys, "top").splitlines()[2].split()[:3] == ["digits", "SETUP", "-"]
    assert "no sample of its machine yet" in said(capsys, "top", "digits")


def test_one_job_is_shown_card_by_card(home: Home, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    running(home, store, alarms=[ALARM])
    out = said(capsys, "top", "digits", "--once")
    cards = [line for line in out.splitlines() if "GiB" in line]
    assert [card.split()[:2] for card in cards] == [["0", "50"], ["1", "92"]]
    assert "29.3 of 40.0 GiB  66 °C  310 W" in cards[0]
    assert "5.0 of 16 cores by the run" in out
    assert "likely  CPU-bound" in out
    assert all(len(line) <= 100 for line in out.splitlines())


def test_json_of_top_and_describe_are_the_same_health(
    home: Home, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    running(home, store, alarms=[ALARM])
    (line,) = json.loads(said(capsys, "top", "-o", "json"))
    health = line["health"]
    assert [gpu["util"] for gpu in health["gpus"]] == [50, 92]
    assert health["steps_per_s"] == pytest.approx(0.1)
    assert health["throughput"] is None
    assert len(health["minutes"]["at"]) == len(health["minutes"]["gpu_util"]) in (60, 61)
    assert line["alarms"] == [{**ALARM, "since": "2027-01-15T10:34:40.000Z"}]
    shown = json.loads(said(capsys, "describe", "digits", "-o", "json"))
    assert (shown["health"], shown["alarms"]) == (health, line["alarms"])


# --- describe and ps -------------------------------------------------------------------------------------------------


def test_describe_shows_the_last_values_charts_and_alarms(home: Home, store: Store) -> None:
    running(home, store, alarms=[ALARM])
    lines = list(describe.text(home, open_view(home, "digits")))
    start = lines.index("HEALTH   the last hour")
    assert lines[start + 1].startswith("  GPU 0  50 %  29.3 of 40.0 GiB  66 °C  310 W")
    assert lines[start + 3].startswith("  steps  6.0 steps/min  step 300 of 1000")
    assert lines[lines.index("ALARMS") + 1 :][:3] == [
        "  gpu-util-below (for 12m00s): GPU use 40 % in the last 15m00s",
        "    likely  CPU-bound",
        "    next    more workers",
    ]
    assert all(len(line) <= 100 for line in lines[start : start + 7])


def test_describe_says_how_old_the_last_sample_is(home: Home, store: Store) -> None:
    running(home, store, age_s=900.0)
    assert any("the last sample is 15m" in line for line in describe.text(home, open_view(home, "digits")))


def test_ps_marks_a_job_that_burns_money(home: Home, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    running(home, store, alarms=[ALARM])
    running(home, store, name="well")
    out = said(capsys, "ps")
    marked = next(line for line in out.splitlines() if line.startswith("digits"))
    assert "! gpu-util-below" in marked
    assert "!" not in next(line for line in out.splitlines() if line.startswith("well"))
    assert "! digits: GPU use 40 % in the last 15m00s (gpujob describe digits)" in out
    listed = {job["name"]: job["alarms"] for job in json.loads(said(capsys, "ps", "-o", "json"))}
    assert listed == {"digits": ["gpu-util-below"], "well": []}


def test_an_alarm_of_any_live_run_marks_the_job_and_one_of_an_ended_run_does_not(home: Home, store: Store) -> None:
    job = running(home, store, alarms=[ALARM])
    rental = store.rentals(job)[0].id
    store.apply(job, [act.StoreExit("t0", 1, Exit("run", 1, NOW)), act.Release(rental, Reason.FAILED)], NOW)
    (line,) = store.summaries(now=NOW)
    assert line.alarms == ()
    assert open_view(home, "digits").alarms == []
    other = Books(store, name="legs", now=NOW - 100)
    first = other.rent()
    other.run(first)
    store.alarms_hold(other.id, "t0", 1, [ALARM])
    store.add_task(Task(other.id, "t1"), NOW)
    store.apply(other.id, [act.CommitAssignment("t1", 1, first, (), "", "", None)], NOW)
    store.progress_seen(other.id, "t1", 1, NOW, step=1.0)
    line = next(line for line in store.summaries(now=NOW) if line.name == "legs")
    assert ps.mark_of(line) == "! gpu-util-below"
    assert open_view(home, "legs").alarms == [ALARM]


def test_a_job_that_is_over_is_not_marked(home: Home, store: Store) -> None:
    running(home, store, alarms=[ALARM])
    (line,) = store.summaries(now=NOW)
    assert ps.mark_of(line) == "! gpu-util-below"
    assert ps.mark_of(replace(line, outcome="done")) == ""
    assert ps.mark_of(replace(line, alarms=())) == ""


# --- Prometheus ------------------------------------------------------------------------------------------------------

LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')


def parse(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The text format as its definition has it: HELP and TYPE once and before their samples, families in one piece,
    escaped labels, no sample twice, a newline at the end."""
    assert page.endswith("\n")
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    helped: set[str] = set()
    typed: list[str] = []
    for line in page.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert name not in helped
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind == "gauge"
            assert name not in typed
            typed.append(name)
        else:
            match = LINE.fullmatch(line)
            assert match, line
            assert match[1] == typed[-1], f"{match[1]} outside of its family"
            labels = tuple(
                (key, value.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\"))
                for key, value in LABEL.findall(match[2])
            )
            assert len({key for key, _ in labels}) == len(labels)
            assert (match[1], labels) not in found
            found[match[1], labels] = float(match[3])
    assert helped == set(typed)
    return found


def value(found: dict[Any, float], metric: str, /, **labels: str) -> float:
    (one,) = [v for (n, pairs), v in found.items() if n == metric and labels.items() <= dict(pairs).items()]
    return one


def test_prometheus_text(home: Home, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    job = running(home, store, alarms=[ALARM])
    running(home, store, name="second", cards=1)
    found = parse(said(capsys, "top", "--prometheus"))
    assert value(found, "gpujob_gpu_utilization_ratio", name="digits", gpu="0") == 0.5
    assert value(found, "gpujob_gpu_memory_total_bytes", name="digits", gpu="1") == 40_960 * 1024 * 1024
    assert value(found, "gpujob_alarm", job=job, kind="gpu-util-below") == 1
    assert value(found, "gpujob_job_spent", name="digits", play="true", currency="USD") == 0.25
    assert value(found, "gpujob_job_step", name="second") == 300
    assert value(found, "gpujob_job_steps_per_second", name="second") == pytest.approx(0.1)
    assert value(found, "gpujob_job_info", name="digits", state="RUNNING", gpu="RTX-4090", stand_in="true") == 1
    assert 0 <= value(found, "gpujob_sample_age_seconds", name="digits") <= 10
    assert not [name for name, _ in found if name == "gpujob_job_throughput"], "what is unknown has no line"


def test_prometheus_takes_the_page_and_its_linter_has_nothing_to_say(home: Home, store: Store, capsys: Any) -> None:
    from orchestrator.cli import prometheus

    running(home, store, alarms=[ALARM, ALARM, {**ALARM, "kind": "stalled"}])
    running(home, store, name="second", cards=1)
    lines = said(capsys, "top", "--prometheus").splitlines()
    samples = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert len(samples) == len(set(samples)), "a line twice costs the whole page"
    assert len([line for line in samples if line.startswith("gpujob_alarm")]) == 2
    names = [name for name, _ in prometheus.FAMILIES]
    assert not [name for name in names if name.endswith(("_total", "_count", "_sum", "_bucket", "_info_info"))]
    heads = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert heads == names
    order = list(dict.fromkeys(re.split(r"[{ ]", line)[0] for line in samples))
    assert order == [name for name in names if name in order], "each name's lines stand together below its head"
    assert 'gpujob_job_spent{job="digits.1-abcd",name="digits",currency="USD",play="true"} 0.25' in lines


def test_prometheus_of_nothing_is_a_valid_page(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(said(capsys, "top", "--prometheus")) == {}


def test_labels_are_escaped() -> None:
    from orchestrator.cli import prometheus

    words = 'a "b" \\ c\nd'
    spent = {"USD": 0.1, "CNY": 7.5}
    job = prometheus.Sick({"job": "j", "name": words}, {"state": words}, spent, 0.0, math.nan, math.nan, (), None)
    found = parse(prometheus.text([job], NOW))
    assert value(found, "gpujob_job_info", name=words, state=words) == 1
    assert value(found, "gpujob_job_spent", currency="USD") == 0.1
    assert value(found, "gpujob_job_spent", currency="CNY") == 7.5, "each currency has its own line"
    wild = vitals.Vitals(Point(at=NOW, cards=(Card(util=1e300),), cpu=-0.5), [])
    assert parse(prometheus.text([replace(job, vitals=wild)], NOW))


def test_a_textfile_is_put_in_place_whole(home: Home, store: Store, tmp_path: Path, capsys: Any) -> None:
    running(home, store)
    target = tmp_path / "gpujob.prom"
    assert said(capsys, "top", "--prometheus", "--to", str(target)) == ""
    assert parse(target.read_text())
    assert target.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.glob("*.prom")] == ["gpujob.prom"]
    assert main.main(["top", "--to", str(tmp_path / "none" / "x.prom")]) == 2
    assert "cannot be written" in capsys.readouterr().err


# --- what `ssh` says first -------------------------------------------------------------------------------------------


def test_a_shell_begins_with_what_the_machine_did_last(home: Home, store: Store) -> None:
    running(home, store, alarms=[ALARM])
    view = open_view(home, "digits")
    lines = list(shell.greeting(home, view, view.rentals[-1], NOW))
    assert lines[0] == "digits is RUNNING"
    assert lines[1] == "10s ago:"  # the start of its bucket
    assert lines[2].startswith("  GPU 0  50 %  29.3 of 40.0 GiB  66 °C  310 W")
    assert lines[3].startswith("  GPU 1  92 %")
    assert lines[4].startswith("  step 359  6.0 steps/min")
    assert lines[-1] == "  alarm gpu-util-below: GPU use 40 % in the last 15m00s"


def test_a_shell_on_a_machine_without_samples_says_the_jobs_state(home: Home, store: Store) -> None:
    books = Books(store, now=NOW - 60)
    rental = books.rent()
    books.run(rental)
    view = open_view(home, "digits")
    assert list(shell.greeting(home, view, view.rentals[-1], NOW)) == [f"digits is {view.words.state}"]
