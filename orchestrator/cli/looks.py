"""The looks at a job's machines, for people and as JSON: the preflight, and the look after setup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import counted, cut, line_width, size, span, utc_z

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.rows import Preflight


LOOKS_SHOWN = 8  # a sweep has one of each leg
DEEPER: dict[str, Any] = {"subsequent_indent": "              ", "break_on_hyphens": False}
WORDS = {"preflight": "", "setup": "after setup of {run}", "smoke": "smoke of {run}"}


def kind_of(look: Preflight) -> tuple[str, str]:
    """(preflight | setup | smoke, run)."""
    run, _, stage = look.run.partition("/")
    return (stage or "setup", run) if run else ("preflight", "")


def look_lines(looks: Sequence[Preflight]) -> Iterator[str]:
    """One line a look, and one for each finding."""
    if not looks:
        return
    yield ""
    more = len(looks) - LOOKS_SHOWN
    yield "PREFLIGHT" + (f" (and {more} earlier: -o json)" if more > 0 else "")
    for look in looks[-LOOKS_SHOWN:]:
        what, run = kind_of(look)
        where = f"{look.rental} {WORDS[what].format(run=run)}".rstrip()
        yield from wrap(
            f"{where}  {look.seconds:.1f} s  {summary(look.facts)}", line_width(), initial_indent="  ", **DEEPER
        )
        for found in look.findings:
            wanted = f", wanted {found['wanted']}" if found["wanted"] else ""
            advice = f": {found['next']}" if found["next"] else ""
            says = f"{found['klass']:<9} {found['name']}: {found['measured']}{wanted}{advice}"
            yield from wrap(cut(says, 3 * line_width()), line_width(), initial_indent="    ", **DEEPER)


def summary(facts: Mapping[str, Any]) -> str:
    """What the machine has, in half a line; parts that are not known are left out."""
    if "steps_seen" in facts:
        return trial(facts)
    torch = facts.get("torch")
    if isinstance(torch, Mapping):
        devices = counted(torch.get("devices") or 0, "device")
        return f"torch {torch.get('version')}, CUDA {torch.get('cuda') or 'none'}, {devices}"
    if "packages" in facts:
        return f"Python {facts.get('python')}, {counted(len(facts['packages']), 'package')}"
    parts = []
    gpu = facts.get("gpu") or {}
    cards = gpu.get("cards") or []
    if cards:
        memory = cards[0].get("memory_mib")
        parts.append(f"{len(cards)} x {cards[0].get('name')}" + (f" {memory / 1024:.0f} GiB" if memory else ""))
    if gpu.get("driver"):
        parts.append(f"driver {gpu['driver']}" + (f" (CUDA {gpu['cuda']})" if gpu.get("cuda") else ""))
    if facts.get("cpus"):
        parts.append(counted(facts["cpus"], "core"))
    for key, name in (("memory", "RAM"), ("shm", "shm")):
        total = (facts.get(key) or {}).get("total")
        if total:
            parts.append(f"{size(total)} {name}")
    free = ((facts.get("disks") or {}).get("data") or {}).get("free")
    if free is not None:
        parts.append(f"{size(free)} free")
    return ", ".join(parts)


def trial(facts: Mapping[str, Any]) -> str:
    """What a smoke measured, and the whole run by it."""
    parts = []
    rate = facts.get("steps_per_s")
    if rate:
        parts.append(f"{rate:.3g} steps/s")
    peaks = [card[0] for card in facts.get("vram") or [] if card]
    if peaks:
        parts.append(f"{max(peaks) / 1024:.1f} GiB of a card")
    if facts.get("needed_s") is not None:
        cost = f", {facts['cost']:.2f} {facts.get('currency', '')}".rstrip() if facts.get("cost") is not None else ""
        parts.append(f"the whole: {facts['steps']:,.0f} steps in {span(facts['needed_s'])}{cost}")
    elif facts.get("unknown"):
        parts.append(str(facts["unknown"]))
    return "; ".join(parts)


def look_json(look: Preflight) -> dict[str, Any]:
    return {
        "rental": look.rental,
        "look": kind_of(look)[0],
        "run": kind_of(look)[1] or None,
        "at": utc_z(look.at),
        "seconds": look.seconds,
        "findings": [dict(found) for found in look.findings],
        "facts": dict(look.facts),
    }
