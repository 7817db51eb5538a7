"""offers: order, filters, what is said of a provider that fails, and the last prices when nothing answers."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import prices
from orchestrator.cli import main, quotes
from orchestrator.cli.output import WIDTH
from orchestrator.home import Home
from providers import registry
from providers.base import Ask, Caps, GpuWish, Offer
from providers.errors import Ambiguous

CAPS = Caps(dead_statuses=frozenset(), self_end="destroys", server_ttl=True, boot_hook="every_boot", spot=True)


def offer(provider: str, hourly: str, currency: str = "USD", **more: Any) -> Offer:
    values: dict[str, Any] = {"gpu": "RTX-4090", "gpu_count": 1, "vram_gb": 24, "spot": False, "region": "eu", **more}
    return Offer(
        provider=provider, account="a", key=f"{hourly}{more}", hourly=Decimal(hourly), currency=currency, **values
    )


class World:
    """Providers by name: a list of offers, an error that is raised instead, or an event that is waited for first."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Offer] | Exception | Event] = {}
        self.asked: list[Ask] = []

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.answers))

    def get(self, name: str, _: Any) -> Any:
        def offers(ask: Ask) -> tuple[Offer, ...]:
            self.asked.append(ask)
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, Event):
                assert answer.wait(60)
                return ()
            return tuple(each for each in answer if prices.satisfies(each, ask))

        return SimpleNamespace(name=name, caps=CAPS, offers=offers)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path))
    monkeypatch.delenv("GPUJOB_CONFIG", raising=False)
    monkeypatch.setattr(registry, "names", made.names)
    monkeypatch.setattr(registry, "get_provider", made.get)
    home = Home.from_env().make()
    home.config_file.write_text(
        "providers: {acme: {}, other: {}}\nrates: {CNY: {rate: 0.14, as_of: 2026-11-30}}\n", encoding="utf-8"
    )
    made.answers = {
        "acme": [offer("acme", "0.50"), offer("acme", "0.20", spot=True), offer("acme", "2.00", gpu_count=4)],
        "other": [offer("other", "2.10", "CNY", region="bj", min_billing_s=3600, billing_step_s=60)],
    }
    return made


