"""Write docs/reference and the marked parts of other pages from the code, or with --check say what it left behind.

A page is never edited by hand: its words are the descriptions, help texts and tables in the code, so that the
reference cannot disagree with what runs.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from doc_alarms import alarms_table
from doc_cli import cli_page, exit_codes_page
from doc_diagnosis import classes_table
from doc_environment import environment_page
from doc_spec import spec_page

from orchestrator.transitions import mermaid

DOCS = Path(__file__).resolve().parent.parent / "docs"
REFERENCE = DOCS / "reference"
NOTICE = "<!-- Made by `./dev docs` from the code; do not edit. -->\n\n"

PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "environment.md": environment_page,
    "exit-codes.md": exit_codes_page,
    "spec.md": spec_page,
}

PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "concepts/architecture.md": ("phases", lambda: f"```mermaid\n{mermaid()}\n```"),
    "concepts/health.md": ("alarms", alarms_table),
    "how-to/read-a-diagnosis.md": ("classes", classes_table),
}


def whole(make: Callable[[], str], old: str) -> str:
    """A generated page; what it was does not matter."""
    return NOTICE + make().rstrip("\n") + "\n"


def with_part(name: str, make: Callable[[], str], old: str) -> str:
    """`old` with the part between its two marks of that name made anew; a page without them is a ValueError."""
    begin, end = f"<!-- {name}: begin; made by `./dev docs` -->\n", f"<!-- {name}: end -->"
    before, first, rest = old.partition(begin)
    _, second, after = rest.partition(end)
    if not first or not second:
        raise ValueError(f"has no place marked for {name!r}")
    return f"{before}{begin}{make()}\n{end}{after}"


def wanted() -> Iterator[tuple[Path, Callable[[str], str]]]:
    """Every page, and what makes it from what it was."""
    for name, make in PAGES.items():
        yield REFERENCE / name, partial(whole, make)
    for name, (mark, make) in PARTS.items():
        yield DOCS / name, partial(with_part, mark, make)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is out of date")
    check = parser.parse_args().check
    stale = 0
    for path, make in wanted():
        name = path.relative_to(DOCS)
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        try:
            new = make(old)
        except ValueError as error:
            print(f"docs/{name}: {error}", file=sys.stderr)
            stale += 1
            continue
        if new == old:
            continue
        if check:
            stale += 1
            print(f"docs/{name} is out of date; run ./dev docs", file=sys.stderr)
            diff = difflib.unified_diff(old.splitlines(), new.splitlines(), "committed", "code", n=0, lineterm="")
            print("\n".join(list(diff)[:20]), file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(new, encoding="utf-8")
            print(f"wrote docs/{name}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
