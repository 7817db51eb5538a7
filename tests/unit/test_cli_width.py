"""What people read fits their terminal: folding, the doors that all output takes, and words for numbers."""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path

import pytest

from orchestrator.cli import output
from orchestrator.cli.main import usage
from orchestrator.cli.output import WIDTH, counted, fold, table, width_of

ROOT = Path(__file__).parents[2]
CLI = sorted((ROOT / "orchestrator/cli").glob("*.py"))


def test_a_long_sentence_goes_on_under_where_its_text_began() -> None:
    lines = list(fold("  why       " + "word " * 30, 60))
    assert all(width_of(line) <= 60 for line in lines)
    assert len(lines) == 4
    assert all(line.startswith(" " * 12 + "word") for line in lines[1:])


def test_short_lines_and_long_words_stay_whole() -> None:
    assert list(fold("  results   /a/b", 60)) == ["  results   /a/b"]
    path = "/home/" + "x" * 80
    assert list(fold(f"  results   {path} (not there yet)", 60))[:1] == [f"  results   {path}"]


def test_a_command_is_not_broken_where_it_fits() -> None:
    lines = list(fold("nothing is billing; mend it, then `gpujob apply --again`", 50))
    assert lines == ["nothing is billing; mend it, then", "  `gpujob apply --again`"]


def test_wide_characters_and_colours_are_counted_as_they_are_seen() -> None:
    assert width_of("\x1b[32mDONE\x1b[0m") == 4
    assert all(width_of(line) <= 20 for line in fold("任务 已经 完成 了 现在 没有 任何 机器 计费", 20))


def test_the_help_fits() -> None:
    assert [line for line in usage().splitlines() if width_of(line) > WIDTH] == []


@pytest.mark.parametrize(("wide", "most"), [(80, 80), (200, WIDTH), (20, output.NARROWEST)])
def test_a_terminal_decides_how_wide_lines_are(
    wide: int, most: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1)
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((wide, 24)))
    output.put("label     " + "word " * 60)
    output.put(table(("A", "B", "C"), [("a" * 70, "b" * 70, "c" * 70)]))
    shown = capsys.readouterr().out.splitlines()
    assert max(map(width_of, shown)) <= most
    assert len(shown) > 3


def test_a_pipe_gets_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    output.put("word " * 60)
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("module", [path for path in CLI if path.name != "output.py"], ids=lambda path: path.stem)
def test_what_is_for_people_goes_through_one_door(module: Path) -> None:
    """`put` and `say` fold; a bare print does not, and the two lines before a program's own start are no sentence."""
    calls = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]
    prints = [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"]
    allowed = 1 if module.name == "main.py" else 0  # --version
    assert len(prints) <= allowed, prints


def test_numbers_have_their_words() -> None:
    assert [counted(n, "file") for n in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
    assert counted(1.0, "step") == "1 step"
    assert counted(2, "piece of advice", "pieces of advice") == "2 pieces of advice"


def test_no_verb_counts_things_by_hand() -> None:
    nouns = "files|offers|legs|machines|packages|devices|cores|items|runs|slices|replicas"
    by_hand = re.compile(
        r"\{(?:len\([^{}]*\)|[a-z_.]*(?:count|files|items|tasks|legs)(?:\[[^\]]*\])?)\} (" + nouns + r")\b"
    )
    found = {path.name: by_hand.findall(path.read_text()) for path in CLI}
    assert {name: words for name, words in found.items() if words} == {}
