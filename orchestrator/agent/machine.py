"""What this machine is and how busy it is: cards, CPUs, memory, disk, a free port."""

from __future__ import annotations

import os
import shutil
import subprocess

from orchestrator.agent.ends import uptime
from orchestrator.agent.events import record_event
from orchestrator.agent.files import read_text
from orchestrator.agent.layout import HOME, control

SAMPLE_S = 10.0


GPU_FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total", "temperature.gpu", "power.draw")
GPU_KEYS = ("index", "util", "mem_used", "mem_total", "temp", "power")


def nvidia_smi() -> str | None:
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path="/usr/bin:/usr/local/nvidia/bin:/opt/bin")


def output_of(argv: list[str], seconds: float, cwd: str | None = None) -> str:
    """What a program prints, "" where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=seconds, cwd=cwd
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def gpu_query() -> list[str] | None:
    program = nvidia_smi()
    if program is None:
        return None
    return [program, "--query-gpu=" + ",".join(GPU_FIELDS), "--format=csv,noheader,nounits"]


def gpu_rows(text: str | None = None) -> list[dict[str, float | None]]:
    """One dict a card; what the driver cannot tell ("[N/A]") is None. Memory in MiB, power in W."""
    if text is None:
        query = gpu_query()
        text = output_of(query, 10.0) if query else ""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(GPU_KEYS) and cells[0].isdigit():
            row: dict[str, float | None] = {}
            for position, key in enumerate(GPU_KEYS):
                try:
                    row[key] = int(cells[0]) if key == "index" else float(cells[position])
                except ValueError:
                    row[key] = None
            rows.append(row)
    return rows


def free_port() -> int:
    """A port for MASTER_PORT below the kernel's own range, where no outgoing connection takes it meanwhile."""
    import random
    import socket

    for _ in range(50):
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    return 29500


def cpu_count() -> int:
    """Usable CPUs: affinity, and a container's quota where it is smaller."""
    cpus = len(os.sched_getaffinity(0))
    quota = read_text("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        cpus = min(cpus, max(1, int(quota[0]) // int(quota[1])))
    return cpus


def memory() -> tuple[int, int]:
    """(used, total) bytes, of the container where that is limited."""
    pairs = dict(line.split(":", 1) for line in read_text("/proc/meminfo").splitlines() if ":" in line)
    total = int(pairs["MemTotal"].split()[0]) << 10
    used = total - (int(pairs.get("MemAvailable", "0").split()[0]) << 10)
    limit, current = (read_text("/sys/fs/cgroup/memory." + name).strip() for name in ("max", "current"))
    if limit.isdigit() and int(limit) < total:
        return int(current or 0), int(limit)
    return used, total


def disk() -> dict[str, int]:
    base = read_text(control("base")).strip() or HOME
    try:
        info = os.statvfs(base)
    except OSError:
        return {"free": 0, "total": 0, "inodes_free": 0}
    return {
        "free": info.f_bavail * info.f_frsize,
        "total": info.f_blocks * info.f_frsize,
        "inodes_free": info.f_favail,
    }


class Sampler:
    """Every 10 s: cards, CPU, memory, disk. nvidia-smi can hang for minutes, so it is never waited for."""

    def __init__(self) -> None:
        self.due = 0.0
        self.query: subprocess.Popen[bytes] | None = None
        self.times = self.cpu_times()

    @staticmethod
    def cpu_times() -> tuple[int, int]:
        numbers = [int(word) for word in read_text("/proc/stat").split("\n", 1)[0].split()[1:9]]
        return sum(numbers) - numbers[3] - numbers[4], sum(numbers)

    def tick(self) -> None:
        if self.query is None and uptime() >= self.due:
            self.due = uptime() + SAMPLE_S
            argv = gpu_query()
            if argv is None:
                self.record([])
                return
            null = subprocess.DEVNULL
            self.query = subprocess.Popen(argv, stdin=null, stdout=subprocess.PIPE, stderr=null)
        if self.query is not None and uptime() > self.due + 2 * SAMPLE_S:
            self.query.kill()
        if self.query is not None and self.query.poll() is not None:
            assert self.query.stdout is not None
            with self.query.stdout as pipe:
                self.record(gpu_rows(pipe.read().decode("utf-8", "replace")))
            self.query = None

    def record(self, gpus: list[dict[str, float | None]]) -> None:
        busy, total = self.cpu_times()
        spent = total - self.times[1]
        cpu = round(100.0 * (busy - self.times[0]) / spent, 1) if spent > 0 else 0.0
        self.times = (busy, total)
        used, size = memory()
        record_event("sample", gpus=gpus, cpu=cpu, mem_used=used, mem_total=size, disk_free=disk()["free"])
