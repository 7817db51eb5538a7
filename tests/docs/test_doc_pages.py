"""The documentation says what is: specs load, commands parse, links lead somewhere, recorded output was printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from jobspecs.lint import warnings
from jobspecs.load import load_spec
from orchestrator.cli import commands
from orchestrator.cli.exits import CliError
from orchestrator.transitions import mermaid
from providers.base import Provider, ProviderConfig

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
README_LINES = 200
PICTURE_BYTES = 200_000

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(text_of(page)) if found == language]


def specs() -> Iterator[tuple[str, str]]:
    """(where, text) of every block that is a whole spec."""
    for page in PAGES:
        for number, body in enumerate(blocks(page, "yaml"), start=1):
            if re.search(r"^name:", body, re.MULTILINE) and re.search(r"^run:", body, re.MULTILINE):
                yield f"{page.relative_to(ROOT)}#{number}", body


@pytest.mark.parametrize(("where", "text"), list(specs()), ids=[where for where, _ in specs()])
def test_every_spec_loads_and_is_served(where: str, text: str) -> None:
    spec = load_spec(text, where)
    assert warnings(spec) == []


def test_the_readme_shows_a_spec_of_four_lines() -> None:
    shortest = min((text for where, text in specs() if where.startswith("README.md")), key=len)
    assert len(shortest.splitlines()) == 4


def typed(page: Path) -> Iterator[str]:
    """Every command line that a page tells its reader to type, without the program's name."""
    text = text_of(page)
    for language, body in FENCE.findall(text):
        for line in body.replace("\\\n", " ").splitlines():
            prompt = line.removeprefix("$ ")
            is_command = line.startswith("$ ") if language == "console" else language in ("sh", "bash")
            if is_command and prompt.startswith("gpujob "):
                yield prompt.removeprefix("gpujob ")
    for code in INLINE.findall(FENCE.sub("", text).replace("\n", " ")):
        if code.startswith("gpujob ") and not re.search(r"VERB|[<\[]|\.\.\.|, ", code):
            yield code.removeprefix("gpujob ")


@pages
def test_every_command_exists_with_its_options(page: Path) -> None:
    for line in typed(page):
        check_command(line)


def check_command(line: str) -> None:
    """Raise AssertionError unless the command line parses; a mention of a bare verb needs no arguments."""
    verb, *rest = shlex.split(line, comments=True)
    if verb in commands.REDIRECTIONS:  # shown as what not to type
        return
    if verb.startswith("-"):
        assert verb in ("--help", "--version")
        return
    assert verb in commands.VERBS, f"gpujob {line}: there is no such verb"
    if "--help" in rest:
        return
    parser, command = commands.parser_of(verb)
    problem = ""
    try:
        if command.rest:
            parser.parse_args(rest)
        else:
            parser.parse_intermixed_args(rest)
    except CliError as error:
        problem = error.what
    bare = not rest and "required" in problem
    assert bare or not problem, f"gpujob {line}: {problem}"


def test_the_check_of_commands_can_fail() -> None:
    check_command("ps -a")
    for wrong in ("launch-it now", "ps --nonsense", "apply job.yaml --no-such-flag", "wait digits --for ever"):
        with pytest.raises(AssertionError):
            check_command(wrong)


def test_the_readme_and_tour_name_the_main_verbs() -> None:
    named = {line.split()[0] for name in ("README.md", "docs/tour.md") for line in typed(ROOT / name)}
    assert {"init", "plan", "apply", "ps", "describe", "logs", "ssh", "attach", "cancel", "extend", "resume"} <= named


def anchors(page: Path) -> set[str]:
    """Heading anchors as GitHub makes them."""
    found = set()
    for line in FENCE.sub("", text_of(page)).splitlines():
        heading = re.match(r"#+ +(.*)", line)
        if heading:
            words = re.sub(r"[`*]", "", heading[1]).strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


