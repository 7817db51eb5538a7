"""`vast` held to the suite that every provider must pass, against a fake that is held to the company's document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_rest import GPUS
from fake_vast import FakeVast

from providers.base import Ask, GpuWish
from providers.contract import CHECKS, Terms
from providers.vast import VastProvider

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9Gn0u0OyYmHPkYbVJnnlnKR0fYtYpfJmIfkDHDPkdX contract"


@pytest.fixture
def company() -> Iterator[FakeVast]:
    with FakeVast() as company:
        yield company


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_vast_keeps_the_contract(check: Callable[[Terms], None], company: FakeVast, tmp_path: Path) -> None:
    check(
        Terms(
            make=lambda: VastProvider(company.config(tmp_path)),
            deployment="contract",
            public_key=KEY,
            ask=Ask(gpus=(GpuWish("RTX-4090", 24, 1),)),
            gpus=GPUS,
            strangers=lambda: VastProvider(company.config(tmp_path, "someone-else")),
        )
    )
