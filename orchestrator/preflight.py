"""What the first look at a machine means: facts of the machine against the order, pure.

Rules
- A fact that is not there is unknown, and unknown is never a finding: junk from a tool must not cost a good machine.
- `bad-host`: this machine does not hold what was rented; another one will. `config`: no machine will do, so the job
  fails at once. `warn`: it can work, and somebody should know.
- Every finding has the figure measured, the figure wanted and the next step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jobspecs import cuda
from jobspecs.gpus import MEMORY_TOLERANCE, identify

GIB = 1024**3
FOREIGN_MIB = 500.0  # an idle card of ours holds less; above it somebody else computes there
FOREIGN_SHARE = 0.01  # the driver's own part grows with the card: 0.6 GB of a B200
DESKTOP_SHARE = 0.25  # a screen of one's own machine; it takes memory and is nobody else's work
DISK_MARGIN = 1 * GIB  # for logs, caches and the packages of `setup`
DISK_MIN = GIB // 4  # anything less is full
INODES_MIN = 20_000  # a Python environment with torch has 15,000 files
CPUS_PER_GPU = 4  # below it data loaders starve the card
SHM_MIN = 1 * GIB  # docker gives 64 MiB, of which two DataLoader workers die
SKEW_WARN_S = 30.0  # tokens and signatures of object stores fail at some minutes
POWER_SHARE = 0.8  # of the card's own limit: below it the card is slower than what was paid for
HOT_C = 88.0  # of a card that does nothing yet

#: Xid numbers that mean the hardware or its driver; 13, 31, 43, 45 are a program's own, 63 is a repair that worked.
XID_BAD = frozenset({46, 48, 61, 62, 64, 74, 79, 92, 94, 95, 119, 120, 121, 140, 143})
XID_OLD_S = 7 * 86_400.0  # a card that has worked for a week since was reset, or another one is in its place
THROTTLE_BAD = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
THROTTLE_WARN = frozenset({"sw_thermal_slowdown"})

Class = Literal["bad-host", "config", "warn"]


@dataclass(frozen=True)
class Finding:
    """One thing that is not as ordered."""

    name: str
    klass: Class
    measured: str
    wanted: str
    next: str = ""

    @property
    def words(self) -> str:
        """`gpu-count: 1, wanted 2`."""
        wanted = f", wanted {self.wanted}" if self.wanted else ""
        return f"{self.name}: {self.measured}{wanted}"


@dataclass(frozen=True)
class Order:
    """What the machine was rented for. Sizes in bytes; 0 and empty: nothing asked."""

    gpu: str = ""  # canonical class of the offer
    gpu_count: int = 0
    vram_gb: int = 0
    accepted: frozenset[str] = frozenset()  # further classes that the spec takes, in that number
    compute: str = ""  # of the class, where the table knows it
    nvlink: bool = False  # the class always has it (SXM boards)
    linkable: bool = True  # the class can have it (a bridge)
    image: str = ""
    own_image: bool = False  # the spec names the image
    data_bytes: int = 0
    data_files: int = 0
    checkpoint_bytes: int = 0  # of all that are kept, where a size is known
    disk: int = 0  # what the spec or the offer says the disk is
    memory: int = 0
    cpus: int = 0
    shm: int = 0
    data_disk: bool = False  # the provider has a data disk apart from the root
    driver_failed_before: bool = False  # an earlier machine of this job had too old a driver as well


def judge(facts: Mapping[str, Any], order: Order) -> tuple[Finding, ...]:
    """All findings, the worst first."""
    found = [*_machine(facts, order)]
    if order.gpu_count:
        found += _gpu(facts, order)
    rank = {"config": 0, "bad-host": 1, "warn": 2}
    return tuple(sorted(found, key=lambda finding: rank[finding.klass]))


# --- values of facts, which a stranger wrote --------------------------------------------------------------------------


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _num(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e18 else None


def _text(value: Any) -> str:
    return value[:200] if isinstance(value, str) else ""


def _gb(size: float) -> str:
    """GiB, or MiB below one of them."""
    return f"{size / GIB:.3g} GiB" if size >= GIB else f"{size / 1024**2:.3g} MiB"


# --- everything but the cards -----------------------------------------------------------------------------------------


def _machine(facts: Mapping[str, Any], order: Order) -> Iterator[Finding]:
    yield from _disks(facts, order)
    total, cpus = _num(_map(facts.get("memory")).get("total")), _num(facts.get("cpus"))
    if total is not None and order.memory and total < order.memory * (1 - MEMORY_TOLERANCE):
        yield Finding("memory", "bad-host", _gb(total), _gb(order.memory))
    if cpus is not None and order.cpus and cpus < order.cpus:
        yield Finding("cpus", "bad-host", f"{cpus:.0f} cores", f"{order.cpus}")
    elif cpus is not None and order.gpu_count and cpus < CPUS_PER_GPU * order.gpu_count:
        words = "fewer DataLoader workers; or ask for more: cpus"
        yield Finding("cpus", "warn", f"{cpus:.0f} cores", f"{CPUS_PER_GPU} for each GPU", words)
    shm = _num(_map(facts.get("shm")).get("total"))
    if shm is not None and order.shm and shm < order.shm * (1 - MEMORY_TOLERANCE):
        words = "this provider gives no more: leave shm_size out and use num_workers: 0, or rent elsewhere"
        yield Finding("shm", "config", _gb(shm), _gb(order.shm), words)
    elif shm is not None and not order.shm and order.gpu_count and shm < SHM_MIN:
        words = "DataLoader workers and NCCL may die of it: num_workers: 0, or ask for shm_size"
        yield Finding("shm", "warn", _gb(shm), _gb(SHM_MIN), words)
    skew = _num(facts.get("clock_skew_s"))
    if skew is not None and abs(skew) > SKEW_WARN_S:
        words = "logins and object stores may refuse; gpujob's own ends do not depend on it"
        yield Finding("clock", "warn", f"{skew:+.0f} s", f"within {SKEW_WARN_S:.0f} s", words)
    tools = facts.get("tools")
    if isinstance(tools, Mapping):
        if "rsync" in tools and not tools["rsync"]:
            klass: Class = "config" if order.own_image else "bad-host"
            yield Finding("rsync", klass, "not installed", "rsync", "take an image that has rsync")
        if "tmux" in tools and not tools["tmux"]:
            yield Finding("tmux", "warn", "not installed", "tmux", "`gpujob attach` has nothing to show")


def _disks(facts: Mapping[str, Any], order: Order) -> Iterator[Finding]:
    disks = {name: _map(disk) for name, disk in _map(facts.get("disks")).items()}
    room_wanted = order.data_bytes + order.checkpoint_bytes
    needed = room_wanted + DISK_MARGIN if room_wanted else 0
    data = disks.get("data", {})
    free, inodes = _num(data.get("free")), _num(data.get("inodes_free"))
    if free is not None and needed and free < needed:
        promised = order.disk >= needed
        words = "" if promised else f"ask for it: disk: {{data: {int(needed / GIB * 1.2) + 1}GB}}"
        yield Finding("disk", "bad-host" if promised else "config", f"{_gb(free)} free", _gb(needed), words)
    wanted_inodes = order.data_files + INODES_MIN
    if inodes is not None and _num(data.get("inodes")) and inodes < wanted_inodes:
        yield Finding("inodes", "bad-host", f"{inodes:.0f} free", f"{wanted_inodes}")
    for name, disk in sorted(disks.items()):
        room = _num(disk.get("free"))
        if room is not None and room < DISK_MIN and not (name == "data" and needed):
            yield Finding(f"disk-{name}", "bad-host", f"{_gb(room)} free", _gb(DISK_MIN))
        elif order.data_disk and disk.get("root") is True:
            words = "a reset of the system disk loses it: use paths below $GPUJOB_DATA, $GPUJOB_CKPT, $GPUJOB_OUT"
            yield Finding(f"root-{name}", "warn", "on the system disk", "the data disk", words)


# --- the cards --------------------------------------------------------------------------------------------------------


def _gpu(facts: Mapping[str, Any], order: Order) -> Iterator[Finding]:
    gpu = _map(facts.get("gpu"))
    cards = [_map(card) for card in _list(gpu.get("cards")) if isinstance(card, Mapping)]
    broken = _tools(gpu, cards, order)
    if broken is not None:
        yield broken
        return
    if not gpu.get("smi") and not cards:
        return  # nothing was seen that could be judged
    if len(cards) < order.gpu_count:
        yield Finding("gpu-count", "bad-host", f"{len(cards)}", f"{order.gpu_count}")
    elif len(cards) > order.gpu_count:
        words = "set CUDA_VISIBLE_DEVICES in env if the others are not yours"
        yield Finding("gpu-count", "warn", f"{len(cards)}", f"{order.gpu_count}", words)
    own = _num(facts.get("own_runs")) or 0
    for place, card in enumerate(cards):
        yield from _card(place, card, order, alone=own == 0)
    yield from _driver(gpu, cards, order)
    yield from _kernel(facts, cards, order)
    yield from _links(gpu, order)


def _tools(gpu: Mapping[str, Any], cards: list[Mapping[str, Any]], order: Order) -> Finding | None:
    """The driver or its tool does not work at all."""
    if gpu.get("hung") is True:
        return Finding("nvidia-smi", "bad-host", "does not answer", "an answer within seconds")
    error = _text(gpu.get("error"))
    if error and not cards:
        if "no devices" in error.lower():
            return Finding("gpu-count", "bad-host", "0", f"{order.gpu_count}")
        return Finding("nvidia-smi", "bad-host", error, "a driver that answers")
    devices = gpu.get("devices")
    if gpu.get("smi") is None and "smi" in gpu and isinstance(devices, list) and not cards:
        if any(re.fullmatch(r"nvidia\d+", _text(name)) for name in devices):
            words = "the cards are there, but the image has no nvidia-smi: they are not checked"
            return Finding("nvidia-smi", "warn", "not installed", "nvidia-smi", words)
        if _text(gpu.get("visible")) in ("void", "none"):
            words = "take NVIDIA_VISIBLE_DEVICES out of the image: it hides all cards"
            return Finding("gpu-count", "config", "0", f"{order.gpu_count}", words)
        words = "no card reached the machine: its container was started without GPUs"
        return Finding("gpu-count", "bad-host", "0", f"{order.gpu_count}", words)
    return None


def _card(place: int, card: Mapping[str, Any], order: Order, *, alone: bool) -> Iterator[Finding]:
    name = _text(card.get("name")).removesuffix(" (stand-in)")
    memory, used = _num(card.get("memory_mib")), _num(card.get("used_mib"))
    where = f"GPU {place}"
    known = identify(name, memory / 1024 if memory else None) if name else None
    if known is None and re.search(r"\bMIG\b|\bGRID\b|\bvGPU\b", name, re.IGNORECASE):
        yield Finding("gpu-slice", "bad-host", f"{where}: {name}", f"a whole {order.gpu}")
    elif known is not None and known.name != order.gpu and not _as_good(known.name, order):
        klass: Class = "warn" if known.name in order.accepted else "bad-host"
        yield Finding("gpu-name", klass, f"{where}: {name}", order.gpu)
    elif memory is not None and order.vram_gb and memory / 1024 < order.vram_gb * (1 - MEMORY_TOLERANCE):
        yield Finding("gpu-memory", "bad-host", f"{where}: {memory / 1024:.1f} GiB", f"{order.vram_gb} GiB")
    if _text(card.get("mig")) == "Enabled":
        yield Finding("mig", "bad-host", f"{where}: MIG is on", f"a whole {order.gpu}")
    if _text(card.get("virtualization")).upper() in ("VGPU", "HOST VGPU", "HOST VSGA"):
        yield Finding("vgpu", "bad-host", f"{where}: {_text(card.get('virtualization'))}", f"a whole {order.gpu}")
    if alone and used is not None and used > max(FOREIGN_MIB, FOREIGN_SHARE * (memory or 0.0)):
        others = ", ".join(_text(_map(p).get("name")) for p in _list(card.get("processes"))[:2])
        whose = f" ({others})" if others else ""
        mild = card.get("desktop") is True and used < DESKTOP_SHARE * (memory or 0.0)
        yield Finding(
            "memory-used",
            "warn" if mild else "bad-host",
            f"{where}: {used:.0f} MiB{whose}",
            f"below {FOREIGN_MIB:.0f} MiB",
        )
    yield from _health(where, card)


def _as_good(name: str, order: Order) -> bool:
    """A better form of the same card: an SXM board where PCIe was rented."""
    bare = re.compile(r"-(PCIe|SXM\d?|NVL)$")
    return bare.sub("", name) == bare.sub("", order.gpu) and not order.gpu.endswith("SXM")


def _health(where: str, card: Mapping[str, Any]) -> Iterator[Finding]:
    if card.get("sick"):
        yield Finding("gpu-lost", "bad-host", f"{where}: {_text(card['sick'])}", "a card that answers")
    errors = _num(card.get("ecc_uncorrected"))
    if errors:
        yield Finding("ecc", "bad-host", f"{where}: {errors:.0f} uncorrected errors", "0")
    for key, words in (("remap_failure", "row remapping failed"), ("remap_pending", "rows wait for a reset"),
                       ("retired_pending", "pages wait for a reset")):  # fmt: skip
        if _text(card.get(key)) == "Yes":
            yield Finding("ecc", "bad-host", f"{where}: {words}", "none")
    reasons = {_text(reason) for reason in _list(card.get("throttle"))}
    slow = sorted(reasons & THROTTLE_BAD)
    if slow:
        yield Finding("throttled", "bad-host", f"{where}: {', '.join(slow)}", "full clocks before any work")
    elif reasons & THROTTLE_WARN:
        yield Finding("throttled", "warn", f"{where}: {', '.join(sorted(reasons & THROTTLE_WARN))}", "full clocks")
    limit, usual = _num(card.get("power_limit_w")), _num(card.get("power_default_w"))
    if limit is not None and usual and limit < POWER_SHARE * usual:
        yield Finding(
            "power-limit", "warn", f"{where}: {limit:.0f} W", f"{usual:.0f} W", "the card is slower than others"
        )
    temperature = _num(card.get("temp"))
    if temperature is not None and temperature >= HOT_C and not slow:
        yield Finding("hot", "warn", f"{where}: {temperature:.0f} C before any work", f"below {HOT_C:.0f} C")


def _driver(gpu: Mapping[str, Any], cards: list[Mapping[str, Any]], order: Order) -> Iterator[Finding]:
    image, most = cuda.cuda_of_image(order.image), cuda.version(_text(gpu.get("cuda")))
    if image is not None and most is not None and most < image:
        driver = _text(gpu.get("driver")) or "the driver"
        words = f"take an image of CUDA {cuda.words(most)} or older; a driver cannot be changed on a rental"
        klass: Class = "config" if order.driver_failed_before else "bad-host"
        measured = f"driver {driver} serves CUDA {cuda.words(most)}"
        yield Finding("driver-old", klass, measured, f"CUDA {cuda.words(image)} of the image", words)
    seen = next((c for c in (cuda.version(_text(card.get("compute")) or None) for card in cards) if c), None)
    wrong = cuda.misfit(image, seen or cuda.version(order.compute or None))
    if wrong:
        yield Finding("compute", "config", wrong, f"an image for {order.gpu}", "take another image, or another card")
    devices = gpu.get("devices")
    nodes = [n for n in _list(devices) if re.fullmatch(r"nvidia\d+", _text(n))]
    if nodes and "nvidia-uvm" not in _list(devices):
        yield Finding("device-nodes", "warn", "/dev/nvidia-uvm is missing", "it", "CUDA may fail to start")
    nvml = gpu.get("nvml")
    if isinstance(nvml, Mapping) and _num(nvml.get("rc")) not in (None, 0.0):
        words = "tools that read the cards from Python see none"
        yield Finding("nvml", "warn", f"NVML answers error {nvml['rc']:.0f}", "0", words)


def _kernel(facts: Mapping[str, Any], cards: list[Mapping[str, Any]], order: Order) -> Iterator[Finding]:
    """Hardware faults in the kernel's log. On a shared host they may be a neighbour's card, if all of ours are here."""
    ours = {_bus(_text(card.get("bus"))) for card in cards} - {""}
    for line in map(_text, _list(facts.get("kernel_faults"))):
        xid = re.search(r"Xid \(PCI:([0-9a-fA-F:.]+)\): (\d{1,4})", line)
        gone = re.search(r"NVRM: GPU (?:at )?(?:PCI:)?([0-9a-fA-F:.]+): GPU has fallen off the bus", line)
        fault = xid if xid is not None and int(xid[2]) in XID_BAD else gone
        if fault is None or _old(line, _num(facts.get("uptime_s"))):
            continue
        whole = len(cards) >= order.gpu_count and bool(ours)
        mine = not whole or _bus(fault[1]) in ours
        words = "" if mine else "of a card that is not ours"
        what = f"Xid {fault[2]}" if fault is xid else "a card fell off the bus"
        yield Finding("xid", "bad-host" if mine else "warn", f"{what} in the kernel's log", "none", words)
        return


def _old(line: str, uptime_s: float | None) -> bool:
    at = re.match(r"\s*\[\s*(\d{1,12}\.\d+)\]", line)
    return at is not None and uptime_s is not None and uptime_s - float(at[1]) > XID_OLD_S


def _bus(text: str) -> str:
    """`00000000:01:00.0`, `0000:01:00`: the bus and device that both name."""
    found = re.search(r"([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.\d)?$", text)
    return f"{found[1]}:{found[2]}".lower() if found else ""


def _links(gpu: Mapping[str, Any], order: Order) -> Iterator[Finding]:
    links = gpu.get("links")
    if order.gpu_count < 2 or not isinstance(links, Mapping) or not links:
        return
    if not any(str(kind).startswith("NV") for kind in links):
        kinds = ", ".join(sorted(map(str, links)))
        klass: Class = "bad-host" if order.nvlink else "warn"
        words = "" if order.nvlink else "all-reduce is slow: fewer, larger steps (gradient accumulation)"
        measured = f"PCIe only ({kinds})" + ("" if order.linkable else f", as {order.gpu} has no other")
        yield Finding("interconnect", klass, measured, "NVLink" if order.linkable else "", words)
