"""The agent's rules that need no process: names, formats, ends, the joined file."""

from __future__ import annotations

import ast
import glob
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import (
    PROTOCOL,
    agent_source,
    agent_version,
    bundle,
    checkpoints,
    deadman,
    ends,
    files,
    inventory,
    layout,
    machine,
)
from orchestrator.agent.asks import need, need_name, need_run
from orchestrator.agent.checkpoints import CheckpointScan
from orchestrator.agent.commands import check_order
from orchestrator.agent.ends import Deadline
from orchestrator.agent.formats import flaw_of
from orchestrator.agent.hook import boot_hook
from orchestrator.agent.inventory import walk_files
from orchestrator.agent.layout import Refusal
from orchestrator.agent.names import step_of, step_pattern
from orchestrator.agent.processes import Proc, below
from orchestrator.agent.stage_log import StageLog
from orchestrator.agent.status import shortened


@pytest.fixture(autouse=True)
def control(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's own log goes beside its file, which here would be the checkout."""
    monkeypatch.setattr(layout, "CONTROL", str(tmp_path_factory.mktemp("control")))


# --- the joined file ---


def test_the_joined_file_defines_every_name_once_and_imports_only_the_standard_library() -> None:
    tree = ast.parse(agent_source())
    names: list[str] = []
    imported: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    for found in ast.walk(tree):
        if isinstance(found, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in found.names}
        elif isinstance(found, ast.ImportFrom):
            imported.add((found.module or "").partition(".")[0])
    assert sorted(names) == sorted(set(names))
    assert imported <= sys.stdlib_module_names
    assert len(agent_version()) == 16
    assert PROTOCOL == 2


def test_every_module_of_the_agent_is_in_the_joined_file_after_those_that_it_imports() -> None:
    here = Path(bundle.__file__).parent
    ours = {path.stem for path in here.glob("*.py")} - {"__init__", "bundle", "hook"}
    assert set(bundle.MODULES) == ours
    for position, name in enumerate(bundle.MODULES):
        for node in ast.walk(ast.parse((here / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orchestrator.agent."):
                assert bundle.MODULES.index(str(node.module).rpartition(".")[2]) < position


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.13"])
def test_the_joined_file_is_read_by_old_and_new_pythons(version: str, tmp_path: Path) -> None:
    found = glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}*/bin/python"))
    if not found:
        pytest.skip(f"no Python {version} on this host")
    (tmp_path / "agent.py").write_bytes(agent_source())
    done = subprocess.run([found[0], str(tmp_path / "agent.py"), "status"], capture_output=True, check=True)
    answer = json.loads(done.stdout)
    assert (answer["ok"], answer["version"], answer["runs"]) == (True, agent_version(), {})


# --- checkpoints ---


@pytest.mark.parametrize(
    ("name", "pattern", "step"),
    [
        ("step_300.npz", "step_{n}.npz", 300),
        ("step_300.npz.tmp", "step_{n}.npz", None),
        ("step_300.npz", "", 300),
        ("checkpoint-1200", "checkpoint-{n}", 1200),
        ("tmp-checkpoint-1200", "", None),
        (".step_1.pt", "", None),
        ("epoch=3-step=900.ckpt", "", 900),
        ("epoch3_step900.ckpt", "*_step{n}.ckpt", 900),
        ("last.ckpt", "", -1),
        ("ckpt.pt", "", -1),
        ("checkpoint", "", -1),
        ("config.json", "", None),
        ("last.tmp", "", None),
        ("model.bin", "model.bin", -1),
        ("a7.bin", "a?.bin", 7),
        ("step_3xnpz", "step_{n}.npz", None),
    ],
)
def test_which_names_are_checkpoints(name: str, pattern: str, step: int | None) -> None:
    assert step_of(name, step_pattern(pattern)) == step


def test_a_cut_archive_is_not_whole_but_an_old_pickle_is(tmp_path: Path) -> None:
    whole = tmp_path / "step_1.npz"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("a", b"x" * 5000)
    cut = tmp_path / "step_2.npz"
    cut.write_bytes(whole.read_bytes()[:-30])
    cut_torch = tmp_path / "step_2.pt"
    cut_torch.write_bytes(cut.read_bytes())
    pickle = tmp_path / "step_3.pt"
    pickle.write_bytes(b"\x80\x02]q\x00.")
    empty = tmp_path / "step_4.bin"
    empty.touch()
    assert [not flaw_of(str(path)) for path in (whole, cut, cut_torch, pickle, empty)] == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_safetensors_are_whole_when_the_last_tensor_is_there(tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    whole = tmp_path / "m.safetensors"
    whole.write_bytes(len(header).to_bytes(8, "little") + header + b"12345678")
    cut = tmp_path / "c.safetensors"
    cut.write_bytes(whole.read_bytes()[:-1])
    noise = tmp_path / "n.safetensors"
    noise.write_bytes(b"\xff" * 64)
    assert [not flaw_of(str(path)) for path in (whole, cut, noise)] == [True, False, False]


def test_folders_are_whole_by_marker_or_by_all_their_files(tmp_path: Path) -> None:
    marked, plain, saving, sharded, nothing = (tmp_path / name for name in ("m_1", "p_2", "s_3", "d_4", "n_5"))
    for folder in (marked, plain, saving, sharded, nothing):
        folder.mkdir()
    (marked / "left_over.tmp").write_bytes(b"of another program")
    (marked / "COMPLETE").touch()
    (plain / "weights.bin").write_bytes(b"w")
    (saving / "weights.bin").write_bytes(b"w")
    (saving / "optimizer.bin.tmp").write_bytes(b"o")
    (sharded / "__0_0.distcp").write_bytes(b"s")
    assert [not flaw_of(str(path)) for path in (marked, plain, saving, sharded, nothing)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    (sharded / ".metadata").write_bytes(b"\x80\x02}q\x00.")
    assert not flaw_of(str(sharded))
    (marked / "bad.npz").write_bytes(b"PK cut")
    assert flaw_of(str(marked))  # a marker says that all was written, not that what is there can be read


class FakeRun:
    """As much of a run as a scan looks at."""

    key = "t0.1"

    def __init__(self, folder: Path) -> None:
        self.order: dict[str, Any] = {"checkpoint": {"path": "", "pattern": "step_{n}.bin"}}
        self.folder = folder

    def folders(self) -> dict[str, str]:
        return {"ckpt": str(self.folder)}

    def pids(self) -> dict[int, int]:
        return {os.getpid(): 0}


def test_a_checkpoint_settles_between_two_looks_and_unsettles_when_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(checkpoints, "uptime", lambda: now[0])
    scan = CheckpointScan(FakeRun(tmp_path))  # type: ignore[arg-type]
    path = tmp_path / "step_1.bin"
    path.write_bytes(b"one")

    def complete(dead: bool = False) -> list[bool]:
        return [item["complete"] for item in scan.look(dead)]

    assert complete() == [False]
    now[0] += 1.9
    assert complete() == [False]
    now[0] += 0.1
    with path.open("r+b"):  # settled, but somebody still holds it open for writing
        assert complete() == [False]
    assert complete() == [True]
    path.write_bytes(b"one and more")
    assert complete() == [False]
    assert complete(dead=True) == [True]
    (tmp_path / "latest").symlink_to(path)
    (tmp_path / "step_2.bin.tmp").write_bytes(b"x")
    assert [item["name"] for item in scan.look()] == ["step_1.bin"]


def test_a_folder_that_may_not_be_listed_has_no_checkpoints_and_is_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []

    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(checkpoints, "list_names", refuse)
    monkeypatch.setattr(checkpoints, "note", noted.append)
    scan = CheckpointScan(FakeRun(tmp_path))  # type: ignore[arg-type]
    assert (scan.look(), scan.look(dead=True)) == ([], [])
    assert len(noted) == 1
    assert "Permission denied" in noted[0]


# --- ends ---


def test_boottime_decides_within_a_boot_and_utc_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "uptime", lambda: 1000.0)
    monkeypatch.setattr(ends, "boot_id", lambda: "this")
    monkeypatch.setattr(ends.time, "time", lambda: 50_000.0)
    same = Deadline(60_000.0, "this", 900.0, 1600.0, 120, "kill", True)
    assert same.remaining() == 600.0
    assert same._replace(boot_id="other").remaining() == 10_000.0
    assert same._replace(boot_now=1001.0).remaining() == 10_000.0  # uptime ran backwards: another container


def test_a_deadline_is_read_as_it_was_written_and_damage_is_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "control", lambda *names: str(tmp_path.joinpath(*names)))
    written = Deadline(1767225600.0, "4c0d", 88000.0, 90211.5, 120, "poweroff", True)
    written.save()
    assert Deadline.load() == written
    assert "grace=120\naction=poweroff\nconfirmed=1\n" in (tmp_path / "deadline").read_text()
    (tmp_path / "deadline").write_text("end=soon\n")
    assert Deadline.load() is None


@pytest.mark.parametrize(
    ("text", "at", "action"),
    [
        ('{"action": "stop", "time": "2026-01-01T00:00:00Z", "at": 1767225601.5}', 1767225601.5, "stop"),
        ('{"action": "terminate", "time": "2026-01-01T00:00:00Z"}', 1767225600.0, "terminate"),
        ("reclaimed", 1767225000.0 + 30, "terminate"),
    ],
)
def test_what_a_notice_file_may_say(
    text: str, at: float, action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadman.time, "time", lambda: 1767225000.0)
    (tmp_path / "notice").write_text(text)
    found = deadman.read_notice(str(tmp_path / "notice"))
    assert found is not None
    assert (found["at"], found["action"]) == (at, action)
    assert deadman.read_notice(str(tmp_path / "nothing")) is None
    assert deadman.read_notice("") is None


# --- the boot hook ---


def test_the_hook_is_pure_small_and_asks_for_plain_words() -> None:
    asked: dict[str, Any] = {"nonce": "n-1", "end": 1767225600.9, "grace_s": 120, "action": "kill", "rental": "r-1"}
    text = boot_hook(**asked)
    assert text == boot_hook(**asked)
    assert text.startswith("#!/bin/sh\n")
    assert "1767225600" in text
    assert "@" not in text
    assert len(text) < 6000  # user data is limited to 16 KB, others to less
    for wrong in ({"nonce": "a'b"}, {"rental": ""}, {"action": "explode"}):
        with pytest.raises(ValueError):
            boot_hook(**{**asked, **wrong})


# --- small rules ---


def test_gpu_rows_keep_what_the_driver_knows() -> None:
    text = "0, 97, 39000, 40960, 61, 250.11\n1, [N/A], 0, 40960, 30, [Not Supported]\nFailed to initialize NVML\n"
    assert machine.gpu_rows(text) == [
        {"index": 0, "util": 97.0, "mem_used": 39000.0, "mem_total": 40960.0, "temp": 61.0, "power": 250.11},
        {"index": 1, "util": None, "mem_used": 0.0, "mem_total": 40960.0, "temp": 30.0, "power": None},
    ]


def test_a_tree_of_processes() -> None:
    procs = {pid: Proc(parent, 0, 0, False) for pid, parent in ((2, 1), (3, 2), (4, 3), (5, 1))}
    assert below(procs, {2}) == {2, 3, 4}


def test_the_log_stops_at_its_limit_and_tells_of_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = StageLog(str(tmp_path / "log"), 10)
    log.pane = None
    log.write(b"12345678")
    log.write(b"abcdef")
    log.write(b"never")
    log.close()
    text = (tmp_path / "log").read_bytes()
    assert text.startswith(b"12345678ab\n")
    assert text.count(b"limit of 10 bytes") == 1
    assert b"never" not in text

    gap = StageLog(str(tmp_path / "gap"), 1000)
    gap.pane = None
    gap.write(b"before\n")
    monkeypatch.setattr(StageLog, "append", lambda self, data: 0)  # the disk is full
    gap.write(b"lost bytes")
    monkeypatch.undo()
    gap.write(b"after\n")
    gap.close()
    assert (tmp_path / "gap").read_bytes() == (
        b"before\n\n[gpujob] 10 bytes of output are lost: the disk was full\nafter\n"
    )


def test_create_once_has_one_winner(tmp_path: Path) -> None:
    path = str(tmp_path / "claim")
    assert files.create_once(path, b"first") is True
    assert files.create_once(path, b"second") is False
    assert Path(path).read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["claim"]


def order(**more: Any) -> dict[str, Any]:
    return {
        "epoch": 1,
        "nonce": "n",
        "job": "j",
        "task": "t0",
        "n": 1,
        "stages": [{"name": "run", "script": "true"}],
        "env": {"A": "1"},
        "secrets": {"T": "hush"},
        **more,
    }


def test_a_kept_order_holds_no_secret_and_is_equal_for_a_later_controller() -> None:
    kept = check_order(order())
    assert "hush" not in json.dumps(kept)
    assert kept["secret_names"] == ["T"]
    assert kept == check_order(order(epoch=9, secrets={"T": "rotated"}))
    assert kept != check_order(order(env={"A": "2"}))
    assert kept != check_order(order(stages=[{"name": "run", "script": "false"}]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"stages": [{"name": "run", "script": "x"}, {"name": "setup", "script": "x"}]},
        {"stages": [{"name": "serve", "script": "x"}]},
        {"env": {"A=B": "x"}},
        {"secrets": {"A": "x\0y"}},
        {"signal": "NOPE"},
        {"workspace": "elsewhere"},
        {"resume_from": "../../etc"},
    ],
)
def test_orders_that_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        check_order(order(**wrong))
    assert refused.value.answer["error"] == "invalid"


def test_what_a_command_is_asked_is_checked() -> None:
    assert need({"a": 1}, "a", int) == 1
    for wrong in ({"a": True}, {"a": "1"}, {}):
        with pytest.raises(Refusal):
            need(wrong, "a", int)
    with pytest.raises(Refusal):
        need_name({"job": "a/b"}, "job")
    assert need_run({"task": "t0", "n": 3}).key == "t0.3"


def test_a_walk_lists_links_and_never_follows_them(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_text("x")
    (tmp_path / "in" / "out").symlink_to("/etc")
    os.mkfifo(tmp_path / "in" / "fifo")
    found = list(walk_files(str(tmp_path / "in")))
    assert [entry["path"] for entry in found] == ["file", "out"]
    assert found[1] == {"path": "out", "link": "/etc"}
    assert [entry["path"] for entry in walk_files(str(tmp_path / "in" / "file"))] == ["file"]


def test_what_cannot_be_looked_at_is_named_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    (tmp_path / "shut").mkdir()

    def scandir(folder: str) -> Any:
        if folder.endswith("shut"):
            raise PermissionError(13, "Permission denied", folder)
        return real_scandir(folder)

    def opened(path: str, *rest: Any) -> Any:
        if path.endswith("/b"):
            raise PermissionError(13, "Permission denied", path)
        return open(path, *rest)

    real_scandir = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(inventory, "open", opened, raising=False)
    found = inventory.manifest_command({"path": str(tmp_path), "pattern": "", "hash": True})["files"]
    assert [(entry["path"], entry.get("error")) for entry in found] == [
        ("a", None),
        ("b", "Permission denied"),
        ("shut", "Permission denied"),
    ]


def test_a_long_status_is_shortened_to_the_newest() -> None:
    def run(closed: bool, started: float) -> dict[str, Any]:
        steps = [{"name": "x" * 200, "step": step} for step in range(100)]
        return {"closed": closed, "started": started, "checkpoints": steps}

    status = {"runs": {f"t0.{n}": run(n < 90, float(n)) for n in range(100)}}
    short = shortened(status)
    assert len(json.dumps(short)) <= 65_000
    assert "t0.99" in short["runs"]
    assert "t0.0" not in short["runs"]
    assert short["runs"]["t0.99"]["checkpoints"][-1]["step"] == 99
    assert shortened({"runs": {}}) == {"runs": {}}
