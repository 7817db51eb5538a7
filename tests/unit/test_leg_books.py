"""Legs from the rows of the books: where they stand, and their share of the time and the money."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import core_facts as cf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.leg_books import Books, legs_of, reason_of, run_costs, run_seconds, state_of
from orchestrator.legs import LegState, Report
from orchestrator.model import Assignment, Exit, Outcome, Reason, Rental, RentalPhase, Task
from orchestrator.store.rows import Bill, ReportRow

JOB, NOW = "sweep.1-abcd", 1000.0


def task(name: str, outcome: Outcome | None = None, reason: Reason | None = None, **more: Any) -> Task:
    return Task(JOB, name, {"lr": f"1e-{name[-1]}"}, outcome, reason=reason, **more)


def run(name: str, rental: Rental, ordered: float | None, ended: float | None = None, n: int = 1) -> Assignment:
    over = None if ended is None else Exit("run", 0, ended, None)
    return Assignment(JOB, name, n, rental.id, (), "", "", None, (ordered or 0.0) - 5, ordered, over)


def bill(rental: Rental, amount: str, currency: str = "USD", kind: str = "instance") -> Bill:
    return Bill(rental.id, JOB, "prov", "acc", "r1", kind, Decimal(amount), currency, False, 0.0, NOW)


def books(
    runs: Sequence[Assignment] = (), rentals: Sequence[Rental] = (), bills: Sequence[Bill] = (), **more: Any
) -> Books:
    tasks = more.pop("tasks", [task(name) for name in sorted({run.task for run in runs})])
    return Books(tasks, runs, rentals, bills, more.pop("reports", ()), NOW, **more)


ONE, TWO = cf.rental(1), cf.rental(2)


@pytest.mark.parametrize(
    ("outcome", "reason", "state"),
    [
        (Outcome.DONE, Reason.DONE, LegState.DONE),
        (Outcome.DONE, Reason.STOPPED_EARLY, LegState.STOPPED),
        (Outcome.FAILED, Reason.FAILED, LegState.FAILED),
        (Outcome.CANCELLED, Reason.BUDGET, LegState.CANCELLED),
    ],
)
def test_an_outcome_is_a_state(outcome: Outcome, reason: Reason, state: LegState) -> None:
    assert state_of(task("t1", outcome, reason), [run("t1", ONE, 10.0)], {ONE.id: ONE}) is state


def test_a_leg_runs_while_its_code_may() -> None:
    wanted = task("t1")
    known = {ONE.id: ONE, TWO.id: cf.rental(2, RentalPhase.GONE)}
    assert state_of(wanted, [], known) is LegState.WAITING
    assert state_of(wanted, [run("t1", ONE, None)], known) is LegState.WAITING
    assert state_of(wanted, [run("t1", ONE, 10.0)], known) is LegState.RUNNING
    ended = run("t1", ONE, 10.0, ended=20.0)
    assert state_of(wanted, [ended], known) is LegState.RUNNING  # its results come home
    assert state_of(wanted, [replace(ended, results_at=30.0)], known) is LegState.WAITING
    assert state_of(wanted, [replace(ended, results_lost="no room")], known) is LegState.WAITING
    assert state_of(wanted, [run("t1", TWO, 10.0)], known) is LegState.WAITING
    assert state_of(wanted, [run("t1", ONE, 10.0)], {ONE.id: replace(ONE, quiesced_at=20.0)}) is LegState.WAITING
    assert state_of(wanted, [run("t1", TWO, 10.0), run("t1", ONE, 20.0, n=2)], known) is LegState.RUNNING


def test_reasons_are_words_of_the_list() -> None:
    assert reason_of(task("t1", Outcome.DONE, Reason.DONE)) == ""
    assert reason_of(task("t1", Outcome.FAILED, Reason.FAILED)) == ""
    assert reason_of(task("t1", Outcome.FAILED, Reason.BAD_HOST)) == "bad-host"
    assert reason_of(task("t1", Outcome.DONE, Reason.STOPPED_EARLY)) == "stopped-early"
    assert reason_of(task("t1", Outcome.DONE, Reason.DONE, kept_from="sweep.0-x")) == "kept"
    assert reason_of(task("t1")) == ""


def test_a_machine_is_one_leg_at_a_time() -> None:
    """The second was ordered ahead, while the first still ran."""
    found = run_seconds(books([run("t1", ONE, 100.0, 400.0), run("t2", ONE, 350.0, 460.0), run("t3", ONE, 470.0)]))
    assert found == {}  # rentals that are not in the books
    found = run_seconds(
        books([run("t1", ONE, 100.0, 400.0), run("t2", ONE, 350.0, 460.0), run("t3", ONE, 470.0)], [ONE])
    )
    assert found == {"t1.1": 300.0, "t2.1": 60.0, "t3.1": NOW - 470.0}


def test_a_run_ends_with_its_machine() -> None:
    lost = replace(TWO, quiesced_at=250.0, gone_at=300.0)
    assert run_seconds(books([run("t1", lost, 100.0), run("t2", ONE, None)], [ONE, lost])) == {"t1.1": 150.0}
    assert run_seconds(books([run("t1", lost, 270.0)], [lost])) == {"t1.1": 0.0}


def test_the_whole_cost_of_a_machine_is_shared_by_time() -> None:
    runs = [run("t1", ONE, 100.0, 400.0), run("t2", ONE, 400.0, 500.0), run("t1", TWO, 600.0, 700.0, n=2)]
    idle = cf.rental(3)
    given = books(
        runs, [ONE, TWO, idle], [bill(ONE, "0.40"), bill(TWO, "1"), bill(ONE, "0.04", kind="disk"), bill(idle, "0.07")]
    )
    costs, of_none = run_costs(given, run_seconds(given))
    assert costs == {"t1.1": Decimal("0.33"), "t2.1": Decimal("0.11"), "t1.2": Decimal(1)}
    assert of_none == Decimal("0.07")
    legs = legs_of(given)
    assert [(leg.cost, leg.seconds, leg.attempts) for leg in legs] == [
        (Decimal("1.33"), 400.0, 2),
        (Decimal("0.11"), 100.0, 1),
    ]


def test_runs_of_no_length_share_evenly() -> None:
    given = books([run("t1", ONE, 100.0, 100.0), run("t2", ONE, 100.0, 100.0)], [ONE], [bill(ONE, "0.01")])
    costs, _ = run_costs(given, run_seconds(given))
    assert costs == {"t1.1": Decimal("0.005"), "t2.1": Decimal("0.005")}


def test_other_currencies_count_by_their_rate_or_not_at_all() -> None:
    given = books([run("t1", ONE, 0.0, 10.0)], [ONE], [bill(ONE, "7", "CNY"), bill(ONE, "1", kind="disk")])
    assert given.strange == ["CNY"]
    assert legs_of(given)[0].cost == Decimal(1)
    rated = replace(given, rates={"CNY": Decimal("0.5")})
    assert (rated.strange, legs_of(rated)[0].cost) == ([], Decimal("4.5"))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(0, 900), st.floats(0, 900)), max_size=12),
    st.lists(st.decimals(0, 100, places=4), min_size=3, max_size=3),
)
def test_nothing_paid_is_lost_or_counted_twice(spans: list[tuple[int, float, float]], amounts: list[Decimal]) -> None:
    rentals = [cf.rental(n) for n in (1, 2, 3)]
    runs = [run(f"t{i}", rentals[at], begin, begin + length) for i, (at, begin, length) in enumerate(spans)]
    paid = books(runs, rentals, [bill(rental, str(amount)) for rental, amount in zip(rentals, amounts, strict=True)])
    costs, idle = run_costs(paid, run_seconds(paid))
    assert sum(costs.values(), idle) == sum(amounts)
    assert sum((leg.cost for leg in legs_of(paid)), idle) == sum(amounts)


def test_reports_go_to_their_leg() -> None:
    told = [ReportRow(JOB, "t2", 1, 0.5, 1, 10.0), ReportRow(JOB, "t1", 3, math.inf, 1, 9.0)]
    given = books(tasks=[task("t2", seq=1), task("t1", seq=2), task("t3", seq=3)], reports=told, currency="EUR")
    first, second, third = legs_of(given)
    assert (first.id, first.name, first.reports) == ("t2", "lr=1e-2", (Report(1, 0.5, 10.0),))
    assert (second.id, second.reports) == ("t1", (Report(3, math.inf, 9.0),))
    assert (third.reports, third.currency, third.cost, third.play) == ((), "EUR", Decimal(0), False)


def test_play_money_says_so() -> None:
    given = books([run("t1", ONE, 0.0, 10.0)], [ONE], [replace(bill(ONE, "1"), play=True)])
    assert legs_of(given)[0].play
