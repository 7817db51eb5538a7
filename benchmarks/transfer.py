"""Transfers beside the best raw tools on the same path; figures of one run, shown in `transfer.md`.

    python benchmarks/transfer.py s3 [--mib 1024] [--files 10000] [--checkpoint-mib 2048] [--repeats 3] [--folder DIR]

A size of 0 leaves its figures out. Each part is a module of its own, `transfer_PART.py`, with `main(folder, ...)`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

PARTS = ("s3",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--checkpoint-mib", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3, help="of each tool; the fastest counts")
    parser.add_argument("--folder", type=Path, help="an empty folder with some GB of room; default: a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores at the start")
        import transfer_s3

        figures = transfer_s3.main(Path(folder), args.mib, args.files, args.checkpoint_mib, args.repeats)
        print(f"load {os.getloadavg()[0]:.1f} at the end")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
