"""`providers` shows what the configured accounts can spend, and waits for none of them long."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.balances import balances, shortfall
from orchestrator.cli.main import main
from orchestrator.config import load_config
from orchestrator.home import Home
from providers import registry
from providers.autodl import CAPS
from providers.base import Balance, Caps, ProviderConfig
from providers.errors import AuthFailed

RICH = Balance(Decimal("123.456"), "CNY")


class Teller:
    """A provider whose balance is scripted."""

    caps: Caps = CAPS
    outcome: Any = RICH

    def __init__(self, config: ProviderConfig) -> None:
        self.config = config

    def balance(self) -> Balance:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        found: Balance = self.outcome
        return found


class Silent(Teller):
    def __init__(self) -> None:
        self.let = threading.Event()

    def balance(self) -> Balance:
        self.let.wait(30)
        return RICH


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(registry, "get_provider", lambda name, config: Teller(config))
    monkeypatch.setattr(Teller, "outcome", RICH)
    monkeypatch.setattr(Teller, "caps", CAPS)
    home = Home.from_env().make()
    home.config_file.write_text("providers: {autodl: {}}\n")
    return home.config_file


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["providers", "-o", "json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_the_balance_of_a_configured_account_is_shown(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys)
    assert found["autodl"]["balance"] == {"amount": "123.456", "currency": "CNY", "play": False}
    assert (found["vast"]["configured"], found["vast"]["balance"], found["vast"]["balance_trouble"]) == (
        False,
        None,
        None,
    )
    assert main(["providers"]) == 0
    assert "autodl: 123.46 CNY to spend\n" in capsys.readouterr().out


def test_what_goes_wrong_is_said_in_its_place(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Teller, "outcome", AuthFailed("there is no key for autodl"))
    assert rows(capsys)["autodl"]["balance_trouble"] == "there is no key for autodl"
    assert main(["providers"]) == 0
    assert "autodl: its balance is not known: there is no key for autodl\n" in capsys.readouterr().out
    monkeypatch.setattr(Teller, "outcome", KeyError("x"))
    assert "a bug in the provider: KeyError" in rows(capsys)["autodl"]["balance_trouble"]


def test_a_provider_that_tells_no_balance_is_not_asked(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Teller, "caps", replace(CAPS, balance=False))
    monkeypatch.setattr(Teller, "outcome", AssertionError("asked"))
    found = rows(capsys)["autodl"]
    assert (found["balance"], found["balance_trouble"]) == (None, None)


def test_one_that_hangs_keeps_no_other_from_its_answer() -> None:
    hangs, works = Silent(), Teller(ProviderConfig("d", Path("."), ()))
    try:
        found = balances({"hangs": hangs, "works": works}, patience_s=0.05)
    finally:
        hangs.let.set()
    assert found["works"] == RICH
    assert found["hangs"] == "no answer within 0 s"


def said(reserve: str, **quote: Any) -> str:
    """What a plan says whose reserve is in USD, where a yuan is 0.1 of one and the account has 123.456 of them."""
    quotes = (SimpleNamespace(**{"provider": "autodl", "caps": Teller.caps, "stored": False, **quote}),)
    chosen = SimpleNamespace(provider="autodl")
    plan: Any = SimpleNamespace(chosen=chosen, reserve=Decimal(reserve), currency="USD", quotes=quotes)
    home = Home.from_env()
    return shortfall(home, load_config(home), plan)


def test_an_account_with_less_than_the_reserve_is_said_before_the_start(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said("20") == ""  # there is no rate to compare by
    config.write_text("providers: {autodl: {}}\nrates: {CNY: {rate: 0.1, as_of: 2026-11-30}}\n")
    assert said("12.34") == ""
    assert said("12.36") == (
        "autodl has 123.46 CNY, less than the 12.36 USD set aside for the first machine: top it up before you start"
    )
    assert said("12.36", stored=True) == ""
    monkeypatch.setattr(Teller, "outcome", AuthFailed("no key"))
    assert said("12.36") == ""
    monkeypatch.setattr(Teller, "caps", replace(CAPS, balance=False))
    monkeypatch.setattr(Teller, "outcome", AssertionError("asked"))
    assert said("12.36") == ""
