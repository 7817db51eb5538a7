"""Checkpoints over a real sshd with the real agent: copied, verified, sent on, and killed in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plain_sshd import Sshd

from orchestrator import ssh
from orchestrator.agent import agent_source
from orchestrator.checkpoints import CheckpointError, Manifest, StillChanging, listing, mirror_one, push_resume
from orchestrator.home import Home
from orchestrator.ssh import Connection, Target
from orchestrator.ssh_errors import Unsafe

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
def target(conn: Connection) -> Target:
    return conn.target


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(state=tmp_path / "state", config=tmp_path / "config").make()


@pytest.fixture
def ckpt(sshd: Sshd, tmp_path: Path) -> Path:
    folder = sshd.home / tmp_path.name / "ckpt"
    folder.mkdir(parents=True)
    return folder


def mirrored(conn: Any, home: Home, path: Path, step: int = 300, n: int = 1, **more: Any) -> Manifest:
    return mirror_one(
        conn, more.pop("target", None) or conn.target, home, job=JOB, task="t0", n=n, name=path.name, step=step,
        remote_path=str(path), parent=more.pop("parent", None), **more,
    )  # fmt: skip


def archive(path: Path, size: int = 100_000) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("weights.npy", os.urandom(size))
    return path


def stored(home: Home, manifest: Manifest) -> Path:
    return home.mirror(JOB, "t0") / str(manifest.n) / "parts" / manifest.id / manifest.name


def test_a_file_is_mirrored_verified_and_listed(conn: Connection, home: Home, ckpt: Path) -> None:
    path = archive(ckpt / "step_300.npz")
    manifest = mirrored(conn, home, path, parent="a" * 64)
    assert stored(home, manifest).read_bytes() == path.read_bytes()
    assert (manifest.step, manifest.bytes, manifest.parent) == (300, path.stat().st_size, "a" * 64)
    assert listing(home, JOB, "t0").manifests == (manifest,)
    path.unlink()
    with pytest.raises(StillChanging, match="no longer there"):
        mirrored(conn, home, path)


def test_every_part_is_on_the_disk_before_the_manifest_is_there(
    conn: Connection, home: Home, ckpt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ckpt / "checkpoint-300"
    folder.mkdir()
    archive(folder / "model.npz")
    archive(folder / "optimizer.npz")
    synced: list[tuple[tuple[int, int], bool]] = []  # device and inode, whether a manifest was listed by then
    fsync = os.fsync

    def recorded(fd: int) -> None:
        there = os.fstat(fd)
        synced.append(((there.st_dev, there.st_ino), bool(listing(home, JOB, "t0").manifests)))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    manifest = mirrored(conn, home, folder)
    before = {mark for mark, listed in synced if not listed}
    for part in (stored(home, manifest), *stored(home, manifest).iterdir()):
        assert (part.stat().st_dev, part.stat().st_ino) in before, part.name


def test_a_folder_keeps_its_files_and_inner_links(conn: Connection, home: Home, ckpt: Path) -> None:
    folder = ckpt / "checkpoint-300"
    (folder / "deep").mkdir(parents=True)
    archive(folder / "deep" / "optimizer.pt")
    (folder / "odd name\n$(x)").write_text("state")
    (folder / "latest").symlink_to("deep/optimizer.pt")
    manifest = mirrored(conn, home, folder)
    copy = stored(home, manifest)
    assert (copy / "deep" / "optimizer.pt").read_bytes() == (folder / "deep" / "optimizer.pt").read_bytes()
    assert os.readlink(copy / "latest") == "deep/optimizer.pt"
    assert len(manifest.files) == 3
    assert mirrored(conn, home, folder) == manifest


def test_another_content_under_the_same_name_replaces_nothing(conn: Connection, home: Home, ckpt: Path) -> None:
    first = mirrored(conn, home, archive(ckpt / "last_1.npz", 1000), step=1)
    kept = stored(home, first).read_bytes()
    second = mirrored(conn, home, archive(ckpt / "last_1.npz", 2000), step=1)
    assert first.hash != second.hash
    assert stored(home, first).read_bytes() == kept
    assert len(listing(home, JOB, "t0").manifests) == 2


def test_damaged_archives_and_empty_files_are_refused(conn: Connection, home: Home, ckpt: Path) -> None:
    path = archive(ckpt / "step_900.pt")
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(CheckpointError, match=r"step_900.pt is damaged"):
        mirrored(conn, home, path, step=900)
    (ckpt / "step_901").write_bytes(b"")
    with pytest.raises(CheckpointError, match="step_901 is empty"):
        mirrored(conn, home, ckpt / "step_901", step=901)
    (ckpt / "step_902.safetensors").write_bytes((1000).to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match="is damaged"):
        mirrored(conn, home, ckpt / "step_902.safetensors", step=902)
    assert listing(home, JOB, "t0").manifests == ()


def test_a_checkpoint_that_changes_while_it_is_copied_does_not_count(conn: Connection, home: Home, ckpt: Path) -> None:
    path = archive(ckpt / "step_300.npz")

    def rewrite(point: str) -> None:
        if point == "copied":
            archive(path)

    with pytest.raises(StillChanging, match="written to while it was copied"):
        mirrored(conn, home, path, tap=rewrite)
    assert listing(home, JOB, "t0").manifests == ()
    assert mirrored(conn, home, path).step == 300


class Lying:
    """The real agent with its manifest changed on the way."""

    def __init__(self, conn: Connection, files: list[dict[str, Any]]) -> None:
        self.conn, self.files = conn, files

    def agent(self, command: str, payload: dict[str, Any], timeout_s: float = 60.0) -> dict[str, Any]:
        return {"ok": True, "files": self.files}


DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ([{"path": "../../../.ssh/authorized_keys", "size": 1, "sha256": DIGEST}], Unsafe),
        ([{"path": "/etc/passwd", "size": 1, "sha256": DIGEST}], Unsafe),
        ([{"path": "a", "link": "/etc"}, {"path": "b", "size": 1, "sha256": DIGEST}], Unsafe),
        ([{"path": "a/b", "link": "../../x"}], Unsafe),
        ([{"path": "a", "link": "../ckpt-1x/y"}], Unsafe),
        ([{"path": "a", "size": 1, "sha256": DIGEST}] * 2, Unsafe),
        ([{"path": "a", "size": -1, "sha256": DIGEST}], CheckpointError),
        ([{"path": "a", "size": "1", "sha256": DIGEST}], CheckpointError),
        ([{"path": "a", "size": 1, "sha256": "short"}], CheckpointError),
        ([{"path": "a", "size": 1, "sha256": None}], StillChanging),
        ([], CheckpointError),
        (["a"], CheckpointError),
        ([{"path": "a", "size": 4, "sha256": DIGEST}], StillChanging),  # real bytes, another hash
    ],
)
def test_a_lying_machine_gets_nothing_into_the_mirror(
    conn: Connection, home: Home, ckpt: Path, files: Any, error: type[Exception]
) -> None:
    (ckpt / "ckpt-1").mkdir()
    (ckpt / "ckpt-1" / "a").write_text("real")
    with pytest.raises(error):
        mirrored(Lying(conn, files), home, ckpt / "ckpt-1", step=1, target=conn.target)
    assert listing(home, JOB, "t0").manifests == ()
    assert list(home.state.rglob("authorized_keys")) == []


def test_a_name_that_is_a_path_is_refused(conn: Connection, home: Home) -> None:
    for name in ("..", ".", "a/b", ""):
        with pytest.raises(Unsafe):
            mirror_one(conn, conn.target, home, job=JOB, task="t0", n=1, name=name, step=1,
                       remote_path=f"/tmp/{name}", parent=None)  # fmt: skip


def test_what_is_sent_for_resuming_is_verified_there(conn: Connection, home: Home, ckpt: Path, sshd: Sshd) -> None:
    folder = ckpt / "checkpoint-5"
    folder.mkdir()
    archive(folder / "a.pt")
    (folder / "state.json").write_text("{}")
    manifest = mirrored(conn, home, folder, step=5)
    dest = ckpt.parent / "resume" / "t0.2"
    dest.mkdir(parents=True)
    (dest / "checkpoint-5").mkdir()
    # An earlier try left another content of the same size behind
    (dest / "checkpoint-5" / "state.json").write_text("[]")
    info = (stored(home, manifest) / "state.json").stat()
    os.utime(dest / "checkpoint-5" / "state.json", ns=(info.st_mtime_ns, info.st_mtime_ns))
    where = push_resume(conn, conn.target, home, manifest, str(dest))
    assert where == str(dest / "checkpoint-5")
    assert (dest / "checkpoint-5" / "state.json").read_text() == "{}"
    assert (dest / "checkpoint-5" / "a.pt").read_bytes() == (folder / "a.pt").read_bytes()
    (dest / "checkpoint-5" / "more").write_text("not ours")
    with pytest.raises(CheckpointError, match="did not arrive"):
        push_resume(conn, conn.target, home, manifest, str(dest))
    (stored(home, manifest) / "state.json").write_text("xx")
    with pytest.raises(CheckpointError, match="in the mirror is damaged"):
        push_resume(conn, conn.target, home, manifest, str(dest / "other"))


KILLED = """
import os, signal, sys
from pathlib import Path
from orchestrator import ssh
from orchestrator.checkpoints import mirror_one
from orchestrator.home import Home
from orchestrator.ssh import Target
state, host_key, port, user, folder, path, point = sys.argv[1:]
home = Home(state=Path(state), config=Path(state) / "config")
target = Target("digits-1-r1", "127.0.0.1", int(port), user, (host_key,), Path(folder))
def tap(here):
    if here == point:
        os.kill(os.getpid(), signal.SIGKILL)
