"""A run on a machine that mirrors what the test saves to a real S3 server, and what the controller believes of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_machine import JOB, Machine
from s3_server import S3Server

from orchestrator.objects.checkpoints import StoreMirror
from orchestrator.objects.layout import Layout
from orchestrator.objects.settings import Location
from orchestrator.store_side import slots

SLEEP = "trap 'exit 0' TERM; sleep 600 & wait $!"


class Mirrored:
    """A run that saves nothing by itself; the test writes its checkpoints and looks into the store."""

    def __init__(self, machine: Machine, server: S3Server, prefix: str, endpoint: str = "", kind: str = "sts") -> None:
        self.machine, self.server = machine, server
        settings = server.settings(prefix=prefix, role=kind == "sts")
        self.store = server.store(prefix=prefix, role=kind == "sts")
        self.mirror = StoreMirror(self.store, Layout(Location(settings, prefix), JOB, "t0"))
        self.kind, self.endpoint, self.keep, self.rate = kind, endpoint or server.endpoint, 3, 0
        machine.do("prepare", job=JOB)

    def give(self, **more: Any) -> None:
        """The access file, as the controller makes it."""
        root = self.mirror.layout.run(1)
        access = self.store.access(root, 900, "test")
        document = {
            "base": f"{self.endpoint}/lab", "prefix": root, "kind": access.kind, "keys": dict(access.keys),
            "until": access.until, "job": JOB, "task": "t0", "n": 1, "keep": self.keep, "parent": None,
            "ordinal": 0, "rate": self.rate, **more,
        }  # fmt: skip
        if not access.keys and "slots" not in more:
            found = slots(self.mirror, root, self.told(), 900)
            there = self.server.endpoint
            document["slots"] = (
                json.loads(json.dumps(found).replace(there, self.endpoint)) if self.endpoint != there else found
            )
        self.machine.do("store", task="t0", n=1, store=document)

    def order(self, script: str = SLEEP) -> None:
        self.machine.do(
            "order", job=JOB, task="t0", n=1, workspace="base", code="", env={}, signal="TERM", grace_s=5,
            stages=[{"name": "run", "script": script}], checkpoint={"path": "", "pattern": "step_{n}*"},
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        found = self.machine.job / "ckpt" / "t0.1"
        found.mkdir(parents=True, exist_ok=True)
        return found

    def save(self, step: int, files: dict[str, bytes]) -> Path:
        """A checkpoint folder that is complete at once."""
        half = self.folder / f"tmp-{step}"
        for name, data in files.items():
            (half / name).parent.mkdir(parents=True, exist_ok=True)
            (half / name).write_bytes(data)
        (half / "COMPLETE").write_bytes(b"")
        half.rename(self.folder / f"step_{step}")
        return self.folder / f"step_{step}"

    def told(self) -> dict[str, Any]:
        run = self.machine.do("status")["runs"].get("t0.1", {})
        found: dict[str, Any] = run.get("mirror") or {}
        return found

    def until(self, look: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(
            f"never: {what}: {self.told()}: {(self.machine.control / 'agent.log').read_text()[-2000:]}"
        )

    def done(self, *steps: int) -> list[int]:
        """Wait until the agent says that these are mirrored."""
        names = {f"step_{step}" for step in steps}
        self.until(lambda: names <= {mark[0] for mark in self.told().get("done", ())}, f"{names} mirrored")
        return self.steps()

    def steps(self) -> list[int]:
        """Steps of the checkpoints that the controller believes."""
        return [each.step for each in self.mirror.listing().manifests]
