"""`gpujob compare` on a sweep of 500 legs with 100 reports each. Bar: 0.5 CPU-s; the page is measured beside it.

    ./dev bench sweep_compare [RUNS]

The books are real (`tests/unit/sweep_books.py` writes them through the store): 500 legs with four parameters on 25
machines, most done, the others stopped early or failed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from _measure import ROOT, Figure, run, say, show

sys.path.insert(0, str(ROOT / "tests" / "unit"))

import cli_books
import sweep_books

from orchestrator.legs import LegState

LEGS, REPORTS, MACHINES = 500, 100, 25
CPU_S = 0.5
RUNS = 9


def make(folder: Path) -> None:
    """The books of a sweep that is over, so that no controller is woken for it."""
    rows = sweep_books.drawn(LEGS, REPORTS)
    over = [row if row.state in sweep_books.ENDS else replace(row, state=LegState.DONE) for row in rows]
    with cli_books.writer(cli_books.home_at(folder)) as store:
        sweep_books.make(store, over, paid="4.20", machines=MACHINES, parameters=sweep_books.PARAMETERS)


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        say(f"writing the books of {LEGS} legs")
        make(folder)
        env = {**os.environ, "GPUJOB_HOME": str(folder), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "orchestrator.cli.main", "compare", "tune"]
        page = folder / "page.html"
        cases = {"table": [], "-o csv": ["-o", "csv"], "-o json": ["-o", "json"], "--html": ["--html", str(page)]}
        figures = []
        for name, more in cases.items():
            used = [run([*command, *more], env=env) for _ in range(runs)]
            limit = CPU_S if name == "table" else None
            figures.append(Figure(f"compare, {LEGS} legs, {name}", tuple(each.cpu for each in used), "CPU-s", limit))
            if name == "table":
                figures.append(Figure("memory of it", tuple(each.peak_mb for each in used), "MB"))
        figures.append(Figure("the page", (page.stat().st_size / 1e6,), "MB"))
    return show(figures)


if __name__ == "__main__":
    sys.exit(main())
