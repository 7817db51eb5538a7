"""Data in and results out, against raw rsync with the best cipher: `python benchmarks/transfer_rsync.py [repeats]
[small]`.

Ratios of one run, raw and ours taken in turn, on one machine of `local`. "Ours" is everything that gpujob does: the
list of files sent, room asked for, the copy, and every file compared on the other side. The 100,000 files are landed by
a process of its own, whose peak memory is what a controller would need for them beside its own.
"""

from __future__ import annotations

import functools
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "process")]
# ruff: noqa: E402

from cutting_proxy import CuttingProxy
from rented_machine import JOB, Rented, rented

from jobspecs.load import load_spec
from orchestrator import artifacts, landing, ssh, sync
from orchestrator.artifacts import ArtifactPlan
from orchestrator.datasets import Manifest, manifest_of, summaries
from orchestrator.home import Home
from orchestrator.ssh_files import prepare
from orchestrator.transfers import Teller

GIB = 1 << 30
SMALL, SMALL_BYTES = 10_000, 4096
MANY = 100_000
RAW = ["rsync", "-a", "--info=stats0"]


def make_files(folder: Path, count: int, size: int) -> Path:
    """`count` files of `size` random bytes, 100 a folder."""
    for number in range(count):
        if number % 100 == 0:
            (folder / f"{number // 100:05}").mkdir(parents=True)
        (folder / f"{number // 100:05}" / f"{number:06}.bin").write_bytes(os.urandom(size))
    return folder


