"""What the whole job costs on an offer: startups, minimum billing, rework on spot, and the rate at which spot is no
cheaper any more."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import core_facts as cf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import placement
from orchestrator.budget import breakeven_reclaims, machine_seconds, to_finish
from orchestrator.model import Policy, Work
from providers.base import Offer

SPOT, DEMAND = cf.OFFER, cf.DEMAND  # 1 and 3 USD/h
WORK = Work(run_s=4 * 3600, startup_s=600, rework_s=900, reclaims_per_h=0.2)


def rank(*offers: Offer, **changes: Any) -> list[str]:
    policy: Policy = replace(cf.POLICY, **changes)
    return [offer.key for offer in placement.rank(offers, policy, {}).ranked]


def why(*offers: Offer, **changes: Any) -> list[str]:
    policy: Policy = replace(cf.POLICY, **changes)
    return [out.why for out in placement.rank(offers, policy, {}).left_out]


def test_a_machine_that_stays_costs_its_startup_and_the_run() -> None:
    # 600 s + 4 h at 3 USD/h
    assert to_finish(DEMAND, WORK) == Decimal("12.5")


def test_a_machine_that_is_reclaimed_does_part_of_the_work_again() -> None:
    # each loss costs 1500 s: 0.2 an hour are 1/12 of all time, so 15000 s of work take 16363.6 s
    total, machines = machine_seconds(SPOT, WORK, 0.2)
    assert total == pytest.approx(15000 * 12 / 11)
    assert machines == pytest.approx(1 + 0.2 * total / 3600)
    # the seconds of each machine are rounded up: at most one second for each of them more
    assert float(to_finish(SPOT, WORK)) == pytest.approx(total / 3600, abs=machines / 3600)


def test_losses_that_eat_all_progress_never_end() -> None:
    assert to_finish(SPOT, replace(WORK, reclaims_per_h=3.0)) == Decimal("Infinity")
    assert rank(SPOT, DEMAND, work=replace(WORK, reclaims_per_h=3.0)) == ["m1", "m1-spot"]


def test_an_hour_of_minimum_makes_a_cheap_offer_dear_for_a_short_job() -> None:
    short = Work(run_s=600, startup_s=60, rework_s=0)
    by_hour = replace(DEMAND, key="hour", hourly=Decimal(1), min_billing_s=3600, billing_step_s=3600)
    assert to_finish(by_hour, short) == Decimal(1)
    assert to_finish(DEMAND, short) == Decimal("0.55")
    assert rank(by_hour, DEMAND, work=short) == ["m1", "hour"]
    assert rank(by_hour, DEMAND) == ["hour", "m1"]  # nobody said how long it takes


def test_every_reclaimed_machine_is_billed_its_minimum() -> None:
    work = replace(WORK, reclaims_per_h=2.0, startup_s=60, rework_s=0)
    minimum = replace(SPOT, min_billing_s=3600)
    total, machines = machine_seconds(minimum, work, 2.0)
    assert total / machines < 3600
    assert float(to_finish(minimum, work)) == pytest.approx(machines)


def test_a_cheaper_hour_on_a_card_that_was_slower_before_loses() -> None:
    slow = replace(DEMAND, key="slow", gpu="T4", hourly=Decimal(1))
    work = replace(WORK, run_on={"T4:1": 20 * 3600, "RTX-4090:1": 4 * 3600})
    assert rank(slow, DEMAND, work=work) == ["m1", "slow"]
    assert to_finish(slow, work) == Decimal("20.166667")


def test_a_providers_own_history_of_reclaims_counts_over_the_guess() -> None:
    steady = replace(SPOT, key="steady", provider="steady", hourly=Decimal("1.02"))
    work = replace(WORK, reclaims={"steady": 0.0})
    assert rank(SPOT, steady, work=work) == ["steady", "m1-spot"]
    assert rank(SPOT, steady, work=WORK) == ["m1-spot", "steady"]


def test_the_break_even_rate_makes_both_cost_the_same() -> None:
    rate = breakeven_reclaims(SPOT, Decimal(1), to_finish(DEMAND, WORK), WORK)
    # 15000 s at 1 USD/h cost 12.50 when they take 45000 s: two thirds of all time are 1500 s losses, 1.6 an hour
    assert rate == pytest.approx(1.6, abs=0.001)
    assert breakeven_reclaims(replace(SPOT, hourly=Decimal(4)), Decimal(1), to_finish(DEMAND, WORK), WORK) is None


def test_a_card_that_is_too_small_is_left_out_with_both_numbers() -> None:
    small, large = replace(SPOT, vram_gb=24), replace(SPOT, key="big", vram_gb=80)
    pair = replace(SPOT, key="pair", vram_gb=24, gpu_count=2)
    assert rank(small, large, pair, vram_gb=40.0, vram_more_gb=4.0) == ["big", "pair"]
    assert why(small, vram_gb=40.0) == ["24 GB of GPU memory, the model needs 40"]
    assert why(pair, vram_gb=46.0, vram_more_gb=4.0) == ["48 GB of GPU memory, the model needs 50"]


def test_offers_of_two_currencies_are_compared_by_the_rate() -> None:
    yuan = replace(DEMAND, key="yuan", currency="CNY", hourly=Decimal(10))
    rates = {"CNY": Decimal("0.14")}
    assert rank(yuan, DEMAND, currency="USD", rates=rates) == ["yuan", "m1"]
    assert rank(yuan, DEMAND, currency="USD", rates=rates, price_cap=Decimal("1.39")) == []
    assert why(yuan, currency="USD") == ["no rate from CNY to USD in the config"]
    assert rank(yuan, replace(yuan, key="two"), currency="CNY") == ["two", "yuan"]


@given(
    hourly=st.decimals("0.01", "50", places=2), run=st.integers(60, 400_000), rate=st.floats(0, 5),
    minimum=st.sampled_from([0, 60, 3600]), step=st.sampled_from([1, 60, 3600]),
)  # fmt: skip
def test_reclaims_never_make_a_job_cheaper(hourly: Decimal, run: int, rate: float, minimum: int, step: int) -> None:
    offer = replace(SPOT, hourly=hourly, min_billing_s=minimum, billing_step_s=step)
    work = Work(run_s=run, startup_s=300, rework_s=300)
    calm, rough = to_finish(offer, work, 0.0), to_finish(offer, work, rate)
    total, machines = machine_seconds(offer, work, rate)
    if math.isinf(total):
        assert rough == Decimal("Infinity")
    else:
        assert rough >= hourly * Decimal(total - 1) / 3600
        # rounding of one machine's time may be lost when it is spread over several
        assert rough >= calm - hourly * Decimal(step + 1) / 3600
        assert machines >= 1


def test_data_is_paid_for_on_every_machine_where_the_company_bills_traffic() -> None:
    work = Work(run_s=10 * 3600, startup_s=0.0, rework_s=3600, in_bytes=250 * 10**9)
    metered = replace(DEMAND, in_per_gb=Decimal("0.02"), spot=False)
    assert to_finish(metered, work) - to_finish(replace(metered, in_per_gb=Decimal(0)), work) == Decimal("5.000000")
    # Half a reclaim an hour that costs an hour doubles the time: 1 + 0.5 * 20 machines
    again = to_finish(replace(metered, spot=True), work, 0.5)
    assert again - to_finish(replace(metered, spot=True, in_per_gb=Decimal(0)), work, 0.5) == 11 * Decimal("5")
