"""A whole job at a rented company: the company is a fake on loopback, its machines are real machines of this host.

Create, run, preempt, relaunch from the checkpoint, results home, release: nothing may be left at the company.
"""

from __future__ import annotations

import functools
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aws_layer import AWS_GPUS, AwsLayer
from fake_autodl import FakeAutoDl
from fake_lambda import FakeLambda
from fake_machines import LocalMachines
from fake_metadata import FakeMetadata
from fake_rest import GPUS, KEY, FakeApi
from fake_runpod import FakeRunPod
from fake_vast import FakeVast
from gpujob_world import World, counting

from orchestrator.model import Outcome, Reason

NOTICE_S = 15.0  # in life 120: the machine looks every five seconds
SPOT = {"checkpoint": {"pattern": "step_{n}", "every": "1s"}}


def at_company(world: World, company: FakeApi, variable: str, **settings: Any) -> None:
    """The user's config leads to the fake, and the key is in the environment."""
    world.home.make()
    block = {company.name: company.settings() | settings}
    world.home.config_file.write_text(yaml.safe_dump({"providers": block, "limits": {"per_job": "20 USD"}}))
    world.env[variable] = KEY


def preempted_once(
    world: World,
    company: FakeApi,
    preempt: Callable[[str], None],
    spot: bool,
    gpu: str = "RTX-4090",
    steps: int = 24,
    **more: Any,
) -> None:
    """Run a counting job, take its first machine away after a checkpoint, and see it end well."""
    keys = {"providers": [company.name], "gpu": gpu, "spot": spot, "artifacts": None, **SPOT, **more}
    world.apply(world.spec("count", counting(steps, save_every=4, taken=True), **keys))
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
    assert (world.project / "gpujob-results" / "count" / "result.txt").read_text() == f"finished at {steps}\n"
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
def test_a_job_on_lambda_survives_a_machine_that_is_taken_and_leaves_no_machine_and_no_key(tmp_path: Path) -> None:
    machines = LocalMachines(tmp_path / "cloud", GPUS)
    with World(tmp_path) as world, FakeLambda(machines) as company:
        at_company(world, company, "LAMBDA_API_KEY", user=machines.login())
        allow = ["ttl-needs-controller"]
        take = functools.partial(company.fail, status="preempted")
        preempted_once(world, company, take, spot=False, gpu="A10", allow=allow)
        world.wait("count")
        world.assert_clean("count")
        assert [each.ended is None for each in company.instances.values()] == [False, False]
        assert company.keys == {}
        assert company.sent("POST", "/instance-operations/launch$") == 2


@pytest.mark.e2e
def test_a_job_on_autodl_survives_a_power_off_and_leaves_nothing(tmp_path: Path) -> None:
    machines = LocalMachines(tmp_path / "cloud", GPUS)
    with World(tmp_path) as world, FakeAutoDl(machines) as company:
        at_company(world, company, "AUTODL_TOKEN", user=machines.login(), data_mount="")
        file = world.home.config_file
        rates = {"CNY": {"rate": "0.139", "as_of": "2026-10-01"}}
        file.write_text(file.read_text() + yaml.safe_dump({"rates": rates}))
        preempted_once(world, company, company.stop, spot=False, gpu="RTX-4090D", allow=["ttl-needs-controller"])
        world.until(lambda: company.held == [], "both are released, each after its power-off")
        assert company.sent("POST", "/pro/create$") == 2
        assert company.sent("POST", "/pro/release$") == 2
        assert {rental.offer.currency for rental in world.rentals("count")} == {"CNY"}


@pytest.mark.e2e
def test_a_job_on_aws_saves_at_its_notice_and_leaves_no_machine_disk_key_or_group(tmp_path: Path) -> None:
    machines = LocalMachines(tmp_path / "cloud", AWS_GPUS)
    with World(tmp_path) as world, FakeMetadata() as service, AwsLayer(machines, service) as company:
        at_company(world, company, "AWS_EC2_METADATA_DISABLED", user=machines.login())
        world.env |= {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "none"}
        world.env["AWS_ACCESS_KEY_ID"], world.env["AWS_SECRET_ACCESS_KEY"] = company.key.split()

        def preempt(machine: str) -> None:
            service.hint(machine)
            service.announce(machine, time.time() + NOTICE_S)
            timer = threading.Timer(NOTICE_S, company.reclaim, [machine])
            timer.daemon = True
            timer.start()

        preempted_once(world, company, preempt, spot=True, gpu="L4", steps=50)
        assert world.runs("count")[0].exit is not None
        assert world.runs("count")[0].exit.signalled == "interruption"
        assert "saved at" in world.log("count", 1).decode()
        world.wait("count")
        world.assert_clean("count")
        assert company.running == []
        assert company.things() == {"DescribeVolumes": [], "DescribeKeyPairs": [], "DescribeSecurityGroups": []}
        assert company.sent("POST", "/RunInstances$") == 2
        assert any(line.startswith("agent:notice") for line in world.journal("count"))


@pytest.mark.e2e
def test_a_docker_image_that_cannot_be_had_fails_the_job_on_aws_with_its_reason_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    machines = LocalMachines(tmp_path / "cloud", AWS_GPUS)
    with World(tmp_path) as world, AwsLayer(machines) as company:
        at_company(world, company, "AWS_EC2_METADATA_DISABLED", user=machines.login())
        world.env |= {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "none"}
        world.env["AWS_ACCESS_KEY_ID"], world.env["AWS_SECRET_ACCESS_KEY"] = company.key.split()
        keys = {"providers": ["aws"], "gpu": "none", "image": {"aws": "localhost:1/no/such:1"}, "setup": "echo never"}
        world.apply(world.spec("boxed", "echo never", **keys))
        job = world.wait("boxed", code=1, what="outcome")
        assert (job.outcome, job.exit_code) == (Outcome.FAILED, 125)
        assert world.rentals("boxed")[0].offer.container == "localhost:1/no/such:1"
        world.wait("boxed", code=1)
        world.assert_clean("boxed")
        assert company.running == []
        assert set(map(len, company.things().values())) == {0}


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
            left = [line for line in world.processes().values() if "sleep 300" in line or "import agent" in line]
            assert left == []
            world.cli("host", "rm", "lab")
    finally:
        machines.close()
