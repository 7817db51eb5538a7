"""What the tools of the cards print, read into plain facts: pure, and never surprised by junk.

Rules
- A value that cannot be read is left out; the judge takes what is missing for unknown, never for bad.
- Memory in MiB, power in W, clocks in MHz, as the driver gives them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from xml.etree.ElementTree import Element

QUERY = ("index", "name", "uuid", "memory.total", "memory.used", "compute_cap", "driver_version", "pci.bus_id")
SICK = re.compile(r"GPU requires reset|GPU is lost")  # said in place of a value
KERNEL_FAULTS = re.compile(r"NVRM:.*Xid|NVRM: GPU .*fallen off|RmInitAdapter failed")
PROCESSES_KEPT = 8
LINES_KEPT = 20
XML_LIMIT = 4 << 20  # sixteen cards print under 300 KiB


def number_of(text: str | None) -> float | None:
    """The first number of `24564 MiB`, `350.00 W`; None for `[N/A]`, `N/A` and nothing."""
    found = re.match(r"\s*(-?\d{1,15}(?:\.\d{1,9})?)", text or "")
    return float(found.group(1)) if found else None


def cards_from_query(text: str) -> list[dict[str, Any]]:
    """One dict a card from `--query-gpu=<QUERY> --format=csv,noheader,nounits`; other lines are left aside."""
    cards = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(QUERY) or not (cells[0].isascii() and cells[0].isdigit()):
            continue
        row = dict(zip(QUERY, cells))
        card = {
            "index": int(row["index"][:6]),
            "name": row["name"],
            "uuid": row["uuid"],
            "memory_mib": number_of(row["memory.total"]),
            "used_mib": number_of(row["memory.used"]),
            "compute": row["compute_cap"] if re.match(r"\d{1,2}\.\d\Z", row["compute_cap"]) else None,
            "driver": row["driver_version"] if row["driver_version"][:1].isdigit() else None,
            "bus": row["pci.bus_id"],
            "sick": sick_words(cells),
        }
        cards.append({key: value for key, value in card.items() if value is not None})
    return cards


def facts_from_xml(text: str) -> dict[str, Any]:
    """`nvidia-smi -q -x`: driver, CUDA maximum and cards with memory, modes, errors, clocks, processes. {} for junk."""
    start = text.find("<nvidia_smi_log")
    if start < 0 or len(text) > XML_LIMIT:
        return {}
    try:  # here, not above: small Pythons come without it, and every other command pays for it
        from xml.etree.ElementTree import fromstring

        root = fromstring(text[start:])  # the text before it names a DTD that is not wanted
    except (SyntaxError, ValueError, ImportError):  # ParseError is a SyntaxError
        return {}
    found: dict[str, Any] = {"cards": [card_from_xml(node) for node in root.findall("gpu")]}
    for key, tag in (("driver", "driver_version"), ("cuda", "cuda_version")):
        value = said(root, tag)
        if value is not None and re.match(r"\d+(\.\d+)*\Z", value):
            found[key] = value
    return found


def sick_words(texts: Iterable[str | None]) -> str | None:
    """`GPU requires reset`: what the driver says of a card that is not there any more in place of its values."""
    return next((found.group() for found in (SICK.search(text or "") for text in texts) if found), None)


def said(node: Element, path: str) -> str | None:
    """The text at `path`; None where the driver says nothing of it."""
    text = (node.findtext(path) or "").strip()
    return None if text in ("", "N/A", "[N/A]", "Unknown Error", "[Not Supported]", "Not Found") else text


def card_from_xml(node: Element) -> dict[str, Any]:
    card: dict[str, Any] = {
        "name": said(node, "product_name"),
        "uuid": said(node, "uuid"),
        "bus": said(node, "pci/pci_bus_id"),
        "mig": said(node, "mig_mode/current_mig"),
        "virtualization": said(node, "gpu_virtualization_mode/virtualization_mode"),
        "throttle": throttle_from_xml(node),
        "processes": processes_from_xml(node),
        "desktop": desktop_in_xml(node),
        "sick": sick_words(each.text for each in node.iter()),
        "pcie_width": number_of(said(node, "pci/pci_gpu_link_info/link_widths/current_link_width")),
        "remap_pending": said(node, "remapped_rows/remapped_row_pending"),
        "remap_failure": said(node, "remapped_rows/remapped_row_failure"),
        "retired_pending": said(node, "retired_pages/pending_blacklist")
        or said(node, "retired_pages/pending_retirement"),
    }
    numbers = {
        "memory_mib": ("fb_memory_usage/total",),
        "used_mib": ("fb_memory_usage/used",),
        "temp": ("temperature/gpu_temp",),
        "power_w": (
            "gpu_power_readings/power_draw",
            "gpu_power_readings/instant_power_draw",
            "power_readings/power_draw",
        ),
        "power_limit_w": ("gpu_power_readings/current_power_limit", "power_readings/power_limit"),
        "power_default_w": ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
        "sm_mhz": ("clocks/sm_clock",),
        "sm_max_mhz": ("max_clocks/sm_clock",),
        "util": ("utilization/gpu_util",),
    }  # fmt: skip
    for key, paths in numbers.items():
        card[key] = next(
            (value for value in (number_of(said(node, path)) for path in paths) if value is not None), None
        )
    counts = [number_of(each.text) for path in ("ecc_errors/volatile",) for each in node.findall(path + "/*")
              if "uncorrectable" in each.tag or each.tag == "dram_uncorrectable"]  # fmt: skip
    older = number_of(said(node, "ecc_errors/volatile/double_bit/total"))
    known = [value for value in (*counts, older) if value is not None]
    card["ecc_uncorrected"] = sum(known) if known else None
    return {key: value for key, value in card.items() if value is not None}


def throttle_from_xml(node: Element) -> list[str] | None:
    """Names of the active reasons, without their prefix: `hw_thermal_slowdown`, `sw_power_cap`, `gpu_idle`."""
    for tag in ("clocks_event_reasons", "clocks_throttle_reasons"):
        reasons = node.find(tag)
        if reasons is not None:
            prefix = tag[:-1] + "_"
            return [
                each.tag[len(prefix) :] if each.tag.startswith(prefix) else each.tag
                for each in reasons
                if (each.text or "").strip() == "Active"
            ]
    return None


def processes_from_xml(node: Element) -> list[dict[str, Any]]:
    """Compute processes on the card; a container mostly sees none of its neighbours'."""
    found = []
    for each in node.findall("processes/process_info"):
        if "C" in (said(each, "type") or "C"):  # G: a desktop, which takes a little memory and no time
            name = (said(each, "process_name") or "")[-60:]
            found.append(
                {"pid": number_of(said(each, "pid")), "name": name, "used_mib": number_of(said(each, "used_memory"))}
            )
    return found[:PROCESSES_KEPT]


