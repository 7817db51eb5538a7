"""A sweep over real machines of this host: each leg its own workspace, variables, results; nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

from gpujob_world import World

from orchestrator.model import Outcome, Reason, RentalPhase

RUN = """
[ ! -e mine ] || { echo "not a clean workspace"; exit 9; }
touch mine
echo "lr=$GPUJOB_PARAM_lr"
cp "$GPUJOB_PARAMS" "$GPUJOB_OUT/params.json"
for step in 1 2; do echo "{\\"step\\": $step, \\"loss\\": 0.$step}" >> "$GPUJOB_METRICS"; done
[ "$GPUJOB_PARAM_lr" != bad ] || { echo "ValueError: lr is bad"; exit 3; }
"""


def sweep(values: list[str], **keys: object) -> dict[str, object]:
    metric = {"name": "loss", "goal": "minimize"}
    return {"parameters": {"lr": values}, "metric": metric, "budget": "5 USD", "max_parallel": 2, **keys}


def test_legs_share_machines_and_a_failing_one_sinks_no_other(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        keys = {"artifacts": None, "setup": 'echo "setup on $GPUJOB_MACHINE"'}
        spec = world.spec("tune", RUN, sweep=sweep(["1e-4", "0.0001", "bad"]), **keys)
        world.apply(spec)
        job = world.wait("tune")
        assert (job.outcome, job.reason) == (Outcome.DONE, Reason.DONE)
        assert job.detail == "2 done, 1 failed"
        with world.books() as store:
            tasks, reports = store.tasks(job.id), store.reports(job.id)
        assert [task.params["lr"] for task in tasks] == ["1e-4", "0.0001", "bad"]
        first, _, bad = tasks
        assert bad.outcome is Outcome.FAILED
        assert "ValueError: lr is bad" in bad.detail
        results = world.project / "gpujob-results" / "tune"
        assert '"lr": 1e-4' in (results / first.id / "params.json").read_text()  # with the characters typed
        assert json.loads((results / first.id / "gpujob-run.json").read_text())["params"] == {"lr": "1e-4"}
        assert {(r.task, r.step, r.value) for r in reports} >= {(first.id, 1, 0.1), (first.id, 2, 0.2)}
        assert len(world.rentals("tune")) == 2  # three legs
        with_setup = [run for run in world.runs("tune") if world.home.log(job.id, run.task, run.n, "setup").exists()]
        assert len(with_setup) == 2  # once a machine
        world.assert_clean("tune")

        world.apply(spec)  # the same again: only what is missing
        again = world.wait("tune.2")
        with world.books() as store:
            kept = {task.params["lr"]: task.kept_from for task in store.tasks(again.id)}
        assert kept == {"1e-4": job.id, "0.0001": job.id, "bad": ""}
        assert len(world.runs("tune.2")) == 1

        world.apply(world.spec("tune", RUN, sweep=sweep(["1e-4", "0.0001", "5"]), **keys))  # an added value
        third = world.wait("tune.3")
        assert third.detail == "3 done"
        assert len(world.runs("tune.3")) == 1


def test_the_same_failure_in_many_legs_stops_the_sweep(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        run = "echo 'ModuleNotFoundError: no module named nothing'; exit 1"
        values = [str(n) for n in range(12)]
        world.apply(world.spec("broken", run, sweep=sweep(values, max_parallel=1)))
        job = world.wait("broken", code=1)
        assert job.outcome is Outcome.FAILED
        assert "the same failure in 3 of 12" in job.detail
        assert "no module named nothing" in job.detail
        assert len([run for run in world.runs("broken") if run.ordered_at]) == 3  # none of those that were ahead


def test_a_reclaimed_legs_successor_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    from gpujob_world import counting

    with World(tmp_path) as world:
        world.apply(world.spec("spot", counting(60), spot=True, sweep=sweep(["1"])))
        world.until(lambda: world._has_books() and world.checkpoints("spot"), "a checkpoint is durable")
        lost = world.rentals("spot")[0]
        world.kill_machine(lost.id)
        job = world.wait("spot")
        assert job.detail == "1 done"
        runs = world.runs("spot")
        assert [run.n for run in runs] == [1, 2]
        assert runs[1].resume_step is not None
        assert runs[0].task == runs[1].task
        assert all(rental.phase is RentalPhase.GONE for rental in world.rentals("spot"))


def test_replicas_are_equal_machines_and_one_cancel_releases_them(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("class", 'echo "I am $GPUJOB_REPLICA"; sleep 600', replicas=3))
        world.apply(world.spec("other", "sleep 600"))
        world.until(lambda: len([r for r in world.runs("class") if r.ordered_at]) == 3, "three run")
        world.until(lambda: len(world.machines()) == 4, "four machines")
        assert {run.task for run in world.runs("class")} == {"1", "2", "3"}
        world.cli("cancel", "class", "--now")
        job = world.wait("class", code=5)
        assert job.outcome is Outcome.CANCELLED
        assert len(world.machines()) == 1
        world.cli("cancel", "other", "--now")
        world.wait("other", code=5)


REPORTING = """
for step in 1 2 3 4 5 6; do
  echo "step=$step loss=$GPUJOB_PARAM_x"
  case "$GPUJOB_PARAM_x" in 0.[0-4]*) sleep 0.4;; *) sleep 3;; esac
