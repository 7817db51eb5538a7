"""`autodl` held to the suite that every provider must pass, against a fake that is held to the derived document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_autodl import FakeAutoDl
from fake_rest import GPUS

from providers.autodl import AutoDlProvider
from providers.base import Ask, GpuWish
from providers.contract import CHECKS, Terms

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9Gn0u0OyYmHPkYbVJnnlnKR0fYtYpfJmIfkDHDPkdX contract"


@pytest.fixture
def company() -> Iterator[FakeAutoDl]:
    with FakeAutoDl() as company:
        yield company


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_autodl_keeps_the_contract(check: Callable[[Terms], None], company: FakeAutoDl, tmp_path: Path) -> None:
    check(
        Terms(
            make=lambda: AutoDlProvider(company.config(tmp_path)),
            deployment="contract",
            public_key=KEY,
            ask=Ask(gpus=(GpuWish("RTX-4090D", 24, 1),)),
            gpus=GPUS,
            strangers=lambda: AutoDlProvider(company.config(tmp_path, "someone-else")),
        )
    )
