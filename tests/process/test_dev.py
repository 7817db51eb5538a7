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


NEEDED = ("ssh", "ssh-keygen", "sshd", "rsync", "tmux", "git", "bwrap", "ps")


def installed(checkout: Path, path: Path) -> Path:
    """Make the bare checkout one whose .venv is up to date, beside an apt-get that only notes what it is asked for."""
    for name in ("pyproject.toml", "requirements/build.txt", "requirements/runtime.txt", "requirements/dev.txt"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("x\n")
    scripts = {checkout / ".venv/bin/python": 'echo "python $*"', path / "id": "echo 0"}
    scripts |= {path / name: "true" for name in NEEDED}
    scripts[path / "apt-get"] = f'echo "$*" >>"{path}/asked"'
    (checkout / ".venv/bin").mkdir(parents=True)
    for script, body in scripts.items():
        script.unlink(missing_ok=True)
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
    for name in ("env", "mktemp", "rm"):
        found = shutil.which(name)
        assert found is not None
        (path / name).symlink_to(found)
    for which, stamp in (("runtime", ".gpujob-stamp"), ("dev", ".gpujob-stamp-dev")):
        words = "cat pyproject.toml requirements/build.txt requirements/$0.txt | cksum"
        done = subprocess.run(["bash", "-c", words, which], cwd=checkout, capture_output=True, text=True, check=True)
        (checkout / ".venv" / stamp).write_text(done.stdout)
    return path / "asked"


def test_only_the_tests_ask_for_a_browser_and_go_on_without(bare: tuple[Path, Path]) -> None:
    checkout, path = bare
    asked = installed(checkout, path)
    done = run_dev(checkout, "docs", path=path)
    assert (done.returncode, asked.exists()) == (0, False), done.stderr
    done = run_dev(checkout, "test", "tests/unit", path=path)
    assert done.returncode == 0, done.stderr
    assert asked.read_text().splitlines() == ["-qq update", "-qq install -y --no-install-recommends chromium"]
    assert "there is no Chromium" in done.stderr
    assert "python -m pytest -n 2 --dist loadfile tests/unit" in done.stdout
    run_dev(checkout, "test", path=path)
    assert len(asked.read_text().splitlines()) == 2  # tried once


def test_a_browser_that_is_there_is_not_asked_for(bare: tuple[Path, Path]) -> None:
    checkout, path = bare
    asked = installed(checkout, path)
    (path / "google-chrome").symlink_to("rsync")
    done = run_dev(checkout, "test", path=path)
    assert (done.returncode, asked.exists(), "Chromium" in done.stderr) == (0, False, False), done.stderr
