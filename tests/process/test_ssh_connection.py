"""The kept connection against a real sshd: commands, agent answers, the stream, and every way to lose it."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plain_sshd import Sshd, StallingProxy, free_port

from orchestrator import ssh
from orchestrator.ssh_errors import (
    AgentRefused,
    BadStream,
    HostKeyChanged,
    KeyRejected,
    ToolMissing,
    Unreachable,
)
from orchestrator.ssh_files import pinned_keys

# Stands in for the agent where a test needs an answer that the real one never gives
FAKE_AGENT = """
import json, sys
def main(argv):
    command, asked = argv[1], json.loads(sys.stdin.readline())
    if command == "echo":
        print(json.dumps({"ok": True, "asked": asked}))
    elif command == "refuse":
        print(json.dumps({"ok": False, "error": "epoch", "detail": "older", "epoch": 9}))
    elif command == "garbage":
        print("Traceback: no json here")
    elif command == "follow":
        for each in asked["say"]:
            print(each if isinstance(each, str) else json.dumps(each), flush=True)
        if asked.get("long"):
            sys.stdout.write("x" * asked["long"])
            sys.stdout.flush()
        if asked.get("count"):
            assert [sys.stdin.readline() for _ in range(asked["count"])] == ["\\n"] * asked["count"]
            print(json.dumps({"t": "answered"}), flush=True)
        if asked.get("stay"):
            sys.stdin.readline()
        sys.stderr.write("aside")
        return asked.get("rc", 0)
