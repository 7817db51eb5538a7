"""How a host's address is read, and how its line gets into the config file and out again."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobspecs.problems import SpecErrors
from orchestrator import hosts
from orchestrator.config import load_config
from orchestrator.home import Home
from orchestrator.hosts import Address, HostError, parse_address, put

BLOCK = {
    "host": "198.51.100.7",
    "port": 12345,
    "user": "root",
    "gpu": "RTX-4090",
    "count": 1,
    "release": "echo 'x: #1'",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path))
    monkeypatch.delenv("GPUJOB_CONFIG", raising=False)
    return Home.from_env()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ssh -p 12345 root@host", Address("host", 12345, "root")),
        ("ssh root@connect.westc.seetacloud.com -p 30111", Address("connect.westc.seetacloud.com", 30111, "root")),
        ("me@10.0.0.7", Address("10.0.0.7", 22, "me")),
        ("box", Address("box", 22, "root")),
        ("ssh -p22 -l me -i ~/.ssh/key box", Address("box", 22, "me", "~/.ssh/key")),
        ("ssh fe80::1", Address("fe80::1", 22, "root")),
    ],
)
def test_an_address_is_what_one_types_to_log_in(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ssh",
        "ssh -p",
        "ssh -p x h",
        "ssh -p 99999 h",
        "ssh h reboot",
        "ssh -J gate h",
        "ssh 'h",
        "ssh root@-oProxy",
        "a b",
    ],
)
def test_what_would_be_lost_or_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(HostError) as refused:
        parse_address(text)
    assert refused.value.next


def test_a_host_is_written_read_replaced_and_removed(home: Home) -> None:
    put(home, "lab", BLOCK)
    put(home, "den", {**BLOCK, "port": 22})
    found = load_config(home)
    assert set(found.hosts) == {"lab", "den"}
    assert (found.hosts["lab"]["port"], found.hosts["lab"]["release"]) == ("12345", "echo 'x: #1'")
    assert found.providers == {"ssh": {"hosts": found.hosts}}
    put(home, "lab", {**BLOCK, "gpu": "A10"})
    assert (load_config(home).hosts["lab"]["gpu"], len(load_config(home).hosts)) == ("A10", 2)
    put(home, "lab", None)
    put(home, "den", None)
    assert load_config(home).hosts == {}
    assert load_config(home).providers == {}
    assert home.config_file.stat().st_mode & 0o777 == 0o600


def test_the_rest_of_the_file_stays_byte_for_byte(home: Home) -> None:
    before = (
        "# mine\nowner: me   # me\nhosts:  # of mine\n  # the old one\n  old: {host: h, port: 22}\n\ncurrency: CNY\n"
    )
    home.make().config_file.write_text(before)
    put(home, "lab", BLOCK)
    text = home.config_file.read_text()
    assert "".join(line for line in text.splitlines(True) if "lab:" not in line) == before.replace("  # of mine", "")
    put(home, "lab", None)
    assert set(load_config(home).hosts) == {"old"}
    assert load_config(home).currency == "CNY"


@pytest.mark.parametrize("text", ["hosts: {old: {host: h}}\n", "hosts:\n  lab:\n    host: h\n"])
def test_a_file_written_in_another_way_is_not_edited(home: Home, text: str) -> None:
    home.make().config_file.write_text(text)
    with pytest.raises(HostError, match="not edited"):
        put(home, "lab", BLOCK)
    assert home.config_file.read_text() == text


def test_a_file_that_is_broken_already_is_left_alone(home: Home) -> None:
    home.make().config_file.write_text("ownr: me\n")
    with pytest.raises(SpecErrors):
        put(home, "lab", BLOCK)
    assert home.config_file.read_text() == "ownr: me\n"
    assert list(home.config.iterdir()) == [home.config_file]


def test_the_folder_of_a_host_is_where_its_adapter_looks(home: Home) -> None:
    from providers.ssh import host_folder

    assert hosts.folder(home, "lab") == host_folder(home.state, "lab")
