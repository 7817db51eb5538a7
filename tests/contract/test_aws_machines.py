"""AWS's own ways: zones as pools, spot caps, client tokens, late readers, what a launch leaves behind, error codes."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from aws_layer import AwsLayer, no_credentials

from orchestrator.cli.main import main
from orchestrator.credentials import provider_config
from orchestrator.home import Home
from providers import aws_offers
from providers.aws import AwsProvider
from providers.aws_api import judge
from providers.aws_images import Image, Images
from providers.base import Ask, Boot, DestroyAck, GpuRow, GpuWish, Instance, Offer, Tag
from providers.errors import (
    AccountGate,
    Ambiguous,
    AuthFailed,
    Invalid,
    NoCapacity,
    PoolQuotaExceeded,
    ProviderError,
    RateLimited,
)

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9Gn0u0OyYmHPkYbVJnnlnKR0fYtYpfJmIfkDHDPkdX x"
ONE_L4 = Ask(gpus=(GpuWish("L4", 24, 1),))
TAG = Tag("contract", "rental-1", "job", "me")
EXTRAS = Decimal("0.005") + Decimal("0.08") * 100 / 730  # an address, and 100 GB of disk


@pytest.fixture
def company(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[AwsLayer]:
    no_credentials(monkeypatch, tmp_path)
    with AwsLayer() as company:
        yield company


@pytest.fixture
def cloud(company: AwsLayer, tmp_path: Path) -> AwsProvider:
    return AwsProvider(company.config(tmp_path))


def offer(cloud: AwsProvider, spot: bool = False, zone: str = "us-east-1a") -> Offer:
    key = f"g6.xlarge/{zone}"
    return next(o for o in cloud.offers(replace(ONE_L4, spot=spot)) if o.key == key)


def rent(cloud: AwsProvider, spot: bool = False, tag: Tag = TAG, hook: str = "true", image: str = "") -> Instance:
    return cloud.create(offer(cloud, spot), tag, time.time() + 900, Boot(hook, PUBLIC, image))


# --- offers -----------------------------------------------------------------------------------------------------------


def test_a_zone_is_a_pool_of_each_market_and_shows_what_would_be_paid_at_most(cloud: AwsProvider) -> None:
    offers = {(o.key, o.spot): o for o in cloud.offers(ONE_L4) if o.key.startswith("g6.xlarge/")}
    assert {zone for (_, spot), zone in zip(offers, (k.split("/")[1] for k, _ in offers), strict=True) if spot} == {
        "us-east-1a", "us-east-1b", "us-east-1c",
    }  # fmt: skip
    spot, plain = offers[("g6.xlarge/us-east-1a", True)], offers[("g6.xlarge/us-east-1a", False)]
    assert (spot.pool, plain.pool) == ("g6.xlarge/us-east-1a/spot", "g6.xlarge/us-east-1a/on-demand")
    assert spot.hourly == aws_offers.per_hour(Decimal("0.3") * Decimal("1.2") + EXTRAS)  # the newest price, not 99
    assert plain.hourly == aws_offers.per_hour(Decimal("0.8048") + EXTRAS)
    assert (plain.cpus, plain.memory, plain.disk, plain.min_billing_s) == (4, 16 * 2**30, 100 * 10**9, 60)


def test_a_job_without_a_gpu_is_offered_general_machines(cloud: AwsProvider) -> None:
    offers = cloud.offers(Ask(cpus_min=2, spot=False))
    cheapest = min(offers, key=lambda o: o.hourly)
    assert (cheapest.key.split(".")[0], cheapest.gpu, cheapest.gpu_count) == ("c7i", "", 0)


def test_the_price_list_wins_over_the_table_and_is_kept_for_when_it_cannot_be_asked(
    company: AwsLayer, tmp_path: Path
) -> None:
    company.prices = {"g6.xlarge/us-east-1": "0.9"}
    expected = aws_offers.per_hour(Decimal("0.9") + EXTRAS)
    assert offer(AwsProvider(company.config(tmp_path))).hourly == expected
    company.prices = None
    assert offer(AwsProvider(company.config(tmp_path))).hourly == expected


@pytest.mark.parametrize(
    "damaged", [b"\xff\xfe", b"{", b"[1]", b'{"us-east-1": 7}', b'{"us-east-1": {"g6.xlarge": []}}']
)
def test_a_damaged_file_of_prices_is_no_file(company: AwsLayer, tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "aws-prices.json").write_bytes(damaged)
    company.prices = {"g6.xlarge/us-east-1": "0.9"}
    assert offer(AwsProvider(company.config(tmp_path))).hourly == aws_offers.per_hour(Decimal("0.9") + EXTRAS)
    company.prices = None
    assert offer(AwsProvider(company.config(tmp_path))).hourly == aws_offers.per_hour(Decimal("0.9") + EXTRAS)


def test_a_region_without_any_known_price_offers_spot_only(company: AwsLayer, tmp_path: Path) -> None:
    cloud = AwsProvider(company.config(tmp_path, regions=["eu-central-1"]))
    offers = cloud.offers(ONE_L4)
    assert {o.spot for o in offers} == {True}
    assert {o.region for o in offers} == {"eu-central-1"}


def test_a_hung_region_holds_up_no_other_one_for_long(
    company: AwsLayer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws_offers, "OTHERS_S", 1.0)
    company.hung.add("us-west-2")
    cloud = AwsProvider(company.config(tmp_path, regions=["us-west-2", "us-east-1"]))
    assert {o.region for o in cloud.offers(replace(ONE_L4, spot=True))} == {"us-east-1"}
    monkeypatch.setattr(aws_offers, "REGIONS_WITHIN_S", 0.01)
    with pytest.raises(Ambiguous, match="us-west-2 does not answer"):
        cloud.offers(replace(ONE_L4, regions=("us-west-2",)))


def test_a_card_that_is_shared_and_one_of_another_architecture_are_not_offered(company: AwsLayer) -> None:
    cloud = AwsProvider(company.config(Path("none")))
    kinds = {kind.name: kind for kind in cloud._catalog._kinds("us-east-1", True)}
    assert "g6f.xlarge" not in kinds  # an eighth of an L4
    assert "g5g.xlarge" not in kinds  # arm64
    assert kinds["p5.48xlarge"].gpu == GpuRow("H100-SXM", 80, ("H100-80GB-HBM3", "H100-SXM5"))
    assert kinds["p5.48xlarge"].count == 8


# --- the launch -------------------------------------------------------------------------------------------------------


def test_a_launch_ends_all_that_it_makes_and_carries_the_tag_everywhere(company: AwsLayer, cloud: AwsProvider) -> None:
    made = rent(cloud, spot=True, hook="echo hello\n")
    (box,) = company.boxes.values()
    form = box.data["form"]
    assert form["ClientToken"] == "rental-1"
    assert form["InstanceInitiatedShutdownBehavior"] == "terminate"
    disks = {value for key, value in form.items() if key.endswith("DeleteOnTermination")}
    assert disks == {"true"}
    assert form["BlockDeviceMapping.1.Ebs.VolumeSize"] == "100"
    assert (form["MetadataOptions.HttpTokens"], form["MetadataOptions.HttpPutResponseHopLimit"]) == ("required", "1")
    market = {key.rpartition(".")[2]: value for key, value in form.items() if key.startswith("InstanceMarketOptions")}
    assert market == {
        "MarketType": "spot", "SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate",
        "MaxPrice": f"{offer(cloud, True).hourly - EXTRAS:.6f}",
    }  # fmt: skip
    tagged = {form[f"TagSpecification.{n}.ResourceType"] for n in range(1, 5)}
    assert tagged == {"instance", "volume", "network-interface", "spot-instances-request"}
    assert company.machines.started[box.handle] == ("echo hello\n", PUBLIC)  # type: ignore[attr-defined]
    seen = cloud.get(made.ref)
    assert seen is not None
    assert (seen.tag, seen.hourly, seen.currency) == (TAG, offer(cloud, True).hourly, "USD")
    assert seen.endpoint is not None
    assert (seen.endpoint.user, seen.endpoint.host) == ("ubuntu", "127.0.0.1")
    assert (seen.raw["market"], seen.raw["zone"]) == ("spot", "us-east-1a")


def test_the_same_launch_twice_is_one_machine_and_another_one_under_its_name_is_ambiguous(
    company: AwsLayer, cloud: AwsProvider
) -> None:
    first, second = rent(cloud), rent(cloud)
    assert first.ref == second.ref
    with pytest.raises(Ambiguous, match="IdempotentParameterMismatch"):
        rent(cloud, hook="another")
    assert len(company.running) == 1
    assert company.things()["DescribeKeyPairs"] != []  # the machine that there is still needs it


@pytest.mark.parametrize(
    ("prepare", "kind"),
    [
        (lambda company: company.empty.add("g6.xlarge/us-east-1a"), NoCapacity),
        (lambda company: setattr(company, "vcpus", 0), PoolQuotaExceeded),
        (lambda company: company.spot_prices.update({"g6.xlarge": "5"}), NoCapacity),
    ],
)
def test_a_refused_launch_takes_its_key_and_group_along(
    company: AwsLayer, cloud: AwsProvider, prepare: Any, kind: type[ProviderError]
) -> None:
    wanted = offer(cloud, spot=True)
    prepare(company)
    with pytest.raises(kind):
        cloud.create(wanted, TAG, 2e9, Boot("true", PUBLIC))
    assert company.things() == {"DescribeVolumes": [], "DescribeKeyPairs": [], "DescribeSecurityGroups": []}


def test_another_zone_may_still_have_what_one_has_not(company: AwsLayer, cloud: AwsProvider) -> None:
    company.empty.add("g6.xlarge/us-east-1a")
    made = cloud.create(offer(cloud, zone="us-east-1b"), TAG, 2e9, Boot("true", PUBLIC))
    assert made.raw["zone"] == "us-east-1b"


def test_the_disk_of_a_large_image_is_in_the_price_or_the_create_is_refused(
    cloud: AwsProvider, company: AwsLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, large = offer(cloud), Image("ami-0123456789abcdef0", "ubuntu", "/dev/sda1", 300)
    monkeypatch.setattr(Images, "find", lambda self, region, name, with_gpu: large)
    own = next(o for o in cloud.offers(replace(ONE_L4, spot=False, image=large.id)) if o.key == usual.key)
    assert own.disk == 300 * 10**9
    assert own.hourly - usual.hourly == pytest.approx(Decimal("0.08") * 200 / 730, abs=Decimal("0.0002"))
    with pytest.raises(Invalid, match=r"takes 300 GB, and 100 GB were offered: write `disk: \{system: 300 GB\}`"):
        cloud.create(usual, TAG, time.time() + 900, Boot("true", PUBLIC))
    assert (company.running, company.keys) == ([], {})


@pytest.mark.parametrize("image", ["ami-00000000000000000", "ssm:/no/such/parameter"])
def test_an_image_that_is_not_there_is_invalid_and_leaves_nothing(
    company: AwsLayer, cloud: AwsProvider, image: str
) -> None:
    with pytest.raises(Invalid):
        rent(cloud, image=image)
    assert company.things()["DescribeKeyPairs"] == []
    assert company.running == []


def test_a_docker_image_is_run_by_the_agent_on_an_image_that_has_docker(company: AwsLayer, cloud: AwsProvider) -> None:
    name = "pytorch/pytorch:2.4.0"
    (wanted, *_) = [o for o in cloud.offers(Ask(cpus_min=2, spot=False, image=name)) if o.key == "m7i.large/us-east-1a"]
    assert (wanted.container, wanted.image) == (name, "")
    cloud.create(wanted, TAG, 2e9, Boot("true", PUBLIC, name))
    assert company.sent("POST", "/GetParameter$") == 1
    assert ("us-east-1", "", True) in cloud._images._kept  # that for GPUs, although the machine has none
    with pytest.raises(Invalid, match="registry or tag"):
        cloud.offers(Ask(image="ubuntu"))


def test_ssh_is_let_in_from_where_the_config_says(company: AwsLayer, tmp_path: Path) -> None:
    cloud = AwsProvider(company.config(tmp_path, ssh_from=["203.0.113.0/24", "2001:db8::/32"]))
    rent(cloud)
    (group,) = cloud._api.pages(
        "us-east-1", "list", "describe_security_groups", "SecurityGroups",
        Filters=[{"Name": "tag:gpujob-rental", "Values": ["rental-1"]}],
    )  # fmt: skip
    (rule,) = group["IpPermissions"]
    assert [each["CidrIp"] for each in rule["IpRanges"]] == ["203.0.113.0/24"]
    assert [each["CidrIpv6"] for each in rule["Ipv6Ranges"]] == ["2001:db8::/32"]
    assert rule["FromPort"] == rule["ToPort"] == company.port


# --- lives ------------------------------------------------------------------------------------------------------------


def test_a_fresh_machine_that_readers_do_not_show_yet_is_not_missing(company: AwsLayer, cloud: AwsProvider) -> None:
    company.lag_s = 5.0
    made = rent(cloud)
    with pytest.raises(Ambiguous, match="does not show"):
        cloud.get(made.ref)
    assert cloud.list("us-east-1").instances == ()
    company.advance(6)
    seen = cloud.get(made.ref)
    assert seen is not None
    assert seen.status == "running"


def test_pending_and_shutting_down_are_neither_ready_nor_dead(company: AwsLayer, cloud: AwsProvider) -> None:
    company.boot_s, company.ending_s = 30.0, 60.0
    made = rent(cloud)

    def look() -> tuple[str, bool, bool]:
        seen = cloud.get(made.ref)
        assert seen is not None
        return seen.status, seen.ready, seen.status in cloud.caps.dead_statuses

    assert look() == ("pending", False, False)
    company.advance(31)
    assert look() == ("running", True, False)
    cloud.destroy(made.ref)
    assert look() == ("shutting-down", False, False)
    (group,) = [each for each in cloud.list("us-east-1").others if each.ref.kind == "group"]
    with pytest.raises(Ambiguous, match="dependent object"):  # its machine still holds it
        cloud.destroy(group.ref)
    company.advance(61)
    assert look() == ("terminated", False, True)
    assert cloud.destroy(group.ref) is DestroyAck.ACKNOWLEDGED


def test_a_reclaimed_spot_machine_is_lost_while_it_shuts_down(company: AwsLayer, cloud: AwsProvider) -> None:
    company.ending_s = 60.0
    made = rent(cloud, spot=True)
    company.reclaim(made.ref.id)
    seen = cloud.get(made.ref)
    assert seen is not None
    assert (seen.status, seen.raw["reason"]) == ("shutting-down", "Server.SpotInstanceTermination")
    assert seen.notice is not None
    assert seen.notice.at <= time.time()


def test_a_machine_that_somebody_stopped_is_lost_and_not_dead(company: AwsLayer, cloud: AwsProvider) -> None:
    made = rent(cloud)
    company.stop(made.ref.id)
    seen = cloud.get(made.ref)
    assert seen is not None
    assert (seen.status, seen.notice is not None) == ("stopped", True)
    assert seen.status not in cloud.caps.dead_statuses
    assert cloud.destroy(made.ref) is DestroyAck.ACKNOWLEDGED


@pytest.mark.parametrize("machine", [{"State": {"Name": "hibernating"}}, {}, {"State": 7, "Tags": "none"}])
def test_a_status_that_nobody_knows_survives(cloud: AwsProvider, machine: dict[str, Any]) -> None:
    seen = cloud._instance("us-east-1", {"InstanceId": "i-1", **machine})
    assert (seen.ready, seen.tag, seen.endpoint) == (False, None, None)
    assert seen.status not in cloud.caps.dead_statuses


def test_all_pages_are_read(company: AwsLayer, cloud: AwsProvider) -> None:
    for n in range(7):
        rent(cloud, tag=Tag("contract", f"rental-{n}"))
    company.page = 5
    before = company.sent("POST", "/DescribeInstances$")
    listed = cloud.list("us-east-1").instances
    assert {i.tag.rental for i in listed if i.tag} == {f"rental-{n}" for n in range(7)}
    assert company.sent("POST", "/DescribeInstances$") - before == 2


def test_a_disk_that_stayed_behind_is_listed_with_its_price_and_destroyed(cloud: AwsProvider) -> None:
    tags = [{"Key": "gpujob-deployment", "Value": "contract"}, {"Key": "gpujob-rental", "Value": "rental-9"}]
    cloud._api.call(
        "us-east-1", "create", "create_volume", AvailabilityZone="us-east-1a", Size=730,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )  # fmt: skip
    (disk,) = cloud.list("us-east-1").others
    assert (disk.ref.kind, disk.hourly, disk.tag) == ("disk", Decimal("0.08"), Tag("contract", "rental-9"))
    assert cloud.destroy(disk.ref) is DestroyAck.ACKNOWLEDGED
    assert cloud.destroy(disk.ref) is DestroyAck.MISSING
    assert cloud.list("us-east-1").others == ()


# --- errors and keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (500, "InsufficientInstanceCapacity", NoCapacity),
        (400, "InsufficientFreeAddressesInSubnet", NoCapacity),
        (400, "Unsupported", NoCapacity),
        (400, "MaxSpotInstanceCountExceeded", PoolQuotaExceeded),
        (400, "VcpuLimitExceeded", PoolQuotaExceeded),
        (400, "VolumeLimitExceeded", PoolQuotaExceeded),
        (503, "RequestLimitExceeded", RateLimited),
        (400, "Throttling", RateLimited),
        (403, "UnauthorizedOperation", AuthFailed),
        (401, "AuthFailure", AuthFailed),
        (400, "ExpiredToken", AuthFailed),
        (401, "OptInRequired", AccountGate),
        (400, "PendingVerification", AccountGate),
        (403, "AuthFailure.ServiceLinkedRoleCreationNotPermitted", AccountGate),
        (400, "InvalidParameterValue", Invalid),
        (400, "InvalidParameterCombination", Invalid),
        (400, "MissingParameter", Invalid),
        (400, "SomethingNobodyKnows", Invalid),
        (400, "IdempotentParameterMismatch", Ambiguous),
        (500, "InternalError", Ambiguous),
        (503, "Unavailable", Ambiguous),
        (500, "SomethingNobodyKnows", Ambiguous),
    ],
)
def test_a_code_decides_what_an_error_is(status: int, code: str, kind: type[ProviderError]) -> None:
    said = {"Error": {"Code": code, "Message": "said"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    found = judge(said, "create")
    assert type(found) is kind
    assert "said" in str(found)


@pytest.mark.parametrize("response", [{}, {"Error": None}, {"Error": {"Code": 7}, "ResponseMetadata": None}])
def test_an_error_without_words_is_ambiguous(response: dict[str, Any]) -> None:
    assert type(judge(response, "create")) is Ambiguous


def test_what_a_missing_right_says_is_cut_before_its_riddle() -> None:
    words = "You are not authorized to perform this operation. Encoded authorization failure message: AbC123"
    found = judge({"Error": {"Code": "UnauthorizedOperation", "Message": words}}, "create")
    assert "AbC123" not in str(found) + found.evidence
    assert "docs/how-to/use-aws.md" in str(found)


def test_the_environments_key_wins_over_the_kept_one(
    company: AwsLayer, cloud: AwsProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cloud.list("us-east-1").instances == ()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    with pytest.raises(AuthFailed):
        cloud.list("us-east-1")
    company.key = "AKIAOTHER other"
    assert cloud.list("us-east-1").instances == ()


def test_a_profile_that_is_not_there_is_said(company: AwsLayer, tmp_path: Path) -> None:
    cloud = AwsProvider(company.config(tmp_path, profile="training"))
    with pytest.raises(AuthFailed, match="training"):
        cloud.list("us-east-1")


def test_without_boto3_the_extra_is_named(cloud: AwsProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    with pytest.raises(Invalid, match="install gpujob with its extra `aws`"):
        cloud.list("us-east-1")


def test_login_tries_the_key_that_is_typed_and_not_what_the_shell_has(
    company: AwsLayer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home.from_env({"GPUJOB_HOME": str(tmp_path), "HOME": str(tmp_path)})
    for name, value in (("GPUJOB_HOME", str(tmp_path)), ("GPUJOB_NO_KEYRING", "1"), ("AWS_ACCESS_KEY_ID", "AKIASHELL"),
                        ("AWS_SECRET_ACCESS_KEY", "shell")):  # fmt: skip
        monkeypatch.setenv(name, value)
    home.make().config_file.write_text(yaml.safe_dump({"providers": {"aws": company.settings()}}))
    monkeypatch.setattr(sys, "stdin", io.StringIO("AKIAWRONG typed\n"))
    assert main(["login", "aws"]) == 3
    assert "aws does not take this key; nothing was kept" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO(company.key + "\n"))
    assert main(["login", "aws"]) == 0
    said = capsys.readouterr().err
    assert "aws took the key" in said
    assert "AWS_ACCESS_KEY_ID is set in this shell and wins" in said
    assert "secret-of-the-fake" not in said
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    cloud = AwsProvider(provider_config(Home.from_env(), "contract", company.settings()))
    assert cloud.list("us-east-1").instances == ()
