"""What a store may do to a job: die in the middle, hang, be full, take the access away, hold a manifest that lies.
Nothing that was durable is lost, nothing half is believed, and it is said."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agent_machine import JOB, Machine
from fault_proxy import FaultProxy
from mirrored_run import Mirrored
from s3_server import S3Server, weed

from orchestrator.execute import WorkFailed
from orchestrator.objects import StoreUnreachable
from orchestrator.objects.checkpoints import StoreMirror
from orchestrator.store_side import StoreSide

MB = 1 << 20


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[S3Server]:
    """One that the test may kill."""
    if weed() is None:
        pytest.skip("no SeaweedFS for this platform")
    with S3Server(tmp_path / "s3") as server:
        yield server


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path / "home", WIRE_ANSWER_S="3.0", TRIES="3", WIRE_PAUSE_MAX_S="1.0") as found:
        yield found


@pytest.fixture
def proxy(own_server: S3Server) -> Iterator[FaultProxy]:
    found = FaultProxy(lambda: own_server.port)
    yield found
    found.close()


def test_a_store_that_dies_and_hangs_in_the_middle_has_all_of_it_in_the_end(
    machine: Machine, own_server: S3Server, proxy: FaultProxy
) -> None:
    run = Mirrored(machine, own_server, "dies", endpoint=proxy.endpoint)
    run.give()
    run.order()
    run.save(1, {"w": os.urandom(MB)})
    assert run.done(1) == [1]
    dies_at = proxy.counts["PUT"] + 3
    killed = threading.Event()

    def kill(method: str, path: str, number: int) -> None:
        if method == "PUT" and number == dies_at:
            own_server.kill()
            killed.set()

    proxy.fault = kill
    run.save(2, {"w": os.urandom(40 * MB)})
    assert killed.wait(30.0)
    with pytest.raises(StoreUnreachable):  # never an empty listing: that would be evidence
        run.mirror.listing()
    run.until(lambda: run.told().get("error"), "it says that the store does not answer")
    own_server.start_again()
    run.mirror = StoreMirror(own_server.store(prefix="dies", role=True), run.mirror.layout)
    assert run.done(2) == [1, 2]
    assert own_server.process is not None
    own_server.process.send_signal(signal.SIGSTOP)
    try:
        run.save(3, {"w": os.urandom(9 * MB)})
        run.until(lambda: run.told().get("error") or run.told().get("resent"), "it does not wait for ever")
    finally:
        own_server.process.send_signal(signal.SIGCONT)
    assert run.done(3) == [1, 2, 3]


@pytest.mark.parametrize("fault", ["403", "expired", "full", "412"])
def test_what_a_store_refuses_is_told_and_goes_on_when_it_no_longer_does(
    machine: Machine, own_server: S3Server, proxy: FaultProxy, fault: str
) -> None:
    run = Mirrored(machine, own_server, f"refuses-{fault}", endpoint=proxy.endpoint)
    run.give()
    run.order()
    proxy.fault = lambda method, path, number: fault if method == "PUT" else None
    run.save(1, {"w": os.urandom(MB)})
    said = run.until(lambda: run.told().get("error"), "it is told")
    words = {"403": "403 AccessDenied", "expired": "400 ExpiredToken", "full": "507 XMinioStorageFull", "412": "412"}
    assert words[fault] in said
    side = StoreSide(cast(Any, None), time.time)
    context = cast(Any, SimpleNamespace(assignment=SimpleNamespace(task="t0", n=1, key="t0.1")))
    assert side._needs_access(run.told(), context, run.mirror) is (fault in ("403", "expired"))
    assert run.steps() == []
    proxy.fault = lambda method, path, number: None
    run.give()
    assert run.done(1) == [1]


def test_a_manifest_that_lies_about_a_file_is_found_out_when_it_comes_down(
    machine: Machine, own_server: S3Server
) -> None:
    """Its objects are what it says, so the store confirms all of it; the file that they make is another one."""
    run = Mirrored(machine, own_server, "lies")
    run.give()
    run.order()
    for step in (1, 2):
        run.save(step, {"w": os.urandom(9 * MB), "small": b"s"})
        run.done(step)
    owner = own_server.store()
    (key,) = [each.key for each in run.mirror.listing().checkpoints if each.manifest.step == 2]
    document = json.loads(owner.get(key))
    (row,) = [each for each in document["files"] if each["path"].endswith("/w")]
    row["sha256"] = "0" * 64
    owner.put(key, json.dumps(document).encode())
    listed = run.mirror.listing().checkpoints
    (lie,) = [each for each in listed if each.manifest.step == 2]
    side = StoreSide(cast(Any, None), time.time)
    context = cast(Any, SimpleNamespace(assignment=SimpleNamespace(task="t0", n=2, key="t0.2")))
    with pytest.raises(WorkFailed, match="damaged") as failed:
        side.bring_down(
            machine.do, cast(Any, None), context, lie, run.mirror, str(machine.job / "resume" / "t0.2"), lambda _: None
        )
    assert failed.value.data == {"damaged": lie.manifest.hash}
    assert run.steps() == [1]  # the one before it is what is resumed from


def test_no_key_of_the_account_is_on_the_machine_while_it_mirrors(machine: Machine, own_server: S3Server) -> None:
    """Files, and what its processes were started with."""
    for kind in ("sts", "presigned"):
        run = Mirrored(machine, own_server, f"keys-{kind}", kind=kind)
        run.give()
        if kind == "sts":
            run.order()
            run.save(1, {"w": os.urandom(9 * MB)})
            run.done(1)
        found = [
            path for path in machine.home.rglob("*")
            if path.is_file() and not path.is_symlink() and b"owner-secret" in path.read_bytes()
        ]  # fmt: skip
        assert found == []
    for pid in machine.marked():
        try:
            assert b"owner-secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        except FileNotFoundError:
            continue
    assert machine.job.name == JOB
