"""How busy the machine is, every 10 s: cards, CPUs and the run's own part of them, memory, disk, network.

Rules: nothing here waits. One `nvidia-smi` repeats its answer for as long as it lives, since a start each time would
cost more than all the rest; one that is silent is ended, and one that cannot be ended (stuck in the driver) is not
joined by a second. Rates are means since the sample before.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

from orchestrator.agent.ends import uptime
from orchestrator.agent.events import record_event
from orchestrator.agent.files import list_names, read_text
from orchestrator.agent.machine import THROTTLE, cpu_count, disk, gpu_query, gpu_rows, memory
from orchestrator.agent.processes import Proc, below
from orchestrator.agent.runs import Run

if TYPE_CHECKING:
    from collections.abc import Iterable

SAMPLE_S = 10.0
SILENT_S = 20.0  # nvidia-smi can hang for minutes; a first start without persistence mode takes seconds
SAID_MAX = 1 << 20  # bytes of one answer; sixteen cards say 2 KB. One that says more is out of its mind, and ended
CARDS_MAX = 64  # as in orchestrator/points.py: no machine has more
SETTLE_S = 0.2  # an answer for several cards comes in pieces
NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")  # counted by the disks below them, or no disks
SECTOR = 512  # bytes, in /proc/diskstats whatever the disk's own
TICKS = float(os.sysconf("SC_CLK_TCK"))


class Cards:
    """The long-lived `nvidia-smi` and what it said since it was last asked."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.dying: subprocess.Popen[bytes] | None = None
        self.more: tuple[str, ...] = (THROTTLE,)
        self.text = b""
        self.heard = 0.0  # boottime of its last byte
        self.trouble = ""

    def listen(self, now: float, due: bool) -> None:
        """Take what it said; start it where it is not there and a sample is due."""
        if self.dying is not None and self.dying.poll() is not None:
            self.dying = None
        if self.child is None and due and self.dying is None and not self.text:
            self.start()
        if self.child is None or self.child.stdout is None:
            return
        ended = self.child.poll() is not None  # before the read: what it said last is still taken
        try:
            # A bound: one that prints without end would keep us here for ever, and the runs untended
            while len(self.text) < SAID_MAX:
                block = os.read(self.child.stdout.fileno(), 1 << 16)
                if not block:
                    break
                self.text += block
                self.heard = now
        except BlockingIOError:
            pass
        if len(self.text) >= SAID_MAX:
            self.stop()
            return
        if ended:
            self.child.stdout.close()
            refused = self.child.returncode and self.more and not gpu_rows(self.text.decode("utf-8", "replace"))
            if refused and b"not a valid field" in self.text:
                self.more, self.text = (), b""  # an old driver: without what it does not know
            self.child = None

    def start(self) -> None:
        argv = gpu_query(*self.more)
        if argv is None:
            return
        null = subprocess.DEVNULL
        argv.append("--loop=%d" % SAMPLE_S)
        self.child = subprocess.Popen(argv, stdin=null, stdout=subprocess.PIPE, stderr=null)
        assert self.child.stdout is not None
        os.set_blocking(self.child.stdout.fileno(), False)

    def settled(self, now: float) -> bool:
        """Its answer is whole, or none will come."""
        if self.text:
            return self.child is None or (self.text.endswith(b"\n") and now - self.heard >= SETTLE_S)
        return self.child is None and (self.dying is not None or gpu_query() is None)

    def take(self) -> list[dict[str, float | None]]:
        """The newest row of each card since the last call."""
        text, self.text = self.text.decode("utf-8", "replace"), b""
        rows = {row["index"]: row for row in gpu_rows(text)}
        said = text.strip().splitlines()
        self.trouble = "" if rows else said[0][:200] if said else "silent" if self.child or self.dying else ""
        if self.child is not None and not said:
            self.stop()
        return list(rows.values())[:CARDS_MAX]

    def stop(self) -> None:
        if self.child is not None:
            self.child.kill()
            if self.child.stdout is not None:
                self.child.stdout.close()
            self.child, self.dying = None, self.child


