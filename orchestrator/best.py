"""Which checkpoint is the best one by its format's own word, so that retention keeps it beside the newest (B121).

The Trainer of Hugging Face names it in `trainer_state.json`, Lightning in the state of its ModelCheckpoint; others call
it `best`. Read from the newest checkpoint that says anything; the word of a stranger's file only ever keeps more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.agent.best import best_named
from orchestrator.mirror import Manifest, parts_of

CALLED_BEST = re.compile(r"(^|[-_.])best([-_.=]|\Z)", re.IGNORECASE)


def best_of(manifests: Sequence[Manifest], named_by: Callable[[Manifest], str]) -> frozenset[str]:
    """Hashes of the manifests to keep as the best, of those given; empty where no format says. `named_by`: the name of
    the best one as one of them tells it, or "".
    """
    newest_first = sorted(manifests, key=lambda m: (m.n, m.step), reverse=True)
    called = next((m for m in newest_first if CALLED_BEST.search(m.name)), None)
    found = {called.hash} if called is not None else set()
    for manifest in newest_first:
        name = named_by(manifest)
        if not name:
            continue
        # An earlier run's checkpoint of the name is another one only where this run has none of it
        same = next((m for m in newest_first if m.name == name and m.n <= manifest.n), None)
        if same is not None:
            found.add(same.hash)
        break
    return frozenset(found)


def named_here(mirror: Path, manifest: Manifest) -> str:
    """The same of a checkpoint in the mirror on this computer."""
    return best_named(str(parts_of(mirror, manifest) / manifest.name))
