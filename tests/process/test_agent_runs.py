"""Runs on the agent as a job sees them: stages, exit codes, output, environment, signals, leftovers."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_machine import JOB, OLDEST, Machine, is_alive, pid_in, wait_for


def newest_python() -> str:
    found = glob.glob(os.path.expanduser("~/.pyenv/versions/3.13*/bin/python"))
    return found[0] if found else sys.executable


@pytest.mark.parametrize("python", sorted({OLDEST, newest_python()}))
def test_three_stages_run_in_turn_and_a_done_setup_is_skipped_the_next_time(tmp_path: Path, python: str) -> None:
    with Machine(tmp_path, python) as machine:
        (machine.job / "code" / "hello.txt").write_text("code\n")
        script = "echo $GPUJOB_ATTEMPT >> setups; cat hello.txt"
        stages = [
            {"name": "setup", "script": script, "once": "abc123"},
            {"name": "smoke", "script": "echo smoke"},
            {"name": "run", "script": "cat setups; printf 'step 1\\rno newline'"},
        ]
        machine.order("", stages=stages)
        run = machine.ended()
        assert (run["state"], run["stage"], run["rc"], run["signalled"]) == ("exited", "run", 0, None)
        assert machine.log("setup") == b"code\n"
        assert machine.log("smoke") == b"smoke\n"
        assert machine.log("run") == b"1\nstep 1\rno newline"
        machine.order("", n=2, stages=stages)
        assert machine.ended(2)["rc"] == 0
        assert machine.log("run", 2) == b"1\nstep 1\rno newline"  # setup did not write its second line
        assert machine.do("status")["setups"] == ["abc123"]
        told = [(e["run"], e["stage"], e["state"], e["rc"]) for e in machine.events("stage")]
        assert told[-2:] == [("t0.2", "run", "start", None), ("t0.2", "run", "end", 0)]
        assert next((e["run"], e["rc"]) for e in machine.events("exit")) == ("t0.1", 0)


def test_true_exit_codes(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order({"run": "(exit 3) | tee tee.txt"}, n=1)
        assert machine.ended(1)["rc"] == 3
        machine.order({"run": "kill -SEGV $$"}, n=2)
        assert machine.ended(2)["rc"] == 128 + 11
        machine.order({"setup": "exit 4", "run": "echo never"}, n=3)
        assert (machine.ended(3)["stage"], machine.run(3)["rc"]) == ("setup", 4)
        assert machine.log("run", 3) == b""


def test_environment_of_a_stage(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        env = {"PYTHONUNBUFFERED": "0", "SEED": "42", "GPUJOB_TASK": "lie"}
        machine.order("env -0 > $GPUJOB_OUT/env", env=env, secrets={"TOKEN": "s3cret"})
        machine.ended()
        raw = (machine.job / "out" / "t0.1" / "env").read_text().split("\0")
        seen = dict(pair.split("=", 1) for pair in raw if pair)
        assert seen["PYTHONUNBUFFERED"] == "0"
        assert (seen["SEED"], seen["TOKEN"]) == ("42", "s3cret")
        assert (seen["GPUJOB_TASK"], seen["GPUJOB_RUN"], seen["GPUJOB_ATTEMPT"]) == ("t0", "t0.1", "1")
        assert seen["GPUJOB_JOB_ID"] == JOB
        assert seen["GPUJOB_RESUME_FROM"] == ""
        assert seen["GPUJOB_CKPT"] == str(machine.job / "ckpt" / "t0.1")
        assert seen["GPUJOB_METRICS"] == seen["GPUJOB_OUT"] + "/metrics.jsonl"
        assert int(seen["GPUJOB_DEADLINE"]) == int(machine.do("status")["deadline"]["end"])
        assert 20000 <= int(seen["MASTER_PORT"]) < 32000
        assert not {"TMUX", "TMUX_PANE", "CUDA_VISIBLE_DEVICES"} & set(seen)


def test_secrets_are_nowhere_but_in_the_jobs_own_environment(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order("echo up; sleep 60", secrets={"TOKEN": "hush-hush-777"})
        machine.wait_log(b"up")
        holders = []
        for pid in machine.marked():
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"hush-hush-777" not in Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"hush-hush-777" in environ:
                holders.append(pid)
                assert b"GPUJOB_RUN=t0.1" in environ.split(b"\0")
        assert machine.leader() in holders
        assert machine.wrapper() not in holders
        kept = [path for path in machine.control.rglob("*") if path.is_file() and b"hush-hush" in path.read_bytes()]
        assert kept == []
        machine.do("close", task="t0", n=1)


def test_sigterm_grace_lets_the_last_checkpoint_be_saved(tmp_path: Path) -> None:
    trainer = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.6)                    # bash is dead of the same signal by now
    while not os.path.exists(os.path.join(os.environ["GPUJOB_OUT"], "asked twice")):
        time.sleep(0.05)
    path = os.path.join(os.environ["GPUJOB_CKPT"], "step_7.bin")
    open(path + ".tmp", "w").write("x" * 1000)
    os.rename(path + ".tmp", path)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("training", flush=True)
time.sleep(60)
"""
    with Machine(tmp_path) as machine:
        (machine.job / "code" / "train.py").write_text(trainer)
        machine.order(f"{sys.executable} train.py", checkpoint={"path": "", "pattern": "step_{n}.bin"})
        machine.wait_log(b"training")
        first = machine.do("signal", task="t0", n=1, why="interruption", grace_s=30)
        again = machine.do("signal", task="t0", n=1, why="cancel", grace_s=1)
        (machine.job / "out/t0.1" / "asked twice").touch()
        assert (first["already"], again["already"], again["why"]) == (False, True, "interruption")
        assert again["grace_left"] > 1
        run = machine.ended()
        assert run["signalled"] == "interruption"
        assert b"saved" in machine.log()
        assert [(c["name"], c["step"], c["bytes"], c["complete"]) for c in run["checkpoints"]] == [
            ("step_7.bin", 7, 1000, True)
        ]
        wait_for(lambda: machine.events("exit"), "the exit event")
        assert [e["name"] for e in machine.events("checkpoint")] == ["step_7.bin"]
        assert machine.events("exit")[0]["signalled"] == "interruption"