def shown(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[tuple[str, str]]:
    """(provider, price) of every row, as listed."""
    assert main.main(["offers", *words, "-o", "json"]) == code
    document = json.loads(capsys.readouterr().out)
    return [(each["provider"], each["hourly"]["amount"]) for each in document["offers"]]


def test_the_cheapest_is_first_whatever_its_currency(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    # 2.10 CNY are 0.294 USD
    assert shown(capsys) == [("acme", "0.20"), ("other", "2.10"), ("acme", "0.50"), ("acme", "2.00")]


def test_a_currency_without_a_rate_stands_last(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    Home.from_env().config_file.write_text("providers: {acme: {}, other: {}}\n", encoding="utf-8")
    assert shown(capsys)[-1] == ("other", "2.10")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--spot"], ["0.20"]),
        (["--on-demand", "--provider", "acme"], ["0.50", "2.00"]),
        (["--region", "bj"], ["2.10"]),
        (["--region", "acme/eu", "--spot"], ["0.20"]),
        (["--gpu", "4090:4"], ["2.00"]),
        (["--max-price", "0.30"], ["0.20", "2.10"]),
        (["--max-price", "3 CNY"], ["0.20", "2.10"]),
    ],
)
def test_filters(words: list[str], expected: list[str], world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert [price for _, price in shown(capsys, *words)] == expected


def test_nothing_that_matches_is_no_capacity(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--gpu", "H100", code=4) == []


def test_a_failing_provider_is_named_and_the_others_are_shown(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.answers["other"] = KeyError("price")
    assert main.main(["offers"]) == 0
    said = capsys.readouterr().out
    assert "other: 0 offers, asked now; a bug in the provider: KeyError: 'price'" in said
    assert "acme: 3 offers, asked now" in said


def test_without_a_network_the_last_prices_are_shown_with_their_date(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shown(capsys)
    world.answers = {name: Ambiguous("no route", provider=name) for name in world.answers}
    assert shown(capsys) == before
    assert [price for _, price in shown(capsys, "--gpu", "4090:4")] == ["2.00"]  # out of the wider answer
    main.main(["offers"])
    said = capsys.readouterr().out
    assert "acme: 3 offers, prices of 20" in said
    assert "no route" in said


def test_one_that_hangs_is_left_behind_with_its_last_prices(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shown(capsys, "--provider", "other")
    world.answers["other"] = never = Event()
    monkeypatch.setattr(quotes, "PATIENCE_S", 0.01)
    assert shown(capsys, "--provider", "other") == before
    assert main.main(["offers", "--provider", "other"]) == 0
    assert "other: 1 offer, prices of 20" in (said := capsys.readouterr().out)
    assert "; no answer within 0 s" in said
    never.set()


def test_nobody_ever_asked_and_no_network_is_a_providers_failure(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.answers = {name: Ambiguous("no route", provider=name) for name in world.answers}
    assert shown(capsys, code=3) == []


def test_the_table_is_as_wide_as_a_terminal_and_has_the_columns_of_money(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.answers["acme"] = [
        offer("acme", "12.3456", gpu="A100-80GB-SXM", gpu_count=8, region="a-very-long-region-name-indeed" * 3)
    ]
    assert main.main(["offers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["PROVIDER", "REGION", "GPU", "VRAM", "SPOT", "PRICE/H", "AT", "LEAST", "STEP"]
    assert lines[1].split() == ["other", "bj", "RTX-4090", "24", "GB", "no", "2.10", "CNY", "1h00m", "1m00s"]
    assert max(map(len, lines[:3])) <= WIDTH


def test_a_long_market_is_cut_and_says_so(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.answers["acme"] = [offer("acme", f"{number}.00") for number in range(1, 100)]
    assert main.main(["offers", "--limit", "10"]) == 0
    assert "... and 90 more" in capsys.readouterr().out


def test_local_is_asked_only_by_name(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.answers["local"] = [offer("local", "0.01")]
    assert ("local", "0.01") not in shown(capsys)
    assert shown(capsys, "--provider", "local") == [("local", "0.01")]


def test_break_even_with_the_price_of_an_offer_moves_with_it(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def percent() -> float:
        assert main.main(["breakeven", "--own-monthly", "180", "--gpu", "4090", "-o", "json"]) == 0
        return float(json.loads(capsys.readouterr().out)["break_even"][0]["percent"])

    world.answers["other"] = []
    assert percent() == 50.0  # on demand at 0.50, never the spot price
    world.answers["acme"] = [offer("acme", "1.00")]
    assert percent() == 25.0


def test_prices_that_cannot_be_read_are_no_prices(world: World) -> None:
    home, ask = Home.from_env(), Ask(gpus=(GpuWish("RTX-4090", 24, 1),))
    prices.remember(home, "acme", ask, [offer("acme", "0.50")], 1000.0)
    assert prices.recall(home, "acme", ask) == (1000.0, (offer("acme", "0.50"),))
    assert prices.recall(home, "other", ask) is None
    for path in (home.state / "prices").iterdir():
        path.write_text("{", encoding="utf-8")
    assert prices.recall(home, "acme", ask) is None


def test_prices_of_last_month_are_forgotten(world: World) -> None:
    home, ask = Home.from_env(), Ask()
    prices.remember(home, "acme", ask, [], 1000.0)
    for path in (home.state / "prices").iterdir():
        os.utime(path, (1000, 1000))
    prices.remember(home, "acme", replace(ask, spot=True), [], 1000.0 + prices.KEEP_S + 1)
    assert prices.recall(home, "acme", ask) is None
