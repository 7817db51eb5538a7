"""Names of jobs and what providers make of them."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jobspecs.names import check_name, cloud_name
from jobspecs.problems import Refusal

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", fullmatch=True)
STRICT = r"[a-z][a-z0-9-]{1,40}"


@pytest.mark.parametrize("name", ["a", "LoRA_seed.1", "7b", "a" * 40, "x.y-z_1"])
def test_names_that_are_allowed(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".a", "-a", "a b", "a/b", "a" * 41, "é", "a\n", "名"])
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(Refusal):
        check_name(name)


@given(NAMES)
def test_a_cloud_name_is_always_valid_and_stable(name: str) -> None:  # B016, B017
    mapped = cloud_name(name, max_len=40, pattern=STRICT)
    assert re.fullmatch(STRICT, mapped)
    assert len(mapped) <= 40
    assert mapped == cloud_name(name, max_len=40, pattern=STRICT)


@given(NAMES, NAMES)
def test_two_names_never_share_a_cloud_name(one: str, other: str) -> None:
    assume(one != other)
    assert cloud_name(one) != cloud_name(other)


def test_names_that_differ_only_in_what_is_cleaned_away_stay_apart() -> None:
    spellings = ["LoRA_seed.1", "lora-seed.1", "lora_seed_1", "LORA-SEED-1", "lora-seed-1"]
    assert len({cloud_name(name) for name in spellings}) == len(spellings)


def test_a_name_that_looks_mapped_is_mapped_again() -> None:
    mapped = cloud_name("LoRA_seed.1")
    assert cloud_name(mapped) != mapped


def test_a_valid_name_is_kept_and_the_length_is_respected() -> None:
    assert cloud_name("lora-7b") == "lora-7b"
    assert cloud_name("rOmI_LB").startswith("romi-lb-")
    assert len(cloud_name("a" * 40, max_len=20)) == 20
    assert cloud_name("7").startswith("j-7-")
