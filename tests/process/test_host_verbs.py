"""`host add|ls|rm` against real sshds: keys pinned, one line installed and taken out, a password used once."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from fake_machines import LocalMachines
from fake_rest import GPUS

from orchestrator.cli.exits import CliError
from orchestrator.cli.host import by_password
from orchestrator.cli.main import main
from orchestrator.config import load_config
from orchestrator.home import Home
from orchestrator.hosts import Address


class Box:
    """A machine of this host that the user can log in to with a key of his own."""

    def __init__(self, base: Path) -> None:
        self.identity = base / "users-own-key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.identity)], check=True)
        self.machines = LocalMachines(base / "cloud", GPUS)
        handle, house = self.machines.own("box", Path(f"{self.identity}.pub").read_text(), "RTX-4090", 2)
        self.host, self.port, self.user = self.machines.place(handle) or ("", 0, "")
        cards = house.parents[1] / "etc" / "gpus.json"  # as the driver of real ones would call them
        cards.write_text(cards.read_text().replace("RTX-4090 (stand-in)", "NVIDIA GeForce RTX 4090"))
        self.keys = house / ".ssh" / "authorized_keys"
        self.address = f"ssh -i {self.identity} -p {self.port} {self.user}@{self.host}"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    box = Box(tmp_path_factory.mktemp("box"))
    yield box
    box.machines.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    return Home.from_env()


def test_a_host_is_added_listed_used_and_removed(box: Box, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    before = box.keys.read_text()
    assert main(["host", "add", "lab", box.address, "--price", "1.98 CNY", "-y"]) == 0
    said = "".join(capsys.readouterr())
    assert "SHA256:" in said
    assert "lab is yours and still bills until you release it" in said
    entry = load_config(home).hosts["lab"]
    assert (entry["gpu"], entry["count"], entry["price"], entry["release"]) == ("RTX-4090", "2", "1.98 CNY", "none")
    assert int(entry["cpus"]) >= 1
    installed = box.keys.read_text().replace(before, "").split()
    assert len(installed) == 3
    assert main(["host", "add", "lab", box.address, "--release", "poweroff", "-y"]) == 0
    assert box.keys.read_text().count(installed[1]) == 1, "adding again installs nothing twice"
    capsys.readouterr()
    assert main(["host", "ls", "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["release"], row["price"], row["port"]) == ("lab", "poweroff", None, box.port)
    assert main(["offers", "--provider", "ssh", "--gpu", "RTX-4090:2"]) == 0
    assert "lab" in capsys.readouterr().out
    assert main(["host", "rm", "lab"]) == 0
    assert installed[1] not in box.keys.read_text()
    assert load_config(home).hosts == {}
    assert not (home.state / "hosts" / "lab").exists()


def test_a_host_key_that_nobody_looked_at_is_not_trusted(
    box: Box, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["host", "add", "lab", box.address]) == 2
    assert "add -y" in capsys.readouterr().err
    assert load_config(home).hosts == {}


def test_without_a_way_in_the_line_to_put_there_is_given(
    box: Box, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"ssh -p {box.port} {box.user}@{box.host}"
    assert main(["host", "add", "lab", address, "-y"]) == 3
    assert "put this line into ~/.ssh/authorized_keys there, then again: ssh-ed25519 " in capsys.readouterr().err


def test_a_host_that_does_not_answer_and_words_that_mean_nothing_are_said(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["host", "add", "lab", "ssh -p 1 root@127.0.0.1", "-y"]) == 3
    assert "no SSH answers at 127.0.0.1 port 1" in capsys.readouterr().err
    for words in (["add", "lab"], ["add", "LAB", "h"], ["add", "lab", "h", "--gpu", "A100"], ["rm", "lab"], ["rm"]):
        assert main(["host", *words]) == 2, words
    assert "Traceback" not in capsys.readouterr().err


class OnePassword(paramiko.ServerInterface):
    """Takes one password and records the command."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.asked = threading.Event()

    def check_auth_password(self, username: str, password: str) -> int:
        return paramiko.AUTH_SUCCESSFUL if (username, password) == ("root", "once") else paramiko.AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "password"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.commands.append(command.decode())
        threading.Thread(target=self._end, args=(channel,), daemon=True).start()
        return True

    def _end(self, channel: paramiko.Channel) -> None:
        time.sleep(0.1)  # after the reply to the request
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):  # the client may have gone first
            channel.send_exit_status(0)
            channel.close()


@pytest.mark.parametrize("password", ["once", "wrong"])
def test_a_password_is_used_under_the_pinned_key_only(tmp_path: Path, password: str) -> None:
    key = paramiko.RSAKey.generate(2048)
    server = OnePassword()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        served: list[paramiko.Transport] = []

        def serve() -> None:
            connection, _ = listener.accept()
            transport = paramiko.Transport(connection)
            transport.add_server_key(key)
            transport.start_server(server=server)
            served.append(transport)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        (tmp_path / "known_hosts").write_text(f"lab {key.get_name()} {key.get_base64()}\n")
        address = Address("127.0.0.1", port, "root")
        if password == "once":
            by_password(tmp_path, address, password, "echo installed")
            assert server.commands == ["echo installed"]
        else:
            with pytest.raises(CliError, match="did not open it"):
                by_password(tmp_path, address, password, "echo installed")
            assert server.commands == []
        thread.join(10)
        for transport in served:
            transport.close()
            transport.join(10)
