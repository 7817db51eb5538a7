"""A deadline steers spot against on-demand: the rules of Uniform Progress, and what the job does by them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from core_facts import CAPS, DEMAND, HOUR, OFFER, POLICY, T0, job
from hypothesis import given
from hypothesis import strategies as st

from jobspecs.load import load_spec
from jobspecs.problems import SpecErrors
from jobspecs.schema import to_document
from orchestrator.actions import OpenRental, WaitForCapacity
from orchestrator.model import Assignment, CheckpointRow, Exit, Facts, Task, Work
from orchestrator.pace import done_s, net_at, pace_at, pace_of, steers_nothing
from orchestrator.placement import rank
from orchestrator.planning import Quote, make_plan
from orchestrator.reconcile import reconcile

WORK = Work(run_s=10 * HOUR, startup_s=0.25 * HOUR, rework_s=0.25 * HOUR)  # a changeover is half an hour
BY = T0 + 20 * HOUR
STEERED = replace(POLICY, work=WORK, finish_by=BY, ttl_s=48 * HOUR)


def kind(now_h: float, done_h: float) -> str:
    return pace_at(T0 + now_h * HOUR, T0, done_h * HOUR, STEERED).kind


@pytest.mark.parametrize(
    ("now_h", "done_h", "expected"),
    [
        (0.0, 0.0, "spot-or-wait"),  # an even pace asks for nothing yet
        (4.0, 2.5, "spot-or-wait"),  # an even pace is 2 h
        (4.0, 1.5, "spot-first"),
        (8.9, 0.0, "spot-first"),  # 11.1 h left for 10 h of work and two changeovers of half an hour
        (9.1, 0.0, "demand"),
        (18.0, 9.5, "spot-or-wait"),  # half an hour of work in two hours
        (18.6, 9.5, "demand"),
        (20.1, 5.0, "any"),  # it has passed, and ends nothing
    ],
)
def test_the_rule_follows_what_is_done_and_what_is_left(now_h: float, done_h: float, expected: str) -> None:
    assert kind(now_h, done_h) == expected


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (replace(STEERED, work=None), "steers nothing, since the job's length is unknown: write `expected`"),
        (replace(STEERED, resumable=False), "steers nothing: this job runs on demand anyway"),
        (replace(STEERED, spot="always"), "steers nothing: spot: true allows no other machine; write spot: auto"),
    ],
)
def test_a_job_that_cannot_choose_is_not_steered_and_told_so(policy: Any, why: str) -> None:
    assert pace_at(T0, T0, 0.0, policy).kind == "any"
    assert steers_nothing(policy) == why


@given(now_h=st.floats(0, 19.9), done_h=st.floats(0, 10))
def test_waiting_never_passes_the_safety_net(now_h: float, done_h: float) -> None:
    found = pace_at(T0 + now_h * HOUR, T0, done_h * HOUR, STEERED)
    if found.until is not None:
        left = WORK.run_s - done_h * HOUR
        assert found.until <= BY - left - 1 * HOUR + 1e-3
        assert found.until >= T0 + now_h * HOUR - 1e-3


def test_the_net_of_a_fresh_job_is_where_the_rule_turns() -> None:
    at = net_at(BY, WORK)
    assert at == T0 + 9 * HOUR
    assert pace_at(at - 1, T0, 0.0, STEERED).kind == "spot-first"
    assert pace_at(at + 1, T0, 0.0, STEERED).kind == "demand"


def run(n: int, ordered_h: float, ended_h: float, step: int | None, resume_step: int | None = None) -> Assignment:
    over = Exit("run", 143, T0 + ended_h * HOUR)
    return Assignment(
        "j-1-aaaa", "t0", n, f"gj-{n}", (), "", "", resume_step, T0, T0 + ordered_h * HOUR, over, last_step=step
    )


def test_only_durable_work_counts() -> None:
    saved = CheckpointRow("j-1-aaaa", "t0", 2, "step_9", 9, "h9", 1, "", T0 + 5 * HOUR)
    runs = (
        run(1, 1.0, 3.0, step=4),  # its checkpoints were pruned: it got on until its end
        run(2, 4.0, 7.0, step=9, resume_step=4),  # two hours after its last checkpoint are lost
        run(3, 8.0, 9.0, step=None, resume_step=9),  # nothing
    )
    assert done_s(facts(assignments=runs, checkpoints=(saved,))) == pytest.approx((2 + 1) * HOUR)


def facts(**changes: Any) -> Facts:
    base = Facts(
        now=T0, job=job(created_at=T0), tasks=(Task("j-1-aaaa", "t0"),), rentals=(), assignments=(), checkpoints=(),
        offers=(OFFER, DEMAND), offers_at=T0,
    )  # fmt: skip
    return replace(base, **changes)


def rented(found: Facts) -> list[str]:
    return [each.offer.key for each in reconcile(found, STEERED).actions if isinstance(each, OpenRental)]


def late(**changes: Any) -> Facts:
    """Nothing done, and less time than the net."""
    return facts(
        now=T0 + 9.5 * HOUR, offers_at=T0 + 9.5 * HOUR, job=job(created_at=T0, first_rental_at=None), **changes
    )


def test_spot_is_taken_while_there_is_time() -> None:
    assert rented(facts()) == ["m1-spot"]


def test_on_demand_is_taken_when_the_net_is_reached_though_spot_is_cheaper() -> None:
    assert rented(late()) == ["m1"]


def test_spot_is_better_than_nothing_when_the_net_is_reached() -> None:
    assert rented(late(offers=(OFFER,))) == ["m1-spot"]


def test_a_job_ahead_waits_for_spot_and_the_wait_is_no_want_of_capacity() -> None:
    decision = reconcile(facts(offers=(DEMAND,)), STEERED)
    assert decision.actions == ()
    assert "waiting for spot: ahead of an even pace" in decision.condition.why
    assert T0 < decision.wake_at <= T0 + 60
    assert not any(isinstance(each, WaitForCapacity) for each in decision.actions)


def test_a_job_behind_goes_on_demand_where_there_is_no_spot() -> None:
    behind = facts(now=T0 + 4 * HOUR, offers_at=T0 + 4 * HOUR, offers=(DEMAND,))
    assert rented(replace(behind, job=job(created_at=T0, first_rental_at=None))) == ["m1"]


def test_what_is_left_out_says_that_it_was_the_deadline() -> None:
    ahead = rank((OFFER, DEMAND), STEERED, {}, pace=pace_of(facts(), STEERED))
    assert [out.why for out in ahead.left_out] == ["waiting for spot: finish_by leaves time"]
    net = rank((OFFER, DEMAND), STEERED, {}, pace=pace_of(late(), STEERED))
    assert [out.why for out in net.left_out] == ["finish_by leaves no time for spot"]


@pytest.mark.parametrize("key", ["workload: serve", "replicas: 3"])
def test_where_there_is_no_one_job_it_is_refused(key: str) -> None:
    text = f"name: a\ngpu: none\nrun: sleep 1\nfinish_by: 2030-01-01T09:00:00+01:00\n{key}\n"
    with pytest.raises(SpecErrors, match="finish_by"):
        load_spec(text, "a.yaml")


def test_a_plan_says_the_rule_and_its_cap_allows_what_the_rule_may_need() -> None:
    spec = load_spec(
        'name: a\ngpu: RTX-4090\nrun: x "$GPUJOB_RESUME_FROM"\nexpected: 8h\nttl: 40h\n'
        "finish_by: 2027-01-16T08:00:00+00:00\n",
        "a.yaml",
    )
    quote = Quote("prov", (OFFER, DEMAND), 0.0, caps=CAPS)
    plan = make_plan(spec, to_document(spec), {}, (quote,), {}, ("prov",), now=T0)
    assert (plan.pace.kind, plan.chosen) == ("spot-or-wait", OFFER)
    assert plan.price_cap == Decimal("4.50")  # of the 3.00 on demand, not of the 1.00 of spot
    late = make_plan(spec, to_document(spec), {}, (quote,), {}, ("prov",), now=T0 + 16 * HOUR)
    assert (late.pace.kind, late.chosen) == ("demand", DEMAND)