"""


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd")) as server:
        folder = server.home / ".gpujob"
        folder.mkdir()
        (folder / "agent.py").write_text(FAKE_AGENT)
        yield server


@pytest.fixture
def conn(sshd: Sshd, tmp_path: Path) -> Iterator[ssh.Connection]:
    connection = ssh.connect(sshd.target(tmp_path / "rental"))
    yield connection
    connection.close()


def followed(conn: ssh.Connection, payload: dict[str, Any], silence_s: float = 5.0) -> list[Any]:
    """All lines of a stream that is to end by itself; the error it ends with is the last element."""
    seen: list[Any] = []
    try:
        conn.follow(payload, seen.append, threading.Event(), silence_s)
    except Exception as exc:
        seen.append(exc)
    return seen


def test_a_command_gives_its_exit_code_and_both_outputs(conn: ssh.Connection) -> None:
    ran = conn.run("cat; echo oops >&2; exit 7", b"\x00bytes\n")
    assert (ran.rc, ran.out, ran.err) == (7, b"\x00bytes\n", b"oops\n")


def test_large_outputs_on_both_pipes_do_not_block_each_other(conn: ssh.Connection) -> None:
    ran = conn.run("head -c 5000000 /dev/zero >&2; head -c 5000000 /dev/zero")
    assert (len(ran.out), len(ran.err)) == (5_000_000, 5_000_000)


def test_file_descriptors_are_given_back(conn: ssh.Connection) -> None:
    conn.run("true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        conn.run("true")
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_command_that_does_not_end_is_given_up(conn: ssh.Connection) -> None:
    with pytest.raises(Unreachable) as caught:
        conn.run("sleep 100", timeout_s=0.5)
    assert caught.value.reason == "timeout"
    assert conn.run("echo still here").out == b"still here\n"


def test_an_endless_answer_is_cut(conn: ssh.Connection) -> None:
    with pytest.raises(BadStream, match="more than 1000000 bytes"):
        conn.run("yes", output_max=1_000_000)


def test_the_agents_answer_survives_a_talkative_login(sshd: Sshd, conn: ssh.Connection) -> None:
    (sshd.home / ".banner").write_text('Welcome! {"ok": false}\n')
    try:
        assert conn.agent("echo", {"é": [1, "x' y"]}) == {"ok": True, "asked": {"é": [1, "x' y"]}}
    finally:
        (sshd.home / ".banner").unlink()


def test_a_refusal_is_named_with_its_answer(conn: ssh.Connection) -> None:
    with pytest.raises(AgentRefused) as caught:
        conn.agent("refuse", {})
    assert (caught.value.error, caught.value.detail, caught.value.answer["epoch"]) == ("epoch", "older", 9)


def test_an_answer_that_is_no_json_is_a_bad_stream(conn: ssh.Connection) -> None:
    with pytest.raises(BadStream, match="not JSON"):
        conn.agent("garbage", {})


def test_no_agent_and_no_python_are_told_apart(sshd: Sshd, conn: ssh.Connection) -> None:
    agent = sshd.home / ".gpujob" / "agent.py"
    agent.rename(agent.with_suffix(".away"))
    try:
        with pytest.raises(AgentRefused) as caught:
            conn.agent("status", {})
        assert caught.value.error == "missing"
    finally:
        agent.with_suffix(".away").rename(agent)
    missing = conn._no_answer("status", ssh.Ran(127, b"", b"bash: line 1: exec: python3: not found"))
    assert isinstance(missing, ToolMissing)
    assert missing.tool == "python3"


def test_a_stream_hands_over_every_object_and_names_its_end(conn: ssh.Connection) -> None:
    *lines, end = followed(conn, {"say": [{"t": "beat", "at": 1.0}, {"t": "log", "data": "eA=="}]})
    assert lines == [{"t": "beat", "at": 1.0}, {"t": "log", "data": "eA=="}]
    assert isinstance(end, Unreachable)
    assert end.reason == "ended"


def test_a_failed_stream_tells_the_other_ends_last_words(conn: ssh.Connection) -> None:
    (end,) = followed(conn, {"say": [], "rc": 3})
    assert isinstance(end, BadStream)
    assert "exit 3" in str(end)
    assert "aside" in str(end)


def test_silence_ends_a_stream(conn: ssh.Connection) -> None:
    *lines, end = followed(conn, {"say": [{"t": "hello"}], "stay": True}, silence_s=0.6)
    assert lines == [{"t": "hello"}]
    assert isinstance(end, Unreachable)
    assert end.reason == "silence"


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"say": [], "long": 300_000, "stay": True}, "a line of more than"),
        ({"say": ["}{"]}, "not JSON"),
        ({"say": ["[" * 100_000]}, "not JSON"),
        ({"say": ["[1, 2]"]}, "not an object"),
        ({"say": ['"\\ud800"']}, "not an object"),
    ],
)
def test_a_hostile_stream_is_closed_with_a_named_error(
    conn: ssh.Connection, payload: dict[str, Any], words: str
) -> None:
    end = followed(conn, payload)[-1]
    assert isinstance(end, BadStream)
    assert words in str(end)


def test_stop_ends_a_stream_without_an_error(conn: ssh.Connection) -> None:
    stop = threading.Event()
    conn.follow({"say": [{"t": "hello"}], "stay": True}, lambda line: stop.set(), stop, 5.0)
    assert conn.alive


def test_an_error_of_the_listener_is_the_listeners(conn: ssh.Connection) -> None:
    def full(line: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        conn.follow({"say": [{"t": "hello"}], "stay": True}, full, threading.Event(), 5.0)


def test_close_from_another_thread_ends_a_stream_at_once(conn: ssh.Connection) -> None:
    threading.Timer(0.3, conn.close).start()
    *_, end = followed(conn, {"say": [{"t": "hello"}], "stay": True}, silence_s=60)
    assert isinstance(end, Unreachable)
    assert end.reason == "closed"
    with pytest.raises(Unreachable):
        conn.run("true")


def test_a_lost_machine_ends_stream_and_commands(tmp_path: Path) -> None:
    with Sshd(tmp_path / "machine") as server:
        (server.home / ".gpujob").mkdir()
        (server.home / ".gpujob" / "agent.py").write_text(FAKE_AGENT)
        target = server.target(tmp_path / "rental")
        conn = ssh.connect(target)
        threading.Timer(0.3, server.stop).start()
        *_, end = followed(conn, {"say": [{"t": "hello"}], "stay": True}, silence_s=60)
        assert isinstance(end, Unreachable)
        assert end.reason in ("reset", "ended")
        with pytest.raises(Unreachable):
            conn.run("true")
        with pytest.raises(Unreachable) as caught:
            ssh.connect(target)
        assert caught.value.reason == "refused"
        conn.close()


def test_another_host_key_is_refused(tmp_path: Path) -> None:
    server = Sshd(tmp_path / "machine")
    with server:
        target = server.target(tmp_path / "rental")
        ssh.connect(target).close()
    server.new_host_key()
    with server, pytest.raises(HostKeyChanged):
        ssh.connect(target)


def test_the_first_host_key_is_pinned_for_both_clients(tmp_path: Path) -> None:
    server = Sshd(tmp_path / "machine")
    with server:
        target = server.target(tmp_path / "rental", told=False)
        assert pinned_keys(target) == ()
        ssh.connect(target).close()
        assert pinned_keys(target) == (server.host_key,)
        assert "StrictHostKeyChecking yes" in target.config_file.read_text()
    server.new_host_key()
    with server:
        with pytest.raises(HostKeyChanged):
            ssh.connect(target)
        command = ["ssh", "-F", str(target.config_file), "-o", "ControlPath=none", target.rental, "true"]
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 255
        assert "Host key verification failed" in ran.stderr


def test_openssh_and_fabric_use_the_same_files(sshd: Sshd, tmp_path: Path) -> None:
    target = sshd.target(tmp_path / "a folder with blanks and %", told=False)
    made = ssh.one_off(target)
    assert made.run("echo from fabric", hide=True, in_stream=False).stdout == "from fabric\n"
    made.close()
    command = ["ssh", "-F", str(target.config_file), target.rental, "echo from openssh"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "from openssh\n"
    check = ["ssh", "-F", str(target.config_file), "-O", "check", target.rental]
    assert subprocess.run(check, capture_output=True).returncode == 0  # shared, and its socket path fits
    ssh.stop_sharing(target)
    assert subprocess.run(check, capture_output=True).returncode != 0


def test_an_unknown_key_is_rejected_by_name(sshd: Sshd, tmp_path: Path) -> None:
    target = sshd.target(tmp_path / "rental")
    (tmp_path / "rental" / "id_ed25519").unlink()
    with pytest.raises(KeyRejected, match="key was not accepted"):
        ssh.connect(target)


def test_a_port_that_says_nothing_or_hangs_up_is_unreachable(tmp_path: Path) -> None:
    ssh.new_key(tmp_path)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        target = ssh.Target("r1", "127.0.0.1", silent.getsockname()[1], "root", (), tmp_path)
        with pytest.raises(Unreachable) as caught:
            ssh.connect(target, timeout_s=0.5)
        assert caught.value.reason in ("timeout", "reset")
    target = ssh.Target("r1", "127.0.0.1", free_port(), "root", (), tmp_path)
    with pytest.raises(Unreachable) as caught:
        ssh.connect(target, timeout_s=0.5)
    assert caught.value.reason == "refused"


def test_nothing_of_the_logins_folder_is_imported_for_pythons_own(sshd: Sshd, conn: ssh.Connection) -> None:
    hostile = sshd.home / "json.py"
    hostile.write_text("raise SystemExit('of the user')\n")
    try:
        assert conn.agent("echo", {"x": 1}) == {"ok": True, "asked": {"x": 1}}
    finally:
        hostile.unlink()


def test_the_agent_is_pushed_whole_and_once(sshd: Sshd, conn: ssh.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    import orchestrator.agent

    agent = sshd.home / ".gpujob" / "agent.py"
    kept = agent.read_bytes()
    source = b'def main(argv):\n    print(\'{"ok": true, "pid": 1}\')\n' + b"#" * 200_000
    monkeypatch.setattr(orchestrator.agent, "agent_source", lambda: source, raising=False)
    try:
        digest = conn.push_agent()
        assert agent.read_bytes() == source
        assert agent.stat().st_mode & 0o777 == 0o700
        first = agent.stat().st_ino
        assert conn.push_agent() == digest
        assert agent.stat().st_ino == first  # not sent again
        assert conn.agent("start", {}) == {"ok": True, "pid": 1}
        assert {each.name for each in agent.parent.iterdir()} <= {"agent.py", "__pycache__"}
    finally:
        agent.write_bytes(kept)


def test_a_network_that_swallows_everything_ends_every_wait(sshd: Sshd, tmp_path: Path) -> None:
    proxy = StallingProxy(sshd.port)
    try:
        target = replace(sshd.target(tmp_path / "rental"), port=proxy.port)
        conn = ssh.connect(target)

        def stall(line: dict[str, Any]) -> None:
            proxy.stalled.set()

        with pytest.raises(Unreachable) as caught:
            conn.follow({"say": [{"t": "hello"}], "stay": True}, stall, threading.Event(), 0.6)
        assert caught.value.reason == "silence"
        with pytest.raises(Unreachable) as caught:
            conn.run("true", timeout_s=0.6)
        assert caught.value.reason == "timeout"
        with pytest.raises(Unreachable) as caught:
            ssh.connect(target, timeout_s=0.6)
        assert caught.value.reason == "timeout"
        conn.close()
        assert not conn.alive
    finally:
        proxy.close()


def test_beats_are_answered(sshd: Sshd, conn: ssh.Connection) -> None:
    beats = [{"t": "beat", "at": 1.0}] * 3
    *lines, end = followed(conn, {"say": beats, "count": 3})
    assert [line["t"] for line in lines] == ["beat", "beat", "beat", "answered"]
    assert isinstance(end, Unreachable)
