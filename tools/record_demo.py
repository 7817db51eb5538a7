"""Run the demo and keep what it printed: docs/assets/demo.txt (all of it), demo.svg (the README's picture), and the
marked parts of docs/tour.md.

Nothing is made up: every line in picture and tour was printed by the run. Left out are long tables and most of the
training steps, each gap marked with the number of lines; this computer's paths are written as `~/gpujob` and `~/.demo`.
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
TOUR = ROOT / "docs" / "tour.md"
COLUMNS = 116
LOOKS = (("ps", "-a"), ("describe", "digits"), ("logs", "digits", "--previous", "--tail", "4"))
# part of the tour -> what its first and its last line start with
TOUR_PARTS = {
    "plan": ("local: ", "  not sent  run_demo.py"),
    "start": ("$ gpujob apply", "step=100/"),
    "reclaim": ("# The provider wants", "resumed "),
    "end": ("done: ", "  nothing is billing"),
    "ps": ("$ gpujob ps", "digits "),
    "describe": ("$ gpujob describe", "  python: "),
    "logs": ("$ gpujob logs", "asked to end"),
}
STEPS_KEPT = 2  # at both ends of a stretch of training output
# The plan's paragraphs that a reader of the README needs; the others are in demo.txt.
PLAN_KEPT = ("PROVIDER", "price cap", "ENDS THE MACHINE")
STEP = re.compile(r"step=\d+/\d+ loss|saved step_")
STYLES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^\$ "), "bold white"),
    (re.compile(r"^# "), "bold yellow"),
    (re.compile(r"^\d\d:\d\d:\d\d  "), "cyan"),
    (STEP, "grey62"),
    (re.compile(r"^ {2}\.\.\. "), "grey50"),
    (re.compile(r"^ {2}ok "), "green"),
    (re.compile(r"^(PROVIDER|ENDS THE|THE DEMO|digits: )"), "bold"),
    (re.compile(r"^  FAILED"), "bold red"),
)


def play(home: Path) -> str:
    """Run the demo, then look at its job; all output, without paths of this computer. Raises CalledProcessError."""
    text = run([str(ROOT / "examples/demo/run_demo.py"), "--home", str(home)], home)
    for words in LOOKS:
        text += f"\n$ gpujob {' '.join(words)}\n" + run(["-m", "orchestrator.cli.main", *words], home)
    return text.replace(str(home), "~/.demo").replace(str(ROOT), "~/gpujob").strip("\n") + "\n"


def run(words: list[str], home: Path) -> str:
    """What a Python program prints, both streams."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "GPUJOB_"))}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=kept | {"NO_COLOR": "1", "GPUJOB_HOME": str(home)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, done.args)
    return done.stdout


def shortened(transcript: str) -> Iterator[str]:
    """The lines of the picture."""
    demo, _, _ = transcript.partition("\n$ gpujob ps")
    plan, _, rest = demo.partition("\n$ gpujob apply")
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


def tour_part(transcript: str, first: str, last: str) -> str:
    """A stretch of the transcript as a block; ValueError where the run printed no such line."""
    lines = transcript.splitlines()
    start = line_from(lines, 0, first)
    end = line_from(lines, start + 1, last)
    block = "\n".join(without_most_steps(lines[start : end + 1])).rstrip("\n")
    return f"```console\n{block}\n```"


def line_from(lines: list[str], position: int, beginning: str) -> int:
    for i in range(position, len(lines)):
        if lines[i].startswith(beginning):
            return i
    raise ValueError(f"the run printed no line that starts with {beginning!r}")


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
    parser.add_argument("--redraw", action="store_true", help="from docs/assets/demo.txt as it is; run nothing")
    args = parser.parse_args()
    ASSETS.mkdir(parents=True, exist_ok=True)
    if not args.redraw:
        with tempfile.TemporaryDirectory(prefix="gpujob-record-") as home:
            (ASSETS / "demo.txt").write_text(play(Path(home)), encoding="utf-8")
    transcript = (ASSETS / "demo.txt").read_text(encoding="utf-8")
    (ASSETS / "demo.svg").write_text(drawn(list(shortened(transcript))), encoding="utf-8")
    tour = TOUR.read_text(encoding="utf-8")
    for name, (first, last) in TOUR_PARTS.items():
        begin, end = f"<!-- {name}: begin; recorded -->\n", f"<!-- {name}: end -->"
        before, _, rest = tour.partition(begin)
        _, _, behind = rest.partition(end)
        tour = f"{before}{begin}{tour_part(transcript, first, last)}\n{end}{behind}"
    TOUR.write_text(tour, encoding="utf-8")
    print("wrote docs/assets/demo.txt, demo.svg, and the recorded parts of docs/tour.md", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
