"""The agent's look after setup and its watch over the trial: real runs, a stand-in torch, stand-in cards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_machine import JOB, Machine, wait_for

TORCH = """
import time
__version__ = "{version}"
class version: cuda = {cuda!r}; hip = None
class cuda:
    is_available = staticmethod(lambda: {available})
    device_count = staticmethod(lambda: {devices})
    init = staticmethod(lambda: None)
    get_device_name = staticmethod(lambda i: "NVIDIA GeForce RTX 4090")
    get_device_capability = staticmethod(lambda i: (8, 9))
    get_arch_list = staticmethod(lambda: ["sm_80", "sm_89"])
    synchronize = staticmethod(lambda i: time.sleep(0.01))
    class nccl: all_reduce = staticmethod(lambda parts: None)
float16 = "float16"
class randn:
    def __init__(self, *shape, device, dtype): pass
    def __matmul__(self, other): return other
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path / "m") as found:
        yield found


def with_torch(machine: Machine, **changes: Any) -> None:
    """A torch package in the job's folder, as far as the look asks for it."""
    values = {"version": "2.4.0+cu121", "cuda": "12.1", "available": True, "devices": 2, **changes}
    code = machine.job / "code"
    code.mkdir(parents=True, exist_ok=True)
    (code / "torch.py").write_text(TORCH.format(**values))


def looked(machine: Machine) -> dict[str, Any]:
    [event] = machine.events("look")
    return event


def test_a_cpu_build_stops_the_run_after_setup(machine: Machine) -> None:
    with_torch(machine, version="2.4.0+cpu", cuda=None, available=False, devices=0)
    machine.order({"setup": "echo installed", "run": "echo trained"}, look={"gpus": 2, "stop": True})
    ended = machine.ended()
    assert (ended["stage"], ended["rc"]) == ("setup", 78)
    assert machine.log("run") == b""
    first, second = machine.log("setup").decode().splitlines()
    assert first == "installed"
    assert second.startswith("gpujob: [config] torch 2.4.0+cpu, a build for CUDA: ")
    assert looked(machine)["findings"][0]["name"] == "torch-cpu"


def test_cards_that_torch_does_not_see_are_the_machines_fault(machine: Machine) -> None:
    with_torch(machine, devices=1)
    machine.order("echo trained", look={"gpus": 2, "stop": True})
    ended = machine.ended()
    assert (ended["stage"], ended["rc"]) == ("run", 78)
    assert machine.log("run") == b"gpujob: [bad-host] torch sees 1 cards, 2\n"


@pytest.mark.parametrize("stop", [True, False])
def test_a_torch_that_is_well_and_one_that_is_only_told_of(machine: Machine, stop: bool) -> None:
    with_torch(machine, devices=2 if stop else 0, available=stop)
    machine.order("sleep 1; echo trained", look={"gpus": 2, "stop": stop})
    assert machine.ended()["rc"] == 0
    assert machine.log("run") == b"trained\n"
    event = looked(machine)
    assert event["facts"]["torch"]["version"] == "2.4.0+cu121"
    assert [each["klass"] for each in event["findings"]] == ([] if stop else ["warn"])
    assert event["run"] == "t0.1"


def test_cards_that_are_slower_than_others_of_their_class(machine: Machine) -> None:
    """The stand-in torch only waits: the arithmetic is real, the cards are not."""
    with_torch(machine)
    look = {"gpus": 2, "stop": True, "benchmark": True, "reference": {"tflops": 1e6, "allreduce_gbps": 0.001}}
    machine.order("echo trained", look=look)
    assert machine.ended()["rc"] == 0
    event = looked(machine)
    measured = event["facts"]["torch"]["benchmark"]
    assert len(measured["tflops_each"]) == 2
    assert 0 < measured["allreduce_gbps"] < 1000
    assert [(each["name"], each["klass"]) for each in event["findings"]] == [("slow-gpu", "warn")]
    machine.do("close", task="t0", n=1)
    machine.order("echo trained", n=2, look=look)
    assert machine.ended(2)["rc"] == 0
    assert len(machine.events("look")) == 1, "the same environment is looked at once"
    assert machine.do("status")["setups"] == []
    machine.do("close", task="t0", n=2)
    machine.order({"setup": "true", "run": "echo trained"}, n=3, look={**look, "replace": True})
    assert machine.ended(3)["rc"] == 78
    assert machine.log("setup", 3).startswith(b"gpujob: [bad-host] ")


