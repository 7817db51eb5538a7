"""Which checkpoint is the best so far by the word of the format: the Trainer's state file, Lightning's callbacks."""

from __future__ import annotations

import json
import os
from typing import Any

from orchestrator.agent.formats import JSON_MAX
from orchestrator.agent.pickles import saved_values, stated

TRAINER_STATE = "trainer_state.json"


def best_named(path: str) -> str:
    """The name of the best one as the checkpoint at `path` tells it; "" where it does not. Damage is silence."""
    if os.path.isdir(path):
        state = os.path.join(path, TRAINER_STATE)
        try:
            if os.path.getsize(state) > JSON_MAX:
                return ""
            with open(state, "rb") as file:
                found = json.loads(file.read())
        except (OSError, ValueError, RecursionError):
            return ""
        return file_name(found.get("best_model_checkpoint") if isinstance(found, dict) else None)
    if path.endswith(".ckpt"):
        told = saved_values(path, ("callbacks",))
        names = [file_name(each["best_model_path"]) for each in stated(told, ("best_model_path",))]
        return next((name for name in names if name), "")
    return ""


def file_name(path: Any) -> str:
    """The last part of a path of any system."""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2] if isinstance(path, str) else ""