def test_older_checkpoints_are_removed_on_request_and_never_the_newest_or_a_changed_one(tmp_path: Path) -> None:
    script = "cd $GPUJOB_CKPT; for i in 1 2 3 4; do mkdir step_$i; echo data > step_$i/w.bin; done; echo made; sleep 60"
    with Machine(tmp_path) as machine:
        machine.order(script, checkpoint={"path": "", "pattern": "step_{n}"})
        machine.wait_log(b"made")
        wait_for(lambda: [c for c in machine.run()["checkpoints"] if c["complete"]][3:], "all are complete")
        seen = {c["name"]: {key: c[key] for key in ("name", "bytes", "mtime")} for c in machine.run()["checkpoints"]}
        names = [seen["step_1"], {**seen["step_2"], "bytes": 4}, seen["step_4"], {"name": "../../../data", "bytes": 1}]
        assert machine.do("thin", task="t0", n=1, names=names)["removed"] == ["step_1"]
        assert machine.do("thin", task="t0", n=1, names=names)["removed"] == []
        folder = machine.job / "ckpt" / "t0.1"
        assert sorted(path.name for path in folder.iterdir()) == ["step_2", "step_3", "step_4"]
        assert machine.job.joinpath("data").is_dir()


def test_what_ignores_the_signal_is_killed_when_the_grace_is_over(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order("trap '' TERM HUP; echo up; while :; do sleep 0.1; done")
        machine.wait_log(b"up")
        machine.do("signal", task="t0", n=1, why="ttl", grace_s=0.5)
        assert (machine.ended()["rc"], machine.run()["signalled"]) == (137, "ttl")


def test_an_exit_before_the_signal_is_not_called_signalled(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order("true")
        machine.ended()
        assert machine.do("signal", task="t0", n=1, why="cancel", grace_s=5)["ended"] is True
        assert machine.run()["signalled"] is None


def test_close_kills_what_hides_and_the_key_stays_closed(tmp_path: Path) -> None:
    script = """
trap '' HUP TERM
(trap '' HUP TERM; echo $BASHPID > $GPUJOB_OUT/stubborn; while :; do sleep 0.1; done) &
env -i setsid nohup bash -c "echo \\$\\$ > $GPUJOB_OUT/orphan; while :; do sleep 0.1; done" >/dev/null 2>&1 &
disown -a
echo up
while :; do sleep 0.1; done
"""
    with Machine(tmp_path) as machine:
        machine.order(script)
        machine.wait_log(b"up")
        stubborn, orphan = (pid_in(machine.job / "out/t0.1" / name) for name in ("stubborn", "orphan"))
        assert is_alive(stubborn)
        assert is_alive(orphan)
        assert machine.do("close", task="t0", n=1)["dead"] is True
        assert not is_alive(stubborn)
        assert not is_alive(orphan)
        run = machine.run()
        assert (run["state"], run["rc"], run["dead"], run["closed"]) == ("exited", 137, True, True)
        wait_for(lambda: machine.marked() == [machine.supervisor()], "the tmux server's end")
        assert machine.ask("order", **machine.order_of("true"))["error"] == "closed"
        assert machine.do("close", task="t0", n=9)["dead"] is True  # never ordered: now it never starts
        assert machine.ask("order", **machine.order_of("true", n=9))["error"] == "closed"


def test_leftovers_of_a_stage_are_ended_before_the_next(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order(
            {"setup": "setsid sleep 300 & echo $! > left.pid", "run": "test -e /proc/$(cat left.pid) || echo gone"}
        )
        assert machine.ended()["rc"] == 0
        assert machine.log() == b"gone\n"


def test_the_attached_terminal_shows_the_output_and_a_stopped_one_does_no_harm(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order("echo visible; while [ ! -e go ]; do sleep 0.05; done; seq 20000; echo last")
        machine.wait_log(b"visible")
        # as `attach` does it: from within the folder, because a socket's path may be too long
        tmux = ["tmux", "-S", "tmux.sock"]
        wait_for(
            lambda: (
                b"visible" in subprocess.check_output([*tmux, "capture-pane", "-p", "-t", "run"], cwd=machine.folder())
            ),
            "the output in the pane",
        )
        for keys in ("C-s", "C-c", "C-z"):  # flow control, interrupt, stop: typed by somebody who attached
            subprocess.check_call([*tmux, "send-keys", "-t", "run", keys], cwd=machine.folder())
        (machine.job / "work" / "base" / "go").touch()
        assert machine.ended()["rc"] == 0
        assert machine.log().endswith(b"20000\nlast\n")


def test_huge_lines_and_the_log_limit(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order("head -c 30000000 /dev/zero | tr '\\0' x; exit 5", log_limit=1_000_000)
        assert machine.ended()["rc"] == 5
        log = machine.log()
        assert log[:1_000_000] == b"x" * 1_000_000
        assert b"limit of 1000000 bytes" in log[1_000_000:]
        assert len(log) < 1_000_200


def test_own_workspaces_and_changed_files(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        (machine.job / "code" / "a.txt").write_text("a")
        machine.order(
            {"setup": "echo s > from_setup", "run": "pwd; ls; echo new > sub.txt; mkdir -p .cache; touch .cache/x"},
            workspace="own",
        )
        machine.ended()
        lines = machine.log().decode().split()
        assert lines == [str(machine.job / "work" / "t0.1"), "a.txt", "from_setup"]
        changed = machine.do("changed", job=JOB, task="t0", n=1)
        assert [entry["path"] for entry in changed["files"]] == ["sub.txt"]
        assert changed["base"] == str(machine.job / "work" / "t0.1")
        assert not (machine.job / "work" / "base" / "sub.txt").exists()


@pytest.mark.parametrize("mode", ["env", "folder"])
def test_resume_from_a_checkpoint(tmp_path: Path, mode: str) -> None:
    with Machine(tmp_path) as machine:
        order = machine.order_of("cat $GPUJOB_RESUME_FROM", n=2, resume_from="step_3.bin", resume_mode=mode)
        assert machine.ask("order", **order)["error"] == "missing"
        (machine.job / "resume" / "t0.2").mkdir(parents=True)
        (machine.job / "resume" / "t0.2" / "step_3.bin").write_text("three")
        machine.do("order", **order)
        run = machine.ended(2)
        assert (run["rc"], machine.log("run", 2)) == (0, b"three")
        assert [c["step"] for c in run["checkpoints"]] == ([3] if mode == "folder" else [])


def test_manifest_and_environment_and_wipe(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        out = machine.job / "out"
        (out / "sub").mkdir()
        (out / "a.bin").write_bytes(b"abc")
        (out / "sub" / "b.txt").write_text("b")
        (out / "away").symlink_to("/etc")
        files = machine.do("manifest", path=str(out), hash=True, pattern="")["files"]
        by_name = {entry["path"]: entry for entry in files}
        assert set(by_name) == {"a.bin", "sub/b.txt", "away"}
        assert by_name["away"] == {"path": "away", "link": "/etc"}
        assert by_name["a.bin"]["sha256"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        assert (by_name["a.bin"]["size"], by_name["a.bin"]["mtime_ns"]) == (3, (out / "a.bin").stat().st_mtime_ns)
        only = machine.do("manifest", path=str(out), hash=False, pattern="*.txt")["files"]
        assert [entry["path"] for entry in only] == ["sub/b.txt"]
        assert machine.ask("manifest", path=str(out / "nothing"))["error"] == "missing"
        assert machine.ask("manifest", path="relative")["error"] == "invalid"

        found = machine.do("environment", job=JOB)
        assert found["kernel"] == os.uname().release
        assert found["python"].startswith("3.")
        assert found["memory"]["total"] > 0
        assert found["cpus"] >= 1

        stages = [{"name": "setup", "script": "true", "once": "h1"}, {"name": "run", "script": "sleep 60"}]
        machine.order("", stages=stages, secrets={"A": "b"})
        wait_for(lambda: machine.run()["state"] == "run", "the run")
        (out / "t0.1" / "locked").mkdir()
        (out / "t0.1" / "locked" / "file").touch()
        (out / "t0.1" / "locked").chmod(0o500)
        assert machine.do("wipe", job=JOB) == {"ok": True, "left": []}
        assert not machine.job.exists()
        left = sorted(path.name for path in machine.folder().iterdir())
        assert left == ["claim", "closed", "ended.json", "reported"]
        status = machine.do("status")
        assert status["setups"] == []
        assert status["runs"]["t0.1"]["closed"] is True


def shim(machine: Machine, name: str, script: str) -> None:
    """A program of our own, first on the machine's PATH."""
    folder = machine.home / "bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n" + script)
    (folder / name).chmod(0o755)
    machine.path = f"{folder}:{os.environ['PATH']}"


def test_cards_are_counted_sampled_and_recorded(tmp_path: Path) -> None:
    answers = """case $* in
*--query-gpu=index*) echo '0, 97, 39000, 40960, 61, 250.11'; echo '1, [N/A], 10, 40960, 30, 60.5' ;;
*--query-gpu=name*) echo 'A100-PCIE-40GB, 40960, 550.54, GPU-1'; echo 'A100-PCIE-40GB, 40960, 550.54, GPU-2' ;;
*) echo '| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: 12.4 |' ;;
esac
"""
    with Machine(tmp_path, started=False) as machine:
        shim(machine, "nvidia-smi", answers)
        machine.start()
        machine.order("echo $GPUJOB_NUM_GPUS", n=1)
        machine.ended()
        assert machine.log() == b"2\n"
        machine.order("echo $GPUJOB_NUM_GPUS $CUDA_VISIBLE_DEVICES", n=2, env={"CUDA_VISIBLE_DEVICES": "1"})
        machine.ended(2)
        assert machine.log(n=2) == b"1 1\n"
        wait_for(lambda: machine.events("sample"), "a sample")
        sample = machine.events("sample")[0]
        assert [(gpu["index"], gpu["util"], gpu["power"]) for gpu in sample["gpus"]] == [
            (0, 97, 250.11),
            (1, None, 60.5),
        ]
        assert 0 < sample["mem_used"] < sample["mem_total"]
        found = machine.do("environment")
        assert (found["driver"], found["cuda"], len(found["gpus"])) == ("550.54", "12.4", 2)


def test_a_driver_that_hangs_holds_up_neither_the_supervisor_nor_the_end(tmp_path: Path) -> None:
    with Machine(tmp_path, started=False) as machine:
        shim(machine, "nvidia-smi", "exec sleep 300\n")
        machine.start()
        machine.order("exit 4", env={"CUDA_VISIBLE_DEVICES": "0"})
        assert machine.ended()["rc"] == 4
        wait_for(lambda: machine.events("exit"), "the exit event of a supervisor that is not held up")
        machine.do("arm", end=time.time() + 0.5, grace_s=0, action="kill")
        wait_for(lambda: not machine.marked(), "the end")


def test_status_without_a_supervisor_still_tells_the_truth(tmp_path: Path) -> None:
    with Machine(tmp_path, started=False) as machine:
        status = machine.do("status")
        assert (status["supervisor"], status["deadline"], status["runs"]) == (False, None, {})
        assert status["nonce"] == machine.nonce
        assert json.dumps(status["disk"]) != ""
        assert status["protocol"] == 2
