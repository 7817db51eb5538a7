"""Which offer is taken, and why each of the others is not."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import core_facts as cf

from orchestrator import placement
from orchestrator.model import Policy, Reason
from providers.base import Ask, GpuWish, Offer

SPOT, DEMAND = cf.OFFER, cf.DEMAND  # 1 and 3 USD/h
OTHER = replace(SPOT, provider="b", account="b2", key="x1", pool="x1", hourly=Decimal("1.10"))


def rank(*offers: Offer, resting: dict[str, str] | None = None, losses: int = 0, **changes: object) -> list[str]:
    policy: Policy = replace(cf.POLICY, **changes)  # type: ignore[arg-type]
    return [offer.key for offer in placement.rank(offers, policy, resting or {}, losses).ranked]


def why(*offers: Offer, resting: dict[str, str] | None = None, **changes: object) -> list[str]:
    policy: Policy = replace(cf.POLICY, **changes)  # type: ignore[arg-type]
    return [out.why for out in placement.rank(offers, policy, resting or {}).left_out]


def test_the_cheapest_wins_and_equal_prices_are_ordered_by_name() -> None:
    twin = replace(SPOT, key="a0")
    assert rank(DEMAND, OTHER, SPOT, twin) == ["a0", "m1-spot", "x1", "m1"]


def test_spot_only_for_a_job_that_can_resume() -> None:
    assert rank(SPOT, DEMAND, resumable=False) == ["m1"]
    assert why(SPOT, DEMAND, resumable=False) == ["spot needs a resumable job"]
    assert rank(SPOT, DEMAND, spot="always") == ["m1-spot"]
    assert rank(SPOT, DEMAND, spot="never") == ["m1"]


def test_two_losses_without_a_checkpoint_leave_spot() -> None:
    assert rank(SPOT, DEMAND, losses=1) == ["m1-spot", "m1"]
    assert rank(SPOT, DEMAND, losses=2)[0] == "m1"


def test_what_is_dearer_than_the_cap_waits() -> None:
    assert rank(SPOT, DEMAND, price_cap=Decimal("2")) == ["m1-spot"]
    [word] = why(DEMAND, price_cap=Decimal("2"))
    assert "3.00 USD/h" in word
    assert "2" in word


def test_each_providers_own_image_is_held_against_its_own_cards() -> None:
    images = (("b", "pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime"), ("prov", "pytorch/pytorch:2.8.0-cuda12.8"))
    new, same = replace(SPOT, gpu="RTX-5090"), replace(OTHER, gpu="RTX-5090")
    ask = replace(cf.POLICY.ask, images=images)
    assert rank(new, same, OTHER, ask=ask) == ["m1-spot", "x1"]
    assert why(new, same, ask=ask) == ["the image of b: CUDA 12.1 knows no sm_120; it needs 12.8 or newer"]
    assert why(replace(new, gpu="UNHEARD-OF"), ask=ask) == []


def test_what_narrows_the_choice_is_named_by_the_keys_of_the_spec() -> None:
    ask = Ask(gpus=(GpuWish("RTX-4090", 24, 1), GpuWish("RTX-4090", 24, 2)), regions=("r1",), disk_min=1)
    policy = replace(cf.POLICY, ask=ask, spot="always", price_cap=Decimal("0.5"))
    ranking = placement.rank((SPOT, DEMAND), policy, {})
    assert placement.narrowed_by(policy, ranking) == ("providers", "regions", "gpu", "spot", "disk", "max_price")
    wide = replace(cf.POLICY, providers=("prov", "b"))
    assert placement.narrowed_by(wide, placement.rank((SPOT,), wide, {})) == ()


def test_a_pool_that_reclaimed_lately_counts_dearer_than_it_is() -> None:
    resting = {placement.reclaimed_key(SPOT): "reclaimed lately"}
    assert rank(SPOT, OTHER, resting=resting) == ["x1", "m1-spot"]
    assert rank(SPOT, DEMAND, resting=resting) == ["m1-spot", "m1"]  # still the cheapest by far


def test_a_pool_that_refused_rests_with_the_reason() -> None:
    resting = {placement.pool_key(SPOT): "no-capacity: none left"}
    assert rank(SPOT, OTHER, resting=resting) == ["x1"]
    assert why(SPOT, resting=resting) == ["refused lately: no-capacity: none left"]


def test_an_account_that_cannot_work_blocks_only_when_nothing_else_is_left() -> None:
    resting = {placement.account_key("prov", "acc"): "quota: 0 of 0 vCPUs"}
    ranking = placement.rank((SPOT, OTHER), cf.POLICY, resting)
    assert ([offer.key for offer in ranking.ranked], ranking.blocked) == (["x1"], None)
    assert placement.rank((SPOT, DEMAND), cf.POLICY, resting).blocked is Reason.QUOTA
    funds = {placement.account_key("prov", "acc"): "no-funds: balance is -1"}
    assert placement.rank((SPOT,), cf.POLICY, funds).blocked is Reason.PROVIDER
    mixed = placement.rank((SPOT, replace(OTHER, hourly=Decimal(9))), replace(cf.POLICY, price_cap=Decimal(2)), funds)
    assert (mixed.ranked, mixed.blocked) == ((), None)  # the other account may get cheaper


def test_a_machine_that_was_bad_is_not_taken_where_the_offer_names_it() -> None:
    named = replace(SPOT, raw={"machine_id": "m7"})
    resting = {placement.machine_key("prov", "m7"): "xid: Xid 79 in the kernel's log, wanted none"}
    assert rank(named, OTHER, resting=resting) == ["x1"]
    assert why(named, resting=resting) == ["this machine was bad lately: xid: Xid 79 in the kernel's log, wanted none"]
    assert rank(replace(named, raw={"machine_id": "m8"}), resting=resting) == ["m1-spot"]
    assert rank(SPOT, resting=resting) == ["m1-spot"], "an offer that names no machine is no such machine"
