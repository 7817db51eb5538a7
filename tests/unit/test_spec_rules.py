"""Rules across keys, and what nothing serves yet."""

from __future__ import annotations

import pytest

from jobspecs.load import load_spec
from jobspecs.problems import SpecErrors
from jobspecs.rules import is_remote
from jobspecs.schema import live_changes

BASE = "name: a\ngpu: none\nrun: x\n"
RESUMES = "name: a\ngpu: none\nrun: x $GPUJOB_RESUME_FROM\n"


def refused(text: str) -> tuple[str, str, str]:
    with pytest.raises(SpecErrors) as caught:
        load_spec(text, "job.yaml")
    (problem,) = caught.value.problems
    return problem.key, problem.reason, problem.hint


def test_expected_longer_than_ttl_names_both() -> None:
    key, reason, _ = refused(BASE + "expected: 13h\nttl: 12h\n")
    assert key == "expected"
    assert reason == "13h is longer than ttl 12h, which ends the job"
    assert load_spec(BASE + "expected: 12h\n", "job.yaml").expected is not None


@pytest.mark.parametrize("line", ["spot: true", "spot: true\ncheckpoint: {every: 5m}", "spot: true\nretry: {max: 3}"])
def test_spot_needs_a_job_that_resumes_and_there_is_no_way_round(line: str) -> None:
    key, reason, hint = refused(BASE + line + "\n")
    assert key == "spot"
    assert "can resume" in reason
    assert "GPUJOB_RESUME_FROM" in hint
    assert "checkpoint.resume: folder" in hint


@pytest.mark.parametrize("text", [RESUMES + "spot: true\n", BASE + "spot: true\ncheckpoint: {resume: folder}\n",
                                  BASE + "spot: auto\n", BASE + "spot: true\nbatch: {items: 'x/*'}\n"])  # fmt: skip
def test_spot_with_a_job_that_resumes(text: str) -> None:
    load_spec(text, "job.yaml")


def test_a_serving_job_is_never_on_spot() -> None:
    assert refused(RESUMES + "workload: serve\nspot: true\n")[:2] == ("spot", "a serve job may not be interrupted")


@pytest.mark.parametrize("keep", ["0", "-1"])
def test_keep_below_one_would_delete_every_checkpoint(keep: str) -> None:  # B117
    key, reason, hint = refused(BASE + f"checkpoint: {{keep: {keep}}}\n")
    assert (key, reason) == ("checkpoint.keep", f"must be 1 or more, got {keep}")
    assert "delete every checkpoint" in hint


@pytest.mark.parametrize(
    "path",
    ["out/$(date +%s)", "run-`date`", "ckpt_%Y-%m-%d", "${now:%H}", "{now}", "$RANDOM/x", "strftime"],
)
def test_a_checkpoint_path_that_changes_with_the_time_is_refused(path: str) -> None:  # B135
    key, reason, hint = refused(BASE + f"checkpoint: {{path: '{path}'}}\n")
    assert key == "checkpoint.path"
    assert "changes with the time" in reason
    assert "GPUJOB_CKPT" in hint


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("checkpoint: {path: ../x}", "checkpoint.path"),
        ("checkpoint: {path: a/../../x}", "checkpoint.path"),
        ("data: {from: ./x, path: ../../etc}", "data.path"),
        ("artifacts: {path: /out/../../etc}", "artifacts.path"),
        ("artifacts: {path: ~/x}", "artifacts.path"),
        ("artifacts: {path: $GPUJOB_OUT/x}", "artifacts.path"),
        ("artifacts: {path: 'C:\\x'}", "artifacts.path"),
    ],
)
def test_a_path_on_the_machine_stays_in_its_folder(line: str, key: str) -> None:
    assert refused(BASE + line + "\n")[0] == key


