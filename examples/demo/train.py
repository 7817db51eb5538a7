"""Train a small network on handwritten digits so that it can lose its machine at any moment.

What makes it safe to interrupt is in four places, and needs nothing of gpujob but environment variables:
- `save` writes the whole state (weights, optimizer, step, random generator, history) beside its name and renames it,
  so a checkpoint is there completely or not at all;
- `load` brings every part of it back, so the steps after a resume are the ones that would have come anyway;
- SIGTERM saves once more and ends with the exit code of that signal;
- everything worth keeping goes to $GPUJOB_OUT, checkpoints go to $GPUJOB_CKPT.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

LAYERS = (64, 384, 384, 10)
BATCH = 128
RATE = 1e-4
DECAY_1, DECAY_2, EPSILON = 0.9, 0.999, 1e-8  # Adam's usual constants
HELD_OUT = 360  # one digit in five is never trained on
SAVE_EVERY_S = 2.0
REPORT_EVERY = 100  # steps

Arrays = list[np.ndarray]


@dataclass
class State:
    """All that the next step depends on. `history` rows are (step, training loss, accuracy on held-out digits)."""

    weights: Arrays
    first: Arrays
    second: Arrays
    rng: np.random.Generator
    step: int = 0
    history: list[tuple[int, float, float]] = field(default_factory=list)
    resumed_at: list[int] = field(default_factory=list)


def fresh(seed: int) -> State:
    """Step 0. Weights alternate matrix (inputs, outputs) and bias (outputs,), all float32."""
    rng = np.random.default_rng(seed)
    weights: Arrays = []
    for inputs, outputs in itertools.pairwise(LAYERS):
        weights.append((rng.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32))
        weights.append(np.zeros(outputs, np.float32))
    return State(weights, [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights], rng)


def save(state: State, folder: Path) -> Path:
    """Write `step_N.npz`; it appears under its name only when it is whole and on the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{state.step}.npz"
    beside = folder / f".{path.name}.tmp"
    arrays = {f"{kind}{i}": a for kind in ("weights", "first", "second") for i, a in enumerate(getattr(state, kind))}
    rest = {
        "step": state.step,
        "rng": state.rng.bit_generator.state,
        "history": state.history,
        "resumed_at": state.resumed_at,
    }
    with beside.open("wb") as out:
        np.savez(out, rest=np.array(json.dumps(rest)), **arrays)
        out.flush()
        os.fsync(out.fileno())
    os.replace(beside, path)
    return path


def load(path: Path) -> State:
    """The state that `save` wrote, with this resume added to its record."""
    with np.load(path) as stored:
        rest = json.loads(str(stored["rest"]))
        kinds = [[stored[f"{kind}{i}"] for i in range(2 * len(LAYERS) - 2)] for kind in ("weights", "first", "second")]
    rng = np.random.default_rng()
    rng.bit_generator.state = rest["rng"]
    history = [(int(step), float(loss), float(accuracy)) for step, loss, accuracy in rest["history"]]
    return State(*kinds, rng, rest["step"], history, [*rest["resumed_at"], rest["step"]])


