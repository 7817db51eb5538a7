"""Lambda Cloud: whole virtual machines by the minute, on demand, with real tags. No stop, no spot, no expiry.

Rules
- A machine that halts itself goes on billing (reported by its users), so `poweroff` is never ordered there, and
  nothing but our own terminate ends the bill: `self_end` is "nothing".
- A launch wants exactly one registered key: each rental registers its own, and a listing shows it as a leftover until
  it is destroyed. The key's name carries deployment, rental and, where 64 characters allow, the region.
- The boot hook is a systemd service of `ubuntu`, installed by user data, at every boot.
- `image` names one of Lambda's own images, by family or id; in a docker image the agent runs the job, on the default
  image, which has docker.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import quote

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
    Tag,
    is_docker_image,
)
from providers.cards import identify
from providers.errors import (
    AccountGate,
    Ambiguous,
    AuthFailed,
    Invalid,
    NoCapacity,
    ProviderError,
    QuotaExceeded,
    Refused,
)
from providers.fields import Rows, at, number, rows, text, whole
from providers.naming import check_tag, ours
from providers.rest import Answer, Rest, SharedRead, address, api_key, pace, setting
from providers.startup import cloud_config

KEY = "LAMBDA_API_KEY"
URL = "https://cloud.lambda.ai"
USER, PORT = "ubuntu", 22
NAME_MAX = 64  # of machines and keys
KEY_WORD = "gpujob"
TAGS: Mapping[str, str] = {
    "gpujob-deployment": "deployment", "gpujob-rental": "rental", "gpujob-job": "job", "gpujob-owner": "owner",
}  # fmt: skip
OWN_NAMES = {"RTX6000": "Quadro-RTX-6000", "H200": "H200-SXM", "H200SXM": "H200-SXM"}
GIB = 2**30
#: Known on that day; one that shows up in an answer is added for the life of the process.
REGIONS = (
    "asia-northeast-1", "asia-northeast-2", "asia-south-1", "australia-east-1", "europe-central-1", "europe-south-1",
    "me-west-1", "us-east-1", "us-east-2", "us-east-3", "us-midwest-1", "us-midwest-2", "us-south-1", "us-south-2",
    "us-south-3", "us-west-1", "us-west-2", "us-west-3",
)  # fmt: skip

#: Codes of error bodies; those of "provider/" and internal errors leave open whether it happened.
CODES: Mapping[str, type[ProviderError]] = {
    "instance-operations/launch/insufficient-capacity": NoCapacity,
    "instance-operations/launch/file-system-in-wrong-region": Invalid,
    "global/quota-exceeded": QuotaExceeded,
    "global/invalid-api-key": AuthFailed,
    "global/forbidden": AuthFailed,
    "global/account-inactive": AccountGate,
    "global/invalid-address": AccountGate,
    "global/invalid-parameters": Invalid,
    "global/object-does-not-exist": Invalid,
    "global/not-found": Invalid,
    "global/duplicate": Invalid,
    "global/conflict": Invalid,
    "global/internal-error": Ambiguous,
}

CAPS = Caps(
    dead_statuses=frozenset({"terminated"}),
    self_end="nothing",
    server_ttl=False,
    boot_hook="every_boot",
    power_off_allowed=False,  # it would bill on, unreachable
    stop_bills="all",
    disks_outlive=False,  # as made here: no file system is attached
    spot=False,
    min_billing_s=60,
    billing_step_s=60,
    name_pattern=r"[a-z][a-z0-9-]{0,62}",
    list_lag_s=10.0,
    ready_within_s=1500.0,  # some types boot for a quarter of an hour
    requests_per_s=1.0,
    source="docs.lambda.ai: Cloud API 1.10.0; billing of halted machines by users' reports; none of it tried live",
    as_of="2026-11-30",
)


class LambdaProvider:
    """Machines of one Lambda Cloud account. Settings: `regions`, `user`, `ssh_port`, `url`, `requests_per_s`."""

    name = "lambda"
    account = "default"
    caps = CAPS
    key_variable = KEY

    def __init__(self, config: ProviderConfig) -> None:
        self.config = config
        self._only = setting(config, "regions")
        self._regions = self._only or REGIONS
        self._user = str(config.settings.get("user") or USER)
        self._port = int(number(config.settings.get("ssh_port")) or PORT)
        self._rest = Rest(
            self.name,
            address(config, URL),
            lambda: api_key(config, self.name, KEY),
            _judge,
            per_second=pace(config, 1.0),
            burst=2,
        )
        self._account = SharedRead(self._read_account)

    def regions(self) -> tuple[str, ...]:
        return self._regions

    def offers(self, ask: Ask) -> tuple[Offer, ...]:
        """Types with free machines, one offer for each region. Raises `Invalid` for a docker image."""
        _image(ask.image)
        docker = is_docker_image(ask.image)
        if ask.spot:
            return ()
        answer = self._rest.call("GET", "/api/v1/instance-types", "offers")
        kinds = at(answer.body, "data")
        if not isinstance(kinds, Mapping):
            raise self._rest.unreadable("offers", answer.text)
        found: tuple[Offer, ...] = ()
        for name, item in kinds.items():
            kind = self._kind(name, at(item, "instance_type"), ask)
            for region in rows(at(item, "regions_with_capacity_available")) or () if kind is not None else ():
                place = text(region.get("name"))
                wanted = (not ask.regions or place in ask.regions) and (not self._only or place in self._only)
                if kind is not None and place and wanted:
                    pool = f"{name}/{place}"
                    found += (
                        Offer(
                            **kind,
                            region=place,
                            pool=pool,
                            image="" if docker else ask.image,
                            container=ask.image if docker else "",
                        ),
                    )
        self._learn(offer.region for offer in found)
        return found

    def _kind(self, name: str, kind: Any, ask: Ask) -> dict[str, Any] | None:
        """The fields of an offer that its type decides; None where it is not what was asked for."""
        count, price = whole(at(kind, "specs", "gpus")), number(at(kind, "price_cents_per_hour"))
        words = text(at(kind, "gpu_description"))
        memory = re.search(r"\(([0-9]+) ?GB(?: ([A-Za-z0-9]+))?\)", words)
        card = words.split(" (")[0]
        row = None
        if memory and count:
            size = int(memory[1])
            for spelling in (f"{card} {memory[2]}" if memory[2] else card, card):
                row = row or identify(spelling, size, self.config.gpus, OWN_NAMES)
        machine = {
            "cpus": whole(at(kind, "specs", "vcpus")),
            "memory": whole(at(kind, "specs", "memory_gib")) * GIB,
            "disk": whole(at(kind, "specs", "storage_gib")) * GIB,
        }
        enough = (ask.cpus_min, ask.memory_min, ask.disk_min)
        if price is None or price <= 0 or any(has < least for has, least in zip(machine.values(), enough, strict=True)):
            return None
        if (count > 0) != bool(ask.gpus):
            return None
        if ask.gpus and not any(row is not None and (w.name, w.count) == (row.name, count) for w in ask.gpus):
            return None
        return machine | {
            "provider": self.name, "account": self.account, "key": name, "spot": False,
            "hourly": price / Decimal(100), "currency": "USD", "min_billing_s": 60, "billing_step_s": 60,
            "gpu": row.name if row else "", "gpu_count": count, "vram_gb": row.vram_gb if row else 0,
        }  # fmt: skip

    def _learn(self, found: Any) -> None:
        new = set(found) - set(self._regions)
        if new:
            self._regions = (*self._regions, *sorted(new))

    def create(self, offer: Offer, tag: Tag, end: float, boot: Boot) -> Instance:
        """Register the rental's key, then one launch; where that is refused, the key goes again."""
        check_tag(tag, self.config, self.name)
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", offer.key):
            raise Invalid(f"Lambda has no type {offer.key!r}", provider=self.name, what="create")
        image = {} if offer.container else _image(boot.image or offer.image)
        key_name = _key_name(tag, offer.region)
        key_id = self._register(key_name, boot.public_key.strip())
        body: dict[str, Any] = {
            "region_name": offer.region,
            "instance_type_name": offer.key,
            "ssh_key_names": [key_name],
            "name": tag.name,
            "user_data": cloud_config(boot.hook, self._user),
            "tags": [{"key": k, "value": getattr(tag, part)} for k, part in TAGS.items() if getattr(tag, part)],
        }
        if image:
            body["image"] = image
        try:
            made = self._rest.call("POST", "/api/v1/instance-operations/launch", "create", body=body).body
        except Refused:
            self._remove_key(key_id)
            raise
        found = text(at(made, "data", "instance_ids", 0))
        if not found:
            raise self._rest.unreadable("create", made)
        ref = Ref(self.name, self.account, offer.region, found)
        return Instance(ref, "booting", tag, hourly=offer.hourly, currency="USD")

    def _register(self, name: str, public_key: str) -> str:
        """The id of the rental's key, made now or by an earlier try."""
        try:
            made = self._rest.call(
                "POST", "/api/v1/ssh-keys", "key", body={"name": name, "public_key": public_key}
            ).body
        except Invalid:
            found = (each for each in self._data("/api/v1/ssh-keys") if each.get("name") == name)
            known = next((each for each in found if text(each.get("public_key")).strip() == public_key), None)
            if known is None:
                raise
            return text(known.get("id"))
        return text(at(made, "data", "id"))

    def _remove_key(self, key: str) -> None:
        """Best effort: a key that stays is listed as a leftover of its rental, and costs nothing."""
        try:
            if key:
                self._rest.call("DELETE", f"/api/v1/ssh-keys/{quote(key, safe='')}", "destroy")
        except ProviderError:
            return

    def list(self, region: str) -> Listing:
        """Our machines of `region` and the keys that their rentals registered."""
        return ours(self._account.get(), self.config.deployment, region)

    def list_all(self, region: str) -> Listing:
        """All machines of the account in `region`; keys of others are not shown."""
        everything = self._account.get()
        return Listing(tuple(machine for machine in everything.instances if machine.ref.region == region))

    def get(self, ref: Ref) -> Instance | None:
        answer = self._rest.call("GET", f"/api/v1/instances/{quote(ref.id, safe='')}", "get", may=(404,))
        if answer.status == 404:
            return None
        if text(at(answer.body, "data", "id")) != ref.id:
            raise self._rest.unreadable("get", answer.text)
        return self._instance(at(answer.body, "data"))

    def destroy(self, ref: Ref) -> DestroyAck:
        if ref.kind == "key":
            gone = self._rest.call("DELETE", f"/api/v1/ssh-keys/{quote(ref.id, safe='')}", "destroy", may=(404,))
            return DestroyAck.MISSING if gone.status == 404 else DestroyAck.ACKNOWLEDGED
        answer = self._rest.call(
            "POST", "/api/v1/instance-operations/terminate", "destroy", body={"instance_ids": [ref.id]}, may=(404,)
        )
        if answer.status == 404:
            return DestroyAck.MISSING
        ended = rows(at(answer.body, "data", "terminated_instances"))
        if ended is None:
            raise self._rest.unreadable("destroy", answer.text)
        return DestroyAck.ACKNOWLEDGED if any(each.get("id") == ref.id for each in ended) else DestroyAck.MISSING

    def set_expiry(self, ref: Ref, at: float) -> None:
        raise Invalid("Lambda has no timer that could be moved", provider=self.name, what="set_expiry")

    def _read_account(self) -> Listing:
        machines = self._data("/api/v1/instances")
        keys = self._data("/api/v1/ssh-keys")
        if not all(text(each.get("id")) for each in (*machines, *keys)):
            raise self._rest.unreadable("list", "a thing without an id")
        everywhere = tuple(machine.ref.region for machine in map(self._instance, machines))
        return Listing(
            tuple(self._instance(machine) for machine in machines),
            tuple(each for key in keys for each in self._key(key, (*self._regions, *everywhere))),
        )

    def _data(self, path: str) -> Rows:
        answer = self._rest.call("GET", path, "list")
        found = rows(at(answer.body, "data"))
        if found is None:
            raise self._rest.unreadable("list", answer.text)
        return found

    def _key(self, key: Mapping[str, Any], everywhere: tuple[str, ...]) -> tuple[Resource, ...]:
        """Where a key of ours is listed: in its region, or in each when the name had no room for that."""
        parts = text(key.get("name")).split(".")
        if len(parts) not in (3, 4) or parts[0] != KEY_WORD or not parts[1] or not parts[2]:
            return ()
        places = (parts[3],) if len(parts) == 4 else tuple(dict.fromkeys(everywhere))
        tag = Tag(parts[1], parts[2])
        return tuple(
            Resource(Ref(self.name, self.account, place, text(key.get("id")), "key"), "registered", tag)
            for place in places
        )

    def _instance(self, machine: Mapping[str, Any]) -> Instance:
        found = {text(each.get("key")): text(each.get("value")) for each in rows(machine.get("tags")) or ()}
        tag = Tag(**{part: found.get(key, "") for key, part in TAGS.items()})
        status, ip = text(machine.get("status")), text(machine.get("ip"))
        cents = number(at(machine, "instance_type", "price_cents_per_hour"))
        return Instance(
            ref=Ref(self.name, self.account, text(at(machine, "region", "name")), text(machine.get("id"))),
            status=status,
            tag=tag if tag.deployment and tag.rental else None,
            ready=status == "active" and bool(ip),
            endpoint=Endpoint(ip, self._port, self._user) if ip and status not in CAPS.dead_statuses else None,
            hourly=cents / 100 if cents else None,
            currency="USD" if cents else "",
            notice=Notice(time.time()) if status == "preempted" else None,
            raw={"type": text(at(machine, "instance_type", "name"))},
        )


