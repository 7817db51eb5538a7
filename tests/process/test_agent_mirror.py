"""The agent mirrors checkpoints to a real S3 server by itself: through faults, after kills, only what changed; and the
controller believes nothing but what the store holds."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agent_machine import JOB, Machine
from fault_proxy import FaultProxy
from mirrored_run import Mirrored
from s3_server import S3Server

from orchestrator.execute import WorkFailed
from orchestrator.objects.checkpoints import StoreMirror, fetch
from orchestrator.store_side import StoreSide, slots

MB = 1 << 20


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path / "home") as found:
        yield found


def small() -> dict[str, bytes]:
    return {f"small/{number}": os.urandom(100) for number in range(50)}


def content(files: dict[str, bytes]) -> dict[str, bytes]:
    return {**files, "COMPLETE": b""}


@pytest.mark.parametrize("kind", ["sts", "presigned"])
def test_what_was_saved_comes_back_byte_for_byte_and_only_what_changed_is_sent(
    machine: Machine, s3_server: S3Server, tmp_path: Path, kind: str
) -> None:
    run = Mirrored(machine, s3_server, f"whole-{kind}", kind=kind)
    run.give()
    run.order()
    frozen = os.urandom(12 * MB)
    first = {"frozen.bin": frozen, "head.bin": os.urandom(9 * MB), **small()}
    run.save(10, first)
    assert run.done(10) == [10]
    sent = run.told()["sent"]
    assert sum(map(len, first.values())) <= sent < sum(map(len, first.values())) + MB
    run.save(20, {**first, "head.bin": os.urandom(9 * MB)})
    assert run.done(20) == [10, 20]
    again = run.told()["sent"] - sent
    assert 9 * MB <= again < 10 * MB  # the frozen file went once
    (newest,) = [each for each in run.mirror.listing().checkpoints if each.manifest.step == 10]
    fetch(run.store, newest, tmp_path / "back")
    for name, data in content(first).items():
        assert (tmp_path / "back" / "step_10" / name).read_bytes() == data
    keys = [each.key for each in run.store.list(run.mirror.layout.run(1))]
    assert len([key for key in keys if "/m/" in key]) == 2
    assert all(("/o/" in key or "/m/" in key) == (kind == "sts") for key in keys if "/m/" not in key)
    machine.do("close", task="t0", n=1)
    assert not (machine.control / "runs" / "t0.1" / "store.json").exists()  # what it could do is gone with the run


def test_faults_of_the_way_cost_patience_and_less_than_a_chunk(
    machine: Machine, s3_server: S3Server, fault_proxy: FaultProxy
) -> None:
    run = Mirrored(machine, s3_server, "faults", endpoint=fault_proxy.endpoint)
    fault_proxy.skew_s = 0.0
    kinds = {2: "500", 4: "cut", 6: "skew"}
    fault_proxy.fault = lambda method, path, number: kinds.get(number)
    run.give()
    run.order()
    data = os.urandom(64 * MB)
    run.save(5, {"weights": data})
    assert run.done(5) == [5]
    chunk = 8 * MB
    assert fault_proxy.counts["PUT"] == 8 + 3 + 1  # every fault was met, and nothing else was repeated
    # what was sent beyond the data: the chunks that a fault hit, and nothing that had arrived
    assert fault_proxy.bytes_up - len(data) <= 3 * chunk
    assert run.told()["error"] == ""


def test_a_mirror_that_is_killed_goes_on_where_it_stopped(
    machine: Machine, s3_server: S3Server, fault_proxy: FaultProxy
) -> None:
    run = Mirrored(machine, s3_server, "killed", endpoint=fault_proxy.endpoint)
    fault_proxy.fault = lambda method, path, number: "hold" if number > 3 else None
    run.give()
    run.order()
    data = os.urandom(48 * MB)
    run.save(5, {"weights": data})
    root = run.mirror.layout.run(1)
    ledger = machine.control / "runs" / "t0.1" / "mirror.log"
    run.until(lambda: ledger.exists() and ledger.read_text().count('"sha256"') == 3, "a half of it is there")
    assert len(run.store.list(root)) == 3
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_mirror(pid, machine)]
    assert len(pids) == 1
    os.kill(pids[0], signal.SIGKILL)
    assert run.steps() == []  # without its manifest it does not exist
    fault_proxy.fault = lambda method, path, number: None
    before = fault_proxy.counts["PUT"]
    assert run.done(5) == [5]
    assert fault_proxy.counts["PUT"] - before == 3 + 1  # the other half and the manifest


def is_mirror(pid: str, machine: Machine) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"\0_mirror\0" in words and str(machine.control).encode() in words


def test_the_end_of_a_run_waits_for_nothing_and_its_last_checkpoint_still_goes(
    machine: Machine, s3_server: S3Server
) -> None:
    run = Mirrored(machine, s3_server, "ended")
    run.give()
    run.order('echo last > "$GPUJOB_CKPT/step_7"')
    run.until(lambda: machine.do("status")["runs"]["t0.1"]["dead"], "the run ends")
    assert run.done(7) == [7]
    gone = machine.control / "runs" / "t0.1" / "store.json"
    run.until(lambda: not gone.exists(), "the access is removed once all is there")


def test_keys_that_end_and_slots_that_run_out_are_told_and_renewed(machine: Machine, s3_server: S3Server) -> None:
    run = Mirrored(machine, s3_server, "renewed", kind="presigned")
    given = slots(run.mirror, run.mirror.layout.run(1), {}, 900)
    run.give(slots={**given, "objects": given["objects"][:1]})
    run.order()
    run.save(1, {"a": os.urandom(9 * MB), "b": os.urandom(9 * MB)})
    run.until(lambda: "no presigned slot is left" in run.told().get("error", ""), "it says that slots are missing")
    run.give()
    assert run.done(1) == [1]
    numbers = [each.key[-6:] for each in run.store.list(f"{run.mirror.layout.run(1)}/s/")]
    assert len(numbers) == len(set(numbers))


def test_what_a_store_does_not_hold_is_not_believed(machine: Machine, s3_server: S3Server, tmp_path: Path) -> None:
    run = Mirrored(machine, s3_server, "doubt")
    run.give()
    run.order()
    for step in (1, 2, 3, 4):
        run.save(step, {"w": os.urandom(5 * MB)})
        run.done(step)
    by_step = {each.manifest.step: each for each in run.mirror.listing().checkpoints}
    owner = s3_server.store()
    truncated, altered, lost = (by_step[step].objects[0] for step in (4, 3, 2))
    owner.put(truncated.key, owner.get(truncated.key)[:-1])
    owner.put(altered.key, bytes([owner.get(altered.key)[0] ^ 1]) + owner.get(altered.key)[1:])
    owner.delete([lost.key])
    found = run.mirror.listing()
    assert [each.step for each in found.manifests] == [1]
    why = {each.key.rpartition("/")[2][:12].lstrip("0"): each.why for each in found.broken}
    assert "bytes instead of" in why["4"]
    assert "other bytes" in why["3"]
    assert "is missing" in why["2"]


def test_manifests_of_strangers_are_not_believed(machine: Machine, s3_server: S3Server) -> None:
    run = Mirrored(machine, s3_server, "strangers")
    run.give()
    run.order()
    run.save(1, {"w": b"weights"})
    run.done(1)
    (good,) = run.mirror.listing().checkpoints
    shown = json.loads(run.store.get(good.key))
    owner, root = s3_server.store(), run.mirror.layout.run(1)
    for number, change in enumerate(
        (
            {"n": 2},
            {"job": "other"},
            {"root": "elsewhere"},
            {"files": [{**shown["files"][0], "path": "step_1/../../etc/passwd"}, *shown["files"][1:]]},
            {"files": [*shown["files"], {"path": "step_1/out", "link": "../../.ssh/id"}]},
            {"objects": [{**shown["objects"][0], "key": "../t0.2/o/" + "0" * 64}]},
            {"step": -4},
        )
    ):
        owner.put(f"{root}/m/bad{number}", json.dumps({**shown, **change}).encode())
    owner.put(f"{root}/m/bad-json", b"{")
    found = run.mirror.listing()
    assert [each.key for each in found.checkpoints] == [good.key]
    assert len(found.broken) == 8


def test_retention_keeps_what_is_needed_and_a_pruned_ones_shared_objects(machine: Machine, s3_server: S3Server) -> None:
    run = Mirrored(machine, s3_server, "pruned")
    run.give()
    run.order()
    shared = os.urandom(9 * MB)
    for step in (1, 2, 3):
        run.save(step, {"shared": shared, "own": os.urandom(5 * MB)})
        run.done(step)
    listed = run.mirror.listing()
    objects = {each.manifest.step: {ref.key for ref in each.objects} for each in listed.checkpoints}
    assert objects[1] & objects[3]
    removed = run.mirror.prune(listed, 1, frozenset({listed.manifests[1].hash}))
    assert [each.step for each in removed] == [1]
    assert run.steps() == [2, 3]
    there = {each.key for each in run.store.list(run.mirror.layout.run(1))}
    assert not (objects[1] - objects[2] - objects[3]) & there
    run.save(4, {"shared": shared, "own": os.urandom(5 * MB)})
    assert run.done(4) == [2, 3, 4]  # what it did not send again was not removed meanwhile


def test_what_the_format_calls_the_best_is_kept_in_the_store(machine: Machine, s3_server: S3Server) -> None:
    run = Mirrored(machine, s3_server, "best")
    run.give()
    run.order()
    state = json.dumps({"best_model_checkpoint": "out/step_1"}).encode()
    for step in (1, 2, 3):
        run.save(step, {"trainer_state.json": state, "w": os.urandom(1000)})
        run.done(step)
    listed = run.mirror.listing()
    assert run.mirror.best(listed) == {listed.manifests[0].hash}
    run.mirror.prune(listed, 1, run.mirror.best(listed))
    assert run.steps() == [1, 3]


def test_a_repeat_with_other_items_ends_the_one_under_way_and_stop_ends_it_for_good(
    machine: Machine, s3_server: S3Server, fault_proxy: FaultProxy
) -> None:
    machine.do("prepare", job=JOB)
    out = machine.job / "out" / "t0.1"
    out.mkdir(parents=True)
    (out / "a").write_bytes(b"a" * 1000)
    through = s3_server.store(endpoint=fault_proxy.endpoint)

    def item(key: str) -> dict[str, Any]:
        return {"id": key, "url": through.presign_put(key, 900), "size": 1000, "spans": [["a", 0, 1000]]}

    def ask(**more: Any) -> dict[str, Any]:
        return machine.do("transfer", task="t0", n=1, id="results", **more)

    fault_proxy.fault = lambda method, path, number: "hold" if "/old" in path else None
    assert ask(kind="up", root=str(out), items=[item("again/old")], wait=1)["state"] == "running"
    state = ask(kind="up", root=str(out), items=[item("again/new")], wait=9)
    assert (state["state"], list(state["items"])) == ("done", ["again/new"])
    assert s3_server.store().get("again/new") == b"a" * 1000
    assert ask(kind="up", root=str(out), items=[item("again/old2")], wait=1)["state"] == "running"
    assert ask(stop=True)["error"] == "stopped"
    assert ask(wait=1)["state"] == "failed"
    assert not transfers_of(machine)
    assert not list((machine.control / "runs" / "t0.1").glob("transfer-*.json"))  # no URL is left


def transfers_of(machine: Machine) -> list[int]:
    words = {int(pid): words_of(pid) for pid in os.listdir("/proc") if pid.isdigit()}
    return [pid for pid, said in words.items() if b"\0_transfer\0" in said and str(machine.control).encode() in said]


def words_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_what_comes_down_is_hashed_on_its_way_and_read_where_it_changed_since(
    machine: Machine, s3_server: S3Server, tmp_path: Path
) -> None:
    store = s3_server.store()
    pieces = {"big": os.urandom(3 * MB), "one": os.urandom(MB), "small/a": b"a" * 100, "small/b": b"b" * 200}
    big = pieces["big"]
    objects = {
        "o1": (big[:MB], [["top/big", 0, MB]]),
        "o2": (big[MB:], [["top/big", MB, 2 * MB]]),
        "o3": (pieces["one"], [["top/one", 0, MB]]),
        "o4": (pieces["small/a"] + pieces["small/b"], [["top/small/a", 0, 100], ["top/small/b", 0, 200]]),
    }
    for key, (data, _) in objects.items():
        store.put(f"onway/{key}", data)
    root = tmp_path / "down"
    (root / "top").mkdir(parents=True)
    (root / "top" / "one").write_bytes(b"x" * (2 * MB))  # longer, of an earlier try
    wanted: dict[str, Any] = {
        "kind": "down", "root": str(root), "list": "top",
        "make": [{"path": f"top/{name}", "size": len(data)} for name, data in pieces.items()]
        + [{"path": "top/none", "size": 0}, {"path": "top/link", "link": "one"}],
        "items": [
            {"id": key, "url": store.presign_get(f"onway/{key}", 900), "size": len(data), "spans": spans,
             "sha256": hashlib.sha256(data).hexdigest()}
            for key, (data, spans) in objects.items()
        ],
    }  # fmt: skip
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in {**pieces, "none": b""}.items()}

    def brought() -> dict[str, str]:
        state = machine.do("transfer", task="t0", n=2, id="down", wait=9, **wanted)
        assert state["state"] == "done", state
        assert {"path": "link", "link": "one"} in state["files"]
        return {each["path"]: each["sha256"] for each in state["files"] if "link" not in each}

    assert brought() == sums
    assert {path.name: path.read_bytes() for path in (root / "top").iterdir() if path.name in pieces} == {
        name: data for name, data in pieces.items() if "/" not in name
    }
    (root / "top" / "one").write_bytes(b"y" * MB)  # of the same size, after it came: its hash on the way is no proof
    (root / "top" / "small" / "a").unlink()
    assert brought() == {**sums, "one": hashlib.sha256(b"y" * MB).hexdigest()}


def test_the_next_run_fetches_it_from_the_store_and_never_an_altered_one(
    machine: Machine, s3_server: S3Server, fault_proxy: FaultProxy
) -> None:
    run = Mirrored(machine, s3_server, "fetched")
    run.give()
    run.order()
    files = {"w": os.urandom(9 * MB), "small": b"s", "none": b""}
    run.save(1, files)
    run.done(1)
    through = StoreMirror(s3_server.store(prefix="fetched", endpoint=fault_proxy.endpoint), run.mirror.layout)
    (found,) = through.listing().checkpoints
    side = StoreSide(cast(Any, None), time.time)
    context = cast(Any, SimpleNamespace(assignment=SimpleNamespace(task="t0", n=2, key="t0.2")))
    remote = machine.job / "resume" / "t0.2"

    class Asked:
        def agent(self, command: str, payload: dict[str, Any], timeout_s: float = 0.0) -> dict[str, Any]:
            return machine.do(command, **payload)

    def bring() -> None:
        side.bring_down(machine.do, cast(Any, Asked()), context, found, through, str(remote), lambda progress: None)

    bring()
    for name, data in content(files).items():
        assert (remote / "step_1" / name).read_bytes() == data
    fault_proxy.fault = lambda method, path, number: "alter" if method == "GET" and "/o/" in path else None
    (remote / "step_1" / "w").write_bytes(b"of an earlier try")
    with pytest.raises(WorkFailed, match="damaged") as failed:
        bring()
    assert failed.value.data == {"damaged": found.manifest.hash}
    assert run.mirror.listing().manifests == ()  # said for good, also to a controller that starts later
