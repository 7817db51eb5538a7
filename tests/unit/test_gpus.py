"""GPU classes: one name in many spellings, and what an ask accepts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobspecs.gpu_table import GPU_CLASSES
from jobspecs.gpus import GpuAsk, GpuChoice, gpu_classes, identify, matches, parse_gpu
from jobspecs.problems import Refusal

BY_NAME = {gpu.name: gpu for gpu in GPU_CLASSES}


def names(ask: object) -> list[str]:
    return [gpu.name for choice in parse_gpu(ask).choices for gpu in choice.classes()]


@pytest.mark.parametrize(
    "spelling",
    ["RTX-4090", "RTX 4090", "rtx_4090", "rtx4090", "4090", "NVIDIA GeForce RTX 4090", "geforcertx4090-pcie-24gb"],
)
def test_every_spelling_of_a_card_is_the_card(spelling: str) -> None:
    assert [gpu.name for gpu in gpu_classes(spelling)] == ["RTX-4090"]


@pytest.mark.parametrize("spelling", ["A100-80GB", "A100_80G", "a100 80gb", "NVIDIA A100 80GB"])
def test_a_name_with_its_memory_means_both_form_factors(spelling: str) -> None:
    assert [gpu.name for gpu in gpu_classes(spelling)] == ["A100-80GB-PCIe", "A100-80GB-SXM"]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"), ("NVIDIA H100 80GB HBM3", "H100-SXM"), ("H100 NVL", "H100-NVL"),
        ("Tesla T4", "T4"), ("RTX 6000 Ada", "RTX-6000-Ada"), ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("RTX 6000Ada", "RTX-6000-Ada"), ("Q RTX 6000", "Quadro-RTX-6000"), ("A6000", "RTX-A6000"),
        ("RTX 4080S", "RTX-4080S"), ("RTX PRO 6000 WS", "RTX-PRO-6000"), ("AMD Instinct MI300X OAM", "MI300X"),
        ("RTX 2080 Ti", "RTX-2080Ti"), ("RTX 4090D", "RTX-4090D"), ("MI355X_288GB", "MI355X"),
    ],
)  # fmt: skip
def test_names_of_providers(spelling: str, name: str) -> None:
    assert [gpu.name for gpu in gpu_classes(spelling)] == [name]


def test_a_family_means_each_of_its_memory_sizes() -> None:
    assert names("A100") == ["A100-40GB", "A100-80GB-PCIe", "A100-80GB-SXM"]
    assert names("V100") == ["V100-16GB", "V100-32GB"]


def test_a_plain_name_does_not_mean_a_modified_or_cut_down_card() -> None:
    assert names("4090") == ["RTX-4090"]


def test_a_memory_size_means_every_card_with_as_much() -> None:
    found = names(">=40GB")
    assert {"A100-40GB", "L40S", "A100-80GB-SXM", "H100-PCIe"} <= set(found)
    assert not {"RTX-4090", "RTX-5090", "V100-32GB", "A10"} & set(found)
    assert names("24GB..24GB") == [gpu.name for gpu in GPU_CLASSES if gpu.vram_gb == 24]
    assert "RTX-4090" in names(">=24GiB"), "the number on the box counts, not its unit"


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("4090:2", GpuChoice("RTX-4090", None, 2)),
        ("A100-80GB:2", GpuChoice("A100-80GB", None, 2)),
        ({"name": "a100", "count": "4"}, GpuChoice("A100", None, 4)),
        ({"name": "A100:2"}, GpuChoice("A100", None, 2)),
    ],
)
def test_counts(text: object, choice: GpuChoice) -> None:
    assert parse_gpu(text).choices == (choice,)


def test_memory_narrows_a_family_in_every_form() -> None:
    wanted = ["A100-80GB-PCIe", "A100-80GB-SXM"]
    assert names("A100:80GB:2") == names({"name": "A100", "memory": "80GB", "count": "2"}) == wanted
    assert parse_gpu("A100:80GB:2") == parse_gpu({"name": "A100", "memory": ">=80GB", "count": "2"})


def test_a_list_means_any_and_none_means_a_cpu() -> None:
    ask = parse_gpu(["RTX-4090", "A100-80GB:2"])
    assert matches(ask, BY_NAME["RTX-4090"], 1)
    assert matches(ask, BY_NAME["A100-80GB-SXM"], 2)
    assert not matches(ask, BY_NAME["A100-80GB-SXM"], 1)
    assert not matches(ask, BY_NAME["A100-40GB"])
    assert parse_gpu("none").is_none
    assert not any(matches(parse_gpu("none"), gpu) for gpu in GPU_CLASSES)


@pytest.mark.parametrize(
    ("value", "reason", "hint"),
    [
        ("RTX-4091", "no GPU class 'RTX-4091'", "RTX-4090"),
        ("A10O", "no GPU class", "A100"),
        ("RTX 6000", "several cards", "RTX-6000-Ada"),
        ("H100:200GB", "no GPU class is", "H100-NVL 94GB"),
        ("A100:0", "must be 1 or more", ""),
        ("A100:1..8", "is a range", "one number"),
        ("", "is not a GPU", ""),
        ("A100:2:3", "is not a GPU", ""),
        ([], "empty list", "none"),
        ({"nam": "A100"}, "no key 'nam'", "did you mean name?"),
        ({"count": "2"}, "needs a name or a memory size", ""),
        ("off", "no GPU class", "none for a CPU"),
        (None, "expected a GPU", ""),
        ("80+", "no unit", "80GB"),
    ],
)
def test_refused(value: object, reason: str, hint: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_gpu(value)
    assert reason in caught.value.reason
    assert hint in caught.value.hint


def _document(ask: GpuAsk) -> object:
    return [str(choice) for choice in ask.choices] or "none"


@given(
    st.lists(
        st.builds(
            lambda name, memory, count: ":".join(part for part in (name, memory, count) if part),
            st.sampled_from(sorted({gpu.name for gpu in GPU_CLASSES} | {gpu.family for gpu in GPU_CLASSES})),
            st.sampled_from(["", "1GB", ">=1GB", "1GB..400GB", "..400GB"]),
            st.sampled_from(["", "1", "2", "8"]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_an_ask_prints_as_something_that_means_the_same(asks: list[str]) -> None:
    ask = parse_gpu(asks)
    assert parse_gpu(_document(ask)) == ask


@pytest.mark.parametrize(
    ("name", "vram_gib", "found"),
    [
        ("Tesla V100", 32.0, "V100-32GB"),
        ("A100 SXM4", 40960 / 1024, "A100-40GB"),
        ("A100 SXM4", 81920 / 1024, "A100-80GB-SXM"),
        ("RTX 4090", 24564 / 1024, "RTX-4090"),
        ("RTX 4090", 49140 / 1024, "RTX-4090-48GB"),
        ("NVIDIA B300 SXM6 AC", 288, "B300"),
        ("H100 PCIE", 81559 / 1024, "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 10, None),
        ("GRID A100-10C", 10, None),
        ("RTX 3080", 24, None),
        ("A100", 80, None),
        ("Voodoo 2", 0.01, None),
    ],
)
def test_identify_believes_the_memory_and_never_guesses(name: str, vram_gib: float, found: str | None) -> None:
    gpu = identify(name, vram_gib)
    assert (gpu.name if gpu else None) == found


def test_the_table_names_each_class_once_and_has_sane_numbers() -> None:
    assert len(BY_NAME) == len(GPU_CLASSES) >= 35
    for gpu in GPU_CLASSES:
        assert 8 <= gpu.vram_gb <= 300, gpu
        assert 200 <= gpu.bandwidth_gbps <= 9000, gpu
        assert gpu in gpu_classes(gpu.name), gpu
        assert gpu in gpu_classes(gpu.family), gpu
        for spelling in gpu.spellings:
            assert gpu_classes(spelling) == (gpu,), spelling
    assert [gpu.name for gpu in GPU_CLASSES if gpu.arm64] == ["GH200", "GB200"]
