"""examples/sweep on machines of this host: search, early stop, the comparison and its page, the best leg's results."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from gpujob_world import ROOT, World

pytestmark = pytest.mark.e2e

TRIALS = 5  # of the example's nine: enough for every part of it, and half the time


@pytest.mark.timeout(300)
def test_a_sweep_is_searched_stopped_early_compared_and_its_best_leg_pulled(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        shutil.copy(ROOT / "examples/sweep/train.py", world.project / "train.py")
        spec = (ROOT / "examples/sweep/sweep.yaml").read_text(encoding="utf-8")
        assert "trials: 9" in spec
        assert "--step-ms 60" in spec
        spec = spec.replace("--step-ms 60", "--step-ms 5")
        (world.project / "sweep.yaml").write_text(spec.replace("trials: 9", f"trials: {TRIALS}"), encoding="utf-8")
        world.apply(world.project / "sweep.yaml")
        job = world.wait("moons")
        assert job.outcome == "done"

        table, _ = world.cli("compare", "moons", "--html", "moons.html")
        found = world.json("compare", "moons")
        legs = found["legs"]
        assert len(legs) == TRIALS
        assert {leg["state"] for leg in legs} <= {"done", "stopped"}
        assert [leg["last"] for leg in legs if leg["state"] == "done"] == sorted(
            leg["last"] for leg in legs if leg["state"] == "done"
        )
        winner = legs[0]
        assert (winner["leg"], winner["state"], winner["last_step"]) == (found["winner"], "done", 180)
        assert winner["last"] < 0.4
        assert all(leg["reports"] >= 4 for leg in legs if leg["state"] == "stopped")  # min_reports
        assert f"* best: moons/{winner['leg']}" in table
        assert winner["leg"] in (world.project / "moons.html").read_text(encoding="utf-8")

        rows = list(csv.DictReader(io.StringIO(world.cli("compare", "moons", "-o", "csv")[0])))
        assert float(rows[0]["last"]) == winner["last"]
        assert {row["param_act"] for row in rows} <= {"tanh", "relu"}
        assert sum(float(row["cost"]) for row in rows) > 0

        model = json.loads(Path(winner["results"], "model.json").read_text())
        assert len(model["first"]) == int(winner["params"]["hidden"])
        world.assert_clean("moons")
