"""What a machine says of itself when nobody knows it any more: its nonce, and its agent's status. Reads only.

The private key in the state folder opens the door; the pinned host key, or the nonce in the rental's record, proves
the machine. Nothing is sent to it, not even the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator import ssh
from orchestrator.home import Home
from orchestrator.records import rental_record
from orchestrator.ssh_errors import SshError
from providers.base import Instance

CONNECT_S = 8.0
ANSWER_S = 15.0


@dataclass(frozen=True)
class Heard:
    """`status` is None when the agent could not be asked; `trouble` says why. `key`: whether we hold its key."""

    nonce: str = ""
    status: Mapping[str, Any] | None = None
    trouble: str = ""
    key: bool = True


def interview(home: Home, rental: str, instance: Instance) -> Heard:
    """Ask one machine; never raises for what a machine or a network can do."""
    folder = home.rental(rental)
    if not (folder / "id_ed25519").exists():
        return Heard(trouble=f"its private key is not in {folder} any more, so its agent cannot be asked", key=False)
    end = instance.endpoint
    if end is None:
        return Heard(trouble="the provider shows no address of it")
    target = ssh.Target(rental, end.host, end.port, end.user, instance.host_keys, folder)
    try:
        connection = ssh.connect(target, timeout_s=CONNECT_S)
        try:
            said = connection.run("cat ~/.gpujob/nonce", timeout_s=ANSWER_S)
            nonce = said.out.decode("ascii", "replace").strip()
            record = rental_record(home, rental)
            if record is not None and record.nonce != nonce:
                return Heard(trouble="the machine at its address does not know the rental's nonce")
            return Heard(nonce, connection.agent("status", {}, ANSWER_S))
        finally:
            connection.close()
    except (SshError, OSError, ValueError) as error:
        return Heard(trouble=f"it does not answer: {error}")
