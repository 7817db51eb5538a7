"""The snippets of `write-checkpoints-that-survive` do what the page says: the plain one for real, the others with
stand-ins of their frameworks that record what they are given."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import interval
from orchestrator.agent.names import step_of, step_pattern
from orchestrator.cli.phases import saving_words

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "write-checkpoints-that-survive.md"
PLAIN, TRAINER, LIGHTNING = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def start(tmp_path: Path, **env: str) -> subprocess.Popen[str]:
    given = {**os.environ, "GPUJOB_CKPT": str(tmp_path / "ckpt"), "GPUJOB_RESUME_FROM": "", **env}
    return subprocess.Popen([sys.executable, "-c", PLAIN], env=given, stdout=subprocess.PIPE, text=True)


def test_the_plain_program_saves_whole_files_resumes_and_saves_on_sigterm(tmp_path: Path) -> None:
    with start(tmp_path, STEPS="100000000") as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("step=150 "):
                break
        child.send_signal(signal.SIGTERM)
        last = int(re.findall(r"step=(\d+)", child.stdout.read() or "step=150")[-1])
    assert child.returncode == 143
    names = sorted(path.name for path in (tmp_path / "ckpt").iterdir())
    assert not [name for name in names if step_of(name, step_pattern("")) is None]  # nothing temporary is left
    newest = tmp_path / "ckpt" / f"step_{last}.json"
    assert json.loads(newest.read_text())["step"] == last
    with start(tmp_path, STEPS=str(last + 3), GPUJOB_RESUME_FROM=str(newest)) as child:
        assert child.stdout is not None
        assert re.findall(r"step=(\d+)", child.stdout.read()) == [str(last + n) for n in (1, 2, 3)]


class Recorder:
    """Stands for a class of a framework."""

    made: list[tuple[str, dict[str, Any]]] = []  # noqa: RUF012  (emptied by every test)

    def __init__(self, *_: Any, **given: Any) -> None:
        Recorder.made.append((type(self).__name__, given))

    def train(self, **given: Any) -> None:
        Recorder.made.append(("train", given))

    def fit(self, *_: Any, **given: Any) -> None:
        Recorder.made.append(("fit", given))


def ran(code: str, modules: dict[str, Any], resume: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(Recorder, "made", [])
    monkeypatch.setenv("GPUJOB_CKPT", "/ckpt")
    monkeypatch.setenv("GPUJOB_RESUME_FROM", resume)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    before = signal.getsignal(signal.SIGTERM)
    space: dict[str, Any] = {"model": object(), "dataset": object()}
    try:
        exec(compile(code, str(PAGE), "exec"), space)
        return {"space": space, "handler": signal.getsignal(signal.SIGTERM), **dict(Recorder.made)}
    finally:
        signal.signal(signal.SIGTERM, before)


def kinds(*names: str) -> dict[str, type]:
    return {name: type(name, (Recorder,), {}) for name in names}


@pytest.mark.parametrize(("resume", "given"), [("", None), ("/resume/checkpoint-500", "/resume/checkpoint-500")])
def test_the_trainer_is_given_the_resume_point_and_saves_on_sigterm(
    resume: str, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kinds("Trainer", "TrainingArguments")
    module = SimpleNamespace(**made, TrainerCallback=object)
    found = ran(TRAINER, {"transformers": module}, resume, monkeypatch)
    assert found["train"] == {"resume_from_checkpoint": given}
    assert found["TrainingArguments"]["output_dir"] == "/ckpt"
    saver = found["Trainer"]["callbacks"][0]
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    assert not saver.on_step_end(None, None, control).should_save
    found["handler"](signal.SIGTERM, None)
    saver.on_step_end(None, None, control)
    assert (control.should_save, control.should_training_stop) == (True, True)


@pytest.mark.parametrize(
    ("resume", "given"), [("", None), ("/resume/epoch=1-step=5.ckpt", "/resume/epoch=1-step=5.ckpt")]
)
def test_lightning_is_given_the_resume_point_and_names_that_sort(
    resume: str, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {
        "lightning": SimpleNamespace(**kinds("Trainer")),
        "lightning.pytorch": SimpleNamespace(),
        "lightning.pytorch.callbacks": SimpleNamespace(**kinds("ModelCheckpoint")),
    }
    found = ran(LIGHTNING, modules, resume, monkeypatch)
    assert found["fit"] == {"ckpt_path": given}
    assert found["ModelCheckpoint"]["dirpath"] == "/ckpt"
    assert step_of("epoch=3-step=900.ckpt", step_pattern("")) == 900


def test_the_line_of_the_plan_is_the_one_that_is_printed() -> None:
    found = interval.saving(20.0, 0.2, 900.0)
    assert found is not None
    assert f"saving     {saving_words(found)}" in PAGE.read_text()
