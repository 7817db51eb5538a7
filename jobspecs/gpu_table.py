"""The GPU classes: one row for each card and memory size.

Rules: datasheet values; memory is the number on the box. A new card is one row; a new spelling one word in it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuClass:
    """One card. `nvlink_gbps` is per GPU and 0 without a link; `bandwidth_gbps` is the memory's, in GB/s."""

    name: str
    family: str
    vram_gb: int
    arch: str
    compute: str
    nvlink_gbps: int
    bandwidth_gbps: int
    spellings: tuple[str, ...] = ()
    arm64: bool = False

    @property
    def capability(self) -> tuple[int, int] | None:
        """(8, 9); None for cards without CUDA."""
        major, _, minor = self.compute.partition(".")
        return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _table() -> tuple[GpuClass, ...]:
    turing, volta, ampere, ga102 = ("Turing", "7.5"), ("Volta", "7.0"), ("Ampere", "8.0"), ("Ampere", "8.6")
    ada, hopper = ("Ada", "8.9"), ("Hopper", "9.0")
    blackwell, consumer_blackwell = ("Blackwell", "10.0"), ("Blackwell", "12.0")
    rows: tuple[tuple[str, str, int, tuple[str, str], int, int, str], ...] = (
        # name, family, GB, architecture, NVLink, memory bandwidth, other spellings
        ("T4", "T4", 16, turing, 0, 320, ""),
        ("V100-16GB", "V100", 16, volta, 300, 900, "V100-SXM2-16GB V100-PCIE-16GB"),
        ("V100-32GB", "V100", 32, volta, 300, 900, "V100-SXM2-32GB V100-PCIE-32GB"),
        ("RTX-2080Ti", "RTX-2080Ti", 11, turing, 100, 616, "2080Ti"),
        ("Quadro-RTX-6000", "Quadro-RTX-6000", 24, turing, 100, 672, "Q-RTX-6000"),
        ("RTX-3060", "RTX-3060", 12, ga102, 0, 360, "3060"),
        ("RTX-3080", "RTX-3080", 10, ga102, 0, 760, "3080"),
        ("RTX-3080Ti", "RTX-3080Ti", 12, ga102, 0, 912, "3080Ti"),
        ("RTX-3090", "RTX-3090", 24, ga102, 112, 936, "3090 RTX3090-PCIE-24GB"),
        ("RTX-3090-48GB", "RTX-3090-48GB", 48, ga102, 0, 936, "3090-48GB vGPU-48GB-350W"),
        ("RTX-4080", "RTX-4080", 16, ada, 0, 717, "4080"),
        ("RTX-4080S", "RTX-4080S", 16, ada, 0, 736, "4080S RTX-4080-SUPER 4080-SUPER"),
        ("RTX-4080S-32GB", "RTX-4080S-32GB", 32, ada, 0, 736, "4080S-32GB vGPU-32GB"),
        ("RTX-4090", "RTX-4090", 24, ada, 0, 1008, "4090 RTX4090-PCIE-24GB"),
        ("RTX-4090D", "RTX-4090D", 24, ada, 0, 1008, "4090D"),
        ("RTX-4090-48GB", "RTX-4090-48GB", 48, ada, 0, 1008, "4090-48GB vGPU-48GB"),
        ("RTX-5080", "RTX-5080", 16, consumer_blackwell, 0, 960, "5080"),
        ("RTX-5090", "RTX-5090", 32, consumer_blackwell, 0, 1792, "5090"),
        ("A10", "A10", 24, ga102, 0, 600, "A10-24GB"),
        ("A10G", "A10G", 24, ga102, 0, 600, ""),
        ("A30", "A30", 24, ampere, 200, 933, ""),
        ("A40", "A40", 48, ga102, 112, 696, "A40-48GB A40-PCIE-48GB"),
        ("RTX-A4000", "RTX-A4000", 16, ga102, 0, 448, "A4000"),
        ("RTX-A4500", "RTX-A4500", 20, ga102, 112, 640, "A4500"),
        ("RTX-A5000", "RTX-A5000", 24, ga102, 112, 768, "A5000"),
        ("RTX-A6000", "RTX-A6000", 48, ga102, 112, 768, "A6000 RTX-A6000-48GB"),
        ("L4", "L4", 24, ada, 0, 300, "L4-24GB"),
        ("L20", "L20", 48, ada, 0, 864, ""),
        ("L40", "L40", 48, ada, 0, 864, "L40-48GB"),
        ("L40S", "L40S", 48, ada, 0, 864, "L40S-48GB"),
        ("RTX-6000-Ada", "RTX-6000-Ada", 48, ada, 0, 960, "6000-Ada RTX-6000-Ada-48GB"),
        (
            "RTX-PRO-6000", "RTX-PRO-6000", 96, consumer_blackwell, 0, 1792,
            "PRO-6000 RTX-PRO-6000-96GB RTX-PRO-6000-WS RTX-PRO-6000-S RTX-PRO-6000-Max-Q "
            "RTX-PRO-6000-Blackwell-Workstation-Edition RTX-PRO-6000-Blackwell-Server-Edition "
            "RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition",
        ),
        (
            "A100-40GB", "A100", 40, ampere, 600, 1555,
            "A100-PCIE-40GB A100-SXM4-40GB A100-SXM-40GB",
        ),
        ("A100-80GB-PCIe", "A100", 80, ampere, 600, 1935, "A100-PCIE-80GB"),
        ("A100-80GB-SXM", "A100", 80, ampere, 600, 2039, "A100-SXM4-80GB A100-SXM-80GB A100-80GB-SXM4"),
        ("A800-80GB", "A800", 80, ampere, 400, 2039, "A800-PCIE A800-PCIE-80GB A800-SXM4-80GB"),
        ("H100-PCIe", "H100", 80, hopper, 600, 2000, "H100-PCIE-80GB H100-80GB-PCIE"),
        (
            "H100-SXM", "H100", 80, hopper, 900, 3350,
            "H100-SXM5 H100-SXM-80GB H100-SXM5-80GB H100-80GB-SXM5 H100-80GB-SXM H100-80GB-HBM3",
        ),
        ("H100-NVL", "H100", 94, hopper, 600, 3900, "H100-NVL-94GB"),
        ("GH200", "GH200", 96, hopper, 900, 4000, "GH200-SXM GH200-96GB"),
        ("H800", "H800", 80, hopper, 400, 3350, "H800-80GB"),
        ("H20", "H20", 96, hopper, 900, 4000, "H20-96GB"),
        ("H200-SXM", "H200", 141, hopper, 900, 4800, "H200-SXM5 H200-SXM-141GB H200-SXM5-141GB"),
        ("H200-NVL", "H200", 141, hopper, 900, 4800, "H200-NVL-141GB"),
        ("B200", "B200", 180, blackwell, 1800, 8000, "B200-SXM B200-SXM6 B200-SXM-180GB B200-SXM6-180GB"),
        ("GB200", "GB200", 186, blackwell, 1800, 8000, "GB200-NVL-186GB"),
        ("B300", "B300", 268, ("Blackwell", "10.3"), 1800, 8000, "B300-SXM6 B300-SXM6-AC B300-PC B300-288GB"),
        ("MI300X", "MI300X", 192, ("CDNA3", "gfx942"), 128, 5300, "MI300X-OAM MI300X-192GB"),
        ("MI355X", "MI355X", 288, ("CDNA4", "gfx950"), 128, 8000, "MI355X-OAM MI355X-288GB"),
    )  # fmt: skip
    return tuple(
        GpuClass(
            name,
            family,
            vram,
            arch[0],
            arch[1],
            link,
            bandwidth,
            tuple(more.split()),
            name in ("GH200", "GB200"),
        )
        for name, family, vram, arch, link, bandwidth, more in rows
    )


GPU_CLASSES: tuple[GpuClass, ...] = _table()
