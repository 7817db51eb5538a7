"""Run the demo and draw what it printed: docs/assets/demo.svg (the README's picture) and demo.txt (all of it).

Nothing is made up: every line in the picture was printed by the run. Left out are long tables and most of the training
steps, each gap marked with the number of lines; paths of this computer are written as `~/gpujob` and `~/.demo`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "docs" / "assets"
COLUMNS = 106
STEPS_KEPT = 2  # at both ends of a stretch of training output
# The plan's paragraphs that a reader of the README needs; the others are in demo.txt.
PLAN_KEPT = ("PROVIDER", "price cap", "ENDS THE MACHINE")
STEP = re.compile(r"step=\d+/\d+ loss|saved step_")
STYLES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^\$ "), "bold white"),
    (re.compile(r"^# "), "bold yellow"),
    (re.compile(r"^\d\d:\d\d:\d\d  "), "cyan"),
    (STEP, "grey62"),
    (re.compile(r"^ {2}(\.\.\.|ok )"), "green"),
    (re.compile(r"^(PROVIDER|ENDS THE|THE DEMO|digits: )"), "bold"),
    (re.compile(r"^  FAILED"), "bold red"),
)


def play(home: Path) -> str:
    """Run the demo; its output without paths of this computer. Raises CalledProcessError when it was not all true."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "GPUJOB_"))}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/demo/run_demo.py"), "--home", str(home)],
        cwd=ROOT, env=env | {"NO_COLOR": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, done.args)
    return done.stdout.replace(str(home), "~/.demo").replace(str(ROOT), "~/gpujob").strip("\n") + "\n"


def shortened(transcript: str) -> Iterator[str]:
    """The lines of the picture."""
    plan, _, rest = transcript.partition("\n$ gpujob apply")
    first, *paragraphs = plan.strip("\n").split("\n\n")
    yield first.splitlines()[0]
    left = first.count("\n")
    for paragraph in paragraphs:
        lines = paragraph.splitlines()
        start = next((i for i, line in enumerate(lines) if line.startswith(PLAN_KEPT)), None)
        if start is None:
            left += len(lines)
            continue
        if left + start:
            yield gap(left + start)
        yield from lines[start:]
        left = 0
    if left:
        yield gap(left)
    yield ""
    yield from without_most_steps(("$ gpujob apply" + rest).splitlines())


def without_most_steps(lines: list[str]) -> Iterator[str]:
    """A stretch of training output keeps its ends."""
    stretch: list[str] = []
    for line in [*lines, ""]:
        if STEP.match(line):
            stretch.append(line)
            continue
        if len(stretch) > 2 * STEPS_KEPT + 1:
            yield from stretch[:STEPS_KEPT]
            yield gap(len(stretch) - 2 * STEPS_KEPT)
            yield from stretch[-STEPS_KEPT:]
        else:
            yield from stretch
        stretch = []
        yield line


def gap(lines: int) -> str:
    return f"  ... {lines} lines"


def drawn(lines: list[str]) -> str:
    """The picture as SVG, without fonts from elsewhere."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        for line in lines:
            style = next((style for pattern, style in STYLES if pattern.search(line)), "")
            console.print(Text(line, style=style), no_wrap=True, overflow="ellipsis", crop=True)
        template = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
        return console.export_svg(title="./dev demo", code_format=template, unique_id="demo")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redraw", action="store_true", help="draw docs/assets/demo.txt again; run nothing")
    args = parser.parse_args()
    ASSETS.mkdir(parents=True, exist_ok=True)
    if not args.redraw:
        with tempfile.TemporaryDirectory(prefix="gpujob-record-") as home:
            (ASSETS / "demo.txt").write_text(play(Path(home)), encoding="utf-8")
    transcript = (ASSETS / "demo.txt").read_text(encoding="utf-8")
    (ASSETS / "demo.svg").write_text(drawn(list(shortened(transcript))), encoding="utf-8")
    print(f"wrote {ASSETS.relative_to(ROOT)}/demo.svg and demo.txt", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