def _image(name: str) -> dict[str, str]:
    """The launch's `image`; empty for the default. Raises `Invalid` for what is no image of Lambda's."""
    if not name or is_docker_image(name):
        return {}
    if " " in name:
        raise Invalid(
            f"Lambda has no image {name!r}: give one of its own by family or id, such as lambda-stack-24-04, or a "
            "docker image with its registry or tag",
            provider="lambda", what="offers",
        )  # fmt: skip
    is_id = re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}", name)
    return {"id": name} if is_id else {"family": name}


def _key_name(tag: Tag, region: str) -> str:
    short = f"{KEY_WORD}.{tag.deployment}.{tag.rental}"
    whole_name = f"{short}.{region}"
    return whole_name if len(whole_name) <= NAME_MAX else short


def _judge(answer: Answer, what: str) -> ProviderError | None:
    code = text(at(answer.body, "error", "code"))
    said = (text(at(answer.body, "error", part)) for part in ("message", "suggestion"))
    words = " ".join(filter(None, said)) or code
    kind = CODES.get(code)
    if code.startswith("provider/"):
        kind = Ambiguous
    if kind is None or answer.status == 429:
        return None
    if what == "destroy" and kind is Invalid:
        kind = Ambiguous  # refused for an unknown reason: to be tried again
    how = "failed at" if kind is Ambiguous else "refused"
    return kind(f"Lambda {how} {what}: {words}", provider="lambda", what=what, evidence=f"{code}: {words}")
