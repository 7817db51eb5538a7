"""Tables, times, sizes and money as people and programs read them."""

from __future__ import annotations

import io
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli import output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


CELL = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\u2028\u2029\x85"), max_size=60)


@given(st.lists(st.tuples(CELL, CELL, CELL), max_size=5))
def test_a_table_is_never_wider_than_its_width(rows: list[tuple[str, str, str]]) -> None:
    text = output.table(("NAME", "REASON", "COST"), rows, shrink=("REASON",), width=50)
    assert all(output.width_of(line) <= 50 for line in text.split("\n"))
    assert len(text.split("\n")) == len(rows) + 1


def test_the_named_column_gives_way_first() -> None:
    text = output.table(("NAME", "REASON"), [("n" * 30, "r" * 60)], shrink=("REASON",), width=50)
    assert "n" * 30 in text
    assert "…" in text


def test_gaps_give_way_before_words() -> None:
    row = ("n" * 20, "r" * 20)
    assert output.table(("NAME", "REASON"), [row], width=42).split("\n")[1] == "  ".join(row)
    assert output.table(("NAME", "REASON"), [row], width=41).split("\n")[1] == " ".join(row)


def test_wide_characters_take_two_columns() -> None:
    assert output.width_of("训练") == 4
    assert output.cut("训练任务", 5) == "训练…"


def test_colour_only_on_a_terminal_and_never_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output, "_no_color", False)
    assert output.paint("x", "red", Terminal()) == "\x1b[31mx\x1b[0m"
    assert output.paint("x", "red", io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.paint("x", "red", Terminal()) == "x"
    monkeypatch.delenv("NO_COLOR")
    output.forbid_colour()
    assert output.paint("x", "red", Terminal()) == "x"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0s"), (59.9, "59s"), (61, "1m01s"), (3600, "1h00m"), (90000, "1d01h"), (-5, "0s")],
)
def test_spans(seconds: float | None, text: str) -> None:
    assert output.span(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(59, "59s"), (61, "1m"), (7300, "2h"), (200000, "2d")])
def test_ages_have_one_unit(seconds: float, text: str) -> None:
    assert output.age(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_000_000, "2.0 MB"), (10**15, "1000 TB")]
)
def test_sizes(count: int, text: str) -> None:
    assert output.size(count) == text


def test_money_says_when_it_is_play() -> None:
    assert output.money(Decimal("1.2"), "USD") == "1.20 USD"
    assert output.money(Decimal("1.2"), "USD", play=True) == "1.20 (play)"
    assert output.money(Decimal("0.0042"), "EUR") == "0.0042 EUR"
    assert output.money(None) == "-"
    assert output.money_json(Decimal("1E+1"), "USD") == {"amount": "10", "currency": "USD", "play": False}


def test_times_are_utc_in_json_and_carry_an_offset_in_tables() -> None:
    assert output.utc_z(0.5) == "1970-01-01T00:00:00.500Z"
    assert output.utc_z(None) is None
    assert output.local_time(0)[-6] in "+-"
