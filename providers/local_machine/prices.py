"""What a local machine would cost: a list price for every GPU class, so that plans and budgets work.

The figures are round list prices of the kind seen at GPU clouds in 2026; nobody is billed by them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from providers.base import Ask, GpuRow, GpuWish, Offer

CURRENCY = "USD"
SPOT_FRACTION = Decimal("0.35")
CPU_HOURLY = Decimal("0.10")
PER_VRAM_GB = Decimal("0.02")  # a class without a price of its own; between a 24 GB and an 80 GB card's
CENT = Decimal("0.0001")
MAX_GPUS = 8

# USD per GPU and hour. A class is looked up by its name, then by the longest prefix that ends at a dash.
LIST_PRICES: Mapping[str, Decimal] = {
    name: Decimal(price)
    for name, price in {
        "T4": "0.20",
        "V100": "0.35",
        "L4": "0.45",
        "A10": "0.50",
        "A10G": "0.60",
        "A30": "0.45",
        "A40": "0.50",
        "RTX-3060": "0.10",
        "RTX-3090": "0.30",
        "RTX-4080": "0.35",
        "RTX-4090": "0.60",
        "RTX-5090": "0.90",
        "RTX-A6000": "0.60",
        "RTX-6000-Ada": "0.80",
        "L40": "0.90",
        "L40S": "1.10",
        "A100": "1.60",
        "A100-40GB": "1.30",
        "H100": "2.80",
        "GH200": "2.00",
        "H200": "3.60",
        "B200": "5.50",
        "B300": "7.00",
        "MI300X": "2.50",
    }.items()
}


def per_gpu(row: GpuRow | GpuWish) -> Decimal:
    """List price of one card of this class, in USD per hour."""
    parts = row.name.split("-")
    for length in range(len(parts), 0, -1):
        price = LIST_PRICES.get("-".join(parts[:length]))
        if price is not None:
            return price
    return (PER_VRAM_GB * row.vram_gb).quantize(CENT)


@dataclass(frozen=True)
class Host:
    """What this host really has; sizes in bytes. Only the GPU is ever imitated."""

    cpus: int
    memory: int
    disk: int
    gpus: tuple[str, ...] = ()  # names as the host's own nvidia-smi gives them


def host(home: Path) -> Host:
    """Read the host's own figures; `disk` is what is free where the machines will live."""
    place = home
    while not place.exists():
        place = place.parent
    space = os.statvfs(place)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Host(len(os.sched_getaffinity(0)), memory, space.f_bavail * space.f_frsize, _host_gpus())


def _host_gpus() -> tuple[str, ...]:
    """Models from the driver's own files: no process to start on every `plan`."""
    names = []
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Model:"):
                names.append(line.split(":", 1)[1].strip())
    return tuple(names)


def has(there: Host, name: str, count: int) -> bool:
    """True when the host has `count` cards whose model contains every word of the class name."""
    words = set(name.lower().split("-")) - {"pcie", "sxm", "nvl"}
    fitting = [model for model in there.gpus if words <= set(model.lower().replace("-", " ").split())]
    return len(fitting) >= count


def key(gpu: str, count: int, spot: bool) -> str:
    """The offer's name at this provider, e.g. `RTX-4090:2:spot` or `cpu:on-demand`."""
    return f"{f'{gpu}:{count}' if gpu else 'cpu'}:{'spot' if spot else 'on-demand'}"


def wish_of(offer_key: str, table: tuple[GpuRow, ...]) -> tuple[GpuWish | None, bool] | None:
    """(wish or None for a CPU machine, spot) behind a key; None for a key that was never offered."""
    kind, _, market = offer_key.rpartition(":")
    if market not in ("spot", "on-demand"):
        return None
    if kind == "cpu":
        return None, market == "spot"
    name, _, count = kind.rpartition(":")
    row = next((row for row in table if row.name == name), None)
    if row is None or not count.isdecimal() or not 1 <= int(count) <= MAX_GPUS:
        return None
    return GpuWish(row.name, row.vram_gb, int(count)), market == "spot"


def hourly(wish: GpuWish | None, spot: bool) -> Decimal:
    """Price of the whole machine per hour."""
    listed = per_gpu(wish) * wish.count if wish else CPU_HOURLY
    return (listed * SPOT_FRACTION if spot else listed).quantize(CENT)


def offers(
    ask: Ask, table: tuple[GpuRow, ...], regions: tuple[str, ...], there: Host, *, provider: str, account: str
) -> Iterator[Offer]:
    """Every machine that satisfies `ask`; a wish for a class that is not in the table finds nothing."""
    if ask.cpus_min > there.cpus or ask.memory_min > there.memory or ask.disk_min > there.disk:
        return
    known = {row.name: row for row in table}
    wishes: list[GpuWish | None] = [None] if not ask.gpus else []
    for wish in ask.gpus:
        if wish.name in known and 1 <= wish.count <= MAX_GPUS:
            wishes.append(GpuWish(wish.name, known[wish.name].vram_gb, wish.count))
    for region in regions:
        if ask.regions and region not in ask.regions:
            continue
        for wanted in dict.fromkeys(wishes):
            for spot in (False, True) if ask.spot is None else (ask.spot,):
                yield Offer(
                    provider=provider,
                    account=account,
                    region=region,
                    key=key(wanted.name if wanted else "", wanted.count if wanted else 0, spot),
                    spot=spot,
                    hourly=hourly(wanted, spot),
                    currency=CURRENCY,
                    gpu=wanted.name if wanted else "",
                    gpu_count=wanted.count if wanted else 0,
                    vram_gb=wanted.vram_gb if wanted else 0,
                    cpus=there.cpus,
                    memory=there.memory,
                    disk=there.disk,
                    pool=f"{region}/{wanted.name if wanted else 'cpu'}/{'spot' if spot else 'on-demand'}",
                    stand_in=wanted is not None and not has(there, wanted.name, wanted.count),
                )
