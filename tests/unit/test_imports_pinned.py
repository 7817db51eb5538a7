"""`gpujob --help` stays quick because it imports nearly nothing; this pins what it may not import.

Run in a process of its own, since this one has imported half of the world already. A module that the bare
interpreter loads by itself (a .pth file of some other package) is not held against us.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FORBIDDEN = {
    "asyncio",
    "boto3",
    "fabric",
    "importlib.metadata",
    "invoke",
    "keyring",
    "paramiko",
    "pathspec",
    "pydantic",
    "rich",
    "shtab",
    "sqlite3",
    "structlog",
    "tenacity",
    "yaml",
}

REPORT = """
import json, sys
before = set(sys.modules)
from orchestrator.cli.main import main
sys.argv[0] = "gpujob"
try:
    code = main()
except SystemExit as stop:
    code = stop.code
print(json.dumps({"code": code or 0, "modules": sorted(set(sys.modules) - before)}), file=sys.stderr)
"""


def run_and_list(*arguments: str) -> tuple[str, set[str]]:
    """Stdout of `gpujob ARGUMENTS` and the modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    report = json.loads(done.stderr.splitlines()[-1])
    assert report["code"] == 0
    return done.stdout, set(report["modules"])


@pytest.mark.parametrize("arguments", [("--help",), ("apply", "--help"), ("ps", "--help")])
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    out, modules = run_and_list(*arguments)
    assert out.lstrip().startswith("usage: gpujob")
    assert "orchestrator.cli.main" in modules
    assert modules & FORBIDDEN == set()
