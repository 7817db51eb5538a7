"""The money of a month: four classes, hours x price, phases that add up to what is billed, and hours that computed."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import core_facts as cf
import pytest
from cli_books import Books, home_at, writer
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli import main
from orchestrator.cli.output import WIDTH
from orchestrator.home import Home
from orchestrator.model import Exit, Reason, Rental, RentalPhase
from orchestrator.money_report import Machine, Report, Unit, class_of, report, within
from orchestrator.paid_time import Busy, Stage, busy_of, phases_of, stages_of
from orchestrator.store.rows import Bill

T0, HOUR, DAY = cf.T0, 3600.0, 86_400.0
MONTH = 30 * DAY
USD = Unit("USD")


def bill(amount: str, kind: str = "instance", rental: str = "r1", job: str = "j1", **more: Any) -> Bill:
    values: dict[str, Any] = {"currency": "USD", "play": False, "since": T0, "until": T0 + MONTH, **more}
    return Bill(rental, job, "prov", "a", "eu", kind, Decimal(amount), **values)


def machine(rental: str, hours: float, gpu: str = "RTX-4090", **changes: Any) -> Machine:
    row: Rental = replace(cf.rental(1), id=rental, offer=replace(cf.OFFER, gpu=gpu))
    return Machine(replace(row, **changes), {"train": hours * HOUR})


def of(bills: list[Bill], machines: dict[str, Machine] | None = None, **more: Any) -> Report:
    values: dict[str, Any] = {"since": T0, "until": T0 + MONTH, "currency": "USD", "rates": {}, **more}
    return report(bills, machines or {}, {"j1": "digits"}, **values)


def test_a_month_of_21_000_falls_into_four_classes() -> None:
    found = of(
        [
            bill("5800"), bill("5500", rental="r2"), bill("3200", rental="r3"), bill("2000", "disk"),
            bill("200", "snapshot"), bill("1800", "egress"), bill("2500", "address"),
        ]
    )  # fmt: skip
    assert {name: each.get(USD) for name, each in found.classes.items()} == {
        "instances": 14_500, "storage": 2200, "traffic": 1800, "other": 2500,
    }  # fmt: skip
    assert found.total == {USD: Decimal(21_000)}
    assert class_of("something-new") == "other"


def test_hours_times_price_is_the_sum_of_each_class_of_card() -> None:
    found = of(
        [bill("1440"), bill("138", rental="r2"), bill("90", rental="r3"), bill("10", rental="r4")],
        {
            "r1": machine("r1", 720, "A100-80GB-SXM"), "r2": machine("r2", 46, "H100-SXM"),
            "r3": machine("r3", 270), "r4": machine("r4", 30),
        },
    )  # fmt: skip
    assert [(line.gpu, line.machines, line.billed_s / HOUR, line.amount) for line in found.gpus] == [
        ("A100-80GB-SXM", 1, 720, 1440), ("H100-SXM", 1, 46, 138), ("RTX-4090", 2, 300, 100),
    ]  # fmt: skip
    for line in found.gpus:
        assert line.price * Decimal(line.billed_s) / 3600 == pytest.approx(line.amount)


def test_a_bill_across_the_edge_counts_by_its_seconds() -> None:
    long = bill("300", since=T0 - 2 * MONTH, until=T0 + MONTH)
    assert within(long, T0, T0 + MONTH) == 100
    assert within(long, T0 + MONTH, T0 + 2 * MONTH) == 0
    assert within(bill("7", since=T0, until=T0), T0, T0 + 1) == 7
    assert of([long]).total == {USD: Decimal(100)}


def test_currencies_and_play_money_are_never_mixed() -> None:
    bills = [bill("10"), bill("70", currency="CNY"), bill("3", currency="EUR"), bill("9", play=True)]
    found = of(bills, rates={"CNY": Decimal("0.1")})
    assert found.total == {USD: Decimal(17), Unit("EUR"): Decimal(3), Unit("USD", True): Decimal(9)}


def test_bad_hosts_flags_and_jobs() -> None:
    found = of(
        [
            bill("3", rental="bad"), bill("2200", "snapshot", since=T0 - 40 * DAY, until=T0), bill("5", "snapshot"),
            bill("1500", rental="left"), bill("300", "cross-region"),
        ],
        {
            "bad": machine("bad", 0.5, reason=Reason.BAD_HOST),
            "left": replace(machine("left", 9), orphaned=True),
        },
        since=T0 - 40 * DAY,
    )  # fmt: skip
    assert (found.bad_host_s / 60, found.bad_host) == (30, {USD: Decimal(3)})
    assert [flag.amount for flag in found.flags] == [2200, 1500, 300]
    assert found.names == [("digits", {USD: Decimal(4008)})]


@pytest.mark.parametrize(
    ("days", "kind"),
    [(dict.fromkeys(range(30), 4 * HOUR), "flat"), ({3: 40 * HOUR, 4: 1 * HOUR}, "spiky"), ({}, None)],
)
def test_a_load_is_flat_or_spiky(days: dict[int, float], kind: str | None) -> None:
    each = replace(machine("r1", 9), busy=Busy(1.0, 1.0, days))
    demand = of([bill("1")], {"r1": each}).demand
    assert (demand[0] if demand else None) == kind


# --- where the paid time went ---


def test_ten_hours_billed_and_half_an_hour_of_work_are_five_percent() -> None:
    events = [
        {"t": "sample", "at": T0 + at, "gpus": [{"util": 96 if 3600 <= at < 5400 else 3}]}
        for at in range(0, 36_000, 10)
    ]
    busy = busy_of(events, T0, T0 + 36_000)
    assert (busy.seen_s, busy.busy_s) == (36_000, 1800)
    assert busy.busy_s / busy.seen_s == 0.05


def test_samples_count_by_the_share_of_cards_and_not_over_silence() -> None:
    events = [
        {"t": "sample", "at": T0, "gpus": [{"util": 50}, {"util": 10}]},
        {"t": "sample", "at": T0 + 10, "gpus": []},
        {"t": "sample", "at": T0 + 20, "gpus": [{"util": 50}]},
    ]
    busy = busy_of(events, T0, T0 + 5000)
    # the first lasts 20 s with one card of two; the last one is believed for a minute
    assert (busy.seen_s, busy.busy_s) == (20 + 60, 10 + 60)


def test_a_stage_without_an_end_lasts_until_its_machine_was_last_heard() -> None:
    events = [
        {"t": "stage", "at": 1.0, "run": "t0.1", "stage": "setup", "state": "start"},
        {"t": "stage", "at": 3.0, "run": "t0.1", "stage": "setup", "state": "end"},
        {"t": "stage", "at": 3.0, "run": "t0.1", "stage": "run", "state": "start"},
        {"t": "sample", "at": 9.0},
    ]
    assert stages_of(events) == [Stage("t0.1", "setup", 1.0, 3.0), Stage("t0.1", "run", 3.0, 9.0)]


def test_every_second_of_a_finished_machine_has_its_phase() -> None:
    row = replace(
        cf.rental(1, RentalPhase.GONE), ready_at=T0 + 60, releasing_at=T0 + 900, gone_at=T0 + 960,
        offer=replace(cf.OFFER, min_billing_s=3600),
    )  # fmt: skip
    run = cf.assignment(committed_at=T0 + 61, ordered_at=T0 + 100, exit=Exit("run", 0, T0 + 700), results_at=T0 + 730)
    stages = [Stage("t0.1", "setup", T0 + 110, T0 + 200), Stage("t0.1", "run", T0 + 200, T0 + 700)]
    assert phases_of(row, [run], stages, T0 + 960) == {
        "boot": 60, "transfer": 40 + 30, "setup": 90, "train": 500, "idle": 170, "teardown": 60,
        "unassigned": 10, "rounding": 3600 - 960,
    }  # fmt: skip
    # without events the time of the run is known, but not what it was
    bare = phases_of(row, [run], [], T0 + 960)
    assert (bare["unassigned"], bare["train"], bare["setup"]) == (600, 0, 0)


def test_only_the_seconds_within_the_month_count() -> None:
    row = replace(cf.rental(1), ready_at=T0 + 60, offer=replace(cf.OFFER, min_billing_s=7200))
    stages = [Stage("t0.1", "run", T0 + 100, T0 + 4000)]
    early = phases_of(row, [], stages, T0 + 4000, (0.0, T0 + 1000))
    late = phases_of(row, [], stages, T0 + 4000, (T0 + 1000, T0 + MONTH))
    assert (early["train"], early["rounding"]) == (900, 0)
    assert (late["train"], late["rounding"]) == (3000, 3200)
    assert sum(early.values()) + sum(late.values()) == 7200


times = st.none() | st.integers(0, 5000)


@given(
    ready=times, ordered=times, exited=times, results=times, releasing=times, until=st.integers(1, 6000),
    stages=st.lists(st.tuples(st.sampled_from(["setup", "run", "odd"]), times, times), max_size=4),
    minimum=st.sampled_from([0, 3600]), step=st.sampled_from([1, 60]),
)  # fmt: skip
def test_phases_always_add_up_to_what_is_billed(
    ready: int | None, ordered: int | None, exited: int | None, results: int | None, releasing: int | None,
    until: int, stages: list[tuple[str, int | None, int | None]], minimum: int, step: int,
) -> None:  # fmt: skip
    def at(value: int | None) -> float | None:
        return None if value is None else T0 + value

    offer = replace(cf.OFFER, min_billing_s=minimum, billing_step_s=step)
    row = replace(cf.rental(1), offer=offer, ready_at=at(ready), releasing_at=at(releasing))
    run = cf.assignment(
        committed_at=T0, ordered_at=at(ordered), results_at=at(results),
        exit=Exit("run", 0, T0 + exited) if exited is not None else None,
    )  # fmt: skip
    found = phases_of(
        row, [run], [Stage("t0.1", name, T0 + (low or 0), at(high)) for name, low, high in stages], T0 + until
    )
    assert all(seconds >= 0 for seconds in found.values())
    assert sum(found.values()) == max(minimum, -(-until // step) * step)


# --- the verb ---


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path))
    monkeypatch.delenv("GPUJOB_CONFIG", raising=False)
    return home_at(tmp_path)


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main.main(["report", *words, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def spend(home: Home, provider: str = "prov", play: bool = False) -> None:
    """One hour on 2026-11-10: 100 s of boot, 200 s of setup, 3000 s of running."""
    start = 1_794_300_000.0
    with writer(home) as store:
        books = Books(store, now=start)
        rental = books.rent(ready=False, hourly="0.36", provider=provider)
        books.now = start + 100
        from orchestrator import actions

        books.apply(actions.StoreReady(rental))
        books.run(rental)
        events = home.events(books.id, rental)
        events.parent.mkdir(parents=True)
        run = {"t": "stage", "run": "t0.1"}
        lines: list[dict[str, Any]] = [
            {**run, "at": start + 102, "stage": "setup", "state": "start"},
            {**run, "at": start + 302, "stage": "setup", "state": "end"},
            {**run, "at": start + 302, "stage": "run", "state": "start"},
            *({"t": "sample", "at": start + at, "gpus": [{"util": 90}]} for at in range(302, 3302, 10)),
            {**run, "at": start + 3302, "stage": "run", "state": "end"},
        ]
        events.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        books.now = start + 3302
        books.exit()
        store.bill(rental, "instance", Decimal("0.36"), start + 1 + 3600, play=play)
        books.decide_done(rental)


def test_a_month_from_the_books(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    spend(home)
    found = document(capsys, "--month", "2026-11")
    assert (found["since"], found["total"]) == (
        "2026-11-01T00:00:00.000Z", [{"amount": "0.36", "currency": "USD", "play": False}],
    )  # fmt: skip
    (line,) = found["machines"]
    assert (line["gpu"], line["billed_s"], line["price"]["amount"]) == ("RTX-4090 stand-in", 3600, "0.360000")
    assert (line["busy_s"], found["phases_s"]["setup"], found["phases_s"]["train"]) == (3000 + 50, 200, 3000)
    assert sum(found["phases_s"].values()) == 3600
    assert document(capsys, "--month", "2026-10")["total"] == []


def test_play_money_only_when_asked_for(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    spend(home, "local", play=True)
    assert document(capsys, "--month", "2026-11")["machines"] == []
    found = document(capsys, "--month", "2026-11", "--play")
    assert found["total"] == [{"amount": "0.36", "currency": "USD", "play": True}]


def test_the_tables_say_the_same_within_the_width_of_a_terminal(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    spend(home)
    assert main.main(["report", "--month", "2026-11"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert [line.split() for line in lines if line.startswith("instances")] == [
        ["instances", "0.36", "USD", "100", "%"]
    ]
    assert any(line.split()[:2] == ["train", "0.83"] for line in lines)


def test_no_books_are_an_empty_report(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "--since", "30d")["total"] == []


@pytest.mark.parametrize("words", [["--month", "2026-13"], ["--month", "November"], ["--since", "soon"]])
def test_what_is_no_time_is_refused(words: list[str], home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["report", *words]) == 2
    assert words[0] in capsys.readouterr().err
