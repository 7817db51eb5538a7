"""Recorded facts and what was decided on them: today's code must still read the facts, and decide the same.

    tests/sim/replay/<world>.jsonl.gz    one line a decision: {"facts", "policy", "decision"}

Rules
- Only decisions that differ from the one before are kept: a quiet hour is one line.
- Facts of an older version lack fields that were added since; these take their defaults, as rows of old books do.
- `./dev sim --record` writes them anew. A change of a recorded decision is then seen, and committed, on purpose.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from sim_box import Program
from sim_crash import nominal_job
from sim_faults import Faults, Shape
from sim_swarm import run_seed
from sim_time import T0
from sim_world import Wish

import orchestrator.loop
from orchestrator.model import Decision, Facts, Policy
from orchestrator.reconcile import reconcile

FOLDER = Path(__file__).parent / "replay"
CALM_AT = T0 + 3000.0


@dataclass(frozen=True)
class Recorded:
    """One decision as it was made."""

    facts: Facts
    policy: Policy
    decision: list[str]


@cache
def _facts() -> TypeAdapter[Facts]:
    return TypeAdapter(Facts)


@cache
def _policy() -> TypeAdapter[Policy]:
    return TypeAdapter(Policy)


def words(facts: Facts, decision: Decision) -> list[str]:
    """A decision as lines of text: each action with what is not its default, the state shown, the next look."""
    wake_s = decision.wake_at - facts.now
    return [*map(_shown, decision.actions), f"state {decision.condition.state}", f"again in {wake_s:.0f} s"]


def _shown(value: Any) -> str:
    """A value as text; of a dataclass only what is not its default, so that a new field changes no record."""
    if not is_dataclass(value):
        return f"({', '.join(map(_shown, value))})" if isinstance(value, tuple) else str(value)
    every = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
    found = {name: each for name, (each, default) in every.items() if each != default}
    return (
        f"{type(value).__name__}({', '.join(f'{name}={_shown(each)}' for name, each in found.items() if each != {})})"
    )


def worlds() -> dict[str, Callable[[], object]]:
    """What is recorded: a reclaim, a lost create with a failing release, a cancel, and a budget's end."""
    long = Program(4 * 3600.0, 20.0, 600.0, 5.0)

    def run(seed: int, cloud: str, wish: list[Wish], **shapes: Shape) -> Callable[[], object]:
        faults = {kind.replace("_", "-"): shape for kind, shape in shapes.items()}
        return lambda: run_seed(seed, faults=Faults(random.Random(seed), faults, CALM_AT), clouds=(cloud,), jobs=wish)

    return {
        "reclaim": run(1, "aurora", nominal_job(), preempt_notice=Shape("once", 1)),
        "lost-create": run(2, "corona", nominal_job(), create_lost_made=Shape("once", 1), disk_left=Shape("once", 1),
                           destroy_error_undone=Shape("once", 1)),
        "cancel": run(3, "borealis", [Wish("stop", long, T0 + 1, cancel_at=T0 + 1500)], hang=Shape("once", 8)),
        "budget": run(4, "dusk", [Wish("dear", long, T0 + 1, {"budget": "4 USD"}, extend_at=T0 + 900)]),
    }  # fmt: skip


def record(world: Callable[[], object]) -> list[Recorded]:
    """Run a world and keep each decision that differs from the one before it about the same job."""
    kept: list[Recorded] = []
    last: dict[str, list[str]] = {}

    def recorder(facts: Facts, policy: Policy) -> Decision:
        decision = reconcile(facts, policy)
        said = words(facts, decision)
        if last.get(facts.job.id) != said[:-1]:
            last[facts.job.id] = said[:-1]
            kept.append(Recorded(facts, policy, said))
        return decision

    before = orchestrator.loop.reconcile
    orchestrator.loop.reconcile = recorder
    try:
        world()
    finally:
        orchestrator.loop.reconcile = before
    return kept


def write_all(folder: Path = FOLDER) -> int:
    """Record every world; how many decisions there are."""
    folder.mkdir(exist_ok=True)
    count = 0
    for name, world in worlds().items():
        lines = [_line(each) for each in record(world)]
        count += len(lines)
        with (folder / f"{name}.jsonl.gz").open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write("\n".join(lines).encode())
    return count


def _line(each: Recorded) -> str:
    row = {
        "facts": _facts().dump_python(each.facts, mode="json"),
        "policy": _policy().dump_python(each.policy, mode="json"),
        "decision": each.decision,
    }
    return json.dumps(row, sort_keys=True, separators=(",", ":"))


def read(path: Path) -> Iterator[Recorded]:
    """The recorded decisions of one file, in order."""
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        row = json.loads(line)
        yield Recorded(
            _facts().validate_python(row["facts"]), _policy().validate_python(row["policy"]), row["decision"]
        )
