"""Every kind of fault in every shape in every phase of a machine in which it can strike: aimed, not left to chance.

A fault waits for its phase. The job is applied late, so that timed faults are already waiting, and its results take
long to bring home, so that its end can be hit as well; a release out of boot or setup needs a cancelled job, and a
point-get of a machine that runs needs a connection that broke.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from sim_box import Program
from sim_faults import KINDS, PHASES, REACHES, SHAPES, Faults, Shape
from sim_swarm import Result, run_seed
from sim_time import T0
from sim_world import Wish

Mark = tuple[str, str, str]

#: The company at which a kind can be met; the others use the first.
WHERE = {"disk-left": "corona", "outbid": "corona", "expiry-fails": "flare"}
APPLIED = T0 + 900.0
CALM_AT = T0 + 4500.0
TRIES = 40  # chance decides whether the phase and the call meet: a boot of 5 s may hold no listing
RELEASES = ("destroy", "disk")


def possible(kinds: tuple[str, ...] = KINDS) -> list[Mark]:
    """Every fault x shape x phase that can occur."""
    return [(kind, shape, phase) for kind in kinds for shape in SHAPES for phase in REACHES.get(kind, PHASES)]


def aim(mark: Mark) -> Result:
    """The first run in which the mark was hit, or that broke something; else the last that tried."""
    for attempt in range(TRIES):
        result = _run(mark, attempt)
        result.how = f" --marks ({' '.join(mark)}, try {attempt})"
        if result.violations or mark in result.phases:
            break
    return result


def _run(mark: Mark, attempt: int) -> Result:
    kind, shape, phase = mark
    seed = sum(map(ord, "".join(mark))) * TRIES + attempt
    shapes = {kind: _shape(shape)}
    if kind.startswith("get-") and phase in ("run", "end"):
        shapes["machine-partition"] = Shape("steady", mean_s=200.0)
    # Results take long, so that the end can be hit; for a listing there, until the brief pause after an exit is over
    upload_s = 400.0 if kind.startswith("list-") else 90.0
    setup_s = 5.0 if kind == "list-stale" else 30.0  # it must run while its machine's last change is still recent
    wish = Wish(
        "job", Program(900.0, setup_s, 200.0, 5.0, upload_s=upload_s), APPLIED, {"ttl": "6h"}, extend_at=APPLIED + 500
    )
    if kind.startswith(RELEASES) and phase in ("boot", "setup"):
        # A boot takes one of these; then code is brought for 10 s, the only part of setup that a release can come from
        booted = (5.0, 20.0, 45.0, 90.0)[attempt % 4]
        wish.cancel_at = APPLIED + (3.0 if phase == "boot" else booted + 3.0 + attempt / 2)
        wish.cancel_now = True
    faults = Faults(random.Random(seed), shapes, CALM_AT, phase)
    return run_seed(seed, faults=faults, clouds=(WHERE.get(kind, "aurora"),), jobs=[wish])


def _shape(shape: str) -> Shape:
    if shape == "once":
        return Shape("once", nth=1)
    if shape == "steady":
        return Shape("steady", chance=0.5, mean_s=200.0)
    return Shape("window", windows=((APPLIED - 800.0, APPLIED + 900.0), (APPLIED + 960.0, CALM_AT)))


def every_mark(jobs: int) -> Iterator[Result]:
    """All of them, in parallel."""
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(aim, possible(), chunksize=4)
