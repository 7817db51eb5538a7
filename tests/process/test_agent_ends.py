"""The two dead-men and the reclaim notice, with real processes and short ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from agent_machine import Machine, environ_of, is_alive, kill, pid_in, wait_for

from orchestrator.agent import hook
from orchestrator.agent.hook import boot_hook

LOOP = "trap '' TERM; echo up; while :; do sleep 0.1; done"


@pytest.fixture
def quick_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "LOOK_S", 1)
    monkeypatch.setattr(hook, "AGENT_FIRST_S", 1)


def run_hook(machine: Machine, end: float, shell: str = "dash") -> subprocess.Popen[bytes]:
    """The hook as a provider runs it at boot; its own copy is what goes on running."""
    program = shutil.which(shell) or "/bin/sh"
    text = boot_hook(nonce=machine.nonce, end=end, grace_s=20, action="kill", rental="r-1")
    script = machine.home / "user-data.sh"
    script.write_text(text)
    env = {"HOME": str(machine.home), "PATH": machine.path}
    process = subprocess.Popen([program, str(script)], env=env, start_new_session=True)
    machine.others.append(process)
    return process


def test_saving_starts_in_time_and_the_end_wins(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order("trap 'echo saving' TERM; echo up; while :; do sleep 0.1 || true; done")
        machine.wait_log(b"up")
        end = time.time() + 3
        machine.do("arm", end=end, grace_s=2, action="kill")
        machine.wait_log(b"saving")
        assert time.time() < end
        wait_for(lambda: not machine.marked(), "the end of everything")
        assert time.time() >= end - 0.2
        run = machine.run()
        assert (run["rc"], run["signalled"], run["dead"]) == (137, "ttl", True)
        kinds = [event["t"] for event in machine.events()]
        assert "saving" in kinds
        assert "ending" in kinds
        assert machine.ask("order", **machine.order_of("true", n=2))["error"] == "closed"
        machine.do("arm", end=time.time() + 3600, grace_s=2, action="kill")  # somebody pays for more
        machine.order("exit 4", n=2)
        assert machine.ended(2)["rc"] == 4


def test_an_extended_end_does_not_come(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.order(LOOP)
        machine.wait_log(b"up")
        end = time.time() + 2
        machine.do("arm", end=end, grace_s=0, action="kill")
        machine.do("arm", end=end + 3600, grace_s=0, action="kill")
        wait_for(lambda: time.time() > end + 1, "the first end to pass")
        assert machine.run()["state"] == "run"
        assert machine.do("status")["deadline"] == {
            "end": round(end + 3600, 1),
            "grace": 0,
            "action": "kill",
            "confirmed": True,
        }


def test_a_wrong_clock_does_not_move_the_end(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        wrong = time.time() - 7200  # the controller's clock, as seen from a machine that is two hours ahead
        machine.do("arm", end=wrong + 600, now=wrong, grace_s=0, action="kill")
        lines = dict(line.split("=") for line in (machine.control / "deadline").read_text().split())
        assert 590 < float(lines["boot_end"]) - float(Path("/proc/uptime").read_text().split()[0]) < 601
        machine.order("exit 4")
        assert machine.ended()["rc"] == 4


@pytest.mark.usefixtures("quick_hook")
def test_the_hook_prepares_a_fresh_machine_and_is_there_once(tmp_path: Path) -> None:
    with Machine(tmp_path, started=False) as machine:
        (machine.control / "nonce").unlink()
        first = run_hook(machine, time.time() + 90_000)
        wait_for(lambda: machine.do("status")["deadline"], "the first deadline")
        status = machine.do("status")
        assert status["nonce"] == machine.nonce
        assert (machine.control / "nonce").stat().st_mode & 0o777 == 0o600
        deadline = status["deadline"]
        assert 1700 < deadline["end"] - time.time() <= 1801
        assert (deadline["grace"], deadline["action"], deadline["confirmed"]) == (20, "kill", False)
        wait_for(lambda: machine.do("status")["supervisor"], "the agent, started by the hook")
        second = run_hook(machine, time.time() + 90_000)
        assert second.wait(timeout=20) == 0
        assert first.poll() is None
        assert int((machine.control / "hook.pid").read_text().split()[0]) == first.pid
        machine.start()
        assert machine.do("status")["deadline"]["confirmed"] is True


@pytest.mark.usefixtures("quick_hook")
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_hook_ends_everything_where_the_agent_was_killed(tmp_path: Path, shell: str) -> None:
    with Machine(tmp_path) as machine:
        machine.order(f"env -i setsid sleep 300 & echo $! > $GPUJOB_OUT/orphan; {LOOP}")
        machine.wait_log(b"up")
        orphan = pid_in(machine.job / "out/t0.1/orphan")
        bystander = subprocess.Popen(["sleep", "300"])
        machine.others.append(bystander)
        (machine.control / "agent.py").rename(machine.control / "agent.away")  # so that it is not revived
        kill(machine.supervisor())
        hooked = run_hook(machine, time.time() + 90_000, shell)
        wait_for(lambda: (machine.control / "hook.pid").exists(), "the hook")
        text = (machine.control / "deadline").read_text()
        lines = dict(line.split("=") for line in text.split())
        lines["boot_end"] = str(float(Path("/proc/uptime").read_text().split()[0]) - 1.0)
        assert machine.marked("GPUJOB_RUN=t0.1")
        assert is_alive(orphan)
        (machine.control / "deadline.new").write_text("".join(f"{k}={v}\n" for k, v in lines.items()))
        (machine.control / "deadline.new").rename(machine.control / "deadline")
        wait_for(lambda: not machine.marked() and not is_alive(orphan), "the hook's end of everything")
        assert bystander.poll() is None
        assert hooked.poll() is None  # it never exits: a machine may be given a later end
        (machine.control / "agent.away").rename(machine.control / "agent.py")
        assert machine.run()["state"] == "run"  # nobody was left to record it; the next supervisor does
        machine.do("arm", end=time.time() + 3600, grace_s=2, action="kill")
        assert (machine.ended()["rc"], machine.run()["lost"]) == (137, True)


def test_the_hook_restores_an_agent_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "LOOK_S", 1)
    monkeypatch.setattr(hook, "REVIVE_LOOKS", 1)
    with Machine(tmp_path) as machine:
        run_hook(machine, time.time() + 90_000)
        kill(machine.supervisor())
        wait_for(lambda: machine.do("status")["supervisor"], "another supervisor")


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_the_hook_powers_off_where_it_may(tmp_path: Path) -> None:
    """In a process and mount namespace of its own, where `poweroff` is ours and there is nothing to switch off."""
    shims = tmp_path / "bin"
    shims.mkdir()
    for name in ("sh", "date", "sleep", "cat", "mkdir", "mv"):
        (shims / name).symlink_to(str(shutil.which(name)))
    (shims / "poweroff").write_text(f"#!/bin/sh\necho off >>{tmp_path}/asked\n")
    (shims / "poweroff").chmod(0o755)
    text = boot_hook(nonce="n1", end=1.0, grace_s=1, action="poweroff", rental="r-1")
    # The hook appends the system's folders to PATH, where the real poweroff is
    text = text.replace(":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "")
    assert "/sbin" not in text
    (tmp_path / "hook.sh").write_text(text.replace("left=60", "left=0"))
    inside = [
        "bwrap",
        "--ro-bind",
        "/",
        "/",
        "--bind",
        str(tmp_path),
        str(tmp_path),
        "--proc",
        "/proc",
        "--dev",
        "/dev",
    ]
    inside += ["--unshare-pid", "--die-with-parent", "--clearenv", "--setenv", "HOME", str(tmp_path)]
    inside += ["--setenv", "PATH", str(shims), "sh", str(tmp_path / "hook.sh")]
    if subprocess.run(["bwrap", "--ro-bind", "/", "/", "--unshare-pid", "true"], capture_output=True).returncode:
        pytest.skip("this host allows no namespaces")
    process = subprocess.Popen(inside, start_new_session=True)
    try:
        wait_for(lambda: (tmp_path / "asked").exists(), "the power-off")
    finally:
        process.kill()
        process.wait()


def notice(machine: Machine, seconds: float, **more: object) -> Path:
    path = machine.home / ".spot-notice.json"
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
    path.write_text(json.dumps({"action": "terminate", "time": when, **more}))
    return path


def test_a_notice_that_nobody_sees_saves_at_once(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        machine.do("arm", end=time.time() + 3600, grace_s=2, action="kill", notice_file="~/.spot-notice.json")
        machine.order("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done")
        machine.wait_log(b"up")
        assert machine.do("status")["notice"] is None
        at = time.time() + 30.5
        notice(machine, 30, at=at)
        run = machine.ended()
        assert (run["signalled"], run["rc"]) == ("interruption", 0)
        assert b"saved" in machine.log()
        assert machine.do("status")["notice"] == {"at": at, "action": "terminate"}
        assert [(e["until"], e["action"]) for e in machine.events("notice")] == [(at, "terminate")]


def test_a_notice_is_the_controllers_while_its_stream_lives(tmp_path: Path) -> None:
    with Machine(tmp_path, STREAM_S="4.0") as machine:
        machine.do("arm", end=time.time() + 3600, grace_s=2, action="kill", notice_file="~/.spot-notice.json")
        machine.order("trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done")
        machine.wait_log(b"up")
        stream = machine.follow(beat_s=0.2)
        assert stream.stdout
        assert stream.stdout.readline()  # it lives: before that a notice is nobody's
        notice(machine, 60)
        seen = ""
        alive_until = time.time() + 6
        while time.time() < alive_until:  # well beyond STREAM_S
            assert stream.stdin
            stream.stdin.write(b"\n")
            stream.stdin.flush()
            line = json.loads(stream.stdout.readline())
            seen += line["t"] + (line["event"]["t"] if line["t"] == "event" else "") + " "
        assert "eventnotice" in seen
        assert machine.run()["signalled"] is None
        run = machine.ended()  # connected, but silent from here on: as good as asleep
        assert run["signalled"] == "interruption"


def test_the_supervisor_survives_without_a_home_of_its_own(tmp_path: Path) -> None:
    """Everything that the agent starts carries the machine's mark, which is how the hook finds it."""
    with Machine(tmp_path) as machine:
        machine.order(LOOP)
        machine.wait_log(b"up")
        for pid in (machine.supervisor(), machine.wrapper(), machine.leader()):
            assert machine.mark.encode() in environ_of(pid)
        assert os.getsid(machine.leader()) == machine.leader()
