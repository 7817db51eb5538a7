"""Results over a real sshd with the real agent: brought bit by bit, verified at the end, hostile machines refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plain_sshd import Sshd

from orchestrator import artifacts, ssh
from orchestrator.agent import agent_source
from orchestrator.artifacts import ArtifactPlan, Item, Results
from orchestrator.home import Home
from orchestrator.publish import PUBLISHED, discard, publish
from orchestrator.ssh import Connection

JOB = "digits.1-k3v9"


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd")) as server:
        (server.home / ".gpujob").mkdir()
        (server.home / ".gpujob" / "agent.py").write_bytes(agent_source())
        yield server


@pytest.fixture(scope="module")
def conn(sshd: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    target = sshd.target(tmp_path_factory.mktemp("rental"))
    connection = ssh.connect(target)
    yield connection
    connection.close()
    ssh.stop_sharing(target)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(state=tmp_path / "state", config=tmp_path / "config").make()


@pytest.fixture
def machine(sshd: Sshd, tmp_path: Path) -> Path:
    """A folder on the machine with `out` and `work` of one run."""
    folder = sshd.home / tmp_path.name
    for name in ("out", "work"):
        (folder / name).mkdir(parents=True)
    return folder


class WithChanges:
    """The real agent, but `changed` names what lies in `work`: it answers only for a run that was ordered."""

    def __init__(self, conn: Connection, work: Path) -> None:
        self.conn, self.work, self.asked = conn, work, list[dict[str, Any]]()

    def agent(self, command: str, payload: dict[str, Any], timeout_s: float = 60.0) -> dict[str, Any]:
        if command != "changed":
            self.asked.append(payload)
            return self.conn.agent(command, payload, timeout_s)
        found = self.conn.agent("manifest", {"path": str(self.work), "hash": False, "pattern": ""}, timeout_s)
        return {"ok": True, "base": str(self.work), "files": found["files"]}


def collected(conn: Any, home: Home, plan: ArtifactPlan, final: bool = True, **more: Any) -> Results:
    real = conn if isinstance(conn, Connection) else conn.conn
    return artifacts.collect(
        conn, real.target, home, job=JOB, task="t0", n=2, plan=plan, final=final,
        success=True if final else None, **more,
    )  # fmt: skip


def paths(results: Results) -> list[str]:
    return sorted(piece.path for piece in results.pieces)


def test_results_come_bit_by_bit_and_are_verified_at_the_end(
    conn: Connection, home: Home, machine: Path, tmp_path: Path
) -> None:
    out, work = machine / "out", machine / "work"
    plan = ArtifactPlan(str(out), tmp_path / "gpujob-results" / "digits")
    agent = WithChanges(conn, work)
    (out / "log.csv").write_text("1\n")
    (out / "half.tmp").write_text("x" * 100)
    first = collected(agent, home, plan, final=False)
    assert (paths(first), first.verified) == (["half.tmp", "log.csv"], False)
    (out / "half.tmp").unlink()
    (out / "log.csv").write_text("1\n2\n")
    (out / "plots").mkdir()
    (out / "plots" / "curve 1.png").write_bytes(os.urandom(50_000))
    (out / "latest").symlink_to("plots/curve 1.png")
    (work / "made.txt").write_text("by the job")
    last = collected(agent, home, plan)
    assert last.verified
    assert (last.problems, last.refused, last.left) == ((), (), ())
    assert paths(last) == ["latest", "log.csv", "plots/curve 1.png", "workdir/made.txt"]
    assert agent.asked[-1]["names"] == ["made.txt"]  # nothing else of workdir is hashed
    done = publish(home, job=JOB, task="t0", n=2, plan=plan, results=last, success=True)
    assert (done.path / "log.csv").read_text() == "1\n2\n"
    assert (done.path / "latest").read_bytes() == (out / "plots" / "curve 1.png").read_bytes()
    assert not (done.path / "half.tmp").exists()
    assert json.loads((done.path / PUBLISHED).read_text())["verified"] is True
    discard(home, JOB, "t0", 2)
    assert not home.results(JOB, "t0", 2).exists()


def test_a_damaged_copy_is_found_and_brought_again(conn: Connection, home: Home, machine: Path, tmp_path: Path) -> None:
    out = machine / "out"
    plan = ArtifactPlan(str(out), tmp_path / "r", (Item("*", tmp_path / "r"),))
    (out / "model.bin").write_bytes(b"good" * 1000)
    collected(conn, home, plan, final=False)
    staged = home.results(JOB, "t0", 2) / "out" / "model.bin"
    info = staged.stat()
    staged.write_bytes(b"evil" * 1000)
    os.utime(staged, ns=(info.st_mtime_ns, info.st_mtime_ns))  # rsync's quick check sees nothing
    assert collected(conn, home, plan).verified
    assert staged.read_bytes() == b"good" * 1000


def test_items_choose_by_pattern_and_absolute_path(conn: Connection, home: Home, machine: Path, tmp_path: Path) -> None:
    out, dest, other = machine / "out", tmp_path / "results" / "digits", tmp_path / "logs" / "digits"
    for name in ("a.png", "deep/b.png", "c.txt"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(name)
    (machine / "work" / "x.log").write_text("log")
    (machine / "work" / "y.txt").write_text("no")
    items = (Item("*.png", dest), Item("*.txt", dest, "failure"), Item(f"{machine}/work/*.log", other))
    results = collected(conn, home, ArtifactPlan(str(out), dest, items))
    assert results.verified
    assert paths(results) == ["a.png", "deep/b.png", "x.log"]
    assert {piece.dest for piece in results.pieces if piece.path == "x.log"} == {other}


def test_what_is_over_the_limit_is_listed_smallest_kept(
    conn: Connection, home: Home, machine: Path, tmp_path: Path
) -> None:
    for name, size in (("small", 10), ("middle", 100), ("large", 1000)):
        (machine / "work" / name).write_bytes(b"x" * size)
    plan = ArtifactPlan(str(machine / "out"), tmp_path / "d", limit=150)
    results = collected(WithChanges(conn, machine / "work"), home, plan)
    assert paths(results) == ["workdir/middle", "workdir/small"]
    assert results.left == (("large", 1000),)
    assert results.verified


def test_no_out_folder_is_no_results(conn: Connection, home: Home, machine: Path, tmp_path: Path) -> None:
    plan = ArtifactPlan(str(machine / "nowhere"), tmp_path / "r", (Item("*", tmp_path / "r"),))
    results = collected(conn, home, plan)
    assert (results.pieces, results.verified) == ((), True)


class Lying:
    """Answers every manifest with `files`, whatever lies there."""

    def __init__(self, conn: Connection, files: list[dict[str, Any]]) -> None:
        self.conn, self.files = conn, files

    def agent(self, command: str, payload: dict[str, Any], timeout_s: float = 60.0) -> dict[str, Any]:
        return {"ok": True, "files": self.files, "base": payload.get("path", "/")}


DIGEST = "0" * 64


def test_escaping_names_are_refused_and_lies_are_not_verified(
    conn: Connection, home: Home, machine: Path, tmp_path: Path
) -> None:
    out = machine / "out"
    (out / "real").write_text("real")
    (out / "link").symlink_to("/etc/passwd")
    plan = ArtifactPlan(str(out), tmp_path / "r", (Item("*", tmp_path / "r"),))
    results = collected(conn, home, plan)
    assert (paths(results), results.verified) == (["real"], True)
    assert results.refused == ("link is a link that may lead out of its folder, to /etc/passwd",)
    lies: list[dict[str, Any]] = [
        {"path": "../../../evil", "size": 1, "sha256": DIGEST},
        {"path": "real", "size": 4, "sha256": DIGEST},
        {"path": "absent", "size": 4, "sha256": DIGEST},
    ]
    results = collected(Lying(conn, lies), home, plan)
    assert not results.verified
    assert results.problems[:2] == (
        "absent is not as the machine announced it", "real is not as the machine announced it",
    )  # fmt: skip
    assert len(results.refused) == 1
    assert list(tmp_path.rglob("evil")) == []


def test_a_link_trap_leads_nowhere(conn: Connection, home: Home, machine: Path, tmp_path: Path) -> None:
    """First a link that stays inside by its letters, then files below it."""
    out = machine / "out"
    (out / "d" / "e").mkdir(parents=True)
    (out / "d" / "e" / "up").symlink_to("../../other")
    plan = ArtifactPlan(str(out), tmp_path / "r", (Item("*", tmp_path / "r"),))
    assert paths(collected(conn, home, plan)) == ["d/e/up"]
    (out / "d" / "e" / "up").unlink()
    (out / "d" / "e" / "up").mkdir()
    (out / "d" / "e" / "up" / "planted").write_text("x")
    results = collected(conn, home, plan)
    assert paths(results) == ["d/e/up/planted"]
    staging = home.results(JOB, "t0", 2)
    assert [path.relative_to(staging).as_posix() for path in staging.rglob("planted")] == ["out/d/e/up/planted"]
