"""Warnings: each pattern fires on its case and not on the healthy one beside it."""

from __future__ import annotations

import pytest

from jobspecs.lint import warnings
from jobspecs.load import load_located, load_spec


def warned(lines: str, gpu: str = "4090") -> list[str]:
    spec = load_spec(f"name: a\ngpu: {gpu}\n{lines}\n", "job.yaml")
    return [f"{problem.key}: {problem.reason}" for problem in warnings(spec)]


@pytest.mark.parametrize(
    ("bad", "good", "said"),
    [
        (
            "run: t.py --save_strategy epoch $GPUJOB_RESUME_FROM",
            "run: t.py --save_strategy steps $GPUJOB_RESUME_FROM",
            "saves once an epoch",
        ),
        (
            "run: t.py --save_strategy epoch $GPUJOB_RESUME_FROM\nspot: true",
            "run: t.py --save_strategy epoch $GPUJOB_RESUME_FROM\nspot: false",
            "saves once an epoch",
        ),
        ("run: tmux new -s train python x", "run: tmux ls", "in the foreground"),
        (
            "run: x | tee log\nsetup: set +o pipefail; y | tee log",
            "run: set -o pipefail; x | tee log",
            "hides the exit",
        ),
        (
            "run: x\nsetup: pip install torch==2.4.0 -i https://mirrors.aliyun.example/simple",
            "run: x\nsetup: pip install numpy==2.0 -i https://mirrors.aliyun.example/simple",
            "CPU build",
        ),
        (
            "run: x\nsetup: pip install --index-url https://mirror.example/simple torch==2.4.0",
            "run: x\nsetup: pip install torch==2.4.0 --index-url https://download.pytorch.example/whl/cu121",
            "CPU build",
        ),
        ("run: x\nsetup: sh NVIDIA-Linux-x86_64-550.54.run", "run: sh install-Linux.run", "a driver"),
        ("run: API_KEY=abcdef0123456789 python x", "run: API_KEY=$API_KEY python x", "looks like a secret"),
        ("run: tmux new -d x", "run: echo tmux", "detaches itself"),
        ("run: nohup python x > log", "run: python nohup.py", "detaches itself"),
        ("run: python x &", "run: |\n  python x &\n  wait", "in the background"),
        ("run: python x 2>&1 | tee log &", "run: python x 2>&1 | tee log", "in the background"),
        ("run: t.py --out runs/$(date +%s)", "run: t.py --out $GPUJOB_OUT", "makes a name from the time"),
        ("run: x\nsetup: pip install torch", "run: x\nsetup: pip install torch==2.4.0", "version of torch"),
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


def test_data_parallel_matters_on_several_gpus_only() -> None:
    script = "run: python t.py --wrap nn.DataParallel $GPUJOB_NUM_GPUS"
    assert "twice as fast" in warned(script, "4090:4")[0]
    assert warned(script, "4090") == []
    assert warned("run: torchrun t.py --wrap DistributedDataParallel", "4090:4") == []


def test_a_warning_names_the_line_of_the_script_and_never_the_secret() -> None:
    token = "0123456789abcdef0123"
    text = (
        "name: a\ngpu: 4090\nsetup: |\n  # pip install torch\n  cd /tmp\n  pip install torch\n"
        f"run: |\n  export HF_TOKEN={token}\n\n  python train.py | tee log &\n"
    )
    located = load_located(text, "job.yaml")
    placed = sorted((each.line, each.key) for each in map(located.place, warnings(located.spec)))
    assert placed == [(6, "setup"), (8, "run"), (10, "run")]
    assert not [each for each in warnings(located.spec) if token in str(each)]
    inline = load_located("name: a\ngpu: 4090\nrun: nohup python x\n", "job.yaml")
    assert [inline.place(each).line for each in warnings(inline.spec)] == [3]
