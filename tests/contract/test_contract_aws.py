"""`aws` held to the suite that every provider must pass, against a moto server behind our own layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aws_layer import AWS_GPUS, AwsLayer, no_credentials

from providers.aws import AwsProvider
from providers.base import Ask, GpuWish
from providers.contract import CHECKS, Terms

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9Gn0u0OyYmHPkYbVJnnlnKR0fYtYpfJmIfkDHDPkdX contract"


@pytest.fixture
def company(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[AwsLayer]:
    no_credentials(monkeypatch, tmp_path)
    with AwsLayer() as company:
        yield company


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_aws_keeps_the_contract(check: Callable[[Terms], None], company: AwsLayer, tmp_path: Path) -> None:
    check(
        Terms(
            make=lambda: AwsProvider(company.config(tmp_path)),
            deployment="contract",
            public_key=KEY,
            ask=Ask(gpus=(GpuWish("L4", 24, 1),)),
            gpus=AWS_GPUS,
            strangers=lambda: AwsProvider(company.config(tmp_path, "someone-else")),
        )
    )
