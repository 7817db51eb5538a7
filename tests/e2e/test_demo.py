"""`./dev demo` from its spec to the release, and Ctrl-C in the middle of it: what it prints, what -o json says, and
what is left in the world afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo" / "run_demo.py"
RESULTS = ROOT / "examples" / "demo" / "gpujob-results" / "digits"
WITHIN_S = 400  # some 40 s on two idle cores; other tests run beside it

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(WITHIN_S + 60)]


@dataclass
class Played:
    """A finished demo: its exit code, what it printed, and its state folder, which it kept."""

    code: int
    text: str
    home: Path

    def json(self, *words: str) -> Any:
        """The JSON that a verb prints about it."""
        env = os.environ | {"GPUJOB_HOME": str(self.home), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "orchestrator.cli.main", *words, "-o", "json"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
        return json.loads(done.stdout)


def short_home() -> Path:
    """Sockets lie below it, and a socket's path has little room."""
    return Path(tempfile.mkdtemp(prefix="gj-demo-"))


def start(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DEMO), "--home", str(home)],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,  # Ctrl-C reaches a process group, and ours must not be in it
    )  # fmt: skip


def processes_of(home: Path) -> list[str]:
    """Command lines of all processes that have to do with a state folder: controller, machines, what runs in them."""
    needle, found = str(home).encode(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command, environ = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:  # it ended while we looked
            continue
        if needle in command or needle in environ:
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


def living(home: Path) -> list[str]:
    """Names of machine folders of the `local` provider that are still there."""
    folder = home / "local" / "machines"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    home = short_home()
    process = start(home)
    try:
        text, _ = process.communicate(timeout=WITHIN_S)
        yield Played(process.returncode, text, home)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=120)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def job(played: Played) -> dict[str, Any]:
    assert played.code == 0, played.text
    found = played.json("describe", "digits")
    assert isinstance(found, dict)
    return found


def test_it_says_that_all_is_true(played: Played) -> None:
    assert played.code == 0, played.text
    assert "$ gpujob plan demo.yaml" in played.text
    assert "$ gpujob apply -y --follow demo.yaml" in played.text
    closing = played.text[played.text.rindex("THE DEMO") :]
    assert "FAILED" not in closing
    for word in ("attempts", "resumed", "steps lost", "seconds", "(play)", str(RESULTS), "nothing is billing"):
        assert word in closing, f"{word!r} is not in the closing summary:\n{closing}"


def test_two_attempts_and_the_first_was_reclaimed(job: dict[str, Any]) -> None:
    assert job["state"] == "DONE"
    assert job["outcome"] == "done"
    assert [rental["reason"] for rental in job["rentals"]] == ["interrupted", "done"]
    assert [rental["phase"] for rental in job["rentals"]] == ["gone", "gone"]
    assert job["billing"] == []
    assert job["terminal_at"] is not None


def test_the_second_attempt_went_on_where_the_first_had_saved(job: dict[str, Any]) -> None:
    first, second = job["runs"]
    assert first["resumed_from"] is None
    assert first["exit"]["signalled"] == "interruption"
    assert first["exit"]["code"] == 128 + signal.SIGTERM
    step = second["resume_step"]
    assert 0 < step < job["total"]
    assert second["resumed_from"] == f"step_{step}.npz"
    assert second["exit"]["code"] == 0
    assert job["step"] == job["total"] == 2400
    assert 0 <= job["steps_lost"] < 2400


def test_the_log_of_the_second_attempt_starts_at_that_step(played: Played, job: dict[str, Any]) -> None:
    step = job["runs"][1]["resume_step"]
    env = os.environ | {"GPUJOB_HOME": str(played.home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "orchestrator.cli.main", "logs"]
    now, before = (
        subprocess.run([*command, *words], env=env, capture_output=True, text=True, check=True, timeout=60).stdout
        for words in (["digits"], ["digits", "--previous"])
    )
    assert f"resumed step_{step}.npz at step={step}/2400" in now
    assert "done: " in now
    assert f"saved step_{step}.npz" in before, "the checkpoint must be one that the first attempt wrote"
    assert "step=2400/2400" not in before


def test_time_and_money_are_accounted_for(job: dict[str, Any]) -> None:
    assert {"machine", "setup", "run", "results"} <= set(job["phases_s"])
    assert job["phases_s"]["run"] > 5
    assert job["spent"]["play"] is True
    hours = job["phases_s"]["setup"] + job["phases_s"]["run"]
    assert float(job["spent"]["amount"]) >= 0.21 * hours / 3600 * 0.9, "0.21 USD/h is the spot price of the table"


def test_the_picture_is_a_picture(job: dict[str, Any]) -> None:
    assert job["results"] == str(RESULTS)
    width, height, pixels = decode_png(RESULTS / "learning_curve.png")
    assert (width, height) == (960, 540)
    assert len({pixels[i : i + 4] for i in range(0, len(pixels), 4)}) > 50, "curves have more than a few colours"


def test_the_model_that_came_home_is_good_and_knows_where_it_resumed(job: dict[str, Any]) -> None:
    metrics = json.loads((RESULTS / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["steps"] == 2400
    assert metrics["accuracy"] > 0.93
    assert metrics["resumed_at"] == [job["runs"][1]["resume_step"]]


def test_nothing_is_left_in_the_world(played: Played) -> None:
    assert played.code == 0, played.text
    assert living(played.home) == []
    assert processes_of(played.home) == []


def test_ctrl_c_cancels_releases_and_leaves_nothing() -> None:
    home = short_home()
    process = start(home)
    try:
        until = time.monotonic() + WITHIN_S
        while not living(home):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until, "no machine was made"
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        text, _ = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 130, text
        assert "cancelling the job and releasing its machine" in text
        assert living(home) == []
        assert processes_of(home) == []
    finally:
        if process.poll() is None:
            process.kill()
        shutil.rmtree(home, ignore_errors=True)


def decode_png(path: Path) -> tuple[int, int, bytes]:
    """(width, height, raw rows) of an 8-bit RGBA PNG; raises AssertionError for anything else."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    position, packed, header = 8, b"", b""
    while position < len(data):
        length, kind = struct.unpack(">I4s", data[position : position + 8])
        body = data[position + 8 : position + 8 + length]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[position + 8 + length : position + 12 + length])[0]
        header = body if kind == b"IHDR" else header
        packed += body if kind == b"IDAT" else b""
        position += 12 + length
    width, height, depth, colours = struct.unpack(">IIBB", header[:10])
    assert (depth, colours) == (8, 6)
    pixels = zlib.decompress(packed)
    assert len(pixels) == height * (1 + 4 * width)
    return width, height, pixels
