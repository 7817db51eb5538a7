"""Specs of other tools become specs that load, and nothing disappears without a word."""

from __future__ import annotations

import pytest

from jobspecs.convert import TEMPLATE, convert, detect
from jobspecs.load import load_spec
from jobspecs.problems import SpecErrors
from jobspecs.schema import JobSpec
from jobspecs.units import Duration, Size

SKY = """\
name: Train LLM
resources:
  accelerators: {A100: 4}
  use_spot: true
  cpus: 8+
  memory: 32+
  disk_size: 256
  image_id: docker:pytorch/pytorch:2.4
  any_thing: 3
num_nodes: 2
workdir: .
file_mounts:
  /data: s3://bucket/x
  ~/cache: {source: s3://bucket, mode: MOUNT}
envs: {HF_TOKEN: , LR: 1e-4, "QUOTED": "a b: c", KEY: sk-abcdefghijklmnopqrstuvwxyz}
setup: pip install -r requirements.txt
run: |
    python train.py
      --indented
"""
DSTACK = """\
type: task
name: t
python: "3.11"
env: [HF_TOKEN, A=1]
commands:
  - pip install x
  - python a.py --b
resources: {gpu: "24GB..80GB:2", cpu: 8.., memory: 32GB.., disk: 200GB.., shm_size: 16GB}
spot_policy: on-demand
backends: [runpod, vastai]
max_duration: 2h
retry: {on_events: [no-capacity]}
max_price: 2.0
"""
SBATCH = """\
#!/bin/bash
#SBATCH --job-name=my_job
#SBATCH -t 1-02:30:00
#SBATCH --gres=gpu:a100:2
#SBATCH -c 8
#SBATCH --mem=64G   # plenty
#SBATCH --output=%j.out
#SBATCH --array=0-9
#SBATCH --mail-type=END
module load cuda
srun python train.py $SLURM_JOB_ID
"""


def converted(text: str) -> tuple[JobSpec, list[str]]:
    result = convert(text)
    return load_spec(result, "out.yaml"), [line for line in result.splitlines() if line.startswith("#")]


def test_skypilot() -> None:
    spec, notes = converted(SKY)
    assert spec.name == "Train-LLM"
    assert str(spec.gpu) == "A100:4"
    assert str(spec.cpus) == "8.."
    assert str(spec.memory) == "32GB.."
    assert spec.disk is not None
    assert spec.disk.data == Size(256 * 10**9)
    assert spec.image == "pytorch/pytorch:2.4"
    assert [(entry.source, entry.path) for entry in spec.data] == [("s3://bucket/x", "/data")]
    assert spec.env == {"LR": "1e-4", "QUOTED": "a b: c"}
    assert spec.secrets == ("HF_TOKEN", "KEY")
    assert spec.run == "python train.py\n  --indented\n"
    said = "\n".join(notes)
    for gone in ("num_nodes", "any_thing", "~/cache", "spot"):
        assert f"not carried over: {gone}" in said.replace("file_mounts ", "")
    assert "sk-abc" not in convert(SKY)


def test_dstack() -> None:
    spec, notes = converted(DSTACK)
    assert str(spec.gpu) == "24GB..80GB:2"
    assert (str(spec.cpus), str(spec.memory)) == ("8..", "32GB..")
    assert spec.providers == ("runpod", "vast")
    assert spec.spot is False
    assert spec.ttl == Duration(7200)
    assert str(spec.max_price) == "2.00 USD"
    assert spec.run == "pip install x\npython a.py --b\n"
    assert (spec.env, spec.secrets) == ({"A": "1"}, ("HF_TOKEN",))
    assert any("python: '3.11'" in note for note in notes)
    assert any("retry" in note for note in notes)


def test_sbatch() -> None:
    spec, notes = converted(SBATCH)
    assert (spec.name, str(spec.gpu), str(spec.cpus)) == ("my_job", "A100:2", "8..")
    assert spec.ttl == Duration(26 * 3600 + 1800)
    assert spec.memory is not None
    assert spec.memory.low == 64 * 2**30, "Slurm counts in powers of two"
    assert spec.run == "module load cuda\nsrun python train.py $SLURM_JOB_ID\n"
    said = "\n".join(notes)
    for word in ("array: '0-9'", "mail-type: 'END'", "--output", "srun", "SLURM_ variables"):
        assert word in said


