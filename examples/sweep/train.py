"""A network of one hidden layer learns to tell two half-moons apart; standard library only, some seconds a leg.

What a leg of a sweep needs: parameters from its command line, one JSON line a report in $GPUJOB_METRICS, and, since a
lost machine is only a pause, checkpoints and a resume. A report of a step that was reported before changes nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from pathlib import Path

STEPS, REPORT_EVERY, SAVE_EVERY = 180, 10, 60


def moons(chance: random.Random, count: int) -> list[tuple[float, float, int]]:
    """Points of two half-moons that lie in each other, with noise."""
    points = []
    for number in range(count):
        angle, label = chance.uniform(0, math.pi), number % 2
        x = math.cos(angle) if label == 0 else 1 - math.cos(angle)
        y = math.sin(angle) if label == 0 else 0.5 - math.sin(angle)
        points.append((x + chance.gauss(0, 0.15), y + chance.gauss(0, 0.15), label))
    return points


class Network:
    """Two inputs, `hidden` units, one output: the chance that a point is of the second moon."""

    def __init__(self, hidden: int, act: str, chance: random.Random) -> None:
        self.act = act
        self.first = [[chance.gauss(0, 1) for _ in range(3)] for _ in range(hidden)]
        self.second = [chance.gauss(0, 1 / math.sqrt(hidden)) for _ in range(hidden + 1)]

    def hidden(self, x: float, y: float) -> list[float]:
        sums = [a * x + b * y + c for a, b, c in self.first]
        return [math.tanh(s) if self.act == "tanh" else max(0.0, s) for s in sums]

    def output(self, units: list[float]) -> float:
        total = sum(w * u for w, u in zip(self.second, [*units, 1.0], strict=True))
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))

    def loss(self, points: list[tuple[float, float, int]]) -> float:
        """Mean cross-entropy."""
        total = 0.0
        for x, y, label in points:
            chance = self.output(self.hidden(x, y))
            total -= math.log(max(1e-12, chance if label else 1 - chance))
        return total / len(points)

    def learn(self, points: list[tuple[float, float, int]], lr: float) -> None:
        """One step down the gradient on these points."""
        for x, y, label in points:
            units = self.hidden(x, y)
            error = self.output(units) - label
            for i, unit in enumerate(units):
                slope = (1 - unit * unit) if self.act == "tanh" else float(unit > 0)
                back = error * self.second[i] * slope * lr / len(points)
                self.first[i] = [w - back * v for w, v in zip(self.first[i], (x, y, 1.0), strict=True)]
                self.second[i] -= lr * error * unit / len(points)
            self.second[-1] -= lr * error / len(points)


def save(folder: Path, step: int, network: Network) -> None:
    """A checkpoint under its final name only when it is whole."""
    part = folder / "saving.part"
    part.write_text(json.dumps({"step": step, "first": network.first, "second": network.second}))
    part.replace(folder / f"step_{step}.json")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--act", choices=("tanh", "relu"), required=True)
    parser.add_argument(
        "--step-ms", type=float, default=0, help="a pause, so that a leg lasts long enough to be stopped"
    )
    parser.add_argument("--resume", type=Path)
    args = parser.parse_args()
    chance = random.Random(0)
    train, held = moons(chance, 100), moons(chance, 100)
    network, done = Network(args.hidden, args.act, chance), 0
    if args.resume:
        saved = json.loads(args.resume.read_text())
        network.first, network.second, done = saved["first"], saved["second"], saved["step"]
    checkpoints, out = Path(os.environ["GPUJOB_CKPT"]), Path(os.environ["GPUJOB_OUT"])
    for step in range(done + 1, STEPS + 1):
        network.learn(random.Random(step).sample(train, 20), args.lr)  # the same points after a resume
        time.sleep(args.step_ms / 1000)
        if step % REPORT_EVERY == 0:
            loss = network.loss(held)
            with open(os.environ["GPUJOB_METRICS"], "a") as metrics:
                metrics.write(json.dumps({"step": step, "val_loss": loss}) + "\n")
            print(f"step={step} val_loss={loss:.4f}", flush=True)
        if step % SAVE_EVERY == 0:
            save(checkpoints, step, network)
    (out / "model.json").write_text(json.dumps({"first": network.first, "second": network.second}))


if __name__ == "__main__":
    main()
