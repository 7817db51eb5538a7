"""No answer that Amazon's own model of the API allows crashes `aws`: fields left out, of every enum, of any number."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from aws_layer import AWS_GPUS
from botocore import xform_name

from providers.aws import AwsProvider
from providers.aws_api import Api
from providers.base import Ask, Boot, DestroyAck, GpuWish, Instance, Listing, Offer, ProviderConfig, Ref, Tag
from providers.errors import ProviderError

TAG = Tag("dep", "rental-1", "job", "me")
GPUS = Ask(gpus=tuple(GpuWish(row.name, row.vram_gb, 1) for row in AWS_GPUS))
OFFER = Offer("aws", "default", "us-east-1", "g6.xlarge/us-east-1a", True, Decimal("0.5"), "USD", "L4", 1, 24)
KINDS = ("instance", "disk", "address", "snapshot", "key", "group")
VERBS: dict[str, Callable[[AwsProvider], Any]] = {
    "offers": lambda aws: aws.offers(GPUS),
    "cpu offers": lambda aws: aws.offers(Ask()),
    "list": lambda aws: aws.list("us-east-1"),
    "list all": lambda aws: aws.list_all("us-east-1"),
    "get": lambda aws: aws.get(Ref("aws", "default", "us-east-1", "i-0")),
    "create": lambda aws: aws.create(OFFER, TAG, 2e9, Boot("true", "ssh-ed25519 AAAA x")),
    **{f"destroy {kind}": lambda aws, kind=kind: aws.destroy(Ref("aws", "default", "us-east-1", "i-0", kind))
       for kind in KINDS},
}  # fmt: skip
WORDS = (
    "", "x", "i-0", "us-east-1a", "g6.xlarge", "L4", "NVIDIA", "x86_64", "spot", "gpujob-deployment", "gpujob-rental",
    "gpujob-hourly", "gpujob-login", "dep", "r", "running", "0.25", "-1", "NaN", "ami-0", "ä" * 300, "{",
)  # fmt: skip
#: What members of that name mostly hold: without it nothing of one answer would fit to another one's.
USUAL: dict[str, Any] = {
    "InstanceType": "g6.xlarge", "Location": "us-east-1a", "AvailabilityZone": "us-east-1a", "InstanceId": "i-0",
    "SupportedArchitectures": ["x86_64"], "SupportedUsageClasses": ["spot"], "SpotPrice": "0.3", "Count": 1,
    "Gpus": [{"Name": "L4", "Manufacturer": "NVIDIA", "Count": 1, "MemoryInfo": {"SizeInMiB": 22888}}],
    "Tags": [{"Key": "gpujob-deployment", "Value": "dep"}, {"Key": "gpujob-rental", "Value": "r"}],
}  # fmt: skip
SEEDS, DEPTH = 60, 7


@cache
def operations(service: str) -> dict[str, Any]:
    """Method of a client -> the shape of its answer."""
    model = botocore.session.get_session().get_service_model(service)
    return {xform_name(name): model.operation_model(name).output_shape for name in model.operation_names}


def made(shape: Any, chance: random.Random, depth: int = 0) -> Any:
    """A value of a shape as botocore hands it out."""
    if shape.type_name == "structure":
        kept = {
            name: member
            for name, member in shape.members.items()
            if depth < DEPTH and chance.random() < (0.1 if name == "NextToken" else 0.85)
        }
        return {
            name: USUAL[name] if name in USUAL and chance.random() < 0.8 else made(member, chance, depth + 1)
            for name, member in kept.items()
        }
    if shape.type_name == "list":
        return [made(shape.member, chance, depth + 1) for _ in range(chance.choice((0, 1, 1, 2)))]
    if shape.type_name == "map":
        return {chance.choice(WORDS): made(shape.value, chance, depth + 1)}
    simple: dict[str, Callable[[], Any]] = {
        "string": lambda: chance.choice(tuple(getattr(shape, "enum", None) or WORDS)),
        "boolean": lambda: chance.random() < 0.5,
        "timestamp": lambda: datetime(2026, 12, 1, tzinfo=UTC),
        "blob": lambda: b"x",
    }
    numbers = {"integer": (-1, 0, 1, 8, 2**31), "long": (-1, 0, 24576, 2**62)}
    return simple.get(shape.type_name, lambda: chance.choice(numbers.get(shape.type_name, (0.0, -1.0, 1e300))))()


class Client:
    """Answers every operation of a service with something that its model allows."""

    def __init__(self, service: str, chance: random.Random) -> None:
        self._service, self._chance = service, chance

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        shape = operations(self._service)[operation]
        return lambda **_: made(shape, self._chance) if shape is not None else {}


@pytest.mark.parametrize("verb", VERBS)
def test_whatever_amazons_model_allows_is_read(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    for seed in range(SEEDS):
        chance = random.Random(f"{verb} {seed}")
        monkeypatch.setattr(Api, "_client", lambda self, region, service, what, chance=chance: Client(service, chance))
        aws = AwsProvider(ProviderConfig("dep", tmp_path / str(seed), AWS_GPUS, {"regions": ["us-east-1"]}))
        try:
            found = VERBS[verb](aws)
        except ProviderError as error:
            seen.add(error.kind)
            continue
        seen.add(type(found).__name__)
        for offer in found if isinstance(found, tuple) else ():
            assert isinstance(offer, Offer)
            assert offer.hourly > 0
        if isinstance(found, Listing) and verb == "list":
            assert {type(each.ref.id) for each in (*found.instances, *found.others)} <= {str}
        assert found is None or isinstance(found, tuple | Listing | Instance | DestroyAck)
    assert len(seen) >= (1 if verb.startswith("destroy") else 2), f"the answers made only {seen}"
