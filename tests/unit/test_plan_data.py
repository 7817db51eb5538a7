"""What the plan says of data: how it comes, and when a store in between is better."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.plan_text import _data
from orchestrator.datasets import Manifest

GB = 1000**3


@pytest.mark.parametrize(
    ("kind", "gigabytes", "warned"),
    [("local", 21, True), ("local", 19, False), ("s3", 21, False), ("https", 21, False)],
)
def test_data_above_20_gb_from_this_computer_is_better_put_into_a_store(
    kind: str, gigabytes: int, warned: bool
) -> None:
    made = Manifest(kind, "/d", "a" * 64, 7, gigabytes * GB)
    prepared: Any = SimpleNamespace(data={"set": made})
    first, *more = _data(prepared)
    assert first.startswith(f"data       set: 7 files, {gigabytes}.0 GB, ")
    assert bool(more) is warned
    assert all("an object store near the machines is faster" in each for each in more)
