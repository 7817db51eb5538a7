"""Warnings: each pattern fires on its case and not on the healthy one beside it."""

from __future__ import annotations

import pytest

from jobspecs.lint import warnings
from jobspecs.load import load_located, load_spec
from jobspecs.schema import from_document


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
            "run: x\nalarms: {machine_slow: {relaunch: true}}",
            "run: x $GPUJOB_RESUME_FROM\nalarms: {machine_slow: {relaunch: true}}",
            "alarms.machine_slow.relaunch: begins anew",
        ),
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


INSTALLS = "installs a driver"
NEWEST = "version of torch is newest"
AWAY = "detaches itself"


def said_of(script: str, key: str, gpu: str = "4090") -> list[str]:
    """What is said of one script, whatever is in it."""
    other = {"run": "python a.py"} if key == "setup" else {}
    spec = from_document({"name": "a", "gpu": gpu, "spot": False, **other, key: script})
    return [problem.reason for problem in warnings(spec)]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("apt-get update && apt-get install -y --no-install-recommends nvidia-driver-535", INSTALLS),
        ("sudo -E dnf install -y cuda-drivers", INSTALLS),
        ("yum install -y nvidia-driver-latest-dkms", INSTALLS),
        ("apt install -y cuda", INSTALLS),
        ("apt install -y cuda-12-4 git", INSTALLS),
        ("sh cuda_12.4.0_550.54.14_linux.run --silent", INSTALLS),
        ("uv pip install torch torchvision --index-url https://x.example/cu121", NEWEST),
        ("pip install 'torch>=2.0'", NEWEST),
        ("pip install numpy==1.26 torch", NEWEST),
        ("pip install \\\n  torch \\\n  numpy==1.26", NEWEST),
        ("conda install -y pytorch torchvision pytorch-cuda=12.1 -c pytorch", NEWEST),
        ("export PIP_INDEX_URL=https://mirrors.aliyun.example/simple\npip install torch==2.4.0", "CPU build"),
        ("pip config set global.index-url https://x.tuna.example/simple\npip install torch==2.4.0", "CPU build"),
    ],
)
def test_what_is_said_of_a_setup(script: str, said: str) -> None:
    [reason] = said_of(script, "setup")
    assert said in reason


@pytest.mark.parametrize(
    "script",
    [
        "apt-get install -y cuda-toolkit-12-4",
        "sh cuda_12.4.0_550.54.14_linux.run --silent --toolkit",
        "echo 'no need to apt install nvidia-driver here'",
        "pip install 'torch~=2.4.0'",
        "pip install torch==2.4.0+cu121 -f https://x.example/whl",
        "pip install torchmetrics==1.2",
        "pip install -e .[train]",
        "python -m pip install --upgrade pip setuptools wheel",
        "conda install -y pytorch==2.4.0 pytorch-cuda=12.1 -c pytorch",
        "conda install -y numpy=1.26 -c pytorch",
        "poetry install --no-root",
        "export PIP_INDEX_URL=https://mirrors.aliyun.example/simple\n"
        "pip install torch==2.4.0 --index-url https://x.example/cu121",
    ],
)
def test_what_only_looks_so_in_a_setup(script: str) -> None:
    assert said_of(script, "setup") == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("tmux new -s train -d 'python a.py'", AWAY),
        ("nohup python a.py > log 2>&1 &", AWAY),
        ("bash -c 'python a.py | tee log'", "a shell of its own"),
        ('sh -c "python a.py 2>&1 | tee log.txt"', "a shell of its own"),
        ("python a.py &\nsleep 5\n", "in the background"),
        ("python a.py && shutdown -h now", "shuts the machine down"),
        ("python a.py; sudo poweroff", "shuts the machine down"),
        ("python a.py || /usr/bin/shutdown", "shuts the machine down"),
        ("rm -rf ${GPUJOB_CKPT}/*; python a.py", "removes what an earlier attempt saved"),
        ("python a.py || true", "hides the exit code"),
        ("python a.py --token abcdef0123456789abcdef", "looks like a secret"),
        ("curl -H 'Authorization: Bearer abcdef0123456789abcdef' x; python a.py", "looks like a secret"),
    ],
)
def test_what_is_said_of_a_run(script: str, said: str) -> None:
    [reason] = said_of(script, "run")
    assert said in reason


@pytest.mark.parametrize(
    "script",
    [
        "tmux kill-server; python a.py",
        "python a.py 2>&1 | tee log",
        "bash -o pipefail -c 'python a.py | tee log'",
        "python a.py &\nwait $!",
        "tensorboard --logdir x &\npython a.py",
        "python a.py  # nohup python a.py &",
        "ls /homework/x && python a.py",
        "python a.py --shutdown-workers",
        "python shutdown.py",
        "rm -f stale || true\npython a.py",
        "rm -rf $TMPDIR/x; python a.py",
        "CUDA_VISIBLE_DEVICES=0 python a.py",
        "python a.py --token $HF_TOKEN",
        "python a.py --tokenizer bert-base-uncased-model --max_tokens=1000000000000",
        "TOKENIZERS_PARALLELISM=false python a.py",
    ],
)
def test_what_only_looks_so_in_a_run(script: str) -> None:
    assert said_of(script, "run") == []


@pytest.mark.parametrize(
    "run",
    [
        "python fit.py --trainer.devices 4 --trainer.strategy ddp",
        "ray start --head && python a.py",
        "python -m sglang.launch_server --tp 4",
        "vllm serve m --tensor-parallel-size 4",
        "CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun a.py",
    ],
)
def test_other_ways_to_use_several_cards(run: str) -> None:
    assert said_of(run, "run", "4090:4") == []


def test_one_visible_card_of_several_is_said() -> None:
    [reason] = said_of("CUDA_VISIBLE_DEVICES=0 torchrun --nproc_per_node=4 a.py", "run", "4090:4")
    assert "one card of several" in reason


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


@pytest.mark.parametrize(
    ("run", "cpus", "said"),
    [
        ("python t.py --num_workers 16", "cpus: 8", True),
        ("python t.py --data.num-workers=16", "cpus: 8", True),
        ("python t.py --dataloader_num_workers 16", "cpus: 8..32", True),
        ("python t.py --num_workers 8", "cpus: 8", False),
        ("python t.py --num_workers 16", "ttl: 2h", False),
        ("python t.py --num_workers $GPUJOB_CPUS", "cpus: 2", False),
    ],
)
def test_more_data_workers_than_cores_are_said(run: str, cpus: str, said: bool) -> None:
    assert [line.startswith("cpus: are fewer than the 16") for line in warned(f"run: {run}\n{cpus}")] == [True] * said
