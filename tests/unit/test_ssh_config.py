"""Key, pinned host keys and ssh_config of one rental: private files, nothing of the user's own setup."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import ssh_files
from orchestrator.ssh_files import Target, control_path, new_key, pin, pinned_keys, prepare

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBdMWsCxPDQzUBVF8JrGpsIjDgVNXrWDDyJq5jyBuWUI"


def target_in(folder: Path, **changes: object) -> Target:
    return replace(Target("digits-1-r1", "203.0.113.9", 2222, "root", (), folder), **changes)  # type: ignore[arg-type]


def effective(config: Path, host: str) -> dict[str, str]:
    """What OpenSSH itself makes of the file."""
    ran = subprocess.run(["ssh", "-G", "-F", str(config), host], capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in ran.splitlines() if " " in line)


def test_the_key_is_made_once_and_private(tmp_path: Path) -> None:
    folder = tmp_path / "rental"
    line = new_key(folder)
    assert line.startswith("ssh-ed25519 AAAA")
    assert line.endswith(" gpujob")
    assert new_key(folder) == line
    assert (folder / "id_ed25519").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    shown = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(folder / "id_ed25519")], capture_output=True, text=True, check=True
    ).stdout
    assert shown.split()[:2] == line.split()[:2]
    assert new_key(tmp_path / "other") != line


def test_openssh_reads_the_config_as_meant(tmp_path: Path) -> None:
    target = target_in(tmp_path / "a b%c")
    seen = effective(prepare(target), target.rental)
    assert (seen["hostname"], seen["port"], seen["user"]) == ("203.0.113.9", "2222", "root")
    assert seen["hostkeyalias"] == "digits-1-r1"
    assert seen["stricthostkeychecking"] == "accept-new"
    assert seen["ciphers"].startswith("aes128-gcm@openssh.com,")
    assert seen["kexalgorithms"].startswith("curve25519-sha256,")
    assert seen["identityfile"].replace("%%", "%") == str(target.key_file)
    assert seen["globalknownhostsfile"] == "/dev/null"
    assert seen["forwardagent"] == "no"
    assert target.config_file.stat().st_mode & 0o777 == 0o600


def test_told_host_keys_are_strict_from_the_start_and_replace_what_was_seen_first(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    pin(target, "ssh-ed25519 QUFB")
    assert pinned_keys(target) == ("ssh-ed25519 QUFB",)
    told = replace(target, host_keys=(f"{KEY} root@machine",))
    config = prepare(told)
    assert pinned_keys(told) == (KEY,)
    assert effective(config, told.rental)["stricthostkeychecking"] in ("true", "yes")
    assert told.known_hosts.stat().st_mode & 0o777 == 0o600


def test_an_address_that_moved_gets_another_shared_connection(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    moved = replace(target, port=2223)
    assert control_path(target) == control_path(target)
    assert control_path(target) != control_path(moved)
    prepare(target)
    assert effective(prepare(moved), target.rental)["port"] == "2223"
    assert len(os.fsencode(control_path(target))) < ssh_files.CONTROL_PATH_MAX


def test_a_long_temporary_folder_still_gives_a_short_socket_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_files.tempfile, "gettempdir", lambda: "/tmp/" + "long" * 30)
    assert len(os.fsencode(control_path(target_in(tmp_path)))) < ssh_files.CONTROL_PATH_MAX


def test_a_socket_folder_that_others_can_enter_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = Path(f"/tmp/gj-{os.getpid()}")
    short.mkdir()
    try:
        monkeypatch.setattr(ssh_files.tempfile, "gettempdir", lambda: str(short))
        theirs = short / f"gpujob-ssh-{os.getuid()}"
        theirs.mkdir()
        theirs.chmod(0o777)
        used = control_path(target_in(tmp_path)).parent
        assert used != theirs
        assert used.stat().st_mode & 0o077 == 0
        used.rmdir()
        theirs.rmdir()
    finally:
        short.rmdir()


@pytest.mark.parametrize(
    "changes", [{"host": "a b"}, {"user": "-oProxyCommand=x"}, {"host": "x\nProxyCommand y"}, {"rental": "*"}]
)
def test_words_that_would_change_the_config_are_refused(tmp_path: Path, changes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be part of an SSH address"):
        prepare(target_in(tmp_path, **changes))
