"""Object stores: what the machine's own transfer costs beside s5cmd and rclone, on one S3 server of this host.

    python benchmarks/transfer.py s3 [--mib 1024] [--files 10000] [--checkpoint-mib 2048]

Every figure of one line is of one run, the tools one after another on the same server, so that only ratios count. The
server, the tools and the agent share the host's cores; for the share that mirroring takes from a job, the job has one
core and everything else the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for folder in ("tests/fakes", "tests/process"):
    sys.path.insert(0, str(ROOT / folder))
sys.path.insert(0, str(ROOT))

from agent_machine import JOB, Machine  # noqa: E402
from s3_server import OWNER, S3Server  # noqa: E402

from orchestrator.agent.layout import LAUNCHER  # noqa: E402
from orchestrator.objects.checkpoints import StoreMirror  # noqa: E402
from orchestrator.objects.layout import Layout  # noqa: E402
from orchestrator.objects.places import Place  # noqa: E402
from orchestrator.objects.settings import Location  # noqa: E402
from orchestrator.store_results import RemoteItem, upload  # noqa: E402
from orchestrator.store_side import GET_S, LISTEN_S, StoreSide  # noqa: E402

MIB = 1 << 20
LITTLE = 4096  # bytes of one of many files
JOB_S = 12.0  # seconds of work of the pinned job


class AsInLife(Machine):
    """Its commands are started as the controller starts them: from compiled code."""

    def spawn(self, command: str, **ask: Any) -> subprocess.Popen[bytes]:
        argv = [self.python, "-I", "-c", LAUNCHER, str(self.control), command]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.env, cwd="/")
        assert process.stdin
        process.stdin.write(json.dumps({"epoch": self.epoch, "nonce": self.nonce, **ask}).encode())
        process.stdin.close()
        return process


class Desk:
    """A server, a machine and the controller's side of transfers."""

    def __init__(self, folder: Path, server: S3Server, machine: Machine) -> None:
        self.folder, self.server, self.machine = folder, server, machine
        self.store = server.store()
        self.machine.do("prepare", job=JOB)
        self.side = StoreSide(self, time.time)  # type: ignore[arg-type]
        self.took = 0.0  # seconds of the last `ours_down`

    def of(self, place: str) -> Place:
        """As `Places.of`."""
        settings = self.server.settings()
        return Place(self.store, Location(settings, place.removeprefix("lab:")))

    def ask(self, command: str, **payload: Any) -> dict[str, Any]:
        return self.machine.do(command, **payload)

    def agent(self, command: str, payload: dict[str, Any], _: float = 0.0) -> dict[str, Any]:
        """As `Connection.agent`."""
        return self.machine.do(command, **{k: v for k, v in payload.items() if k not in ("epoch", "nonce")})

    def context(self, n: int) -> Any:
        return SimpleNamespace(
            job=SimpleNamespace(id="bench", name="bench"), assignment=SimpleNamespace(task="t0", n=n, key=f"t0.{n}")
        )


def timed(work: Callable[[], object]) -> float:
    os.sync()  # or one tool pays for what the one before it left to be written
    began = time.monotonic()
    work()
    return time.monotonic() - began


def tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found is not None, f"{name} is not installed"
    return found


def run_tool(desk: Desk, *command: str) -> None:
    env = {
        **os.environ, "AWS_ACCESS_KEY_ID": OWNER["aws_access_key_id"], "AWS_REGION": "us-east-1",
        "AWS_SECRET_ACCESS_KEY": OWNER["aws_secret_access_key"], "RCLONE_CONFIG_LAB_TYPE": "s3",
        "RCLONE_CONFIG_LAB_PROVIDER": "Other", "RCLONE_CONFIG_LAB_ENV_AUTH": "true",
        "RCLONE_CONFIG_LAB_ENDPOINT": desk.server.endpoint, "RCLONE_CONFIG": str(desk.folder / "rclone.conf"),
    }  # fmt: skip
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=900)


def up_with(desk: Desk, which: str, source: Path, prefix: str) -> None:
    if which == "s5cmd":
        run_tool(desk, tool("s5cmd"), "--endpoint-url", desk.server.endpoint, "cp", f"{source}/", f"s3://lab/{prefix}/")
    else:
        run_tool(desk, tool("rclone"), "copy", "--transfers", "16", str(source), f"lab:lab/{prefix}")


