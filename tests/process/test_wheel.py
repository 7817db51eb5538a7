"""The wheel that a user gets: what is in it, and that it runs in an empty environment away from here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
PACKAGES = {"jobspecs", "orchestrator", "providers"}
CORE_LIMIT_MB = 80  # what a laptop on a train still downloads; boto3 alone would be 30
NO_NETWORK = re.compile(r"NewConnectionError|name resolution|ConnectTimeout|Network is unreachable")


def run(*command: str | Path, cwd: Path) -> str:
    # PYTHONPATH or a config of the desk must not lend the wheel what it lacks
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "GPUJOB_"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=240)
    if done.returncode and NO_NETWORK.search(done.stderr) and not os.environ.get("CI"):
        pytest.skip("the pinned requirements cannot be downloaded: no network")
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", folder, ROOT),
        cwd=folder,
    )
    (built,) = folder.glob("gpujob-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an empty environment that has the pinned requirements and the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", folder / "env", cwd=folder)
    pip = (folder / "env/bin/python", "-m", "pip", "install", "-qq")
    run(*pip, "--require-hashes", "-r", ROOT / "requirements/runtime.txt", cwd=folder)
    run(*pip, "--no-deps", wheel, cwd=folder)
    return folder / "env/bin"


def test_the_wheel_holds_every_tracked_file_of_the_three_packages_and_no_other(wheel: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {name for name in tracked if (ROOT / name).exists()} - set(names) == set()
    assert {name.split("/")[0] for name in names} == PACKAGES


def test_the_wheel_declares_the_command_and_the_embedded_provider(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        text = archive.read(path).decode()
    assert "gpujob = orchestrator.cli.main:main" in text
    assert re.search(r"\[gpujob\.providers\]\n(?:.*\n)*?local = providers\.local:LocalProvider", text)


def test_its_requirements_are_what_was_installed(installed: Path, tmp_path: Path) -> None:
    assert "No broken requirements" in run(installed / "python", "-m", "pip", "check", cwd=tmp_path)


def test_it_runs_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    where = "import orchestrator; print(orchestrator.__path__[0])"
    assert str(ROOT) not in run(installed / "python", "-c", where, cwd=tmp_path)
    assert re.fullmatch(r"gpujob \d+\.\d+\.\d+\S*\n", run(installed / "gpujob", "--version", cwd=tmp_path))
    assert "apply" in run(installed / "gpujob", "--help", cwd=tmp_path)
    schema = json.loads(run(installed / "gpujob", "schema", cwd=tmp_path))
    assert {"name", "gpu", "run"} <= set(schema["required"])


def test_the_embedded_provider_is_found_by_its_entry_point(installed: Path, tmp_path: Path) -> None:
    code = (
        "from importlib.metadata import entry_points as e\n"
        "print([p.load().__name__ for p in e(group='gpujob.providers') if p.name == 'local'])"
    )
    assert run(installed / "python", "-c", code, cwd=tmp_path) == "['LocalProvider']\n"


def test_a_core_install_stays_small(installed: Path) -> None:
    (site,) = installed.parent.glob("lib/python3*/site-packages")
    size = sum(
        path.stat().st_size
        for path in site.rglob("*")
        if path.is_file() and path.relative_to(site).parts[0].split("-")[0] not in ("pip", "setuptools")
    )
    assert size < CORE_LIMIT_MB * 1_000_000
