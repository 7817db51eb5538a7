"""Health within the loop: alarms said once, shown while they hold, and a stop that reconcile sees and judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import core_facts as cf
import pytest
from health_series import healthy, used
from loop_desk import Desk

from jobspecs.schema import from_document
from orchestrator import actions as act
from orchestrator import reconcile
from orchestrator.crew import Crew
from orchestrator.health import rules_of
from orchestrator.look import Rule
from orchestrator.messages import Message, PointSeen, Reached
from orchestrator.model import Exit, Outcome, Reason, Rental, SignalWhy, Task
from orchestrator.series import Series


class Ward(Desk):
    """A desk with one running job."""

    def admit(self, tasks: Sequence[Mapping[str, Any]] = (), **spec: Any) -> Rental:
        rental = self.rent(spec=spec, tasks=list(tasks))
        self.turn(Reached(rental.id, {"ok": True}))
        job = self.job().id
        if not self.store.assignments(job):
            self.write(job, act.CommitAssignment("t0", 1, rental.id, (), "", "", None))
        self.store.ordered(job, "t0", 1, self.clock.utc())
        self.store.progress_seen(job, "t0", 1, self.clock.utc(), phase="run")
        self.began = self.clock.utc()
        return rental

    def minutes(self, rental: Rental, count: int, util: float = 92.0, first: int = 0) -> None:
        """So many minutes of a run, one sample each."""
        for minute in range(first, first + count):
            point = used(util, 10)(minute, healthy(minute))
            at = self.clock.utc()
            self.turn(PointSeen(rental.id, replace(point, at=at)), after=60.0)

    def alarms(self) -> list[str]:
        return [
            entry.kind for entry in self.store.journal(self.job().id, limit=5000) if entry.kind.startswith("alarm:")
        ]

    def held(self) -> list[str]:
        (progress,) = self.store.progress(self.job().id)
        return [str(each["kind"]) for each in progress.alarms]


def test_an_alarm_is_said_once_and_shown_while_it_holds(tmp_path: Path) -> None:
    with Ward(tmp_path) as ward:
        rental = ward.admit()
        ward.minutes(rental, 30, util=40.0)
        assert (ward.alarms(), ward.held()) == (["alarm:gpu-util-below"], ["gpu-util-below"])
        (progress,) = ward.store.progress(ward.job().id)
        shown = progress.alarms[0]
        assert shown["text"].startswith("GPU use 40 % in the last 15m00s")
        assert ward.began < shown["since"] < ward.clock.utc()
        ward.minutes(rental, 100, util=40.0, first=30)
        assert ward.alarms() == ["alarm:gpu-util-below"], "more than an hour later it is the same alarm"
        ward.minutes(rental, 20, util=92.0, first=130)
        assert ward.held() == []
        assert ward.job().outcome is None


def test_a_restart_neither_forgets_the_minutes_nor_says_it_again(tmp_path: Path) -> None:
    with Ward(tmp_path) as ward:
        rental = ward.admit()
        path = ward.home.series(ward.job().id, rental.id)
        with Series(path) as series:
            for minute in range(40):
                at = ward.clock.utc() + 60 * minute
                series.add(replace(used(40.0, 10)(minute, healthy(minute)), at=at))
        ward.clock.advance(40 * 60)
        ward.turn(PointSeen(rental.id, replace(used(40.0, 0)(50, healthy(50)), at=ward.clock.utc())), after=30.0)
        assert ward.held() == ["gpu-util-below"]
        ward.loop.health.__init__(ward.loop)  # type: ignore[misc]
        ward.turn(PointSeen(rental.id, replace(used(40.0, 0)(51, healthy(51)), at=ward.clock.utc())), after=30.0)
        assert (ward.alarms(), ward.held()) == (["alarm:gpu-util-below"], ["gpu-util-below"])


def test_a_rule_that_may_stop_writes_why_into_the_run(tmp_path: Path) -> None:
    with Ward(tmp_path) as ward:
        rental = ward.admit(alarms={"gpu_util_below": {"stop": True}})
        ward.minutes(rental, 30, util=40.0)
        (run,) = ward.store.assignments(ward.job().id)
        assert run.stop.startswith("gpu-util-below: GPU use 40 %")
        lines = [entry.text for entry in ward.store.journal(ward.job().id, limit=500) if entry.kind == "stop"]
        assert lines == [f"t0.1 {run.stop}"]


def test_of_a_machine_on_its_way_out_nothing_more_is_said(tmp_path: Path) -> None:
    with Ward(tmp_path) as ward:
        rental = ward.admit()
        ward.minutes(rental, 30, util=40.0)
        ward.write(ward.job().id, act.SetOutcome(Outcome.CANCELLED, Reason.CANCELLED))
        ward.turn(after=60.0)
        assert ward.held() == []


def test_a_machine_of_many_tasks_moves_its_own_end_so_only_the_legs_counts(tmp_path: Path) -> None:
    sweep = {"parameters": {"lr": ["1e-4"]}, "budget": "60 USD"}
    with Ward(tmp_path) as ward:
        rental = ward.admit(tasks=[{"id": "t0", "params": {}}], sweep=sweep, expected="10m", ttl="100m")
        assert rental.end - ward.clock.utc() < 30 * 60
        ward.minutes(rental, 25)
        assert ward.held() == []
        later = act.WantEnd(rental.id, rental.end + 3 * 3600, Reason.TTL, Decimal(10))
        ward.write(ward.job().id, later, act.ConfirmEnd(rental.id))
        ward.minutes(rental, 70, first=25)
        assert ward.held() == ["ttl-near"]


# --- what is decided -------------------------------------------------------------------------------------------------


def stopped(**run: Any) -> Any:
    row = cf.assignment(stop="stalled: no step for 31m00s", **run)
    running = cf.machine(runs={"t0.1": cf.run()})
    return cf.facts(rentals=(cf.live(machine=running),), assignments=(row,))


def test_a_run_that_an_alarm_stops_saves_with_its_grace() -> None:
    decision = reconcile.reconcile(stopped(), cf.POLICY)
    signals = [action for action in decision.actions if isinstance(action, act.SendSignal)]
    assert [(signal.why, signal.grace_s) for signal in signals] == [(SignalWhy.STOP, cf.POLICY.grace_s)]


def test_its_end_is_stalled_and_never_a_new_run() -> None:
    over = stopped(exit=Exit("run", 143, cf.T0 + 500, SignalWhy.STOP), closed_at=cf.T0 + 501, results_at=cf.T0 + 502)
    decision = reconcile.reconcile(over, replace(cf.POLICY, retry_max=3))
    outcomes = [action for action in decision.actions if isinstance(action, act.SetOutcome)]
    assert [(each.outcome, each.reason) for each in outcomes] == [(Outcome.FAILED, Reason.STALLED)]
    assert outcomes[0].detail == "stopped by an alarm: stalled: no step for 31m00s"


def test_a_leg_that_an_alarm_stopped_leaves_its_machine_to_the_next_one() -> None:
    policy = replace(cf.POLICY, crew=Crew("sweep", 1, leg_s=1800.0))
    over = stopped(exit=Exit("run", 143, cf.T0 + 500, SignalWhy.STOP), closed_at=cf.T0 + 501, results_at=cf.T0 + 502)
    tasks = (Task("j-1-aaaa", "t0", outcome=Outcome.FAILED, seq=1), Task("j-1-aaaa", "t1", seq=2))
    decision = reconcile.reconcile(replace(over, tasks=tasks), policy)
    assert [(type(each), getattr(each, "task", "")) for each in decision.actions] == [(act.CommitAssignment, "t1")]


# --- the spec --------------------------------------------------------------------------------------------------------


def test_the_rules_of_a_spec() -> None:
    alarms = {
        "gpu_util_below": {"percent": 40, "for": "30m"}, "stalled": {"for": "1h", "stop": True},
        "no_checkpoint": {"count": 3}, "off": ["leak"],
    }  # fmt: skip
    spec = from_document({"name": "a", "gpu": "A100", "run": "x", "alarms": alarms})
    found = rules_of(spec)
    assert set(found) == {"gpu-util-below", "stalled", "no-checkpoint", "leak"}
    assert (found["gpu-util-below"].percent, found["gpu-util-below"].duration) == (40.0, 1800.0)
    assert (found["stalled"].duration, found["stalled"].stop) == (3600.0, True)
    assert found["no-checkpoint"].count == 3.0
    assert found["leak"].off is True
    assert rules_of(from_document({"name": "a", "gpu": "A100", "run": "x"})) == {}
    assert isinstance(found["leak"], Rule)


@pytest.mark.parametrize("message", [PointSeen("gj-nobody", healthy(1))])
def test_a_point_of_a_machine_that_is_not_watched_is_dropped(tmp_path: Path, message: Message) -> None:
    with Ward(tmp_path) as ward:
        ward.turn(message)
        assert ward.loop.faults == 0
