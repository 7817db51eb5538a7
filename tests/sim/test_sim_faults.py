"""Every kind of fault in every shape, one at a time, on a short job: each is reached, and nothing is broken by it."""

from __future__ import annotations

import random

import pytest
from sim_box import Program
from sim_faults import KINDS, Faults, Shape
from sim_swarm import run_seed, story
from sim_time import T0
from sim_world import Wish

pytestmark = pytest.mark.sim

#: The company at which a kind can be met; the others use the first.
WHERE = {"disk-left": "corona", "outbid": "corona", "expiry-fails": "flare"}
CALM_AT = T0 + 3600.0


def shapes() -> dict[str, Shape]:
    return {
        "once": Shape("once", nth=1),
        "steady": Shape("steady", chance=0.5, mean_s=500.0),
        "window": Shape("window", windows=((T0, T0 + 900.0), (T0 + 1200.0, T0 + 2400.0))),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_is_met_and_breaks_nothing(kind: str) -> None:
    for shape, found in shapes().items():
        seed = sum(map(ord, kind + shape))
        assert any(_met(kind, shape, found, seed + again) for again in range(8)), f"{kind} {shape} was never met"


def _met(kind: str, shape: str, found: Shape, seed: int) -> bool:
    """One run; whether the fault took place in it, which chance decides."""
    faults = Faults(random.Random(seed), {kind: found}, CALM_AT)
    wish = Wish("job", Program(1500.0, 20.0, 300.0, 5.0), T0 + 1, {"ttl": "6h"}, extend_at=T0 + 700)
    result = run_seed(seed, faults=faults, clouds=(WHERE.get(kind, "aurora"),), jobs=[wish])
    assert result.violations == [], f"{kind} {shape} {seed}\n{story(result)}"
    return result.marks.get((kind, shape), 0) > 0
