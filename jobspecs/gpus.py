"""GPU classes, their spellings, and what a spec asks for.

Rules: a class is one card with one memory size; a family (`A100`) asks for any of its classes. Names are compared
without case, separators and vendor words, so `RTX 4090`, `rtx-4090` and `4090` are one name. A slice of a card (MIG)
never counts as the card. Memory is the number on the box (24 for a 4090, which holds 24 GiB), so GB and GiB are
one unit here and only here. Numbers are datasheet values.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from jobspecs.gpu_table import GPU_CLASSES as GPU_CLASSES
from jobspecs.gpu_table import GpuClass as GpuClass
from jobspecs.problems import Refusal, shown
from jobspecs.units import Range, parse_int, parse_range

GB = 10**9
# Providers report what the driver sees, a few per cent off the name on the box: 24564 MiB for 24, 81559 MiB for 80,
# and 268 to 288 for one B300.
MEMORY_TOLERANCE = 0.08
MAX_COUNT = 64


# Names that stand for more than one class, besides the families themselves.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "A100-80GB": ("A100-80GB-PCIe", "A100-80GB-SXM"),
    "A100-SXM": ("A100-40GB", "A100-80GB-SXM"),
    "A100-SXM4": ("A100-40GB", "A100-80GB-SXM"),
    "A100-PCIe": ("A100-40GB", "A100-80GB-PCIe"),
    "H100-80GB": ("H100-PCIe", "H100-SXM"),
    "H200-141GB": ("H200-SXM", "H200-NVL"),
    "V100-SXM2": ("V100-16GB", "V100-32GB"),
}
# Names that people use for cards of different makes; the qualifier decides by a factor of four in memory.
_AMBIGUOUS = {"RTX6000": ("RTX-6000-Ada", "RTX-PRO-6000", "Quadro-RTX-6000")}
_MEMORY = re.compile(r"[<>=.]*[0-9.]+\s*[KMGT]i?B.*|[<>]=?.*|[0-9]*\.\..*|[0-9]+\+", re.IGNORECASE)
_VENDOR_WORDS = re.compile(r"\b(NVIDIA|GEFORCE|TESLA|AMD|INSTINCT|GENERATION)\b")


def _squash(name: str) -> str:
    """The comparable form: upper case, no vendor words, no separators, `80G` as `80GB`, `ADA` after a digit."""
    words = _VENDOR_WORDS.sub(" ", re.sub(r"[-_\s]+", " ", name.upper().replace("GEFORCERTX", "RTX")))
    words = re.sub(r"\b([0-9]+)G\b", r"\1GB", words)
    return re.sub(r"\s+", "", words)


@cache
def _names() -> Mapping[str, tuple[GpuClass, ...]]:
    """Every comparable name and the classes that it stands for."""
    names: dict[str, tuple[GpuClass, ...]] = {}
    for gpu in GPU_CLASSES:
        names[_squash(gpu.family)] = (*names.get(_squash(gpu.family), ()), gpu)
    for group, members in _GROUPS.items():
        names[_squash(group)] = tuple(gpu for gpu in GPU_CLASSES if gpu.name in members)
    for gpu in GPU_CLASSES:
        for spelling in (gpu.name, *gpu.spellings):
            names.setdefault(_squash(spelling), (gpu,))
    return names


@cache
def _canonical() -> Mapping[str, str]:
    """Comparable name -> the spelling that messages and stored specs use."""
    printed = {_squash(text): text for text in (*_GROUPS, *(gpu.family for gpu in GPU_CLASSES))}
    own = {_squash(spelling): gpu.name for gpu in GPU_CLASSES for spelling in (gpu.name, *gpu.spellings)}
    return own | printed


def gpu_classes(name: str) -> tuple[GpuClass, ...]:
    """The classes that `name` stands for, in any spelling. Raises Refusal with the nearest names."""
    key = _squash(name)
    found = _names().get(key)
    if found:
        return found
    if key in _AMBIGUOUS:
        raise Refusal(f"{shown(name)} is the name of several cards", "one of " + ", ".join(_AMBIGUOUS[key]))
    near = difflib.get_close_matches(key, _names(), n=3, cutoff=0.6)
    names = list(dict.fromkeys(_canonical()[each] for each in near))
    raise Refusal(
        f"there is no GPU class {shown(name)}",
        "nearest: " + ", ".join(names) if names else 'write a name like RTX-4090, ">=24GB", or none for a CPU',
    )


def identify(name: str, vram_gib: float | None = None) -> GpuClass | None:
    """The one class of a card that a provider or a driver calls `name`; None when unsure or for a slice.

    `vram_gib` (MiB of one card / 1024) decides between classes of one name and is believed over the name.
    """
    if re.search(r"\bMIG\b|GRID", name.upper()):
        return None
    family = _names().get(_squash(name), ())
    if len(family) == 1 and vram_gib is not None:
        # A modified board keeps its name and changes its memory.
        own = family[0].family
        family = tuple(g for g in GPU_CLASSES if g.family == own or g.family.startswith(f"{own}-"))
    fits = [g for g in family if vram_gib is None or abs(vram_gib - g.vram_gb) <= MEMORY_TOLERANCE * g.vram_gb]
    exact = [gpu for gpu in fits if _squash(name) in map(_squash, (gpu.name, *gpu.spellings))]
    best = exact or fits
    return best[0] if len(best) == 1 else None


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """One acceptable kind of machine: `count` cards of `name` (any when empty), each with `memory` bytes."""

    name: str = ""
    memory: Range | None = None
    count: int = 1

    def __str__(self) -> str:
        parts = (
            self.name,
            str(self.memory) if self.memory else "",
            str(self.count) if self.count > 1 else "",
        )
        return ":".join(part for part in parts if part)

    def classes(self) -> tuple[GpuClass, ...]:
        """The classes that satisfy this choice, in the table's order."""
        named = gpu_classes(self.name) if self.name else GPU_CLASSES
        return tuple(gpu for gpu in named if self.memory is None or gpu.vram_gb * GB in self.memory)


