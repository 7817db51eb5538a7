"""Machines of this host that are sick, for trying out the preflight: scripted by GPUJOB_LOCAL_SICK.

    attempt=1,kind=wrong-card       only a job's first machine
    kind=used-memory                every machine

Kinds: see `KINDS`. Only stand-in cards can be sick; the setting is read at create. Empty: every machine is well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from providers.errors import Invalid
from providers.local_machine.folder import read_text, write_atomic

VARIABLE = "GPUJOB_LOCAL_SICK"

State = dict[str, Any]


@dataclass(frozen=True)
class Sickness:
    """A parsed setting: what is wrong, and with which of a job's machines (None: all)."""

    kind: str
    attempt: int | None = None

    def strikes(self, ordinal: int) -> bool:
        return self.attempt is None or self.attempt == ordinal


def _cards(changes: Mapping[str, Any]) -> Callable[[State], None]:
    def apply(world: State) -> None:
        for card in world["gpus"]:
            card.update(changes)

    return apply


def _fewer(world: State) -> None:
    del world["gpus"][-1:]


def _low_memory(world: State) -> None:
    for card in world["gpus"]:
        card["memory.total"] //= 2


def _old_driver(world: State) -> None:
    world.update(driver="470.82.01", cuda="11.4")


def _broken(**changes: Any) -> Callable[[State], None]:
    return lambda world: world.update(changes)


#: kind -> what it does to `gpus.json`
KINDS: Mapping[str, Callable[[State], None]] = {
    "wrong-card": _cards({"name": "Tesla T4 (stand-in)", "memory.total": 15360}),
    "fewer-cards": _fewer,
    "low-memory": _low_memory,
    "used-memory": _cards({"memory.used": 9216, "processes": [{"pid": 4242, "name": "other-tenant", "used": 9200}]}),
    "mig": _cards({"mig.mode.current": "Enabled"}),
    "vgpu": _cards({"virtualization": "VGPU"}),
    "ecc": _cards({"ecc.errors.uncorrected.volatile.total": 3}),
    "throttled": _cards({"throttle": ["hw_thermal_slowdown"], "temperature.gpu": 95}),
    "power-capped": _cards({"power.limit": 100.0, "power.default_limit": 300.0}),
    "old-driver": _old_driver,
    "nvml": _broken(fail="Failed to initialize NVML: Driver/library version mismatch"),
    "hung": _broken(hang_s=3600),
    "xid": lambda world: None,
}
DMESG = "[  812.100002] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def parse(text: str) -> Sickness | None:
    """Read the setting; None when there is none. Raises `Invalid` with the part that is wrong."""
    if not text.strip():
        return None
    words = dict(part.strip().partition("=")[::2] for part in text.split(","))
    kind, attempt = words.pop("kind", ""), words.pop("attempt", None)
    if kind not in KINDS or words or not (attempt is None or attempt.isdigit()):
        raise Invalid(
            f"{VARIABLE}={text}: it is kind=..., attempt=N; the kinds are {', '.join(KINDS)}", provider="local"
        )
    return Sickness(kind, int(attempt) if attempt else None)


def infect(folder: Path, sickness: Sickness) -> None:
    """Make the stand-in cards of a machine that is being built sick."""
    path = folder / "etc/gpus.json"
    world = json.loads(read_text(path) or "null")
    if world is None:
        return
    KINDS[sickness.kind](world)
    write_atomic(path, json.dumps(world))
    if sickness.kind == "xid":
        program = folder / "etc/bin/dmesg"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{DMESG}\nEND\n", encoding="utf-8")
        program.chmod(0o755)
