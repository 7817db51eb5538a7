"""One machine of `local` with its agent, over the connection that the controller would have; released at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import ssh
from orchestrator.agent.hook import boot_hook
from orchestrator.home import Home
from providers.base import Ask, Boot, GpuRow, ProviderConfig, Tag
from providers.local import LocalProvider

JOB, RENTAL, NONCE, EPOCH = "digits.1-k3v9", "digits-1-k3v9-r1", "ab" * 16, 1_767_000_000_000


@dataclass(frozen=True)
class Rented:
    """`folders`: what the agent's `prepare` answered; `root`: the machine's files as this host sees them."""

    conn: ssh.Connection
    home: Home
    folders: dict[str, Any]
    root: Path

    def ask(self, command: str, **payload: Any) -> dict[str, Any]:
        """One agent command."""
        return self.conn.agent(command, {"nonce": NONCE, "epoch": EPOCH, **payload})

    def sh(self, command: str) -> str:
        """What a shell command prints there; fails unless it exits with 0."""
        ran = self.conn.run(command)
        assert ran.rc == 0, ran.err
        return ran.out.decode()


@contextlib.contextmanager
def rented(base: Path, seconds: float = 600) -> Iterator[Rented]:
    """A machine below `base` that is ready for data, and ends after `seconds` whatever happens."""
    home = Home(state=base / "state", config=base / "config").make()
    provider = LocalProvider(ProviderConfig("dep", home.state, (GpuRow("RTX-4090", 24),)))
    folder, end = home.rental(RENTAL), time.time() + seconds
    boot = Boot(boot_hook(nonce=NONCE, end=end, grace_s=5, action="kill", rental=RENTAL), ssh.new_key(folder))
    made = provider.create(provider.offers(Ask())[0], Tag("dep", RENTAL), end, boot)
    try:
        while (seen := provider.get(made.ref)) is None or not seen.ready or seen.endpoint is None:
            time.sleep(0.05)
        place = seen.endpoint
        target = ssh.Target(RENTAL, place.host, place.port, place.user, seen.host_keys, folder)
        conn = ssh.connect(target)
        try:
            conn.push_agent()
            while conn.run("test -s ~/.gpujob/nonce").rc != 0:  # the boot hook plants it
                time.sleep(0.05)
            ask = {"nonce": NONCE, "epoch": EPOCH}
            conn.agent("arm", {**ask, "end": end, "grace_s": 5, "action": "kill"})
            folders = conn.agent("prepare", {**ask, "job": JOB})
            yield Rented(conn, home, folders, provider.folder(made.ref) / "root")
        finally:
            conn.close()
            ssh.stop_sharing(target)
    finally:
        provider.destroy(made.ref)
