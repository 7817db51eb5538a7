"""Any bytes are a spec or SpecErrors: never another exception, and never long."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobspecs.document import MAX_NODES, from_plain, plain, read_document
from jobspecs.load import load_spec
from jobspecs.problems import Problem, SpecErrors
from jobspecs.schema import JobSpec, from_document, to_document

BASE = "name: a\ngpu: none\nrun: x\n"
KEYS = [
    *JobSpec.model_fields,
    "path",
    "to",
    "from",
    "when",
    "regex",
    "keep",
    "max",
    "zzz",
    "<<",
    "on",
    "git",
    "ref",
    "list",
]
LINES = st.sampled_from(
    ["name: a", "gpu: 4090:2", "run: |", "  x", "\t", "- a", "? b", ": c", "&a", "*a", "<<: *a", "!!str", "---", "...",
     "%YAML 1.1", "'", '"', "{", "[", "]", "}", "#", "run: a # b", "env:", "  A: 1e-4", "  B:", "checkpoint:", "\ufeff",
     "data: [{from: x}]", "artifacts: none", "sweep: {", "| #", ">-", "\x00", "\u2028", "ttl: 12:30",
     "~: ~"]
)  # fmt: skip
SETTINGS = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def judge(data: bytes | str, **arguments: Any) -> JobSpec | None:
    problems: list[Problem] | None = None
    spec = None
    try:
        spec = load_spec(data, "job.yaml", **arguments)
    except SpecErrors as errors:
        problems = errors.problems
    if spec is None:
        assert problems
        assert all(problem.reason and "\n" not in str(problem) for problem in problems)
        return None
    assert from_document(json.loads(json.dumps(to_document(spec)))) == spec
    return spec


@SETTINGS
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    judge(data)


@SETTINGS
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    judge(text)
    judge(BASE + text)


@SETTINGS
@given(st.lists(LINES, max_size=12), st.sampled_from(["\n", "\r\n", " "]))
def test_any_mixture_of_what_yaml_knows(lines: list[str], join: str) -> None:
    judge(join.join(lines))
    judge(BASE + join.join(lines))


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.dates(),
    st.sampled_from(["12:30", "0x1", "1e-4", "yes", "NO", "none", "${X}", "../x", "1 GB", ">=24GB", "4090:2", "auto"]),
)  # fmt: skip
TREES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(KEYS), below, max_size=4),
    max_leaves=12,
)


@SETTINGS
@given(st.dictionaries(st.sampled_from(KEYS), TREES, max_size=6))
def test_any_tree_of_values_under_the_keys(tree: dict[str, object]) -> None:
    judge(yaml.safe_dump({"name": "a", "gpu": "none", "run": "x"} | tree, allow_unicode=True))


@SETTINGS
@given(
    st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), max_size=3),
    st.dictionaries(st.text(max_size=8), st.text(max_size=8)),
)
def test_any_override_and_variable(overrides: list[tuple[str, str]], env: dict[str, str]) -> None:
    judge(BASE, overrides=overrides, env=env)


@SETTINGS
@given(st.from_regex(r"[ -~]{1,30}", fullmatch=True))
def test_a_variable_has_exactly_the_characters_that_were_quoted(value: str) -> None:
    spec = judge(BASE + f"env:\n  X: '{value.replace(chr(39), chr(39) * 2)}'\n")
    assert spec is None or spec.env == {"X": value}


@pytest.mark.parametrize("levels", [3, 9, 30])
def test_a_bomb_costs_no_more_nodes_than_the_bound(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is bounded by count, not by time: each alias adds its expanded size before anything is copied."""
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    seen = 0
    from jobspecs import document

    original = document._Composer._node

    def counted(self: document._Composer, event: object, depth: int) -> document.Node:
        nonlocal seen
        seen += 1
        return original(self, event, depth)

    monkeypatch.setattr(document._Composer, "_node", counted)
    try:
        root = read_document("\n".join(lines), "bomb.yaml")
    except SpecErrors:
        assert levels > 3
    else:
        assert root.size <= MAX_NODES
    assert seen < 40 * levels


def test_plain_values_of_another_source_are_read_like_typed_ones() -> None:
    value = {"a": [1, True, None, 1.5, "x"], "b": {"c": False}}
    assert plain(from_plain(value, "config")) == {"a": ["1", "true", None, "1.5", "x"], "b": {"c": "false"}}
