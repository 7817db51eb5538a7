"""Amazon EC2: virtual machines by the second, on demand and spot, with real tags and an idempotent launch.

Rules
- The client token of a launch is the rental's id: a launch sent twice makes one machine. A mismatch of its parameters
  means that an earlier one may have been carried out, so it is Ambiguous.
- A machine that powers off terminates, and its disks with it: the machine's own end ends the bill.
- Each rental has its own key and security group, made before the launch, shown as leftovers under the rental's tag
  until they are destroyed: nothing is shared, so nothing can be removed under somebody else.
- What Amazon does not know yet, seconds after a launch, is not missing: that is Ambiguous.
- Spot requests are one-time and terminate; the machine reads its notice from the metadata service by itself.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from providers import aws_prices
from providers.aws_api import KEY, NAME, Api, is_missing, unreadable
from providers.aws_images import Image, Images, own_image
from providers.aws_offers import DISK_MIN_GB, SPOT_MARGIN, Catalog
from providers.base import (
    Ask,
    Boot,
    Caps,
    DestroyAck,
    Endpoint,
    Instance,
    Listing,
    Notice,
    Offer,
    ProviderConfig,
    Ref,
    Resource,
    ResourceKind,
    Tag,
)
from providers.errors import Ambiguous, Invalid, ProviderError, Refused
from providers.fields import at, gigabytes, number, rows, text
from providers.naming import check_tag
from providers.rest import SharedRead, setting
from providers.startup import cloud_config

METADATA = "http://169.254.169.254"
PORT = 22
LAG_S = 60.0  # a fresh machine may be unknown to a reader for so long
NAME_MAX = 255  # of keys and groups
DESCRIPTION = "gpujob: SSH to one rented machine"
TAGS: Mapping[str, str] = {
    "gpujob-deployment": "deployment", "gpujob-rental": "rental", "gpujob-job": "job", "gpujob-owner": "owner",
}  # fmt: skip
HOURLY, LOGIN = "gpujob-hourly", "gpujob-login"  # what no answer of Amazon tells about a machine
#: On in every account; others by `regions` in the config.
REGIONS = (
    "us-east-1", "us-east-2", "us-west-2", "ca-central-1", "eu-central-1", "eu-west-1", "eu-north-1", "ap-northeast-1",
)  # fmt: skip

CAPS = Caps(
    dead_statuses=frozenset({"terminated"}),
    self_end="destroys",  # InstanceInitiatedShutdownBehavior=terminate, and DeleteOnTermination on every disk
    server_ttl=False,
    boot_hook="every_boot",
    idempotent_create=True,
    stop_bills="disk",
    disks_outlive=False,  # as made here
    spot=True,
    spot_notice_s=120.0,
    spot_notice_file=METADATA,
    min_billing_s=60,
    billing_step_s=1,
    list_lag_s=15.0,
    dead_listed_s=3600.0,
    ready_within_s=900.0,
    requests_per_s=20.0,
    egress_per_gb=Decimal("0.09"),
    source="docs.aws.amazon.com: EC2 API 2016-11-15, its throttling and spot guides; held to moto, not tried live",
    as_of="2026-11-30",
)

#: How each kind of leftover is listed: operation, rows, id field, and how it is destroyed. In this order.
LEFTOVERS: tuple[tuple[ResourceKind, str, str, str, str], ...] = (
    ("disk", "describe_volumes", "Volumes", "VolumeId", "delete_volume"),
    ("address", "describe_addresses", "Addresses", "AllocationId", "release_address"),
    ("snapshot", "describe_snapshots", "Snapshots", "SnapshotId", "delete_snapshot"),
    ("key", "describe_key_pairs", "KeyPairs", "KeyPairId", "delete_key_pair"),
    ("group", "describe_security_groups", "SecurityGroups", "GroupId", "delete_security_group"),
)


class AwsProvider:
    """One AWS account. Settings: `regions`, `profile`, `url`, `subnets`, `spot_margin`, `ssh_from`, `ssh_port`, `user`,
    `metadata_url`."""

    name = NAME
    account = "default"
    key_variable = KEY

    def __init__(self, config: ProviderConfig) -> None:
        self.config = config
        self.caps = replace(CAPS, spot_notice_file=text(config.settings.get("metadata_url")) or METADATA)
        self._regions = setting(config, "regions") or REGIONS
        margin = number(config.settings.get("spot_margin"))
        self._port = int(number(config.settings.get("ssh_port")) or PORT)
        self._from = setting(config, "ssh_from") or ("0.0.0.0/0",)
        self._api = Api(config)
        self._catalog = Catalog(
            self._api,
            config.gpus,
            config.home,
            margin if margin is not None and margin >= 1 else SPOT_MARGIN,
            setting(config, "subnets"),
        )
        self._images = Images(self._api, text(config.settings.get("user")))
        self._lists = {region: SharedRead(self._reader(region)) for region in self._regions}
        self._made: dict[str, float] = {}  # machines of this process, until every reader must know them

    def regions(self) -> tuple[str, ...]:
        return self._regions

    def offers(self, ask: Ask) -> tuple[Offer, ...]:
        """One offer for each type, zone and market."""
        own, least = own_image(ask.image), gigabytes(ask.disk_min, DISK_MIN_GB)

        def disk_of(region: str) -> int:
            """An image of the user's own may be larger than what is usual, and is in its own regions alone."""
            return max(least, self._images.find(region, own, bool(ask.gpus)).size_gb) if own else least

        # A docker image needs an image with docker: the one for GPUs has it, and runs without one as well.
        return self._catalog.offers(ask, self._regions, disk_of)

    def create(self, offer: Offer, tag: Tag, end: float, boot: Boot) -> Instance:
        """Key and group of the rental, then one launch; where that is refused, both go again."""
        check_tag(tag, self.config, self.name)
        (kind, _, zone), region = offer.key.partition("/"), offer.region
        if not re.fullmatch(r"[a-z0-9-]+\.[a-z0-9-]+", kind) or not zone.startswith(region):
            raise Invalid(f"AWS has no type and zone {offer.key!r}", provider=self.name, what="create")
        place = self._catalog.zones(region).get(zone)
        if place is None:
            raise Invalid(f"this account has no subnet in {zone}", provider=self.name, what="create")
        self._api.turn(region, "create")
        own = "" if offer.container else own_image(boot.image or offer.image)
        image = self._images.find(region, own, offer.gpu_count > 0 or bool(offer.container))
        offered = gigabytes(offer.disk, DISK_MIN_GB)
        if image.size_gb > offered:
            raise Invalid(
                f"the image {image.id} takes {image.size_gb} GB, and {offered} GB were offered: "
                f"write `disk: {{system: {image.size_gb} GB}}`",
                provider=self.name, what="create",
            )  # fmt: skip
        self._make_key(region, tag, boot.public_key.strip())
        group = self._make_group(region, tag, place[1])
        request = self._launch(offer, tag, boot, kind, zone, place[0], group, image)
        try:
            made = self._api.call(region, "create", "run_instances", **request)
        except Refused:
            self._clear(region, tag)
            raise
        machine = at(made, "Instances", 0)
        if not isinstance(machine, Mapping) or not text(machine.get("InstanceId")):
            raise unreadable("create", "a launch without a machine")
        self._made[text(machine["InstanceId"])] = time.monotonic() + LAG_S
        seen = self._instance(region, machine)
        return replace(seen, tag=tag, hourly=offer.hourly, currency="USD")

    def _launch(
        self, offer: Offer, tag: Tag, boot: Boot, kind: str, zone: str, subnet: str, group: str, image: Image
    ) -> dict[str, Any]:
        disk = max(gigabytes(boot.disk, DISK_MIN_GB), gigabytes(offer.disk, 0), image.size_gb)
        more = {HOURLY: str(offer.hourly), LOGIN: image.user}
        carried = ("instance", "volume", "network-interface", *(("spot-instances-request",) if offer.spot else ()))
        request: dict[str, Any] = {
            "ClientToken": tag.rental,
            "MinCount": 1,
            "MaxCount": 1,
            "ImageId": image.id,
            "InstanceType": kind,
            "KeyName": _own_name(tag),
            "Placement": {"AvailabilityZone": zone},
            "NetworkInterfaces": [
                {
                    "DeviceIndex": 0, "SubnetId": subnet, "Groups": [group],
                    "AssociatePublicIpAddress": True, "DeleteOnTermination": True,
                }
            ],
            "UserData": cloud_config(boot.hook, image.user),
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 1},
            "BlockDeviceMappings": image.disks(disk),
            "TagSpecifications": [{"ResourceType": what, "Tags": _tags(tag, more)} for what in carried],
        }  # fmt: skip
        if offer.spot:
            most = offer.hourly - aws_prices.extras(offer.region, gigabytes(offer.disk, 0))
            request["InstanceMarketOptions"] = {
                "MarketType": "spot",
                "SpotOptions": {
                    "SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate",
                    "MaxPrice": f"{most:.6f}",
                },
            }  # fmt: skip
        return request

    def _make_key(self, region: str, tag: Tag, public_key: str) -> None:
        try:
            self._api.call(
                region, "key", "import_key_pair", KeyName=_own_name(tag), PublicKeyMaterial=public_key.encode(),
                TagSpecifications=[{"ResourceType": "key-pair", "Tags": _tags(tag)}],
            )  # fmt: skip
        except Invalid as error:
            if not error.evidence.startswith("InvalidKeyPair.Duplicate"):
                raise

    def _make_group(self, region: str, tag: Tag, network: str) -> str:
        """The rental's group, made now or by an earlier try: SSH in, everything out."""
        try:
            made = self._api.call(
                region, "group", "create_security_group", GroupName=_own_name(tag), Description=DESCRIPTION,
                VpcId=network, TagSpecifications=[{"ResourceType": "security-group", "Tags": _tags(tag)}],
            )  # fmt: skip
            group = text(made.get("GroupId"))
        except Invalid as error:
            if not error.evidence.startswith("InvalidGroup.Duplicate"):
                raise
            found = self._tagged(region, "create", LEFTOVERS[-1], tag)
            group = text(found[0].get("GroupId")) if found else ""
        if not group:
            raise unreadable("create", "a security group without an id")
        ranges: dict[str, list[dict[str, str]]] = {"IpRanges": [], "Ipv6Ranges": []}
        for cidr in self._from:
            ranges["Ipv6Ranges" if ":" in cidr else "IpRanges"].append(
                {"CidrIpv6": cidr} if ":" in cidr else {"CidrIp": cidr}
            )
        rule = {"IpProtocol": "tcp", "FromPort": self._port, "ToPort": self._port}
        rule |= {name: each for name, each in ranges.items() if each}
        try:
            self._api.call(region, "group", "authorize_security_group_ingress", GroupId=group, IpPermissions=[rule])
        except Invalid as error:
            if not error.evidence.startswith("InvalidPermission.Duplicate"):
                raise
        return group

    def _clear(self, region: str, tag: Tag) -> None:
        """Best effort: what stays is listed as a leftover of its rental, and costs nothing."""
        try:
            self._api.call(region, "destroy", "delete_key_pair", KeyName=_own_name(tag))
            for group in self._tagged(region, "create", LEFTOVERS[-1], tag):
                self._api.call(region, "destroy", "delete_security_group", GroupId=text(group.get("GroupId")))
        except ProviderError:
            return

    # --- reading ------------------------------------------------------------------------------------------------------

    def list(self, region: str) -> Listing:
        """Machines, disks, addresses, snapshots, keys and groups of this deployment in `region`."""
        if region not in self._lists:
            return self._read(region)
        found: Listing = self._lists[region].get()
        return found

    def list_all(self, region: str) -> Listing:
        """All machines of the account in `region` that are not terminated, and volumes without a machine."""
        machines = self._machines(region, [])
        volumes = self._api.pages(
            region, "list", "describe_volumes", "Volumes", Filters=[{"Name": "status", "Values": ["available"]}]
        )
        return Listing(
            tuple(each for each in machines if each.status != "terminated"),
            tuple(self._resource(region, LEFTOVERS[0], each) for each in volumes),
        )

    def _reader(self, region: str) -> Any:
        return lambda: self._read(region)

    def _read(self, region: str) -> Listing:
        ours = Tag(self.config.deployment, "")
        machines = self._machines(region, _filters(ours))
        others: list[Resource] = []
        for row in LEFTOVERS:
            for each in self._tagged(region, "list", row, ours):
                # A disk in use goes with its machine; one that is being deleted is gone already.
                if row[0] != "disk" or text(each.get("State")) not in ("in-use", "deleting", "deleted"):
                    others.append(self._resource(region, row, each))
        return Listing(machines, tuple(others))

    def _machines(self, region: str, filters: Any) -> tuple[Instance, ...]:
        found: list[Instance] = []
        for reservation in self._api.pages(region, "list", "describe_instances", "Reservations", Filters=filters):
            machines = rows(reservation.get("Instances"))
            if machines is None or not all(text(each.get("InstanceId")) for each in machines):
                raise unreadable("list", "a reservation without its machines")
            found += [self._instance(region, each) for each in machines]
        return tuple(found)

    def _tagged(self, region: str, what: str, row: tuple[ResourceKind, str, str, str, str], tag: Tag) -> Any:
        more: dict[str, Any] = {"OwnerIds": ["self"]} if row[0] == "snapshot" else {}
        return self._api.pages(region, what, row[1], row[2], Filters=_filters(tag), **more)

    def get(self, ref: Ref) -> Instance | None:
        try:
            found = self._api.pages(ref.region, "get", "describe_instances", "Reservations", InstanceIds=[ref.id])
        except ProviderError as error:
            if not is_missing(error):
                raise
            found = []
        for reservation in found:
            for machine in rows(reservation.get("Instances")) or ():
                if text(machine.get("InstanceId")) == ref.id:
                    return self._instance(ref.region, machine)
        if time.monotonic() < self._made.get(ref.id, 0.0):
            raise Ambiguous(f"AWS does not show {ref.id} yet", provider=self.name, what="get")
        return None

    def destroy(self, ref: Ref) -> DestroyAck:
        """Terminate a machine, delete a leftover; a group that its machine still holds is asked for again later."""
        try:
            if ref.kind == "instance":
                self._api.call(ref.region, "destroy", "terminate_instances", InstanceIds=[ref.id])
                return DestroyAck.ACKNOWLEDGED
            row = next((row for row in LEFTOVERS if row[0] == ref.kind), None)
            if row is None:
                raise Invalid(f"AWS has no kind of thing called {ref.kind}", provider=self.name, what="destroy")
            if ref.kind == "key":  # deleting one that is not there succeeds
                known = self._api.call(ref.region, "destroy", row[1], KeyPairIds=[ref.id])
                if not known.get(row[2]):
                    return DestroyAck.MISSING
            self._api.call(ref.region, "destroy", row[4], **{row[3]: ref.id})
        except ProviderError as error:
            if not is_missing(error):
                raise
            return DestroyAck.MISSING
        return DestroyAck.ACKNOWLEDGED

    def set_expiry(self, ref: Ref, at: float) -> None:
        raise Invalid("EC2 has no timer that could be moved", provider=self.name, what="set_expiry")

    def _instance(self, region: str, machine: Mapping[str, Any]) -> Instance:
        tag, words = _read_tags(machine)
        status, address = text(at(machine, "State", "Name")), text(machine.get("PublicIpAddress"))
        reason = text(at(machine, "StateReason", "Code"))
        hourly, launched = number(words.get(HOURLY)), machine.get("LaunchTime")
        # A spot machine on its way out is lost; one that somebody stopped computes nothing and its disk bills.
        lost = status in ("stopping", "stopped") or (status == "shutting-down" and reason.startswith("Server.Spot"))
        shown = bool(address) and status in ("pending", "running")
        return Instance(
            ref=Ref(self.name, self.account, region, text(machine.get("InstanceId"))),
            status=status,
            tag=tag,
            ready=status == "running" and bool(address),
            endpoint=Endpoint(address, self._port, words.get(LOGIN) or "ubuntu") if shown else None,
            created_at=launched.timestamp() if isinstance(launched, datetime) else None,
            hourly=hourly,
            currency="USD" if hourly is not None else "",
            notice=Notice(time.time()) if lost else None,
            raw={
                "type": text(machine.get("InstanceType")),
                "zone": text(at(machine, "Placement", "AvailabilityZone")),
                "market": text(machine.get("InstanceLifecycle")) or "on-demand",
                "reason": reason,
            },
        )

    def _resource(self, region: str, row: tuple[ResourceKind, str, str, str, str], each: Mapping[str, Any]) -> Resource:
        size = number(each.get("Size")) if row[0] == "disk" else None
        month = aws_prices.DISK_GB_MONTH.get(region, aws_prices.DISK_GB_MONTH_ELSEWHERE)
        hourly = size * month / aws_prices.HOURS_PER_MONTH if size else None
        if row[0] == "address":
            hourly = aws_prices.ADDRESS_HOUR
        ref = Ref(self.name, self.account, region, text(each.get(row[3])), row[0])
        status = text(each.get("State")) or "present"
        return Resource(ref, status, _read_tags(each)[0], hourly, "USD" if hourly is not None else "")


def _own_name(tag: Tag) -> str:
    """Of the rental's key and group: unlike that of any other rental or deployment in the account."""
    return f"gpujob.{tag.deployment}.{tag.rental}"[:NAME_MAX]


def _tags(tag: Tag, more: Mapping[str, str] | None = None) -> Any:
    parts = {key: getattr(tag, part) for key, part in TAGS.items() if getattr(tag, part)}
    return [{"Key": key, "Value": value} for key, value in {"Name": tag.name, **parts, **(more or {})}.items()]


def _filters(tag: Tag) -> Any:
    parts = {key: getattr(tag, part) for key, part in TAGS.items() if part in ("deployment", "rental")}
    return [{"Name": f"tag:{key}", "Values": [value]} for key, value in parts.items() if value]


def _read_tags(thing: Mapping[str, Any]) -> tuple[Tag | None, Mapping[str, str]]:
    """(our tag or None, all tags)."""
    words = {text(each.get("Key")): text(each.get("Value")) for each in rows(thing.get("Tags")) or ()}
    tag = Tag(**{part: words.get(key, "") for key, part in TAGS.items()})
    return (tag if tag.deployment and tag.rental else None), words
