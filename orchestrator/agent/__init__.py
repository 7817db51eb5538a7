"""The machine side: the agent that is pushed to a rented machine as one file, and the boot hook that outlives it."""

from __future__ import annotations

from orchestrator.agent.bundle import agent_source, agent_version
from orchestrator.agent.layout import PROTOCOL

__all__ = ["PROTOCOL", "agent_source", "agent_version"]