def down_with(desk: Desk, which: str, prefix: str, dest: Path) -> None:
    if which == "s5cmd":
        there = f"s3://lab/{prefix}/*"
        run_tool(desk, tool("s5cmd"), "--endpoint-url", desk.server.endpoint, "cp", there, f"{dest}/")
    else:
        run_tool(desk, tool("rclone"), "copy", "--transfers", "16", f"lab:lab/{prefix}", str(dest))


def ours_up(desk: Desk, out: Path, n: int) -> None:
    """As at the end of a job: listed and hashed, URLs signed, sent, compared with the store's listing."""
    item = RemoteItem("*", f"lab:ours{n}", "always")
    sent = upload(desk.side, desk.ask, desk, desk.context(n), (item,), str(out), True, lambda _: None)  # type: ignore[arg-type]
    assert sent.files == sum(path.is_file() for path in out.rglob("*")), sent


def ours_down(desk: Desk, prefix: str, source: Path, dest: Path, n: int) -> None:
    """As a resume: URLs signed, fetched, every file's hash compared with what the machine says."""
    rows = [
        (path.relative_to(source).as_posix(), path.read_bytes()) for path in sorted(source.rglob("*")) if path.is_file()
    ]
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in rows}
    sizes = {name: len(data) for name, data in rows}

    del rows
    # ranges of one object are objects of their own in a mirror: here files up to a chunk, so that all tools do the same
    items = [
        {"id": at, "url": desk.store.presign_get(f"{prefix}/{name}", GET_S), "size": sizes[name], "sha256": sums[name],
         "spans": [[name, 0, sizes[name]]]}
        for at, name in enumerate(sums)
    ]  # fmt: skip
    make = [{"path": name, "size": size} for name, size in sizes.items()]
    os.sync()
    began = time.monotonic()
    state = desk.side.transfer(
        desk.ask, desk.context(n).assignment, f"down-{n}",
        {"kind": "down", "root": str(dest), "items": items, "make": make, "list": "."}, False, lambda _: None,
    )  # fmt: skip
    assert state["state"] == "done", state
    assert {each["path"]: each["sha256"] for each in state["files"]} == sums
    desk.took = time.monotonic() - began


def data_in(desk: Desk, prefix: str, source: Path, dest: Path, n: int) -> float:
    """As data from a bucket: addresses signed, fetched by the machine, every file looked at there. Seconds."""
    sizes = {path.relative_to(source).as_posix(): path.stat().st_size for path in sorted(source.rglob("*"))}
    listed = desk.machine.job / "manifests" / f"bench{n}"
    listed.write_text("".join(json.dumps({"path": name, "size": size}) + "\n" for name, size in sizes.items()))
    os.sync()
    began = time.monotonic()
    with Path(f"{listed}.urls").open("w") as urls:
        for name in sizes:
            url = desk.store.presign_get(f"{prefix}/{name}", GET_S)
            urls.write(json.dumps({"path": name, "url": url}) + "\n")
    place = {"manifest": str(listed), "dest": str(dest), "single": False}
    dest.mkdir()
    state = desk.machine.do("fetch", id=f"bench{n}", job=JOB, urls=f"{listed}.urls", base="", headers={}, **place)
    while state["state"] == "running":
        state = desk.machine.do("fetched", id=f"bench{n}", wait=LISTEN_S)
    assert state["state"] == "done", state
    seen = desk.machine.do("landed", path=str(dest), manifest=str(listed), single=False, ours=True)
    assert seen["done"], seen
    assert not seen["faults"], seen
    return time.monotonic() - began


