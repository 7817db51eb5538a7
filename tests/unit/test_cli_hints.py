"""Every `gpujob ...` that a message tells its reader to type is understood by the real parser."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli import commands
from orchestrator.cli.exits import CliError

ROOT = Path(__file__).parents[2]
PLACES = ("orchestrator", "providers", "jobspecs")
#: Behind an unquoted command a sentence goes on with one of these.
PROSE = "shows|lists|names|and|saves|or|goes|checks|looks|starts|works|brings"
COMMAND = re.compile(
    r"`gpujob ([^`]+)`|(?:^|[\s(:;,])gpujob ((?:(?!gpujob|[;,()`>]|\.\s|\.$| (?:" + PROSE + r")\b).)+)"
)
STANDS = "X1"  # for what a message fills in
SKIPPED = ("VERB", "...", "JOB.sh", "…", f"secret {STANDS}")


def words_of(node: ast.AST) -> str | None:
    """The text of a string with a stand-in for each value; None for what is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(words_of(part) or STANDS for part in node.values)
    return None


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a module but its docstrings, joined ones whole."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        text = words_of(node) if id(node) not in docs | parts else None
        if text and "gpujob " in text:
            yield getattr(node, "lineno", 0), text


def hints() -> Iterator[tuple[str, str]]:
    """(file:line, what stands behind `gpujob`) of commands; words of prose begin with no verb."""
    for path in sorted(path for place in PLACES for path in (ROOT / place).rglob("*.py")):
        if "agent" in path.parts:
            continue
        for line, text in strings(path):
            for quoted, plain in COMMAND.findall(text):
                said = (quoted or plain).strip().rstrip(".:")
                first = said.split(" ")[0]
                known = first in commands.VERBS or first in commands.REDIRECTIONS
                if said and first != STANDS and not any(word in said for word in SKIPPED) and (quoted or known):
                    yield f"{path.relative_to(ROOT)}:{line}", said
    for path in sorted(place for place in ROOT.glob("orchestrator/**/*.yaml")):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for quoted, _ in COMMAND.findall(text):
                if quoted and not any(word in quoted for word in SKIPPED):
                    yield f"{path.relative_to(ROOT)}:{number}", quoted


def problem_of(line: str) -> str:
    """What the real parser says of a command line; empty when it takes it. A bare verb is a mention."""
    verb, *rest = shlex.split(re.sub(r"[\[\]]", "", line), comments=True)
    if verb.startswith("-"):
        return "" if verb in ("--help", "--version") else "no such option"
    if verb in commands.REDIRECTIONS:
        return "" if not rest else f"{verb} is no verb"
    if verb not in commands.VERBS:
        return f"{verb} is no verb"
    if not rest or "--help" in rest:
        return ""
    parser, command = commands.parser_of(verb)
    values = [re.sub(r"^TIME$", "2h", word) for word in rest]
    try:
        if command.rest:
            parser.parse_args(values)
        else:
            parser.parse_intermixed_args(values)
    except CliError as error:
        return error.what
    return ""


@pytest.mark.parametrize(("where", "line"), sorted(set(hints())), ids=lambda text: text)
def test_a_hint_can_be_typed(where: str, line: str) -> None:
    said = problem_of(line)
    alone = line.split()[1:] and "required" in said and line.startswith("apply --")  # apply ... of the same file
    assert not said or alone, f"{where}: gpujob {line}: {said}"


def test_the_check_can_fail() -> None:
    assert "unrecognized" in problem_of("ps --json")
    assert "unrecognized" in problem_of("plan x.yaml --gpu A100")
    assert problem_of("launch it") == "launch is no verb"
    assert len(set(hints())) > 80
