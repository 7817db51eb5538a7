"""A whole job at a rented company: the company is a fake on loopback, its machines are real machines of this host.

Create, run, preempt, relaunch from the checkpoint, results home, release: nothing may be left at the company.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_machines import LocalMachines
from fake_rest import GPUS, KEY, FakeApi
from fake_runpod import FakeRunPod
from fake_vast import FakeVast
from gpujob_world import World, counting

from orchestrator.model import Outcome, Reason

SPOT = {"checkpoint": {"pattern": "step_{n}", "every": "1s"}}


def at_company(world: World, company: FakeApi, variable: str, **settings: Any) -> None:
    """The user's config leads to the fake, and the key is in the environment."""
    world.home.make()
    block = {company.name: company.settings() | settings}
    world.home.config_file.write_text(yaml.safe_dump({"providers": block, "limits": {"per_job": "20 USD"}}))
    world.env[variable] = KEY


def preempted_once(world: World, company: FakeApi, preempt: Callable[[str], None], spot: bool) -> None:
    """Run a counting job, take its first machine away after a checkpoint, and see it end well."""
    keys = {"providers": [company.name], "gpu": "RTX-4090", "spot": spot, "artifacts": None, **SPOT}
    world.apply(world.spec("count", counting(24, save_every=4), **keys))
    world.until(lambda: world.checkpoints("count"), "a first checkpoint is durable")
    before = max(row.step for row in world.checkpoints("count"))
    first = world.rentals("count")[0]
    assert first.provider_id is not None
    preempt(first.provider_id)
    job = world.wait("count", what="outcome")
    assert (job.outcome, job.exit_code) == (Outcome.DONE, 0)
    one, two = world.rentals("count")
    assert (one.reason, two.reason) == (Reason.INTERRUPTED, Reason.DONE)
    assert one.offer.provider == two.offer.provider == company.name
    resumed = world.runs("count")[1].resume_step
    assert resumed is not None
    assert resumed >= before
    assert f"resumed at {resumed}\n" in world.log("count", 2).decode()
    assert (world.project / "gpujob-results" / "count" / "result.txt").read_text() == "finished at 24\n"
    world.until(
        lambda: all(rental.quiesced_at for rental in world.rentals("count")), "both are seen to compute no more"
    )
    assert company.violations == []


@pytest.mark.e2e
def test_a_job_on_runpod_survives_a_pod_that_exits_and_leaves_nothing(tmp_path: Path) -> None:
    with World(tmp_path) as world, FakeRunPod(LocalMachines(tmp_path / "cloud", GPUS)) as company:
        at_company(world, company, "RUNPOD_API_KEY")
        company.ghost_s = 600.0
        preempted_once(world, company, company.exit, spot=False)
        assert company.pods == {}
        world.wait("count")
        world.assert_clean("count")
        assert company.sent("POST", "/v2/pods$") == 2


@pytest.mark.e2e
def test_a_job_on_vast_survives_being_outbid_and_leaves_nothing(tmp_path: Path) -> None:
    machines = LocalMachines(tmp_path / "cloud", GPUS)
    with World(tmp_path) as world, FakeVast(machines) as company:
        at_company(world, company, "VAST_API_KEY", user=machines.login())
        preempted_once(world, company, lambda contract: company.outbid(int(contract)), spot=True)
        assert company.contracts == {}  # that they are gone takes two minutes of listings without them
        assert company.sent("PUT", "/asks/") == 2


@pytest.mark.e2e
def test_a_job_on_a_machine_of_ones_own_leaves_it_as_it_was(tmp_path: Path) -> None:
    machines = LocalMachines(tmp_path / "cloud", GPUS)
    identity = tmp_path / "users-own-key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(identity)], check=True)
    handle, house = machines.own("lab", Path(f"{identity}.pub").read_text())
    host, port, user = machines.place(handle) or ("", 0, "")
    try:
        with World(tmp_path) as world:
            world.cli("host", "add", "lab", f"ssh -i {identity} -p {port} {user}@{host}", "--gpu", "none", "-y")
            (house / "thesis.txt").write_text("mine")
            before = {path.name for path in house.iterdir()}
            keys = (house / ".ssh" / "authorized_keys").read_text()
            run = 'echo "on $(ls ~/thesis.txt)"; (setsid sleep 300 &) ; echo ok > "$GPUJOB_OUT/result.txt"'
            allow = ["ttl-needs-controller"]
            world.apply(world.spec("own", run, providers=["ssh"], artifacts=None, allow=allow))
            job = world.wait("own")
            assert (job.outcome, job.exit_code) == (Outcome.DONE, 0)
            assert (world.project / "gpujob-results" / "own" / "result.txt").read_text() == "ok\n"
            assert (house / "thesis.txt").read_text() == "mine"
            assert (house / ".ssh" / "authorized_keys").read_text() == keys
            assert {path.name for path in house.iterdir()} - before == {".gpujob-host"}
            left = [line for line in world.processes().values() if "sleep 300" in line or "agent.py" in line]
            assert left == []
            world.cli("host", "rm", "lab")
    finally:
        machines.close()
