"""The next legs of a search, drawn from those that are there: nothing else is remembered, so a restart changes nothing.

Runs in a worker thread, because what learns from the legs takes its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobspecs.sweep import leg_id, method_of, seed_of
from orchestrator.legs import Leg
from orchestrator.matching import below
from orchestrator.search import Space, random_legs, space_of

if TYPE_CHECKING:
    from orchestrator.execute import Context


def draw(context: Context, count: int) -> Mapping[str, Any]:
    """`count` further legs as {"params": [...]}; fewer, and `exhausted`, when the space holds no more."""
    sweep, job = context.spec.sweep, context.job
    assert sweep is not None
    folder = context.spec.workdir
    root = Path(job.base_dir, Path(folder).expanduser()) if isinstance(folder, str) else None
    parameters = {name: each.model_dump(by_alias=True, mode="json") for name, each in (sweep.parameters or {}).items()}
    space = space_of(parameters, lambda pattern: below(root, pattern))
    found = drawn(space, method_of(sweep), sweep.metric.goal if sweep.metric else "minimize", seed_of(context.spec),
                  context.legs, count)  # fmt: skip
    return {"params": found, "exhausted": len(found) < count}


def drawn(space: Space, method: str, goal: Any, seed: int, legs: tuple[Leg, ...], count: int) -> list[dict[str, str]]:
    """The next combinations by one method."""
    if method == "random":
        return random_legs(space, seed, count, [leg.params for leg in legs])
    from orchestrator.tpe import next_leg

    found: list[dict[str, str]] = []
    known = list(legs)
    for _ in range(count):
        params = next_leg(space, goal, seed, known)
        if params is None:
            break
        found.append(params)
        known.append(Leg(leg_id(params), leg_id(params), params))
    return found
