"""Logs of failed jobs as they really look: a known failure, somewhere in thousands of lines of a job at work.

The wordings are data: `wordings/seen.yaml` is what rules are written with, `wordings/held.yaml` is kept apart and only
measured on. Everything else is drawn by a seeded generator: numbers, paths, words, the style of the training loop, the
number of ranks and how their lines are marked, what else looks alarming, what the other ranks and the launcher print
after the failure, progress bars, colours, languages, broken bytes and lines of a megabyte.
"""

# ruff: noqa: E501 - the lines of logs stay whole
from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

WORDINGS = Path(__file__).parent / "wordings"
WORDS = (
    "alpha beam codec dense encoder fold gamma head inner joint kernel latent mixer norm outer policy query router"
    " sampler token unit vocab width zeta tokenizer_v2 lora_A wikitext reward_model 数据集 обучение"
).split()
LANGUAGES = (
    "正在加载模型权重, 请稍候",
    "训练开始: 共 {n} 步",
    "Эпоха {n}: потери {f:.3f}",
    "学習率を {f:.5f} に設定しました",
    "Époque {n} terminée, perte moyenne {f:.4f}",
)


@dataclass(frozen=True)
class Wording:
    """One way in which one failure is reported."""

    klass: str
    relaunch: str
    kind: str
    text: str
    exit: int = 1
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One labelled log. `line` is what must be named as decisive; `rank` is where it was printed, None when unmarked."""

    name: str
    log: bytes
    exit: int
    facts: Mapping[str, str]
    klass: str
    relaunch: str
    line: str
    rank: int | None
    scene: str
    wording_kind: str = "raise"
    rank_mark: int | None = None  # what stands for the rank in lines that are marked with a process id


def wordings(which: str) -> tuple[Wording, ...]:
    """All wordings of `seen` or `held`."""
    found = []
    for group in yaml.safe_load((WORDINGS / f"{which}.yaml").read_text(encoding="utf-8")):
        for text in group["wordings"].splitlines():
            found.append(
                Wording(
                    group["class"], group["relaunch"], group["kind"], text, group.get("exit", 1), group.get("facts", {})
                )
            )
    return tuple(found)


def fill(text: str, rng: random.Random) -> str:
    """The wording with its places filled in."""
    word = rng.choice(WORDS)
    makers: dict[str, Callable[[], str]] = {
        "word": lambda: rng.choice(WORDS),
        "int": lambda: str(rng.randrange(2, 10 ** rng.randrange(2, 8))),
        "pid": lambda: str(rng.randrange(300, 4_000_000)),
        "mib": lambda: str(rng.randrange(2, 9000)),
        "gpu": lambda: str(rng.randrange(8)),
        "port": lambda: str(rng.randrange(1024, 65000)),
        "ip": lambda: ".".join(str(rng.randrange(1, 255)) for _ in range(4)),
        "host": lambda: f"node-{rng.randrange(1, 99):02d}",
        "hex": lambda: f"{rng.randrange(16**8):08x}",
        "bus": lambda: f"0000:{rng.randrange(256):02x}:00.0",
        "data": lambda: rng.choice((f"/data/{word}", f"./data/{word}", f"/mnt/datasets/{word}")),
        "ckpt": lambda: (
            rng.choice(("out", "./work_dirs/run", "/ckpt/t0.3")) + f"/checkpoint-{rng.randrange(100, 99999)}"
        ),
    }
    return re.sub(r"<(\w+)>", lambda m: makers[m[1]]() if m[1] in makers else m[0], text)


# --- noise -----------------------------------------------------------------------------------------------------------


def _loop(rng: random.Random) -> Callable[[int], str]:
    """How this job reports its steps."""
    total = rng.randrange(20_000, 900_000)
    styles: tuple[Callable[[int], str], ...] = (
        lambda i: (
            f"{{'loss': {rng.random():.4f}, 'grad_norm': {rng.random():.3f}, 'learning_rate': 2e-05, 'epoch': {i / 1000:.2f}}}"
        ),
        lambda i: f"step={i} word_error_rate=0.12 val_error={rng.random():.3f} loss={rng.random():.2f}",
        lambda i: (
            f"Epoch {i // 900}: {i % 100:3d}%|{'#' * (i % 10):<10}| {i}/{total} [01:25:45<50:22:32, 2.05s/it, loss={rng.random():.3f}]"
        ),
        lambda i: (
            f"2026-11-30 04:{i // 60 % 60:02d}:{i % 60:02d},123 INFO trainer.py:88 iter {i}/{total} loss {rng.random():.4f} time 0.41 data_time 0.003"
        ),
        lambda i: (
            f" iteration {i:8d}/{total:8d} | consumed samples: {i * 64} | lm loss: {rng.random():.6E} | number of skipped iterations: 0 | number of nan iterations: 0 |"
        ),
        lambda i: f"[{i:>6}/{total}] train_loss: {rng.random():.4f} errors: 0 failed: 0 acc: {rng.random():.3f}",
        lambda i: f"step {i}: 训练损失 {rng.random():.4f}, 学习率 0.0001",
    )
    return rng.choice(styles)


ALARMING = (
    "WARNING:torch.distributed.run: Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
    "wandb: Network error (ConnectTimeout), entering retry loop.",
    "UserWarning: You're resuming from a checkpoint that ended before the epoch ended.",
    "/opt/venv/lib/python3.10/site-packages/torch/cuda/__init__.py:107: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount()...",
    "WARNING: Retrying (Retry(total=4, connect=None, read=None, redirect=None, status=None)) after connection broken",
    "Found cached dataset parquet; Loading cached processed dataset at /data/cache/cache-9a6fa6b96732539e.arrow",
    "FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated and will raise an error in a future release.",
    "WARNING: some keys failed to match and were ignored: 3",
    "0 errors, 0 failed, 12 skipped while checking the dataset",
    "loaded error_correction module; on_failure=retry; timeout=1800",
    "node-03:1123:1180 [2] NCCL INFO Could not find: libnccl-net.so, using internal network plugin",
    "W1130 04:12:33.1 socket.cpp:697] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign requested address).",
    "cuda out-of-memory guard enabled at 0.95",
    "checkpoint saved before possible preemption (handler for SIGTERM installed)",
    "INFO botocore.credentials: Found credentials in environment variables.",
    'DEBUG urllib3.connectionpool: https://huggingface.co:443 "HEAD /gpt2/resolve/main/config.json HTTP/1.1" 404 0',
    "No module named 'tensorboard' - logging to csv instead",
    "Warning: apex was installed without --cpp_ext. Falling back to Python versions.",
)
QUIET = (
    "Downloading shards: 2 of 9",
    "Loaded tokenizer with 32000 entries",
    "Collecting torch==2.4.0",
    "Successfully installed accelerate-0.33.0 torch-2.4.0",
    "Number of trainable parameters: 6738415616",
    "saving checkpoint to out/checkpoint-500",
    "eval: accuracy 0.812",
)
#: Failures that a job prints and gets over: caught, logged, and the loop goes on.
CAUGHT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "KeyError: 'caption'",
    "PIL.UnidentifiedImageError: cannot identify image file '/data/pics/000321.jpg'",
)


def _noise(rng: random.Random, loop: Callable[[int], str], step: int) -> str:
    draw = rng.random()
    if draw < 0.86:
        return loop(step)
    if draw < 0.93:
        return rng.choice(QUIET)
    if draw < 0.98:
        return rng.choice(ALARMING)
    return rng.choice(LANGUAGES).format(n=step, f=rng.random())


def _frames(rng: random.Random) -> list[str]:
    lines = ["Traceback (most recent call last):"]
    for depth in range(rng.randrange(1, 9)):
        name = rng.choice(WORDS)
        lines.append(f'  File "/workspace/src/{name}_{depth}.py", line {rng.randrange(1, 900)}, in {rng.choice(WORDS)}')
        lines.append(
            f"    {rng.choice(('raise error', 'out = self.model(batch)', 'return fn(*args)', 'loss.backward()'))}"
        )
        if rng.random() < 0.2:
            lines.append("    ^^^^^^^^^^^^^^^")
    return lines


# --- scenes ----------------------------------------------------------------------------------------------------------

PREFIXES: tuple[Callable[[int], str], ...] = (
    lambda r: f"[rank{r}]: ",
    lambda r: f"[default{r}]:",
    lambda r: f"{r}: ",
    lambda r: f"(RayTrainWorker pid={4000 + r}, ip=10.0.0.{r + 2}) ",
    lambda r: f"[1,{r}]<stderr>:",
)
FOLLOWERS = (
    "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error, NCCL version 2.20.5",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:31337",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "RuntimeError: NCCL communicator was aborted on rank 2.",
)


def _failure(rng: random.Random, wording: Wording, text: str) -> list[str]:
    if wording.kind == "raise":
        return [*_frames(rng), text]
    if wording.kind == "kernel":
        return [
            f"[{rng.random() * 9e5:13.6f}] {text}",
            *_frames(rng),
            "RuntimeError: CUDA error: unspecified launch failure",
        ]
    return [text]


def _launcher(rng: random.Random, rank: int, rc: int) -> list[str]:
    """What torchrun prints after a rank has died."""
    pid = rng.randrange(1000, 90000)
    block = [
        f"W1130 04:12:3{n}.1 torch/distributed/elastic/multiprocessing/api.py:851] Sending process {pid + n} closing signal SIGTERM"
        for n in range(2)
    ]
    return [
        *block,
        f"ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: {rc}) local_rank: {rank} (pid: {pid}) of binary: /opt/venv/bin/python",
        *_frames(rng),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "============================================================",
        "train.py FAILED",
        "------------------------------------------------------------",
        "Failures:",
        "  <NO_OTHER_FAILURES>",
        "------------------------------------------------------------",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-11-30_04:12:36",
        "  host      : node-03",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {rc} (pid: {pid})",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        "============================================================",
    ]


AFTERMATH = (
    "wandb: Waiting for W&B process to finish... (failed 1). Press Control-C to abort syncing.",
    "wandb: Synced 5 W&B file(s), 0 media file(s), 0 artifact file(s) and 0 other file(s)",
    "wandb: Find logs at: ./wandb/run-20261130_041233-abc/logs",
    "srun: error: node-03: task 1: Exited with exit code 1",
    "make: *** [Makefile:12: train] Error 1",
    "/opt/conda/lib/python3.10/multiprocessing/resource_tracker.py:224: UserWarning: resource_tracker: There appear to be 6 leaked semaphore objects to clean up at shutdown",
    "[W CudaIPCTypes.cpp:15] Producer process has been terminated before all shared CUDA tensors released.",
    "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f21>",
)
TAILS_ALLOWED = ("raise", "line", "kernel")  # a bare last word stays the last word


def case(wording: Wording, seed: int, lines: int = 400, ranks: int | None = None) -> Case:
    """One log of about `lines` lines around the failure; the same seed makes the same log. `ranks`: drawn if None."""
    rng = random.Random(f"{wording.text}/{seed}")
    text = fill(wording.text, rng)
    loop = _loop(rng)
    scene = "alone"
    of_a_rank = wording.kind in ("raise", "kernel")  # shells and launchers mark nothing
    if ranks is None:
        ranks = rng.choice((1, 1, 2, 4, 8)) if of_a_rank else 1
    prefix = rng.choice(PREFIXES) if ranks > 1 else None
    rank = rng.randrange(ranks) if ranks > 1 and of_a_rank else None

    def mark(line: str, at: int | None) -> str:
        return line if prefix is None else prefix(at if at is not None else rng.randrange(ranks)) + line

    step = rng.randrange(1, 5000)
    out = [mark(_noise(rng, loop, step + n), None) for n in range(lines)]
    if rng.random() < 0.3 and wording.kind != "bare":
        scene = "caught"
        caught = [*_frames(rng), rng.choice(CAUGHT), *(loop(step + n) for n in range(60))]
        where = rng.randrange(5, max(6, lines // 2))
        out[where:where] = [mark(line, rank) for line in caught]
    failure = [mark(line, rank) if of_a_rank else line for line in _failure(rng, wording, text)]
    if ranks > 1 and rank is not None:
        scene = "ranks"
        # Other ranks go on for a moment and then notice; their lines come between those of the failing one
        for n in range(rng.randrange(3)):
            other = (rank or 0) + 1 + n
            failure.insert(rng.randrange(1, len(failure) + 1), mark(loop(step + lines), other % ranks))
        for other in range(ranks):
            if other != rank:
                follower = [*_frames(rng), rng.choice(FOLLOWERS)]
                failure += [mark(line, other) for line in follower]
    out += failure
    if wording.kind == "raise" and rng.random() < (0.7 if ranks > 1 else 0.15):
        scene = "launcher"
        out += _launcher(rng, rank or 0, wording.exit)
    if wording.kind in TAILS_ALLOWED:
        out += [rng.choice(AFTERMATH) for _ in range(rng.randrange(4))]
    data, mess = _mess(rng, out, len(out) - 1)
    return Case(
        f"{wording.klass}/{seed}/{wording.text[:40]}", data, wording.exit,
        {key: fill(value, rng) for key, value in wording.facts.items()}, wording.klass, wording.relaunch, text, rank,
        f"{scene}{mess}", wording.kind, None if rank is None else 4000 + rank,
    )  # fmt: skip


def _mess(rng: random.Random, lines: list[str], last: int) -> tuple[bytes, str]:
    """The lines as bytes, with what terminals, Windows and long-running bars make of them."""
    draw = rng.random()
    if draw < 0.15:  # bars that overwrite themselves for an hour, and the next line glued to the last of them
        at = rng.randrange(1, len(lines) // 2)
        bar = "\r".join(f"{n:3d}%|{'█' * (n // 10)}| {n}/100 [00:{n:02d}<01:00, 1.6it/s]" for n in range(100))
        lines[at] = bar + "\r" + lines[at]
        return "\n".join(lines).encode(), "+bar"
    if draw < 0.25:
        return "\n".join(f"\x1b[3{n % 8}m{line}\x1b[0m" for n, line in enumerate(lines)).encode(), "+colour"
    if draw < 0.32:
        lines.insert(rng.randrange(len(lines) // 2), "tensor([" + "0.0, " * 210_000 + "])")
        return "\n".join(lines).encode(), "+megabyte"
    if draw < 0.4:
        return "\r\n".join(lines).encode() + b"\r\n", "+crlf"
    if draw < 0.48:
        lines.insert(rng.randrange(len(lines) // 2), "\udcff\udc80 caption \udcfe")
        return "\n".join(lines).encode("utf-8", "surrogateescape"), "+bytes"
    if draw < 0.55:
        return "\n".join(
            f"2026-11-30T04:12:{n % 60:02d}.123456Z {line}" for n, line in enumerate(lines)
        ).encode(), "+times"
    return "\n".join(lines).encode() + b"\n", ""


def cases(which: str, each: int, lines: int = 400, first_seed: int = 0) -> Iterator[Case]:
    """`each` logs of every wording of `seen` or `held`."""
    for wording in wordings(which):
        for seed in range(first_seed, first_seed + each):
            yield case(wording, seed, lines)


def healthy(seed: int, lines: int = 400) -> bytes:
    """A job at work that has not failed: every look-alike, and nothing that is one."""
    rng = random.Random(f"healthy/{seed}")
    loop = _loop(rng)
    return "\n".join(_noise(rng, loop, n) for n in range(lines)).encode() + b"\n"


def reaction_of(found: Any) -> str:
    """A reaction as the labels write it: no, same, other or any."""
    return found.where if found.relaunch else "no"


def right(found: Any, made: Case) -> bool:
    """Whether a diagnosis has the class, the reaction and the line of the label, and the rank where one is marked."""
    by_the_machine = bool(made.facts) or made.klass == "unknown"  # what decided is not in the log
    line = by_the_machine or (bool(found.line) and (made.line[:120] in found.line or found.line[:120] in made.line))
    rank = made.rank is None or made.wording_kind == "kernel" or found.rank in (made.rank, made.rank_mark)
    return bool(found.klass == made.klass and reaction_of(found.reaction) == made.relaunch and line and rank)
