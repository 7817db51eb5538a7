"""Half-written checkpoints of every known format are incomplete; whole ones are complete; numbers sort as numbers."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_formats import FILES, FOLDERS, deepspeed, distributed, orbax, put, safetensors, torch_zip, trainer
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import lineage
from orchestrator.agent import checkpoints, layout, names
from orchestrator.agent.checkpoints import CheckpointScan
from orchestrator.agent.formats import flaw_of
from orchestrator.agent.names import marked, step_of, step_pattern


@pytest.fixture(autouse=True)
def control(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CONTROL", str(tmp_path_factory.mktemp("control")))


# --- one file ---


@pytest.mark.parametrize("name", FILES)
def test_every_proper_prefix_of_a_file_is_incomplete(name: str, tmp_path: Path) -> None:
    data, path = FILES[name](), tmp_path / name
    path.write_bytes(data)
    assert flaw_of(str(path)) == ""
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert flaw_of(str(path)), f"{name} cut to {size} of {len(data)} bytes"


def test_bytes_after_the_last_tensor_are_damage_too(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors() + b"x")
    assert flaw_of(str(path)).startswith("it has ")


def test_what_a_pickle_names_is_never_called(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(ran),))

    folder = put(tmp_path / "step_1", distributed())
    (folder / ".metadata").write_bytes(pickle.dumps({"storage_data": Evil()}) + b"__0_0.distcp")
    flaw_of(str(folder))
    path = tmp_path / "global_step1"
    put(path, deepspeed())
    (path / "mp_rank_00_model_states.pt").write_bytes(torch_zip({"dp_world_size": Evil()}))
    flaw_of(str(path))
    assert not ran.exists()


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "step_1.pt")
    assert flaw_of(str(tmp_path / "step_1.pt")) == "it is no file"


@given(st.binary(max_size=300), st.sampled_from([*FILES, "x.json", ".metadata", "manifest.ocdbt"]))
@settings(max_examples=150, deadline=None)
def test_noise_never_raises(tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str) -> None:
    folder = tmp_path_factory.mktemp("noise")
    (folder / name).write_bytes(data)
    assert isinstance(flaw_of(str(folder / name)), str)
    assert isinstance(flaw_of(str(folder)), str)


# --- folders ---


@pytest.mark.parametrize("name", FOLDERS)
def test_a_whole_folder_is_complete(name: str, tmp_path: Path) -> None:
    assert flaw_of(str(put(tmp_path / name, FOLDERS[name]()))) == ""


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_with_a_cut_file_is_incomplete(name: str, tmp_path: Path) -> None:
    """Data files of Orbax say nothing of their own length: its folder appears by rename."""
    files = FOLDERS[name]()
    folder = put(tmp_path / name, files)
    for each, data in files.items():
        if "/d/" in each or each.endswith("_sharding"):
            continue
        for size in (0, 1, len(data) // 2, len(data) - 1):
            (folder / each).write_bytes(data[:size])
            assert flaw_of(str(folder)), f"{each} cut to {size} of {len(data)} bytes"
        (folder / each).write_bytes(data)
    assert flaw_of(str(folder)) == ""


#: What a format alone cannot miss; an earlier sibling does (below).
OPTIONAL = {
    "checkpoint-500": {"config.json", "training_args.bin", "optimizer.pt", "rng_state.pth"},
    "checkpoint-501": {"config.json", "training_args.bin", "optimizer.pt", "rng_state.pth"},
    "global_step100": set(),
    "global_step101": set(),
    "step_100": set(),
    "100": {"_CHECKPOINT_METADATA", "default/_sharding", "default/ocdbt.process_0/manifest.ocdbt"},
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_lacks_a_file_of_its_format_is_incomplete(name: str, tmp_path: Path) -> None:
    files = FOLDERS[name]()
    folder = put(tmp_path / name, files)
    for each, data in files.items():
        if each in OPTIONAL[name] or "/d/" in each:
            continue
        (folder / each).unlink()
        assert flaw_of(str(folder)), f"without {each}"
        (folder / each).write_bytes(data)


def test_the_reasons_name_what_is_missing(tmp_path: Path) -> None:
    hugging = put(tmp_path / "checkpoint-300", trainer(shards=2))
    (hugging / "model-00002-of-00002.safetensors").unlink()
    assert flaw_of(str(hugging)) == (
        "it lacks model-00002-of-00002.safetensors, which model.safetensors.index.json names"
    )
    (hugging / "model.safetensors.index.json").unlink()
    assert flaw_of(str(hugging)) == "it has 1 of 2 model.safetensors"
    ranks = put(tmp_path / "global_step7", deepspeed(ranks=8, stage=2))
    (ranks / "bf16_zero_pp_rank_7_mp_rank_00_optim_states.pt").unlink()
    assert flaw_of(str(ranks)) == "it has 7 of 8 ranks of bf16_zero_pp_rank_#_mp_rank_#_optim_states.pt"
    shards = put(tmp_path / "step_9", distributed())
    (shards / "__1_0.distcp").write_bytes(b"\3" * 79)
    assert flaw_of(str(shards)) == "__1_0.distcp has 79 of 80 bytes"
    step = put(tmp_path / "12", orbax())
    (step / "_CHECKPOINT_METADATA").write_text('{"init_timestamp_nsecs": 1, "commit_timestamp_nsecs": null}')
    assert flaw_of(str(step)) == "Orbax has not committed it"


def test_folders_of_others_under_the_trainers_name_are_whole(tmp_path: Path) -> None:
    accelerate = {
        "model.safetensors": safetensors(),
        "optimizer.bin": torch_zip(),
        "random_states_0.pkl": b"\x80\x04N.",
    }
    adapter = {"adapter_model.safetensors": safetensors(), "adapter_config.json": b"{}"}
    for step, files in ((1, accelerate), (2, adapter)):
        assert flaw_of(str(put(tmp_path / f"checkpoint-{step}", files))) == ""


@pytest.mark.parametrize("inner", ["state.orbax-checkpoint-tmp-17", "weights.part", ".metadata.tmp"])
def test_a_folder_with_a_temporary_name_in_it_is_incomplete(inner: str, tmp_path: Path) -> None:
    folder = put(tmp_path / "step_1", {"weights.bin": b"w"})
    (folder / inner).mkdir()
    put(folder / inner, {"a": b"a"})
    assert "is still being written" in flaw_of(str(folder))


# --- the scan ---


class FakeRun:
    """As much of a run as a scan looks at."""

    key = "t0.2"

    def __init__(self, folder: Path, pattern: str = "", resume: Path | None = None) -> None:
        self.order: dict[str, Any] = {"checkpoint": {"path": "", "pattern": pattern}}
        self.places = {"ckpt": str(folder)}
        if resume is not None:
            self.places["resume"], self.order["resume_from"] = str(resume.parent), resume.name

    def folders(self) -> dict[str, str]:
        return self.places

    def pids(self) -> dict[int, int]:
        return {}


@pytest.fixture
def scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, dict[str, Any]]]:
    """Two looks, far enough apart that everything has settled: name -> what is said of it."""
    now = itertools.count(100.0, 3.0)
    monkeypatch.setattr(checkpoints, "uptime", lambda: next(now))

    def looked(of: CheckpointScan | None = None, dead: bool = False, **more: Any) -> dict[str, dict[str, Any]]:
        made = of or CheckpointScan(FakeRun(tmp_path / "ckpt", **more))  # type: ignore[arg-type]
        made.look(dead)
        return {item["name"]: item for item in made.look(dead)}

    return looked


def ckpt(tmp_path: Path) -> Path:
    (tmp_path / "ckpt").mkdir(exist_ok=True)
    return tmp_path / "ckpt"


@pytest.mark.parametrize("dead", [False, True])
def test_the_newest_folder_that_lacks_what_an_earlier_one_has_is_incomplete(
    dead: bool, tmp_path: Path, scan: Callable[..., Any]
) -> None:
    folder = ckpt(tmp_path)
    put(folder / "checkpoint-200", trainer())
    for each in trainer():
        newest = put(folder / "checkpoint-1000", trainer())
        (newest / each).unlink()
        seen = scan(dead=dead)
        assert seen["checkpoint-200"]["complete"]
        assert not seen["checkpoint-1000"]["complete"], each
        assert seen["checkpoint-1000"]["why"]
    put(folder / "checkpoint-1000", trainer())
    assert scan(dead=dead)["checkpoint-1000"]["complete"]


def test_a_layout_that_changed_on_purpose_costs_one_checkpoint(tmp_path: Path, scan: Callable[..., Any]) -> None:
    folder = ckpt(tmp_path)
    put(folder / "step_1", {"a.bin": b"a", "b.bin": b"b"})
    put(folder / "step_2", {"a.bin": b"a"})
    made = CheckpointScan(FakeRun(folder))  # type: ignore[arg-type]
    assert {n: i["complete"] for n, i in scan(made).items()} == {"step_1": True, "step_2": False}
    put(folder / "step_3", {"a.bin": b"a"})
    assert {n: i["complete"] for n, i in scan(made).items()} == {"step_1": True, "step_2": True, "step_3": True}


def test_the_first_of_a_run_is_compared_with_what_it_resumed_from(tmp_path: Path, scan: Callable[..., Any]) -> None:
    old = put(tmp_path / "resume" / "checkpoint-500", trainer())
    files = trainer()
    del files["rng_state.pth"]
    put(ckpt(tmp_path) / "checkpoint-600", files)
    seen = scan(resume=old)["checkpoint-600"]
    assert seen["why"] == "it lacks rng_state.pth, which an earlier one has"


def test_fewer_ranks_than_an_earlier_sibling_is_incomplete(tmp_path: Path, scan: Callable[..., Any]) -> None:
    folder = ckpt(tmp_path)
    put(folder / "step_1", {f"rank_{at}.bin": b"r" for at in range(8)})
    put(folder / "step_2", {f"rank_{at}.bin": b"r" for at in range(7)})
    assert scan()["step_2"]["why"] == "it lacks 1 of 8 rank_#.bin, which an earlier one has"


def test_hashes_in_names_differ_from_step_to_step(tmp_path: Path, scan: Callable[..., Any]) -> None:
    folder = ckpt(tmp_path)
    put(folder / "100", {**orbax(), "default/d/0a1b2c3d4e5f60718293a4b5c6d7e8f9": b"more"})
    put(folder / "200", orbax("ffeeddccbbaa99887766554433221100"))
    assert scan()["200"]["complete"]


def test_a_marker_makes_complete_at_once_and_is_asked_of_the_others(tmp_path: Path, scan: Callable[..., Any]) -> None:
    folder = ckpt(tmp_path)
    put(folder, {"step_9.bin": b"a", "step_9.bin.done": b"ok\n", "step_10.bin": b"b", "step_11.bin": b"c"})
    made = CheckpointScan(FakeRun(folder))  # type: ignore[arg-type]
    assert {item["name"]: item["complete"] for item in made.look()}["step_9.bin"]
    (folder / "step_11.done").touch()
    seen = scan(made)
    assert list(seen) == ["step_9.bin", "step_10.bin", "step_11.bin"]  # and no marker among them
    assert [item["complete"] for item in seen.values()] == [True, False, True]
    assert scan(made, dead=True)["step_10.bin"]["why"] == "its marker is not there, which others have"


@pytest.mark.parametrize("marker", ["COMPLETE", ".done", "_SUCCESS", "commit_success.txt"])
def test_markers_inside_of_folders(marker: str, tmp_path: Path, scan: Callable[..., Any]) -> None:
    folder = ckpt(tmp_path)
    put(folder / "step_1", {"w.bin": b"w", marker: b""})
    put(folder / "step_2", {"w.bin": b"w"})
    made = CheckpointScan(FakeRun(folder))  # type: ignore[arg-type]
    assert {item["name"]: item["complete"] for item in made.look()} == {"step_1": True, "step_2": False}
    assert not scan(made, dead=True)["step_2"]["complete"]


def test_deepspeed_is_complete_once_latest_names_it(tmp_path: Path, scan: Callable[..., Any]) -> None:
    folder = ckpt(tmp_path)
    put(folder / "global_step100", deepspeed())
    made = CheckpointScan(FakeRun(folder))  # type: ignore[arg-type]
    assert scan(made)["global_step100"]["why"] == "latest, which DeepSpeed writes last, does not name it"
    (folder / "latest").write_text("global_step100")
    assert scan(made)["global_step100"]["complete"]
    put(folder / "global_step1000", deepspeed())
    seen = scan(made)
    assert {name: item["complete"] for name, item in seen.items()} == {"global_step100": True, "global_step1000": False}
    assert "latest" not in seen  # it only names another


def test_a_pointer_is_no_checkpoint_and_a_rolling_one_is(tmp_path: Path, scan: Callable[..., Any]) -> None:
    folder = ckpt(tmp_path)
    put(folder, {"checkpoint": b'model_checkpoint_path: "ckpt-5"\n', "last.ckpt": torch_zip(), "latest": b"5\n"})
    assert {name: item["step"] for name, item in scan().items()} == {"last.ckpt": -1, "latest": -1}


def test_how_long_a_save_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ckpt(tmp_path)
    made = CheckpointScan(FakeRun(folder))  # type: ignore[arg-type]
    put(folder, {"tmp-step_5.pt": b"half"})
    with monkeypatch.context() as at_first:
        at_first.setattr(checkpoints.time, "time", lambda: 1000.0)
        assert made.look() == []
    (folder / "tmp-step_5.pt").unlink()
    put(folder, {"step_5.pt": torch_zip(), "step_55.pt": torch_zip()})
    os.utime(folder / "step_5.pt", (1030.0, 1030.0))
    os.utime(folder / "step_55.pt", (1030.0, 1030.0))
    assert {item["name"]: item["save_s"] for item in made.look()} == {"step_5.pt": 30.0, "step_55.pt": 0.0}
    spread = put(folder / "step_60", {"a.bin": b"a", "b.bin": b"b"})
    for path, at in ((spread / "a.bin", 2000.0), (spread / "b.bin", 2012.5), (spread, 2012.5)):
        os.utime(path, (at, at))
    assert made.look()[-1]["save_s"] == 12.5


# --- names ---


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("epoch=3-step=900-v1.ckpt", 900),
        ("ckpt_epoch_3_step_900_loss_0.25.pt", 3_000_000_900),
        ("step=900-epoch=3.pt", 3_000_000_900),
        ("epoch10.pt", 10),
        ("ckpt-100.h5", 100),
        ("weights.05-0.31.hdf5", 5),
        ("llama-3-8b-step-500", 500),
        ("step_300_val0.51.pt", 300),
        ("iter-400000-ckpt.pth", 400000),
        ("global_step1000", 1000),
        ("100", 100),
        ("gpt2-124M-3000.pt", 3000),
        ("ckpt_20240101_120000_step_50.pt", 50),
        ("temperature_0.7_step_100.pt", 100),
        ("last-v1.ckpt", -1),
        ("events.out.tfevents.169000.host", None),
        ("rng_state_0.pth", None),
        ("model-00001-of-00002.safetensors", None),
        ("step_1.pt.tmp1234", None),
        ("step_1.pt.tmp.77", None),
        ("100.orbax-checkpoint-tmp-17", None),
        ("checkpoint-1200-tmp", None),
        ("train_5.log", None),
    ],
)
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    assert step_of(name, step_pattern("")) == step


FORMS = ["step_%d.pt", "checkpoint-%d", "iter-%d-ckpt.pth", "%d", "model_%d_loss_0.5.pt", "epoch=1-step=%d.ckpt"]


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=6, unique=True), st.sampled_from([*FORMS, "ep3_it%d.pt"]))
def test_numbers_sort_as_numbers(steps: list[int], form: str) -> None:
    pattern = step_pattern("")
    found = sorted((form % step for step in steps), key=lambda name: step_of(name, pattern) or 0)
    assert found == [form % step for step in sorted(steps)]


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 10**6)), min_size=2, max_size=6, unique=True))
def test_epochs_count_before_steps_that_begin_anew(pairs: list[tuple[int, int]]) -> None:
    pattern = step_pattern("")
    made = [f"epoch_{epoch}_step_{step}.pt" for epoch, step in pairs]
    found = sorted(made, key=lambda name: step_of(name, pattern) or 0)
    assert found == [f"epoch_{epoch}_step_{step}.pt" for epoch, step in sorted(pairs)]


def test_which_file_marks_which() -> None:
    there = ["step_1.pt", "step_1.pt.done", "step_2.pt", "step_2_success", "done", "step_3.complete"]
    assert [marked(name, there) for name in there] == ["", "step_1.pt", "", "step_2.pt", "", ""]


@given(st.lists(st.text("ab01./_-", min_size=1, max_size=24), max_size=6),
       st.lists(st.text("ab01./_-", min_size=1, max_size=24), max_size=6))  # fmt: skip
def test_agent_and_controller_judge_siblings_alike(one: list[str], other: list[str]) -> None:
    mine = names.lacks(names.shapes(one), names.shapes(other))
    assert mine == lineage.lacks(lineage.shapes(one), lineage.shapes(other))


def test_a_whole_format_is_whole_for_both_sides(tmp_path: Path) -> None:
    assert not flaw_of(str(put(tmp_path / "checkpoint-500", trainer())))
