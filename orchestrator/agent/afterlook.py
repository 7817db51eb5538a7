"""The look after setup: whether the job's own Python sees the cards that were rented, before they are paid for in vain.

Rules
- Runs in the job's environment and folder; a Python without torch, or none at all, is no finding.
- `config`: the environment cannot use the cards here or anywhere. `bad-host`: the machine does not give them.
- What is found stops the run only where the order says so: a stand-in card is no card to torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from typing import IO, Any

from orchestrator.agent.ends import uptime
from orchestrator.agent.events import record_event

AFTER_SETUP_S = 120.0  # importing torch from a cold disk takes up to a minute
CUDA_HANGS_S = 60.0  # eight cards without persistence mode start within half a minute
PACKAGES_KEPT = 800  # names with versions: 25 KiB of an event line's 64
SLOW_WARN, SLOW_REPLACE = 0.10, 0.20  # below the median of the class
EX_CONFIG = 78  # of sysexits.h; the exit code of a run that was stopped for what a look found

#: What CUDA says when the machine is to blame; all else is the environment's doing.
MACHINE_FAULTS = re.compile(
    r"Error 802|system not yet initialized|busy or unavailable|uncorrectable ECC|NVML|Error 999|unknown error"
    r"|fallen off|all CUDA-capable devices are busy",
    re.IGNORECASE,
)
DRIVER_OLD = re.compile(r"driver.*(too old|insufficient)", re.IGNORECASE)

JOB_PROBE = r"""
import json, sys, time
found = {"python": sys.version.split()[0], "executable": sys.executable}
try:
    from importlib.metadata import distributions
    def named(d):
        folder = getattr(getattr(d, "_path", None), "name", "")
        if folder.endswith(".dist-info") and "-" in folder[:-10]:
            return folder[:-10].rsplit("-", 1)
        return d.metadata["Name"], d.version
    known = map(named, distributions())
    found["packages"] = sorted({"%s==%s" % tuple(pair) for pair in known if pair[0]})
except Exception as error:
    found["packages_error"] = str(error)
def bench(torch, cuda, devices):
    def timed(work, times):
        work()
        for i in range(devices):
            cuda.synchronize(i)
        began = time.perf_counter()
        for _ in range(times):
            work()
        for i in range(devices):
            cuda.synchronize(i)
        return (time.perf_counter() - began) / times
    n, speeds = 4096, []
    for i in range(devices):
        a = torch.randn(n, n, device="cuda:%d" % i, dtype=torch.float16)
        speeds.append(round(2.0 * n ** 3 / timed(lambda: a @ a, 20) / 1e12, 2))
    measured = {"tflops": min(speeds), "tflops_each": speeds}
    if devices > 1:
        parts = [torch.randn(64 << 20, device="cuda:%d" % i, dtype=torch.float16) for i in range(devices)]
        seconds = timed(lambda: cuda.nccl.all_reduce(parts), 5)
        measured["allreduce_gbps"] = round(2.0 * (devices - 1) / devices * (128 << 20) / seconds / 1e9, 2)
    return measured
if sys.argv[1:2] != ["0"]:
    try:
        import importlib.util
        if importlib.util.find_spec("torch") is not None:
            import warnings
            import torch
            cuda, torch_found = torch.cuda, {"version": str(torch.__version__), "cuda": torch.version.cuda}
            torch_found["hip"] = getattr(torch.version, "hip", None)
            found["torch"] = torch_found
            began = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
            print(json.dumps({**found, "cuda_began": time.clock_gettime(began)}), flush=True)  # what follows may hang
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                torch_found["available"] = bool(cuda.is_available())
                torch_found["devices"] = int(cuda.device_count())
                try:
                    if torch_found["cuda"]:
                        cuda.init()
                    if torch_found["devices"]:
                        torch_found["names"] = [cuda.get_device_name(i) for i in range(torch_found["devices"])]
                        torch_found["capability"] = list(cuda.get_device_capability(0))
                        torch_found["archs"] = list(cuda.get_arch_list())
                        if sys.argv[2:3] == ["bench"]:
                            try:
                                torch_found["benchmark"] = bench(torch, cuda, torch_found["devices"])
                            except Exception as error:
                                torch_found["benchmark_error"] = str(error)[:300]
                except Exception as error:
                    torch_found["error"] = str(error)[:500]
            if heard and "error" not in torch_found and not torch_found["available"]:
                torch_found["error"] = str(heard[0].message)[:500]
    except Exception as error:
        found["torch_error"] = ("%s: %s" % (type(error).__name__, error))[:500]
