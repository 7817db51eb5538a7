"""A provider of somebody else's package: built and installed by pip, found by its entry point, held to the suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "meadow-gpus"
version = "2.1"
description = "Machines of Meadow for gpujob"

[project.entry-points."gpujob.providers"]
meadow = "meadow_gpus:MeadowProvider"

[tool.hatch.build.targets.wheel]
only-include = ["meadow_gpus.py"]
"""

# Written against the public modules alone: providers.base and providers.errors.
PLUGIN = '''
"""Machines of an imaginary company: one address that greets as sshd does, and a timer for each machine."""

import re
import socket
import threading
import time
from dataclasses import replace
from decimal import Decimal

from providers.base import Caps, DestroyAck, Endpoint, Instance, Listing, Offer, ProviderConfig, Ref
from providers.errors import Invalid

CAPS = Caps(
    dead_statuses=frozenset({"mown"}), self_end="destroys", server_ttl=True, boot_hook="once", min_billing_s=600,
    source="made up", as_of="2026-12-01",
)
_machines: dict[str, Instance] = {}  # the company: outside any adapter
_lock = threading.Lock()


def _greet() -> int:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-meadow\\r\\n")

    threading.Thread(target=serve, daemon=True).start()
    return server.getsockname()[1]


class MeadowProvider:
    name, account, caps, port = "meadow", "default", CAPS, 0

    def __init__(self, config: ProviderConfig) -> None:
        self.config = config

    def regions(self):
        return ("grass",)

    def offers(self, ask):
        offer = Offer("meadow", "default", "grass", "plot", False, Decimal("0.07"), "USD", cpus=8, min_billing_s=600)
        fits = not ask.gpus and ask.cpus_min <= 8 and not ask.spot and (not ask.regions or "grass" in ask.regions)
        return (offer,) if fits else ()

    def create(self, offer, tag, end, boot):
        if offer.key != "plot":
            raise Invalid(f"Meadow has no {offer.key!r}", provider=self.name, what="create")
        with _lock:
            MeadowProvider.port = MeadowProvider.port or _greet()
            ref = Ref(self.name, self.account, "grass", f"plot-{len(_machines) + 1}")
            where = Endpoint("127.0.0.1", self.port, "root")
            _machines[ref.id] = Instance(
                ref, "grown", tag, True, where, created_at=time.time(), ends_at=end, hourly=offer.hourly, currency="USD"
            )
        return self.get(ref)

    def list(self, region):
        now = [self.get(each.ref) for each in list(_machines.values())]
        return Listing(tuple(each for each in now if each.tag.deployment == self.config.deployment))

    def get(self, ref):
        seen = _machines.get(ref.id)
        if seen is None or seen.ends_at > time.time():
            return seen
        return replace(seen, status="mown", ready=False, endpoint=None)

    def destroy(self, ref):
        with _lock:
            if ref.id not in _machines:
                return DestroyAck.MISSING
            _machines[ref.id] = replace(_machines[ref.id], ends_at=0.0)
        return DestroyAck.ACKNOWLEDGED

    def set_expiry(self, ref, at):
        with _lock:
            _machines[ref.id] = replace(_machines[ref.id], ends_at=at)
'''

SUITE = """
from pathlib import Path
from providers.base import ProviderConfig
from providers.contract import CHECKS, Terms, check_provider
from providers.registry import get_provider

def of(deployment):
    return lambda: get_provider("meadow", ProviderConfig(deployment, Path("."), ()))

check_provider(Terms(of("contract"), "contract", "ssh-ed25519 AAAA x", strangers=of("someone-else")))
print(len(CHECKS), "hold", get_provider("meadow", ProviderConfig("d", Path("."), ())).__module__)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has installed the package, which was built in a folder of its own."""
    folder = tmp_path_factory.mktemp("meadow")
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (folder / "meadow_gpus.py").write_text(PLUGIN, encoding="utf-8")
    target = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", str(target), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(target.glob("meadow_gpus-2.1.dist-info/entry_points.txt"))
    return target


def run(site: Path, folder: Path, *words: str) -> str:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    env = {**kept, "HOME": str(folder), "GPUJOB_HOME": str(folder / "home"), "PYTHONPATH": f"{ROOT}:{site}"}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_passes_the_suite_that_every_provider_must_pass(site: Path, tmp_path: Path) -> None:
    assert run(site, tmp_path, "-c", SUITE) == "16 hold meadow_gpus\n"


def test_the_command_line_lists_asks_and_plans_with_it(site: Path, tmp_path: Path) -> None:
    gpujob = ("-m", "orchestrator.cli.main")
    rows = json.loads(run(site, tmp_path, *gpujob, "providers", "-o", "json"))
    assert [row["min_billing_s"] for row in rows if row["name"] == "meadow"] == [600]
    found = json.loads(run(site, tmp_path, *gpujob, "offers", "--gpu", "none", "--provider", "meadow", "-o", "json"))
    assert [(offer["provider"], offer["hourly"]["amount"]) for offer in found["offers"]] == [("meadow", "0.07")]
    (tmp_path / "job.yaml").write_text("{name: mow, gpu: none, providers: [meadow], run: echo hi, expected: 1m}\n")
    plan = json.loads(run(site, tmp_path, *gpujob, "plan", "job.yaml", "-o", "json"))
    assert plan["chosen"]["provider"] == "meadow"
    assert plan["timers"][2] | {"why": ""} == {"timer": "provider", "binds": True, "why": ""}
