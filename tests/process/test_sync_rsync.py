"""rsync over the rental's ssh_config against a real sshd: what arrives, what is refused, what goes on after a cut."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cutting_proxy import CuttingProxy
from plain_sshd import Sshd

from orchestrator import ssh, sync
from orchestrator.ssh import Target
from orchestrator.ssh_errors import (
    DiskFull,
    HostKeyChanged,
    KeyRejected,
    ShellNotClean,
    SshError,
    Stopped,
    ToolMissing,
    TransferError,
    Unreachable,
    Unsafe,
)
from orchestrator.sync import Limits, Progress, pull, push


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def target(sshd: Sshd, tmp_path: Path) -> Iterator[Target]:
    made = sshd.target(tmp_path / "rental")
    yield made
    ssh.stop_sharing(made)


@pytest.fixture
def there(sshd: Sshd, tmp_path: Path) -> Path:
    """A folder on the machine, seen from here."""
    folder = sshd.home / tmp_path.name
    folder.mkdir()
    return folder


def test_a_folder_arrives_as_it_is_and_again_costs_nothing(target: Target, there: Path, tmp_path: Path) -> None:
    source = tmp_path / "code with blanks"
    (source / "pkg").mkdir(parents=True)
    (source / "pkg" / "run 'me'.sh").write_text("#!/bin/sh")
    (source / "pkg" / "run 'me'.sh").chmod(0o755)
    (source / "link").symlink_to("pkg")
    (source / "odd\nname $(touch x)").write_text("x")
    dest = there / "a b"
    first = push(target, source, str(dest))
    assert (first.files, first.bytes) == (2, 10)
    assert (dest / "pkg" / "run 'me'.sh").stat().st_mode & 0o777 == 0o755
    assert os.readlink(dest / "link") == "pkg"
    assert (dest / "odd\nname $(touch x)").read_text() == "x"
    assert push(target, source, str(dest)).files == 0
    (source / "pkg" / "run 'me'.sh").unlink()
    push(target, source, str(dest), delete=True)
    assert list((dest / "pkg").iterdir()) == []


def test_one_file_and_followed_links(target: Target, there: Path, tmp_path: Path) -> None:
    (tmp_path / "big").write_text("data")
    (tmp_path / "farm").mkdir()
    (tmp_path / "farm" / "a").symlink_to(tmp_path / "big")
    push(target, tmp_path / "big", str(there / "renamed"))
    assert (there / "renamed").read_text() == "data"
    push(target, tmp_path / "farm", str(there / "farm"), copy_links=True)
    assert not (there / "farm" / "a").is_symlink()
    assert (there / "farm" / "a").read_text() == "data"


def test_progress_ends_with_everything(target: Target, there: Path, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(os.urandom(3_000_000))
    seen: list[Progress] = []
    push(target, tmp_path / "big", str(there / "big"), progress=seen.append, limits=Limits(kib_s=6000))
    assert seen[-1].bytes == seen[-1].total == 3_000_000
    assert [each.bytes for each in seen] == sorted(each.bytes for each in seen)
    assert seen[-1].rate > 0


def test_only_named_files_come_and_nothing_hostile_with_them(target: Target, there: Path, tmp_path: Path) -> None:
    (there / "sub").mkdir()
    for name in ("sub/a", "b", "suid"):
        (there / name).write_text(name)
    (there / "suid").chmod(0o4755)
    (there / "out").symlink_to("/etc")
    (there / "inside").symlink_to("b")
    os.mkfifo(there / "pipe")
    dest = tmp_path / "dest"
    pull(target, str(there), dest, files_from=["sub/a"])
    assert sorted(path.name for path in dest.iterdir()) == ["sub"]
    pull(target, str(there), dest)
    assert sorted(path.name for path in dest.iterdir()) == ["b", "inside", "sub", "suid"]
    assert (dest / "suid").stat().st_mode & 0o7111 == 0o111  # runnable, and no more


def test_a_link_of_the_machine_is_no_way_out_of_the_folder(target: Target, there: Path, tmp_path: Path) -> None:
    """The machine offers `trap` first as a link to a folder of ours, then as a folder with a file in it."""
    ours = tmp_path / "ours"
    ours.mkdir()
    dest = tmp_path / "dest"
    (there / "trap").symlink_to(ours)
    pull(target, str(there), dest)
    (there / "trap").unlink()
    (there / "trap").mkdir()
    (there / "trap" / "authorized_keys").write_text("evil")
    pull(target, str(there), dest)
    assert list(ours.iterdir()) == []
    assert (dest / "trap" / "authorized_keys").read_text() == "evil"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "./a", "a\0b", "a/"])
def test_names_that_leave_the_folder_are_refused(target: Target, tmp_path: Path, name: str) -> None:
    with pytest.raises(Unsafe):
        pull(target, "/tmp", tmp_path / "dest", files_from=["fine", name])


def test_a_half_sent_file_goes_on_where_it_was_cut(target: Target, there: Path, tmp_path: Path) -> None:
    data = os.urandom(2_000_000)
    (there / "step_1.bin").write_bytes(data)
    dest = tmp_path / "dest"
    dest.mkdir()
    (dest / "step_1.bin").write_bytes(data[:1_500_000])
    pull(target, str(there), dest, files_from=["step_1.bin"], append=True)
    assert (dest / "step_1.bin").read_bytes() == data
    (dest / "step_1.bin").write_bytes(b"x" * 2_000_000)  # another file of the same size and time
    info = (there / "step_1.bin").stat()
    os.utime(dest / "step_1.bin", ns=(info.st_mtime_ns, info.st_mtime_ns))
    assert pull(target, str(there), dest).files == 0
    pull(target, str(there), dest, again=True)
    assert (dest / "step_1.bin").read_bytes() == data


def test_a_missing_file_is_named(target: Target, there: Path, tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="nowhere") as caught:
        pull(target, str(there), tmp_path / "dest", files_from=["nowhere"])
    assert caught.value.code == 23


def test_a_talkative_login_is_named_and_not_tried_again(
    sshd: Sshd, target: Target, there: Path, tmp_path: Path
) -> None:
    (sshd.home / ".banner").write_text("Welcome to your GPU!\n")
    try:
        with pytest.raises(ShellNotClean, match="bashrc"):
            pull(target, str(there), tmp_path / "dest")
    finally:
        (sshd.home / ".banner").unlink()


def test_a_machine_without_rsync_is_named(sshd: Sshd, target: Target, there: Path, tmp_path: Path) -> None:
    (sshd.home / ".path").write_text("/nowhere")
    try:
        with pytest.raises(ToolMissing) as caught:
            push(target, tmp_path, str(there / "x"))
        assert (caught.value.tool, caught.value.side) == ("rsync", "machine")
    finally:
        (sshd.home / ".path").unlink()


def test_no_rsync_here_is_named(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing) as caught:
        push(target, tmp_path, "/tmp/x")
    assert caught.value.side == "here"


def rsyncs(marker: Path) -> list[str]:
    listed = subprocess.run(["pgrep", "-af", f"rsync.*{marker}"], capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if "pgrep" not in line]


def test_stop_and_deadline_end_the_child(target: Target, there: Path, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(os.urandom(3_000_000))
    stop = threading.Event()
    with pytest.raises(Stopped):
        push(
            target,
            tmp_path / "big",
            str(there / "big"),
            progress=lambda each: stop.set(),
            limits=Limits(kib_s=100, stop=stop),
        )
    with pytest.raises(TransferError, match=r"did not end within 0\.8 s"):
        push(target, tmp_path / "big", str(there / "big"), limits=Limits(kib_s=100, timeout_s=0.8))
    assert rsyncs(tmp_path / "big") == []


def test_a_lost_machine_is_unreachable_and_the_next_call_goes_on(tmp_path: Path) -> None:
    data = os.urandom(4_000_000)
    (tmp_path / "big").write_bytes(data)
    server = Sshd(tmp_path / "machine")
    with server:
        target = server.target(tmp_path / "rental")
        lost = threading.Event()

        def lose(seen: Progress) -> None:
            if seen.bytes > 500_000 and not lost.is_set():
                lost.set()
                server.stop()

        with pytest.raises(Unreachable):
            push(
                target,
                tmp_path / "big",
                str(server.home / "big"),
                append=True,
                progress=lose,
                limits=Limits(kib_s=1500, tries=2),
            )
    with server:
        push(target, tmp_path / "big", str(server.home / "big"), append=True)
        assert (server.home / "big").read_bytes() == data
    ssh.stop_sharing(target)


def test_a_cut_connection_resends_less_than_a_twentieth_of_what_had_arrived(sshd: Sshd, tmp_path: Path) -> None:
    """One large file and many small ones; the copy is tried again by itself and goes on where it was. What SSH still
    holds for a receiver that is busy, up to 2 MB, had not arrived."""
    source = tmp_path / "set"
    (source / "small").mkdir(parents=True)
    (source / "big.bin").write_bytes(os.urandom(64_000_000))
    for number in range(300):
        (source / "small" / f"{number}.bin").write_bytes(os.urandom(4096))
    total = 64_000_000 + 300 * 4096
    direct = sshd.target(tmp_path / "rental")
    proxy = CuttingProxy(direct.port)
    target = replace(direct, port=proxy.port)
    try:
        proxy.cut_at = 48_000_000
        push(target, source, str(sshd.home / "cut"))
        assert proxy.cut_at == 0  # it was cut
        assert (sshd.home / "cut" / "big.bin").read_bytes() == (source / "big.bin").read_bytes()
        assert len(list((sshd.home / "cut" / "small").iterdir())) == 300
        assert proxy.up < total + 0.05 * 48_000_000, (proxy.up - total) / 48_000_000
    finally:
        ssh.stop_sharing(target)
        proxy.close()


WHERE = Target("r1", "203.0.113.9", 22, "root", (), Path("/nowhere"))


@pytest.mark.parametrize(
    ("code", "words", "kind"),
    [
        (11, 'rsync: [receiver] write failed on "/x": No space left on device (28)', DiskFull),
        (12, "rsync error: error in rsync protocol data stream (code 12) at io.c(232)", Unreachable),
        (30, "rsync error: timeout in data send/receive (code 30) at io.c(200)", Unreachable),
        (255, "ssh: connect to host 203.0.113.9 port 22: Connection timed out", Unreachable),
        (255, "Host key verification failed.\nrsync error: unexplained error (code 255)", HostKeyChanged),
        (255, "root@203.0.113.9: Permission denied (publickey).\nrsync error: unexplained", KeyRejected),
        (2, "protocol version mismatch -- is your shell clean?", ShellNotClean),
        (127, "bash: line 1: rsync: command not found", ToolMissing),
        (2, "ERROR: rejecting unrequested file-list name: .ssh/authorized_keys", Unsafe),
        (23, 'rsync: [sender] link_stat "/x" failed: No such file or directory (2)', TransferError),
        (1, "rsync: unknown option", TransferError),
    ],
)
def test_every_end_of_rsync_has_a_name(code: int, words: str, kind: type[SshError]) -> None:
    assert type(sync._named(WHERE, code, words, True)) is kind


def test_the_full_disk_is_on_the_receiving_side() -> None:
    words = 'rsync: [receiver] write failed on "/x": No space left on device (28)'
    here, there = sync._named(WHERE, 11, words, True), sync._named(WHERE, 11, words, False)
    assert isinstance(here, DiskFull)
    assert isinstance(there, DiskFull)
    assert (here.side, there.side) == ("here", "machine")
