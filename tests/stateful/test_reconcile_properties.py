"""What holds of `reconcile` for any facts at all, also for those that no world could show."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import actions as act
from orchestrator.model import (
    AgentCheckpoint,
    AgentRun,
    Assignment,
    CheckpointRow,
    CreateOutcome,
    Exit,
    Facts,
    Job,
    Machine,
    Outcome,
    Policy,
    Reason,
    Rental,
    RentalFacts,
    RentalPhase,
    Sight,
    SignalWhy,
    Task,
    Trouble,
    Unknown,
)
from orchestrator.reconcile import reconcile
from orchestrator.transitions import DESTROY_REASONS, RENTAL_STEPS
from providers.base import Ask, Caps, Instance, Notice, Offer, Ref, Resource, Tag

pytestmark = pytest.mark.sim
T0 = 1_800_000_000.0
OFFER = Offer("p", "a", "r", "k", True, Decimal("1.00"), "USD", pool="x")
DEMAND = replace(OFFER, key="d", spot=False, hourly=Decimal("2.00"), pool="y")
EXAMPLES = int(os.environ.get("GPUJOB_EXAMPLES", "250"))  # a night takes 20,000

times = st.one_of(st.none(), st.floats(T0 - 100_000, T0 + 100_000).map(lambda t: round(t, 1)))
when = st.floats(T0 - 90_000, T0 + 90_000).map(lambda t: round(t, 1))
statuses = st.sampled_from(("pending", "running", "stopped", "terminated", "a word that nobody knows"))
whys = st.one_of(st.none(), st.sampled_from(SignalWhy))


@st.composite
def instances(draw: st.DrawFn, name: str = "r1") -> Instance:
    return Instance(
        Ref("p", "a", "r", draw(st.sampled_from(("i-1", "i-2", "i-3")))), draw(statuses), Tag("d", name),
        ready=draw(st.booleans()), ends_at=draw(times),
        notice=draw(st.one_of(st.none(), when.map(Notice))),
    )  # fmt: skip


@st.composite
def rentals(draw: st.DrawFn, n: int) -> RentalFacts:
    caps = Caps(
        draw(st.sampled_from((frozenset(), frozenset({"terminated"}), frozenset({"terminated", "stopped"})))),
        "nothing", draw(st.booleans()), "once", list_lag_s=draw(st.sampled_from((0.0, 60.0))),
    )  # fmt: skip
    phase = draw(st.sampled_from(RentalPhase))
    row = Rental(
        id=f"r{n}", job="j", attempt=n, offer=draw(st.sampled_from((OFFER, DEMAND))), phase=phase, end=draw(when),
        wanted_end=draw(when), end_reason=draw(st.sampled_from((Reason.TTL, Reason.BUDGET))),
        reserve=Decimal(draw(st.integers(0, 30))), nonce="n", created_at=draw(when), create_sent_at=draw(times),
        create_outcome=draw(st.one_of(st.none(), st.sampled_from(CreateOutcome))),
        provider_id=draw(st.sampled_from((None, "i-1", "i-2"))), ready_at=draw(times),
        reason=draw(st.one_of(st.none(), st.sampled_from(sorted(DESTROY_REASONS)))), releasing_at=draw(times),
        destroy_sent_at=draw(times), destroy_acked_at=draw(times), quiesced_at=draw(times), gone_at=draw(times),
    )  # fmt: skip
    got: Any = draw(st.one_of(st.just("missing"), st.just(Unknown("no")), instances(row.id)))
    disk = Resource(Ref("p", "a", "r", "d-1", "disk"), "available", Tag("d", row.id))
    sight = Sight(
        instance=draw(st.one_of(st.none(), instances(row.id))), seen_at=draw(times),
        absent_count=draw(st.integers(0, 6)), absent_span_s=draw(st.sampled_from((0.0, 100.0, 500.0))),
        others=draw(st.sampled_from((Unknown("x"), (), (disk,)))), others_absent_count=draw(st.integers(0, 3)),
        duplicates=tuple(draw(st.lists(instances(row.id), max_size=1))), got=got, got_at=draw(times),
    )  # fmt: skip
    runs = {f"t0.{k}": draw(agent_runs()) for k in draw(st.lists(st.integers(1, 3), max_size=2, unique=True))}
    machine = Machine(
        connected=draw(st.booleans()), proven=draw(st.booleans()), lost_at=draw(times),
        failed_awake_s=draw(st.sampled_from((0.0, 130.0, 5000.0))), failures=draw(st.integers(0, 3)),
        trouble=draw(st.sampled_from(("", "key not accepted", "timed out"))), end=draw(times),
        end_confirmed=draw(st.booleans()), notice=draw(st.one_of(st.none(), when.map(Notice))), runs=runs,
    )  # fmt: skip
    return RentalFacts(row, caps, sight, machine, Decimal(draw(st.integers(0, 30))))


@st.composite
def agent_runs(draw: st.DrawFn) -> AgentRun:
    found = draw(st.lists(st.integers(0, 500), max_size=2, unique=True))
    return AgentRun(
        state=draw(st.sampled_from(("queued", "setup", "smoke", "run", "exited"))), stage="run",
        rc=draw(st.sampled_from((None, 0, 1, 85, 137))), signalled=draw(whys), dead=draw(st.booleans()),
        closed=draw(st.booleans()), lost=draw(st.booleans()), ended=draw(times),
        checkpoints=tuple(AgentCheckpoint(f"s{k}", k, 10, draw(st.booleans())) for k in found),
    )  # fmt: skip


@st.composite
def assignments(draw: st.DrawFn, n: int) -> Assignment:
    end = st.builds(
        Exit, st.sampled_from(("setup", "run")), st.sampled_from((0, 1, 85, 137)), when, whys, st.booleans()
    )
    return Assignment(
        "j", "t0", n, f"r{draw(st.integers(1, 3))}", draw(st.sampled_from(((), ("h1",), ("h1", "h2")))), "", "", None,
        committed_at=draw(when), ordered_at=draw(times), exit=draw(st.one_of(st.none(), end)), closed_at=draw(times),
        results_at=draw(times), results_lost=draw(st.sampled_from(("", "lost"))),
    )  # fmt: skip


@st.composite
def facts(draw: st.DrawFn) -> tuple[Facts, Policy]:
    outcome = draw(st.one_of(st.none(), st.none(), st.sampled_from(Outcome)))
    job = Job(
        "j", "j", 1, {}, "h", "s", "/b", T0 - 100, cancel_at=draw(st.one_of(st.none(), st.none(), when)),
        cancel_now=draw(st.booleans()), first_rental_at=draw(times), outcome=outcome,
        reason=draw(st.sampled_from(Reason)) if outcome else None, held_until=draw(times),
        terminal_at=draw(st.one_of(st.none(), st.none(), when)) if outcome else None, wait_since=draw(times),
    )  # fmt: skip
    rows = tuple(draw(rentals(n)) for n in range(1, draw(st.integers(0, 3)) + 1))
    steps = draw(st.lists(st.integers(1, 500), max_size=3, unique=True))
    checkpoints = tuple(
        CheckpointRow(
            "j", "t0", draw(st.integers(0, 3)), f"s{k}", k, f"h{i}", 10, draw(st.sampled_from(("", "h0", "h1"))), T0
        )
        for i, k in enumerate(steps)
    )
    trouble = Trouble("x", draw(st.integers(1, 9)), T0, "it fails", draw(st.sampled_from((None, Reason.DATA))))
    keys = ("r1/prepare/t0.1", "r1/results/t0.1", "r2/prepare/t0.2")
    found = Facts(
        now=draw(when), job=job, tasks=(Task("j", "t0", {}, outcome),), rentals=rows,
        assignments=tuple(draw(assignments(n)) for n in range(1, draw(st.integers(0, 3)) + 1)), checkpoints=checkpoints,
        mirror_listed=draw(st.sampled_from(({}, {"t0": T0 + 200_000.0}))),
        offers=draw(st.sampled_from((None, Unknown("x"), (), (OFFER, DEMAND)))), offers_at=draw(times),
        troubles=dict.fromkeys(draw(st.lists(st.sampled_from(keys), max_size=2, unique=True)), trouble),
        prepared=frozenset(draw(st.lists(st.sampled_from(("r1/t0.1", "r2/t0.2")), max_size=2))),
        checkpoints_left=frozenset(draw(st.lists(st.sampled_from(("t0.1", "t0.2")), max_size=2))),
        limits_left=draw(st.sampled_from((None, Decimal(0), Decimal(50)))), cut_off=draw(st.booleans()),
        brake=draw(st.booleans()), settled=draw(st.sampled_from((True, True, False))),
    )  # fmt: skip
    policy = Policy(
        Ask(), draw(st.sampled_from(("auto", "always", "never"))), ("p",), None,
        draw(st.sampled_from((None, Decimal(0), Decimal(20)))), draw(st.sampled_from((60.0, 43_200.0))),
        draw(st.sampled_from((0.0, 120.0))), draw(st.integers(0, 2)), frozenset(), draw(st.booleans()), True,
        draw(st.sampled_from((0.0, 3600.0))), draw(st.sampled_from((0.0, 600.0))), results=draw(st.booleans()),
    )  # fmt: skip
    return found, policy


def of(decision: Any, kind: type) -> list[Any]:
    return [a for a in decision.actions if isinstance(a, kind)]


def it_is_total_and_deterministic_and_always_looks_again(case: tuple[Facts, Policy]) -> None:
    one, two = reconcile(*case), reconcile(*case)
    assert one == two
    assert case[0].now < one.wake_at <= case[0].now + 30.0
    assert math.isfinite(one.wake_at)
    assert len(set(map(repr, one.actions))) == len(one.actions)


def no_machine_is_opened_while_an_earlier_one_may_run_code(case: tuple[Facts, Policy]) -> None:
    decision, (found, _) = reconcile(*case), case
    opened = of(decision, act.OpenRental)
    assert len(opened) <= 1
    if opened:
        assert all(r.rental.phase is RentalPhase.GONE or r.rental.quiesced_at is not None for r in found.rentals)
        assert found.job.outcome is None
        assert found.job.cancel_at is None
        assert found.settled
        assert not of(decision, act.SetOutcome)


def every_release_is_legal_and_has_a_reason_of_the_closed_list(case: tuple[Facts, Policy]) -> None:
    decision, (found, _) = reconcile(*case), case
    rows = {r.rental.id: r.rental for r in found.rentals}
    for release in of(decision, act.Release):
        assert release.reason in DESTROY_REASONS
        assert RentalPhase.RELEASING in RENTAL_STEPS[rows[release.rental].phase]
    for destroy in of(decision, act.Destroy):
        assert destroy.reason in DESTROY_REASONS
        row = rows[destroy.rental]
        extra = {d.ref.id for r in found.rentals for d in r.sight.duplicates if r.rental.id == row.id}
        assert row.phase is RentalPhase.RELEASING or destroy.ref.id in extra
        if row.phase is not RentalPhase.RELEASING:
            assert destroy.ref.id != row.provider_id


def nothing_is_decided_by_absence_or_silence_when_our_own_eyes_are_in_doubt(case: tuple[Facts, Policy]) -> None:
    found, policy = case
    for doubt in ({"brake": True}, {"cut_off": True}):
        decision = reconcile(replace(found, **doubt), policy)
        for release in of(decision, act.Release):
            assert release.reason is not Reason.UNREACHABLE
            assert release.detail != "no longer known to the provider"


def a_machine_is_gone_only_on_evidence(case: tuple[Facts, Policy]) -> None:
    decision, (found, policy) = reconcile(*case), case
    rows = {r.rental.id: r for r in found.rentals}
    for gone in of(decision, act.StoreGone):
        one = rows[gone.rental]
        sight, row = one.sight, one.rental
        if row.create_sent_at is None or row.create_outcome is CreateOutcome.REFUSED:
            continue
        dead = isinstance(sight.got, Instance) and sight.got.status in one.caps.dead_statuses
        long = sight.absent_count >= policy.absence_count and sight.absent_span_s >= policy.absence_span_s
        assert (dead and sight.others_absent_count >= 2) or long
        if not gone.never_made:
            assert sight.others == ()


def a_create_is_sent_once_and_an_order_only_for_what_is_committed(case: tuple[Facts, Policy]) -> None:
    decision, (found, _) = reconcile(*case), case
    rows = {r.rental.id: r.rental for r in found.rentals}
    keys = {(a.task, a.n, a.rental): a for a in found.assignments}
    for create in of(decision, act.SendCreate):
        assert rows[create.rental].create_sent_at is None
        assert rows[create.rental].phase is RentalPhase.INTENT
    for order in of(decision, act.SendOrder):
        assert (order.task, order.n, order.rental) in keys
        assert rows[order.rental].phase is RentalPhase.LIVE
        assert found.job.outcome is None
    for commit in of(decision, act.CommitAssignment):
        assert all(a.n < commit.n for a in found.assignments)
        assert set(commit.seal) <= {c.hash for c in found.checkpoints}
        for a in found.assignments:
            rental = rows.get(a.rental)
            over = rental is not None and (rental.quiesced_at is not None or rental.gone_at is not None)
            assert a.closed_at is not None or over


def applying_the_writes_and_asking_again_creates_nothing_new(case: tuple[Facts, Policy]) -> None:
    found, policy = case
    once = reconcile(found, policy)
    outcomes = of(once, act.SetOutcome)
    released = {r.rental: r for r in of(once, act.Release)}
    quiet = {q.rental for q in of(once, act.StoreQuiesced)}
    after = []
    for one in found.rentals:
        row = one.rental
        if row.id in released:
            row = replace(row, phase=RentalPhase.RELEASING, reason=released[row.id].reason, releasing_at=found.now)
        if row.id in quiet:
            row = replace(row, quiesced_at=row.quiesced_at or found.now)
        after.append(replace(one, rental=row))
    job = found.job
    if outcomes:
        job = replace(job, outcome=outcomes[0].outcome, reason=outcomes[0].reason)
    twice = reconcile(replace(found, job=job, rentals=tuple(after)), policy)
    again = {r.rental for r in of(twice, act.Release)}
    assert not again & set(released)
    assert not quiet & {q.rental for q in of(twice, act.StoreQuiesced)}
    if outcomes:
        assert not of(twice, act.SetOutcome)
        assert not of(twice, act.OpenRental)
    assert len(outcomes) <= 1


def a_job_is_over_only_when_nothing_bills(case: tuple[Facts, Policy]) -> None:
    decision, (found, _) = reconcile(*case), case
    if of(decision, act.FinishJob):
        assert found.job.outcome is not None
        assert all(r.rental.phase is RentalPhase.GONE for r in found.rentals)
    if found.job.terminal_at is not None:
        assert decision.actions == ()


PROPERTIES = (
    it_is_total_and_deterministic_and_always_looks_again,
    no_machine_is_opened_while_an_earlier_one_may_run_code,
    every_release_is_legal_and_has_a_reason_of_the_closed_list,
    nothing_is_decided_by_absence_or_silence_when_our_own_eyes_are_in_doubt,
    a_machine_is_gone_only_on_evidence,
    a_create_is_sent_once_and_an_order_only_for_what_is_committed,
    applying_the_writes_and_asking_again_creates_nothing_new,
    a_job_is_over_only_when_nothing_bills,
)


@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(facts())
def test_what_holds_for_any_facts(case: tuple[Facts, Policy]) -> None:
    for holds in PROPERTIES:
        holds(case)
