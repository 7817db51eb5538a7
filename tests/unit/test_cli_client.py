"""How verbs find, start, poke and ask the controller."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_books import Books, home_at, writer
from cli_controller import ScriptedController

from orchestrator.cli import client, main
from orchestrator.cli.exits import CliError
from orchestrator.home import Home
from orchestrator.store import Store, StoreTooOld, schema
from orchestrator.store.schema import MIGRATIONS
from orchestrator.version import older


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path / "h"))
    monkeypatch.delenv("GPUJOB_CONTROLLER", raising=False)
    return home_at(tmp_path / "h")


def test_a_request_is_answered_and_recorded(home: Home) -> None:
    with ScriptedController(home, {"cancel": lambda args: {"ok": True, "epoch": 7}}) as controller:
        assert client.request(home, "cancel", {"x": 1})["epoch"] == 7
        assert client.alive(home)
    assert controller.asked == [("cancel", {"x": 1})]
    assert not client.alive(home)


def test_a_refusal_keeps_its_words_and_its_code(home: Home) -> None:
    refuse = {"cancel": lambda args: {"ok": False, "error": "it is over", "code": 5}}
    with ScriptedController(home, refuse), pytest.raises(CliError) as caught:
        client.request(home, "cancel", {})
    assert (caught.value.what, caught.value.code) == ("it is over", 5)


def test_silence_is_exit_6_and_the_request_stays(home: Home) -> None:
    with ScriptedController(home, {"extend": lambda args: None}), pytest.raises(CliError) as caught:
        client.request(home, "extend", {}, timeout=0.05)
    assert caught.value.code == 6
    with writer(home) as store:
        assert [request.verb for request in store.open_requests()] == ["extend"]


def test_a_controller_that_dies_before_it_answers_is_noticed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SLICE_S", 0.01)
    monkeypatch.setattr(client, "ensure_controller", lambda _: None)
    home.controller_log.write_text("gpujob: the controller cannot start: the disk is full\n")
    with writer(home):
        pass
    with pytest.raises(CliError) as caught:
        client.request(home, "ping", {}, timeout=30)
    assert caught.value.code == 3
    assert "disk is full" in caught.value.why


@pytest.mark.parametrize(
    ("one", "other", "is_older"),
    [
        ("0.1.0", "0.2.0", True),
        ("0.9.0", "0.10.0", True),
        ("0.2.0rc1", "0.2.0", True),
        ("0.2.0", "0.2.0", False),
        ("0.2.0", "0.1.9", False),
        ("", "0.1.0", True),
        ("0.1.0+local", "0.1.0", False),
    ],
)
def test_which_version_is_older(one: str, other: str, is_older: bool) -> None:
    assert older(one, other) is is_older


def test_an_older_controller_is_stopped_and_one_of_our_version_is_not(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.version.installed", lambda: "0.1.0")
    stopped: list[ScriptedController] = []

    def stop(args: Any) -> dict[str, Any]:
        stopped[0].end_soon()
        return {"ok": True}

    same = {"ping": lambda args: {"ok": True, "version": "0.1.0"}, "stop": stop}
    with ScriptedController(home, same) as controller:
        client.restart_older(home)
        assert controller.asked == []
    old = {"ping": lambda args: {"ok": True, "version": "0.0.1"}, "stop": stop}
    with ScriptedController(home, old) as controller:
        stopped.append(controller)
        client.restart_older(home)
        assert controller.asked == [("stop", {"now": False})]
    assert "version 0.0.1" in capsys.readouterr().err


def test_the_lock_is_seen_without_being_taken(home: Home) -> None:
    assert not client.lock_held(home.lock)
    handle = os.open(home.lock, os.O_RDWR | os.O_CREAT)
    try:
        assert not client.lock_held(home.lock)
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert client.lock_held(home.lock)
        assert client.alive(home)
    finally:
        os.close(handle)
    assert not client.lock_held(home.lock)


def test_a_stale_socket_file_is_nobody(home: Home) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(home.socket))
    assert home.socket.exists()
    assert not client.connected(home)
    assert not client.poke(home)


def test_a_controller_that_cannot_start_is_explained(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    def spawn(home: Home) -> subprocess.Popen[bytes]:
        home.controller_log.write_text("gpujob: the controller cannot start: no space\n")
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])

    monkeypatch.setattr(client, "spawn", spawn)
    with pytest.raises(CliError) as caught:
        client.ensure_controller(home)
    assert caught.value.code == 3
    assert "no space" in caught.value.why
    assert caught.value.where == str(home.controller_log)


def test_a_controller_gets_its_own_computers_environment(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "own_environment", {"PATH": "/bin"})
    monkeypatch.setenv("HF_TOKEN", "of another computer")
    assert set(client.controller_environment(home)) == {"PATH", "PYTHONPATH"}


@pytest.mark.parametrize("state", ["open rental", "live job", "all over"])
def test_verbs_wake_a_dead_controller_only_while_something_is_open(
    state: str, home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from orchestrator import actions
    from orchestrator.model import Outcome, Reason

    with writer(home) as store:
        books = Books(store)
        if state != "live job":
            rental = books.rent()
            books.run(rental)
            if state == "all over":
                books.exit()
                books.decide(Outcome.DONE, Reason.DONE)
                books.finish(rental)
            else:
                books.apply(actions.Alarm("x", "y"))
    woken: list[Any] = []
    monkeypatch.setattr(client, "spawn", woken.append)
    assert main.main(["ps", "-a"]) == 0
    assert len(woken) == (0 if state == "all over" else 1)
    assert "digits" in capsys.readouterr().out


def test_broken_books_do_not_stop_the_wake(home: Home) -> None:
    home.database.write_bytes(b"no database")
    assert client.open_counts(home.database) == {"open_rentals": 0, "live_jobs": 0}
    client.wake(home)


def test_broken_books_are_not_said_to_need_nothing(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.database.write_bytes(b"no database")
    assert main.main(["controller", "status"]) == 0
    said = capsys.readouterr().out
    assert "the books cannot be read" in said
    assert "nothing needs it" not in said


def test_a_controller_that_could_not_start_is_not_retried_in_silence(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with writer(home) as store:
        Books(store, "one").rent()
    monkeypatch.setattr(client, "spawn", lambda _: None)
    client.wake(home)
    assert capsys.readouterr().err == ""
    home.controller_log.write_text("{}\ngpujob: the controller cannot start: the deployment file is damaged\n")
    client.wake(home)
    assert capsys.readouterr().err == "gpujob: the controller cannot start: the deployment file is damaged\n"


def test_a_controller_that_has_stepped_aside_is_named(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "alive", lambda _: True)
    monkeypatch.setattr(client, "request", lambda *_: {"ok": True, "pid": 7, "stepped_aside": True})
    assert main.main(["controller", "status"]) == 0
    assert "it has stepped aside: a newer controller has these machines" in capsys.readouterr().out


def test_books_of_an_older_version_are_migrated_by_a_controller_and_read(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "migrations"
    first.mkdir()
    shutil.copy(MIGRATIONS / "0001_init.sql", first)
    Store.open_writer(home, 5, deployment="d3p1oy", network=lambda _: None, migrations=first).close()
    started = []

    def start(of: Home) -> None:
        started.append(of.state)
        writer(of).close()

    monkeypatch.setattr(client, "alive", lambda _: True)
    monkeypatch.setattr(client, "ensure_controller", start)
    assert main.main(["ps"]) == 0
    assert "no jobs" in capsys.readouterr().out
    assert main.main(["ps"]) == 0
    assert started == [home.state]


def test_a_live_controller_that_did_not_migrate_is_not_asked_again_and_again(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer(home).close()
    monkeypatch.setattr(schema, "newest_version", lambda *_: 99)
    started: list[Home] = []
    monkeypatch.setattr(client, "ensure_controller", started.append)
    monkeypatch.setattr(client, "READY_WITHIN_S", 0.0)
    assert main.main(["ps"]) == 3
    assert "the controller does not start" in capsys.readouterr().err
    started.clear()
    monkeypatch.setattr(client, "alive", lambda _: True)
    assert main.main(["ps"]) == 2
    assert len(started) == 1
    assert "gpujob controller stop" in capsys.readouterr().err


def test_a_controller_with_older_books_can_still_be_stopped(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedController(home, {"stop": lambda args: {"ok": True}}) as controller:
        monkeypatch.setattr(schema, "newest_version", lambda *_: 99)
        assert client.request(home, "stop", {}) == {"ok": True}
        with pytest.raises(StoreTooOld):
            client.request(home, "cancel", {})
    assert [verb for verb, _ in controller.asked] == ["stop"]


def test_counts_of_what_is_open(home: Home) -> None:
    with writer(home) as store:
        Books(store, "one").rent()
        Books(store, "two")
    assert client.open_counts(home.database) == {"open_rentals": 1, "live_jobs": 2}
    with sqlite3.connect(home.database) as books:
        assert books.execute("SELECT count(*) FROM jobs").fetchone() == (2,)
    books.close()


def test_the_spawned_controller_gets_absolute_folders(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home.state.parent)
    monkeypatch.setenv("GPUJOB_HOME", "h")
    env = client.controller_environment(Home.from_env())
    assert env["GPUJOB_HOME"] == str(home.state)
    root = env["PYTHONPATH"].split(os.pathsep)[0]
    assert (Path(root) / "orchestrator" / "cli" / "client.py").exists()


def test_a_reclaim_that_the_running_controller_does_not_know_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path / "state", tmp_path / "config").make()
    monkeypatch.setattr(client, "connected", lambda _: True)
    home.lock.write_text(f"{os.getpid()}\n")
    client.ensure_controller(home)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("GPUJOB_LOCAL_RECLAIM", "after=1s,notice=0s")  # not in what this process was started with
    client.ensure_controller(home)
    assert "GPUJOB_LOCAL_RECLAIM has no effect" in capsys.readouterr().err
