"""A stand-in for `nvidia-smi` on machines whose GPU is an imitation; copied into each and run there alone.

It answers what training scripts and health checks ask: the plain table, `-L`, `-q -x`, `topo -m`, `--query-gpu=...` and
`--query-compute-apps=...` with `--format=csv[,noheader][,nounits]`, `-i`, and `--loop`. What it says comes from
`gpus.json` in the folder above it, so a test can break a card by writing that file (or `sick` writes it):

    {"driver": "550.54", "cuda": "12.4", "fail": "", "hang_s": 0, "gpus": [{"name": ..., ...}]}

Rules
- `fail` is printed and ends it with exit code 9, as a lost driver does; `hang_s` sleeps first.
- Any field name may be given per card. `utilization.gpu` null: 95 while a process of the machine runs, or 0.
- An unknown field is refused with exit code 2, as the real one does.
- `throttle` of a card names its active reasons, `processes` lists {pid, name, used}, `link` joins all pairs (PHB).
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

UNITS = {"memory": "MiB", "utilization": "%", "power": "W", "clocks": "MHz"}
NOT_SUPPORTED = "[N/A]"
# Fields that the real program knows and the imitation has nothing to say about.
EMPTY_FIELDS = (
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "ecc.errors.corrected.volatile.total",
    "retired_pages.pending",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "clocks_throttle_reasons.active",
    "clocks_event_reasons.active",
    "fan.speed",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "mig.mode.current",
    "temperature.memory",
)


def describe(machine: str, gpu: str, vram_gb: int, count: int) -> str:
    """The text of a healthy `gpus.json`: `count` cards of canonical class `gpu`."""
    cards = [
        {
            "index": index,
            "name": f"{gpu} (stand-in)",
            "uuid": f"GPU-{machine}-{index}",
            "pci.bus_id": f"00000000:{index + 1:02X}:00.0",
            "memory.total": vram_gb * 1024,
            "memory.used": 3,
            "utilization.gpu": None,
            "utilization.memory": 0,
            "temperature.gpu": 35,
            "power.draw": 40.0,
            "power.limit": 300.0,
            "clocks.sm": 1410,
            "clocks.mem": 1215,
            "pstate": "P0",
            "compute_cap": NOT_SUPPORTED,
            "persistence_mode": "Enabled",
        }
        for index in range(count)
    ]
    return json.dumps({"driver": "550.54.15", "cuda": "12.4", "fail": "", "hang_s": 0, "gpus": cards})


def busy() -> bool:
    """True while any other process that we can see is running: in a machine of its own, that is the job."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in (os.getpid(), os.getppid()):
            try:
                with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                    if file.read().rpartition(")")[2].split()[0] == "R":
                        return True
            except OSError:
                continue  # it ended while we looked
    return False


def value(world: dict[str, Any], card: dict[str, Any], field: str) -> str:
    """One field of one card as text without its unit. Raises KeyError for a field nobody knows."""
    extra = {
        "driver_version": world["driver"],
        "count": len(world["gpus"]),
        "gpu_name": card["name"],
        "gpu_uuid": card["uuid"],
        "gpu_bus_id": card["pci.bus_id"],
        "memory.free": int(card["memory.total"]) - int(card["memory.used"]),
        "memory.reserved": 0,
        "enforced.power.limit": card["power.limit"],
        "clocks.gr": card["clocks.sm"],
        "clocks.current.sm": card["clocks.sm"],
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
        **dict.fromkeys(EMPTY_FIELDS, NOT_SUPPORTED),
    }
    found = {**extra, **card}[field]
    if field == "utilization.gpu" and found is None:
        return "95" if busy() else "0"
    return f"{found:.2f}" if isinstance(found, float) else str(found)


def unit(field: str) -> str:
    return UNITS.get(field.split(".")[0], "") if field != "temperature.gpu" else ""


def query(world: dict[str, Any], cards: list[dict[str, Any]], fields: list[str], form: list[str]) -> int:
    """The CSV that scripts read; returns the exit code."""
    lines = []
    if "noheader" not in form:
        with_unit = [f"{f} [{unit(f)}]" if unit(f) and "nounits" not in form else f for f in fields]
        lines.append(", ".join(with_unit))
    for card in cards:
        row = []
        for field in fields:
            try:
                text = value(world, card, field)
            except KeyError:
                print(f'Field "{field}" is not a valid field to query.\n')
                return 2
            bare = "nounits" in form or not unit(field) or text == NOT_SUPPORTED
            row.append(text if bare else f"{text} {unit(field)}")
        lines.append(", ".join(row))
    print("\n".join(lines))
    return 0


def table(world: dict[str, Any], cards: list[dict[str, Any]]) -> None:
    """The plain output, which says what it is."""
    bar = "+" + "-" * 77 + "+"
    head = f"stand-in NVIDIA-SMI   Driver Version: {world['driver']}   CUDA Version: {world['cuda']}"
    print(bar, f"| {head:<76}|", f"| {'An imitation: this host has no such GPU.':<76}|", bar, sep="\n")
    for card in cards:
        used, total = card["memory.used"], card["memory.total"]
        power = f"{card['power.draw']:.0f}W / {card['power.limit']:.0f}W"
        text = (
            f"{card['index']:>3}  {card['name']:<26.26} {card['temperature.gpu']:>3}C  {power:<12}"
            f"{used:>5}MiB / {total:>6}MiB  {value(world, card, 'utilization.gpu'):>3}%"
        )
        print(f"| {text:<76}|")
    print(bar)


