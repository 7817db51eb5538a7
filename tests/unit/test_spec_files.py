"""Local files that a spec names: missing ones, scripts with the wrong line ends, programs that cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobspecs.files import check_files, missing_scripts
from jobspecs.load import load_spec


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "train.sh").write_text("#!/bin/bash\necho x\n")
    (tmp_path / "train.sh").chmod(0o755)
    (tmp_path / "plain.sh").write_text("echo x\n")
    (tmp_path / "crlf.sh").write_bytes(b"#!/bin/bash\r\necho x\r\n")
    (tmp_path / "crlf.sh").chmod(0o755)
    (tmp_path / "bom.sh").write_bytes(b"\xef\xbb\xbf#!/bin/bash\n")
    (tmp_path / "bom.sh").chmod(0o755)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "data").mkdir()
    return tmp_path


def found(base: Path, lines: str, workdir: str = "workdir: .\n") -> list[str]:
    spec = load_spec(f"name: a\ngpu: none\n{workdir}{lines}\n", "job.yaml")
    return [f"{problem.key}: {problem.reason}" for problem in check_files(spec, base)]


@pytest.mark.parametrize(
    "run",
    [
        "python missing.py", "./train.sh --x 1", "FOO=1 ./train.sh", "bash plain.sh", "bash later.sh", "echo a/b",
        "/opt/bin/tool", "$HOME/x.sh", "~/x.sh", "|\n  # a comment\n  ./train.sh", "'echo \"'",
    ],
)  # fmt: skip
def test_commands_that_can_start(base: Path, run: str) -> None:
    assert found(base, f"run: {run}") == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("run: ./missing.sh", "run: there is no file ./missing.sh in workdir"),
        ("run: x\nsetup: missing.sh", "setup: there is no file missing.sh in workdir"),
        ("run: x\nsmoke: scripts/missing --x", "smoke: there is no file scripts/missing in workdir"),
        ("run: train.sh", "run: the shell does not look for train.sh in workdir"),
        ("run: ./plain.sh", "run: ./plain.sh is not executable"),
        ("run: ./scripts", "run: ./scripts is a folder, not a program"),
        ("run: A=1 B=2 ./missing.sh", "run: there is no file ./missing.sh in workdir"),
        ("run: ./crlf.sh", "run: crlf.sh has CRLF line ends, and bash stops at ^M"),  # B077
        ("run: x\nsetup: bash -e crlf.sh", "setup: crlf.sh has CRLF line ends, and bash stops at ^M"),  # B077
        ("run: x\nsetup: source crlf.sh", "setup: crlf.sh has CRLF line ends, and bash stops at ^M"),  # B077
        ("run: ./bom.sh", "run: bom.sh starts with a byte order mark, which hides its #! line"),
        ("run: x\ndata: ./nowhere", "data[0].from: there is no ./nowhere"),
    ],
)
def test_commands_and_files_that_are_wrong(base: Path, lines: str, said: str) -> None:
    assert found(base, lines) == [said]


def test_a_program_that_setup_makes_is_not_missed(base: Path) -> None:
    assert found(base, "setup: python -m venv .venv\nrun: .venv/bin/python train.py") == []
    assert found(base, "run: .venv/bin/python train.py") == ["run: there is no file .venv/bin/python in workdir"]
    assert found(base, "setup: make\nrun: ./missing.sh") == ["run: there is no file ./missing.sh in workdir"]


def test_the_folder_itself(base: Path) -> None:
    assert found(base, "run: x", "workdir: nowhere\n") == ["workdir: there is no folder nowhere"]
    assert found(base, "run: x", "workdir: train.sh\n") == ["workdir: train.sh is a file, not a folder"]
    assert found(base, "run: ./x.sh", "") == ["run: starts with the file ./x.sh, and no workdir brings it"]
    assert found(base, "run: ./missing", "workdir: {git: x, ref: y}\n") == []


def test_data_that_is_here_or_elsewhere(base: Path) -> None:
    assert found(base, "run: x\ndata: [./data, s3://bucket/x]") == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("run: python3 train.py --x 1", ["run: runs train.py, which is not in workdir"]),
        ("run: CUDA_VISIBLE_DEVICES=0 python3.11 -u train.py", ["run: runs train.py, which is not in workdir"]),
        ("run: torchrun --nproc_per_node 2 train.py", ["run: runs train.py, which is not in workdir"]),
        ("run: python3 here.py", []),
        ("run: python3 -m here", []),
        ("run: python3 /opt/there.py", []),
        ("run: python3 repo/train.py\nsetup: git clone https://example.org/repo", []),
        ("run: echo train.py", []),
    ],
)
def test_a_script_that_workdir_does_not_bring_is_advice(more: str, said: list[str], tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("")
    spec = load_spec(f"name: a\ngpu: none\nworkdir: .\n{more}\n", "a.yaml")
    assert [f"{each.key}: {each.reason}" for each in missing_scripts(spec, tmp_path)] == said
    assert check_files(spec, tmp_path) == []