def copies(desk: Desk, label: str, source: Path, first: int, repeats: int) -> dict[str, Any]:
    """Up and down with each tool and with ours, in turn; of each the fastest of `repeats`: others disturbed it least.

    `first`: number of the first run; each has its own, and prefixes of its own.
    """
    times: dict[str, list[float]] = {}
    for n in range(first, first + repeats):
        for which in ("s5cmd", "rclone"):
            dest = desk.folder / which
            times.setdefault(f"{which}_up_s", []).append(
                timed(lambda which=which, n=n: up_with(desk, which, source, f"{which}{n}"))  # type: ignore[misc]
            )
            times.setdefault(f"{which}_down_s", []).append(
                timed(lambda which=which, n=n, dest=dest: down_with(desk, which, f"{which}{n}", dest))  # type: ignore[misc]
            )
            shutil.rmtree(dest)
        dest = desk.folder / "ours"
        times.setdefault("ours_up_s", []).append(timed(lambda n=n: ours_up(desk, source, n)))  # type: ignore[misc]
        ours_down(desk, f"s5cmd{n}", source, dest, n)
        times.setdefault("ours_down_s", []).append(desk.took)
        shutil.rmtree(dest)
        times.setdefault("ours_data_s", []).append(data_in(desk, f"s5cmd{n}", source, dest, n))
        shutil.rmtree(dest)
    figures: dict[str, Any] = {"what": label, **{name: round(min(each), 2) for name, each in times.items()}}
    for ours, way in (("up", "up"), ("down", "down"), ("data", "down")):
        best = min(min(times[f"s5cmd_{way}_s"]), min(times[f"rclone_{way}_s"]))
        figures[f"{ours}_ratio"] = round(best / min(times[f"ours_{ours}_s"]), 2)
    return figures


@contextlib.contextmanager
def on_cores(pids: list[int], cores: set[int]) -> Iterator[None]:
    """Everything of these processes and what they start on `cores`."""
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(task), cores)
    yield


def by_process() -> dict[int, tuple[str, int, float]]:
    """Of every process of the host: name, the core it was on last, CPU seconds so far."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            words = rest.split()
            found[int(pid)] = (head.partition("(")[2], int(words[36]), (int(words[11]) + int(words[12])) / 100)
    return found


def said(pid: int) -> str:
    """What a process was started with, its end."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()[-60:]
    return ""


def others_on(core: int, before: dict[int, tuple[str, int, float]], job: int) -> list[str]:
    """What else than the job was on its core since `before`, by CPU seconds."""
    spent = {
        pid: (f"{name} ({said(pid)})", seconds - before.get(pid, ("", 0, 0.0))[2])
        for pid, (name, at, seconds) in by_process().items()
        if at == core and pid != job
    }
    most = sorted(spent.values(), key=lambda each: -each[1])[:4]
    return [f"{name} {seconds:.1f} s" for name, seconds in most if seconds >= 0.1]


BUSY = """
import os, sys, time, hashlib
os.sched_setaffinity(0, {int(sys.argv[1])})
data, until, count = b"x" * 65536, time.monotonic() + float(sys.argv[2]), 0
began = time.process_time()
while time.monotonic() < until:
    hashlib.sha256(data).digest(); count += 1
print(count, time.process_time() - began)
"""


