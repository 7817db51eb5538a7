"""A search that learns, on machines of this host: made anew from the books each time, so a restart changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpujob_world import World

from jobspecs.sweep import leg_id
from orchestrator.legs import Leg, LegState, Report
from orchestrator.model import Outcome
from orchestrator.search import Uniform

pytest.importorskip("optuna")
pytestmark = pytest.mark.e2e

RUN = """awk "BEGIN { d = $GPUJOB_PARAM_x - 0.3; printf \\"step=1 loss=%.6f\\\\n\\", d * d }" """
SEED, TRIALS = 7, 13  # the first ten are drawn at random; from then on there is something to learn from


def the_search(values: dict[str, float]) -> list[dict[str, str]]:
    """What TPE draws one after the other, where each leg is done with its value before the next is drawn."""
    from orchestrator.tpe import next_leg

    legs: list[Leg] = []
    for at in range(TRIALS):  # which result is the older one counts
        params = next_leg({"x": Uniform(0.0, 1.0)}, "minimize", SEED, legs)
        assert params is not None
        id_ = leg_id(params)
        legs.append(Leg(id_, id_, params, LegState.DONE, reports=(Report(1, values.get(id_, 9.0), at),)))
    return [dict(leg.params) for leg in legs]


@pytest.mark.timeout(300)
def test_tpe_learns_from_the_books_and_a_restart_changes_nothing(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        metric = {"name": "loss", "goal": "minimize", "regex": "step=(?P<step>[0-9]+) loss=(?P<value>[0-9.e-]+)"}
        search = {"method": "tpe", "trials": TRIALS, "seed": SEED}
        sweep = {"parameters": {"x": {"uniform": [0, 1]}}, "search": search, "metric": metric, "budget": "5 USD"}
        world.apply(world.spec("learn", RUN, sweep={**sweep, "max_parallel": 1}, expected="5s"))
        world.until(lambda: len(world.runs("learn")) >= 11, "the first leg that was learned", timeout=120)
        world.kill_controller()
        world.start_controller()
        job = world.wait("learn")
        assert (job.outcome, job.detail) == (Outcome.DONE, f"{TRIALS} done")
        with world.books() as store:
            tasks = sorted(store.tasks(job.id), key=lambda task: task.seq)
            values = {row.task: row.value for row in store.reports(job.id)}
        assert [dict(task.params) for task in tasks] == the_search(values)
        learned = [abs(float(task.params["x"]) - 0.3) for task in tasks[10:]]
        assert min(learned) < 0.2
        world.assert_clean("learn")
