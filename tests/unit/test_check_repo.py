"""tools/check_repo.py finds what it promises to find, and lets ordinary text pass."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "check_repo.py"


@pytest.fixture(scope="module")
def check_repo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_repo", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_repo"] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("see https://py" + "pi.org/simple", "registry"),
        ("--index https://files.python" + "hosted.org/x", "registry"),
        ("open('/wo" + "rk/main/x')", "one machine"),
        ("cd /ho" + "me/jenny/src", "home folder"),
        ("key = AKI" + "A" + "Q" * 16, "secret"),
        ("token: ghp" + "_" + "a" * 36, "secret"),
        ("-----BEGIN OPENSSH PRIVATE" + " KEY-----\n" + "b" * 64, "secret"),
    ],
)
def test_a_forbidden_text_is_found_with_its_line(check_repo: ModuleType, text: str, why: str) -> None:
    (line,) = check_repo.findings(Path("docs/page.md"), b"first\n" + text.encode())
    assert line.startswith("docs/page.md:2: ")
    assert why in line


@pytest.mark.parametrize(
    "text",
    [
        "the network/work/ratio",
        "$HOME/work/x and ~/work/x",
        "gpujob/*/work/base",
        "/home/user/.ssh",
        "the PRIVATE KEY of -----BEGIN",
        "hf_token",
        "task-" + "a" * 40,
    ],
)
def test_ordinary_text_passes(check_repo: ModuleType, text: str) -> None:
    assert list(check_repo.findings(Path("docs/page.md"), text.encode())) == []


def test_a_home_folder_may_stand_in_an_example(check_repo: ModuleType) -> None:
    text = ("#SBATCH -D /ho" + "me/jenny/run").encode()
    assert list(check_repo.findings(Path("examples/slurm/job.sh"), text)) == []
    assert len(list(check_repo.findings(Path("docs/x.md"), text))) == 1


def test_a_big_file_is_refused_even_when_binary(check_repo: ModuleType) -> None:
    (line,) = check_repo.findings(Path("demo.gif"), b"\0" * (check_repo.MAX_BYTES + 1))
    assert "at most" in line