def ticks_of(roots: set[int]) -> tuple[dict[tuple[int, int], int], int]:
    """CPU ticks of each process below `roots`, by (pid, start), and how many of them wait for a disk just now."""
    procs: dict[int, Proc] = {}
    used: dict[int, tuple[int, str]] = {}
    for name in list_names("/proc"):
        if name.isdigit():
            try:
                fields = read_text("/proc/%s/stat" % name).rpartition(")")[2].split()
            except OSError:
                continue  # it ended while we looked
            if len(fields) > 19:
                procs[int(name)] = Proc(int(fields[1]), int(fields[2]), int(fields[19]), fields[0] in "ZX")
                used[int(name)] = (int(fields[11]) + int(fields[12]), fields[0])
    mine = [pid for pid in below(procs, roots) if pid in procs]
    blocked = sum(used[pid][1] == "D" for pid in mine)
    return {(pid, procs[pid].start): used[pid][0] for pid in mine}, blocked


def cpu_times() -> tuple[int, int, int]:
    """(busy, waiting for I/O, all) ticks of all CPUs since boot."""
    numbers = [int(word) for word in read_text("/proc/stat").split("\n", 1)[0].split()[1:9]]
    numbers += [0] * (8 - len(numbers))
    return sum(numbers) - numbers[3] - numbers[4], numbers[4], sum(numbers)


def disk_bytes() -> tuple[int, int]:
    """(read, written) by all disks since boot; a container sees its host's."""
    disks = {name for name in list_names("/sys/block") if not name.startswith(NOT_DISKS)}
    lines = [line.split() for line in read_text("/proc/diskstats").splitlines()]
    mine = [line for line in lines if len(line) > 9 and line[2] in disks]
    return sum(int(line[5]) for line in mine) * SECTOR, sum(int(line[9]) for line in mine) * SECTOR


def network_bytes() -> tuple[int, int]:
    """(received, sent) over everything but the loopback since boot."""
    received = sent = 0
    for line in read_text("/proc/net/dev").splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and name.strip() != "lo" and len(words) > 8:
            received += int(words[0])
            sent += int(words[8])
    return received, sent


class Sampler:
    """Writes a `sample` event every 10 s, with the cards' answer when there are cards."""

    def __init__(self) -> None:
        self.due = uptime()
        self.cards = Cards()
        self.at = uptime()
        self.times = cpu_times()
        self.moved = (*disk_bytes(), *network_bytes())
        self.ticks: dict[tuple[int, int], int] = {}

    @property
    def waiting(self) -> bool:
        """A sample is due: look again soon."""
        return uptime() >= self.due

    def tick(self, runs: Iterable[Run] = ()) -> None:
        now = uptime()
        self.cards.listen(now, now >= self.due)
        if now < self.due or not (self.cards.settled(now) or now >= self.due + SILENT_S):
            return
        gpus = self.cards.take()
        # The cards' program paces: half a second before its next answer we begin to wait for it
        self.due = now + SAMPLE_S - (0.5 if self.cards.child is not None else 0.0)
        wrappers = [run.wrapper() for run in runs]
        self.record(now, gpus, {found[0] for found in wrappers if found})

    def record(self, now: float, gpus: list[dict[str, float | None]], roots: set[int]) -> None:
        spent = max(now - self.at, 0.1)
        busy, waited, every = (new - old for new, old in zip(cpu_times(), self.times))
        moved = (*disk_bytes(), *network_bytes())
        flow = [round(max(0, new - old) / spent) for new, old in zip(moved, self.moved)]
        ticks, blocked = ticks_of(roots) if roots else ({}, 0)
        # Of a process that began since the last sample all counts; of one that we only meet now nothing
        before = {key: 0 if key[1] / TICKS >= self.at else count for key, count in ticks.items()}
        before.update(self.ticks)
        cores = [max(0, count - before[key]) / TICKS / spent for key, count in ticks.items()]
        used, size = memory()
        room = disk()
        fields: dict[str, Any] = {
            "cpu": round(100.0 * busy / every, 1) if every > 0 else 0.0,
            "iowait": round(100.0 * waited / every, 1) if every > 0 else 0.0,
            "cpus": cpu_count(),
            "own": round(sum(cores), 2),
            "top": round(max(cores, default=0.0), 2),
            "blocked": blocked,
            "mem_used": used,
            "mem_total": size,
            "disk_free": room["free"],
            "disk_total": room["total"],
        }
        fields.update(zip(("disk_read", "disk_write", "net_in", "net_out"), flow))
        if self.cards.trouble:
            fields["smi"] = self.cards.trouble
        self.at, self.times, self.moved, self.ticks = now, cpu_times(), moved, ticks
        record_event("sample", gpus=gpus, **fields)

    def stop(self) -> None:
        self.cards.stop()