def busy(core: int, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", BUSY, str(core), str(seconds)], stdout=subprocess.PIPE)


def counted(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    out, _ = process.communicate()
    count, cpu = out.split()
    return float(count), float(cpu)


def mirror_of(desk: Desk, n: int, rate: int = 0) -> StoreMirror:
    """A run with access to the store, and its mirror as the controller sees it."""
    settings = desk.server.settings(prefix="mirror", role=True)
    mirror = StoreMirror(desk.server.store(prefix="mirror", role=True), Layout(Location(settings, "mirror"), JOB, "t0"))
    root = mirror.layout.run(n)
    access = mirror.store.access(root, 3600, "bench")
    document = {
        "base": f"{desk.server.endpoint}/lab", "prefix": root, "kind": access.kind, "keys": dict(access.keys),
        "until": access.until, "job": JOB, "task": "t0", "n": n, "keep": 1, "parent": None, "ordinal": 0, "rate": rate,
    }  # fmt: skip
    desk.machine.do("store", task="t0", n=n, store=document)
    desk.machine.do(
        "order", job=JOB, task="t0", n=n, workspace="base", code="", env={}, signal="TERM", grace_s=5,
        stages=[{"name": "run", "script": "sleep 3600 & wait $!"}], checkpoint={"path": "", "pattern": "step_{n}"},
    )  # fmt: skip
    return mirror


def save(desk: Desk, n: int, mib: int) -> None:
    folder = desk.machine.job / "ckpt" / f"t0.{n}"
    (folder / "tmp-1").mkdir(parents=True)
    with (folder / "tmp-1" / "weights").open("wb") as out:
        for _ in range(mib):
            out.write(os.urandom(MIB))
    (folder / "tmp-1" / "COMPLETE").touch()
    (folder / "tmp-1").rename(folder / "step_1")


def told(desk: Desk, n: int) -> dict[str, Any]:
    found: dict[str, Any] = desk.machine.do("status")["runs"][f"t0.{n}"].get("mirror") or {}
    return found


def mirroring(desk: Desk, mib: int) -> dict[str, Any]:
    """A checkpoint saved under a pinned job: how much slower that gets, and when the store holds it all."""
    cores = sorted(os.sched_getaffinity(0))
    job_core, rest = cores[0], set(cores[1:2] or cores[:1])
    own = [os.getpid(), desk.server.process.pid]  # type: ignore[union-attr]
    supervisor = int((desk.machine.control / "agent.pid").read_text().split()[0])
    with on_cores([*own, supervisor], rest):
        before, before_cpu = counted(busy(job_core, JOB_S))
        mirror = mirror_of(desk, 1)
        save(desk, 1, mib)
        began, there = time.monotonic(), by_process()
        job = busy(job_core, JOB_S)
        durable, beside = 0.0, []
        while not durable:
            if told(desk, 1).get("done") and mirror.listing().manifests:
                durable = time.monotonic() - began
            if not beside and job.poll() is not None:
                beside = others_on(job_core, there, job.pid)
            time.sleep(1.0)  # a look starts a Python on the core that sends, and the loop does not look more often
        during, during_cpu = counted(job)
        after, after_cpu = counted(busy(job_core, JOB_S))
    desk.machine.do("close", task="t0", n=1)
    per_s = (before / before_cpu + after / after_cpu) / 2
    os.sched_setaffinity(0, set(cores))
    return {
        "what": f"mirroring {mib} MiB", "durable_s": durable,
        "others_on_the_jobs_core": beside,
        "slower_wall": 1 - during / ((before + after) / 2), "slower_per_cpu_second": 1 - (during / during_cpu) / per_s,
    }  # fmt: skip


def cutting(desk: Desk, mib: int) -> dict[str, Any]:
    """The mirror is killed in the middle: what it sends again beside what had arrived."""
    mirror = mirror_of(desk, 2, rate=100 * MIB)
    save(desk, 2, mib)
    while told(desk, 2).get("busy", {}).get("sent", 0) < mib * MIB // 2:
        assert not told(desk, 2).get("done"), "too small to be cut"
        time.sleep(0.05)
    mark = str(desk.machine.control).encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes()  # the control folder is a word of the agent's
            if b"\0_mirror\0" in words and mark in words:
                os.kill(int(name), signal.SIGKILL)
    root = mirror.layout.run(2)
    arrived = sum(each.size for each in mirror.store.list(root))
    while not told(desk, 2).get("done"):
        time.sleep(0.2)
    again = told(desk, 2)["sent"] - (mib * MIB - arrived)
    desk.machine.do("close", task="t0", n=2)
    return {"what": f"a cut in the middle of {mib} MiB", "arrived": arrived, "sent_again_share": again / arrived}


def main(folder: Path, mib: int, files: int, checkpoint_mib: int, repeats: int) -> list[dict[str, Any]]:
    """All figures of the S3 part; a size of 0 leaves its part out."""
    found = []
    with S3Server(folder / "s3") as server, AsInLife(folder / "home", python=sys.executable) as machine:
        desk = Desk(folder, server, machine)
        big, many = folder / "big", folder / "many"
        if mib:
            big.mkdir()
            for part in range(16):
                (big / f"part{part}").write_bytes(os.urandom(mib * MIB // 16))
            found.append(copies(desk, f"{mib} MiB in 16 files", big, 100, repeats))
            print(json.dumps(found[-1]), flush=True)
            shutil.rmtree(big)
        if files:
            many.mkdir()
            for number in range(files):
                (many / f"f{number:05}").write_bytes(os.urandom(LITTLE))
            found.append(copies(desk, f"{files} files of 4 KiB", many, 200, repeats))
            print(json.dumps(found[-1]), flush=True)
            shutil.rmtree(many)
        for part in (mirroring, cutting) if checkpoint_mib else ():
            found.append(part(desk, checkpoint_mib))
            print(json.dumps(found[-1]), flush=True)
    return found
