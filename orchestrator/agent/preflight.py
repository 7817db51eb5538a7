"""A first look at a fresh machine, before anything is sent to it: raw facts, judged by the controller.

Rules
- Every tool runs beside the others and is given up after PREFLIGHT_S, together well under 20 s: a sick driver hangs.
- Nothing is concluded here, and what cannot be looked at is left out.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

from orchestrator.agent.asks import need
from orchestrator.agent.cards import (
    QUERY,
    cards_from_query,
    facts_from_xml,
    kernel_faults,
    links_from_topology,
    merged_cards,
)
from orchestrator.agent.ends import uptime
from orchestrator.agent.files import list_names, read_text
from orchestrator.agent.layout import HOME
from orchestrator.agent.machine import cpu_count, memory, nvidia_smi
from orchestrator.agent.runs import all_runs

PREFLIGHT_S = 17.0  # nvidia-smi of eight healthy cards without persistence mode takes up to 12 s
PREFLIGHT_OUTPUT = 4 << 20

NVML_PROBE = """
import ctypes, json
n = ctypes.CDLL("libnvidia-ml.so.1")
rc = n.nvmlInit_v2()
count, text = ctypes.c_uint(0), ctypes.create_string_buffer(96)
if rc == 0:
    n.nvmlDeviceGetCount_v2(ctypes.byref(count))
    n.nvmlSystemGetDriverVersion(text, 96)
print(json.dumps({"rc": rc, "count": count.value, "driver": text.value.decode("ascii", "replace")}))
"""


class Probe:
    """One tool under way; its output goes to a file, so that no pipe can fill up while the others are looked at."""

    def __init__(self, argv: list[str]) -> None:
        self.out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `text`
        self.process: subprocess.Popen[bytes] | None = None
        self.hung = False
        try:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=self.out, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError:
            self.process = None
        else:
            self.bound()

    def bound(self) -> None:
        """More than is read of its output fills no disk: writing on ends it."""
        import resource  # Linux only, as `prlimit` is

        assert self.process is not None
        with contextlib.suppress(OSError, AttributeError):  # it is over already, or another system
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (PREFLIGHT_OUTPUT, PREFLIGHT_OUTPUT))

    def text(self, until: float) -> str:
        """What it has printed by its end, or by `until` (boottime), when it is given up."""
        if self.process is None:
            return ""
        try:
            self.process.wait(max(0.0, until - uptime()))
        except subprocess.TimeoutExpired:
            self.hung = True
            self.process.kill()  # one in the kernel's hands dies later, and is not waited for
        self.out.seek(0)
        found = self.out.read(PREFLIGHT_OUTPUT).decode("utf-8", "replace")
        self.out.close()
        return found

    @property
    def failed(self) -> bool:
        return self.hung or self.process is None or self.process.returncode != 0


def preflight_command(ask: dict[str, Any]) -> dict[str, Any]:
    """`gpus`: cards are expected. `places`: name -> absolute path, existing or to be. `now`: the sender's clock."""
    began = uptime()
    sent, now = need(ask, "now", (int, float), 0.0), time.time()
    until = began + PREFLIGHT_S
    gpus = need(ask, "gpus", bool, False)
    probes = start_probes() if gpus else {}
    used, total = memory()
    facts: dict[str, Any] = {
        "ok": True,
        "disks": {name: file_system(str(path)) for name, path in need(ask, "places", dict, {}).items()},
        "memory": {"used": used, "total": total},
        "cpus": cpu_count(),
        "shm": room("/dev/shm"),
        "clock_skew_s": round(now - sent, 1) if sent else None,
        "tools": {name: shutil.which(name) for name in ("bash", "rsync", "tmux")},
        "python": "%d.%d.%d" % sys.version_info[:3],
        "arch": os.uname().machine,
        "kernel": os.uname().release,
        "hostname": os.uname().nodename,
        "uptime_s": round(began),
        "own_runs": len([run for run in all_runs() if run.order is not None and run.ended is None]),
    }
    if gpus:
        facts["gpu"] = gpu_facts(probes, until)
        facts["kernel_faults"] = kernel_faults(probes["kernel"].text(until)) if "kernel" in probes else []
    facts["seconds"] = round(uptime() - began, 3)
    return facts


def start_probes() -> dict[str, Probe]:
    smi, dmesg = nvidia_smi(), shutil.which("dmesg")
    library = any(name.startswith("nvidia") for name in list_names("/dev"))
    argv = {
        "query": smi and [smi, "--query-gpu=" + ",".join(QUERY), "--format=csv,noheader,nounits"],
        "xml": smi and [smi, "-q", "-x"],
        "links": smi and [smi, "topo", "-m"],
        "nvml": [sys.executable or "python3", "-c", NVML_PROBE] if library else None,
        "kernel": dmesg and [dmesg],
    }
    return {name: Probe(words) for name, words in argv.items() if words}


def gpu_facts(probes: dict[str, Probe], until: float) -> dict[str, Any]:
    """What nvidia-smi, NVML and /dev say of the cards."""
    texts = {name: probe.text(until) for name, probe in probes.items() if name != "kernel"}
    whole, rows = facts_from_xml(texts.get("xml", "")), cards_from_query(texts.get("query", ""))
    cards = merged_cards(rows, whole.get("cards", []))
    found: dict[str, Any] = {
        "smi": nvidia_smi(),
        "driver": whole.get("driver") or next((card["driver"] for card in cards if "driver" in card), None),
        "cuda": whole.get("cuda"),
        "cards": cards,
        "links": links_from_topology(texts.get("links", "")),
        "devices": sorted(name for name in list_names("/dev") if name.startswith("nvidia")),
        "visible": os.environ.get("NVIDIA_VISIBLE_DEVICES"),
    }
    query, whole_query = probes.get("query"), probes.get("xml")
    if query is not None and whole_query is not None and query.failed and whole_query.failed:
        found["hung"] = query.hung and whole_query.hung
        said = (texts.get("query") or texts.get("xml") or "").strip().splitlines()
        found["error"] = said[0][:200] if said else "nvidia-smi says nothing"
    if "nvml" in texts:
        answer = re.search(r'"rc": (\d+), "count": (\d+)', texts["nvml"])
        found["nvml"] = {"rc": int(answer.group(1)), "count": int(answer.group(2))} if answer else {"rc": None}
    return found


def file_system(path: str) -> dict[str, Any]:
    """Room of the file system that `path` is or will be on, and whether that is the machine's root."""
    path = os.path.join(HOME, path)
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    found = {"path": path, **room(path)}
    try:
        found["root"] = os.stat(path).st_dev == os.stat("/").st_dev
    except OSError:
        return found
    mounts = [line.split() for line in read_text("/proc/self/mounts").splitlines()]
    under = [m for m in mounts if len(m) > 2 and (path + "/").startswith(m[1].rstrip("/") + "/")]
    if under:
        found["type"] = max(under, key=lambda m: len(m[1]))[2]
    return found


def room(path: str) -> dict[str, int]:
    """Bytes and inodes of a file system; {} where it cannot be asked."""
    try:
        info = os.statvfs(path)
    except OSError:
        return {}
    return {
        "free": info.f_bavail * info.f_frsize,
        "total": info.f_blocks * info.f_frsize,
        "inodes": info.f_files,
        "inodes_free": info.f_favail,
    }
