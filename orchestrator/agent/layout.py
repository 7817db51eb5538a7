"""Where things are on the machine, and the words that all parts of the agent share.

The agent is pushed to a rented machine as one file (`orchestrator.agent.agent_source`) and runs there in three roles:
short commands (JSON in, JSON out), the supervisor (dead-man, launches, checkpoints, samples) and one wrapper for each
run (stages, output, exit codes). The contract is docs/concepts/machine-side.md.

Rules
- Standard library only, Python 3.8 or newer, Linux; modules import each other's names, never modules, so that they
  can be joined into one file; no two of them define the same top-level name.
- Files are the only state, each written by rename or by link: any process here may be killed at any moment.
- A (task, n) starts at most once: its wrapper must create `claim`, by link, and a claim is never removed.
- A run is over when `ended.json` is there; it is written once, by link, after every process of the run is gone.
- The dead-man acts at the end whatever else fails: it needs no disk space, no network, no controller.
"""

from __future__ import annotations

import os
from typing import Any

PROTOCOL = 2
STAGES = ("setup", "smoke", "run")
NOTES = ("metrics", "done", "failed")  # what a program writes for us, streamed as its logs are


CONTROL = os.path.dirname(os.path.abspath(__file__))  # ~/.gpujob, where this file was pushed to
HOME = os.path.dirname(CONTROL)

# How the agent is started: by import, which Python keeps compiled, since a script is compiled at each start and that
# takes longer than most commands do. The word after it is the control folder. With
# `-I`, or a `json.py` in the login's folder would be imported for Python's own, and its environment could do as much.
LAUNCHER = "import sys; sys.path.insert(0, sys.argv[1]); import agent; sys.exit(agent.main(sys.argv[1:]))"


def control(*names: str) -> str:
    """A path in the control folder."""
    return os.path.join(CONTROL, *names)


class Refusal(Exception):
    """An answer with ok: false; `error` is one of the contract's closed list."""

    def __init__(self, error: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.answer = {"ok": False, "error": error, "detail": detail, **more}
