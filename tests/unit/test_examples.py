"""Every example loads, is served by this version, names files that exist, and draws no advice."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest

from jobspecs.convert import convert
from jobspecs.files import check_files
from jobspecs.lint import warnings
from jobspecs.load import load_spec
from jobspecs.schema import JobSpec
from orchestrator.cli.commands import VERBS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPECS = sorted(EXAMPLES.glob("*/*.yaml"))
names = pytest.mark.parametrize("path", SPECS, ids=lambda path: path.relative_to(EXAMPLES).as_posix())


def load(path: Path) -> JobSpec:
    return load_spec(path.read_bytes(), str(path))


def test_the_promised_examples_are_there() -> None:
    assert {path.parent.name for path in SPECS} == {
        "batch",
        "configs",
        "demo",
        "four-lines",
        "live",
        "lora",
        "serve",
        "slurm",
        "sweep",
    }


@names
def test_spec_is_valid_served_and_free_of_advice(path: Path) -> None:
    spec = load(path)
    assert check_files(spec, path.parent) == []
    assert warnings(spec) == []


def test_no_two_examples_share_a_name() -> None:
    found = [load(path).name for path in SPECS]
    assert sorted(found) == sorted(set(found))


def test_every_folder_has_its_paragraph() -> None:
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {name for name in folders if f"**[{name}/]" in readme} == folders


def test_four_lines_are_four_lines() -> None:
    text = (EXAMPLES / "four-lines/gpujob.yaml").read_text(encoding="utf-8")
    assert [line.partition(":")[0] for line in text.splitlines()] == ["name", "gpu", "workdir", "run"]
    spec = load(EXAMPLES / "four-lines/gpujob.yaml")
    assert not spec.spot_allowed, "a job that cannot resume must not be rented as spot"
    assert spec.ttl.seconds == 12 * 3600


def test_jobs_that_save_can_resume_and_serve_jobs_have_ports() -> None:
    for path in SPECS:
        spec = load(path)
        assert spec.resumable == (spec.checkpoint is not None or spec.batch is not None), path
        assert (spec.workload == "serve") == bool(spec.ports), path


def test_demo_runs_only_here_and_on_spot() -> None:
    spec = load(EXAMPLES / "demo/demo.yaml")
    assert spec.providers == ("local",)
    assert spec.spot is True
    assert spec.budget is not None


def test_demo_counts_to_the_steps_that_its_program_makes() -> None:
    spec = load(EXAMPLES / "demo/demo.yaml")
    program = (EXAMPLES / "demo/train.py").read_text(encoding="utf-8")
    steps = re.search(r'"--steps", type=int, default=(\d+)', program)
    assert steps is not None
    assert spec.progress is not None
    assert spec.progress.total == int(steps.group(1))


def test_slurm_conversion_agrees_with_what_stands_beside_it() -> None:
    script = EXAMPLES / "slurm/train.sbatch"
    converted = load_spec(convert(script.read_text(encoding="utf-8"), filename=str(script)), "converted.yaml")
    ours = load(EXAMPLES / "slurm/gpujob.yaml")
    same = ("name", "cpus", "memory", "ttl", "workdir")
    assert {key: getattr(converted, key) for key in same} == {key: getattr(ours, key) for key in same}
    assert [(each.name, each.count) for each in converted.gpu.choices] == [("A100", 1)]
    assert [(each.name, each.count) for each in ours.gpu.choices] == [("A100", 1)]


def test_programs_parse_and_take_the_options_that_their_specs_give() -> None:
    for path in sorted(EXAMPLES.glob("*/*.py")):
        ast.parse(path.read_text(encoding="utf-8"), str(path))
    for path in SPECS:
        spec = load(path)
        script = re.search(r"(\w+\.py) ", spec.run)
        if script is None:
            continue
        source = (path.parent / str(spec.workdir) / script.group(1)).read_text(encoding="utf-8")
        used = set(re.findall(r"(--[a-z-]+)[ =]", spec.run[script.end() :]))
        assert used, path
        assert {option for option in used if f'"{option}"' not in source} == set(), path


def test_systemd_unit_runs_a_verb_that_exists() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(EXAMPLES / "systemd/gpujob.service", encoding="utf-8")
    program, verb, action = unit["Service"]["ExecStart"].split()
    assert program.endswith("/gpujob")
    assert verb in VERBS
    assert action == "run"
    assert unit["Service"]["Restart"] == "always"
    assert unit["Service"]["KillMode"] == "process", "the service's end must not kill `local` machines"
