"""The agent under kill -9, repeats, strangers and a full disk: nothing runs twice, no exit code is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from agent_machine import Machine, is_alive, kill, pid_in, wait_for

ONCE = "echo start >> $GPUJOB_OUT/starts; echo up; while [ ! -e go ]; do sleep 0.05; done; echo bye; exit 6"


def starts(machine: Machine, n: int = 1) -> str:
    return (machine.job / "out" / f"t0.{n}" / "starts").read_text()


def let_go(machine: Machine) -> None:
    (machine.job / "work" / "base" / "go").touch()


def tmux_servers(machine: Machine) -> list[int]:
    return [pid for pid in machine.marked() if b"tmux" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]]


def gone(pid: int) -> None:
    wait_for(lambda: not is_alive(pid), f"the end of process {pid}")


def test_a_killed_supervisor_is_started_again_and_the_run_never_noticed(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order(ONCE)
        machine.wait_log(b"up")
        first, wrapper = machine.supervisor(), machine.wrapper()
        kill(first)
        gone(first)
        assert machine.do("status")["supervisor"] is False
        assert machine.do("start")["pid"] != first
        assert machine.wrapper() == wrapper
        assert machine.run()["state"] == "run"
        let_go(machine)
        run = machine.ended()
        assert (run["rc"], run.get("lost"), starts(machine)) == (6, None, "start\n")
        wait_for(lambda: machine.events("exit"), "the exit event of the second supervisor")


def test_a_killed_tmux_server_takes_nothing_with_it(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order(ONCE)
        machine.wait_log(b"up")
        (server,) = tmux_servers(machine)
        kill(server)
        gone(server)
        let_go(machine)
        assert machine.ended()["rc"] == 6
        assert machine.log() == b"up\nbye\n"


def test_a_killed_wrapper_ends_the_run_as_lost_and_it_never_runs_again(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order("setsid sleep 300 & echo $! > $GPUJOB_OUT/child;" + ONCE)
        machine.wait_log(b"up")
        child, leader = pid_in(machine.job / "out/t0.1/child"), machine.leader()
        kill(machine.wrapper())
        run = machine.ended()
        assert (run["rc"], run["lost"], run["dead"]) == (137, True, True)
        assert not is_alive(child)
        assert not is_alive(leader)
        kill(machine.supervisor())
        machine.do("start")
        wait_for(lambda: len(machine.events("agent")) == 2, "the second supervisor")
        assert machine.order("setsid sleep 300 & echo $! > $GPUJOB_OUT/child;" + ONCE)["already"] is True
        assert starts(machine) == "start\n"


def test_what_hid_its_environment_does_not_outlive_a_killed_wrapper(tmp_path: Path) -> None:
    with Machine(tmp_path, TREE_S="0.2") as machine:
        machine.order("env -i setsid sleep 300 & echo $! > $GPUJOB_OUT/child;" + ONCE)
        child = pid_in(machine.job / "out/t0.1/child")
        tree = machine.folder() / "tree"
        wait_for(lambda: tree.exists() and f"{child} " in tree.read_text(), "the child among the remembered")
        assert child not in machine.marked()
        kill(machine.wrapper())
        assert machine.ended()["lost"] is True
        gone(child)


def test_everything_killed_at_once(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order(ONCE)
        machine.wait_log(b"up")
        for pid in machine.marked():
            kill(pid)
        wait_for(lambda: not machine.marked(), "the end of everything")
        machine.do("start")
        assert (machine.ended()["rc"], machine.run()["lost"], starts(machine)) == (137, True, "start\n")


def test_an_order_whose_supervisor_died_before_the_launch_runs_once(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        supervisor = machine.supervisor()
        kill(supervisor, signal.SIGSTOP)
        machine.order("echo start >> $GPUJOB_OUT/starts; exit 6")
        assert machine.run()["state"] == "queued"
        kill(supervisor)
        gone(supervisor)
        machine.do("start")
        assert (machine.ended()["rc"], starts(machine)) == (6, "start\n")


def test_an_exit_code_on_disk_outlives_its_wrapper(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order("exit 6")
        machine.ended()
        supervisor = machine.supervisor()
        kill(supervisor)
        gone(supervisor)
        for name in ("ended.json", "reported"):  # as if the wrapper had been killed after run.rc
            (machine.folder() / name).unlink(missing_ok=True)
        machine.do("start")
        run = machine.ended()
        assert (run["stage"], run["rc"], run["lost"]) == ("run", 6, False)


@pytest.mark.parametrize("claimed", [True, False])
def test_after_a_reboot_nothing_is_started(tmp_path: Path, claimed: bool) -> None:
    with Machine(tmp_path) as machine:
        supervisor = machine.supervisor()
        kill(supervisor, signal.SIGSTOP)
        machine.order("echo start >> $GPUJOB_OUT/starts")
        kill(supervisor)
        gone(supervisor)
        order = json.loads((machine.folder() / "order.json").read_text())
        (machine.folder() / "order.json").write_text(json.dumps({**order, "boot_id": "before"}))
        if claimed:
            claim = {"pid": os.getpid(), "start": 1, "boot_id": "before", "at": 5.0}
            (machine.folder() / "claim").write_text(json.dumps(claim))
        machine.do("start")
        run = machine.ended()
        assert (run["rebooted"], run["rc"]) == (True, 137 if claimed else None)
        assert not (machine.job / "out" / "t0.1" / "starts").exists()


def test_a_new_version_replaces_the_supervisor_and_keeps_the_run(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order(ONCE)
        machine.wait_log(b"up")
        first, wrapper = machine.supervisor(), machine.wrapper()
        with (machine.control / "agent.py").open("a") as file:
            file.write("# another version\n")
        assert machine.do("start")["pid"] != first
        gone(first)
        assert is_alive(wrapper)
        let_go(machine)
        assert machine.ended()["rc"] == 6


def test_orders_repeated_contradicted_stale_and_strange(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        assert machine.order(ONCE)["already"] is False
        assert machine.order(ONCE)["already"] is True
        assert machine.ask("order", **machine.order_of("other"))["error"] == "conflict"
        assert machine.ask("order", **machine.order_of("other", n=2))["error"] == "busy"
        machine.epoch = 5
        machine.do("prepare", job="digits")
        machine.epoch = 4
        for command in ("arm", "prepare", "order", "signal", "close", "wipe"):
            ask = {"end": 1, "grace_s": 1, "action": "kill", "why": "cancel", **machine.order_of(ONCE)}
            answer = machine.ask(command, **ask)
            assert (answer["error"], answer["epoch"]) == ("epoch", 5), command
        machine.epoch = 5
        assert machine.ask("close", task="t0", n=1, nonce="stranger")["error"] == "nonce"
        assert machine.run()["state"] == "run"
        for wrong in ({"task": "../up"}, {"n": "1"}, {"stages": []}, {"env": {"A": 1}}, {"signal": "SHOUT"}):
            assert machine.ask("order", **{**machine.order_of("x", n=3), **wrong})["error"] == "invalid"
        assert machine.ask("signal", task="t0", n=8, why="cancel", grace_s=1)["error"] == "missing"
        assert machine.ask("dance")["error"] == "invalid"
        machine.do("signal", task="t0", n=1, why="cancel", grace_s=0)
        assert (machine.run()["dead"], machine.run()["signalled"]) == (True, "cancel")


def test_eight_orders_at_once_make_one_run(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        asked = [machine.spawn("order", **machine.order_of("echo start >> $GPUJOB_OUT/starts")) for _ in range(8)]
        answers = [machine.answer(process) for process in asked]
        assert [answer["ok"] for answer in answers] == [True] * 8
        assert sorted(answer["already"] for answer in answers) == [False] + [True] * 7
        machine.ended()
        assert starts(machine) == "start\n"


def test_two_starts_at_once_make_one_supervisor(tmp_path: Path) -> None:
    with Machine(tmp_path, started=False) as machine:
        answers = [machine.answer(process) for process in [machine.spawn("start") for _ in range(4)]]
        assert len({answer["pid"] for answer in answers}) == 1
        wait_for(lambda: machine.marked() == [answers[0]["pid"]], "the losers' end")


def test_without_tmux_the_run_goes_on_beside_it(tmp_path: Path) -> None:
    with Machine(tmp_path, started=False) as machine:
        shims = tmp_path / "bin"
        shims.mkdir()
        (shims / "tmux").write_text("#!/bin/sh\necho no terminal here\nexit 1\n")
        (shims / "tmux").chmod(0o755)
        machine.path = f"{shims}:{os.environ['PATH']}"
        machine.start()
        machine.order("exit 6")
        assert machine.ended()["rc"] == 6
        assert "no terminal here" in (machine.control / "agent.log").read_text()


@pytest.fixture
def small_disk(tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk needs root and a mount")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_a_full_disk_loses_neither_the_exit_code_nor_the_dead_man(small_disk: Path) -> None:
    with Machine(small_disk) as machine:
        machine.order(
            "dd if=/dev/zero of=fill bs=64k status=none || true; dd if=/dev/zero of=fill2 bs=1 status=none || true;"
            "head -c 100000 /dev/zero; exit 6"
        )
        assert machine.ended()["rc"] == 6
        assert os.statvfs(small_disk).f_bavail < 40
        for name in ("fill", "fill2"):
            (machine.job / "work" / "base" / name).unlink()
        machine.order("while :; do sleep 0.1; done", n=2)
        wait_for(lambda: machine.run(2)["state"] == "run", "the second run")
        leader = machine.leader(n=2)
        machine.do("arm", end=time.time() + 1, grace_s=0, action="kill")
        with pytest.raises(OSError, match="No space"):
            fill(small_disk / "rest")
        gone(leader)
        wait_for(lambda: not machine.marked(), "the dead-man's end")
