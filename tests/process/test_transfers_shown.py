"""Copies that go on are shown: data on its way to a real machine of this host, and files that `pull` brings here.

rsync is slowed down by a program of the same name before it in PATH, so that a copy lasts long enough to be looked at.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("ssh", "ssh-keygen", "rsync", "tmux", "sshd")
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
DATA = 100_000_000
KIB_S = 25_000  # 100 MB in about four seconds
LONG_S = 90.0  # a bound for the whole test, not a time that is measured

pytestmark = pytest.mark.skipif(
    any(shutil.which(program, path=PATH) is None for program in NEEDED), reason="a `local` machine needs them"
)

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = [sys.executable, "-m", "orchestrator.cli.main"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    slow = tmp_path / "bin" / "rsync"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nexec {shutil.which("rsync", path=PATH)} --bwlimit={KIB_S} "$@"\n')
    slow.chmod(0o755)
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    found = {**kept, "PATH": f"{slow.parent}:{PATH}", "GPUJOB_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    return found | {"GPUJOB_NO_KEYRING": "1", "GPUJOB_CONTROLLER": "here", "TERM": "xterm"}


@pytest.fixture
def cli(tmp_path: Path, env: dict[str, str]) -> Iterator[Cli]:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG_S, cwd=tmp_path,
            check=False, env=env,
        )  # fmt: skip

    yield run
    run("cancel", "--all", "--now")
    for line in json.loads(run("ps", "-o", "json").stdout):
        run("wait", line["name"], "--for", "released", "--timeout", "60s")
    run("controller", "stop", "--now")


def progress_of(cli: Cli, name: str) -> dict[str, object]:
    seen = json.loads(cli("describe", name, "-o", "json").stdout)["progress"] or {}
    return seen.get("transfer") or {}


def on_a_terminal(command: list[str], cwd: Path, env: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, stdout, and what came to the terminal that stderr is."""
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read() -> None:
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other end was closed
                return
            shown.extend(data)

    reading = threading.Thread(target=read)
    try:
        reading.start()
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, cwd=cwd, env=env, check=False,
            timeout=LONG_S,
        )  # fmt: skip
    finally:
        os.close(theirs)
        reading.join(10)
        os.close(ours)
    return done.returncode, done.stdout.decode(), shown.decode("utf-8", "replace")


def test_data_on_its_way_is_shown_and_pull_has_a_bar(cli: Cli, tmp_path: Path, env: dict[str, str]) -> None:
    with (tmp_path / "set.bin").open("wb") as out:
        out.write(os.urandom(DATA))
    (tmp_path / "big.yaml").write_text(
        "name: big\ngpu: none\nproviders: [local]\nttl: 10m\ngrace: {time: 1s}\ndata:\n  - set.bin\n"
        'run: |\n  cp "$GPUJOB_DATA/set.bin" "$GPUJOB_OUT/copy.bin"\n  echo copied\n  sleep 600\n'
    )
    done = cli("apply", "-y", "big.yaml")
    assert done.returncode == 0, done.stderr
    until, seen = time.monotonic() + LONG_S, []
    while time.monotonic() < until and not cli("logs", "big").stdout:
        seen.append(progress_of(cli, "big"))
    sent = [each for each in seen if each.get("what") == "data set.bin"]
    assert sent, seen
    assert {each["total"] for each in sent} == {DATA}
    assert all(0 < int(str(each["bytes"])) <= DATA and int(str(each["rate"])) > 0 for each in sent)
    assert progress_of(cli, "big").get("what") != "data set.bin"

    assert cli("pull", "big", "--to", "quiet").stderr == ""
    code, out, shown = on_a_terminal([*COMMAND, "pull", "big", "--to", "here"], tmp_path, env)
    assert (code, out) == (0, "1 file, 100 MB -> here\n")
    steps = [int(found) for found in re.findall(r"(\d+)(?:\.\d)?/\d+(?:\.\d)? MB [\d.]+ MB/s", shown)]
    assert steps[-1] == 100
    assert any(0 < step < 100 for step in steps)
    assert (tmp_path / "here" / "copy.bin").stat().st_size == DATA
