"""estimate and breakeven as verbs: the published numbers as a user sees them, and options that do not go together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.cli.output import WIDTH

OWN = "--capex 1200000 --months 36 --kw 7 --hours-per-day 12 --tariff 1 --hosting 3000 --ops 8000".split()


@pytest.fixture(autouse=True)
def home(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path))


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main.main(words) == code
    streams = capsys.readouterr()
    text = streams.out if code == 0 else streams.err
    assert all(len(line) <= max(WIDTH, 110) for line in text.splitlines())
    return text


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(said(capsys, *words, "-o", "json"))


def percents(found: Any) -> list[tuple[str, float]]:
    return [(row["hourly"]["amount"], row["percent"]) for row in found["break_even"]]


def test_the_break_even_of_one_rent(capsys: pytest.CaptureFixture[str]) -> None:
    assert "break-even at 54.2 % of the month" in said(capsys, "breakeven", "--own-monthly", "46853", "--hourly", "120")
    assert percents(document(capsys, "breakeven", "--own-monthly", "47000", "--hourly", "120")) == [("120.00", 54.4)]


def test_a_range_of_rents_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "breakeven", "--own-monthly", "46853", "--hourly", "80..200")
    assert percents(found) == [("80.00", 81.3), ("120.00", 54.2), ("160.00", 40.7), ("200.00", 32.5)]


def test_the_parts_of_owning_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "breakeven", *OWN, "--hourly", "120")
    assert [(part["part"], part["monthly"]["amount"]) for part in found["parts"]] == [
        ("machine", "33333.33"), ("power", "2520.00"), ("hosting", "3000.00"), ("people", "8000.00"),
    ]  # fmt: skip
    assert found["own_monthly"]["amount"] == "46853.33"
    assert percents(found) == [("120.00", 54.2)]


def test_a_full_day_doubles_the_power_bill(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "breakeven", "--kw", "7", "--hours-per-day", "24", "--tariff", "1", "--hourly", "120")
    assert found["own_monthly"]["amount"] == "5040.00"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--hourly", "120"], "give --own-monthly, or its parts"),
        (["--own-monthly", "1", "--capex", "1", "--hourly", "2"], "give --own-monthly, or its parts"),
        (["--own-monthly", "1"], "give --hourly, or --gpu"),
        (["--own-monthly", "1 CNY", "--hourly", "2"], "the rent is in USD and owning in CNY"),
        (["--capex", "1 CNY", "--ops", "1", "--hourly", "2"], "the parts are in CNY and USD"),
        (["--kw", "7", "--hourly", "2"], "--kw needs --tariff"),
        (["--own-monthly", "1", "--hourly", "9..2"], "ends before it starts"),
        (["--own-monthly", "0", "--hourly", "2"], "must be more than 0"),
        (["--capex", "1", "--months", "0", "--hourly", "2"], "--months must be 1 or more"),
    ],
)
def test_what_cannot_be_compared_is_refused(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert why in said(capsys, "breakeven", *words, code=2)


def test_one_currency_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "breakeven", "--own-monthly", "46853 CNY", "--hourly", "80..200 CNY")
    assert found["break_even"][0]["hourly"] == {"amount": "80.00", "currency": "CNY", "play": False}


def test_an_estimate_names_parts_cards_and_what_fits_instead(capsys: pytest.CaptureFixture[str]) -> None:
    words = "estimate --model 7b --dtype fp16 --context 8192 --concurrency 8 --layers 32 --hidden 4096 --heads 32"
    text = said(capsys, *words.split())
    assert "kv cache             32 GB" in text
    assert "needs     61.25 GB: the total with 20 % of the card left free; the next card has 80 GB" in text
    assert "instead   7B inference, int8: 52.5 GB, one card of 80 GB" in text
    found = document(capsys, *words.split())
    cards = {each["gpu"]: each["cards"] for each in found["classes"]}
    assert (cards["A100-80GB-SXM"], cards["A100-40GB"], cards["RTX-4090"], cards["RTX-3080"]) == (1, 2, 4, None)
    assert (found["need_gb"], found["card_gb"], found["assumed"]) == (61.25, 80, ["no grouped key-value heads"])


def test_a_full_fine_tune_on_two_small_cards_needs_offload_and_on_two_large_ones_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = ("estimate", "--model", "7b", "--method", "full")
    small = said(capsys, *full, "--gpu", "RTX-4090:2")
    assert "2 x RTX-4090: fits only with ZeRO-3 or offload to main memory" in small
    assert "one H200" in small
    large = said(capsys, *full, "--gpu", "A800-80GB:2")
    assert "2 x A800-80GB holds it" in large
    assert "ZeRO" not in large


def test_lora_says_how_near_the_limit_a_card_is(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "estimate", "--model", "7b", "--method", "lora", "--gpu", "RTX-4090")
    near = {each["gpu"]: each["near_limit"] for each in found["classes"]}
    assert (near["RTX-4090"], near["RTX-5090"]) == (True, False)
    assert found["asked"] == [{"gpu": "RTX-4090", "count": 1, "fits": True}]
    assert found["instead"] == [{"method": "qlora", "dtype": "bf16", "need_gb": 8.12, "card_gb": 10}]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--model", "huge"], "not a number of parameters"),
        (["--model", "7b", "--method", "lora", "--context", "9"], "write --seq-len"),
        (["--model", "7b", "--seq-len", "9", "--context", "9"], "write --context"),
        (["--model", "7b", "--layers", "0"], "--layers must be 1 or more"),
        (["--model", "7b", "--method", "full", "--dtype", "int4"], "no int4 weights"),
        (["--model", "7b", "--gpu", "RTX-9999"], "no GPU class"),
        ([], "--model"),
    ],
)
def test_options_that_make_no_model_are_refused(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert why in said(capsys, "estimate", *words, code=2)
