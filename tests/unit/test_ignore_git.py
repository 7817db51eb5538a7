"""`.gitignore` and `.gpujobignore` leave out exactly what `git check-ignore` says, on generated trees and patterns."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator import snapshot
from orchestrator.ignore import rules_for

NAMES = ("a", "A", "b", "ab", "a b", "!a", "#a", "a ", "[a]", "a*", "é", "a.log")
TREE = [f"{x}/{y}/{z}" for x in ("a", "b", "ab") for y in ("a", "A", "a b") for z in ("a", "ab", "é")]
TREE += [*(f"{name}.d/c" for name in NAMES), *(name for name in NAMES if name not in ("a", "b", "ab"))]

PIECE = st.sampled_from(
    ["a", "A", "b", "ab", "*", "**", "?", "a*", "*b", "[ab]", "[!a]", "[a-c]", "a\\ b", "\\!a", "\\#a", "#a", "!a",
     "a\\ ", "a ", "\\[a]", "[[]a]", "a\\*", "é", "*.log", "*.d", "c", "\\a", "[^a]", "***", "a**", "[]a]"]
)  # fmt: skip
PATTERN = st.builds(
    lambda neg, lead, parts, tail: ("!" if neg else "") + lead + "/".join(parts) + tail,
    st.booleans(),
    st.sampled_from(["", "", "/", "**/"]),
    st.lists(PIECE, min_size=1, max_size=3),
    st.sampled_from(["", "", "/", "/**", "/*", "  "]),
)
LINES = st.lists(st.one_of(PATTERN, st.sampled_from(["", "# comment", "   ", "!", "/", "\\"])), max_size=5)


def fill(root: Path) -> Path:
    for name in TREE:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return root


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same tree twice: a repository, and a folder outside of any."""
    root = tmp_path_factory.mktemp("trees")
    subprocess.run(["git", "init", "-q", str(root / "repo")], check=True)
    return fill(root / "repo"), fill(root / "plain")


def kept_by_git(repo: Path) -> list[str]:
    """Files of TREE that git check-ignore does not name."""
    asked = "\0".join(TREE).encode() + b"\0"
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-C", str(repo), "check-ignore", "-z", "--stdin"]
    ran = subprocess.run(command, input=asked, capture_output=True, env=env, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    ignored = set(os.fsdecode(ran.stdout).split("\0"))
    return sorted(name for name in TREE if name not in ignored)


def kept_by_us(root: Path, but: str) -> list[str]:
    found = snapshot._walk(root, "", rules_for(root), [])
    return sorted(entry.path for entry in found if entry.kind == "file" and os.path.basename(entry.path) != but)


@settings(max_examples=120, deadline=None)
@given(LINES, LINES, LINES)
@example(["a/**/"], [], [])
@example(["/a/*", "!/a/A"], ["!a"], [])
@example(["*", "!*/", "!*.log"], [], [])
@example(["a\\"], [], [])
@example(["\\!a", "\\#a"], [], [])
@example(["a  ", "a\\ "], [], [])
def test_what_is_left_out_is_what_git_says(
    trees: tuple[Path, Path], top: list[str], nested: list[str], deep: list[str]
) -> None:
    for root, name in zip(trees, (".gitignore", ".gpujobignore"), strict=True):
        for folder, lines in (("", top), ("a", nested), ("a/a b", deep)):
            (root / folder / name).write_text("\n".join(lines) + "\n")
    wanted = kept_by_git(trees[0])
    assert kept_by_us(trees[0], ".gitignore") == wanted
    assert kept_by_us(trees[1], ".gpujobignore") == wanted


def test_line_ends_of_windows_and_a_byte_order_mark_mean_nothing(trees: tuple[Path, Path]) -> None:
    for root, name in zip(trees, (".gitignore", ".gpujobignore"), strict=True):
        for folder in ("a", "a/a b"):
            (root / folder / name).unlink(missing_ok=True)
        (root / name).write_bytes(b"\xef\xbb\xbfa.log\r\n/b\r\n")
    wanted = kept_by_git(trees[0])
    assert "a.log" not in wanted
    assert kept_by_us(trees[0], ".gitignore") == wanted
    assert kept_by_us(trees[1], ".gpujobignore") == wanted
