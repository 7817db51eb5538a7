"""A sweep in the simulator: many legs over several companies, and what must hold of every one of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from sim_box import Program
from sim_world import Wish, World

from jobspecs.sweep import leg_id


def sweep_wish(legs: int, work_s: float, parallel: int, budget: str, **spec: Any) -> Wish:
    """A sweep of so many legs; each saves every fifth of its work."""
    params = [{"lr": f"{number}e-5"} for number in range(1, legs + 1)]
    sweep = {"list": params, "max_parallel": parallel, "budget": budget}
    return Wish(
        "tune",
        Program(work_s=work_s, setup_s=60.0, every_s=work_s / 5),
        spec={"sweep": sweep, "expected": f"{int(work_s)}s", "ttl": "6h", **spec},
        tasks=[{"id": leg_id(each), "params": each, "items": []} for each in params],
    )


def sweep_world(seed: int, home: Path, wish: Wish, clouds: tuple[str, ...]) -> World:
    """The world of one sweep."""
    return World(seed, home, wishes=[wish], clouds=clouds, strangers=False)


def checked(world: World, wish: Wish) -> list[str]:
    """Every promise to a leg that was broken: each is done, and none was finished twice."""
    finished: Counter[str] = Counter()
    for box in world.boxes():
        for run in box.runs.values():
            finished[run.task] += run.job == wish.job and run.by_itself and run.rc == 0
    rows = {
        row["id"]: row["outcome"] for row in world.oracle._rows("SELECT id, outcome FROM tasks WHERE job = ?", wish.job)
    }
    problems = [f"{violation.name} {violation.who}: {violation.text}" for violation in world.oracle.violations]
    problems += [f"leg {leg} ended as {outcome}" for leg, outcome in rows.items() if outcome != "done"]
    problems += [f"leg {leg} is lost" for leg in {task["id"] for task in wish.tasks} - rows.keys()]
    return problems + [f"leg {leg} was finished {times} times" for leg, times in finished.items() if times > 1]


def reclaim_often(world: World, every_s: float, until: float) -> None:
    """One spot machine after the other is taken, with notice or without."""

    def take() -> None:
        world.happen("preempt-silent" if world.rng.random() < 0.5 else "preempt-notice")
        if world.heap.now < until:
            world.heap.after(world.rng.expovariate(1 / every_s), take)

    world.heap.after(every_s, take)
