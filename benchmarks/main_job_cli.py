"""CPU seconds of the command line: `--help` with and without bytecode, `ps` with 1,000 jobs. Bars: 0.15 and 0.3.

    ./dev bench main_job_cli [RUNS]

The books of `ps` are filled through the store's own writes: 1,000 live jobs of two attempts each, with a machine, a
run, progress and a bill. "Without bytecode" is a copy of the three packages without any, which is never written.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path

from _desk import Desk
from _measure import ROOT, Figure, Used, run, say, show

from orchestrator import actions
from orchestrator.home import Home
from orchestrator.model import CreateOutcome, Job, Reason, Task
from orchestrator.store import Store
from providers.base import Instance, Offer, Ref

HELP_S, PS_S = 0.15, 0.3
JOBS = 1000
SPEC = {"gpu": "RTX-4090", "run": "python train.py", "ttl": "12h", "retry": {"max": 2}}
OFFER = Offer("acme", "main", "eu-1", "m1", True, Decimal("0.34"), "USD", gpu="RTX-4090", gpu_count=1, vram_gb=24)


def fill(home: Home, jobs: int) -> None:
    """Books with that many live jobs."""
    now = time.time() - 3600
    with Store.open_writer(home, 1, deployment="bench0") as store, store.transaction():
        for number in range(jobs):
            name = f"job-{number:04}"
            job = Job(f"{name}.1-ab12", name, 1, {"name": name, **SPEC}, "h", "s", "/base", now + number)
            store.add_job(job, [Task(job.id, "t0")])
            _attempt(store, job.id, 1, now, lost=True)
            _attempt(store, job.id, 2, now + 900, lost=False)


def _attempt(store: Store, job: str, n: int, now: float, lost: bool) -> None:
    intent = actions.OpenRental(OFFER, now + 43_200, Reason.TTL, Decimal("4.10"))
    rental = store.apply(job, [intent], now).opened[0].id
    store.create_sent(rental, now)
    made = Instance(Ref("acme", "main", "eu-1", f"i-{rental}"), "running", None, machine_id="host")
    store.create_result(rental, CreateOutcome.MADE, made, "", now + 1)
    store.apply(job, [actions.StoreReady(rental), actions.CommitAssignment("t0", n, rental, (), "", "", None)], now + 2)
    store.ordered(job, "t0", n, now + 3)
    store.progress_seen(job, "t0", n, now + 600, step=300.0, total=1000.0, sample={"gpus": []}, phase="run")
    store.bill(rental, "instance", Decimal("0.08"), now + 800)
    if lost:
        release = actions.Release(rental, Reason.INTERRUPTED, "reclaimed", interrupted=True)
        store.apply(job, [release, actions.StoreQuiesced(rental), actions.StoreGone(rental)], now + 850)


def repeat(command: list[str], env: dict[str, str], runs: int) -> list[Used]:
    """One run to warm the caches, then the counted ones."""
    return [run(command, env=env, cwd=Path("/")) for _ in range(runs + 1)][1:]


def measure(runs: int) -> list[Figure]:
    gpujob = [sys.executable, "-m", "orchestrator.cli.main"]
    bare = Path(tempfile.mkdtemp(prefix="gj-bare-"))
    try:
        for package in ("jobspecs", "providers", "orchestrator"):
            shutil.copytree(ROOT / package, bare / package, ignore=shutil.ignore_patterns("__pycache__"))
        with Desk() as desk, Desk(bare, bytecode=False) as without:
            say("--help")
            python = repeat([sys.executable, "-c", "pass"], desk.env, runs)
            compiled = repeat([*gpujob, "--help"], desk.env, runs)
            raw = repeat([*gpujob, "--help"], without.env, runs)
            assert not list(bare.rglob("__pycache__"))
            say(f"books with {JOBS} jobs")
            fill(desk.home.make(), JOBS)
            # With open machines `ps` would start a controller, which calls the provider: the lock says it lives
            lock = os.open(desk.home.lock, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            say("ps")
            ps = repeat([*gpujob, "ps"], desk.env, runs)
            as_json = repeat([*gpujob, "ps", "-o", "json"], desk.env, runs)
            os.close(lock)
            assert ps[-1].out.count("\n") == JOBS + 1, ps[-1].out[:500]
    finally:
        shutil.rmtree(bare)
    return [
        Figure("python -c pass", cpu(python), "CPU-s"),
        Figure("gpujob --help", cpu(compiled), "CPU-s", HELP_S, "max"),
        Figure("gpujob --help, no bytecode", cpu(raw), "CPU-s", HELP_S, "max"),
        Figure(f"gpujob ps, {JOBS} jobs", cpu(ps), "CPU-s", PS_S, "max"),
        Figure(f"gpujob ps -o json, {JOBS} jobs", cpu(as_json), "CPU-s", PS_S, "max"),
    ]


def cpu(runs: list[Used]) -> tuple[float, ...]:
    return tuple(used.cpu for used in runs)


if __name__ == "__main__":
    raise SystemExit(show(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 20)))
