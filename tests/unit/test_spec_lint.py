"""Warnings: each pattern fires on its case and not on the healthy one beside it."""

from __future__ import annotations

import pytest

from jobspecs.lint import warnings
from jobspecs.load import load_spec


def warned(lines: str, gpu: str = "4090") -> list[str]:
    spec = load_spec(f"name: a\ngpu: {gpu}\n{lines}\n", "job.yaml")
    return [f"{problem.key}: {problem.reason}" for problem in warnings(spec)]


@pytest.mark.parametrize(
    ("bad", "good", "said"),
    [
        ("run: t.py --save_strategy epoch", "run: t.py --save_strategy steps", "saves once an epoch"),
        ("run: tmux new -d x", "run: echo tmux", "detaches itself"),
        ("run: nohup python x > log", "run: python nohup.py", "detaches itself"),
        ("run: python x &", "run: |\n  python x &\n  wait", "in the background"),
        ("run: python x 2>&1 | tee log &", "run: python x 2>&1 | tee log", "in the background"),
        ("run: t.py --out runs/$(date +%s)", "run: t.py --out $GPUJOB_OUT", "makes a name from the time"),
        ("run: x\nsetup: pip install torch", "run: x\nsetup: pip install torch==2.4.0", "whatever version"),
        ("run: x\nsetup: pip install -U numpy", "run: x\nsetup: pip install -r requirements.txt", "whatever version"),
        ("run: x\nsetup: apt-get install -y nvidia-driver-550", "run: x\nsetup: apt-get install -y git", "a driver"),
        ("run: cat /home/me/data", "run: cat $GPUJOB_DATA/data", "your own computer"),
        ("run: |\n  nohup x", "run: |\n  # nohup x\n  y", "detaches itself"),
        ("run: x\ncheckpoint: {every: 5m}", "run: x $GPUJOB_RESUME_FROM\ncheckpoint: {every: 5m}", "nothing resumes"),
        (
            "run: x $GPUJOB_RESUME_FROM\nspot: true\nhold_on_failure: 5m",
            "run: x\nhold_on_failure: 5m",
            "on a spot machine",
        ),
    ],
)
def test_a_pattern_and_its_healthy_twin(bad: str, good: str, said: str) -> None:
    assert [line for line in warned(bad) if said in line], warned(bad)
    assert warned(good) == []


def test_several_gpus_need_a_launcher() -> None:
    assert "one process" in warned("run: python train.py", "4090:2")[0]
    assert warned("run: torchrun --nproc_per_node=2 train.py", "4090:2") == []
    assert warned("run: python train.py", "4090") == []
