"""Legs of a sweep, slices of a batch: ids, order, text."""

from __future__ import annotations

import json

import pytest

from jobspecs.load import load_spec
from jobspecs.problems import Refusal, SpecErrors
from jobspecs.schema import JobSpec, Sweep, from_document, to_document
from jobspecs.sweep import (
    label,
    leg_id,
    legs,
    method_of,
    params_json,
    replicas,
    seed_of,
    slices,
    spellings,
    variables,
)

BASE = "name: tune\ngpu: none\nrun: x\n"


def spec_of(text: str) -> JobSpec:
    return load_spec(f"{BASE}sweep: {{budget: 5, {text}}}\n", "job.yaml")


def sweep_of(text: str) -> Sweep:
    found = spec_of(text).sweep
    assert found is not None
    return found


def no_files(_: str) -> list[str]:
    return []


def test_a_grid_is_every_combination_in_the_order_of_the_spec() -> None:
    found = legs(sweep_of("parameters: {lr: [1e-4, 3e-4], batch: [16, 32]}"), no_files)
    assert [dict(leg.params) for leg in found] == [
        {"lr": "1e-4", "batch": "16"}, {"lr": "1e-4", "batch": "32"},
        {"lr": "3e-4", "batch": "16"}, {"lr": "3e-4", "batch": "32"},
    ]  # fmt: skip
    assert len({leg.id for leg in found}) == 4


def test_an_added_value_changes_no_other_leg() -> None:
    before = legs(sweep_of("parameters: {lr: [1e-4, 3e-4], batch: [16, 32]}"), no_files)
    after = legs(sweep_of("parameters: {batch: [16, 32, 64], lr: [1e-4, 3e-4]}"), no_files)
    assert {leg.id for leg in before} < {leg.id for leg in after}
    assert len(after) == 6


def test_two_spellings_of_one_number_are_two_legs_and_are_said() -> None:  # B008: the program gets what was typed
    sweep = sweep_of("parameters: {lr: [1e-4, 0.0001, '1e-4'], v: ['1.1', '1.10']}")
    found = legs(sweep, no_files)
    assert [leg.params["lr"] for leg in found] == ["1e-4", "1e-4", "0.0001", "0.0001"]
    assert spellings(sweep) == ["lr: 1e-4 and 0.0001", "v: 1.1 and 1.10"]
    assert leg_id({"lr": "1e-4"}) != leg_id({"lr": "0.0001"})


def test_an_id_is_stable_over_versions_and_valid_on_a_machine() -> None:
    assert leg_id({"lr": "1e-4", "batch": "16"}) == leg_id({"batch": "16", "lr": "1e-4"}) == "4beypu5m"
    assert leg_id({}).isalnum()


def test_a_list_is_its_rows_once_each() -> None:
    found = legs(sweep_of("list: [{lr: 1e-4, b: 1}, {lr: 2e-4}, {b: 1, lr: 1e-4}]"), no_files)
    assert [dict(leg.params) for leg in found] == [{"lr": "1e-4", "b": "1"}, {"lr": "2e-4"}]


def test_whole_numbers_and_files_are_listed() -> None:
    sweep = sweep_of("parameters: {layers: {int: [2, 4]}, config: {files: 'c/*.yaml'}}")
    found = legs(sweep, lambda pattern: ["c/a.yaml", "c/b.yaml"] if pattern == "c/*.yaml" else [])
    assert [leg.params["layers"] for leg in found] == ["2", "2", "3", "3", "4", "4"]
    assert found[1].params["config"] == "c/b.yaml"
    with pytest.raises(Refusal, match=r"no file below workdir matches 'c/\*\.yaml'"):
        legs(sweep, no_files)


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("parameters: {a: [1]}", "grid"),
        ("list: [{a: 1}]", "list"),
        ("parameters: {a: {uniform: [0, 1]}}, search: {trials: 3}", "random"),
        ("parameters: {a: {choice: [1, 2]}}, search: {method: random, trials: 3}", "random"),
        ("parameters: {a: [1]}, metric: {name: l, goal: minimize}, search: {method: tpe, trials: 3}", "tpe"),
    ],
)
def test_the_method_follows_from_what_is_written(text: str, method: str) -> None:
    sweep = sweep_of(text)
    assert method_of(sweep) == method
    assert (legs(sweep, no_files) == ()) is (method in ("random", "tpe"))


