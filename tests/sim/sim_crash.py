"""Kill the controller at every tap: alone, in pairs, and in worlds that lie as well.

The nominal job is short and meets everything once: it is rented, prepared, ordered, mirrored, warned of a reclaim,
signalled, lost, resumed on a second machine, brought home and released.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from sim_box import Program
from sim_faults import ASKED, Faults, Shape
from sim_swarm import Result, run_seed
from sim_time import T0
from sim_world import Wish

NOMINAL = 7001
CALM_AT = T0 + 3000.0


def nominal_job() -> list[Wish]:
    return [Wish("nominal", Program(work_s=900.0, setup_s=10.0, every_s=120.0, save_s=5.0), T0 + 1)]


def run_nominal(crash_at: tuple[int, ...] = (), extra: dict[str, Shape] | None = None, seed: int = NOMINAL,
                cloud: str = "aurora") -> Result:  # fmt: skip
    """The nominal job with kills at these taps (counted from 1 over all lives) and these lies."""
    rng = random.Random(seed)
    shapes = {"preempt-notice": Shape("once", 1), **(extra or {})}
    faults = Faults(rng, shapes, CALM_AT)
    result = run_seed(
        seed, faults=faults, crash_at=set(crash_at), clouds=(cloud,), jobs=nominal_job(), restart_s=(1.0,)
    )
    lies = ", ".join(f"{kind} {shape.shape}" for kind, shape in shapes.items())
    result.how = f" --crash (taps {crash_at}, {cloud}, {lies})"
    return result


def count_taps(extra: dict[str, Shape] | None = None, seed: int = NOMINAL, cloud: str = "aurora") -> int:
    """How many taps the run without a kill passes."""
    return len(run_nominal((), extra, seed, cloud).taps)


def lies(seed: int) -> dict[str, Shape]:
    """One or two asked kinds, with a shape each, for a seed."""
    rng = random.Random(seed)
    found = {}
    for kind in rng.sample(ASKED, rng.choice((1, 1, 2))):
        at = T0 + rng.uniform(0, 600)
        found[kind] = Shape(rng.choice(("once", "steady", "window")), rng.choice((1, 2, 3)), ((at, at + 300),))
    return found


def _one(job: tuple[tuple[int, ...], int, str]) -> Result:
    taps, lie, cloud = job
    return run_nominal(taps, lies(lie) if lie else None, NOMINAL + lie, cloud)


def enumerate_crashes(worlds: int, jobs: int) -> Iterator[Result]:
    """Every tap of the nominal run, pairs close together, then every tap of `worlds` worlds with lies."""
    count = count_taps()
    work = [((n,), 0, "aurora") for n in range(1, count + 1)]
    work += [((n, n + gap), 0, "aurora") for n in range(1, count + 1) for gap in (1, 3, 9)]
    clouds = ("aurora", "borealis", "corona", "flare")
    for lie in range(1, worlds + 1):
        cloud = clouds[lie % len(clouds)]
        passed = count_taps(lies(lie), NOMINAL + lie, cloud)
        work += [((n,), lie, cloud) for n in range(1, passed + 1)]
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_one, work, chunksize=8)
