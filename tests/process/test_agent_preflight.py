"""The agent's first look at a machine: real commands, stand-in cards, tools that hang or are not there."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_machine import Machine

from orchestrator.agent import preflight
from providers.local_machine import nvidia_smi, sick

PLACES = {"data": "gpujob/digits/data", "ckpt": "/tmp", "out": "/nowhere/at/all"}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path / "m") as found:
        yield found


def with_cards(machine: Machine, kind: str = "", count: int = 2) -> None:
    """Give the machine stand-in cards as `local` does, with one sickness."""
    etc = machine.home / "etc"
    (etc / "bin").mkdir(parents=True)
    program = etc / "bin/nvidia-smi"
    program.write_text(f"#!{sys.executable} -IS\n{Path(nvidia_smi.__file__).read_text()}")
    program.chmod(0o755)
    (etc / "gpus.json").write_text(nvidia_smi.describe("m1", "RTX-4090", 24, count))
    if kind:
        sick.infect(machine.home, sick.Sickness(kind))
    machine.path = f"{etc / 'bin'}:{machine.path}"


def look(machine: Machine, **ask: Any) -> dict[str, Any]:
    return machine.do("preflight", gpus=True, places=PLACES, now=time.time(), **ask)


def test_what_a_healthy_machine_tells(machine: Machine) -> None:
    with_cards(machine)
    found = look(machine)
    gpu = found["gpu"]
    assert [card["name"] for card in gpu["cards"]] == ["RTX-4090 (stand-in)"] * 2
    assert (
        gpu["cards"][0] | {"memory_mib": 24576, "used_mib": 3, "temp": 35, "throttle": ["gpu_idle"]} == gpu["cards"][0]
    )
    assert (gpu["driver"], gpu["cuda"], gpu["links"]) == ("550.54.15", "12.4", {"PHB": 1})
    assert found["cpus"] >= 1
    assert abs(found["clock_skew_s"]) < 30
    assert found["own_runs"] == 0
    assert found["disks"]["data"]["free"] == pytest.approx(shutil.disk_usage(machine.home).free, rel=0.05)
    assert found["disks"]["out"] | {"path": "/", "root": True} == found["disks"]["out"]
    assert found["tools"]["bash"]
    assert len(json.dumps(found)) < 8000, "the books keep it"


def test_a_driver_that_hangs_is_given_up_within_the_20_s(tmp_path: Path) -> None:
    assert preflight.PREFLIGHT_S <= 17  # the rest takes well under a second
    with Machine(tmp_path / "m", PREFLIGHT_S="0.5") as machine:
        with_cards(machine, "hung")
        gpu = look(machine)["gpu"]
    assert gpu["hung"] is True
    assert gpu["cards"] == []


def test_a_driver_that_refuses_is_quoted(machine: Machine) -> None:
    with_cards(machine, "nvml")
    gpu = look(machine)["gpu"]
    assert gpu["error"] == "Failed to initialize NVML: Driver/library version mismatch"
    assert gpu["hung"] is False


def test_a_machine_without_the_tool_and_one_that_prints_junk(machine: Machine) -> None:
    bare = machine.home / "bare"
    bare.mkdir()
    machine.path = f"{bare}:/usr/bin:/bin"
    if shutil.which("nvidia-smi", path=machine.path) is None:
        assert look(machine)["gpu"] | {"smi": None, "cards": []} == look(machine)["gpu"]
    program = bare / "nvidia-smi"
    program.write_text("#!/bin/sh\nhead -c 100000 /dev/urandom\n")
    program.chmod(0o755)
    assert look(machine)["gpu"]["cards"] == []


def test_a_tool_that_prints_without_end_fills_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "PREFLIGHT_OUTPUT", 1 << 16)
    probe = preflight.Probe(["yes", "junk"])
    text = probe.text(preflight.uptime() + 30.0)
    assert (len(text), probe.hung, probe.failed) == (1 << 16, False, True)


def test_kernel_faults_and_a_wrong_clock(machine: Machine) -> None:
    with_cards(machine, "xid")
    found = machine.do("preflight", gpus=True, places={}, now=time.time() - 4000)
    assert found["kernel_faults"] == [sick.DMESG]
    assert found["clock_skew_s"] == pytest.approx(4000, abs=60)


def test_without_cards_asked_no_tool_is_started(machine: Machine) -> None:
    with_cards(machine, "hung")  # it would be waited for
    found = machine.do("preflight", gpus=False, places=PLACES)
    assert "gpu" not in found


def test_a_run_that_is_alive_is_counted(machine: Machine) -> None:
    machine.order("sleep 60")
    machine.wait_log(b"", "run")
    assert machine.do("preflight", gpus=False, places={})["own_runs"] == 1
    machine.do("close", task="t0", n=1)
    assert machine.do("preflight", gpus=False, places={})["own_runs"] == 0
    assert os.path.exists(machine.home)
