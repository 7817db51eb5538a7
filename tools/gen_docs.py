"""Write docs/reference from the code, or with --check say which page the code has left behind.

A page is never edited by hand: its words are the descriptions, help texts and tables in the code, so that the
reference cannot disagree with what runs.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

from doc_cli import cli_page, exit_codes_page
from doc_environment import environment_page
from doc_spec import spec_page

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
NOTICE = "<!-- Made by `./dev docs` from the code; do not edit. -->\n\n"

PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "environment.md": environment_page,
    "exit-codes.md": exit_codes_page,
    "spec.md": spec_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is out of date")
    check = parser.parse_args().check
    stale = 0
    for name, make in PAGES.items():
        path = REFERENCE / name
        try:
            new = NOTICE + make().rstrip("\n") + "\n"
        except ValueError as error:
            print(f"docs/reference/{name}: {error}", file=sys.stderr)
            stale += 1
            continue
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if new == old:
            continue
        if check:
            stale += 1
            print(f"docs/reference/{name} is out of date; run ./dev docs", file=sys.stderr)
            diff = difflib.unified_diff(old.splitlines(), new.splitlines(), "committed", "code", n=0, lineterm="")
            print("\n".join(list(diff)[:20]), file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(new, encoding="utf-8")
            print(f"wrote docs/reference/{name}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
