"""`gpujob compare`: the table, CSV, JSON and the page, from real books; nasty text survives all of them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import cli_books as cb
import pytest
import sweep_books as sb
from hypothesis import given
from hypothesis import strategies as st

from jobspecs.sweep import leg_id
from orchestrator.cli import client, compare, compare_page
from orchestrator.cli.exits import CliError
from orchestrator.cli.leg_view import resolved
from orchestrator.cli.main import main
from orchestrator.cli.output import width_of
from orchestrator.cli.sweeps import SweepView, sweep_of
from orchestrator.home import Home
from orchestrator.legs import Leg, LegState, Report
from orchestrator.model import Job, Reason
from orchestrator.store import Store

NASTY = (
    "</script><script>alert(1)</script>",
    "a,b",
    'say "hi"',
    "two\nlines",
    "=1+1",
    "日本語",
    "&amp;<b>",
    "{{data}}",
    "1e-4",
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    made = cb.home_at(tmp_path)
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path))
    monkeypatch.setattr(client, "wake", lambda home: None)
    return made


@pytest.fixture
def store(home: Home) -> Iterator[Store]:
    with cb.writer(home) as opened:
        yield opened


def row(lr: str, *values: float, state: LegState = LegState.DONE, **more: Any) -> sb.LegRow:
    return sb.LegRow({"lr": lr, "batch": "16"}, values, state, **more)


THREE = (
    row("1e-3", 0.9, 0.3),
    row("1e-4", 0.9, 0.2, 0.25),
    row("1e-5", 0.9, 0.8, state=LegState.STOPPED, seconds=50.0),
)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["compare", *arguments]) == 0
    return capsys.readouterr().out


def view_of(*legs: Leg, **more: Any) -> SweepView:
    job = Job("t.1-x", "t", 1, {"sweep": {}}, "h", "s", "/base", 0.0)
    return SweepView(job, legs, **{"metric": "loss", **more})


def test_the_table_marks_the_winner_and_says_how_to_get_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    sb.make(store, THREE, paid="2.50")
    one, two, three = (leg_id(each.params) for each in THREE)
    assert printed(capsys, "tune").splitlines() == [
        "   LEG       lr    VAL_LOSS  STEP  BEST  STATE    COST USD   TIME",
        f"*  {two}  1e-4      0.25    30   0.2  DONE         1.00  1m40s",
        f"   {one}  1e-3       0.3    20   0.3  DONE         1.00  1m40s",
        f"   {three}  1e-5       0.8    20   0.8  STOPPED      0.50    50s",
        "",
        "the same in all legs: batch=16",
        "3 legs: 2 done, 1 stopped; 2.50 USD spent",
        f"* best: tune/{two}, val_loss 0.25 at step 30 (less is better)",
        "  gpujob pull tune/best",
    ]


def test_the_goal_turns_the_order(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    sb.make(store, THREE, metric={"name": "acc", "goal": "maximize"})
    out = printed(capsys, "tune")
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("*")] == ["1m40s", "better)"]
    assert f"* best: tune/{leg_id(THREE[0].params)}, acc 0.3 at step 20 (more is better)" in out


def test_without_a_metric_legs_are_listed_and_none_is_best(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    job = sb.make(store, THREE, metric=None)
    out = printed(capsys, "tune")
    assert out.splitlines()[0].split() == ["LEG", "lr", "STATE", "COST", "USD", "TIME"]
    assert "no best leg: the sweep declares no metric" in out
    assert "*" not in out
    with pytest.raises(CliError, match="declares no metric"):
        resolved(store, store.find(f"{job.name}/best"))


def test_the_best_leg_of_a_sweep_is_named_or_it_is_said_why_not(store: Store) -> None:
    sb.make(store, THREE)
    assert resolved(store, store.find("tune/best")).leg == leg_id(THREE[1].params)
    sb.make(store, [row("1", state=LegState.WAITING)], name="new")
    with pytest.raises(CliError, match="no leg has reported yet"):
        resolved(store, store.find("new/best"))
    sb.make(store, [row("1", math.nan)], name="lost")
    with pytest.raises(CliError, match="legs with reports: 1, none of them with a usable result"):
        resolved(store, store.find("lost/best"))


def test_a_running_sweep_says_so(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    sb.make(store, [row("1e-3", 0.5, state=LegState.RUNNING), row("1e-4", state=LegState.WAITING)], play=True)
    out = printed(capsys, "tune")
    assert "best so far (it is running)" in out
    assert "COST (play)" in out
    waiting = next(line for line in out.splitlines() if "WAITING" in line)
    assert waiting.split()[2:] == ["-", "-", "-", "WAITING", "-", "-"]


def test_reasons_have_a_column_where_the_state_is_not_enough(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert "REASON" not in printed(capsys, sb.make(store, THREE).name)
    broken = row("1e-9", 0.1, state=LegState.FAILED, reason=Reason.BAD_HOST)
    sb.make(store, [*THREE, broken], name="other")
    out = printed(capsys, "other")
    assert "STATE    REASON" in out
    assert "FAILED   bad-host" in out
    assert "STOPPED  - " in out


@pytest.mark.parametrize("count", [1, 5, 12, 60])
def test_the_table_fits_100_columns(count: int) -> None:
    long = {f"parameter_{n}": "x" * 30 for n in range(count)}
    legs = [Leg(f"leg{n:05d}", "", {**long, "parameter_0": str(n)}, LegState.FAILED, "no-capacity",
                (Report(123456, -1.23456789e-100, 0.0),), Decimal("1234.56"), seconds=1e6, attempts=1)
            for n in range(3)]  # fmt: skip
    legs[0] = replace(legs[0], params={**{f"parameter_{n}": "y" * 40 for n in range(count)}, "parameter_0": "q"})
    text = compare.as_table(view_of(*legs, metric="a_very_long_metric/of_many_words"), legs)
    assert max(width_of(line) for line in text.split("\n\n")[0].splitlines()) <= 100
    assert ("not shown: " in text) == (count > 1)


def test_paths_show_where_they_differ() -> None:
    assert compare.shortened(["configs/a/1.yaml", "configs/a/2.yaml"]) == ["…/1.yaml", "…/2.yaml"]
    assert compare.shortened(["configs/a/1.yaml", "configs/b/1.yaml"]) == ["…/a/1.yaml", "…/b/1.yaml"]
    assert compare.shortened(["configs/1.yaml", "config/1.yaml"]) == ["configs/1.yaml", "config/1.yaml"]
    assert compare.shortened(["16", "32"]) == ["16", "32"]


def test_order_by_any_column(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    sb.make(store, THREE)

    def order(*arguments: str) -> list[str]:
        rows = csv.DictReader(io.StringIO(printed(capsys, "tune", "-o", "csv", *arguments)))
        return [each["param_lr"] for each in rows]

    assert order() == ["1e-4", "1e-3", "1e-5"]
    assert order("--sort", "lr") == ["1e-5", "1e-4", "1e-3"]
    assert order("--sort", "order", "--reverse") == ["1e-5", "1e-4", "1e-3"]
    assert order("--sort", "best") == ["1e-4", "1e-3", "1e-5"]
    assert order("--sort", "step") == ["1e-3", "1e-5", "1e-4"]
    assert order("--sort", "cost")[0] == "1e-5"
    assert order("--sort", "state")[-1] == "1e-5"


def test_numbers_sort_before_words_and_words_before_nothing() -> None:
    values = ["10", "9", None, "nan", "b", "1e1"]
    legs = [Leg(str(n), "", {} if value is None else {"p": value}) for n, value in enumerate(values)]
    assert [leg.params.get("p") for leg in compare.ordered(view_of(*legs), "p")] == ["9", "10", "1e1", "b", "nan", None]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("tune", "--sort", "colour"), "no column 'colour'"),
        (("tune", "--metric", "acc"), "reports val_loss, not acc"),
        (("tune", "--curves"), "--curves has no table"),
        (("tune", "--html", "no/such/folder/page.html"), "cannot write no/such/folder/page.html"),
        (("digits",), "digits is not a sweep"),
        (("tuen",), "there is no job 'tuen'"),
    ],
)
def test_what_cannot_be_is_said(
    store: Store, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], word: str
) -> None:
    sb.make(store, THREE)
    cb.Books(store)
    assert main(["compare", *arguments]) == 2
    captured = capsys.readouterr()
    assert word in captured.err
    assert captured.out == ""


def test_before_the_first_job_there_is_no_sweep(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "tune"]) == 2
    assert "no job was ever applied here" in capsys.readouterr().err


def test_csv_has_every_digit_and_every_word(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        sb.LegRow({"text": text, "cost": "5"}, (0.1 + 0.2 + n, math.nan if n == 3 else 1 / 3 + n))
        for n, text in enumerate(NASTY)
    ]
    sb.make(store, rows, paid="0.123457")
    found = list(csv.DictReader(io.StringIO(printed(capsys, "tune", "-o", "csv"), newline="")))
    assert {each["param_text"] for each in found} == set(NASTY)
    first = found[0]
    assert (first["rank"], first["winner"], first["param_text"]) == ("1", "true", NASTY[0])
    assert (float(first["last"]), float(first["best"])) == (1 / 3, 0.1 + 0.2)
    assert (first["last_step"], first["best_step"], first["reports"], first["attempts"]) == ("20", "10", "2", "1")
    assert first["param_cost"] == "5"
    lost = found[-1]
    assert (lost["rank"], lost["last"], lost["state"]) == ("", "nan", "done")
    assert sum(Decimal(each["cost"]) for each in found) == Decimal("0.123457")


def test_json_is_strict_and_has_every_digit(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [sb.LegRow({"text": text}, (1 / 3 + n,)) for n, text in enumerate(NASTY)]
    rows += [sb.LegRow({"text": f"x{value}"}, (0.5, value)) for value in (math.nan, math.inf, -math.inf)]
    sb.make(store, rows)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    found = json.loads(printed(capsys, "tune", "-o", "json"), parse_constant=refuse)
    assert [leg["params"]["text"] for leg in found["legs"]][: len(NASTY)] == list(NASTY)
    assert found["legs"][0]["last"] == 1 / 3
    assert found["winner"] == found["legs"][0]["leg"] == leg_id({"text": NASTY[0]})
    assert found["metric"] == {"name": "val_loss", "goal": "minimize"}
    assert sorted(leg["last"] for leg in found["legs"] if leg["rank"] is None) == ["-Infinity", "Infinity", "NaN"]
    assert found["counts"] == {"done": len(rows)}
    assert found["spent"] == {"amount": "1.000000", "currency": "USD", "play": False}


def test_curves_are_every_report(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    sb.make(store, [row("1e-3", 1 / 3, math.nan)])
    (leg,) = json.loads(printed(capsys, "tune", "--curves", "-o", "json"))
    assert leg["curve"] == [[10, 1 / 3], [20, "NaN"]]
    rows = list(csv.reader(io.StringIO(printed(capsys, "tune", "--curves", "-o", "csv"))))
    assert rows[0] == ["leg", "step", "value", "at"]
    assert [each[1:3] for each in rows[1:]] == [["10", repr(1 / 3)], ["20", "nan"]]
    assert rows[1][3].endswith("Z")


def test_the_page_is_written_whole_beside_what_is_printed(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sb.make(store, THREE)
    file = tmp_path / "out.html"
    file.write_text("an older page")
    assert main(["compare", "tune", "--html", str(file), "-o", "csv"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("rank,winner,leg,")
    assert captured.err == f"page: {file} (3 legs)\n"
    text = file.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert [each.name for each in tmp_path.glob("*.part")] == []


def data_in(text: str) -> dict[str, Any]:
    """The data of a page, as a browser finds it: up to the first end of the element."""
    begun = text.split('<script type="application/json" id="data">')[1]
    found: dict[str, Any] = json.loads(begun.split("</script")[0])
    return found


@given(st.dictionaries(st.text(max_size=20), st.one_of(st.sampled_from(NASTY), st.text(max_size=40)), max_size=4))
def test_no_text_of_a_sweep_can_break_out_of_the_page(params: Mapping[str, str]) -> None:
    name = next(iter(params.values()), "t")
    leg = Leg("abc", name, params, reports=(Report(1, 0.5, 1.0),), reason=name)
    view = view_of(leg, metric=name)
    view = replace(view, job=replace(view.job, name=name))
    text = compare_page.page(view)
    plain = compare_page.page(view_of(replace(leg, params={}, name="t", reason=""), metric="m"))
    assert text.lower().count("<script") == plain.lower().count("<script") == 2
    assert text.lower().count("</script") == 2
    found = data_in(text)
    assert found["legs"][0]["params"] == dict(params)
    assert (found["name"], found["metric"]) == (name, name)


def test_the_page_asks_no_network_for_anything() -> None:
    text = compare_page.page(view_of(Leg("abc", "abc", {"lr": "1"})))
    assert "default-src 'none'" in text
    assert re.findall(r"https?://[^\s\"']+", text) == ["http://www.w3.org/2000/svg"]  # a name, not an address
    assert not re.search(
        r"\b(src|@import|fetch\(|XMLHttpRequest|innerHTML|document\.write|eval\()", text.replace("-src", "")
    )
    assert "{{" not in text.replace("{{data}}", "")


def test_a_thinned_curve_keeps_its_ends_and_peaks() -> None:
    curve = [Report(n, math.sin(n), 0.0) for n in range(10_000)]
    curve[4321] = Report(4321, 99.0, 0.0)
    curve[77] = Report(77, math.nan, 0.0)
    thin = compare_page.thinned(curve, 60)
    assert len(thin) <= 60
    assert (thin[0], thin[-1]) == (curve[0], curve[-1])
    assert curve[4321] in thin
    assert [report.step for report in thin] == sorted({report.step for report in thin})
    assert compare_page.thinned(curve[:60], 60) == curve[:60]


def test_a_page_of_500_long_legs_stays_small() -> None:
    told = tuple(Report(n, n / 7, 0.0) for n in range(2000))
    legs = [Leg(f"l{n}", "", {"lr": str(n)}, LegState.DONE, reports=told) for n in range(500)]
    assert len(compare_page.page(view_of(*legs))) < 2_000_000


def test_it_imports_nothing_heavy(store: Store) -> None:
    from test_imports_pinned import run_and_list

    sb.make(store, THREE)
    out, modules = run_and_list("compare", "tune")
    assert "* best" in out
    assert not modules & {"pydantic", "yaml", "rich", "paramiko", "httpx", "optuna", "asyncio"}


def test_idle_machines_and_strange_money_are_told(store: Store) -> None:
    job = sb.make(store, THREE, paid="1")
    view = sweep_of(store, job)
    view = replace(view, idle=Decimal("0.25"), strange=["CNY"])
    text = compare.as_table(view, view.ranked)
    assert "1.25 USD spent, 0.25 USD of it for machines that ran no leg" in text
    assert "not counted: what was paid in CNY" in text


def test_a_sweep_without_legs_says_so() -> None:
    assert compare.as_table(view_of(), []) == "t has no legs yet"
    assert compare.as_csv(view_of(), []).count("\n") == 1
