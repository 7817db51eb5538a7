"""Space for data and checkpoints before a machine is rented, and where data lies."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from jobspecs.load import load_spec
from jobspecs.schema import JobSpec
from orchestrator import space
from orchestrator.datasets import DataError
from orchestrator.home import Home
from orchestrator.model import Job
from orchestrator.placement import rank
from orchestrator.policy import ask_of, policy_of
from orchestrator.sources import listing
from providers.base import Offer

GB = 1000**3


def spec_of(more: str = "") -> JobSpec:
    return load_spec(f"name: a\ngpu: RTX-4090\nrun: x $GPUJOB_RESUME_FROM\n{more}", "job.yaml")


def job_of(**data: Any) -> Job:
    return Job("a.1", "a", 1, {}, "", "", "/", 0.0, data_manifests={"d": data})


def test_what_is_needed_is_data_and_kept_checkpoints_and_a_margin() -> None:
    assert space.needed(spec_of(), 0) == 0
    assert space.needed(spec_of(), 100 * GB) == 105 * GB
    assert space.needed(spec_of("checkpoint: {keep: 3}\n"), 0, [2 * GB]) == int(8.4 * GB)  # one more than is kept
    seven = "model: {params: 7B, method: full}\ncheckpoint: {keep: 1}\n"
    assert space.checkpoint_bytes(spec_of(seven)) == 7 * 14 * GB  # weights, copy, moments
    assert space.checkpoint_bytes(spec_of(seven), [5, 9]) == 9  # what was seen is better than any estimate
    assert space.checkpoint_bytes(spec_of(seven.replace("full", "lora"))) == int(7 * 14 * GB * 0.02)
    assert space.checkpoint_bytes(spec_of("model: {params: 7B, method: inference}\n")) == 0


def test_the_order_asks_for_a_disk_that_holds_it() -> None:
    assert ask_of(spec_of()).disk_min == 0
    assert ask_of(spec_of(), 2 * GB).disk_min == 0  # what any machine has room for
    assert ask_of(spec_of(), 200 * GB).disk_min == 230 * GB  # and 20 for the system
    assert ask_of(spec_of("disk: {system: 50GB, data: 500GB}\n"), 200 * GB).disk_min == 550 * GB
    assert policy_of(spec_of(), job_of(bytes=200 * GB)).ask.disk_min == 230 * GB


def test_a_disk_that_cannot_hold_the_data_is_refused_before_anything_is_rented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(state=tmp_path / "state", config=tmp_path / "config").make()
    (tmp_path / "set").write_bytes(b"x" * 1000)
    spec = spec_of("disk: {data: 100MB}\ndata: ./set\n")
    with pytest.raises(DataError, match=r"disk\.data is 100 MB, and data \(0 MB\), .* need 256 MB"):
        listing.manifests_of(home, spec, tmp_path)
    roomy = spec_of("disk: {data: 1GB}\ndata: ./set\n")
    assert listing.manifests_of(home, roomy, tmp_path)["set"].bytes == 1000


def offer(provider: str, region: str) -> Offer:
    return Offer(key=f"{provider}/{region}", provider=provider, account="me", region=region, gpu="RTX-4090",
                 gpu_count=1, vram_gb=24, hourly=Decimal(1), currency="USD", spot=False)  # fmt: skip


@pytest.mark.parametrize(
    ("place", "more", "taken"),
    [
        ("", "", ["aws/eu", "aws/us", "vast/eu"]),
        ("eu", "", ["aws/eu", "vast/eu"]),
        ("aws/eu", "", ["aws/eu", "vast/eu"]),  # between companies it is the internet, wherever they stand
        ("us", "allow: [cross-region]\n", ["aws/eu", "aws/us", "vast/eu"]),
    ],
)
def test_machines_are_taken_where_the_data_lies(place: str, more: str, taken: list[str]) -> None:
    offers = [offer("aws", "eu"), offer("aws", "us"), offer("vast", "eu")]
    ranking = rank(offers, policy_of(spec_of(more), job_of(bytes=1, region=place)), {})
    assert sorted(each.key for each in ranking.ranked) == taken
    assert {out.by for out in ranking.left_out} <= {"data-region"}
    assert all(f"the data lies in {place}" in out.why for out in ranking.left_out)
