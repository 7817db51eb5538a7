"""Health within the loop: alarms said once, shown while they hold, and a stop that reconcile sees and judges."""

from __future__ import annotations

import math
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
from orchestrator.earlier import earlier
from orchestrator.health import rules_of
from orchestrator.home import Home
from orchestrator.look import Before, Rule
from orchestrator.messages import Message, PointSeen, Reached
from orchestrator.model import Exit, Job, Outcome, Reason, Rental, SignalWhy, Task
from orchestrator.policy import moves_on
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


class Shelf:
    """Rows of earlier jobs, as the store would give them."""

    def __init__(self, *jobs: tuple[Job, tuple[Rental, ...]]) -> None:
        self.rows = {job.id: (job, rentals) for job, rentals in jobs}

    def jobs_of_name(self, name: str, run: int) -> tuple[Job, ...]:
        return tuple(job for job, _ in self.rows.values() if job.name == name and job.run <= run)[::-1]

    def rentals(self, job: str) -> tuple[Rental, ...]:
        return self.rows[job][1]


def ran(home: Home, job: Job, rental: Rental, pace: float, rate: float = math.nan) -> None:
    """The series of a machine that made so many steps a minute."""
    with Series(home.series(job.id, rental.id)) as series:
        for minute in range(40):
            series.add(replace(healthy(minute, steps_a_minute=pace), rate=rate))


def test_what_earlier_machines_made_is_of_the_same_code_the_same_card_and_no_later_machine(tmp_path: Path) -> None:
    home = Home.from_env({"GPUJOB_HOME": str(tmp_path), "HOME": str(tmp_path)}).make()
    one = replace(cf.job(), id="a.1", run=1, name="a", spec={"run": "x"}, snapshot="code")
    two = replace(one, id="a.2", run=2)
    edited, longer = replace(one, id="a.3", run=2, snapshot="new code"), replace(one, id="a.4", spec={"run": "y"})
    card = cf.live().rental
    single, pair = replace(card.offer, gpu_count=1), replace(card.offer, gpu_count=2)
    other = replace(single, gpu="another card")
    rows = [replace(card, id=f"gj-{n}", attempt=n, offer=offer) for n, offer in enumerate([single, pair, other], 1)]
    for job, rental, pace in ((one, rows[0], 30.0), (one, rows[1], 20.0), (one, rows[2], 99.0), (edited, rows[0], 98.0),
                              (longer, rows[0], 97.0)):  # fmt: skip
        ran(home, job, rental, pace, rate=10 * pace)
    now = replace(rows[1], id="gj-now")
    ran(home, two, now, 25.0)
    ran(home, two, replace(now, id="gj-later"), 96.0)
    mine = (now, replace(now, id="gj-later", attempt=9))
    shelf: Any = Shelf((one, tuple(rows)), (two, mine), (edited, tuple(rows[:1])), (longer, tuple(rows[:1])))
    before = earlier(shelf, home, two, now)
    assert before.paces == (pytest.approx(20 / 60),)
    assert before.rates == ((1, 300.0),)
    assert earlier(shelf, home, one, replace(rows[0], id="gj-first")) == Before(), "a first machine reads nothing"
    shorter = replace(rows[1], id="gj-short")
    with Series(home.series("a.1", shorter.id)) as series:
        series.add(healthy(1))
    short: Any = Shelf((one, (shorter,)), (two, mine))
    assert earlier(short, home, two, now) == Before(), "one minute is no pace"


def test_the_books_give_the_jobs_of_a_name_up_to_a_run(tmp_path: Path) -> None:
    with Ward(tmp_path) as ward:
        rental = ward.admit()
        job = ward.job()
        assert [each.id for each in ward.store.jobs_of_name(job.name, job.run)] == [job.id]
        assert ward.store.jobs_of_name(job.name, job.run - 1) == ()
        assert ward.store.jobs_of_name("nobody", 9) == ()
        ward.minutes(rental, 3)
        assert ward.loop.health._before == {rental.id: Before()}


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


MOVES = replace(cf.POLICY, move_on=frozenset({"stalled"}))


def ended(n: int, **run: Any) -> Any:
    """A run that the alarm stopped, closed and with its results home."""
    at = cf.T0 + 500 * n
    over = {"exit": Exit("run", 143, at, SignalWhy.STOP), "closed_at": at + 1, "results_at": at + 2}
    return cf.assignment(n=n, stop="stalled: no step for 31m00s", **{**over, **run})


def after(*runs: Any, policy: Any = MOVES, **facts: Any) -> list[str]:
    row = cf.facts(cf.live(machine=cf.machine(runs={})), assignments=runs, **facts)
    decision = reconcile.reconcile(row, policy)
    releases = [a for a in decision.actions if isinstance(a, act.Release)]
    outcomes = [str(a.reason) for a in decision.actions if isinstance(a, act.SetOutcome)]
    return outcomes or [f"{a.reason}: {a.detail}" for a in releases]


def test_a_stalled_run_goes_on_elsewhere_where_the_spec_says_so() -> None:
    assert after(ended(1)) == ["bad-host: stopped by an alarm: stalled: no step for 31m00s"]
    other = replace(ended(1), stop="gpu-util-below: GPU use 3 %")
    assert after(other) == ["stalled"], "only the alarms that say so"
    assert after(ended(1), policy=cf.POLICY) == ["stalled"]
    left = replace(ended(1), exit=Exit("run", 0, cf.T0 + 500, SignalWhy.STOP))
    assert after(left)[0].startswith("bad-host"), "a program that saves and leaves with 0 is not done"


def test_it_moves_once_and_again_only_after_a_new_checkpoint() -> None:
    first, second = ended(1), ended(2, committed_at=cf.T0 + 600)
    assert after(first, second) == ["stalled"]
    saved = cf.checkpoint(n=2, step=900)
    assert after(first, second, checkpoints=(saved,))[0].startswith("bad-host")
    earlier = cf.checkpoint(n=1, step=400)
    resumed = ended(2, committed_at=cf.T0 + 600, resume_step=400, resume_hash=earlier.hash, seal=(earlier.hash,))
    assert after(first, resumed, checkpoints=(earlier,)) == ["stalled"], "the second machine brought nothing new"


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
    again = from_document({"name": "a", "gpu": "A100", "run": "x", "alarms": {"gpu_lost": {"relaunch": True}}})
    assert rules_of(again)["gpu-lost"].stop is True
    assert (moves_on(again), moves_on(spec)) == (frozenset({"gpu-lost"}), frozenset())
    assert isinstance(found["leak"], Rule)


@pytest.mark.parametrize("message", [PointSeen("gj-nobody", healthy(1))])
def test_a_point_of_a_machine_that_is_not_watched_is_dropped(tmp_path: Path, message: Message) -> None:
    with Ward(tmp_path) as ward:
        ward.turn(message)
        assert ward.loop.faults == 0
