"""Which canonical GPU class a provider means by its own name for a card, by the table that the registry hands in.

Rules: names are compared without case, vendor words and separators; the provider's memory figure is believed over the
name, since several vocabularies use one name for two sizes; a slice of a card (MIG) is never the card.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from providers.base import GpuRow

# Drivers report some per cent less than the name on the box (24564 MiB for 24), and vendors differ on the newest cards.
TOLERANCE = 0.08
_VENDOR = re.compile(r"\b(NVIDIA|GEFORCE|TESLA|AMD|INSTINCT|GENERATION)\b")
_SEPARATORS = re.compile(r"[-_\s]+")


def squash(name: str) -> str:
    """The comparable form of a card's name: `NVIDIA A100 80G PCIe` and `a100-80gb-pcie` are one."""
    words = _VENDOR.sub(" ", _SEPARATORS.sub(" ", name.upper()))
    return re.sub(r"\b([0-9]+)G\b", r"\1GB", words).replace(" ", "")


def identify(
    name: str, vram_gb: float, table: Iterable[GpuRow], own_names: Mapping[str, str] | None = None
) -> GpuRow | None:
    """The row of a card that a provider calls `name`, with `vram_gb` of memory each; None when unsure.

    `own_names` are squashed names of this provider that the table cannot know: squashed name -> canonical name.
    """
    if re.search(r"\b(MIG|GRID)\b", name.upper()):
        return None
    key = squash(name)
    canonical = (own_names or {}).get(key)
    for row in table:
        if abs(vram_gb - row.vram_gb) > TOLERANCE * row.vram_gb:
            continue
        known = {squash(each) for each in (row.name, *row.spellings)}
        if row.name == canonical or key in known or f"{key}{row.vram_gb}GB" in known:
            return row
    return None
