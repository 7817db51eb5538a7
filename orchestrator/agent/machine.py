"""What this machine is and has: cards, CPUs, memory, disk, a free port."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading

from orchestrator.agent.files import read_text
from orchestrator.agent.layout import HOME, control

GPU_FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total", "temperature.gpu", "power.draw")
GPU_KEYS = ("index", "util", "mem_used", "mem_total", "temp", "power")
THROTTLE = "clocks_throttle_reasons.active"  # newer drivers know it under this name as well


OUTPUT_MAX = 4 << 20  # bytes; what eight cards say in XML is a twentieth of it


def nvidia_smi() -> str | None:
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path="/usr/bin:/usr/local/nvidia/bin:/opt/bin")


def output_of(argv: list[str], seconds: float, cwd: str | None = None) -> str:
    """What a program prints, "" where it is missing, fails, takes too long or prints without end."""
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=cwd,
            start_new_session=True,
        )  # fmt: skip
    except OSError:
        return ""
    assert child.stdout is not None
    late = threading.Timer(seconds, end_group, (child.pid,))
    late.start()
    try:
        said = child.stdout.read(OUTPUT_MAX + 1)
        if len(said) > OUTPUT_MAX:
            end_group(child.pid)
        code = child.wait()
    finally:
        late.cancel()
        child.stdout.close()
    return said.decode("utf-8", "replace") if code == 0 else ""


def end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:  # it has ended by itself
        pass


def gpu_query(*more: str) -> list[str] | None:
    program = nvidia_smi()
    if program is None:
        return None
    return [program, "--query-gpu=" + ",".join(GPU_FIELDS + more), "--format=csv,noheader,nounits"]


def gpu_rows(text: str | None = None) -> list[dict[str, float | None]]:
    """One dict a card; what the driver cannot tell ("[N/A]") is None. Memory in MiB, power in W, `throttle` (where it
    was asked for) the driver's bits."""
    if text is None:
        query = gpu_query()
        text = output_of(query, 10.0) if query else ""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(GPU_KEYS) <= len(cells) <= len(GPU_KEYS) + 1 and cells[0].isdigit():
            row: dict[str, float | None] = {}
            for position, key in enumerate(GPU_KEYS):
                try:
                    row[key] = int(cells[0]) if key == "index" else float(cells[position])
                except ValueError:
                    row[key] = None
            if len(cells) > len(GPU_KEYS):
                bits = cells[-1]
                try:
                    row["throttle"] = int(bits, 16) if bits[:2] == "0x" else None
                except ValueError:
                    row["throttle"] = None
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
    """(used, total) bytes, of the container where that is limited; what the kernel would give back counts as free."""
    pairs = dict(line.split(":", 1) for line in read_text("/proc/meminfo").splitlines() if ":" in line)
    total = int(pairs["MemTotal"].split()[0]) << 10
    used = total - (int(pairs.get("MemAvailable", "0").split()[0]) << 10)
    limit, current = (read_text("/sys/fs/cgroup/memory." + name).strip() for name in ("max", "current"))
    if limit.isdigit() and int(limit) < total:
        stat = dict(line.split(" ", 1) for line in read_text("/sys/fs/cgroup/memory.stat").splitlines() if " " in line)
        return max(0, int(current or 0) - int(stat.get("inactive_file", "0"))), int(limit)
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
