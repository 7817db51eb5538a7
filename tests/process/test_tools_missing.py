"""What is said when a machine lacks python3 or rsync: the tool, the machine's side, and what to do (B050)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from plain_sshd import Sshd

from orchestrator import ssh, sync
from orchestrator.ssh_errors import ToolMissing

BARE = ("bash", "sh", "sha256sum", "cat", "rm", "mkdir")


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[ssh.Target]:
    """A machine with a shell and no more."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in BARE:
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    with Sshd(tmp_path / "machine") as server:
        (server.home / ".path").write_text(str(programs))
        target = server.target(tmp_path / "rental")
        yield target
        ssh.stop_sharing(target)


def test_without_python_the_machine_and_the_image_are_named(bare: ssh.Target) -> None:
    connection = ssh.connect(bare)
    try:
        with pytest.raises(ToolMissing) as caught:
            connection.push_agent()
    finally:
        connection.close()
    assert str(caught.value) == f"{bare.where}: `python3` is missing on the machine; add it to the image"


def test_without_rsync_the_machine_is_named_and_not_this_computer(bare: ssh.Target, tmp_path: Path) -> None:
    with pytest.raises(ToolMissing) as caught:
        sync.push(bare, tmp_path / "bin", "/tmp/nowhere")
    assert str(caught.value) == f"{bare.where}: `rsync` is missing on the machine; add it to the image"
