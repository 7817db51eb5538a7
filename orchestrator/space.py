"""How much disk a job needs where its data and checkpoints lie, and whether a machine has it. Pure.

need = data still to come + keep x checkpoint + margin, on the file system that will really hold it; inodes and the
user's quota count as well (R127, R203). One checkpoint more than `keep` is counted: the new one is written before the
oldest goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec

MARGIN_SHARE = 0.05  # of the data: block sizes, folders, what a program writes beside it
MARGIN_MIN = 256 * 1000**2  # bytes; logs and results of the smallest job
INODES_MARGIN = 1000
# Bytes that a full training state has for each parameter: half-precision weights, 32-bit copy, two moments (R056)
STATE_BYTES = 14
ADAPTER_SHARE = 0.02  # of the parameters: what LoRA trains and saves
DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True)
class System:
    """One file system of a machine, as its agent saw it; sizes in bytes. None: not limited, or not known."""

    path: str
    need: int
    files: int
    free: int
    total: int
    inodes_free: int | None = None
    quota_free: int | None = None
    quota_files: int | None = None
    writable: bool = True

    @classmethod
    def of(cls, seen: Mapping[str, Any]) -> System:
        """From the agent's answer; a stranger's, so every value is made what it must be."""
        whole = {name: seen.get(name) for name in ("inodes_free", "quota_free", "quota_files")}
        return cls(
            str(seen.get("path", "?"))[:200], int(seen["need"]), int(seen["files"]), int(seen["free"]),
            int(seen["total"]), writable=seen.get("writable") is not False,
            **{name: int(value) if isinstance(value, int) else None for name, value in whole.items()},
        )  # fmt: skip


def margin(data: int) -> int:
    """Bytes that stay free beside what is known."""
    return max(MARGIN_MIN, int(data * MARGIN_SHARE))


def checkpoint_bytes(spec: JobSpec, known: Iterable[int] = ()) -> int:
    """Size of one checkpoint: the largest seen so far, else what `model` comes to, else 0 (nobody knows)."""
    seen = max(known, default=0)
    if seen or spec.model is None or spec.checkpoint is None:
        return seen
    from jobspecs.memory import parse_params

    count = parse_params(spec.model.params)
    if spec.model.method == "full":
        return int(count * STATE_BYTES)
    if spec.model.method in ("lora", "qlora"):
        return int(count * ADAPTER_SHARE * STATE_BYTES)
    return 0


def kept(spec: JobSpec, checkpoint: int) -> int:
    """Bytes of the checkpoints that lie on the machine at one time."""
    return (spec.checkpoint.keep + 1) * checkpoint if spec.checkpoint is not None else 0


def needed(spec: JobSpec, data: int, known: Iterable[int] = ()) -> int:
    """Bytes for `data`, its checkpoints and the margin; 0 when there is neither."""
    total = data + kept(spec, checkpoint_bytes(spec, known))
    return total + margin(total) if total else 0


def shortage(systems: Iterable[System]) -> str:
    """What is too little, with the figures; empty: all fits."""
    for system in systems:
        if not system.need and not system.files:
            continue
        if not system.writable:
            return f"{system.path} may not be written to by the job's user"
        wanted = system.need + margin(system.need)
        for free, what in ((system.free, "free"), (system.quota_free, "left of the user's quota")):
            if free is not None and free < wanted:
                return (
                    f"disk too small at {system.path}: {gb(wanted)} needed (data, checkpoints, margin), "
                    f"{gb(free)} {what} of {gb(system.total)}"
                )
        for inodes, what in ((system.inodes_free, "inodes are free"), (system.quota_files, "files left of the quota")):
            if inodes is not None and inodes < system.files + INODES_MARGIN:
                return f"too few inodes at {system.path}: {system.files:,} files to come, {inodes:,} {what}"
    return ""


def gb(size: int) -> str:
    """Bytes for people: 12.3 GB, 450 MB."""
    return f"{size / 1000**3:,.1f} GB" if size >= 1000**3 else f"{size / 1000**2:,.0f} MB"
