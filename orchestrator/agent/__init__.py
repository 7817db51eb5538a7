"""The machine side: the agent that is pushed to a rented machine as one file, and the boot hook that outlives it."""

from __future__ import annotations

from orchestrator.agent.bundle import agent_source, agent_version
from orchestrator.agent.layout import PROTOCOL

__all__ = ["AGENT_VERSION", "PROTOCOL", "agent_source"]

#: Names this very agent; `status` answers the same in `version`.
AGENT_VERSION = agent_version()
