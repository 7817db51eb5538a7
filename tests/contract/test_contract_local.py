"""`local` held to the suite that every provider must pass, in the isolation this host does best."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from providers import contract
from providers.base import Ask, Caps, DestroyAck, GpuRow, Instance, Ref
from providers.contract import CHECKS, Terms
from providers.errors import Invalid
from providers.local import LocalProvider, ProviderConfig

GPUS = (GpuRow("RTX-4090", 24), GpuRow("A100-80GB-SXM", 80), GpuRow("H100-SXM", 80))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("contract")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / "id")], check=True)
    yield home
    for deployment in ("contract", "someone-else"):
        provider = LocalProvider(ProviderConfig(deployment, home, GPUS))
        for instance in provider.list("here").instances:
            provider.destroy(instance.ref)


def local_terms(home: Path, kind: Callable[[ProviderConfig], Any] = LocalProvider) -> Terms:
    return Terms(
        make=lambda: kind(ProviderConfig("contract", home, GPUS)),
        deployment="contract",
        public_key=(home / "id.pub").read_text(),
        gpus=GPUS,
        strangers=lambda: LocalProvider(ProviderConfig("someone-else", home, GPUS)),
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_local_keeps_the_contract(check: Callable[[Terms], None], home: Path) -> None:
    check(local_terms(home))


class Forgetful(LocalProvider):
    """Loses the tag in get."""

    def get(self, ref: Ref) -> Instance | None:
        seen = super().get(ref)
        return dataclasses.replace(seen, tag=None) if seen else None


class Immortal(LocalProvider):
    """Acknowledges a destroy and does nothing."""

    def destroy(self, ref: Ref) -> DestroyAck:
        return DestroyAck.ACKNOWLEDGED


class Floating(LocalProvider):
    """Prices as floats."""

    def offers(self, ask: Any) -> Any:
        return tuple(dataclasses.replace(o, hourly=float(o.hourly)) for o in super().offers(ask))  # type: ignore[arg-type]


class Sticky(LocalProvider):
    """Does not move its timer."""

    def set_expiry(self, ref: Ref, at: float) -> None:
        pass


class Boasting(LocalProvider):
    """Claims that a repeated create is harmless."""

    caps: Caps = dataclasses.replace(LocalProvider.caps, idempotent_create=True, egress_per_gb=Decimal(1))


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (Forgetful, contract.create_carries_the_tag_into_list_and_get),
        (Floating, contract.offers_satisfy_the_ask),
        (Sticky, contract.set_expiry_moves_the_end),
        (Boasting, contract.one_tag_twice_is_as_caps_say),
    ],
)
def test_the_suite_catches_a_broken_provider(
    kind: type[LocalProvider], check: Callable[[Terms], None], home: Path
) -> None:
    with pytest.raises(AssertionError):
        check(local_terms(home, kind))


def test_the_suite_catches_a_destroy_that_does_nothing(home: Path) -> None:
    terms = local_terms(home, Immortal)
    terms.sleep = lambda seconds: None  # the bound is counted in polls, so none of it is waited for
    with pytest.raises(AssertionError, match="a destroyed machine is dead or gone"):
        contract.a_destroyed_machine_is_soon_dead_and_destroy_repeats(terms)


def test_without_pytest_the_suite_is_one_call(home: Path) -> None:
    contract.check_provider(local_terms(home))


def test_an_image_is_refused_rather_than_left_out(home: Path) -> None:
    provider = LocalProvider(ProviderConfig("contract", home, GPUS))
    with pytest.raises(Invalid, match="leave `image` out"):
        provider.offers(Ask(image="pytorch/pytorch:2.4.0"))