mirror_one(ssh.connect(target), target, home, job="digits.1-k3v9", task="t0", n=1, name=Path(path).name, step=300,
           remote_path=path, parent=None, tap=tap)
"""


@pytest.mark.parametrize("point", ["looked", "copied", "verified", "durable", "written"])
def test_a_kill_at_any_point_leaves_a_whole_checkpoint_or_none(
    conn: Connection, home: Home, ckpt: Path, point: str
) -> None:
    path = archive(ckpt / "step_300.npz")
    target = conn.target
    words = [str(home.state), target.host_keys[0], str(target.port), target.user, str(target.folder), str(path)]
    ran = subprocess.run([sys.executable, "-c", KILLED, *words, point], capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    seen = listing(home, JOB, "t0")
    assert seen.broken == ()
    assert len(seen.manifests) == (point == "written")
    manifest = mirrored(conn, home, path)
    assert listing(home, JOB, "t0").manifests == (manifest,)
    assert stored(home, manifest).read_bytes() == path.read_bytes()
    assert seen.manifests in ((), (manifest,))


def test_a_cut_copy_goes_on_with_what_is_here(conn: Connection, home: Home, ckpt: Path) -> None:
    path = archive(ckpt / "step_300.npz", 1_000_000)
    manifest = mirrored(conn, home, path)
    part = stored(home, manifest)
    whole = part.read_bytes()
    for left in (whole[:700_000], b"y" * len(whole)):  # half of it; a crash's garbage of the right size
        part.write_bytes(left)
        next((home.mirror(JOB, "t0") / "manifests" / "1").iterdir()).unlink()  # as before it was written
        assert mirrored(conn, home, path) == manifest
        assert part.read_bytes() == whole


def test_a_name_that_is_not_text_is_refused(conn: Connection, home: Home, ckpt: Path) -> None:
    path = ckpt / os.fsdecode(b"step_\xff6")
    path.write_text("x")
    with pytest.raises(Unsafe, match="not a name in UTF-8"):
        mirrored(conn, home, path, step=6)