print(json.dumps(found))
"""


def job_python(work: str) -> list[str]:
    """The Python that the job's scripts most likely start: its virtual environment's, else the first on its PATH."""
    for name in (".venv", "venv"):
        path = os.path.join(work, name, "bin", "python")
        if os.path.exists(path):
            return [path]
    return ["sh", "-c", 'exec "$(command -v python || command -v python3)" "$@"', "sh"]


class EnvironmentLook:
    """The job's own Python under way; `wanted` is the order's `look`. Nothing of it stays behind `end`."""

    def __init__(
        self, run: str, work: str, env: dict[str, str], wanted: dict[str, Any], inside: list[str] | None = None
    ) -> None:
        """`inside`: the words that start a program in the run's container, where it has one."""
        self.run, self.wanted, self.visible = run, wanted, env.get("CUDA_VISIBLE_DEVICES")
        self.began = uptime()
        self.out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self.process: subprocess.Popen[bytes] | None = None
        cards, bench = str(wanted.get("gpus") or 0), "bench" if wanted.get("benchmark") else ""
        nice = [] if self.stops or not shutil.which("nice") else ["nice", "-n", "19"]  # beside a run that must not wait
        with contextlib.suppress(OSError):  # no such Python: nothing is known
            self.process = subprocess.Popen(
                [*nice, *(inside or []), *job_python(work), "-c", JOB_PROBE, cards, bench],
                cwd=work,
                env=env if inside is None else None,
                stdin=subprocess.DEVNULL,
                stdout=self.out,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def stops(self) -> bool:
        """Whether the run must wait for what is found."""
        return bool(self.wanted.get("stop") and self.wanted.get("gpus"))

    def done(self) -> bool:
        return self.process is None or self.process.poll() is not None or uptime() - self.began > AFTER_SETUP_S

    def end(self) -> list[dict[str, str]]:
        """Tell the controller by an event what it printed so far, and return the findings."""
        given_up = self.process is not None and self.process.poll() is None
        if self.process is not None and given_up:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # one in the kernel's hands dies later
                self.process.wait(5.0)
        self.out.seek(0)
        facts = facts_of_python(self.out.read(1 << 20))
        cuda_began = facts.pop("cuda_began", None)
        if given_up and isinstance(cuda_began, (int, float)):
            facts["cuda_hung_s"] = round(uptime() - cuda_began)
        self.out.close()
        findings = environment_findings(facts, self.wanted, self.visible)
        if not self.stops:
            findings = [{**one, "klass": "warn"} for one in findings]  # the run goes on
        if facts:
            seconds = round(uptime() - self.began, 3)
            record_event("look", run=self.run, seconds=seconds, facts=facts, findings=findings)
        return findings


def facts_of_python(printed: bytes) -> dict[str, Any]:
    """The probe's last line; {} for anything else."""
    try:
        found = json.loads(printed.decode("utf-8", "replace").strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    if not isinstance(found, dict):
        return {}
    if isinstance(found.get("packages"), list):
        found["packages"] = [str(each)[:80] for each in found["packages"][:PACKAGES_KEPT]]
    return found


def finding_of(name: str, klass: str, measured: str, wanted: str, advice: str = "") -> dict[str, str]:
    return {"name": name, "klass": klass, "measured": measured, "wanted": wanted, "next": advice}


def environment_findings(facts: dict[str, Any], wanted: dict[str, Any], visible: str | None) -> list[dict[str, str]]:
    """What is not as it should be; pure. `visible` is the job's own CUDA_VISIBLE_DEVICES, None where it sets none."""
    cards = wanted.get("gpus") or 0
    if not cards:
        return []
    torch = facts.get("torch")
    chosen = None if visible is None else len([each for each in visible.split(",") if each.strip() not in ("", "-1")])
    found = []
    if chosen is not None and chosen != cards:
        fatal = chosen == 0 and isinstance(torch, dict)
        advice = "take CUDA_VISIBLE_DEVICES out of env: without it all cards of the machine are visible"
        klass = "config" if fatal else "warn"
        found.append(
            finding_of("visible-devices", klass, "CUDA_VISIBLE_DEVICES=%s" % visible, "%d cards" % cards, advice)
        )
        if fatal:
            return found
    if facts.get("torch_error"):
        found.append(finding_of("torch-import", "warn", str(facts["torch_error"]), "import torch"))
    if not isinstance(torch, dict):
        return found
    hung = facts.get("cuda_hung_s")
    if isinstance(hung, (int, float)):
        if hung >= CUDA_HANGS_S:
            words = "CUDA has not started, or not computed, for %d s" % hung
            found.append(finding_of("cuda", "bad-host", words, "an answer within seconds"))
        return found  # what it would have said of the cards is not known
    version, built = str(torch.get("version")), torch.get("cuda")
    if not built and not torch.get("hip"):
        advice = "a mirror gave the CPU build: pin torch with its index (--index-url .../cu121), or use the image's own"
        found.append(finding_of("torch-cpu", "config", "torch %s" % version, "a build for CUDA", advice))
    elif torch.get("available") is False:
        found.append(unavailable(torch, version, visible))
    elif chosen is None and isinstance(torch.get("devices"), int) and torch["devices"] < cards:
        found.append(finding_of("device-count", "bad-host", "torch sees %d cards" % torch["devices"], "%d" % cards))
    missing = missing_arch(torch)
    if missing:
        advice = "a torch build that knows this card, or another image"
        found.append(finding_of("torch-arch", "config", "torch %s has no %s" % (version, missing), missing, advice))
    return [*found, *slow_cards(torch.get("benchmark"), wanted)]


def slow_cards(measured: Any, wanted: dict[str, Any]) -> list[dict[str, str]]:
    """Cards or links slower than others of their class, which had `reference`; `replace` is the user's wish."""
    reference = wanted.get("reference")
    if not isinstance(measured, dict) or not isinstance(reference, dict):
        return []
    found = []
    for key, unit in (("tflops", "TFLOPS (matmul)"), ("allreduce_gbps", "GB/s (all-reduce)")):
        here, usual = measured.get(key), reference.get(key)
        if not isinstance(here, (int, float)) or not isinstance(usual, (int, float)) or not usual:
            continue
        share = here / usual
        if share < 1 - SLOW_WARN:
            replace_it = share < 1 - SLOW_REPLACE and wanted.get("replace") is True
            advice = "" if replace_it else "allow: [replace-slow] gives back what is a fifth slower than others"
            klass = "bad-host" if replace_it else "warn"
            found.append(
                finding_of("slow-gpu", klass, "%g %s" % (here, unit), "%g, as others of its class" % usual, advice)
            )
    return found


def unavailable(torch: dict[str, Any], version: str, visible: str | None) -> dict[str, str]:
    """CUDA does not start although torch was built for it: who is to blame."""
    said = str(torch.get("error") or "torch.cuda.is_available() is False")
    built = "torch %s (CUDA %s)" % (version, torch.get("cuda"))
    if DRIVER_OLD.search(said):
        advice = "a torch build for an older CUDA; a driver cannot be changed on a rental"
        return finding_of("torch-driver", "config", "%s: %s" % (built, said), "a CUDA that the driver serves", advice)
    if MACHINE_FAULTS.search(said):
        return finding_of("cuda", "bad-host", said, "CUDA that starts")
    if visible is not None:
        advice = "CUDA_VISIBLE_DEVICES names cards that are not there"
        return finding_of(
            "visible-devices", "config", "CUDA_VISIBLE_DEVICES=%s" % visible, "cards of this machine", advice
        )
    advice = "compare torch.version.cuda with the CUDA of nvidia-smi; then reinstall torch, pinned"
    return finding_of("cuda", "config", "%s: %s" % (built, said), "CUDA that starts", advice)


def missing_arch(torch: dict[str, Any]) -> str:
    """`sm_120` where the build has no code for the card: neither its own, nor an older of its family, nor PTX."""
    capability, archs = torch.get("capability"), torch.get("archs")
    if not isinstance(capability, list) or [type(each) for each in capability] != [int, int]:
        return ""
    major, minor = capability
    seen = False
    for arch in archs if isinstance(archs, list) else []:
        known = re.match(r"(sm|compute)_(\d+)(\d)[a-z]?\Z", str(arch))
        if known is None:
            continue
        seen = True
        of = (int(known.group(2)), int(known.group(3)))
        if of <= (major, minor) and (known.group(1) == "compute" or of[0] == major):
            return ""
    return "sm_%d%d" % (major, minor) if seen else ""
