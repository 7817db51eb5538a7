"""A controller on another host, without a host: addresses, words, what is kept for a client and what it may touch."""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator import snapshot
from orchestrator.cli import client, far_end, remote, stage, staging
from orchestrator.cli.exits import CliError
from orchestrator.cli.remote_link import MARKER, PROTOCOL, Link, client_name, link
from orchestrator.home import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(stage, "current", None)
    return Home.from_env().make()


@pytest.fixture
def place(home: Home) -> stage.Stage:
    return stage.Stage(home.client("c" * 16))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ssh://box", ("", "box", "")),
        ("ssh://me@box.example.org:2222/", ("me", "box.example.org", "2222")),
        ("ssh://a.b@gmail@box", ("a.b@gmail", "box", "")),
        ("ssh://[fe80::1%eth0]:22", ("", "fe80::1%eth0", "22")),
    ],
)
def test_addresses(text: str, parts: tuple[str, str, str], home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUJOB_CONTROLLER", text)
    found = link(home)
    assert (found.user, found.host, found.port) == parts


@pytest.mark.parametrize(
    "text", ["ssh:box", "ssh://", "ssh://-oProxyCommand=x", "ssh://box:port", "ssh://a b", "ssh://-l@x", "ssh://x/y"]
)
def test_what_is_no_address_reaches_no_ssh(text: str, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUJOB_CONTROLLER", text)
    with pytest.raises(CliError, match="names no host"):
        link(home)


def test_nothing_of_the_user_is_in_the_command_line(home: Home) -> None:
    words = Link("me", "box", "2222", home).ssh()
    assert words[-4:] == ["-l", "me", "-p", "2222"]
    assert "BatchMode=yes" in words, "no terminal, no questions"
    assert client_name(home) == client_name(home)
    assert home.client_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("verb", "log", "there"),
    [
        ("ps", None, True), ("apply", None, True), ("validate", None, False), ("doctor", None, False),
        ("diagnose", "train", True), ("diagnose", "-", False), ("diagnose", None, False),
        ("diagnose", "./x.log", False),
    ],
)  # fmt: skip
def test_which_verbs_go_there(verb: str, log: str | None, there: bool) -> None:
    assert remote.runs_there(argparse.Namespace(verb=verb, log=log)) is there


def test_options_are_taken_out_with_their_values() -> None:
    words = ["-y", "--env", "A=1", "a.yaml", "--env=B", "--env-file", "f", "--envy", "--", "--env", "x"]
    assert remote.without(words, "--env", "--env-file") == ["-y", "a.yaml", "--envy", "--", "--env", "x"]


def test_a_client_stays_in_its_folder(place: stage.Stage) -> None:
    assert place.of("/a/../../../etc/passwd") == place.files / "etc/passwd"
    assert place.of("//a/b") == place.files / "a/b"


def copied(place: stage.Stage, path: str, *names: str) -> Path:
    """As rsync would have brought them."""
    for name in names:
        file = place.of(path) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return place.of(path)


def test_what_is_gone_over_there_goes_here_and_nothing_else(place: stage.Stage) -> None:
    far_end.settle(place, "code", "/p", ["a", "sub/b", "sub/c"])
    folder = copied(place, "/p", "a", "sub/b", "sub/c", "gpujob-results/r")
    far_end.settle(place, "data", "/p/sub", ["c"])
    far_end.settle(place, "code", "/p", ["a"])
    assert sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()) == [
        "a", "gpujob-results/r", "sub/c",
    ]  # fmt: skip
    far_end.settle(place, "data", "/p/sub", [])
    assert not (folder / "sub" / "c").exists()
    assert (folder / "gpujob-results" / "r").exists()


def test_a_folder_that_became_a_link_removes_nothing_behind_it(place: stage.Stage, tmp_path: Path) -> None:
    far_end.settle(place, "code", "/p", ["sub/b"])
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "b").write_text("not ours")
    (place.of("/p") / "sub").symlink_to(tmp_path / "outside")
    far_end.settle(place, "code", "/p", [])
    assert (tmp_path / "outside" / "b").exists()


def opened(capsys: pytest.CaptureFixture[str], **question: Any) -> dict[str, Any]:
    far_end._open({"protocol": PROTOCOL, "client": "c" * 16, **question})
    head, answer = capsys.readouterr().out.split("\n", 1)
    assert head == MARKER
    found: dict[str, Any] = json.loads(answer)
    return found


