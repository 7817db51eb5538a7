"""What sampling costs on the machine: CPU of the supervisor and of the `nvidia-smi` that lives, and of one start each.

    python benchmarks/sampling.py [SECONDS]

A real agent in a temporary folder, with eight stand-in cards (a Python program: its start costs more than the real
one's, its life about the same) and a run of 200 processes. CPU time is counted by the kernel, so load does not matter.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "process")]

from agent_machine import Machine  # noqa: E402

from providers.local_machine import nvidia_smi  # noqa: E402

TICKS = float(os.sysconf("SC_CLK_TCK"))


def cpu_of(pid: int) -> float:
    """CPU seconds of one process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def child_of(pid: int) -> int:
    """The `nvidia-smi` that the supervisor keeps."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid and b"--loop" in Path(f"/proc/{entry}/cmdline").read_bytes():
                    return int(entry)
            except OSError:
                continue
    raise SystemExit("no nvidia-smi beside the supervisor")


def one_start(program: Path) -> float:
    """CPU seconds of one start that answers once."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(10):
        subprocess.run([program, "--query-gpu=index,utilization.gpu", "--format=csv"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 10


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        program = base / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(f"#!{sys.executable} -IS\n" + Path(nvidia_smi.__file__).read_text())
        program.chmod(0o755)
        (base / "gpus.json").write_text(nvidia_smi.describe("m", "A100-80GB", 80, 8))
        with Machine(base, python=sys.executable, started=False) as machine:
            machine.path = f"{program.parent}:{os.environ['PATH']}"
            machine.start()
            machine.order("for i in $(seq 200); do sleep 100000 & done; wait")
            time.sleep(12)
            supervisor = int((machine.control / "agent.pid").read_text().split()[0])
            pids = {"supervisor": supervisor, "nvidia-smi": child_of(supervisor)}
            before = {name: cpu_of(pid) for name, pid in pids.items()}
            time.sleep(seconds)
            for name, pid in pids.items():
                print(f"{name:<12} {100 * (cpu_of(pid) - before[name]) / seconds:.2f} % of a core")
            samples = machine.events("sample")
            size = sum(len(str(sample)) for sample in samples) / len(samples)
            print(f"samples      {len(samples)}, {size:.0f} bytes each")
        print(f"one start each 10 s instead: {100 * one_start(program) / 10:.2f} % of a core (stand-in)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
