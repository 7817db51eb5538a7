"""Money rules: rounding, the worst case, how long money lasts."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal

import core_facts as cf
import pytest
from core_facts import T0
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import budget
from providers.base import Offer

BY_SECOND = cf.OFFER  # 1 USD/h
BY_HOUR = replace(cf.OFFER, billing_step_s=3600)
MINUTE_MIN = replace(cf.OFFER, min_billing_s=60)


@pytest.mark.parametrize(
    ("offer", "seconds", "amount"),
    [
        (BY_SECOND, 0, "0"),
        (BY_SECOND, 3600, "1.000000"),
        (BY_SECOND, 0.2, "0.000278"),  # a second, rounded up
        (BY_HOUR, 1, "1.000000"),
        (BY_HOUR, 3601, "2.000000"),
        (MINUTE_MIN, 1, "0.016667"),
        (MINUTE_MIN, -5, "0.016667"),
    ],
)
def test_what_a_time_costs(offer: Offer, seconds: float, amount: str) -> None:
    assert budget.cost(seconds, offer) == Decimal(amount)


def test_the_reserve_and_what_is_spent_add_up_to_the_worst_case() -> None:
    worst = budget.worst_case(BY_SECOND, T0, T0 + 3600, 600)
    assert worst == Decimal("1.166667")
    spent = Decimal("0.4")
    assert budget.reserve(BY_SECOND, T0, T0 + 3600, 600, spent) + spent == worst
    assert budget.reserve(BY_SECOND, T0, T0 + 3600, 600, Decimal(5)) == 0  # an overrun is no credit


def test_money_that_does_not_buy_the_minimum_buys_nothing() -> None:
    assert budget.affordable_end(BY_HOUR, T0, Decimal("0.99"), 0) <= T0
    minimum = replace(BY_HOUR, min_billing_s=3600)
    assert budget.affordable_end(minimum, T0, Decimal("0.99"), 0) < T0
    assert budget.affordable_end(BY_HOUR, T0, Decimal("1"), 0) == T0 + 3600
    assert budget.affordable_end(replace(BY_SECOND, hourly=Decimal(0)), T0, Decimal(0), 600) == math.inf


@given(
    hourly=st.decimals("0.001", "400", places=4),
    step=st.sampled_from([1, 60, 3600]),
    minimum=st.sampled_from([0, 60, 3600]),
    left=st.decimals("0.01", "5000", places=2),
    margin=st.sampled_from([0.0, 600.0]),
)
def test_the_affordable_end_is_within_the_money_and_the_latest_such(
    hourly: Decimal, step: int, minimum: int, left: Decimal, margin: float
) -> None:
    offer = replace(cf.OFFER, hourly=hourly, billing_step_s=step, min_billing_s=minimum)
    end = budget.affordable_end(offer, T0, left, margin)
    if end <= T0:
        return
    assert budget.worst_case(offer, T0, end, margin) <= left
    assert budget.worst_case(offer, T0, end + 2 * step + 1, margin) > left - 2 * budget.cost(step, offer)