def test_another_protocol_is_refused_with_the_cure(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    answer = opened(capsys, protocol=PROTOCOL + 1)
    assert (answer["ok"], answer["code"]) == (False, 3)
    assert "same version" in answer["next"]


@pytest.mark.parametrize("bad", ["../../x", "pulls/../..", "files/a"])
def test_only_folders_on_their_way_are_forgotten(bad: str, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert opened(capsys, forget=[bad])["ok"] is False
    assert opened(capsys, client="../x")["ok"] is False


def test_a_verb_is_called_once_with_its_words_and_environment(
    home: Home, place: stage.Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []

    def main(words: list[str]) -> int:
        said.append((words, os.getcwd(), os.environ["TOKEN"], os.environ["PATH"], os.environ["GPUJOB_CONTROLLER"]))
        return 4

    monkeypatch.setattr("orchestrator.cli.main.main", main)
    monkeypatch.setattr(client, "own_environment", None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(far_end, "_watch", lambda: None)
    for name in ("TOKEN", "GPUJOB_CONTROLLER"):
        monkeypatch.setenv(name, "before")
    monkeypatch.chdir(home.state)
    words = ["ps", "it's; rm -rf $HOME", "\n"]
    call = {"words": words, "cwd": "/a b", "env": {"TOKEN": "v", "PATH": "/evil"}, "surveys": {}, "host": "box"}
    token = opened(capsys, call=call)["token"]
    assert (place.calls / token).stat().st_mode & 0o777 == 0o600
    path = os.environ["PATH"]
    assert far_end.run(["call", "c" * 16, token]) == 4
    assert said == [(words, str(place.of("/a b")), "v", path, "here")]
    assert client.own_environment is not None
    assert client.own_environment["TOKEN"] == "before"
    monkeypatch.setattr(stage, "current", None)
    with pytest.raises(CliError, match="called already"):
        far_end.run(["call", "c" * 16, token])
    with pytest.raises(CliError, match="another computer"):
        far_end.run(["call", "../x", token])


def args(*files: str, **more: Any) -> argparse.Namespace:
    empty: dict[str, Any] = {
        "files": [],
        "sets": [],
        "env": [],
        "env_file": [],
        "name": None,
        "provider": [],
        "verb": "apply",
    }
    return argparse.Namespace(**{**empty, "specs": list(files), **more})


def test_what_a_spec_reads_is_found_and_the_rest_stays(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORD", "w")
    monkeypatch.setenv("TOKEN", "t")
    monkeypatch.setenv("OTHER", "stays")
    for name in ("code/a.py", "code/.env", "code/gpujob-results/old", "data/x", "one.bin", "values"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("GIVEN=1\n")
    (tmp_path / "s.yaml").write_text(
        "name: s\nrun: python a.py\nworkdir: code\ndata: [{from: ./data, path: d}, {from: one.bin, path: o}]\n"
        "env: {WORD: }\nsecrets: [TOKEN, STORED]\n"
    )
    cargo = staging.gather(home, args("s.yaml", env_file=["values"]), {"gpu": "none"}, "box")
    assert [(root.kind, root.path, root.names) for root in cargo.roots] == [
        ("code", f"{tmp_path}/code", ["a.py"]), ("data", f"{tmp_path}/data", ["x"]),
        ("file one.bin", str(tmp_path), ["one.bin"]),
    ]  # fmt: skip
    assert (cargo.env, cargo.given) == ({"WORD": "w", "TOKEN": "t"}, ["GIVEN=1"])
    assert list(cargo.files) == [f"{tmp_path}/s.yaml"]
    assert base64.b64decode(cargo.files[f"{tmp_path}/s.yaml"]) == (tmp_path / "s.yaml").read_bytes()
    assert [each["path"] for each in cargo.surveys[f"{tmp_path}/code"]["left_out"]] == [".env", "gpujob-results/"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("workdir: /srv", "s.yaml:4:1: workdir: /srv would be a path of box"),
        ("data: [{from: /etc/hostname, path: d}]", "data[0].from: /etc/hostname would be"),
        ("artifacts: [{path: x, to: ~/out}]", "artifacts[0].to: ~/out would be"),
        ("workdir: {git: ., ref: main}", "workdir.git: box cannot fetch from a repository of this computer"),
        ("workdir: link/../code", "workdir: link/../code leads back through a link"),
        ("env: {PATH: }", "PATH steers gpujob on box itself"),
    ],
)
def test_what_would_mean_another_computers_file_is_refused(
    line: str, said: str, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobspecs.problems import SpecErrors

    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "code").mkdir()
    (tmp_path / "link").symlink_to("deep/er")
    (tmp_path / "s.yaml").write_text(f"name: s\ngpu: none\nrun: 'true'\n{line}\n")
    with pytest.raises((SpecErrors, CliError)) as caught:
        staging.gather(home, args("s.yaml"), {}, "box")
    assert said in str(caught.value)


def test_a_snapshot_by_another_computers_survey_applies_no_rule_again(home: Home, tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    for folder in (near, far):
        folder.mkdir()
        (folder / "a.py").write_text("a")
    (near / "empty").mkdir()
    (near / ".env").write_text("secret")
    (far / "stale").write_text("of an earlier copy")
    seen = snapshot.survey(near, home)
    by_survey = snapshot.take(far, home, seen=seen)
    assert by_survey.hash == snapshot.take(near, home).hash
    assert [left.path for left in by_survey.left_out] == [".env"]


def test_errors_and_sentences_are_the_clients(home: Home, place: stage.Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stage.shown("this computer: /x") == "this computer: /x"
    monkeypatch.setattr(stage, "current", stage.Stage(place.root, "box"))
    assert stage.shown(f"{place.of('/a/b.yaml')}:3:1: no rsync on this computer") == "/a/b.yaml:3:1: no rsync on box"
    assert stage.here(Path("/a/b.yaml")) == place.of("/a/b.yaml")
    assert stage.here(Path("b.yaml")) == Path("b.yaml")
    with pytest.raises(CliError, match="was not sent"):
        stage.seen(place.of("/never"))