def test_the_packages_of_the_jobs_own_environment(machine: Machine) -> None:
    setup = """
mkdir -p .venv/bin site/known-1.2.dist-info
printf 'Metadata-Version: 2.1\\nName: known\\nVersion: 1.2\\n' > site/known-1.2.dist-info/METADATA
printf '#!/bin/sh\\nPYTHONPATH="%s/site" exec python3 "$@"\\n' "$PWD" > .venv/bin/python
chmod +x .venv/bin/python
"""
    machine.order({"setup": setup, "run": "sleep 1"}, look={"gpus": 0})
    wait_for(lambda: machine.events("look"), "the look beside the run")
    assert "known==1.2" in looked(machine)["facts"]["packages"]
    assert "torch" not in looked(machine)["facts"]
    assert machine.ended()["rc"] == 0


def test_without_a_wish_nothing_is_looked_at(machine: Machine) -> None:
    machine.order("echo hi")
    assert machine.ended()["rc"] == 0
    assert machine.events("look") == []


STEPS = "for i in 1 2 3 4 5 6; do echo step=$i; sleep 0.2; done"
PLAN = {"regex": "step=(\\d+)", "hourly": "0.50", "currency": "USD"}


def test_a_trial_that_shows_the_run_to_be_waste_stops_it(machine: Machine) -> None:
    plan = {**PLAN, "total": 100_000, "ttl_left_s": 3600.0}
    machine.order({"smoke": STEPS, "run": "echo never"}, smoke=plan)
    ended = machine.ended()
    assert (ended["stage"], ended["rc"]) == ("smoke", 78)
    assert machine.log("run") == b""
    last = machine.log("smoke").decode().splitlines()[-1]
    assert last.startswith("gpujob: [smoke] at ")
    assert " the 100,000 steps take " in last
    assert ", ttl leaves 1 h: raise ttl above " in last
    [event] = machine.events("smoke")
    assert event["facts"]["steps_seen"] == 6
    assert event["facts"]["cost"] > 0


def test_a_trial_that_fits_goes_on_and_tells_what_it_measured(machine: Machine) -> None:
    machine.order({"smoke": STEPS, "run": "echo trained"}, smoke={**PLAN, "total": 10, "ttl_left_s": 3600.0})
    assert machine.ended()["rc"] == 0
    assert machine.log("run") == b"trained\n"
    [event] = machine.events("smoke")
    assert event["findings"] == []
    assert 0 < event["facts"]["steps_per_s"] < 6
    assert event["facts"]["ram_peak"] > 0


def test_a_trial_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    with Machine(tmp_path / "m", SMOKE_MIN_S="0.3", SMOKE_MAX_S="0.3") as machine:
        machine.order({"smoke": "echo slow; sleep 60", "run": "echo never"}, smoke=PLAN)
        ended = machine.ended()
        assert (ended["stage"], ended["rc"]) == ("smoke", 78)
        assert machine.log("smoke").startswith(
            b"slow\ngpujob: [smoke] it still runs after 0 min: make it a short trial"
        )
        assert machine.log("run") == b""


def test_the_same_order_with_less_time_left_is_the_same_order(machine: Machine) -> None:
    machine.order("sleep 30", smoke={**PLAN, "ttl_left_s": 100.0}, look={"gpus": 0})
    again = machine.do("order", **machine.order_of("sleep 30", smoke={**PLAN, "ttl_left_s": 90.0}, look={"gpus": 0}))
    assert again["already"] is True
    assert machine.ask("order", **machine.order_of("sleep 31"))["error"] == "conflict"
    assert machine.job.name == JOB
