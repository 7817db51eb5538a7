"""What a user's computer gets: the size of a core install, and what it costs to import the project's parts.

    ./dev bench main_job_install [RUNS]

Installs the pinned requirements and the wheel of this checkout into an empty environment in a temporary folder, so it
needs the network or a filled pip cache. Bar: under 80 MB without boto3, with and without compiled bytecode.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from _measure import ROOT, Figure, run, say, show

CORE_MB = 80.0
NOT_OURS = ("pip", "setuptools", "_distutils_hack", "distutils")  # what an empty environment has already
PARTS = (
    "orchestrator.cli.main",
    "orchestrator.store",
    "jobspecs.schema",
    "providers.local",
    "orchestrator.reconcile",
    "orchestrator.ssh",
    "orchestrator.loop",
)


def install(folder: Path) -> Path:
    """An environment with the wheel and what it requires; its python."""
    build = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation"]
    run([*build, "-w", str(folder), str(ROOT)])
    (wheel,) = folder.glob("gpujob-*.whl")
    run([sys.executable, "-m", "venv", str(folder / "env")])
    python = folder / "env/bin/python"
    pip = [str(python), "-m", "pip", "install", "-qq", "--no-compile"]
    run([*pip, "--require-hashes", "-r", str(ROOT / "requirements/runtime.txt")])
    run([*pip, "--no-deps", str(wheel)])
    return python


def size_mb(site: Path) -> float:
    return sum(path.stat().st_size for path in _installed(site)) / 1e6


def _installed(site: Path) -> list[Path]:
    return [
        path
        for path in site.rglob("*")
        if path.is_file() and path.relative_to(site).parts[0].split("-")[0] not in NOT_OURS
    ]


def measure(runs: int) -> list[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="gj-install-"))
    try:
        say("installing")
        python = install(folder)
        (site,) = (folder / "env").glob("lib/python3*/site-packages")
        if (site / "boto3").exists():
            raise RuntimeError("boto3 is part of the core install")
        packages = len([path for path in site.glob("*.dist-info") if path.name.split("-")[0] not in NOT_OURS])
        plain = size_mb(site)
        run([str(python), "-m", "compileall", "-q", str(site)])
        sizes = [
            Figure(f"core install, {packages} packages", (plain,), "MB", CORE_MB, "max"),
            Figure("the same with bytecode", (size_mb(site),), "MB", CORE_MB, "max"),
        ]
        return [*sizes, *(_import_cost(python, folder, part, runs) for part in ("sys", *PARTS))]
    finally:
        shutil.rmtree(folder)


def _import_cost(python: Path, cwd: Path, part: str, runs: int) -> Figure:
    """CPU seconds of a process that only imports it; the first import, which warms the disk's cache, is not counted."""
    say(f"import {part}")
    used = [run([str(python), "-c", f"import {part}"], cwd=cwd).cpu for _ in range(runs + 1)]
    return Figure(f"import {part}", tuple(used[1:]), "CPU-s")


if __name__ == "__main__":
    raise SystemExit(show(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 10)))
