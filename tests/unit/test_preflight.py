"""The judge of a machine: every finding with the machine that has it, and with one that only looks so."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobspecs import cuda
from jobspecs.gpu_table import GPU_CLASSES, GpuClass
from orchestrator.agent import cards as agent_cards
from orchestrator.preflight import GIB, Finding, Order, judge
from providers.local_machine import nvidia_smi, sick

ORDER = Order(gpu="RTX-4090", gpu_count=2, vram_gb=24, accepted=frozenset({"RTX-4090", "RTX-3090"}), compute="8.9")
CARD: dict[str, Any] = {
    "name": "NVIDIA GeForce RTX 4090", "memory_mib": 24564.0, "used_mib": 3.0, "bus": "00000000:01:00.0", "mig": "N/A",
    "virtualization": "Pass-Through", "ecc_uncorrected": 0.0, "remap_pending": "No",
    "throttle": ["gpu_idle", "sw_power_cap"],
    "power_limit_w": 450.0, "power_default_w": 450.0, "temp": 34.0, "compute": "8.9",
}  # fmt: skip
HEALTHY: dict[str, Any] = {
    "gpu": {
        "smi": "/usr/bin/nvidia-smi", "driver": "550.54.15", "cuda": "12.4", "links": {"NV4": 1}, "visible": None,
        "cards": [CARD, {**CARD, "bus": "00000000:02:00.0"}],
        "devices": ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"],
        "nvml": {"rc": 0, "count": 2},
    },
    "kernel_faults": [], "cpus": 16, "memory": {"used": 1 * GIB, "total": 64 * GIB}, "own_runs": 0, "clock_skew_s": 0.2,
    "shm": {"free": 8 * GIB, "total": 8 * GIB}, "tools": {"bash": "/bin/bash", "rsync": "/usr/bin/rsync", "tmux": "/t"},
    "disks": {
        name: {"free": 100 * GIB, "total": 200 * GIB, "inodes": 10**7, "inodes_free": 10**6, "root": name != "data"}
        for name in ("data", "ckpt", "out")
    },
}  # fmt: skip


def changed(**changes: Any) -> dict[str, Any]:
    """The healthy machine with values by path: `gpu__cuda="11.4"`, `card__mig="Enabled"` (every card)."""
    facts = copy.deepcopy(HEALTHY)
    for path, value in changes.items():
        *above, last = path.split("__")
        places = facts["gpu"]["cards"] if above == ["card"] else [facts]
        for place in places:
            for name in above if above != ["card"] else []:
                place = place[name]
            place[last] = value
    return facts


def off_bus(bus: str) -> list[str]:
    return [f"[  100.1] NVRM: GPU 0000:{bus}:00.0: GPU has fallen off the bus."]


def order(**changes: Any) -> Order:
    return replace(ORDER, **changes)


def xid(number: int, bus: str = "0000:01:00") -> list[str]:
    return [f"[ 12.1] NVRM: Xid (PCI:{bus}): {number}, pid=7, name=python"]


#: name, class, the machine that has it, its order; and the look-alike that is well.
CASES: list[tuple[str, str, dict[str, Any], Order, dict[str, Any], Order]] = [
    ("gpu-count", "bad-host", changed(gpu__cards=[CARD]), ORDER, changed(gpu__cards=[CARD]), order(gpu_count=1)),
    ("gpu-count", "warn", changed(), order(gpu_count=1), changed(), ORDER),
    ("gpu-name", "bad-host", changed(card__name="Tesla T4", card__memory_mib=15360.0), ORDER,
     changed(card__name="GeForce RTX 4090"), ORDER),
    ("gpu-name", "bad-host", changed(card__name="NVIDIA A100-SXM4-40GB", card__memory_mib=40960.0),
     order(gpu="A100-80GB-SXM", vram_gb=80), changed(card__name="NVIDIA Something New", card__memory_mib=81559.0),
     order(gpu="A100-80GB-SXM", vram_gb=80)),
    ("gpu-name", "warn", changed(card__name="NVIDIA GeForce RTX 3090"), ORDER,
     changed(card__name="NVIDIA A100-SXM4-80GB", card__memory_mib=81920.0), order(gpu="A100-80GB-PCIe", vram_gb=80)),
    ("gpu-memory", "bad-host", changed(card__name="NVIDIA New Card", card__memory_mib=12288.0), ORDER,
     changed(card__memory_mib=24210.0), ORDER),
    ("gpu-slice", "bad-host", changed(card__name="GRID A100D-40C"), ORDER,
     changed(card__name="vGPU-48GB", card__memory_mib=49140.0), order(gpu="RTX-4090-48GB", vram_gb=48)),
    ("mig", "bad-host", changed(card__mig="Enabled"), ORDER, changed(card__mig="Disabled"), ORDER),
    ("vgpu", "bad-host", changed(card__virtualization="VGPU"), ORDER,
     changed(card__virtualization="Pass-Through"), ORDER),
    ("memory-used", "bad-host", changed(card__used_mib=9000.0), ORDER, changed(card__used_mib=430.0), ORDER),
    ("memory-used", "bad-host", changed(card__used_mib=9000.0), ORDER,
     changed(card__used_mib=9000.0, own_runs=1), ORDER),
    ("memory-used", "warn", changed(card__used_mib=900.0, card__desktop=True), ORDER,
     changed(card__used_mib=100.0, card__desktop=True), ORDER),
    ("ecc", "bad-host", changed(card__ecc_uncorrected=2.0), ORDER, changed(card__ecc_uncorrected=0.0), ORDER),
    ("ecc", "bad-host", changed(card__remap_failure="Yes"), ORDER, changed(card__remap_failure="No"), ORDER),
    ("throttled", "bad-host", changed(card__throttle=["hw_thermal_slowdown"]), ORDER,
     changed(card__throttle=["gpu_idle", "sw_power_cap", "applications_clocks_setting"]), ORDER),
    ("throttled", "warn", changed(card__throttle=["sw_thermal_slowdown"]), ORDER, changed(card__throttle=[]), ORDER),
    ("power-limit", "warn", changed(card__power_limit_w=200.0), ORDER, changed(card__power_limit_w=420.0), ORDER),
    ("hot", "warn", changed(card__temp=91.0), ORDER, changed(card__temp=60.0), ORDER),
    ("driver-old", "bad-host", changed(gpu__cuda="12.1"), order(image="pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel"),
     changed(gpu__cuda="12.4"), order(image="pytorch/pytorch:2.1.0-cuda11.8-cudnn8-devel")),
    ("driver-old", "config", changed(gpu__cuda="11.4"), order(image="x:cu121", driver_failed_before=True),
     changed(gpu__cuda="11.4"), order(image="nvcr.io/nvidia/pytorch:24.05-py3", driver_failed_before=True)),
    ("compute", "config", changed(card__compute="12.0", gpu__cuda="12.8"), order(image="x:2.4.0-cuda12.1"),
     changed(card__compute="12.0", gpu__cuda="12.8"), order(image="x:2.8.0-cuda12.8")),
    ("compute", "config", changed(card__compute="7.0", gpu__cuda="13.0"), order(image="x:cuda13.0"),
     changed(card__compute="7.5", gpu__cuda="13.0"), order(image="x:cuda13.0")),
    ("nvidia-smi", "bad-host", changed(gpu__cards=[], gpu__error="Failed to initialize NVML: Unknown Error"), ORDER,
     changed(gpu__error="a warning beside two good reports"), ORDER),
    ("nvidia-smi", "bad-host", changed(gpu__hung=True, gpu__cards=[]), ORDER, changed(gpu__hung=False), ORDER),
    ("nvidia-smi", "warn", changed(gpu__smi=None, gpu__cards=[]), ORDER,
     changed(gpu__smi="/opt/bin/nvidia-smi"), ORDER),
    ("gpu-count", "config", changed(gpu__smi=None, gpu__cards=[], gpu__devices=[], gpu__visible="void"), ORDER,
     changed(gpu__visible="all"), ORDER),
    ("gpu-count", "bad-host", changed(gpu__smi=None, gpu__cards=[], gpu__devices=[]), ORDER,
     changed(gpu__smi=None, gpu__cards=[], gpu__devices=[]), order(gpu="", gpu_count=0)),
    ("device-nodes", "warn", changed(gpu__devices=["nvidia0", "nvidia1"]), ORDER, changed(gpu__devices=[]), ORDER),
    ("nvml", "warn", changed(gpu__nvml={"rc": 999, "count": 0}), ORDER, changed(gpu__nvml={"rc": None}), ORDER),
    ("xid", "bad-host", changed(kernel_faults=xid(79)), ORDER, changed(kernel_faults=xid(13)), ORDER),
    ("xid", "bad-host", changed(kernel_faults=xid(79, "0000:09:00"), gpu__cards=[CARD]), ORDER,
     changed(kernel_faults=xid(31)), ORDER),
    ("xid", "warn", changed(kernel_faults=xid(48, "0000:09:00")), ORDER, changed(kernel_faults=xid(63)), ORDER),
    ("xid", "bad-host", changed(kernel_faults=xid(79), uptime_s=600_000), ORDER,
     changed(kernel_faults=xid(79), uptime_s=700_000), ORDER),
    ("xid", "bad-host", changed(kernel_faults=off_bus("01")), ORDER, changed(kernel_faults=off_bus("99")), ORDER),
    ("xid", "warn", changed(kernel_faults=off_bus("99")), ORDER, changed(kernel_faults=off_bus("99")[:0]), ORDER),
    ("gpu-lost", "bad-host", changed(card__sick="GPU requires reset", card__memory_mib=None), ORDER,
     changed(card__memory_mib=None), ORDER),
    ("interconnect", "warn", changed(gpu__links={"PHB": 1}), ORDER, changed(gpu__links={"NV4": 1, "SYS": 2}), ORDER),
    ("interconnect", "bad-host", changed(gpu__links={"SYS": 1}), order(nvlink=True),
     changed(gpu__links=None), order(nvlink=True)),
    ("memory", "bad-host", changed(memory={"total": 16 * GIB}), order(memory=32 * GIB),
     changed(memory={"total": 31 * GIB}), order(memory=32 * GIB)),
    ("cpus", "bad-host", changed(cpus=4), order(cpus=8), changed(cpus=8), order(cpus=8)),
    ("cpus", "warn", changed(cpus=2), ORDER, changed(cpus=2), order(gpu="", gpu_count=0)),
    ("shm", "config", changed(shm={"total": 64 << 20}), order(shm=8 * GIB), changed(), order(shm=8 * GIB)),
    ("shm", "warn", changed(shm={"total": 64 << 20}), ORDER, changed(shm={}), ORDER),
    ("clock", "warn", changed(clock_skew_s=-3600.0), ORDER, changed(clock_skew_s=-4.0), ORDER),
    ("rsync", "config", changed(tools__rsync=None), order(own_image=True), changed(), order(own_image=True)),
    ("rsync", "bad-host", changed(tools__rsync=None), ORDER, changed(tools={}), ORDER),
    ("tmux", "warn", changed(tools__tmux=None), ORDER, changed(), ORDER),
    ("disk", "config", changed(disks__data__free=5 * GIB), order(data_bytes=20 * GIB),
     changed(disks__data__free=22 * GIB), order(data_bytes=20 * GIB)),
    ("disk", "bad-host", changed(disks__data__free=5 * GIB), order(data_bytes=20 * GIB, disk=50 * GIB),
     changed(disks__data__free=5 * GIB), ORDER),
    ("disk", "config", changed(disks__data__free=20 * GIB), order(data_bytes=10 * GIB, checkpoint_bytes=12 * GIB),
     changed(disks__data__free=24 * GIB), order(data_bytes=10 * GIB, checkpoint_bytes=12 * GIB)),
    ("disk-out", "bad-host", changed(disks__out__free=1 << 20), ORDER, changed(disks__out={}), ORDER),
    ("inodes", "bad-host", changed(disks__data__inodes_free=900), ORDER,
     changed(disks__data__inodes_free=0, disks__data__inodes=0), ORDER),
    ("root-out", "warn", changed(), order(data_disk=True), changed(disks__out__root=False, disks__ckpt__root=False),
     order(data_disk=True)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "klass", "bad", "asked", "good", "fine"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES]
)
def test_each_finding_and_its_look_alike(
    name: str, klass: str, bad: dict[str, Any], asked: Order, good: dict[str, Any], fine: Order
) -> None:
    found = [finding for finding in judge(bad, asked) if finding.name == name]
    assert [finding.klass for finding in found[:1]] == [klass]
    assert found[0].measured, "a finding says what was measured"
    assert [finding for finding in judge(good, fine) if (finding.name, finding.klass) == (name, klass)] == []


def test_every_name_of_a_finding_is_tried_here() -> None:
    import orchestrator.preflight as module

    source = Path(module.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r'Finding\(\s*f?"([a-z-]+)[{"]', source))
    tried = {case[0] for case in CASES}
    assert {name for name in names if not any(t == name or t.startswith(name) for t in tried)} == set()
    assert len(names) >= 20


def test_a_healthy_machine_and_an_unknown_one_have_no_findings() -> None:
    assert judge(HEALTHY, ORDER) == ()
    assert judge({}, ORDER) == ()
    assert judge({"gpu": {}}, ORDER) == ()


def test_the_worst_comes_first_and_says_what_to_do() -> None:
    facts = changed(tools__tmux=None, card__mig="Enabled", shm={"total": 64 << 20})
    found = judge(facts, order(shm=8 * GIB))
    assert [finding.klass for finding in found] == ["config", "bad-host", "bad-host", "warn"]
    assert found[0].words == "shm: 64 MiB, wanted 8 GiB"
    assert "num_workers: 0" in found[0].next


#: What the driver calls cards, the MiB that it shows, and our class: none of them is another card.
REAL = (
    ("NVIDIA GeForce RTX 4090", 24564, "RTX-4090"), ("NVIDIA GeForce RTX 4090", 49140, "RTX-4090-48GB"),
    ("NVIDIA GeForce RTX 4090 D", 24564, "RTX-4090D"), ("NVIDIA GeForce RTX 5090", 32607, "RTX-5090"),
    ("NVIDIA A100-SXM4-80GB", 81920, "A100-80GB-SXM"), ("NVIDIA A100 80GB PCIe", 81920, "A100-80GB-PCIe"),
    ("NVIDIA A100-PCIE-40GB", 40960, "A100-40GB"), ("NVIDIA H100 80GB HBM3", 81559, "H100-SXM"),
    ("NVIDIA H100 PCIe", 81559, "H100-PCIe"), ("NVIDIA H100 NVL", 95830, "H100-NVL"),
    ("NVIDIA H200", 143771, "H200-SXM"), ("NVIDIA B200", 183359, "B200"), ("NVIDIA GH200 480GB", 97871, "GH200"),
    ("Tesla V100-SXM2-16GB", 16384, "V100-16GB"), ("Tesla T4", 15360, "T4"), ("NVIDIA A10G", 23028, "A10G"),
    ("NVIDIA L40S", 46068, "L40S"), ("NVIDIA RTX A6000", 49140, "RTX-A6000"),
    ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX-6000-Ada"),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, "RTX-PRO-6000"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "mib", "ordered"), REAL, ids=[f"{row[0]}-{row[1]}" for row in REAL])
def test_the_card_that_was_rented_by_its_drivers_name(name: str, mib: int, ordered: str) -> None:
    vram = next(gpu.vram_gb for gpu in GPU_CLASSES if gpu.name == ordered)
    facts = {"gpu": {"smi": "/x", "cards": [{"name": name, "memory_mib": float(mib)}]}}
    assert judge(facts, Order(gpu=ordered, gpu_count=1, vram_gb=vram)) == ()


@pytest.mark.parametrize("gpu", [gpu for gpu in GPU_CLASSES if gpu.capability], ids=lambda gpu: gpu.name)
def test_a_healthy_stand_in_of_every_class(gpu: GpuClass) -> None:
    world = json.loads(nvidia_smi.describe("m", gpu.name, gpu.vram_gb, 1))
    facts = {"gpu": {"smi": "/x", **agent_cards.facts_from_xml(nvidia_smi.xml(world, world["gpus"]))}}
    assert judge(facts, Order(gpu=gpu.name, gpu_count=1, vram_gb=gpu.vram_gb, compute=gpu.compute)) == ()


JUNK = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([
        "gpu", "cards", "memory", "total", "free", "disks", "data", "name", "links", "nvml", "rc", "throttle",
        "processes", "tools", "rsync", "shm", "devices", "kernel_faults", "cuda", "error", "used_mib", "memory_mib",
    ]), inner, max_size=6),
    max_leaves=25,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(HEALTHY)), JUNK, max_size=8))
def test_no_junk_facts_break_the_judge(facts: dict[str, Any]) -> None:
    assert all(isinstance(finding, Finding) for finding in judge(facts, order(image="x:cu121", data_bytes=5)))


# --- what the tools print ---------------------------------------------------------------------------------------------


def stand_in(kind: str = "") -> dict[str, Any]:
    """The facts that the agent would make of the stand-in cards with one sickness."""
    world = json.loads(nvidia_smi.describe("m1", "RTX-4090", 24, 2))
    if kind:
        sick.KINDS[kind](world)
    return {
        "gpu": {
            "smi": "/x",
            "cards": agent_cards.merged_cards(
                [], agent_cards.facts_from_xml(nvidia_smi.xml(world, world["gpus"]))["cards"]
            ),
            **{
                k: v
                for k, v in agent_cards.facts_from_xml(nvidia_smi.xml(world, world["gpus"])).items()
                if k != "cards"
            },
            **({"error": world["fail"], "cards": []} if world["fail"] else {}),
            **({"hung": True, "cards": []} if world["hang_s"] else {}),
        },
        "kernel_faults": agent_cards.kernel_faults(sick.DMESG) if kind == "xid" else [],
    }


@pytest.mark.parametrize("kind", sorted(sick.KINDS))
def test_every_sickness_of_the_stand_in_is_found(kind: str) -> None:
    asked = order(image="pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime")
    found = judge(stand_in(kind), asked)
    assert found, f"{kind} is not found"
    assert found[0].klass == ("warn" if kind == "power-capped" else "bad-host")
    assert judge(stand_in(), asked) == ()


def test_the_report_of_a_real_driver() -> None:
    text = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>550.54.15</driver_version><cuda_version>12.4</cuda_version><attached_gpus>1</attached_gpus>
  <gpu id="00000000:01:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name><uuid>GPU-1</uuid>
    <mig_mode><current_mig>Disabled</current_mig></mig_mode>
    <gpu_virtualization_mode><virtualization_mode>Pass-Through</virtualization_mode></gpu_virtualization_mode>
    <pci><pci_bus_id>00000000:01:00.0</pci_bus_id></pci>
    <clocks_event_reasons>
      <clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
      <clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>
    </clocks_event_reasons>
    <fb_memory_usage><total>81559 MiB</total><reserved>551 MiB</reserved><used>0 MiB</used></fb_memory_usage>
    <ecc_errors><volatile><sram_correctable>4</sram_correctable><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
      <dram_correctable>N/A</dram_correctable><dram_uncorrectable>1</dram_uncorrectable></volatile>
      <aggregate><dram_uncorrectable>7</dram_uncorrectable></aggregate></ecc_errors>
    <remapped_rows><remapped_row_pending>No</remapped_row_pending></remapped_rows>
    <gpu_power_readings><power_draw>70.10 W</power_draw><current_power_limit>700.00 W</current_power_limit>
      <default_power_limit>700.00 W</default_power_limit></gpu_power_readings>
    <processes><process_info><pid>9</pid><type>G</type><process_name>Xorg</process_name></process_info></processes>
  </gpu>
</nvidia_smi_log>"""
    found = agent_cards.facts_from_xml(text)
    assert (found["driver"], found["cuda"]) == ("550.54.15", "12.4")
    card = found["cards"][0]
    assert card["throttle"] == ["gpu_idle"]
    assert (card["memory_mib"], card["ecc_uncorrected"], card["power_limit_w"]) == (81559.0, 1.0, 700.0)
    assert (card["processes"], card["desktop"]) == ([], True)