@dataclass(frozen=True, slots=True)
class GpuAsk:
    """Any of `choices`; no choice at all means a machine without a GPU."""

    choices: tuple[GpuChoice, ...] = ()

    @property
    def is_none(self) -> bool:
        """True for `gpu: none`."""
        return not self.choices

    def __str__(self) -> str:
        return ", ".join(map(str, self.choices)) or "none"


def matches(ask: GpuAsk | GpuChoice, gpu: GpuClass, count: int | None = None) -> bool:
    """Whether `count` cards of class `gpu` satisfy `ask`; without `count` only the class is compared."""
    choices = ask.choices if isinstance(ask, GpuAsk) else (ask,)
    return any(gpu in choice.classes() and count in (None, choice.count) for choice in choices)


def parse_gpu(value: Any) -> GpuAsk:
    """A spec's `gpu`: text, a mapping {name, memory, count}, or a list of those, any of which will do."""
    if isinstance(value, GpuAsk):
        return value
    if isinstance(value, str) and value.strip().lower() == "none":
        return GpuAsk()
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if not values:
        raise Refusal("an empty list asks for nothing", "write none for a machine without a GPU")
    choices = tuple(dict.fromkeys(_choice(each) for each in values))
    return GpuAsk(choices)


def _choice(value: Any) -> GpuChoice:
    if isinstance(value, str):
        return _text_choice(value)
    if isinstance(value, Mapping):
        return _mapping_choice(value)
    raise Refusal("expected a GPU", 'write it like RTX-4090, "A100-80GB:2", ">=24GB" or {name, memory, count}')


def _memory(text: str) -> Range:
    return parse_range(re.sub("gib", "GB", text, flags=re.IGNORECASE), sizes=True)


def _text_choice(text: str) -> GpuChoice:
    """`NAME[:MEMORY][:COUNT]` or `MEMORY[:COUNT]`."""
    parts = [part.strip() for part in text.split(":")]
    name, memory, count = "", None, None
    for position, part in enumerate(parts):
        if position and re.fullmatch(r"[0-9]+", part) and count is None:
            count = parse_int(part, 1, MAX_COUNT)
        elif position and re.fullmatch(r"[0-9]*\.\.[0-9]*|[0-9]+\+", part):
            raise Refusal(f"the count in {shown(text)} is a range", "write one number of GPUs")
        elif memory is None and _MEMORY.fullmatch(part):
            memory = _memory(part)
        elif not position and part:
            name = part
        else:
            raise Refusal(f"{shown(text)} is not a GPU", 'write it like RTX-4090, "A100-80GB:2" or ">=24GB:2"')
    return _checked(name, memory, count or 1)


def _mapping_choice(value: Mapping[Any, Any]) -> GpuChoice:
    allowed = ("name", "memory", "count")
    for key in value:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, n=1)
            hint = f"did you mean {near[0]}?" if near else "the keys are name, memory and count"
            raise Refusal(f"a GPU has no key {shown(key)}", hint)
    texts = {key: str(each) for key, each in value.items() if each is not None}
    if not texts.get("name") and not texts.get("memory"):
        raise Refusal("a GPU needs a name or a memory size")
    inner = _text_choice(texts["name"]) if texts.get("name") else GpuChoice()
    memory = _memory(texts["memory"]) if "memory" in texts else inner.memory
    count = parse_int(texts["count"], 1, MAX_COUNT) if "count" in texts else inner.count
    return _checked(inner.name, memory, count)


def _checked(name: str, memory: Range | None, count: int) -> GpuChoice:
    if name:
        gpu_classes(name)
        name = _canonical()[_squash(name)]
    choice = GpuChoice(name, memory, count)
    if not choice.classes():
        raise Refusal(f"no GPU class is {shown(choice)}", "a family with its sizes: " + _sizes(name) if name else "")
    return choice


def _sizes(name: str) -> str:
    return ", ".join(f"{gpu.name} {gpu.vram_gb}GB" for gpu in gpu_classes(name))