def test_choice_is_a_list_of_values() -> None:
    chosen, listed = sweep_of("parameters: {a: {choice: [1, 2]}}"), sweep_of("parameters: {a: [1, 2]}")
    assert legs(chosen, no_files) == legs(listed, no_files)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("parameters: {a: {values: [1], when: {b: 2}}, b: [2]}", "conditional"),
        ("parameters: {a: {choice: [1], if: x}}", "conditional"),
        ("parameters: {a: {uniform: [0, 1]}}", "needs a number of trials"),
        ("parameters: {a: {uniform: [0, 1]}}, search: {method: grid}", "cannot list a"),
        ("parameters: {a: {log_uniform: [0, 1]}}, search: {trials: 2}", "above 0"),
        ("parameters: {a: {uniform: [2, 1]}}, search: {trials: 2}", "is not below"),
        ("parameters: {a: [1]}, search: {method: tpe, trials: 3}", "add metric"),
        ("parameters: {a: [1]}, stop_early: {method: asha}", "add metric"),
        ("parameters: {a: [1]}, search: {trials: 3}", "every leg is run"),
        ("list: [{a: 1}], search: {method: random, trials: 3}", "needs parameters, not a list"),
        ("parameters: {a: [1]}, search: {method: list}", "list needs `list`"),
        ("parameters: {a: []}", "has no values"),
    ],
)
def test_what_cannot_be_a_sweep_is_said(text: str, said: str) -> None:
    with pytest.raises(SpecErrors) as refused:
        spec_of(text)
    assert said in str(refused.value)


def test_currencies_do_not_mix() -> None:
    with pytest.raises(SpecErrors, match="write both in one currency"):
        load_spec(f"{BASE}budget: 3 CNY\nsweep: {{budget: 5 USD, list: [{{a: 1}}]}}\n", "job.yaml")


def test_a_grid_that_nobody_means_is_refused() -> None:
    with pytest.raises(Refusal, match="the grid has 1000000 legs"):
        legs(sweep_of("parameters: {a: {int: [1, 1000]}, b: {int: [1, 1000]}}"), no_files)
    with pytest.raises(Refusal, match="1001 whole numbers"):
        legs(sweep_of("parameters: {a: {int: [0, 1000]}}"), no_files)


def test_values_reach_the_program_with_their_characters() -> None:  # B008
    params = {"lr": "1e-4", "wd": "0.10", "n": "007", "name": 'a"$(x)', "flag": "true", "LR": "2"}
    text = params_json(params)
    assert '"lr": 1e-4' in text
    assert '"wd": 0.10' in text
    assert json.loads(text) == {"lr": 0.0001, "wd": 0.1, "n": "007", "name": 'a"$(x)', "flag": True, "LR": 2}
    found = variables(params)
    assert found["GPUJOB_PARAM_lr"] == "1e-4"
    assert found["GPUJOB_PARAM_LR"] == "2"  # its own name goes before another's capitals
    assert found["GPUJOB_PARAM_NAME"] == 'a"$(x)'
    assert json.loads(params_json({})) == {}
    assert label({"lr": "1e-4", "batch": "16"}) == "lr=1e-4,batch=16"


def test_the_seed_is_the_specs_or_the_names() -> None:
    drawn = "parameters: {a: {uniform: [0, 1]}}, search: {trials: 3}"
    assert seed_of(spec_of(drawn)) == seed_of(spec_of(drawn)) == 673593398
    assert seed_of(spec_of(drawn.replace("trials: 3", "trials: 3, seed: 7"))) == 7
    assert from_document(to_document(spec_of(drawn))) == spec_of(drawn)


def test_slices_and_replicas() -> None:
    found = slices(["a", "b", "c", "d", "e"], 2, first=3)
    assert [(each.id, each.items) for each in found] == [
        ("s0003", ("a", "b")),
        ("s0004", ("c", "d")),
        ("s0005", ("e",)),
    ]
    assert slices([], 2) == ()
    assert [each.id for each in replicas(3)] == ["1", "2", "3"]