def desktop_in_xml(node: Element) -> bool | None:
    """Whether only a desktop uses the card; None where no process is seen."""
    kinds = [said(each, "type") or "" for each in node.findall("processes/process_info")]
    return not any("C" in kind for kind in kinds) if kinds else None


def merged_cards(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cards of both reports, matched by uuid, else by place; the first one's word counts."""
    by_uuid = {card["uuid"]: card for card in second if card.get("uuid")}
    cards = []
    for place, card in enumerate(first or second):
        other = by_uuid.get(card.get("uuid")) or (second[place] if len(second) == len(first) else {})
        cards.append({"index": place, **other, **card})
    return cards


def links_from_topology(text: str) -> dict[str, Any] | None:
    """`nvidia-smi topo -m`: how each pair of cards is joined, `{"NV18": 28}` or `{"PHB": 1}`; None without a table."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split("\t") for line in text.splitlines()]
    cards = [[cell.strip() for cell in row] for row in rows if re.match(r"GPU\d+\s*\Z", row[0].strip() or "-")]
    links: dict[str, Any] = {}
    for place, row in enumerate(cards):
        for cell in row[place + 2 : len(cards) + 1]:  # right of the diagonal: each pair once
            if re.match(r"(NV\d+|PIX|PXB|PHB|NODE|SYS)\Z", cell):
                links[cell] = links.get(cell, 0) + 1
    return links or None


def kernel_faults(text: str) -> list[str]:
    """The driver's own complaints in the kernel's log, the last ones."""
    return [line.strip()[:300] for line in text.splitlines() if KERNEL_FAULTS.search(line)][-LINES_KEPT:]
