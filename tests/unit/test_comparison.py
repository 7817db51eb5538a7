"""What a plan says of offers: why each cheaper one was not taken, which filter removed how many, spot against on
demand, and what the totals rest on."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_books import Books, home_at, writer

from jobspecs.schema import JobSpec, to_document
from orchestrator import actions, prices
from orchestrator.cli import main
from orchestrator.comparison import billing_mode, funnel, removed, rows, spot_choice, warnings
from orchestrator.history import RECLAIMS_PER_H, STARTUP_S, UNKNOWN, History, history_of, records_of
from orchestrator.home import Home
from orchestrator.model import Exit, Outcome, Reason
from orchestrator.planning import Exchange, Plan, Quote, make_plan
from orchestrator.policy import REWORK_S, work_of
from providers import registry
from providers.base import Ask, Caps, GpuWish, Instance, Offer, Ref

CAPS = Caps(dead_statuses=frozenset({"gone"}), self_end="destroys", server_ttl=False, boot_hook="every_boot", spot=True)
RESUMES = {"run": "python train.py $GPUJOB_RESUME_FROM"}


def offer(hourly: str, **more: Any) -> Offer:
    values: dict[str, Any] = {
        "spot": False, "provider": "acme", "region": "eu", "currency": "USD", "gpu": "RTX-4090", "gpu_count": 1,
        "vram_gb": 24, **more,
    }  # fmt: skip
    return Offer(account="a", key=f"{hourly}{more}", hourly=Decimal(hourly), **values)


def plan_of(
    *offers: Offer, history: History = UNKNOWN, rates: dict[str, str] | None = None, **spec: Any
) -> Plan:  # fmt: skip
    values = {"name": "x", "gpu": ["RTX-4090", "A100-80GB:2"], "run": "python train.py", **spec}
    job = JobSpec.model_validate(values)
    quotes = (Quote("acme", offers, 0.0, caps=CAPS),)
    known = {name: Decimal(rate) for name, rate in (rates or {}).items()}
    money = Exchange("USD", lambda currency: known if currency == "USD" else {})
    return make_plan(job, to_document(job), {}, quotes, {}, ("acme",), history, money)


def said(plan: Plan) -> dict[str, str]:
    offers = [each for quote in plan.quotes for each in quote.offers]
    return {f"{row.offer.hourly:f}": row.why for row in rows(plan, offers)}


def test_the_total_is_startup_and_run_and_orders_the_rows() -> None:
    hour = offer("0.90", min_billing_s=7 * 86_400)
    plan = plan_of(offer("1.20"), hour, expected="4h", max_price="5 USD")
    # 10 minutes until it starts, which nobody has measured yet, and 4 h
    assert plan.expected_cost == Decimal("5")
    found = rows(plan, [hour, offer("1.20")])
    assert [row.total for row in found] == [Decimal("5"), Decimal("151.2")]
    assert said(plan) == {"1.20": "chosen", "0.90": "cheaper an hour, not in the end: billed for 168.0 h"}


def test_reclaims_are_named_when_they_make_a_spot_offer_dearer() -> None:
    spot, steady = offer("0.95", spot=True), offer("1.00")
    plan = plan_of(spot, steady, expected="10h", max_price="5 USD", **RESUMES)
    assert plan.chosen == steady
    assert said(plan)["0.95"].startswith("cheaper an hour, not in the end: 2.2 reclaims expected")
    hopeless = plan_of(
        spot, steady, expected="10h", max_price="5 USD", history=History(reclaims={"acme": 9}), **RESUMES
    )
    assert said(hopeless)["0.95"] == "cheaper an hour, not in the end: 9 reclaims an hour eat all progress"


def test_a_card_that_took_longer_before_is_named() -> None:
    slow = offer("0.50", gpu="A100-80GB-SXM", gpu_count=2, vram_gb=80)
    history = History(run_s=3600, runs=4, run_on={"RTX-4090:1": 3600, "A100-80GB-SXM:2": 36_000}, startup_s=60)
    plan = plan_of(slow, offer("1.00"), max_price="5 USD", history=history)
    assert said(plan) == {"1.00": "chosen", "0.50": "cheaper an hour, not in the end: took 10.0 h there before"}


def test_without_a_length_offers_are_compared_by_the_hour() -> None:
    plan = plan_of(offer("1.20"), offer("0.90", min_billing_s=7 * 86_400), max_price="5 USD")
    assert said(plan) == {"0.90": "chosen", "1.20": "not cheaper than the chosen one"}
    assert plan.expected_cost is None


def test_every_filter_says_how_many_it_removed() -> None:
    plan = plan_of(
        offer("0.10", spot=True), offer("0.20", spot=True), offer("0.30"),
        offer("3", gpu="A100-80GB-SXM", gpu_count=2, vram_gb=80), offer("9", gpu="A100-80GB-SXM", gpu_count=2),
        offer("1", gpu="A100-80GB-SXM", gpu_count=2, vram_gb=80, currency="CNY"),
        max_price="5 USD", model={"params": "33B"},
    )  # fmt: skip
    assert removed(plan) == [("spot", 2), ("model", 2), ("currency", 1)]
    assert plan.chosen is not None
    assert plan.chosen.hourly == 3
    assert said(plan)["0.30"].startswith("24 GB of GPU memory, the model needs ")


def test_when_nothing_satisfies_a_spec_each_key_says_what_it_leaves_out() -> None:
    there = [offer("1", memory=16, cpus=8), offer("2", memory=32, region="us"), offer("3", memory=32, spot=True)]
    ask = Ask(gpus=(GpuWish("RTX-4090", 24, 1),), regions=("eu",), spot=False, memory_min=24)
    assert funnel(ask, there) == [("regions", 1), ("spot", 1), ("memory", 1)]
    assert funnel(Ask(), there) == []


def test_spot_pays_up_to_a_rate_even_where_the_cap_follows_from_spot() -> None:
    plan = plan_of(offer("0.50", spot=True), offer("1.50"), expected="4h", **RESUMES)
    assert plan.ranked == (offer("0.50", spot=True),)
    choice = spot_choice(plan)
    assert choice is not None
    assert (choice.demand.hourly, choice.reclaims_per_h) == (Decimal("1.50"), RECLAIMS_PER_H)
    # at three times the price two thirds of the time may be lost: 2400 of 3600 s, at 600 + 900 s a reclaim
    assert choice.breakeven_per_h == pytest.approx(1.6, abs=0.001)
    assert spot_choice(plan_of(offer("0.50", spot=True), expected="4h", **RESUMES)) is None


def test_limits_and_totals_are_in_the_specs_own_currency() -> None:
    yuan = offer("10", currency="CNY")
    plan = plan_of(yuan, expected="2h", budget="50 USD", ttl="10h", rates={"CNY": "0.1"})
    assert (plan.currency, plan.price_cap) == ("USD", Decimal("1.5"))
    # 10 h at the cap of 1.50 USD, and ten minutes
    assert plan.worst_case == Decimal("15.25")
    assert plan.expected_cost == pytest.approx(Decimal(2 + 1 / 6), abs=Decimal("0.001"))
    assert plan.reserve == pytest.approx(Decimal(10 + 1 / 6), abs=Decimal("0.001"))
    alone = plan_of(yuan, expected="2h")
    assert (alone.currency, alone.price_cap) == ("CNY", Decimal("15"))


def test_limits_that_end_the_job_before_it_is_done_are_said() -> None:
    assert warnings(plan_of(offer("1"), expected="4h", ttl="5h", budget="9 USD")) == []
    assert warnings(plan_of(offer("1"), expected="4h", ttl="4h")) == [
        "4.2 h with starts and rework are longer than the ttl, which ends the job before"
    ]
    assert warnings(plan_of(offer("1"), expected="4h", budget="3 USD")) == [
        "4.17 USD are expected, and the budget ends the job at 3.00"
    ]
    assert warnings(plan_of(offer("1"))) == []
    legs = {"parameters": {"lr": ["0.1", "0.2"]}, "budget": "100 USD"}
    assert warnings(plan_of(offer("1"), expected="4h", ttl="4h", sweep=legs)) == []  # no start of a machine is in it


def test_cards_without_a_link_are_said() -> None:
    two = plan_of(offer("1", gpu_count=2), gpu="RTX-4090:2")
    assert warnings(two, nvlink=False) == ["2 x RTX-4090 have no NVLink: what they exchange goes over PCIe"]
    assert warnings(two, nvlink=True) == []
    assert warnings(plan_of(offer("1")), nvlink=False) == []


def test_three_kinds_of_job_are_rented_in_three_ways() -> None:
    spot, steady = offer("0.4", spot=True), offer("1")
    assert billing_mode(plan_of(spot, steady, expected="4h", **RESUMES)).startswith("by bid (spot)")
    assert billing_mode(plan_of(spot, steady, expected="4h")) == "by the hour"
    assert billing_mode(plan_of(spot, steady, expected="200h", ttl="300h")) == (
        "200.2 h without a break: ask for a weekly or monthly price before renting by the hour"
    )


def test_a_package_is_named_where_it_costs_less_than_its_hours() -> None:
    packages = {"day": "20", "week": "110.50 USD", "month": 400}

    def said_of(expected: str, hourly: str = "1", **more: Any) -> str:
        return billing_mode(plan_of(offer(hourly, raw={"packages": packages}, **more), expected=expected, ttl="900h"))

    assert said_of("167h") == (
        "167.2 h by a week at acme would be 110.50 instead of 167.17 USD by the hour: rent it in its console and add "
        "it by `gpujob host add`"
    )
    assert said_of("600h").startswith("600.2 h by a month at acme would be 400.00 instead of 600.17 USD")
    assert said_of("22h").startswith("22.2 h by a day at acme would be 20.00 instead of 22.17 USD")
    assert said_of("190h").startswith("190.2 h by 8 days at acme would be 160.00 instead of 190.17 USD")
    assert said_of("19h") == "by the hour"
    assert said_of("167h", "2", gpu_count=2, gpu="RTX-4090").startswith("167.2 h by a week at acme would be 221.00 ")
    packages.clear()
    assert "ask for a weekly" in said_of("167h")


def work(history: History = UNKNOWN, **spec: Any) -> Any:
    return work_of(JobSpec.model_validate({"name": "x", "gpu": "T4", "run": "x", **spec}), history)


def test_where_the_length_comes_from() -> None:
    known = History(run_s=7200, runs=3, run_on={"T4:1": 7200}, startup_s=90)
    assert work() is None
    assert (work(expected="1h").run_s, work(expected="1h").startup_s) == (3600, STARTUP_S)
    assert (work(known).run_s, work(known).startup_s, work(known).run_on) == (7200, 90, {"T4:1": 7200})
    assert (work(known, expected="1h").run_s, work(known, expected="1h").run_on) == (3600, {})
    assert work(workload="serve", ttl="5h").run_s == 5 * 3600
    assert work(expected="1h").rework_s == REWORK_S
    assert work(expected="1h", checkpoint={"every": "10m"}).rework_s == 300


# --- history ---


def done(home: Home, run: int, hours: float, boot: float = 100.0, gpu: str = "RTX-4090", lost: bool = False) -> None:
    """A finished run of `digits`: `boot` seconds until its run was ordered, then `hours`."""
    with writer(home) as store:
        books = Books(store, run=run, now=1000.0 * run)
        rental = _rent(books, gpu)
        books.now += boot - 3
        books.apply(actions.StoreReady(rental))
        books.run(rental)
        ordered = books.now
        if lost:
            books.now = ordered + 1800 - 1
            books.lose(rental)
            rental = _rent(books, gpu)
            books.now += boot - 3
            books.apply(actions.StoreReady(rental))
            books.run(rental, n=2)
            ordered = books.now
        books.apply(actions.StoreExit("t0", 2 if lost else 1, Exit("run", 0, ordered + hours * 3600)))
        books.now = ordered + hours * 3600
        books.decide(Outcome.DONE, Reason.DONE)
        books.finish(rental)


def _rent(books: Books, gpu: str) -> str:
    made = books.apply(
        actions.OpenRental(offer("1", gpu=gpu, spot=True), books.now + 3600, Reason.TTL, Decimal("0.40"))
    )
    books.store.create_sent(made[0].id, books.now)
    books.apply(
        actions.RecordInstance(made[0].id, Instance(Ref("acme", "a", "eu", f"i-{made[0].id}"), "running", None))
    )
    return made[0].id


def test_history_is_the_median_of_the_newest_done_runs(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    for run, hours in enumerate([90, 1, 2, 3, 4, 50], start=1):
        done(home, run, hours, boot=100.0 * run)
    with writer(home) as store:
        found = history_of(store, "digits", 1e6)
        assert history_of(store, "other", 1e6).run_s is None
    assert (found.run_s, found.runs) == (3 * 3600, 5)  # of 1, 2, 3, 4 and 50 h: the first run was other code
    assert found.startup_s == pytest.approx(400, abs=3)
    assert found.run_on == {"RTX-4090:1": 3 * 3600}


def test_a_lost_machine_counts_to_the_length_and_to_the_rate_of_its_provider(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    done(home, 1, 1.0, lost=True)
    with writer(home) as store:
        found = history_of(store, "digits", 1e6)
    assert found.run_s == pytest.approx(1800 + 3600, abs=3)
    # one reclaim in about 1.5 h leans on 2 in 10 h of the guess
    assert found.reclaims["acme"] == pytest.approx((1 + RECLAIMS_PER_H * 10) / (found.spot_hours + 10))
    assert found.spot_hours == pytest.approx(1.5, abs=0.1)


def test_the_record_of_a_provider_counts_what_became_of_each_create(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    done(home, 1, 1.0, lost=True)
    done(home, 2, 1.0)
    with writer(home) as store:
        (found,) = records_of(store, 1e6).items()
        assert found[0] == "acme"
        assert (found[1].creates, found[1].refused, found[1].bad_hosts, found[1].reclaimed) == (3, 0, 0, 1)
        assert found[1].ready_s is not None
        assert records_of(store, 1e9) == {}, "what is older than 90 days is forgotten"


# --- the verb ---


@pytest.fixture
def market(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Offer]:
    """One provider, whose offers are those of the list."""
    there: list[Offer] = []
    provider = SimpleNamespace(
        name="acme", caps=CAPS, offers=lambda ask: tuple(each for each in there if prices.satisfies(each, ask))
    )
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GPUJOB_CONFIG", raising=False)
    monkeypatch.setattr(registry, "names", lambda: ("acme",))
    monkeypatch.setattr(registry, "get_provider", lambda name, config: provider)
    monkeypatch.chdir(tmp_path)
    return there


def planned(capsys: pytest.CaptureFixture[str], code: int = 0, **spec: Any) -> tuple[str, Any]:
    """The plan as text and as JSON."""
    values = {"name": "x", "gpu": "RTX-4090", "providers": ["acme"], "run": "python train.py", **spec}
    Path("job.yaml").write_text(json.dumps(values), encoding="utf-8")
    assert main.main(["plan", "job.yaml"]) == code
    text = capsys.readouterr().out
    assert main.main(["plan", "job.yaml", "-o", "json"]) == code
    return text, json.loads(capsys.readouterr().out)


def test_a_model_that_no_card_asked_for_holds_says_what_would(
    market: list[Offer], capsys: pytest.CaptureFixture[str]
) -> None:
    big = offer("2.40", gpu="A100-80GB-SXM", gpu_count=2, vram_gb=80)
    market += [offer("0.80", gpu_count=2), big]
    text, found = planned(capsys, 4, gpu="RTX-4090:2", model={"params": "7B", "method": "full"})
    assert (
        "2 x RTX-4090 (48 GB) fits only with ZeRO-3 or offload (slower); "
        "bigger card 2 x A100-80GB-SXM at acme costs 2.40 USD/h"
    ) in text
    assert "instead   7B LoRA, bf16: 18.62 GB, one card of 20 GB" in text
    assert found["memory"]["bigger"]["gpu"] == "A100-80GB-SXM"
    assert found["removed"] == {"model": 1}
    # on two cards of 80 GB there is nothing to squeeze
    text, found = planned(capsys, gpu="A100-80GB-SXM:2", model={"params": "7B", "method": "full"})
    assert "ZeRO" not in text
    assert found["memory"] == {"need_gb": 140, "more_per_card_gb": 0, "bigger": None}


def test_a_job_for_which_no_card_could_ever_do_is_not_applied(
    market: list[Offer], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    market += [offer("0.80")]
    monkeypatch.setenv("GPUJOB_CONTROLLER", "here")
    values = {
        "name": "x", "gpu": "RTX-4090", "providers": ["acme"], "run": "x", "max_price": "2 USD",
        "model": {"params": "7B", "method": "full"},
    }  # fmt: skip
    Path("job.yaml").write_text(json.dumps(values), encoding="utf-8")
    monkeypatch.setattr("orchestrator.cli.client.start_early", lambda home: None)
    assert main.main(["apply", "job.yaml", "-y"]) == 2
    said = capsys.readouterr().err
    assert "no GPU that the spec asks for holds its model" in said
    assert "the model needs 140 GB of GPU memory" in said


def test_a_near_limit_is_said(market: list[Offer], capsys: pytest.CaptureFixture[str]) -> None:
    market += [offer("0.40")]
    text, _ = planned(capsys, model={"params": "7B", "method": "lora"})
    assert "RTX-4090 is near the limit: with gradient checkpointing only" in text


def test_the_basis_of_the_totals_is_said(market: list[Offer], capsys: pytest.CaptureFixture[str]) -> None:
    market += [offer("0.50", spot=True), offer("1.50")]
    text, found = planned(capsys, expected="4h", **RESUMES)
    assert "time       4h00m (expected), and 10m00s until it starts (a guess)" in text
    assert "spot       cheaper in the end below 1.6 reclaims an hour; counted with 0.2 an hour (a guess)" in text
    assert "left out   1 by max_price" in text
    assert found["work"] == {"run_s": 14_400, "startup_s": 600, "rework_s": 900, "earlier_runs": 0}
    assert found["spot"]["breakeven_per_h"] == pytest.approx(1.6, abs=0.001)
    assert (found["warnings"], "rent       by bid (spot)" in text) == ([], True)
    text, found = planned(capsys)
    assert "time       unknown, so offers are compared by the hour" in text
    assert (found["work"], found["spot"], found["expected_cost"]) == (None, None, None)


def test_the_median_of_earlier_runs_is_used_and_said(market: list[Offer], capsys: pytest.CaptureFixture[str]) -> None:
    market += [offer("1.00")]
    for run in (1, 2, 3):
        done(Home.from_env().make(), run, 2.0, boot=360.0)
    text, found = planned(capsys, name="digits")
    assert "time       2h00m (median of 3 earlier runs), and 6m" in text
    assert float(found["expected_cost"]["amount"]) == pytest.approx(2.1, abs=0.001)


def test_nothing_on_offer_names_the_keys_that_leave_nothing(
    market: list[Offer], capsys: pytest.CaptureFixture[str]
) -> None:
    market += [offer("1", memory=16 * 10**9, cpus=8), offer("2", memory=32 * 10**9, cpus=8)]
    text, found = planned(capsys, 4, memory="64GB")
    assert "memory leaves out 2 that have the GPU" in text
    assert found["removed"] == {"memory": 2}


def test_two_consumer_cards_are_warned_of(market: list[Offer], capsys: pytest.CaptureFixture[str]) -> None:
    market += [offer("1.00", gpu_count=2), offer("1.00", gpu="A100-80GB-SXM", gpu_count=2, vram_gb=80)]
    text, found = planned(capsys, gpu="RTX-4090:2")
    assert "warning    2 x RTX-4090 have no NVLink" in text
    assert len(found["warnings"]) == 1
    assert planned(capsys, gpu="A100-80GB-SXM:2")[1]["warnings"] == []


def test_prices_of_another_day_still_make_a_plan(market: list[Offer], capsys: pytest.CaptureFixture[str]) -> None:
    home = Home.from_env().make()
    ask = Ask(gpus=(GpuWish("RTX-4090", 24, 1),), spot=False)
    prices.remember(home, "acme", ask, [offer("0.70")], 1_000_000.0)
    registry.get_provider("acme", None).offers = _no_network  # type: ignore[arg-type, method-assign]
    text, found = planned(capsys)
    assert "acme: 1 offer, prices of 1970-01-12" in text
    assert found["chosen"]["hourly"]["amount"] == "0.70"


def _no_network(ask: Ask) -> tuple[Offer, ...]:
    from providers.errors import Ambiguous

    raise Ambiguous("no route", provider="acme")


def test_the_same_offer_is_chosen_by_plan_and_by_controller() -> None:
    from orchestrator.placement import rank

    offers = (offer("0.95", spot=True), offer("1.00"), offer("0.90", min_billing_s=7 * 86_400))
    plan = plan_of(*offers, expected="10h", max_price="5 USD", **RESUMES)
    assert rank(offers, replace(plan.policy), {}).ranked[0] == plan.chosen
