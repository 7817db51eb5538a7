"""Which checkpoint is the best one by its format's own word, so that retention keeps it beside the newest (B121).

The Trainer of Hugging Face names it in `trainer_state.json`, Lightning in the state of its ModelCheckpoint; others call
it `best`. Read from the newest checkpoint that says anything; the word of a stranger's file only ever keeps more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.agent.formats import JSON_MAX
from orchestrator.agent.pickles import saved_values, stated
from orchestrator.mirror import Manifest, parts_of

CALLED_BEST = re.compile(r"(^|[-_.])best([-_.=]|\Z)", re.IGNORECASE)
TRAINER_STATE = "trainer_state.json"


def best_of(mirror: Path, manifests: Sequence[Manifest]) -> frozenset[str]:
    """Hashes of the manifests to keep as the best, of those given; empty where no format says."""
    newest_first = sorted(manifests, key=lambda m: (m.n, m.step), reverse=True)
    called = next((m for m in newest_first if CALLED_BEST.search(m.name)), None)
    found = {called.hash} if called is not None else set()
    for manifest in newest_first:
        name = _named_by(mirror, manifest)
        if not name:
            continue
        # An earlier run's checkpoint of the name is another one only where this run has none of it
        same = next((m for m in newest_first if m.name == name and m.n <= manifest.n), None)
        if same is not None:
            found.add(same.hash)
        break
    return frozenset(found)


def _named_by(mirror: Path, manifest: Manifest) -> str:
    """The name of the best checkpoint so far as one of them tells it; "" where it does not."""
    parts = parts_of(mirror, manifest)
    paths = {file.path: file for file in manifest.files if not file.link}
    state = f"{manifest.name}/{TRAINER_STATE}"
    if state in paths and paths[state].size <= JSON_MAX:
        try:
            found = json.loads((parts / state).read_bytes())
        except (OSError, ValueError, RecursionError):
            return ""
        return _last(found.get("best_model_checkpoint") if isinstance(found, dict) else None)
    if manifest.name in paths and manifest.name.endswith(".ckpt"):
        told = saved_values(str(parts / manifest.name), ("callbacks",))
        return next(filter(None, (_last(each["best_model_path"]) for each in stated(told, ("best_model_path",)))), "")
    return ""


def _last(path: Any) -> str:
    return PurePosixPath(path.replace("\\", "/")).name if isinstance(path, str) else ""
