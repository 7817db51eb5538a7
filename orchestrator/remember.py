"""What a release teaches: a pool that reclaims, a host that is bad, and doubt about our own eyes. In the loop's thread.

A bad host is remembered by its machine id, the longer the more often it was bad, and forgotten again: hardware is
repaired, and what looks like a host's fault may be a network's bad hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator import lifecycle, placement
from orchestrator.actions import Release
from orchestrator.model import Facts, Reason

if TYPE_CHECKING:
    from orchestrator.loop import Loop

HOUR_S = 3600.0
REST_RECLAIMED_S = 1800.0  # a pool that reclaimed counts dearer for this long
#: After the first, second, ... time: faults of the card or its driver, seen by the preflight or the kernel.
REST_HARDWARE_S = (24 * HOUR_S, 72 * HOUR_S, 168 * HOUR_S)
#: And what may pass: no SSH, copies that fail, NCCL, a full disk, a card that a neighbour uses.
REST_PASSING_S = (HOUR_S, 6 * HOUR_S, 24 * HOUR_S)
HARDWARE = (
    "gpu-count", "gpu-name", "gpu-memory", "gpu-slice", "gpu-lost", "mig", "vgpu", "ecc", "xid",
    "nvidia-smi", "driver-old",
)  # fmt: skip
HARDWARE_WORDS = ("Xid", "ECC", "NVML", "fallen off the bus", "802")


def remember(loop: Loop, write: Release, facts: Facts) -> None:
    """Note what `write` says about the machine, its pool, or our own sight."""
    mine = next(r for r in facts.rentals if r.rental.id == write.rental)
    offer, now = mine.rental.offer, loop.clock.utc()
    if write.reason is Reason.INTERRUPTED and offer.spot:
        loop.store.rest(placement.reclaimed_key(offer), now + REST_RECLAIMED_S, "reclaimed lately", now)
    if write.reason is Reason.BAD_HOST and mine.rental.machine_id:
        key = placement.machine_key(offer.provider, mine.rental.machine_id)
        if key not in facts.resting:  # one that came back although it rests is not made to rest for longer by that
            loop.store.rest(key, now + rest_s(write.detail, loop.store.rested(key, now)), write.detail, now)
    given_up = write.reason in (Reason.UNREACHABLE, Reason.INTERRUPTED)
    if given_up and not lifecycle.dead(mine) and not mine.machine.connected:
        loop.observer.count_doubtful(now)


def rest_s(detail: str, before: int) -> float:
    """How long a bad machine is left alone; `before`: how often it was within the last weeks."""
    hardware = detail.startswith(HARDWARE) or any(word in detail for word in HARDWARE_WORDS)
    steps = REST_HARDWARE_S if hardware else REST_PASSING_S
    return steps[min(before, len(steps) - 1)]
