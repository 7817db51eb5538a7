"""Stands for the program that ran under Slurm; unchanged but for `--resume`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ckpt", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--seconds-per-epoch", type=float, default=60)
    args = parser.parse_args()
    asked_to_end = []
    signal.signal(signal.SIGUSR1, lambda *_: asked_to_end.append(True))
    start = json.loads(args.resume.read_text(encoding="utf-8"))["epoch"] if args.resume else 0
    for epoch in range(start + 1, args.epochs + 1):
        time.sleep(args.seconds_per_epoch)  # an epoch with args.workers data loaders
        args.ckpt.mkdir(parents=True, exist_ok=True)
        beside = args.ckpt / f".epoch_{epoch}.tmp"
        beside.write_text(json.dumps({"epoch": epoch}), encoding="utf-8")
        os.replace(beside, args.ckpt / f"epoch_{epoch}.json")
        print(f"epoch {epoch}/{args.epochs}", flush=True)
        if asked_to_end:
            return 128 + signal.SIGUSR1
    (args.out / "model.json").write_text(json.dumps({"epoch": args.epochs}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