@pages
def test_every_internal_link_resolves(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", text_of(page))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / unquote(path)).resolve() if path else page
        assert there.exists(), f"{target} leads nowhere"
        assert there.is_relative_to(ROOT), f"{target} leads out of the repository"
        if anchor:
            assert unquote(anchor) in anchors(there), f"{target}: {there.name} has no such heading"


def test_every_page_is_reached_from_the_index() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md", ROOT / "docs/index.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        for target in LINK.findall(text_of(page)):
            there = (page.parent / target.partition("#")[0]).resolve()
            todo += sorted(there.glob("*.md")) if there.is_dir() else [there] if there.exists() else []
    assert {page.relative_to(ROOT).as_posix() for page in PAGES if page not in seen} == set()


@pages
def test_every_variable_that_is_named_is_in_the_reference(page: Path) -> None:
    known = set(re.findall(r"GPUJOB_[A-Z_]+", text_of(ROOT / "docs/reference/environment.md")))
    named = set(re.findall(r"\bGPUJOB_[A-Z]+(?:_[A-Z]+)*\b", text_of(page)))
    assert named - known - {"GPUJOB_PYTHON", "GPUJOB_TEST_WORKERS", "GPUJOB_PARAM", "GPUJOB_PARAMS"} == set()


def test_the_phase_diagram_is_the_code_s() -> None:
    assert blocks(ROOT / "docs/concepts/architecture.md", "mermaid") == [mermaid() + "\n"]


def test_what_the_tour_shows_was_printed() -> None:
    printed = set(text_of_asset("demo.txt").splitlines())
    recorded = re.findall(r"<!-- (\w+): begin; recorded -->\n```console\n(.*?)```\n<!-- \1: end -->",
                          text_of(ROOT / "docs/tour.md"), re.DOTALL)  # fmt: skip
    assert [name for name, _ in recorded] == ["plan", "start", "reclaim", "end", "ps", "describe", "logs"]
    for name, body in recorded:
        lines = [line for line in body.splitlines() if not re.fullmatch(r"  \.\.\. \d+ lines", line)]
        assert len(lines) >= 2, name
        assert [line for line in lines if line not in printed] == [], name


def text_of_asset(name: str) -> str:
    return (ROOT / "docs/assets" / name).read_text(encoding="utf-8")


def test_the_tour_s_spec_is_the_demo_s() -> None:
    """Same job; the example has more comments, and options that only a demo needs."""
    (block,) = blocks(ROOT / "docs/tour.md", "yaml")
    shown = load_spec(block, "tour")
    real = load_spec((ROOT / "examples/demo/demo.yaml").read_bytes(), "demo.yaml")
    differ = {key for key in type(real).model_fields if getattr(shown, key) != getattr(real, key)}
    assert differ <= {"setup", "run", "env", "expected"}


def test_the_picture_is_small_and_shows_the_run() -> None:
    svg = text_of_asset("demo.svg")
    assert len(svg.encode()) < PICTURE_BYTES
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg|https://www\.textualize\.io", "", svg)
    shown = re.sub(r"<[^>]+>", "", svg).replace("&#160;", " ")
    for words in ("$ gpujob apply -y --follow demo.yaml", "RECOVERING", "nothing is billing"):
        assert words in shown


def test_both_readmes_tell_the_same() -> None:
    english, chinese = ROOT / "README.md", ROOT / "README.zh-CN.md"
    assert len(text_of(english).splitlines()) < README_LINES
    assert [re.sub(r"\s+#.*", "", line) for line in typed(english)] == [
        re.sub(r"\s+#.*", "", line) for line in typed(chinese)
    ]
    assert [code_only(body) for body in blocks(english, "yaml")] == [
        code_only(body) for body in blocks(chinese, "yaml")
    ]

    def places(page: Path) -> list[str]:
        ours = [link for link in LINK.findall(text_of(page)) if not link.startswith(("#", "README"))]
        return sorted(set(ours))

    assert places(english) == places(chinese)
    headings = [len(re.findall(r"^## ", text_of(page), re.MULTILINE)) for page in (english, chinese)]
    rows = [len(re.findall(r"^\|", text_of(page), re.MULTILINE)) for page in (english, chinese)]
    assert headings[0] == headings[1]
    assert rows[0] == rows[1]


def code_only(body: str) -> list[str]:
    return [re.sub(r"\s+#.*", "", line) for line in body.splitlines()]


def runnable() -> Iterator[tuple[str, str, str]]:
    """(where, command, output) of the console blocks that stand behind `<!-- run -->`."""
    for page in PAGES:
        for body in re.findall(r"<!-- run -->\n```console\n(.*?)```", text_of(page), re.DOTALL):
            command, _, output = body.partition("\n")
            yield page.relative_to(ROOT).as_posix(), command.removeprefix("$ "), output


@pytest.mark.parametrize(
    ("where", "command", "output"), list(runnable()), ids=[command for _, command, _ in runnable()]
)
def test_marked_commands_print_what_is_shown(where: str, command: str, output: str, tmp_path: Path) -> None:
    program, *words = shlex.split(command)
    assert program == "gpujob", where
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli.main", *words], cwd=ROOT, text=True, timeout=60, check=False,
        env=os.environ | {"GPUJOB_HOME": str(tmp_path), "NO_COLOR": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.stdout == output, where


def test_some_commands_are_run() -> None:
    assert len(list(runnable())) >= 2


def test_the_provider_template_has_all_verbs_and_its_entry_point_reads(tmp_path: Path) -> None:
    page = ROOT / "docs/how-to/add-a-provider.md"
    template, suite = blocks(page, "python")
    space: dict[str, object] = {"__name__": "template"}
    exec(compile(template, str(page), "exec"), space)
    made = space["ExampleProvider"](ProviderConfig("docs", tmp_path, ()))  # type: ignore[operator]
    assert isinstance(made, Provider)
    compile(suite, str(page), "exec")
    (block,) = blocks(page, "toml")
    points = tomllib.loads(block)["project"]["entry-points"]["gpujob.providers"]
    assert points == {"example": "my_package.example:ExampleProvider"}
