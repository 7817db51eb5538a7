"""1,000 active jobs in one controller, and beside them 200 real kept connections.

    ./dev bench main_job_scale [JOBS] [REAL] [SECONDS]

Bars, for the 1,000 on simulated machines: under half a core, under 200 MB, and one list call an account and tick
whatever the number of jobs. Every job enters as a request, is decided about, created, armed, prepared and ordered by
the real loop. Then each machine beats every 2 s, sends a sample every 10 s, a log line with its step every 5 s
(FLEET_LOG_S) and a checkpoint every 15 min; results are asked for every 60 s. See _fleet.py for what is simulated.

The real connections lead to a few machines of this host: each rental logs in for itself, with its own key, proves the
nonce and follows the agent over its own stream, where a real run prints a step every 5 s.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _desk import Desk
from _fleet import LOG_S, REAL, SIMULATED, STEPS
from _measure import Figure, cpu_s, rss_mb, say, show, threads

from jobspecs.schema import from_document, spec_hash, to_document
from orchestrator import ssh
from orchestrator.accounts import LIST_EVERY_S
from orchestrator.agent.hook import boot_hook
from orchestrator.cli import client
from orchestrator.store import Store
from providers.base import Ask, Boot, Endpoint, Instance, ProviderConfig, Tag
from providers.local import LocalProvider

HALF_A_CORE, RSS_MB = 50.0, 200.0
HOSTS = 4  # machines of this host that the real connections share
NONCE = "5e7ab1e0" * 4
START_S = 1800.0
REST_S = 45.0  # after the last start: the pace of births has ended, and memory has settled
SPEC = {
    "gpu": "RTX-4090", "run": "python train.py ${GPUJOB_RESUME_FROM:+--resume}", "ttl": "12h",
    "checkpoint": {"pattern": "step_{n}"}, "max_price": "5 USD",
}  # fmt: skip


def apply(desk: Desk, count: int, providers: tuple[str, ...], prefix: str) -> None:
    """Append one request a job, as `gpujob apply` does."""
    with Store.open_requester(desk.home) as store:
        for number in range(count):
            name = f"{prefix}-{number:04}"
            spec = from_document({"name": name, "providers": [providers[number % len(providers)]], **SPEC})
            job = {
                "name": name, "spec": to_document(spec), "spec_hash": spec_hash(spec), "snapshot": "",
                "base_dir": str(desk.project), "currency": "USD", "owner": "me",
            }  # fmt: skip
            store.ask("apply", {"job": job, "mode": "new"})
    client.poke(desk.home)


def wait_running(desk: Desk, count: int) -> None:
    """Until that many runs are ordered and their machines have said so."""

    def running() -> bool:
        with desk.books() as store:
            lines = store.summaries(live_only=True, limit=10_000, now=time.time())
        say(f"  {sum(line.step is not None for line in lines)} of {count} report steps")
        return sum(line.step is not None for line in lines) >= count

    desk.until(running, f"{count} jobs run", START_S, every=3.0)


# --- machines of this host --------------------------------------------------------------------------------------------


def hosts(desk: Desk) -> tuple[LocalProvider, list[dict[str, Any]]]:
    """Real machines with an agent that runs a program; what a connection needs to know of each."""
    provider = LocalProvider(ProviderConfig("hosts", desk.base, ()))
    offer, end = provider.offers(Ask(spot=False))[0], time.time() + 3600
    shared = []
    for number in range(HOSTS):
        folder = desk.base / f"host{number}"
        folder.mkdir()
        hook = boot_hook(nonce=NONCE, end=end, grace_s=10, action="kill", rental=f"host-{number}")
        made = provider.create(offer, Tag("hosts", f"host-{number}"), end, Boot(hook, ssh.new_key(folder)))
        found = desk.until(lambda made=made: _ready(provider, made), "the machine is ready")
        endpoint = found.endpoint
        assert endpoint is not None
        _order(found, endpoint, folder)
        keys = provider.folder(made.ref) / "etc/authorized_keys"
        shared.append({
            "host": endpoint.host, "port": endpoint.port, "user": endpoint.user, "host_key": found.host_keys[0],
            "nonce": NONCE, "authorized_keys": str(keys),
        })  # fmt: skip
    return provider, shared


def _ready(provider: LocalProvider, made: Instance) -> Instance | None:
    found = provider.get(made.ref)
    return found if found is not None and found.ready else None


def _order(found: Instance, endpoint: Endpoint, folder: Path) -> None:
    """Push the agent and have it run a program that prints a step, as task and run of every job here are called."""
    target = ssh.Target("host", endpoint.host, endpoint.port, endpoint.user, found.host_keys, folder)
    connection = ssh.connect(target, 30.0)
    script = f"i=0; while :; do i=$((i+10)); echo step=$i/{STEPS} loss=0.1; sleep {LOG_S:g}; done"
    try:
        connection.push_agent()
        known = {"epoch": 1, "nonce": NONCE}
        now = time.time()
        arm = {"end": now + 3600, "now": now, "grace_s": 10, "action": "kill", "notice_file": ""}
        connection.agent("arm", {**known, **arm})
        connection.agent("prepare", {**known, "job": "fleet"})
        connection.agent("order", {
            **known, "job": "fleet", "task": "t0", "n": 1, "workspace": "base", "code": "",
            "stages": [{"name": "run", "script": script}], "env": {}, "secrets": {}, "resume_from": "",
            "resume_mode": "env", "signal": "TERM", "grace_s": 10, "checkpoint": {"path": "", "pattern": None},
        })  # fmt: skip
    finally:
        connection.close()


# --- measuring --------------------------------------------------------------------------------------------------------


def steady(desk: Desk, pid: int, seconds: float, rounds: int = 3) -> tuple[list[float], list[float], dict[str, int]]:
    """Percent of a core and MB in each round, and the list calls of each account over all of them."""
    time.sleep(REST_S)
    began = time.monotonic()
    cores, memory = [], []
    for _ in range(rounds):
        at, before = time.monotonic(), cpu_s(pid)
        time.sleep(seconds)
        cores.append(100 * (cpu_s(pid) - before) / (time.monotonic() - at))
        memory.append(rss_mb(pid))
    ended = time.monotonic()
    calls = {}
    for path in (desk.home.state / "calls").glob("*.list"):
        times = [float(line) for line in path.read_text().splitlines()]
        calls[path.stem] = sum(began <= at < ended for at in times)
    return cores, memory, calls


def measure(jobs: int, real: int, seconds: float) -> list[Figure]:
    with Desk() as desk:
        provider, shared = hosts(desk) if real else (None, [])
        (desk.base / "shared.json").write_text(json.dumps(shared))
        # A limit that does not bind: what it costs to keep one is part of the figure, since it is there by default
        desk.home.make().config_file.write_text("limits: {per_job: none, per_month: 1000000 USD, machines: none}\n")
        with desk.home.controller_log.open("ab") as log:
            controller = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("_fleet.py")), str(desk.base / "shared.json")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(os.environ),
            )  # fmt: skip
        try:
            desk.until(lambda: client.connected(desk.home), "the controller listens")
            return _measured(desk, controller.pid, jobs, real, seconds)
        finally:
            controller.terminate()
            controller.wait(30)
            for instance in provider.list("here").instances if provider is not None else ():
                provider.destroy(instance.ref)


def _measured(desk: Desk, pid: int, jobs: int, real: int, seconds: float) -> list[Figure]:
    began, before = time.monotonic(), cpu_s(pid)
    apply(desk, jobs, SIMULATED, "sim")
    wait_running(desk, jobs)
    took, used = time.monotonic() - began, cpu_s(pid) - before
    say(f"{jobs} jobs run after {took:.0f} s; steady state")
    cores, memory, calls = steady(desk, pid, seconds)
    figures = [
        Figure(f"{jobs} jobs from their requests to running", (used,), "CPU-s"),
        Figure(f"{jobs} jobs, simulated machines", tuple(cores), "% of a core", HALF_A_CORE, "max"),
        Figure("the same, resident memory", tuple(memory), "MB", RSS_MB, "max"),
        *(_ticks(account, count, 3 * seconds) for account, count in sorted(calls.items())),
    ]
    if real:
        apply(desk, real, (REAL,), "real")
        wait_running(desk, jobs + real)
        say(f"{real} more over real connections; steady state")
        cores, memory, calls = steady(desk, pid, seconds)
        with_real = f"{jobs} and {real} real connections ({threads(pid)} threads)"
        figures += [
            Figure(with_real, tuple(cores), "% of a core", HALF_A_CORE, "max"),
            Figure("the same, resident memory", tuple(memory), "MB", RSS_MB, "max"),
            *(_ticks(account, count, 3 * seconds) for account, count in sorted(calls.items())),
        ]
    return figures


def _ticks(account: str, calls: int, seconds: float) -> Figure:
    """List calls for each tick of the steady pace: 1 but for the tick at the edge, whatever the number of jobs."""
    ticks = seconds / LIST_EVERY_S
    return Figure(f"list calls of {account} a tick", (calls / ticks,), "calls", (ticks + 1.01) / ticks, "max")


if __name__ == "__main__":
    numbers = [float(word) for word in sys.argv[1:]]
    jobs, real, seconds = [*numbers, *(1000, 200, 30)[len(numbers) :]]
    raise SystemExit(show(measure(int(jobs), int(real), seconds)))
