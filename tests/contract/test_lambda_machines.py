"""Lambda's own ways: a registered key for each rental, real tags, its own images, types described in words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from fake_lambda import FakeLambda

from providers.base import Ask, Boot, DestroyAck, GpuRow, GpuWish, Instance, Tag
from providers.errors import AccountGate, Ambiguous, Invalid, NoCapacity
from providers.lambda_cloud import LambdaProvider

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9Gn0u0OyYmHPkYbVJnnlnKR0fYtYpfJmIfkDHDPkdX x"
ONE_A10 = GpuWish("A10", 24, 1)
TAG = Tag("contract", "rental-1", "job", "me")


@pytest.fixture
def company() -> Iterator[FakeLambda]:
    with FakeLambda() as company:
        yield company


@pytest.fixture
def cloud(company: FakeLambda, tmp_path: Path) -> LambdaProvider:
    return LambdaProvider(company.config(tmp_path))


def rent(cloud: LambdaProvider, tag: Tag = TAG, hook: str = "true", image: str = "") -> Instance:
    offer = next(o for o in cloud.offers(Ask(gpus=(ONE_A10,))) if o.region == "us-west-1")
    return cloud.create(offer, tag, time.time() + 900, Boot(hook, PUBLIC, image))


def test_a_type_is_one_offer_for_each_region_with_machines(cloud: LambdaProvider) -> None:
    offers = cloud.offers(Ask(gpus=(ONE_A10, GpuWish("H100-SXM", 80, 8))))
    assert {(o.key, o.region, o.hourly) for o in offers} == {
        ("gpu_1x_a10", "us-west-1", Decimal("0.75")),
        ("gpu_1x_a10", "us-east-1", Decimal("0.75")),
        ("gpu_8x_h100_sxm5", "us-south-2", Decimal("23.92")),
    }
    (cpu,) = cloud.offers(Ask(cpus_min=8))
    assert (cpu.key, cpu.gpu, cpu.cpus, cpu.billing_step_s) == ("cpu_4x_general", "", 30, 60)
    assert cloud.offers(Ask(gpus=(GpuWish("A10", 24, 2),))) == ()  # known, and none is free


def test_a_region_that_is_new_is_learned_from_an_offer(company: FakeLambda, tmp_path: Path) -> None:
    config = company.config(tmp_path)
    config = type(config)(config.deployment, tmp_path, (GpuRow("Z9", 640),), config.settings, config.secret)
    cloud = LambdaProvider(config)
    assert "mars-north-1" not in cloud.regions()
    (offer,) = cloud.offers(Ask(gpus=(GpuWish("Z9", 640, 1),)))
    assert offer.region == "mars-north-1"
    assert "mars-north-1" in cloud.regions()


def test_each_rental_has_its_own_key_which_is_a_leftover_until_it_is_destroyed(
    company: FakeLambda, cloud: LambdaProvider
) -> None:
    made = rent(cloud)
    (key,) = company.keys.values()
    assert (key["name"], key["public_key"]) == ("gpujob.contract.rental-1.us-west-1", PUBLIC)
    (left,) = cloud.list("us-west-1").others
    assert (left.ref.kind, left.ref.id, left.tag) == ("key", key["id"], Tag("contract", "rental-1"))
    assert cloud.list("us-east-1").others == ()
    assert cloud.destroy(made.ref) is DestroyAck.ACKNOWLEDGED
    assert cloud.destroy(left.ref) is DestroyAck.ACKNOWLEDGED
    assert company.keys == {}


def test_a_key_whose_name_has_no_room_for_the_region_is_listed_in_each(
    company: FakeLambda, cloud: LambdaProvider
) -> None:
    tag = Tag("contract", "r" * 44, "job", "me")
    rent(cloud, tag)
    assert [len(key["name"]) for key in company.keys.values()] == [60]
    assert len(cloud.list("us-west-1").others) == len(cloud.list("asia-south-1").others) == 1


def test_a_refused_launch_takes_its_key_along(company: FakeLambda, cloud: LambdaProvider) -> None:
    (offer,) = [o for o in cloud.offers(Ask(gpus=(ONE_A10,))) if o.region == "us-west-1"]
    company.empty.add("gpu_1x_a10")
    with pytest.raises(NoCapacity, match="Not enough capacity"):
        cloud.create(offer, TAG, 2e9, Boot("true", PUBLIC))
    assert (company.keys, company.instances) == ({}, {})


def test_an_unanswered_launch_keeps_its_key_for_the_machine_that_may_be(
    company: FakeLambda, cloud: LambdaProvider
) -> None:
    company.fault("POST", "/launch", "lost")
    with pytest.raises(Ambiguous):
        rent(cloud)
    assert len(company.keys) == 1
    assert [i.tag for i in cloud.list("us-west-1").instances] == [TAG]


def test_a_foreign_key_of_the_same_name_is_not_used(company: FakeLambda, cloud: LambdaProvider) -> None:
    name = "gpujob.contract.rental-1.us-west-1"
    company.keys["k"] = {"id": "k", "name": name, "public_key": "ssh-rsa AAAA somebody"}
    with pytest.raises(Invalid):
        rent(cloud)
    assert company.instances == {}
    assert list(company.keys) == ["k"]


def test_terminating_is_not_dead_and_terminated_is(company: FakeLambda, cloud: LambdaProvider) -> None:
    company.ending_s = 60.0
    made = rent(cloud)
    cloud.destroy(made.ref)
    ending = cloud.get(made.ref)
    assert ending is not None
    assert ending.status == "terminating"
    assert ending.status not in cloud.caps.dead_statuses
    company.advance(61)
    dead = cloud.get(made.ref)
    assert dead is not None
    assert (dead.status in cloud.caps.dead_statuses, dead.endpoint) == (True, None)
    company.advance(61)
    assert cloud.get(made.ref) is None
    assert cloud.destroy(made.ref) is DestroyAck.MISSING


@pytest.mark.parametrize(("status", "noticed"), [("preempted", True), ("unhealthy", False), ("meditating", False)])
def test_a_status_beside_the_usual_ones_survives(
    company: FakeLambda, cloud: LambdaProvider, status: str, noticed: bool
) -> None:
    made = rent(cloud)
    company.fail(made.ref.id, status)
    company.forgiven = (r"\$\.data\.status",)
    seen = cloud.get(made.ref)
    assert seen is not None
    assert (seen.status, seen.ready, seen.notice is not None) == (status, False, noticed)


def test_a_docker_image_is_run_by_the_agent_on_the_default_image(company: FakeLambda, cloud: LambdaProvider) -> None:
    offers = cloud.offers(Ask(gpus=(ONE_A10,), image="pytorch/pytorch:2.4.0"))
    assert {(o.container, o.image) for o in offers} == {("pytorch/pytorch:2.4.0", "")}
    made = cloud.create(offers[0], TAG, time.time() + 900, Boot("true", PUBLIC, "pytorch/pytorch:2.4.0"))
    assert company.instances[made.ref.id].asked.get("image") is None


@pytest.mark.parametrize(
    ("image", "sent"),
    [
        ("", None),
        ("lambda-stack-24-04", {"family": "lambda-stack-24-04"}),
        ("43336648-096d-4cba-9aa2-f9bb7727639d", {"id": "43336648-096d-4cba-9aa2-f9bb7727639d"}),
    ],
)
def test_images_of_its_own_go_by_family_or_id(
    company: FakeLambda, cloud: LambdaProvider, image: str, sent: dict[str, str] | None
) -> None:
    made = rent(cloud, image=image)
    assert company.instances[made.ref.id].asked.get("image") == sent


def test_an_account_that_a_person_must_see_to_is_a_gate(company: FakeLambda, cloud: LambdaProvider) -> None:
    body = {
        "error": {"code": "global/account-inactive", "message": "Your account is inactive.", "suggestion": "Verify."}
    }
    company.fault("POST", "/launch", "refuse", status=403, body=body)
    with pytest.raises(AccountGate, match="inactive"):
        rent(cloud)
    assert company.keys == {}


def test_user_data_starts_the_hook_at_every_boot_as_the_login_user(company: FakeLambda, cloud: LambdaProvider) -> None:
    made = rent(cloud, hook="echo hello\n")
    machine = company.instances[made.ref.id]
    assert company.machines.started[machine.handle] == ("echo hello\n", PUBLIC)  # type: ignore[attr-defined]
    said = yaml.safe_load(machine.asked["user_data"])
    assert said["runcmd"][-1] == ["systemctl", "enable", "--now", "gpujob-boot.service"]
    assert machine.asked["tags"] == [
        {"key": "gpujob-deployment", "value": "contract"},
        {"key": "gpujob-rental", "value": "rental-1"},
        {"key": "gpujob-job", "value": "job"},
        {"key": "gpujob-owner", "value": "me"},
    ]