@pytest.mark.parametrize("path", ["a/b", "/workspace/out", "*.png", "a..b", "deep/**/x", "."])
def test_paths_that_are_fine(path: str) -> None:
    spec = load_spec(BASE + f"artifacts: {{path: '{path}'}}\n", "job.yaml")
    assert [artifact.path for artifact in spec.artifacts or ()] == [path]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("line", "key", "said"),
    [
        ("secrets: [A]\nenv: {A: 1}", "env.A", "is in secrets too"),
        ("data: [{from: ./a, path: x}, {from: ./b, path: x/}]", "data[1].path", "data[0] lands in x/ too"),
        ("model: {params: 0B}", "model.params", "not a number of parameters"),
        ("model: {params: 7B, method: full, dtype: int4}", "model.dtype", "no int4 weights"),
        ("model: {params: 7B, kv_heads: 8}", "model.kv_heads", "need heads"),
        ("model: {params: 7B, heads: 4, kv_heads: 8}", "model.kv_heads", "need heads, which is 4"),
        ("budget: 9 USD\nmax_price: 8 CNY", "max_price", "is in CNY and budget in USD"),
        ("grace: {time: 12h}", "grace.time", "not within ttl 12h"),
        ("hold_on_failure: 13h", "hold_on_failure", "not within ttl 12h"),
        ("hold_on_failure: 5m\nreplicas: 3", "hold_on_failure", "is of a job with one machine"),
        ("hold_on_failure: 5m\nsweep: {list: [{a: 1}], budget: 1}", "hold_on_failure", "with sweep a machine goes on"),
        ("workload: batch", "workload", "no batch says which items there are"),
        (f"env: {{A: {'x' * (128 * 1024 - 2)}}}", "env.A", "has 131073 bytes with its name"),
        (f"sweep: {{list: [{{b: 1}}, {{a: {'é' * 65_536}}}], budget: 1}}", "sweep.list[1].a", "has 131088 bytes"),
        ("sweep: {list: [{a: 1}], budget: 1}\nreplicas: 3", "replicas", "replicas and sweep cannot be combined"),
        ("sweep: {budget: 1}", "sweep", "either parameters or a list"),
        ("sweep: {budget: 1, parameters: {a: [1]}, search: {method: random}}", "sweep.search", "number of trials"),
        ("sweep: {budget: 1, parameters: {a: {int: [1, 2], files: x}}}", "sweep.parameters.a", "exactly one of"),
        ("sweep: {parameters: {a: [1]}}", "sweep.budget", "is required"),
        ("checkpoint: {pattern: 'x_{date}.pt'}", "checkpoint.pattern", "unknown field {date}"),
        ("checkpoint: {mirror: 's3://b/$(date)'}", "checkpoint.mirror", "would not be run by a shell"),
    ],
)  # fmt: skip
def test_keys_that_do_not_go_together(line: str, key: str, said: str) -> None:
    found_key, reason, _ = refused(BASE + line + "\n")
    assert found_key == key
    assert said in reason


def test_a_value_as_long_as_linux_allows_is_taken() -> None:
    longest = "x" * (128 * 1024 - len("GPUJOB_PARAM_a=") - 1)
    for value, fits in ((longest, True), (f"{longest}x", False)):
        text = BASE + f"sweep: {{parameters: {{a: [1, {value}]}}, budget: 1}}\n"
        if fits:
            load_spec(text, "job.yaml")
        else:
            assert refused(text)[0] == "sweep.parameters.a[1]"


def test_placeholders_are_kept_for_the_places_that_fill_them() -> None:
    spec = load_spec(BASE + "checkpoint: {mirror: 's3://b/{job}/{attempt}'}\n", "job.yaml")
    assert spec.checkpoint is not None
    assert spec.checkpoint.mirror == "s3://b/{job}/{attempt}"


@pytest.mark.parametrize(
    ("place", "remote"),
    [
        ("s3://b/x", True), ("hf://o/n", True), ("https://h/x", True), ("lab:prefix", True), ("git@host:x", False),
        ("./a", False), ("a/b", False), ("/a/b", False), ("../a", False), ("a", False), ("~/x", False),
        ("C:\\x", False),
    ],
)  # fmt: skip
def test_what_is_a_place_of_this_computer(place: str, remote: bool) -> None:
    assert is_remote(place) is remote


def test_a_change_of_a_rule_free_key_is_still_a_change() -> None:
    old, new = (load_spec(BASE + line, "job.yaml") for line in ("", "smoke: x\n"))
    assert live_changes(old, new) == ([], ["smoke"])


GPU = "name: a\nrun: x\n"


def test_an_image_whose_cuda_knows_none_of_the_cards() -> None:
    key, reason, hint = refused(GPU + "gpu: RTX-5090\nimage: pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime\n")
    assert key == "image"
    assert "CUDA 12.1 knows no sm_120; it needs 12.8 or newer" in reason
    assert hint == "take another image, or another card"
    key, _, _ = refused(
        GPU + "gpu: RTX-5090\nproviders: [aws, vast]\n"
        "image: {aws: 'pytorch/pytorch:2.8.0-cuda12.8', vast: 'pytorch/pytorch:2.4.0-cuda12.1'}\n"
    )
    assert key == "image.vast"


@pytest.mark.parametrize(
    "lines",
    [
        "gpu: RTX-5090\nimage: pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime\n",
        "gpu: [RTX-5090, RTX-4090]\nimage: pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime\n",
        "gpu: RTX-5090\nimage: nvcr.io/nvidia/pytorch:24.05-py3\n",
        "gpu: MI300X\nimage: rocm/pytorch:rocm6.2\n",
        "gpu: none\nimage: pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime\n",
    ],
)
def test_an_image_that_may_fit(lines: str) -> None:
    load_spec(GPU + lines, "job.yaml")


def test_a_ttl_of_nothing_is_the_only_fault() -> None:
    with pytest.raises(SpecErrors) as caught:
        load_spec("name: a\ngpu: none\nrun: 'true'\nttl: 0\n", "a.yaml")
    assert [(each.line, each.key) for each in caught.value.problems] == [(4, "ttl")]
