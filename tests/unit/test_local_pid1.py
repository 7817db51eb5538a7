"""Pid 1's clockwork with clocks of our own: what is armed when, and what moves it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from providers.local_machine import pid1
from providers.local_machine.pid1 import Machine, identity, read_at, write_at


class Died(Exception):
    """Instead of taking the test process along."""


@dataclass
class Clocks:
    """Seconds of the wall clock and since boot."""

    wall: float = 1_000_000.0
    boot: float = 500.0

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds


class Rig:
    def __init__(self, folder: Path, clocks: Clocks, machine: Machine) -> None:
        self.folder, self.clocks, self.machine = folder, clocks, machine

    def order(self, name: str, text: str) -> None:
        (self.folder / "ctl" / name).write_text(text)
        self.machine.read_orders()

    def after(self, seconds: float) -> float:
        self.clocks.pass_(seconds)
        self.machine.read_orders()
        return self.machine.keep_time()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    clocks = Clocks()
    monkeypatch.setattr(pid1, "boottime", lambda: clocks.boot)
    monkeypatch.setattr(pid1.time, "time", lambda: clocks.wall)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("ctl", "home"):
        (tmp_path / name).mkdir()

    def die(self: Machine, fate: str) -> None:
        raise Died(fate)

    monkeypatch.setattr(Machine, "die", die)
    ctl, root = (os.open(path, os.O_RDONLY) for path in (tmp_path / "ctl", "/"))
    with socket.socket() as listener:
        machine = Machine(ctl, root, listener, "/etc", "/usr/sbin/sshd", alone=True)
        machine.probe_at = None
        yield Rig(tmp_path, clocks, machine)
    for fd in (ctl, root, machine.log):
        os.close(fd)


def test_the_end_comes_when_it_is_due_and_not_before(rig: Rig) -> None:
    rig.order("end", f"{rig.clocks.wall + 10!r}\n")
    assert rig.after(9.75) == pytest.approx(0.25), "it wakes for the end, not for the next tick"
    with pytest.raises(Died, match="ended"):
        rig.after(0.25)


@pytest.mark.parametrize("step", [-86400.0, 86400.0])
def test_a_step_of_the_wall_clock_does_not_move_the_end(rig: Rig, step: float) -> None:
    rig.order("end", f"{rig.clocks.wall + 10!r}\n")
    rig.clocks.wall += step
    rig.after(9.9)
    with pytest.raises(Died, match="ended"):
        rig.after(0.2)


def test_a_moved_end_is_measured_anew(rig: Rig) -> None:
    rig.order("end", f"{rig.clocks.wall + 10!r}\n")
    rig.order("end", f"{rig.clocks.wall + 1000!r}\n")
    rig.after(999)
    rig.order("end", f"{rig.clocks.wall - 1!r}\n")
    with pytest.raises(Died, match="ended"):
        rig.machine.keep_time()


def test_an_unreadable_end_keeps_the_old_one(rig: Rig) -> None:
    rig.order("end", f"{rig.clocks.wall + 10!r}\n")
    with pytest.raises(ValueError, match="soon"):
        rig.order("end", "soon\n")
    (rig.folder / "ctl/end").unlink()
    with pytest.raises(Died, match="ended"):
        rig.after(10)


def test_no_end_is_no_end(rig: Rig) -> None:
    assert rig.after(1e9) == pid1.TICK_S


def test_a_reclaim_is_announced_once_and_taken_after_its_notice(rig: Rig) -> None:
    rig.order("reclaim", f"at {rig.clocks.wall + 20:.3f}\nnotice 5.0\n")
    rig.after(19.9)
    assert not (rig.folder / "ctl/notice").exists()
    rig.after(0.1)
    at = float((rig.folder / "ctl/notice").read_text())
    assert at == pytest.approx(rig.clocks.wall + 5, abs=0.01)
    seen = json.loads((rig.folder / "home/.spot-notice.json").read_text())
    assert seen == {"action": "terminate", "time": "1970-01-12T13:47:05Z", "at": at}
    (rig.folder / "home/.spot-notice.json").unlink()
    rig.after(4.9)
    assert not (rig.folder / "home/.spot-notice.json").exists(), "announced twice"
    with pytest.raises(Died, match="interrupted"):
        rig.after(0.1)


def test_a_reclaim_without_notice_gives_none(rig: Rig) -> None:
    rig.order("reclaim", f"at {rig.clocks.wall + 20:.3f}\nnotice 0.0\n")
    with pytest.raises(Died, match="interrupted"):
        rig.after(20)
    assert not (rig.folder / "ctl/notice").exists()


def test_a_file_of_the_host_gives_the_sign_once(rig: Rig) -> None:
    sign = rig.folder / "sign"
    rig.order("reclaim", f"file {sign}\nnotice 3.0\n")
    rig.after(100)
    sign.touch()
    rig.after(1)
    sign.unlink()
    rig.after(2.9)
    with pytest.raises(Died, match="interrupted"):
        rig.after(0.2)


def test_the_nearer_of_end_and_reclaim_wins(rig: Rig) -> None:
    rig.order("end", f"{rig.clocks.wall + 10!r}\n")
    rig.order("reclaim", f"at {rig.clocks.wall + 8:.3f}\nnotice 120.0\n")
    rig.after(8)
    with pytest.raises(Died, match="ended"):
        rig.after(2)


def test_doom_is_read_before_anything_else(rig: Rig) -> None:
    with pytest.raises(Died, match="terminated"):
        rig.order("doom", "destroyed\n")


def test_a_machine_whose_folder_was_deleted_ends(rig: Rig) -> None:
    for path in (rig.folder / "ctl").iterdir():
        path.unlink()
    (rig.folder / "ctl").rmdir()
    with pytest.raises(Died, match="terminated"):
        rig.machine.read_orders()


def test_files_are_read_and_written_through_a_descriptor(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    assert read_at(fd, "absent") == ""
    write_at(fd, "word", "one\n")
    write_at(fd, "word", "two\n")
    os.close(fd)
    assert [path.name for path in tmp_path.iterdir()] == ["word"]
    assert (tmp_path / "word").read_text() == "two\n"


def test_identity_is_pid_and_start_as_the_host_counts() -> None:
    proc = os.open("/proc", os.O_RDONLY)
    pid, start = identity(proc).split()
    os.close(proc)
    assert int(pid) == os.getpid()
    assert int(start) > 0


def test_descendants_are_found_at_any_depth() -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            os.write(write_end, f"{os.getpid()}\n".encode())
            os.read(os.pipe()[0], 1)
        os.waitpid(grandchild, 0)
        os._exit(0)
    grandchild = int(os.read(read_end, 20))
    try:
        assert {child, grandchild} <= set(pid1.descendants(os.getpid()))
    finally:
        os.kill(grandchild, 9)
        os.waitpid(child, 0)
        os.close(read_end)
        os.close(write_end)
    assert not {child, grandchild} & set(pid1.descendants(os.getpid()))
