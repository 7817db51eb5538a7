"""`lambda` held to the suite that every provider must pass, against a fake that is held to the company's document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_lambda import FakeLambda
from fake_machines import Banner
from fake_rest import GPUS

from providers import lambda_cloud
from providers.base import Ask, GpuWish
from providers.contract import CHECKS, Terms
from providers.lambda_cloud import LambdaProvider

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9Gn0u0OyYmHPkYbVJnnlnKR0fYtYpfJmIfkDHDPkdX contract"


@pytest.fixture
def company(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLambda]:
    with FakeLambda(banner := Banner()) as company:
        monkeypatch.setattr(lambda_cloud, "PORT", banner.port)  # an ordinary user cannot listen on 22
        yield company


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_lambda_keeps_the_contract(check: Callable[[Terms], None], company: FakeLambda, tmp_path: Path) -> None:
    check(
        Terms(
            make=lambda: LambdaProvider(company.config(tmp_path)),
            deployment="contract",
            public_key=KEY,
            ask=Ask(gpus=(GpuWish("A10", 24, 1),)),
            gpus=GPUS,
            strangers=lambda: LambdaProvider(company.config(tmp_path, "someone-else")),
        )
    )