def test_the_topology_of_four_cards() -> None:
    text = (
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tCPU Affinity\x1b[0m\nGPU0\t X \tNV18\tPHB\t0-23\n"
        "GPU1\tNV18\t X \tSYS\t0-23\nGPU2\tPHB\tSYS\t X \t24-47\n\nLegend:\n  X    = Self\n"
    )
    assert agent_cards.links_from_topology(text) == {"NV18": 1, "PHB": 1, "SYS": 1}
    assert agent_cards.links_from_topology("No devices were found") is None


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300), st.integers(0, 60), st.binary(max_size=40))
def test_no_junk_output_breaks_the_parsers(text: str, place: int, noise: bytes) -> None:
    world = json.loads(nvidia_smi.describe("m1", "RTX-4090", 24, 2))
    xml = nvidia_smi.xml(world, world["gpus"])
    cut = xml[: place * 20] + noise.decode("utf-8", "replace") + xml[place * 20 :]
    parsers: list[Callable[[str], object]] = [
        agent_cards.facts_from_xml, agent_cards.cards_from_query, agent_cards.links_from_topology,
        agent_cards.kernel_faults,
    ]  # fmt: skip
    for parse in parsers:
        for piece in (text, cut, "<nvidia_smi_log>" + text, "GPU0\t" + text, ",".join([text[:9]] * 8)):
            parse(piece)
    found: Mapping[str, Any] = agent_cards.facts_from_xml(cut)
    assert all(isinstance(f, Finding) for f in judge({"gpu": {"smi": "/x", **found}}, ORDER))