done
"""


def test_drawn_legs_that_are_behind_are_stopped_and_their_machine_goes_on(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        spec = {
            "parameters": {"x": {"uniform": [0, 1]}}, "search": {"trials": 5, "seed": 3}, "budget": "5 USD",
            "metric": {"name": "loss", "goal": "minimize", "regex": "step=(?P<step>[0-9]+) loss=(?P<value>[0-9.e-]+)"},
            "stop_early": {"method": "asha", "min_reports": 2, "eta": 2}, "max_parallel": 1,
        }  # fmt: skip
        world.apply(world.spec("drawn", REPORTING, sweep=spec))
        job = world.wait("drawn")
        assert job.outcome is Outcome.DONE
        with world.books() as store:
            tasks = store.tasks(job.id)
        assert len(tasks) == 5
        assert len({task.params["x"] for task in tasks}) == 5
        stopped = [task for task in tasks if task.reason is Reason.STOPPED_EARLY]
        assert stopped
        assert all(task.outcome is Outcome.DONE for task in tasks)
        best = min(tasks, key=lambda task: float(task.params["x"]))
        assert best not in stopped
        assert len(world.rentals("drawn")) == 1  # it goes on with the next leg
        (shown,) = [leg for leg in world.json("ps", "drawn") if leg["leg"] == best.id]
        assert (shown["state"], shown["step"]) == ("done", 6)
        out, _ = world.cli("logs", "drawn/best")
        assert f"loss={best.params['x']}" in out
        world.assert_clean("drawn")


def test_a_live_sweep_takes_further_legs_and_one_leg_is_cancelled_alone(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("long", "sleep 300", sweep=sweep(["1", "2"])))
        world.until(lambda: len([r for r in world.runs("long") if r.ordered_at]) == 2, "two legs run")
        answer = world.apply(world.spec("long", "sleep 300", sweep=sweep(["1", "2", "3"])))
        assert answer["edited"] == ["sweep"]
        out, _ = world.cli("cancel", "long/lr=1")
        assert "the others go on" in out
        world.cli("wait", "long/lr=1", "--timeout", "60s", code=5)
        world.until(lambda: len([r for r in world.runs("long") if r.ordered_at]) == 3, "the third takes its machine")
        assert {leg["name"]: leg["state"] for leg in world.json("ps", "long")} == {
            "lr=1": "cancelled", "lr=2": "running", "lr=3": "running",
        }  # fmt: skip
        assert len(world.rentals("long")) == 2
        world.cli("cancel", "long", "--now")
        assert world.wait("long", code=5).outcome is Outcome.CANCELLED
        world.assert_clean("long")
