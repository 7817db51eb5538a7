"""Which CUDA an image brings, and which CUDA a card and a driver need. Versions are (major, minor).

Sources: NVIDIA's CUDA release notes (first toolkit that compiles for a compute capability, last one that does).
Rules: what cannot be read from a name is None, and None is never a reason to refuse anything.
"""

from __future__ import annotations

import re

Version = tuple[int, int]

#: compute capability -> the first CUDA whose programs run on it
_FIRST: tuple[tuple[Version, Version], ...] = (
    ((12, 0), (12, 8)), ((10, 3), (12, 9)), ((10, 0), (12, 8)), ((9, 0), (11, 8)), ((8, 9), (11, 8)), ((8, 6), (11, 1)),
    ((8, 0), (11, 0)), ((7, 5), (10, 0)), ((7, 0), (9, 0)),
)  # fmt: skip
#: and the last one: CUDA 13 compiles for Turing and newer only
_OLDEST_OF_13: Version = (7, 5)

_IN_IMAGE = (
    re.compile(
        r"cuda[-_:]?(\d{1,2})\.(\d{1,2})(?!\d)"
    ),  # pytorch/pytorch:2.4.0-cuda12.1-cudnn9, nvidia/cuda:12.4.1-base
    re.compile(r"(?<![a-z0-9])cu(\d{2})(\d)(?!\d)"),  # runpod/pytorch:2.1.0-py3.10-cu118
    re.compile(r"cuda[-_:]?(\d{2})(\d)(?=-|$)"),  # cuda121
)


def version(text: str | None) -> Version | None:
    """`12.4`, `550.54.15`, `8.9`: the first two numbers."""
    found = re.match(r"\s*(\d{1,6})(?:\.(\d{1,6}))?", text or "")
    return (int(found[1]), int(found[2] or 0)) if found else None


def words(found: Version) -> str:
    return f"{found[0]}.{found[1]}"


def cuda_of_image(image: str | None) -> Version | None:
    """The CUDA that an image's name tells; None for one that does not (nvcr.io/nvidia/pytorch:24.05-py3)."""
    for pattern in _IN_IMAGE:
        found = pattern.search((image or "").lower())
        if found:
            return int(found[1]), int(found[2])
    return None


def cuda_needed(compute: Version) -> Version | None:
    """The first CUDA that knows cards of this compute capability; None for unknown ones."""
    return next((first for cc, first in _FIRST if compute == cc), None)


def misfit(image_cuda: Version | None, compute: Version | None) -> str:
    """Why programs of an image with this CUDA cannot run on such a card; empty when they can, or nobody knows."""
    if image_cuda is None or compute is None:
        return ""
    needed = cuda_needed(compute)
    if needed is not None and image_cuda < needed:
        return f"CUDA {words(image_cuda)} knows no sm_{compute[0]}{compute[1]}; it needs {words(needed)} or newer"
    if image_cuda >= (13, 0) and compute < _OLDEST_OF_13:
        return f"CUDA {words(image_cuda)} has dropped sm_{compute[0]}{compute[1]}; it needs 12.9 or older"
    return ""