# --- CUDA of images and cards -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime", (12, 1)),
        ("nvidia/cuda:12.4.1-devel-ubuntu22.04", (12, 4)),
        ("runpod/pytorch:2.1.0-py3.10-cu118-ubuntu22.04", (11, 8)),
        ("vastai/pytorch:cuda-12.8.1-auto", (12, 8)),
        ("someone/train:cu121", (12, 1)),
        ("nvcr.io/nvidia/pytorch:24.05-py3", None),
        ("ubuntu:22.04", None),
        ("acme/cu-model:2", None),
        (None, None),
    ],
)
def test_the_cuda_that_an_image_names(image: str | None, expected: tuple[int, int] | None) -> None:
    assert cuda.cuda_of_image(image) == expected


@pytest.mark.parametrize(
    ("image", "compute", "fits"),
    [
        ((12, 1), (12, 0), False), ((12, 8), (12, 0), True), ((11, 7), (9, 0), False), ((11, 8), (8, 9), True),
        ((10, 2), (8, 0), False), ((13, 0), (7, 0), False), ((13, 0), (7, 5), True), (None, (12, 0), True),
        ((12, 1), None, True), ((12, 1), (99, 0), True),
    ],
)  # fmt: skip
def test_an_image_on_a_card(image: tuple[int, int] | None, compute: tuple[int, int] | None, fits: bool) -> None:
    assert (cuda.misfit(image, compute) == "") is fits


@pytest.mark.parametrize("words", ["GPU requires reset", "GPU is lost"])
def test_what_the_driver_says_of_a_card_in_place_of_its_values(words: str) -> None:
    rows = (
        "0, NVIDIA A100-SXM4-80GB, GPU-1, 81920, 4, 8.0, 550.54.15, 00000000:07:00.0\n"
        f"1, NVIDIA A100-SXM4-80GB, GPU-2, [{words}], [{words}], 8.0, 550.54.15, 00000000:0A:00.0\n"
        "WARNING: infoROM is corrupted at gpu 0000:0A:00.0\n"
    )
    assert [card.get("sick") for card in agent_cards.cards_from_query(rows)] == [None, words]
    xml = f"<nvidia_smi_log><gpu><fb_memory_usage><total>{words}</total></fb_memory_usage></gpu></nvidia_smi_log>"
    assert agent_cards.facts_from_xml(xml)["cards"][0]["sick"] == words