def digits(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(images, labels) to train on, then (images, labels) held out; images are float32 in [0, 1], (n, 64)."""
    with gzip.open(path, "rt") as rows:
        table = np.loadtxt(rows, delimiter=",", dtype=np.float32)
    table = table[np.random.default_rng(0).permutation(len(table))]
    images, labels = table[:, :64] / 16, table[:, 64].astype(int)
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def varied(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each 8 x 8 image moved by up to one pixel, with noise: 1,437 digits alone are learnt by heart in seconds."""
    padded = np.pad(images.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    moves = rng.integers(0, 3, (len(images), 2))
    rows = moves[:, 0, None, None] + np.arange(8)[:, None]
    columns = moves[:, 1, None, None] + np.arange(8)
    moved = padded[np.arange(len(images))[:, None, None], rows, columns].reshape(-1, 64)
    return moved + rng.normal(0, 0.2, moved.shape).astype(np.float32)


def forward(weights: Arrays, images: np.ndarray) -> Arrays:
    """What each layer puts out, the images first and the logits last."""
    outputs = [images]
    for i in range(0, len(weights), 2):
        values = outputs[-1] @ weights[i] + weights[i + 1]
        outputs.append(np.maximum(values, 0) if i + 2 < len(weights) else values)
    return outputs


def train_step(state: State, images: np.ndarray, labels: np.ndarray) -> float:
    """One Adam step on one random batch; returns its mean cross-entropy."""
    chosen = state.rng.integers(0, len(images), BATCH)
    outputs = forward(state.weights, varied(images[chosen], state.rng))
    logits = outputs[-1] - outputs[-1].max(axis=1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    rows = np.arange(BATCH)
    loss = float(-logs[rows, labels[chosen]].mean())
    slope = np.exp(logs)
    slope[rows, labels[chosen]] -= 1
    slope /= BATCH
    state.step += 1
    unbias = np.sqrt(1 - DECAY_2**state.step) / (1 - DECAY_1**state.step)
    for i in range(len(state.weights) - 2, -1, -2):
        gradients = (outputs[i // 2].T @ slope, slope.sum(axis=0))
        if i:
            slope = (slope @ state.weights[i].T) * (outputs[i // 2] > 0)
        for j, gradient in enumerate(gradients, start=i):
            state.first[j] += (1 - DECAY_1) * (gradient - state.first[j])
            state.second[j] += (1 - DECAY_2) * (gradient**2 - state.second[j])
            state.weights[j] -= np.float32(RATE * unbias) * state.first[j] / (np.sqrt(state.second[j]) + EPSILON)
    return loss


def accuracy(weights: Arrays, images: np.ndarray, labels: np.ndarray) -> float:
    """Share of digits that are named right."""
    return float((forward(weights, images)[-1].argmax(axis=1) == labels).mean())


def draw(state: State, path: Path) -> None:
    """The learning curve, with a line wherever the job went on after losing a machine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps, losses, accuracies = np.array(state.history).T
    figure, left = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    right = left.twinx()
    (loss_line,) = left.plot(steps, losses, color="#888888", linewidth=0.9, label="training loss")
    (accuracy_line,) = right.plot(steps, 100 * accuracies, color="#1f77b4", linewidth=1.8, label="held-out accuracy")
    lines = [loss_line, accuracy_line]
    for i, step in enumerate(state.resumed_at):
        line = left.axvline(step, color="#d62728", linestyle="--", linewidth=1.4)
        side = -1 if step > 0.6 * steps[-1] else 1
        left.annotate(f"resumed at step {step}", (step, 0.04), xytext=(6 * side, 0), xycoords=("data", "axes fraction"),
                      textcoords="offset points", color="#d62728", ha="right" if side < 0 else "left")  # fmt: skip
        if i == 0:
            line.set_label("machine lost, another one went on")
            lines.append(line)
    left.set_yscale("log")
    left.set_xlabel("step")
    left.set_ylabel("loss (log scale)")
    right.set_ylabel("accuracy, %")
    right.set_ylim(top=100.5)
    left.set_xlim(0, steps[-1])
    left.legend(handles=lines, loc="center right", framealpha=1)
    left.set_title("Handwritten digits: one learning curve over all machines of the job")
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="digits.csv.gz")
    parser.add_argument("--ckpt-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=0, help="a step takes at least so long")
    args = parser.parse_args()

    asked_to_end = False

    def ask_to_end(*_: object) -> None:
        nonlocal asked_to_end
        asked_to_end = True

    signal.signal(signal.SIGTERM, ask_to_end)
    images, labels, test_images, test_labels = digits(args.data)
    state = load(args.resume) if args.resume else fresh(args.seed)
    if args.resume:
        print(f"resumed {args.resume.name} at step={state.step}/{args.steps}", flush=True)
    else:
        print(f"{len(images)} digits to train on, {len(test_images)} held out", flush=True)
    saved_at = time.monotonic()
    earliest_next = time.monotonic()
    while state.step < args.steps:
        time.sleep(max(0.0, earliest_next - time.monotonic()))
        earliest_next = time.monotonic() + args.step_ms / 1000
        loss = train_step(state, images, labels)
        if state.step % REPORT_EVERY == 0 or state.step == args.steps:
            right = accuracy(state.weights, test_images, test_labels)
            state.history.append((state.step, loss, right))
            print(f"step={state.step}/{args.steps} loss={loss:.4f} acc={right:.4f}", flush=True)
        if asked_to_end:
            print(f"asked to end: saved {save(state, args.ckpt_dir).name}", flush=True)
            return 128 + signal.SIGTERM
        if time.monotonic() - saved_at >= SAVE_EVERY_S:
            print(f"saved {save(state, args.ckpt_dir).name}", flush=True)
            saved_at = time.monotonic()
    save(state, args.ckpt_dir)
    args.out.mkdir(parents=True, exist_ok=True)
    draw(state, args.out / "learning_curve.png")
    result = {
        "steps": state.step,
        "loss": state.history[-1][1],
        "accuracy": state.history[-1][2],
        "resumed_at": state.resumed_at,
    }
    (args.out / "metrics.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"done: {result['accuracy']:.1%} of the held-out digits are right", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
