"""The machine's own downloads against a real server on loopback: parallel, resumable, honest about what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_machine import JOB, Machine, kill, wait_for
from fake_web import FakeWeb

SEGMENT = 1 << 16
# `X or 16 << 20` is X: what is replaced of a constant ends at its first space
QUICK = {"SEGMENT": f"{SEGMENT} or 16", "BLOCK_BYTES": "4096 or 256", "PAUSE_S": "0.01", "FETCH_TRIES": "4",
         "STALL_S": "1.0", "TELL_S": "0.05"}  # fmt: skip


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("fetching"), **QUICK) as made:
        yield made


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with FakeWeb() as made:
        yield made


class Job:
    """One manifest of files of a server, on a machine."""

    def __init__(self, machine: Machine, web: FakeWeb, base: Path, **given: Any) -> None:
        self.machine, self.web, self.dest = machine, web, base / "dest"
        self.manifest, self.given = base / "manifest", given
        self.id = f"{JOB}.{hashlib.sha256(str(base).encode()).hexdigest()[:8]}"

    def write(self, **more: Any) -> None:
        rows = []
        for path, data in sorted(self.web.files.items()):
            row = {"path": path.strip("/"), "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            rows.append({**row, **more})
        self.manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def start(self) -> None:
        if not self.manifest.exists():
            self.write()
        self.machine.do(
            "fetch", id=self.id, job=JOB, manifest=str(self.manifest), dest=str(self.dest),
            **{"base": self.web.url + "/", "headers": {}, "parallel": 4, **self.given},
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        return self.machine.do("fetched", id=self.id)

    def ended(self) -> dict[str, Any]:
        wait_for(lambda: self.state()["state"] != "running", "the end of the fetch")
        return self.state()

    def run(self) -> dict[str, Any]:
        self.start()
        return self.ended()

    def here(self) -> dict[str, bytes]:
        """What has its name; half files lie aside."""
        files = (path for path in self.dest.rglob("*") if path.is_file() and path.parent.name != ".gpujob-partial")
        return {f"/{path.relative_to(self.dest)}": path.read_bytes() for path in files}

    def landed(self) -> dict[str, Any]:
        return self.machine.do("landed", path=str(self.dest), manifest=str(self.manifest), ours=True)


def fetching(machine: Machine) -> list[int]:
    """The processes that fetch."""
    return [pid for pid in machine.marked() if b"_fetch" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.fixture
def job(machine: Machine, web: FakeWeb, tmp_path: Path) -> Job:
    web.files = {f"/sub {n}/f{n}.bin": os.urandom(3000 * n) for n in range(5)} | {
        "/big.bin": os.urandom(5 * SEGMENT + 7)
    }
    return Job(machine, web, tmp_path)


def test_files_arrive_whole_in_parallel_segments_and_the_check_reads_none_again(job: Job) -> None:
    state = job.run()
    assert (state["state"], state["files"], state["bytes"]) == ("done", 6, sum(map(len, job.web.files.values())))
    assert job.here() == job.web.files
    assert len([path for path, span, _ in job.web.asked if path == "/big.bin" and span]) == 6
    assert sorted(path.name for path in job.dest.iterdir()) == ["big.bin", *(f"sub {n}" for n in range(5))]
    seen = [json.loads(line)[0] for line in Path(f"{job.manifest}.seen").read_text().splitlines()]
    assert len(seen) == 6
    assert job.landed()["faults"] == {}
    job.web.asked.clear()
    assert job.run()["state"] == "done"
    assert job.web.asked == []


def test_what_passes_by_itself_is_tried_again_and_resends_less_than_a_block(job: Job) -> None:
    job.web.files["/huge.bin"] = os.urandom(60 * SEGMENT)
    total = sum(map(len, job.web.files.values()))
    job.web.faults = [503, ("cut", 20000), ("retry", 429, 0.01), ("stall", 30000), 500, ("cut", 0), ("cut", 50000)]
    assert job.run()["state"] == "done"
    assert job.here() == job.web.files
    assert job.web.faults == []
    assert job.web.sent < total * 1.05


def test_a_kill_in_the_middle_costs_less_than_a_twentieth(machine: Machine, web: FakeWeb, tmp_path: Path) -> None:
    web.files = {"/big.bin": os.urandom(40 * SEGMENT)}
    job = Job(machine, web, tmp_path)
    web.faults = [*([None] * 20), *([("stall", 30000)] * 500)]
    job.start()
    wait_for(lambda: job.state()["bytes"] > 20 * SEGMENT, "half of it")
    (pid,) = fetching(machine)
    arrived = web.sent
    kill(pid)
    web.faults.clear()
    web.released.set()
    wait_for(lambda: not fetching(machine), "its end")
    before = web.sent
    assert job.run()["state"] == "done"
    assert job.here() == web.files
    assert web.sent - before < len(web.files["/big.bin"]) - 0.95 * arrived


@pytest.mark.parametrize("kind", ["etag", "size", "bytes"])
def test_a_source_that_changed_since_apply_is_told(job: Job, kind: str) -> None:
    job.web.files = {"/a": b"one" * 1000}
    job.write()
    if kind == "etag":
        job.manifest.write_text(json.dumps({"path": "a", "size": 3000, "etag": "another"}) + "\n")
    job.web.files = {"/a": {"etag": b"one" * 1000, "size": b"oneX" * 1000, "bytes": b"two" * 1000}[kind]}
    state = job.run()
    assert (state["state"], state["error"], state["path"]) == ("failed", "changed", "a")
    assert job.here() == {}


def test_bytes_that_turned_over_on_the_way_are_brought_once_more(job: Job) -> None:
    job.web.files = {"/a": os.urandom(3 * SEGMENT)}
    job.web.faults = [("alter",)]
    state = job.run()
    assert (state["state"], state["bytes"]) == ("done", 3 * SEGMENT)
    assert job.here() == job.web.files


def test_half_of_another_version_is_not_gone_on_with(job: Job) -> None:
    job.web.files = {"/a": os.urandom(3 * SEGMENT)}
    job.web.faults = [*([None] * 2), 404]
    assert job.run()["error"] == "gone"
    job.web.files = {"/a": os.urandom(3 * SEGMENT)}
    job.write()
    assert job.run()["state"] == "done"
    assert job.here() == job.web.files


@pytest.mark.parametrize(
    ("status", "error"), [(404, "gone"), (410, "gone"), (401, "denied"), (403, "denied"), (400, "refused")]
)
def test_what_no_repetition_mends_ends_it_at_once(job: Job, status: int, error: str) -> None:
    job.web.files = {"/a": b"x" * 10}
    job.web.faults = [status] * 9
    state = job.run()
    assert (state["state"], state["error"]) == ("failed", error)
    assert str(status) in state["detail"]
    assert len(job.web.asked) == 1


def test_a_server_that_stays_away_is_given_up_with_its_last_word(job: Job) -> None:
    job.web.files = {"/a": b"x" * 10}
    job.web.faults = [503] * 50
    state = job.run()
    assert (state["error"], len(job.web.asked)) == ("unreachable", 4)
    assert "503" in state["detail"]
    job.web.faults = []
    assert job.run()["state"] == "done"  # the next attempt goes on


def test_servers_without_ranges_and_without_sizes(job: Job) -> None:
    data = os.urandom(50_000)
    job.web.files, job.web.ranges = {"/a": data}, False
    job.write(ranges=False)
    job.web.faults = [("cut", 20000)]
    assert job.run()["state"] == "done"
    assert job.here() == {"/a": data}
    job.web.sizes = False
    job.id += "-2"
    (job.dest / "a").unlink()
    job.write(size=-1, ranges=False)
    assert job.run()["state"] == "done"
    assert job.here() == {"/a": data}
    assert job.landed()["faults"] == {}


def test_a_token_goes_to_its_own_host_only(machine: Machine, web: FakeWeb, tmp_path: Path) -> None:
    with FakeWeb() as elsewhere:
        elsewhere.files = web.files = {"/a": b"x" * 10}
        web.redirects = {"/a": f"{elsewhere.url}/a"}
        job = Job(machine, web, tmp_path, headers={"Authorization": "Bearer hunter22"})
        assert job.run()["state"] == "done"
        assert [each[2] for each in web.asked] == ["Bearer hunter22"]
        assert [each[2] for each in elsewhere.asked] == [""]
    asked = machine.control / "fetch" / job.id / "ask.json"
    assert asked.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("there", ["file:///etc/passwd", "ftp://127.0.0.1/a", "http:///a b", "/a\u00e9"])
def test_a_redirect_to_what_is_no_address_ends_it(job: Job, there: str) -> None:
    job.web.files, job.web.redirects = {"/a": b"x" * 10}, {"/a": there}
    state = job.run()
    assert (state["state"], state["error"], state["path"]) == ("failed", "refused", "a")
    assert job.here() == {}


def test_one_file_lands_under_its_path_and_a_second_order_changes_nothing(
    machine: Machine, web: FakeWeb, tmp_path: Path
) -> None:
    web.files = {"/a": b"x" * 10}
    job = Job(machine, web, tmp_path, single=True)
    job.start()
    job.start()
    assert job.ended()["state"] == "done"
    assert job.dest.read_bytes() == b"x" * 10
    assert machine.ask("fetched", id="nothing")["error"] == "missing"


def test_it_ends_with_its_folder(machine: Machine, web: FakeWeb, tmp_path: Path) -> None:
    web.files = {"/a": b"x" * 10}
    web.faults = [("stall", 0)] * 20
    job = Job(machine, web, tmp_path)
    job.start()
    wait_for(lambda: web.asked, "the first question")
    shutil.rmtree(machine.control / "fetch" / job.id)
    wait_for(lambda: not fetching(machine), "its end")
