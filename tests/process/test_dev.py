"""./dev on a computer that lacks what it needs: it names the packages and changes nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEV = Path(__file__).parents[2] / "dev"
ALWAYS_THERE = ("bash", "awk", "cat", "cksum", "dirname", "id")


def run_dev(checkout: Path, *arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(path), "HOME": str(checkout)}
    return subprocess.run(
        ["bash", str(checkout / "dev"), *arguments],
        env=env,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def bare(tmp_path: Path) -> tuple[Path, Path]:
    """A checkout with nothing installed, and a PATH that has Python but neither rsync nor tmux."""
    checkout, path = tmp_path / "checkout", tmp_path / "bin"
    checkout.mkdir()
    path.mkdir()
    shutil.copy(DEV, checkout / "dev")
    for name in ALWAYS_THERE:
        found = shutil.which(name)
        assert found is not None
        (path / name).symlink_to(found)
    (path / "python3").symlink_to(sys.executable)
    return checkout, path


@pytest.mark.parametrize(
    ("package_tool", "words"),
    [("dnf", "dnf install"), ("brew", "brew install")],
)
def test_without_apt_the_packages_are_named(bare: tuple[Path, Path], package_tool: str, words: str) -> None:
    checkout, path = bare
    (path / package_tool).write_text("#!/bin/sh\necho called >&2\n")
    (path / package_tool).chmod(0o755)
    done = run_dev(checkout, "setup", path=path)
    assert done.returncode == 2
    assert words in done.stderr
    assert {"rsync", "tmux"} <= set(done.stderr.split())
    assert "called" not in done.stderr
    assert not (checkout / ".venv").exists()


def test_an_unknown_command_shows_what_there_is(bare: tuple[Path, Path]) -> None:
    checkout, path = bare
    done = run_dev(checkout, "tset", path=path)
    assert done.returncode == 2
    assert "'tset'" in done.stderr
    assert "test [ARGS]" in done.stderr
    assert done.stdout == ""