def interval(argv: list[str]) -> float | None:
    """Seconds between two answers of `--loop=10`, `-l 10` or `-lms 500`; None: one answer only."""
    for position, word in enumerate(argv):
        name, equals, text = word.partition("=")
        if name in ("--loop", "-l", "--loop-ms", "-lms"):
            text = text if equals else (argv[position + 1] if position + 1 < len(argv) else "5")
            return float(text) / (1000 if name.endswith("ms") else 1)
    return None


def xml(world: dict[str, Any], cards: list[dict[str, Any]]) -> str:
    """The parts of `-q -x` that health checks read."""
    head = f"<driver_version>{world['driver']}</driver_version><cuda_version>{world['cuda']}</cuda_version>"
    return '<?xml version="1.0" ?>\n<nvidia_smi_log>' + head + "".join(map(card_xml, cards)) + "</nvidia_smi_log>"


def card_xml(card: dict[str, Any]) -> str:
    parts = {
        "product_name": card["name"],
        "uuid": card["uuid"],
        "pci": {"pci_bus_id": card["pci.bus_id"]},
        "mig_mode": {"current_mig": card.get("mig.mode.current", "N/A")},
        "gpu_virtualization_mode": {"virtualization_mode": card.get("virtualization", "None")},
        "fb_memory_usage": {"total": f"{card['memory.total']} MiB", "used": f"{card['memory.used']} MiB"},
        "ecc_errors": {"volatile": {"dram_uncorrectable": card.get("ecc.errors.uncorrected.volatile.total", "N/A")}},
        "remapped_rows": {
            "remapped_row_pending": card.get("remapped_rows.pending", "N/A"),
            "remapped_row_failure": card.get("remapped_rows.failure", "N/A"),
        },
        "temperature": {"gpu_temp": f"{card['temperature.gpu']} C"},
        "gpu_power_readings": {
            "power_draw": f"{card['power.draw']:.2f} W",
            "current_power_limit": f"{card['power.limit']:.2f} W",
            "default_power_limit": f"{card.get('power.default_limit', card['power.limit']):.2f} W",
        },
        "clocks": {"sm_clock": f"{card['clocks.sm']} MHz"},
        "clocks_event_reasons": {
            f"clocks_event_reason_{name}": "Active" for name in card.get("throttle", ["gpu_idle"])
        },
        "processes": [
            {"pid": p["pid"], "type": "C", "process_name": p["name"], "used_memory": f"{p['used']} MiB"}
            for p in card.get("processes", [])
        ],
    }
    return element("gpu", parts)


def element(tag: str, inner: Any) -> str:
    """Nested mappings as XML; a list repeats `process_info`."""
    if isinstance(inner, dict):
        text = "".join(element(name, each) for name, each in inner.items())
    elif isinstance(inner, list):
        text = "".join(element("process_info", each) for each in inner)
    else:
        text = str(inner).replace("&", "&amp;").replace("<", "&lt;")
    return f"<{tag}>{text}</{tag}>"


def topology(world: dict[str, Any], cards: list[dict[str, Any]]) -> str:
    """`topo -m`: how each pair is joined."""
    names = [f"GPU{card['index']}" for card in cards]
    lines = ["\t".join(["", *names, "CPU Affinity"])]
    for one in names:
        lines.append("\t".join([one, *(" X " if one == other else world.get("link", "PHB") for other in names), "0-1"]))
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Answer once, or again and again, reading what the cards are each time."""
    pause = interval(argv)
    code = answer(argv)
    while pause is not None and code == 0:
        sys.stdout.flush()
        time.sleep(pause)
        code = answer(argv)
    return code


def answer(argv: list[str]) -> int:
    source = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(argv[0]))), "gpus.json")
    with open(source, encoding="utf-8") as file:
        world = json.load(file)
    time.sleep(float(world.get("hang_s") or 0))
    if world.get("fail"):
        print(world["fail"])
        return 9
    words = [part for word in argv[1:] for part in (word.split("=", 1) if word.startswith("--") else [word])]
    options = {word: (words[i + 1] if i + 1 < len(words) else "") for i, word in enumerate(words)}
    cards = world["gpus"]
    if not cards:
        print("No devices were found")
        return 6
    if "topo" in options:
        print(topology(world, cards))
        return 0
    if "-x" in options:
        print(xml(world, cards))
        return 0
    wanted = options.get("-i") or options.get("--id")
    if wanted:
        names = wanted.split(",")
        cards = [card for card in cards if str(card["index"]) in names or card["uuid"] in names]
        if not cards:
            print("No devices were found")
            return 6
    form = options.get("--format", "csv").split(",")
    if "--query-gpu" in options:
        return query(world, cards, [field.strip() for field in options["--query-gpu"].split(",")], form)
    if "--query-compute-apps" in options:
        if "noheader" not in form:
            print(", ".join(options["--query-compute-apps"].split(",")))
        return 0
    if "-L" in options or "--list-gpus" in options:
        for card in cards:
            print(f"GPU {card['index']}: {card['name']} (UUID: {card['uuid']})")
        return 0
    table(world, cards)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
