"""What is kept of a run's checkpoints: here the newest `keep` and the best, on the machine so once its disk is short.

Rules: never the only verified one, nothing before as many newer ones are verified, nothing that a run resumed from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestrator.best import best_of, named_here
from orchestrator.home import Home
from orchestrator.mirror import Manifest, listing, prune
from orchestrator.model import AgentCheckpoint

SHORT_OF = 2  # a disk without room for two more checkpoints like the newest runs short


@dataclass(frozen=True)
class Retained:
    """What a pruning left and removed; `best`: names that are kept because a format calls them the best."""

    held: tuple[Manifest, ...]
    removed: tuple[Manifest, ...]
    best: frozenset[str]


def retain(home: Home, job: str, task: str, keep: int, resume_hash: str) -> Retained:
    """Prune the mirror of a task; `resume_hash`: what its present run resumed from."""
    before = listing(home, job, task).manifests
    best = best_of(before, partial(named_here, home.mirror(job, task)))
    removed = prune(home, job, task, keep, best | ({resume_hash} if resume_hash else set()))
    gone = {manifest.hash for manifest in removed}
    held = tuple(manifest for manifest in before if manifest.hash not in gone)
    return Retained(held, removed, frozenset(manifest.name for manifest in held if manifest.hash in best))


def thin(
    ask: Callable[[list[dict[str, Any]]], Mapping[str, Any]],
    status: Mapping[str, Any],
    complete: Sequence[AgentCheckpoint],
    durable: Sequence[Manifest],
    keep: int,
    spared: frozenset[str],
) -> list[str]:
    """Where the machine's disk runs short, have the older checkpoints of a run removed there; words on what went.

    `complete`: those on the machine, oldest first; `durable`: those of the same run in the mirror. `ask` sends `thin`.
    """
    disk = status.get("disk")
    free = disk.get("free") if isinstance(disk, dict) else None
    newest = max((c.bytes for c in complete), default=0)
    if not isinstance(free, int) or not newest or free >= newest * SHORT_OF:
        return []
    old = thinnable(complete, {m.name: m.bytes for m in durable}, keep, spared)
    if not old:
        return []
    answer = ask([{"name": c.name, "bytes": c.bytes, "mtime": c.mtime} for c in old])
    removed = ", ".join(str(name)[:80] for name in answer.get("removed", ()))
    return [f"the machine's disk runs short: {removed} removed there, newer ones are durable"] if removed else []


def thinnable(
    complete: Sequence[AgentCheckpoint], durable: Mapping[str, int], keep: int, spared: frozenset[str]
) -> list[AgentCheckpoint]:
    """Those that `keep` newer ones, verified here, have made dispensable. `durable`: name -> bytes."""
    verified = [c for c in complete if durable.get(c.name) == c.bytes][-max(1, keep) :]
    if len(verified) < max(1, keep):
        return []
    return [c for c in complete[: list(complete).index(verified[0])] if c.name not in spared]
