"""docs/reference/environment.md, from tools/environment.toml, checked against the names in the code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_name("environment.toml")
PACKAGES = ("jobspecs", "orchestrator", "providers")
NAME = re.compile(r"\bGPUJOB_[A-Z][A-Z_]*[A-Z]\b(?!_)")

SECTIONS = {
    "user": "## Read by gpujob\n\nSet these for the `gpujob` command; the controller that it starts inherits them.",
    "also": "Standard variables that are honoured:",
    "job": "## Given to your job\n\nSet for `setup`, `smoke` and `run`, beside the spec's `env` and `secrets`. "
    "`PYTHONUNBUFFERED=1` is set unless you set it.",
    "internal": "## Set for gpujob's own use\n\nVisible to processes on a machine; leave them alone.",
}


def environment_page() -> str:
    """The page; raises ValueError when the table and the code name different variables."""
    table: Mapping[str, Mapping[str, str]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    _compare({name for section in table.values() for name in section}, set(_names_in_code()))
    parts = ["# Environment variables"]
    for section, introduction in SECTIONS.items():
        rows = [f"| `{name}` | {meaning} |" for name, meaning in sorted(table[section].items())]
        parts += [introduction, "\n".join(["| variable | meaning |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def _compare(described: set[str], used: set[str]) -> None:
    ours = {name for name in described if name.startswith("GPUJOB_")}
    problems = [f"{name} is in the code but not in {TABLE.name}" for name in sorted(used - ours)]
    problems += [f"{name} is in {TABLE.name} but nowhere in the code" for name in sorted(ours - used)]
    if problems:
        raise ValueError("; ".join(problems))


def _names_in_code() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield from NAME.findall(node.value)
