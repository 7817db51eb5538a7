"""A sweep over three companies with reclaims: no leg lost, none doubled, the budget held at every commit."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_sweep import checked, reclaim_often, sweep_wish, sweep_world
from sim_time import T0

pytestmark = [pytest.mark.sim, pytest.mark.timeout(600)]  # a loaded computer is slow, not wrong
CLOUDS = ("aurora", "borealis", "corona")


@pytest.mark.parametrize("seed", [1, 2])
def test_no_leg_is_lost_or_doubled(seed: int, tmp_path: Path) -> None:
    wish = sweep_wish(30, 1200.0, 6, "60 USD")
    world = sweep_world(seed, tmp_path / "home", wish, CLOUDS)
    try:
        world.start()
        reclaim_often(world, 900.0, T0 + 6 * 3600)
        world.run_to_end(T0 + 3 * 86_400)
        assert checked(world, wish) == []
        rows = world.oracle._rows("SELECT outcome, detail FROM jobs")
        assert [(row["outcome"], row["detail"]) for row in rows] == [("done", "30 done")]
        machines = world.oracle._rows("SELECT id, provider, interrupted_at FROM rentals")
        assert len(machines) < 30  # a machine serves several legs
        assert any(row["interrupted_at"] for row in machines)
    finally:
        world.close()


def test_a_budget_that_is_too_small_is_never_passed(tmp_path: Path) -> None:
    wish = sweep_wish(30, 1200.0, 6, "4 USD")
    world = sweep_world(3, tmp_path / "home", wish, CLOUDS)
    try:
        world.start()
        world.run_to_end(T0 + 3 * 86_400)
        assert world.oracle.violations == []
        (row,) = world.oracle._rows("SELECT outcome, reason, detail FROM jobs")
        assert (row["outcome"], row["reason"]) == ("failed", "budget")
        assert row["detail"].startswith("the money ended it: ")
        done = world.oracle._rows("SELECT count(*) AS n FROM tasks WHERE outcome = 'done'")[0]["n"]
        assert 0 < done < 30
    finally:
        world.close()
