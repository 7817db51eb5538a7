"""The file that is pushed to a rented machine, and the boot hook that outlives it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from orchestrator.agent.agent import PROTOCOL

__all__ = ["AGENT_VERSION", "PROTOCOL", "agent_source"]


def agent_source() -> bytes:
    """The bytes of `agent.py`, to be written to ~/.gpujob/agent.py by rename."""
    return (Path(__file__).parent / "agent.py").read_bytes()


#: First 16 hex digits of the source's SHA-256; `status` answers the same in `version`.
AGENT_VERSION = hashlib.sha256(agent_source()).hexdigest()[:16]