def timed(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def land(machine: Rented, path: str, made: Manifest) -> None:
    """As the controller does it before a run."""
    spec = load_spec(f"name: b\ngpu: none\nrun: x\ndata: {{from: {made.source}, path: {path}}}", "bench.yaml")
    job: Any = SimpleNamespace(id=JOB, base_dir="/", data_manifests=summaries({path: made}))
    teller = Teller(lambda seen: None, "r", "t0.1")
    landing.land(machine.conn, machine.home, job, spec, machine.folders, teller, 0, machine.ask)


def raw_in(machine: Rented, source: Path, dest: str) -> None:
    target = machine.conn.target
    shell = f"ssh -F {shlex.quote(str(prepare(target)))} -o Ciphers=aes128-gcm@openssh.com"
    slash = "/" if source.is_dir() else ""
    subprocess.run([*RAW, "-e", shell, f"{source}{slash}", f"{target.rental}:{dest}{slash}"], check=True)


def raw_out(machine: Rented, source: str, dest: Path) -> None:
    target = machine.conn.target
    shell = f"ssh -F {shlex.quote(str(prepare(target)))} -o Ciphers=aes128-gcm@openssh.com"
    subprocess.run([*RAW, "-e", shell, f"{target.rental}:{source}/", f"{dest}/"], check=True)


def compare_in(machine: Rented, what: str, source: Path, repeats: int) -> None:
    """Raw and ours in turn, then once more with nothing changed."""
    made = manifest_of(source, machine.home)
    raw, ours = [], []
    for turn in range(repeats):
        machine.sh(f"rm -rf {machine.folders['data']}/*")
        raw.append(timed(functools.partial(raw_in, machine, source, f"{machine.folders['home']}/raw-{turn}")))
        machine.sh(f"rm -rf {machine.folders['home']}/raw-*; rm -f {machine.folders['base']}/manifests/*")
        ours.append(timed(lambda: land(machine, "set", made)))
    again = min(timed(lambda: land(machine, "set", made)) for _ in range(repeats))
    report(f"{what} in: copy and check", raw, ours)
    print(f"{'  second sync, unchanged':<44}{again:>8.2f} s   {again / statistics.median(ours):>6.2f} of the first")
    machine.sh(f"rm -rf {machine.folders['data']}/*")


def compare_out(machine: Rented, what: str, source: Path, base: Path, repeats: int) -> None:
    """Results as they come home, verified, against the bare copy."""
    raw, ours = [], []
    for turn in range(repeats):
        out = f"{machine.folders['out_root']}/t0.{turn + 1}"
        machine.sh(f"mkdir -p {out}")
        raw_in(machine, source, f"{out}/{source.name}" if source.is_file() else out)
        raw.append(timed(functools.partial(raw_out, machine, out, base / f"raw{turn}")))
        shutil.rmtree(base / f"raw{turn}")
        plan = ArtifactPlan(out, base / "results")
        machine.ask("order", job=JOB, task="t0", n=turn + 1, workspace="base", code="c", env={}, secrets={}, grace_s=1,
                    signal="TERM", resume_from="", resume_mode="env", checkpoint={"path": "", "pattern": None},
                    stages=[{"name": "run", "script": "true"}])  # fmt: skip
        collect = functools.partial(
            artifacts.collect, machine.conn, machine.conn.target, machine.home, job=JOB, task="t0", n=turn + 1,
            plan=plan, final=True, success=True,
        )  # fmt: skip
        ours.append(timed(collect))
        machine.sh(f"rm -rf {out}")
        shutil.rmtree(machine.home.results(JOB, "t0", turn + 1), ignore_errors=True)
    report(f"{what} out: copy and check", raw, ours)


def report(what: str, raw: list[float], ours: list[float]) -> None:
    """The median, and the fastest of each: the one that others disturbed least."""
    ratio, least = statistics.median(ours) / statistics.median(raw), min(ours) / min(raw)
    print(f"{what:<44}{statistics.median(ours):>8.2f} s   {ratio:>6.2f} of raw rsync ({statistics.median(raw):.2f} s)"
          f"   fastest {min(ours):.2f} s, {least:.2f} of {min(raw):.2f} s", flush=True)  # fmt: skip


def cut(machine: Rented, source: Path) -> None:
    """One cut in the middle of 1 GiB: what is sent twice, as a share of what had arrived."""
    direct = machine.conn.target
    proxy = CuttingProxy(direct.port)
    target = replace(direct, port=proxy.port)
    ssh.stop_sharing(direct)
    proxy.cut_at = GIB // 2
    try:
        sync.push(target, source, f"{machine.folders['home']}/cut.bin")
        share = (proxy.up - GIB) / (GIB // 2)
        print(f"{'a cut at half of 1 GiB resends':<44}{100 * share:>8.2f} %", flush=True)
    finally:
        ssh.stop_sharing(target)
        proxy.close()
    machine.sh(f"rm -f {machine.folders['home']}/cut.bin")


def many(machine: Rented, base: Path) -> None:
    """100,000 files, landed and landed again, in a process that does nothing else."""
    source = make_files(base / "many", MANY, 64)
    made = timed(lambda: manifest_of(source, machine.home))
    print(f"{'100,000 files: manifest at apply':<44}{made:>8.2f} s", flush=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    manifest = manifest_of(source, machine.home)
    pid = os.fork()
    if pid == 0:  # a fresh peak for the landing alone
        os.execv(sys.executable, [sys.executable, __file__, "--many", str(machine.conn.target.folder.parent.parent),
                                  repr(summaries({"m": manifest})["m"]), repr(target_words(machine))])  # fmt: skip
    _, status, used = os.wait4(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    print(
        f"{'  peak memory of the process that lands them':<44}{used.ru_maxrss / 1024:>8.0f} MB   (here: {before >> 10})"
    )


def target_words(machine: Rented) -> dict[str, Any]:
    target = machine.conn.target
    return {"address": (target.rental, target.host, target.port, target.user, target.host_keys, str(target.folder)),
            "folders": machine.folders}  # fmt: skip


def many_there(state: str, manifest: str, words: str) -> None:
    """In a process of its own, with all that a controller imports."""
    import orchestrator.controller
    import orchestrator.machine  # noqa: F401

    given = eval(words)
    *address, folder = given["address"]
    conn = ssh.connect(ssh.Target(*address, Path(folder)))
    machine = Rented(conn, Home(state=Path(state), config=Path(state)), given["folders"], Path(folder))
    made = Manifest.of(eval(manifest))
    first = timed(lambda: land(machine, "many", made))
    print(f"{'  landed, checked':<44}{first:>8.2f} s", flush=True)
    print(f"{'  landed again, unchanged':<44}{timed(lambda: land(machine, 'many', made)):>8.2f} s", flush=True)
    conn.close()


def main(base: Path, repeats: int, only: str = "") -> None:
    """`only`: "small" measures the many small files alone."""
    with rented(base, 7200) as machine:
        if only == "small":
            small = make_files(base / "small", SMALL, SMALL_BYTES)
            compare_in(machine, "10,000 x 4 KiB", small, repeats)
            compare_out(machine, "10,000 x 4 KiB", small, base, repeats)
            return
        big = base / "big.bin"
        with big.open("wb") as out:
            for _ in range(1024):
                out.write(os.urandom(1 << 20))
        os.utime(big, (1_700_000_000, 1_700_000_000))
        small = make_files(base / "small", SMALL, SMALL_BYTES)
        compare_in(machine, "10,000 x 4 KiB", small, repeats)
        compare_in(machine, "1 GiB", big, repeats)
        cut(machine, big)
        many(machine, base)
        compare_out(machine, "1 GiB", big, base, repeats)
        compare_out(machine, "10,000 x 4 KiB", small, base, repeats)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--many"]:
        many_there(*sys.argv[2:5])
    else:
        with tempfile.TemporaryDirectory(prefix="gpujob-bench-", ignore_cleanup_errors=True) as folder:
            main(Path(folder), int(sys.argv[1]) if sys.argv[1:] else 3, *sys.argv[2:3])
