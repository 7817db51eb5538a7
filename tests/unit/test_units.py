"""Values as people write them: what each spelling means, and which spellings are refused by name."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobspecs import units
from jobspecs.problems import Refusal


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("30m", 1800), ("12h", 43_200), ("3d", 259_200), ("1w", 604_800), ("1h30m", 5400),
        ("1h 30m", 5400), ("1.5 h", 5400), ("36 hours", 129_600), ("2 min", 120), ("0", 0), (" 5s ", 5),
    ],
)  # fmt: skip
def test_duration(text: str, seconds: int) -> None:
    assert units.parse_duration(text) == units.Duration(seconds)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("12:30", "sexagesimal"), ("1:30:00", "sexagesimal"), ("12", "no unit"), ("0.5s", "whole number of seconds"),
        ("", "expected a duration"), ("soon", "expected a duration"), ("-5m", "expected a duration"),
        ("5x", "expected a duration"), ("1h30", "expected a duration"), ("99999d", "ten years"), ("1e3", "no unit"),
    ],
)  # fmt: skip
def test_duration_refused(text: str, said: str) -> None:
    with pytest.raises(Refusal) as caught:
        units.parse_duration(text)
    assert said in caught.value.reason


@given(st.integers(0, units.MAX_DURATION_S))
def test_every_duration_prints_as_something_that_parses_back(seconds: int) -> None:
    assert units.parse_duration(str(units.Duration(seconds))).seconds == seconds


def test_durations_print_as_people_write_them() -> None:
    assert [str(units.Duration(s)) for s in (0, 45, 90, 5400, 43_200, 129_600, 259_200)] == [
        "0s", "45s", "1m30s", "1h30m", "12h", "36h", "3d",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "count"),
    [("100GB", 100 * 10**9), ("16GiB", 16 * 2**30), ("1.5TB", 1500 * 10**9), ("16gb", 16 * 10**9), ("512 MiB", 2**29)],
)
def test_size(text: str, count: int) -> None:
    assert units.parse_size(text) == units.Size(count)


@pytest.mark.parametrize(
    ("text", "said"),
    [("100", "no unit"), ("16g", "no unit that is a size"), ("1_000GB", "underscores"), ("010", "octal"),
     ("GB", "expected a size"), ("0.3B", "whole number of bytes"), ("-1GB", "expected a size")],
)  # fmt: skip
def test_size_refused(text: str, said: str) -> None:
    with pytest.raises(Refusal) as caught:
        units.parse_size(text)
    assert said in caught.value.reason


@given(st.integers(0, 10**18))
def test_every_size_prints_as_something_that_parses_back(count: int) -> None:
    assert units.parse_size(str(units.Size(count))).bytes == count


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [
        ("1.20 USD", "1.20", "USD"), ("1.2", "1.2", "USD"), ("$3", "3", "USD"), ("CNY 8.5", "8.5", "CNY"),
        ("8.5 CNY", "8.5", "CNY"), ("1e-4", "0.0001", "USD"), ("15", "15", "USD"),
    ],
)  # fmt: skip
def test_money(text: str, amount: str, currency: str) -> None:
    money = units.parse_money(text)
    assert (money.amount, money.currency) == (Decimal(amount), currency)
    assert units.parse_money(str(money)) == money


def test_money_prints_with_two_decimals_or_more_where_they_count() -> None:
    printed = [str(units.parse_money(text)) for text in ("15", "1.2", "0.0375 USD", "100.00 CNY")]
    assert printed == ["15.00 USD", "1.20 USD", "0.0375 USD", "100.00 CNY"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "more than 0"), ("-1", "more than 0"), ("1e999", "more than 0"), ("nan", "finite"), (".inf", "finite"),
        ("1,20", "comma"), ("1_000", "underscores"), ("010", "octal"), ("12:30", "sexagesimal"), ("0x10", "decimal"),
        ("¥8.5", "currency sign"), ("USD", "amount of money"), ("five", "amount of money"),
        ("USD 5 CNY", "amount of money"), ("0.00000001", "more than 0"),
    ],
)  # fmt: skip
def test_money_refused(text: str, said: str) -> None:
    with pytest.raises(Refusal) as caught:
        units.parse_money(text)
    assert said in caught.value.reason


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("16..", 16, None), ("16+", 16, None), (">=16", 16, None), ("4..8", 4, 8), ("..8", 0, 8), ("<=8", 0, 8),
     ("4", 4, None), ("4 .. 8", 4, 8)],
)  # fmt: skip
def test_range_of_counts(text: str, low: int, high: int | None) -> None:
    parsed = units.parse_range(text)
    assert parsed == units.Range(low, high)
    assert units.parse_range(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [(">=24GB", 24, None), ("16GB..32GB", 16, 32), ("16..32GB", 16, 32), ("32GB", 32, None), ("..64GB", 0, 64)],
)
def test_range_of_sizes(text: str, low: int, high: int | None) -> None:
    parsed = units.parse_range(text, sizes=True)
    assert (parsed.low, parsed.high) == (low * 10**9, None if high is None else high * 10**9)
    assert units.parse_range(str(parsed), sizes=True) == parsed


@pytest.mark.parametrize("text", ["..", ">4", "<4", "8..4", "0..4", "1.5", "a..b", "", "4..8..9"])
def test_range_refused(text: str) -> None:
    with pytest.raises(Refusal):
        units.parse_range(text)


def test_a_bare_amount_is_the_least_that_will_do() -> None:
    """An exact `memory: 10GB` matches no machine of a catalogue with 16 and 32 GB."""
    wanted = units.parse_range("10GB", sizes=True)
    assert 16 * 10**9 in wanted
    assert 8 * 10**9 not in wanted


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-12-01T09:00:00+08:00", datetime(2026, 12, 1, 1, tzinfo=UTC)),
        ("2026-12-01 09:00Z", datetime(2026, 12, 1, 9, tzinfo=UTC)),
    ],
)
def test_moment(text: str, moment: datetime) -> None:
    assert units.parse_moment(text) == moment
    assert units.parse_moment(units.moment_text(moment)) == moment


@pytest.mark.parametrize(
    ("text", "said"),
    [("2026-12-01T09:00:00", "no offset"), ("2026-12-01", "expected a date"), ("tomorrow", "expected a date"),
     ("2026-13-01T09:00:00Z", "exists"), ("0001-01-01T00:00:00+14:00", "exists")],
)  # fmt: skip
def test_moment_refused(text: str, said: str) -> None:
    with pytest.raises(Refusal) as caught:
        units.parse_moment(text)
    assert said in caught.value.reason


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_a_refusal(text: str) -> None:
    parsers = (
        units.parse_duration, units.parse_size, units.parse_money, units.parse_range, units.parse_moment,
        units.parse_int, units.parse_number, lambda t: units.parse_range(t, sizes=True),
    )  # fmt: skip
    for parse in parsers:
        with contextlib.suppress(Refusal):
            assert parse(text) is not None
