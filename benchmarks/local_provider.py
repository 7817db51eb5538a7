"""How long local machines take and what they weigh: `python benchmarks/local_provider.py [machines]`.

Prints one line a figure: the time to ready of one machine, of many at once (four threads create, readiness is what
`get` says), the first SSH command, memory and idle CPU of all the machines' processes, and the time to destroy.
Everything runs in a temporary folder and is destroyed again, also on Ctrl-C.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from providers.base import Ask, Boot, Instance, ProviderConfig, Tag
from providers.local import LocalProvider

IDLE_S = 5.0
HOOK = "while :; do sleep 60; done"


def show(what: str, value: float, unit: str) -> None:
    print(f"{what:<44}{value:>10.3f} {unit}", flush=True)


def timed(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def descendants(ids: list[str]) -> list[int]:
    """Pids of all processes that belong to these machines: those that name one, and their children."""
    parents, found = {}, set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(fields[1])
            if any(machine_id in words for machine_id in ids):
                found.add(int(entry.name))
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return sorted(found)


def memory(pids: list[int]) -> float:
    """Proportional set size in MiB: pages shared with other processes are counted in parts."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def cpu(pids: list[int]) -> float:
    """CPU seconds used so far, waited-for children included."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Bench:
    def __init__(self, home: Path) -> None:
        self.key = home / "id"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True)
        self.provider = LocalProvider(ProviderConfig("bench", home, ()))
        self.boot = Boot(HOOK, self.key.with_suffix(".pub").read_text())
        self.made: list[Instance] = []

    def create(self, number: int) -> float:
        offer = self.provider.offers(Ask(spot=False))[0]
        start = time.monotonic()
        tag = Tag("bench", f"bench-{number}")
        self.made.append(self.provider.create(offer, tag, time.time() + 600, self.boot))
        return time.monotonic() - start

    def wait(self) -> None:
        while not all(i.ready or i.status in self.provider.caps.dead_statuses for i in self.listed()):
            time.sleep(0.01)

    def listed(self) -> tuple[Instance, ...]:
        return self.provider.list("here").instances

    def ssh(self) -> None:
        machine = self.provider.get(self.made[0].ref)
        assert machine is not None
        assert machine.endpoint is not None
        options = ["-F", "/dev/null", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        where = f"{machine.endpoint.user}@{machine.endpoint.host}"
        port = str(machine.endpoint.port)
        command = ["ssh", *options, "-o", "LogLevel=ERROR", "-i", str(self.key), "-p", port, where, "true"]
        subprocess.run(command, check=True)

    def destroy(self) -> list[float]:
        return [timed(lambda machine=machine: self.provider.destroy(machine.ref)) for machine in self.made]


def run(home: Path, machines: int) -> None:
    bench = Bench(home)
    try:
        start = time.monotonic()
        show("create of the first, the probes included", bench.create(0), "s")
        bench.wait()
        show("the first ready", time.monotonic() - start, "s")
        print(f"{'isolation':<44}{bench.made[0].raw['mode']:>10}")
        show("a new ssh connection and command", timed(bench.ssh), "s")
        start = time.monotonic()
        with ThreadPoolExecutor(4) as threads:
            creates = list(threads.map(bench.create, range(1, machines)))
        show("create, slowest", max(creates), "s")
        bench.wait()
        show(f"{machines - 1} more ready", time.monotonic() - start, "s")
        show(f"list of {machines}", timed(bench.listed), "s")
        pids = descendants([machine.ref.id for machine in bench.made])
        show("memory a machine (PSS, the hook included)", memory(pids) / machines, "MiB")
        before = cpu(pids)
        time.sleep(IDLE_S)
        show(f"idle CPU of {machines}", (cpu(pids) - before) / IDLE_S * 100, "% of a core")
    finally:
        times = bench.destroy()
        show("destroy, slowest", max(times), "s")
    left = descendants([machine.ref.id for machine in bench.made])
    show("processes left", len(left), "")


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="gj-bench-"))
    try:
        run(home, int(sys.argv[1]) if len(sys.argv) > 1 else 50)
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
