"""The memory that a model needs: the published numbers, to the digit, and what must hold for every model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobspecs.gpus import gpu_classes
from jobspecs.memory import METHODS, Estimate, Model, estimate, kv_gb_per_token, parse_params, smaller
from jobspecs.problems import Refusal

LLAMA = {"layers": 32, "hidden": 4096, "heads": 32}


def of(**more: Any) -> Estimate:
    return estimate(Model(7e9, **more))


def part(found: Estimate, name: str) -> float:
    return next(each.gb for each in found.parts if each.name == name)


def cards(found: Estimate, gpu: str) -> int | None:
    return found.cards(gpu_classes(gpu)[0])


@pytest.mark.parametrize(("dtype", "gb"), [("fp32", 28), ("fp16", 14), ("bf16", 14), ("int8", 7), ("int4", 3.5)])
def test_weights_are_parameters_times_bytes(dtype: str, gb: float) -> None:
    assert part(of(dtype=dtype), "weights") == gb


def test_the_kv_cache_of_a_7b_model() -> None:
    # 2 x 32 layers x 4096 x 2 bytes is half a MB a token; 8192 tokens of 8 requests are 32 GB
    model = Model(7e9, "inference", "fp16", batch=8, seq_len=8192, **LLAMA)
    assert kv_gb_per_token(model) == 0.5 / 1024
    found = estimate(model)
    assert part(found, "kv cache") == 32
    assert part(found, "weights") + part(found, "kv cache") == 46
    # with 3 GB of overhead 49, of which 80 % may be used: 61.25, so the card of 80
    assert (found.high, found.need, found.tier) == (49, 61.25, 80)


def test_grouped_heads_shrink_the_cache_by_their_share() -> None:
    model = Model(7e9, "inference", "fp16", batch=8, seq_len=8192, **LLAMA)
    assert part(estimate(replace(model, kv_heads=8)), "kv cache") == 8


def test_a_quantised_model_keeps_its_cache_in_16_bits() -> None:
    assert part(of(dtype="int4", batch=8, seq_len=8192), "kv cache") == 32


def test_a_full_fine_tune_is_16_to_20_bytes_a_parameter() -> None:
    found = of(method="full")
    split = {each.name: each.gb for each in found.parts}
    assert split == {"weights": 14, "gradients": 14, "optimizer": 56, "master weights": 28, "activations": 28}
    assert (found.low, found.high) == (112, 140)
    assert sum(split.values()) - split["weights"] - split["activations"] == 98
    assert cards(found, "A100-80GB-SXM") == 2
    assert cards(found, "RTX-4090") == 8
    assert not found.fits(24, 2)


def test_activations_that_were_given_fill_the_allowance_and_then_exceed_it() -> None:
    small, large = of(method="full", batch=1, seq_len=2048), of(method="full", batch=8, seq_len=8192)
    assert (part(small, "activations"), small.high) == (8.5, 140)
    assert part(small, "buffers") == 28 - 8.5
    assert (part(large, "activations"), part(large, "buffers")) == (8.5 * 32, 0)
    assert large.high == 112 + 8.5 * 32


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("key", ["batch", "seq_len"])
def test_activations_are_linear_in_batch_and_sequence(method: Any, key: str) -> None:
    base = Model(7e9, method, batch=2, seq_len=2048)
    twice = replace(base, **{key: 2 * getattr(base, key)})
    assert part(estimate(twice), "activations") == 2 * part(estimate(base), "activations")


def test_lora_of_7b_fits_24_gb_with_gradient_checkpointing_and_32_without() -> None:
    found = of(method="lora")
    assert found.fits(24)
    assert found.is_near(24)
    assert not found.is_near(32)
    assert not found.fits(16)
    assert (part(found, "weights"), part(found, "activations")) == (14, 8.5)
    assert found.low == pytest.approx(14 + 1.12 + 3 + 0.5)
    assert found.high == pytest.approx(14 + 1.12 + 3 + 8.5)


def test_three_methods_need_three_classes_of_card() -> None:
    assert (of(method="qlora").tier, of().tier, of(method="full").tier) == (10, 24, 141)
    assert part(of(method="qlora"), "weights") == 3.5


def test_further_cards_bring_their_own_overhead() -> None:
    found = estimate(Model(13e9))
    assert found.more_per_card == 3 * 1.25
    assert found.need_of(2) == found.need + 3.75
    assert cards(found, "RTX-4090") == 2
    assert cards(estimate(Model(175e9)), "RTX-4090") is None


def test_what_was_not_given_is_assumed_and_said() -> None:
    assert of().assumed == (
        "32 layers, 4096 hidden, 32 heads", "a context of 4096 tokens", "1 request at a time",
        "no grouped key-value heads",
    )  # fmt: skip
    assert estimate(Model(7e9, batch=1, seq_len=10, kv_heads=8, **LLAMA)).assumed == ()
    assert of(method="lora", batch=1, **LLAMA).assumed == ("sequences of 2048 tokens",)


def test_ways_that_need_less() -> None:
    assert [(each.model.method, each.model.dtype) for each in smaller(Model(7e9, "full"))] == [
        ("lora", "bf16"), ("qlora", "bf16"),
    ]  # fmt: skip
    assert [each.model.dtype for each in smaller(Model(7e9))] == ["int8", "int4"]
    assert smaller(Model(7e9, dtype="int4")) == ()
    assert smaller(Model(7e9, "qlora")) == ()


@pytest.mark.parametrize(("text", "params"), [("7b", 7e9), ("7B", 7e9), ("350M", 350e6), ("1.3B", 1.3e9)])
def test_sizes_as_people_write_them(text: str, params: float) -> None:
    assert parse_params(text) == params


@pytest.mark.parametrize("text", ["7", "b", "0B", "-1B", "7 billion", "", "1e3B9B", "nanB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="number of parameters"):
        parse_params(text)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(Refusal, match="no int4 weights"):
        of(method="full", dtype="int4")
    with pytest.raises(Refusal, match="more than 32 heads"):
        of(kv_heads=64, heads=32)


@given(
    params=st.floats(1e8, 1e12),
    method=st.sampled_from(METHODS),
    batch=st.integers(0, 64),
    seq_len=st.integers(0, 32768),
    count=st.integers(1, 8),
)
def test_parts_add_up_and_a_bigger_card_always_fits(
    params: float, method: Any, batch: int, seq_len: int, count: int
) -> None:
    found = estimate(Model(params, method, batch=batch, seq_len=seq_len))
    assert sum(each.gb for each in found.parts) == pytest.approx(found.high)
    assert 0 < found.low <= found.high
    assert found.low <= found.need <= found.comfortable
    assert found.need_of(count) >= found.need
    if found.fits(24, count):
        assert found.fits(48, count)