@pytest.mark.parametrize(
    ("line", "ttl"),
    [("30", 1800), ("30:00", 1800), ("2:00:00", 7200), ("1-00", 86_400), ("1-12:30", 131_400), ("2-00:00:00", 172_800)],
)
def test_times_of_slurm(line: str, ttl: int) -> None:
    assert converted(f"#SBATCH --time={line}\nx\n")[0].ttl == Duration(ttl)


@pytest.mark.parametrize(
    ("line", "gpu"),
    [("--gres=gpu:2", "16GB..:2"), ("--gres=gpu:v100:1", "V100"), ("--gpus 4", "16GB..:4"), ("-G h100:8", "H100:8"),
     ("--gres=gpu", "16GB.."), ("--gres=gpu:nonesuch:2", "16GB.."), ("--mem=8G", "none")],
)  # fmt: skip
def test_gpus_of_slurm(line: str, gpu: str) -> None:
    assert str(converted(f"#SBATCH {line}\nx\n")[0].gpu) == gpu


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (SKY, "skypilot"),
        (DSTACK, "dstack"),
        (SBATCH, "sbatch"),
        ("run: x\n", "skypilot"),
        ("type: service\n", "dstack"),
    ],
)
def test_kinds_are_recognised(text: str, kind: str) -> None:
    assert detect(text) == kind


@pytest.mark.parametrize(
    "text",
    ["a: 1\n", "", "- a\n", "resources: {}\n", "type: task\n", "\x00", "run: [\n", "name: a\ngpu: RTX-4090\nrun: x\n"],
)
def test_what_is_no_spec_of_another_tool_is_refused(text: str) -> None:
    with pytest.raises(SpecErrors):
        convert(text)


def test_a_value_that_would_not_load_becomes_a_comment() -> None:
    spec, notes = converted("resources: {accelerators: tpu-v3-8, memory: lots}\nrun: x\n")
    assert str(spec.gpu) == "16GB.."
    assert spec.memory is None
    assert any("tpu-v3-8" in note for note in notes)
    assert any("lots" in note for note in notes)


def test_a_variable_to_be_given_stays_one() -> None:
    text = convert("envs: {WANDB_PROJECT: }\nrun: x\n")
    with pytest.raises(SpecErrors, match="WANDB_PROJECT"):
        load_spec(text, "out.yaml")
    assert load_spec(text, "out.yaml", environ={"WANDB_PROJECT": "p"}).env == {"WANDB_PROJECT": "p"}


def test_commands_with_odd_lines_survive() -> None:
    command = "  first is indented\n\n# comment\n\tx: y # z\n'quoted\" \\\n"
    text = "envs: {A: 1}\nrun: |2\n" + "".join(
        f"  {line}\n" if line else "\n" for line in command.rstrip("\n").split("\n")
    )
    assert converted(text)[0].run == command


def test_the_template_loads_and_is_the_four_line_spec() -> None:
    spec = load_spec(TEMPLATE, "gpujob.yaml")
    assert (spec.name, str(spec.gpu), spec.workdir) == ("my-job", "RTX-4090", ".")
    assert spec.model_fields_set == {"name", "gpu", "workdir", "run"}


def test_the_commented_part_of_the_template_loads_too() -> None:
    lines = TEMPLATE.split("# What else is often said:\n")[1].splitlines()
    text = "name: a\ngpu: none\nrun: x\nworkdir: .\n" + "\n".join(line.removeprefix("# ") for line in lines) + "\n"
    spec = load_spec(text, "gpujob.yaml")
    assert {
        "setup",
        "max_price",
        "budget",
        "ttl",
        "secrets",
        "data",
        "checkpoint",
        "artifacts",
    } <= spec.model_fields_set
