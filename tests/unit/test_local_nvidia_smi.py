"""The stand-in `nvidia-smi`, run as the program that a machine gets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from providers.local_machine import nvidia_smi

Smi = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def world(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(nvidia_smi.describe("m1", "RTX-4090", 24, 2))
    return found


@pytest.fixture
def smi(tmp_path: Path, world: dict[str, Any]) -> Smi:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/nvidia-smi"
    program.write_text(Path(nvidia_smi.__file__).read_text())

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "gpus.json").write_text(json.dumps(world))
        command = [sys.executable, "-IS", str(program), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_the_plain_table_says_that_it_is_an_imitation(smi: Smi) -> None:
    done = smi()
    assert done.returncode == 0
    assert "stand-in NVIDIA-SMI" in done.stdout
    assert "An imitation: this host has no such GPU." in done.stdout
    assert done.stdout.count("RTX-4090 (stand-in)") == 2
    assert {len(line) for line in done.stdout.splitlines()} == {79}, "the table's lines differ in length"


def test_list(smi: Smi) -> None:
    assert smi("-L").stdout == (
        "GPU 0: RTX-4090 (stand-in) (UUID: GPU-m1-0)\nGPU 1: RTX-4090 (stand-in) (UUID: GPU-m1-1)\n"
    )


@pytest.mark.parametrize("spelling", [("--query-gpu={}", "--format={}"), ("--query-gpu", "{}", "--format", "{}")])
def test_queries(smi: Smi, world: dict[str, Any], spelling: tuple[str, ...]) -> None:
    world["gpus"][1].update({"utilization.gpu": 40, "memory.used": 1024})
    fields = "index,uuid,memory.total,memory.used,memory.free,utilization.gpu,power.draw,temperature.gpu"
    values = iter([fields, "csv,noheader,nounits"])
    words = [word.format(next(values)) if "{}" in word else word for word in spelling]
    assert smi(*words).stdout.splitlines()[1] == "1, GPU-m1-1, 24576, 1024, 23552, 40, 40.00, 35"


def test_units_and_header(smi: Smi) -> None:
    done = smi("--query-gpu=name,driver_version,memory.total,temperature.gpu,power.draw", "--format=csv", "-i", "0")
    assert done.stdout.splitlines() == [
        "name, driver_version, memory.total [MiB], temperature.gpu, power.draw [W]",
        "RTX-4090 (stand-in), 550.54.15, 24576 MiB, 35, 40.00 W",
    ]
    bare = smi("--query-gpu=memory.total", "--format=csv,nounits").stdout
    assert bare == "memory.total\n24576\n24576\n"


def test_a_known_field_without_a_value_is_not_available(smi: Smi) -> None:
    done = smi("--query-gpu=ecc.errors.uncorrected.volatile.total,fan.speed", "--format=csv,noheader", "--id=1")
    assert done.stdout == "[N/A], [N/A]\n"


def test_an_unknown_field_is_refused_as_the_real_one_does(smi: Smi) -> None:
    done = smi("--query-gpu=name,colour", "--format=csv")
    assert done.returncode == 2
    assert 'Field "colour" is not a valid field to query.' in done.stdout


def test_one_card_by_number_or_uuid(smi: Smi) -> None:
    assert smi("-L", "-i", "1").stdout.count("\n") == 1
    assert "GPU-m1-0" in smi("-L", "--id=GPU-m1-0").stdout
    missing = smi("-L", "-i", "7")
    assert (missing.returncode, missing.stdout) == (6, "No devices were found\n")


def test_nothing_computes_on_an_imitation(smi: Smi) -> None:
    query = "--query-compute-apps=pid,used_memory"
    assert smi(query, "--format=csv,noheader").stdout == ""
    assert smi(query, "--format=csv").stdout == "pid, used_memory\n"


def test_faults_can_be_written(smi: Smi, world: dict[str, Any]) -> None:
    world["gpus"][0]["ecc.errors.uncorrected.volatile.total"] = 12
    query = ("--query-gpu=ecc.errors.uncorrected.volatile.total", "--format=csv,noheader")
    assert smi(*query).stdout == "12\n[N/A]\n"
    world["fail"] = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    done = smi(*query)
    assert (done.returncode, done.stdout) == (9, world["fail"] + "\n")


@pytest.mark.parametrize(("state", "shown"), [(True, "95"), (False, "0")])
def test_utilization_follows_the_machine_unless_given(
    world: dict[str, Any], state: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_smi, "busy", lambda: state)
    assert nvidia_smi.value(world, world["gpus"][0], "utilization.gpu") == shown
    assert nvidia_smi.value(world, {**world["gpus"][0], "utilization.gpu": 7}, "utilization.gpu") == "7"


@pytest.mark.parametrize(
    ("words", "seconds"),
    [(["--loop=10"], 10.0), (["-l", "2"], 2.0), (["--loop-ms=500"], 0.5), (["-L"], None), (["-l"], 5.0)],
)
def test_how_often_it_is_to_answer(words: list[str], seconds: float | None) -> None:
    assert nvidia_smi.interval(["nvidia-smi", *words]) == seconds


def test_again_and_again_it_reads_what_the_cards_are(
    tmp_path: Path, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = iter([30, 99])

    def change(_: float) -> None:
        world["gpus"][0]["utilization.gpu"] = next(shown)
        world["fail"] = "" if world["gpus"][0]["utilization.gpu"] == 30 else "Unknown Error"
        (tmp_path / "gpus.json").write_text(json.dumps(world))

    monkeypatch.setattr(nvidia_smi.time, "sleep", lambda pause: change(pause) if pause else None)
    change(1)
    words = [
        str(tmp_path / "bin/nvidia-smi"),
        "--query-gpu=utilization.gpu",
        "--format=csv,noheader,nounits",
        "-i",
        "0",
    ]
    assert nvidia_smi.main([*words, "--loop=10"]) == 9
    assert capsys.readouterr().out == "30\nUnknown Error\n"
