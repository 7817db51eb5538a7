"""What holds of the decisions about a job of many tasks, for any facts at all."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import actions as act
from orchestrator.crew import Crew
from orchestrator.model import Facts, Outcome, Policy, Reason, RentalPhase, Task
from orchestrator.reconcile import reconcile
from orchestrator.successor import committed

pytestmark = pytest.mark.sim


def _plain() -> Any:
    """The strategies of the plain job's properties, whatever import mode the tests are run in."""
    name = "test_reconcile_properties"
    if name not in sys.modules:
        found = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        found.loader.exec_module(module)
    return sys.modules[name]


plain = _plain()


@st.composite
def many(draw: st.DrawFn) -> tuple[Facts, Policy]:
    """Any facts of a plain job, with their runs dealt out to several tasks and their machines to several workers."""
    found, policy = draw(plain.facts())
    names = [f"l{number}" for number in range(1, draw(st.integers(0, 5)) + 1)]
    outcome = st.one_of(st.none(), st.none(), st.sampled_from(Outcome))
    tasks = tuple(
        Task(
            "j", name, {"a": name}, draw(outcome) if found.job.outcome is None else Outcome.CANCELLED, seq,
            items=("x", "y") if draw(st.booleans()) else (), reason=Reason.FAILED,
            cancel_at=draw(plain.times), stop_at=draw(plain.times),
        )
        for seq, name in enumerate(names, 1)
    )  # fmt: skip
    runs = [replace(run, task=draw(st.sampled_from(names))) for run in found.assignments] if names else []
    runs = [run for at, run in enumerate(runs) if (run.task, run.n) not in {(r.task, r.n) for r in runs[:at]}]
    rows = tuple(replace(r, rental=replace(r.rental, worker=draw(st.integers(0, 3)))) for r in found.rentals)
    crew = Crew(
        draw(st.sampled_from(("sweep", "batch", "replicas"))), draw(st.integers(1, 4)),
        draw(st.sampled_from((None, 100.0, 7200.0))), draw(st.sampled_from((None, Decimal(3)))),
        draw(st.sampled_from((None, 60.0, 3600.0))), draw(st.sampled_from((0, 0, 6))),
    )  # fmt: skip
    seen = replace(
        found, tasks=tasks, assignments=tuple(runs), rentals=rows,
        mirror_listed=dict.fromkeys(draw(st.lists(st.sampled_from(names or ["l1"]), max_size=5)), plain.T0 + 2e5),
        items={item: draw(st.sampled_from(("", "bad"))) for item in draw(st.lists(st.sampled_from("xy"), max_size=2))},
        machines_left=draw(st.sampled_from((None, 0, 2))), exhausted=draw(st.booleans()),
    )  # fmt: skip
    return seen, replace(policy, crew=crew)


@settings(
    max_examples=max(40, plain.EXAMPLES // 4), deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(many())
def test_what_holds_for_any_facts_of_many_tasks(case: tuple[Facts, Policy]) -> None:
    found, policy = case
    plain.it_is_total_and_deterministic_and_always_looks_again(case)
    plain.every_release_is_legal_and_has_a_reason_of_the_closed_list(case)
    plain.nothing_is_decided_by_absence_or_silence_when_our_own_eyes_are_in_doubt(case)
    plain.a_machine_is_gone_only_on_evidence(case)
    plain.a_job_is_over_only_when_nothing_bills(case)
    decision = reconcile(*case)
    commits, opened = plain.of(decision, act.CommitAssignment), plain.of(decision, act.OpenRental)
    a_machine_and_a_task_are_given_to_each_other_once(found, commits)
    machines_are_within_what_is_allowed(found, policy, opened)
    decided = plain.of(decision, act.SetTaskOutcome)
    tasks = {task.id: task for task in found.tasks}
    assert all(tasks[each.task].outcome is None for each in decided)
    assert len({each.task for each in decided}) == len(decided)
    if plain.of(decision, act.SetOutcome):
        assert not opened
        assert found.job.outcome is None


def a_machine_and_a_task_are_given_to_each_other_once(found: Facts, commits: list[Any]) -> None:
    tasks = {task.id: task for task in found.tasks}
    rows = {r.rental.id: r.rental for r in found.rentals}
    assert len({each.rental for each in commits}) == len(commits)
    assert len({each.task for each in commits}) == len(commits)
    for commit in commits:
        assert tasks[commit.task].outcome is None
        assert rows[commit.rental].phase is RentalPhase.LIVE
        for run in found.assignments:
            if run.task == commit.task:
                rental = rows.get(run.rental)
                over = rental is not None and (rental.quiesced_at is not None or rental.gone_at is not None)
                assert run.n < commit.n
                assert run.closed_at is not None or over


def machines_are_within_what_is_allowed(found: Facts, policy: Policy, opened: list[Any]) -> None:
    assert policy.crew is not None
    running = {
        r.rental.worker
        for r in found.rentals
        if r.rental.phase is not RentalPhase.GONE and r.rental.quiesced_at is None
    }
    workers = [each.worker for each in opened]
    assert len(set(workers)) == len(workers)
    assert not set(workers) & running
    assert all(0 <= worker < policy.crew.parallel for worker in workers)
    if not opened:
        return
    assert found.job.outcome is None
    assert found.job.cancel_at is None
    assert found.machines_left is None or len(opened) <= found.machines_left
    reserved = sum((each.reserve for each in opened), Decimal(0))
    if policy.budget is not None:
        assert committed(found, policy) + reserved <= policy.budget
    assert found.limits_left is None or reserved <= found.limits_left
