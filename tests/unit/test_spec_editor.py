"""The JSON Schema for editors agrees with the loader on what it accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobspecs.convert import TEMPLATE
from jobspecs.editor import json_schema
from jobspecs.load import load_spec
from jobspecs.problems import SpecErrors
from jobspecs.schema import JobSpec

SPECS = Path(__file__).parent / "data" / "specs"
BASE = "name: a\ngpu: none\nrun: x\n"
SCHEMA = json_schema()
_TYPES: dict[str, Any] = {
    "string": str, "number": (int, float), "integer": int, "boolean": bool, "null": type(None),
    "object": dict, "array": list,
}  # fmt: skip
# What the checker below understands; a keyword outside it would pass unchecked.
_KNOWN = {"type", "anyOf", "enum", "const", "properties", "additionalProperties", "required", "items", "prefixItems",
          "minItems", "maxItems", "minimum", "maximum", "pattern", "$ref", "description", "default", "examples",
          "$schema", "title", "$defs"}  # fmt: skip


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """A JSON Schema validator for the keywords of our schema."""
    assert set(schema) <= _KNOWN, set(schema) - _KNOWN
    if "$ref" in schema and not accepts(SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[-1]], value):
        return False
    if "anyOf" in schema and not any(accepts(each, value) for each in schema["anyOf"]):
        return False
    if "enum" in schema and not any(value == each and type(value) is type(each) for each in schema["enum"]):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(
            isinstance(value, _TYPES[name]) and (not isinstance(value, bool) or name == "boolean") for name in names
        ):
            return False
    if isinstance(value, dict):
        return _accepts_object(schema, value)
    if isinstance(value, list):
        firsts = schema.get("prefixItems", [])
        items = schema.get("items", {})
        return len(value) >= schema.get("minItems", 0) and all(
            accepts(firsts[at] if at < len(firsts) else items, each) for at, each in enumerate(value)
        )
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    return not isinstance(value, str) or re.search(schema.get("pattern", ""), value) is not None


def _accepts_object(schema: dict[str, Any], value: dict[str, Any]) -> bool:
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
    if not set(schema.get("required", ())) <= set(value):
        return False
    for key, each in value.items():
        if key in properties:
            if not accepts(properties[key], each):
                return False
        elif rest is False or (isinstance(rest, dict) and not accepts(rest, each)):
            return False
    return True


SPELLINGS = [
    "artifacts: none", "artifacts: '*'", "artifacts: {path: x}", "artifacts: [a, {path: b, when: failure}]",
    "data: ./d", "data: {from: ./d}", "data: [./a, {from: ./b, path: c}]", "checkpoint:", "checkpoint: {keep: 2}",
    "env: {A: 1, B: 1e-4, C: x, D: true}", "env: [A=1, B=2]", "env:", "labels: {a: 1}", "ports: 8888",
    "ports: [80, '1:2']",
    "regions: SE", "providers: [runpod, vast]", "budget: 15", "budget: 1.20 USD", "ttl: 90m", "hold_on_failure: 0",
    "cpus: 8", "cpus: 8..16", "memory: 32GB..", "shm_size: 16GiB", "spot: true", "spot: auto", "image: x",
    "image: {runpod: x}", "workdir: .", "workdir: {git: x, ref: y}", "retry: {max: 1, exit_codes: 3}", "replicas: 3",
    "retry: {exit_codes: [1, 2]}", "grace: {time: 5m, signal: SIGINT}", "disk: {data: 100GB}", "secrets: A",
    "notify: me",
    "sweep: {budget: 5, search: {trials: 4}, parameters: {a: [1], b: 3, c: {log_uniform: [1, 2]}, d: {int: [1, 2]}}}",
    "sweep: {budget: 5, list: [{a: 1}, {a: 2}]}", "model: {params: 7B}", "batch: {items: 'x/*', slice: 5}",
    "finish_by: '2026-12-01T09:00:00Z'", "allow: dirty", "progress: {regex: '(x)', total: 10}",
    "alarms: {gpu_util_below: {percent: 70, for: 15m}}",
]  # fmt: skip


@pytest.mark.parametrize("line", SPELLINGS)
def test_what_the_loader_accepts_an_editor_accepts(line: str) -> None:
    text = BASE.replace("run: x", "run: x $GPUJOB_RESUME_FROM") + line + "\n"
    load_spec(text, "job.yaml")
    assert accepts(SCHEMA, yaml.safe_load(text))


@pytest.mark.parametrize(
    "gpu",
    ["4090", "'4090:2'", "A100", '">=24GB"', "[4090, A100]", "{name: A100, memory: 80GB, count: 2}",
     "[{name: A100}]", "none"],
)  # fmt: skip
def test_every_form_of_gpu(gpu: str) -> None:
    text = f"name: a\ngpu: {gpu}\nrun: x\n"
    load_spec(text, "job.yaml")
    assert accepts(SCHEMA, yaml.safe_load(text))


@pytest.mark.parametrize(
    "line",
    ["checkpont: {}", "artifacts: {path: x, on: failure}", "spot: maybe", "ttl: soon", "retry: {max: -1}", "labels: x",
     "ports: 99999", "shm_size: 16", "workload: training", "checkpoint: {keep: 0}", "grace: 5m", "env: {A: [1]}",
     "allow: everything", "sweep: {parameters: {a: [1]}}", "data: {path: x}", "budget: []"],
)  # fmt: skip
def test_what_the_loader_refuses_for_its_form_an_editor_marks(line: str) -> None:
    text = BASE + line + "\n"
    with pytest.raises(SpecErrors):
        load_spec(text, "job.yaml")
    assert not accepts(SCHEMA, yaml.safe_load(text))


@pytest.mark.parametrize("text", [TEMPLATE, (SPECS / "full.yaml").read_text()])
def test_whole_files(text: str) -> None:
    assert accepts(SCHEMA, yaml.safe_load(text))


def test_required_keys() -> None:
    assert SCHEMA["required"] == ["name", "gpu", "run"]
    assert not accepts(SCHEMA, {"name": "a", "gpu": "none"})


def test_the_schema_describes_every_key_and_is_json() -> None:
    assert list(SCHEMA["properties"]) == list(JobSpec.model_fields)
    assert all(part["description"] for part in SCHEMA["properties"].values())
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    assert SCHEMA["properties"]["ttl"]["default"] == "12h"
    assert SCHEMA["properties"]["grace"]["default"] == {"time": "2m", "signal": "SIGTERM"}
    assert SCHEMA["properties"]["spot"]["default"] == "auto"
