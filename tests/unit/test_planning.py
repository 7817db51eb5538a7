"""What a plan says: worst case, limits, timers, what needs this computer, and why each offer was left out."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobspecs.schema import JobSpec, to_document
from jobspecs.units import Money
from orchestrator.budget import worst_case
from orchestrator.comparison import rows as rows_of
from orchestrator.comparison import warnings
from orchestrator.config import Limits
from orchestrator.limits import Cost, problems
from orchestrator.planning import (
    Plan,
    Quote,
    ask_for,
    make_plan,
    timers,
    unbound,
)
from providers.base import Ask, Caps, Offer

CAPS = Caps(dead_statuses=frozenset({"gone"}), self_end="destroys", server_ttl=False, boot_hook="every_boot", spot=True)


def offer(hourly: str, spot: bool = False, provider: str = "acme", gpu: str = "RTX-4090", **more: Any) -> Offer:
    return Offer(
        provider=provider, account="a", region="r", key=f"{gpu}{hourly}{spot}", spot=spot, hourly=Decimal(hourly),
        currency="USD", gpu=gpu, gpu_count=1, vram_gb=24, **more,
    )  # fmt: skip


def plan_of(*offers: Offer, caps: Caps = CAPS, resting: dict[str, str] | None = None, **spec: Any) -> Plan:
    values = {"name": "x", "gpu": "RTX-4090", "run": "python train.py", **spec}
    job = JobSpec.model_validate(values)
    origins = dict.fromkeys(values, "spec")
    return make_plan(job, to_document(job), origins, (Quote("acme", offers, 0.0, caps=caps),), resting or {}, ("acme",))


def test_the_worst_case_is_the_price_cap_for_the_whole_ttl_and_a_late_release() -> None:
    plan = plan_of(offer("0.40"), ttl="2h")
    assert plan.price_cap == Decimal("0.6000")
    # 2 h at 0.60 and ten minutes of a late release
    assert plan.worst_case == Decimal("1.30")
    assert plan.worst_case_by == "ttl"


def test_a_budget_below_it_is_the_worst_case_and_ends_the_machine_earlier() -> None:
    plan = plan_of(offer("0.40"), ttl="12h", budget="1 USD")
    assert (plan.worst_case, plan.worst_case_by) == (Decimal("1.00"), "budget")
    assert plan.machine_end_s is not None
    assert worst_case(offer("0.40"), 0.0, plan.machine_end_s, plan.policy.release_margin_s) <= Decimal(1)
    assert 2 * 3600 < plan.machine_end_s < 2.5 * 3600


@given(
    hourly=st.decimals(min_value="0.01", max_value=90, places=4),
    ttl_h=st.integers(min_value=1, max_value=200),
    budget=st.none() | st.decimals(min_value="0.5", max_value=5000, places=2),
)
def test_the_reserve_of_the_first_machine_never_passes_the_worst_case(
    hourly: Decimal, ttl_h: int, budget: Decimal | None
) -> None:
    more = {} if budget is None else {"budget": f"{budget} USD"}
    plan = plan_of(offer(str(hourly)), ttl=f"{ttl_h}h", **more)
    if plan.reserve is not None:
        assert plan.worst_case is not None
        assert plan.reserve <= plan.worst_case


def test_max_price_is_the_cap_and_dearer_offers_say_why_they_are_left_out() -> None:
    cheap, dear = offer("0.40"), offer("0.90")
    plan = plan_of(cheap, dear, max_price="0.50 USD")
    assert plan.chosen is cheap
    assert plan.price_cap_given
    rows = {row.offer.hourly: row.why for row in rows_of(plan, (cheap, dear))}
    assert rows[Decimal("0.40")] == "chosen"
    assert "above max_price" in rows[Decimal("0.90")]
    unasked = {row.offer.hourly: row.why for row in rows_of(plan_of(cheap, dear), (cheap, dear))}
    assert "above the price cap" in unasked[Decimal("0.90")]


def test_spot_is_left_out_unless_the_job_can_resume() -> None:
    spot, on_demand = offer("0.10", spot=True), offer("0.40")
    assert plan_of(spot, on_demand).chosen is on_demand
    assert plan_of(spot, on_demand, run='python t.py "$GPUJOB_RESUME_FROM"').chosen is spot


def test_spot_is_left_out_with_a_word_where_large_checkpoints_have_no_store() -> None:
    spot, on_demand = offer("0.10", spot=True), offer("0.40")
    large: dict[str, Any] = {"run": 'python t.py "$GPUJOB_RESUME_FROM"', "model": {"params": "0.2B", "method": "full"}}
    large["checkpoint"] = {}
    plan = plan_of(spot, on_demand, **large)
    assert plan.chosen is on_demand
    assert any("spot is left out until `checkpoint.mirror` names an object store" in each for each in warnings(plan))
    assert [each.why for each in plan.left_out] == ["spot needs an object store for checkpoints of 2.8 GB"]
    assert plan_of(spot, on_demand, **{**large, "checkpoint": {"mirror": "lab:c"}}).chosen is spot


def test_without_an_offer_there_is_no_price_and_no_reserve() -> None:
    plan = plan_of()
    assert (plan.chosen, plan.price_cap, plan.reserve, plan.worst_case) == (None, None, None, None)
    assert plan_of(budget="3 USD").worst_case == Decimal("3.00")


@pytest.mark.parametrize(
    ("change", "binding"),
    [
        ({}, {"machine"}),
        ({"self_end": "leaves_disk"}, set()),
        ({"self_end": "nothing"}, set()),
        ({"boot_hook": "none"}, set()),
        ({"server_ttl": True, "self_end": "nothing"}, {"provider"}),
        ({"self_end": "stops_all_billing", "server_ttl": True}, {"machine", "provider"}),
    ],
)
def test_which_timers_bind_without_this_computer(change: dict[str, Any], binding: set[str]) -> None:
    caps = replace(CAPS, **change)
    assert {timer.name for timer in timers(caps) if timer.binds} == binding
    assert len(timers(caps)) == 3
    assert unbound(plan_of(offer("1"), caps=caps)) is not bool(binding)


def test_what_needs_this_computer_awake() -> None:
    resumable = plan_of(offer("1"), run='t "$GPUJOB_RESUME_FROM"')
    assert [need.what for need in resumable.needs_awake] == ["relaunch after a loss", "checkpoints", "results"]
    plain = plan_of(offer("1"), artifacts="none")
    assert [need.what for need in plain.needs_awake] == ["relaunch after a loss"]
    stored = plan_of(
        offer("1"), run='t "$GPUJOB_RESUME_FROM"', checkpoint={"mirror": "s3://b/c"},
        artifacts=[{"path": "*", "to": "s3://b/o"}],
    )  # fmt: skip
    assert [need.what for need in stored.needs_awake] == ["relaunch after a loss", "results"]
    assert "signed here" in stored.needs_awake[1].why


def test_regions_of_another_provider_are_not_asked_here() -> None:
    ask = Ask(regions=("eu", "acme/us", "other/asia"))
    assert ask_for(ask, "acme") == replace(ask, regions=("eu", "us"))
    assert ask_for(Ask(regions=("other/asia",)), "acme") is None
    assert ask_for(Ask(), "acme") == Ask()


LIMITS = Limits(Money(Decimal(5)), Money(Decimal(20)), 2)


def limit_problems(
    plan: Plan, limits: Limits, spent: Decimal, machines: int, max_cost: Decimal | None, rates: dict[str, Decimal]
) -> list[str]:
    cost = Cost(plan.worst_case, plan.currency, plan.play)
    return problems(limits, cost, spent, machines, max_cost, lambda currency: rates)


def test_limits_stop_what_is_dearer_than_they_allow() -> None:
    plan = plan_of(offer("1.00"), ttl="4h")  # worst case 6.25 USD
    (problem,) = limit_problems(plan, LIMITS, Decimal(0), 0, None, {})
    assert "per_job 5.00 USD" in problem
    assert limit_problems(plan, LIMITS, Decimal(0), 0, Decimal("6.25"), {}) == []
    (problem,) = limit_problems(plan, LIMITS, Decimal(0), 0, Decimal("6.24"), {})
    assert "--max-cost" in problem


def test_the_month_counts_what_is_spent_already() -> None:
    plan = plan_of(offer("0.50"), ttl="4h")  # worst case 3.13 USD
    assert limit_problems(plan, LIMITS, Decimal("16.87"), 0, None, {}) == []
    (problem,) = limit_problems(plan, LIMITS, Decimal("16.88"), 0, None, {})
    assert "per_month" in problem


def test_the_number_of_machines_is_a_limit_like_the_others() -> None:
    plan = plan_of(offer("0.10"), ttl="1h")
    assert limit_problems(plan, LIMITS, Decimal(0), 1, None, {}) == []
    assert "limits.machines" in limit_problems(plan, LIMITS, Decimal(0), 2, None, {})[0]
    assert limit_problems(plan, LIMITS, Decimal(0), 2, Decimal(99), {}) == []  # it covers the worst case
    assert limit_problems(plan, LIMITS, Decimal(0), 2, Decimal("0.01"), {}) != []


def test_play_money_counts_against_no_limit_and_a_missing_rate_is_said() -> None:
    dear = offer("90")
    assert limit_problems(plan_of(dear, caps=replace(CAPS, play=True)), LIMITS, Decimal(0), 0, None, {}) == []
    yuan = replace(offer("1"), currency="CNY")
    problems = limit_problems(plan_of(yuan), LIMITS, Decimal(0), 0, None, {})
    assert all("no rate from CNY to USD" in problem for problem in problems)
    assert limit_problems(plan_of(yuan, ttl="2h"), LIMITS, Decimal(0), 0, None, {"CNY": Decimal("0.14")}) == []


def test_a_sweep_has_its_own_budget_and_none_is_said_beside_it() -> None:
    sweep = {"parameters": {"lr": ["1", "2"]}, "budget": "$5", "max_parallel": 2}
    keys = {value.key for value in plan_of(offer("1"), sweep=sweep).values}
    assert "sweep" in keys
    assert "budget" not in keys


def test_values_say_where_they_came_from() -> None:
    found = {value.key: (value.value, value.origin) for value in plan_of(offer("1"), ttl="3h").values}
    assert found["ttl"] == ("3h", "spec")
    assert found["wait"] == ("1h", "built-in")
    assert found["budget"] == ("none", "built-in")
    assert "name" not in found
