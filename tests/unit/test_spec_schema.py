"""The model: defaults, the document that the store keeps, identity, and what may change under a running job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from jobspecs.fields import Port
from jobspecs.load import load_file, load_spec
from jobspecs.schema import LIVE_KEYS, JobSpec, from_document, live_changes, spec_hash, to_document
from jobspecs.shapes import shape_of
from jobspecs.units import Duration

BASE = "name: a\ngpu: none\nrun: x\n"
SPECS = Path(__file__).parent / "data" / "specs"
EVERYTHING = """
model: {params: 7B, method: lora, seq_len: 2048}
workdir: {git: https://host/repo, ref: main}
alarms: {gpu_util_below: {percent: 70, for: 15m}}
notify: [me]
env: {A: 1e-4}
image: {runpod: a, vast: b}
sweep:
  parameters:
    lr: {log_uniform: [1e-5, 1e-2]}
    batch: [16, 32]
    layers: {int: [2, 8]}
    config: {files: "configs/*.yaml"}
  metric: {name: val_loss, goal: minimize, regex: 'val_loss=([0-9.eE+-]+)'}
  search: {method: tpe, trials: 40}
  stop_early: {method: asha, min_reports: 1, eta: 3}
  max_parallel: 8
  budget: 60 USD
"""


def load(text: str) -> JobSpec:
    return load_spec(text, "job.yaml")


def test_a_four_line_spec_has_the_documented_defaults() -> None:
    spec = load("name: a\ngpu: 4090\nworkdir: .\nrun: x\n")
    assert (spec.ttl, spec.wait, spec.hold_on_failure) == (Duration(43_200), Duration(3600), Duration(0))
    assert (spec.grace.time, spec.grace.signal) == (Duration(120), "SIGTERM")
    assert (spec.spot, spec.workload, spec.retry.max) == ("auto", "train", 0)
    assert spec.artifacts is None
    assert load(BASE + "checkpoint: {}\n").checkpoint.keep == 3  # type: ignore[union-attr]
    assert load(BASE + "artifacts: x\n").artifacts[0].when == "always"  # type: ignore[index,union-attr]


@pytest.mark.parametrize("text", [BASE, BASE + EVERYTHING, (SPECS / "full.yaml").read_text(),
                                  BASE + "artifacts: none\nspot: false\nbatch: {items: 'x/*'}\n",
                                  BASE + "replicas: 3\nsecrets: [A]\n"])  # fmt: skip
def test_the_document_is_json_and_gives_the_same_spec_back(text: str) -> None:
    spec = load(text)
    document = json.loads(json.dumps(to_document(spec)))
    assert from_document(document) == spec
    assert to_document(from_document(document)) == document
    assert spec_hash(from_document(document)) == spec_hash(spec)


def test_a_variable_that_is_still_to_be_given_survives_the_document() -> None:
    spec = JobSpec.model_validate({"name": "a", "gpu": "none", "run": "x", "env": {"A": None, "B": "1"}})
    assert spec.env == {"A": None, "B": "1"}
    assert from_document(json.loads(json.dumps(to_document(spec)))) == spec


def test_the_document_writes_values_as_people_do() -> None:
    document = to_document(load(BASE + "max_price: 1.2\nttl: 90m\ncpus: 4+\nmemory: 32GB\nports: [80, 8080:90]\n"))
    wanted = {"max_price": "1.20 USD", "ttl": "1h30m", "cpus": "4..", "memory": "32GB..", "ports": ["80", "8080:90"]}
    assert {key: document[key] for key in wanted} == wanted


def test_a_stored_document_is_never_read_loosely() -> None:
    with pytest.raises(ValidationError):
        from_document({**to_document(load(BASE)), "colour": "red"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("gpu: none", "gpu: None"),
        ("ttl: 60m", "ttl: 1h"),
        ("budget: 15", "budget: 15.00 USD"),
        ("cpus: 4", "cpus: 4.."),
        ("artifacts: x", "artifacts: [{path: x, when: always}]"),
        ("finish_by: 2026-12-01T09:00:00+08:00", "finish_by: 2026-12-01T01:00:00Z"),
        ("env:\n  A: 1\n  B: 2", "env: {B: 2, A: '1'}"),
        ("checkpoint:", "# nothing"),
    ],
)
def test_spelling_does_not_change_the_identity(one: str, other: str) -> None:
    assert spec_hash(load(BASE.replace("gpu: none\n", "gpu: none\n" if "gpu" not in one else "") + one + "\n")) == (
        spec_hash(load(BASE.replace("gpu: none\n", "gpu: none\n" if "gpu" not in other else "") + other + "\n"))
    )


def test_meaning_changes_the_identity() -> None:
    texts = [BASE, BASE + "ttl: 1h\n", BASE + "env: {A: 1}\n", BASE + "env: {A: 1.0}\n", BASE + "artifacts: none\n"]
    assert len({spec_hash(load(text)) for text in texts}) == len(texts)
    assert len(spec_hash(load(BASE))) == 64


@pytest.mark.parametrize(
    ("change", "live", "replace"),
    [
        ("", [], []),
        ("ttl: 20h", ["ttl"], []),
        ("budget: 5\nlabels: {a: b}\nretry: {max: 1}", ["budget", "retry", "labels"], []),
        ("env: {A: 2}", [], ["env"]),
        ("ttl: 20h\nimage: x", ["ttl"], ["image"]),
        ("artifacts: none\nfinish_by: 2026-12-01T00:00:00Z\nmax_price: 1\nnotify: me\nalarms: {gpu_util_below: "
         "{percent: 5, for: 1m}}", ["max_price", "finish_by", "artifacts", "alarms", "notify"], []),
        ("grace: {time: 5m}\nspot: false", [], ["spot", "grace"]),
    ],
)  # fmt: skip
def test_what_may_change_under_a_running_job(change: str, live: list[str], replace: list[str]) -> None:
    assert live_changes(load(BASE), load(BASE + change + "\n")) == (live, replace)
    assert live_changes(load(BASE + change + "\n"), load(BASE)) == (live, replace), "taking a key out is a change too"


def test_the_live_keys_are_keys() -> None:
    assert set(LIVE_KEYS) <= set(JobSpec.model_fields)


@pytest.mark.parametrize(
    ("text", "resumable"),
    [
        ("run: x --resume $GPUJOB_RESUME_FROM", True),
        ('run: |\n  x "${GPUJOB_RESUME_FROM:-none}"', True),
        ("run: |\n  # GPUJOB_RESUME_FROM is not used\n  x", False),
        ("run: x\ncheckpoint: {resume: folder}", True),
        ("run: x\ncheckpoint: {every: 5m}", False),
        ("run: x\nbatch: {items: 'x/*'}", True),
        ("run: x", False),
    ],
)
def test_resumable(text: str, resumable: bool) -> None:
    spec = load(f"name: a\ngpu: none\n{text}\n")
    assert spec.resumable is resumable
    assert spec.spot_allowed is resumable, "auto means spot only for a job that can resume"


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        load(BASE).ttl = Duration(1)  # type: ignore[misc]


def _models(model: type[BaseModel]) -> set[type[BaseModel]]:
    found = {model}
    for key in shape_of(model).children:
        shape = shape_of(model).child(key)
        while shape is not None:
            if shape.model is not None and shape.model not in found:
                found |= _models(shape.model)
            shape = shape.item
    return found


def test_every_key_has_a_description_for_the_reference() -> None:
    models = _models(JobSpec)
    assert {"Sweep", "Parameter", "GitSource", "Artifact", "UtilizationAlarm"} <= {model.__name__ for model in models}
    for model in models:
        assert model.__doc__, model
        for name, info in model.model_fields.items():
            assert info.description, (model, name)
            assert info.description.endswith((".", "?")), (model, name)


def test_the_documented_keys_are_the_keys() -> None:
    documented = (
        "name workload model gpu cpus memory disk shm_size providers regions spot max_price budget expected ttl "
        "finish_by grace image workdir data env secrets setup smoke run progress checkpoint artifacts retry wait "
        "hold_on_failure ports alarms notify labels allow sweep batch replicas"
    )
    assert list(JobSpec.model_fields) == documented.split()
    assert "on" not in JobSpec.model_fields


_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", fullmatch=True)
_WORDS = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=12)


@given(
    st.fixed_dictionaries(
        {"name": _NAMES, "gpu": st.sampled_from(["none", "4090:2", ">=24GB", "A100"]), "run": _WORDS},
        optional={
            "ttl": st.integers(3601, 10**6).map(lambda s: str(Duration(s))),
            "budget": st.decimals(1, 1000, places=2).map(str),
            "labels": st.dictionaries(_WORDS, _WORDS, max_size=3),
            "ports": st.lists(st.builds(Port, st.integers(1, 65_535), st.integers(1, 65_535)).map(str), max_size=3),
            "retry": st.fixed_dictionaries({"max": st.integers(0, 100).map(str)}),
        },
    )
)
def test_any_valid_spec_survives_its_document(values: dict[str, Any]) -> None:
    spec = JobSpec.model_validate(values)
    assert from_document(json.loads(json.dumps(to_document(spec)))) == spec


def test_the_example_of_the_documentation_is_read_from_its_file() -> None:
    assert load_file(SPECS / "full.yaml").spec.name == "lora-7b"
