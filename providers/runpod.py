"""RunPod: containers by the second, on demand, over REST v2 (v1 is retired). There is no spot in it, no tag, no expiry.

Rules
- The tag is the pod's name, and a variable beside it should somebody rename the pod. One region, `global`, unless the
  config names data centres: the one that a pod lands in may come late or never, so it decides nothing.
- A 400 of a create means "breaks a rule" or "no capacity", told apart by the text alone; a text that names no rule is
  taken as capacity, since a rule fails on every candidate and a bounded wait then shows the text.
- EXITED and ERROR are not dead: a pod can be started again. They are a reclaim that is over; only TERMINATED is dead.
- No volume is ever made, so a deleted pod leaves nothing; the disk is the container's, free while the pod is stopped.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
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
    Tag,
)
from providers.cards import identify
from providers.errors import AuthFailed, Invalid, NoCapacity, ProviderError, QuotaExceeded
from providers.fields import Rows, at, epoch, gigabytes, number, per_hour, rows, text, whole
from providers.naming import check_tag, ours, read_tag_text, tag_text
from providers.rest import HOURS_PER_MONTH, Answer, Rest, SharedRead, address, api_key, pace, setting
from providers.startup import UNPACK, container_start, packed

KEY = "RUNPOD_API_KEY"
URL = "https://api.runpod.io"
IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"
GLOBAL = "global"
DISK_GB = 50  # an image of PyTorch takes 20 of them
DISK_PER_GB_MONTH = Decimal("0.10")  # container disk while running
CPU_DISK_GB = 20
TAG_VARIABLE, BOOT_VARIABLE = "GPUJOB_TAG", "GPUJOB_BOOT"
Query = Mapping[str, str | int]
OWN_NAMES = {"H200": "H200-SXM"}
#: Containers get an API key for their own pod; `stop` is what the docs show from inside, `remove` also frees the disk.
POWEROFF = """\
export RUNPOD_API_KEY='$RUNPOD_API_KEY'
runpodctl remove pod '$RUNPOD_POD_ID' || runpodctl stop pod '$RUNPOD_POD_ID'
"""

_CAPACITY = re.compile(
    r"no longer any|no (free |available )?(instances|machines|gpus|capacity)|not enough|out of stock|"
    r"could not be placed|unavailable|insufficient (capacity|resources)",
    re.IGNORECASE,
)
_RULE = re.compile(
    r"must|required|invalid|not allowed|mutually exclusive|unknown|unsupported|malformed|does not exist|not found",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"quota|spend(ing)? limit|limit (was |is )?(reached|exceeded)|too many pods", re.IGNORECASE)
_RIGHT = re.compile(r"api key|permission|scope|read.?only", re.IGNORECASE)

CAPS = Caps(
    dead_statuses=frozenset({"TERMINATED"}),
    self_end="stops_all_billing",
    server_ttl=False,
    boot_hook="every_boot",
    stop_bills="nothing",  # of pods as made here: a persistent disk would bill on
    disks_outlive=False,
    spot=False,
    billing_step_s=1,
    name_pattern=r"[a-z][a-z0-9-]{0,62}",
    list_lag_s=10.0,
    ready_within_s=1200.0,  # large images are pulled first
    requests_per_s=1.0,
    source="docs.runpod.io: REST v2 OpenAPI, pricing, runpodctl inside a pod; none of it tried live",
    as_of="2026-11-30",
)


class RunPodProvider:
    """Pods of one RunPod account. Settings: `regions` (data centres), `cloud` (secure, community), `url`,
    `requests_per_s`.
    """

    name = "runpod"
    account = "default"
    caps = CAPS
    key_variable = KEY

    def __init__(self, config: ProviderConfig) -> None:
        self.config = config
        self._regions = setting(config, "regions") or (GLOBAL,)
        self._clouds = tuple(each.upper() for each in setting(config, "cloud")) or ("SECURE",)
        self._rest = Rest(
            self.name,
            address(config, URL),
            lambda: api_key(config, self.name, KEY),
            _judge,
            per_second=pace(config, 1.0),  # 60 a minute in all
            burst=20,
            shared_limit=True,
        )
        self._pods = SharedRead(self._read_pods)

    def regions(self) -> tuple[str, ...]:
        return self._regions

    # --- offers -------------------------------------------------------------------------------------------------------

    def offers(self, ask: Ask) -> tuple[Offer, ...]:
        """On-demand pods. Raises `Invalid` for an ask that the catalogue cannot answer: CPUs or memory beside a GPU."""
        regions = [region for region in self._regions if not ask.regions or region in ask.regions]
        if ask.spot or not regions:
            return ()
        if not ask.gpus:
            return tuple(self._cpu_offers(ask, regions))
        if ask.cpus_min or ask.memory_min:
            raise Invalid(
                "RunPod does not say before the create how many CPUs and how much memory a GPU machine has; "
                "leave `cpus` and `memory` out, or name other providers",
                provider=self.name, what="offers",
            )  # fmt: skip
        found: tuple[Offer, ...] = ()
        for cloud in self._clouds:
            for count in sorted({wish.count for wish in ask.gpus}):
                found += tuple(self._gpu_offers(ask, regions, cloud, count))
        return found

    def _gpu_offers(self, ask: Ask, regions: Iterable[str], cloud: str, count: int) -> Iterable[Offer]:
        query: Query = {"include": "AVAILABILITY", "product": "POD", "cloud": cloud, "count": count}
        cards = self._rows("/v2/catalog/gpus", "offers", "gpus", query)
        wanted = {wish.name for wish in ask.gpus if wish.count == count}
        disk = gigabytes(ask.disk_min, DISK_GB)
        for card in cards:
            row = identify(text(card.get("id")), whole(card.get("memory")), self.config.gpus, OWN_NAMES)
            price = number(at(card, "price", cloud.lower()))
            if row is None or row.name not in wanted or price is None or price <= 0:
                continue
            if card.get(cloud.lower()) is not True or count > whole(at(card, "maxCount", cloud.lower())):
                continue
            for region in _placed(card, regions):
                yield Offer(
                    self.name, self.account, region, f"{cloud}/{card['id']}/{count}/{disk}", False,
                    per_hour(price * count + DISK_PER_GB_MONTH * disk / HOURS_PER_MONTH), "USD",
                    gpu=row.name, gpu_count=count, vram_gb=row.vram_gb, disk=disk * 10**9,
                    pool=f"{cloud}/{card['id']}/{region}", image=ask.image or IMAGE,
                )  # fmt: skip

    def _cpu_offers(self, ask: Ask, regions: Iterable[str]) -> Iterable[Offer]:
        """The smallest machine of each flavour that is large enough; counts of CPUs are powers of two."""
        disk = gigabytes(ask.disk_min, CPU_DISK_GB)
        for flavour in self._rows("/v2/catalog/cpus", "offers", "cpus", {"include": "AVAILABILITY", "product": "POD"}):
            price, per = number(at(flavour, "price", "securePerVcpu")), number(flavour.get("ramGbPerVcpu"))
            low, high = whole(at(flavour, "vcpu", "min")), whole(at(flavour, "vcpu", "max"))
            if price is None or price <= 0 or per is None or per <= 0 or not low or not text(flavour.get("id")):
                continue
            count = low
            while count < high and (count < ask.cpus_min or count * per * 10**9 < ask.memory_min):
                count = min(2 * count, high)
            memory = int(count * per * 10**9)
            if count < ask.cpus_min or memory < ask.memory_min:
                continue
            for region in _placed(flavour, regions):
                yield Offer(
                    self.name, self.account, region, f"CPU/{flavour['id']}/{count}/{disk}", False,
                    per_hour(price * count + DISK_PER_GB_MONTH * disk / HOURS_PER_MONTH), "USD",
                    cpus=count, memory=memory, disk=disk * 10**9,
                    pool=f"CPU/{flavour['id']}/{region}", image=ask.image or IMAGE,
                )  # fmt: skip

    # --- machines -----------------------------------------------------------------------------------------------------

    def create(self, offer: Offer, tag: Tag, end: float, boot: Boot) -> Instance:
        """One POST. The pod ends itself by its boot hook; RunPod has no timer of its own."""
        check_tag(tag, self.config, self.name)
        parts = offer.key.split("/")
        if len(parts) != 4 or not parts[2].isdecimal() or not parts[3].isdecimal():
            raise Invalid(f"RunPod has no offer {offer.key!r}", provider=self.name, what="create")
        kind, model, count, disk = parts[0], parts[1], int(parts[2]), int(parts[3])
        name = tag_text(tag, offer.region)
        start = container_start(boot.hook, boot.public_key, POWEROFF, serve_ssh=True)
        body: dict[str, Any] = {
            "name": name,
            "image": boot.image or offer.image or IMAGE,
            "disk": gigabytes(boot.disk, disk),
            "ports": ["22/tcp"],
            "env": {"PUBLIC_KEY": boot.public_key.strip(), TAG_VARIABLE: name, BOOT_VARIABLE: packed(start)},
            "args": f"sh -c 'echo ${BOOT_VARIABLE} | {UNPACK} >/tmp/gpujob-start && exec sh /tmp/gpujob-start'",
            "startSsh": True,
        }
        if kind == "CPU":
            body["cpu"] = {"id": model, "vcpuCount": count}
        else:
            body |= {"gpu": {"id": model, "count": count}, "cloud": kind}
        if offer.region != GLOBAL:
            body["dataCenterIds"] = [offer.region]
        made = self._rest.call("POST", "/v2/pods", "create", body=body).body
        if not text(at(made, "id")):
            raise self._rest.unreadable("create", made)
        return self._instance(made)

    def list(self, region: str) -> Listing:
        """Our pods of `region`, from one answer with all pods of the account."""
        return ours(self._pods.get(), self.config.deployment, region)

    def list_all(self, region: str) -> Listing:
        """All pods of the account, shown once: with our first region."""
        everything = self._pods.get() if region == self._regions[0] else Listing()
        return Listing(tuple(pod for pod in everything.instances if pod.ref.region == region or pod.tag is None))

    def get(self, ref: Ref) -> Instance | None:
        answer = self._rest.call("GET", f"/v2/pods/{quote(ref.id, safe='')}", "get", may=(404,))
        if answer.status == 404:
            return None
        if text(at(answer.body, "id")) != ref.id:
            raise self._rest.unreadable("get", answer.text)
        return self._instance(answer.body)

    def destroy(self, ref: Ref) -> DestroyAck:
        answer = self._rest.call("DELETE", f"/v2/pods/{quote(ref.id, safe='')}", "destroy", may=(404,))
        return DestroyAck.MISSING if answer.status == 404 else DestroyAck.ACKNOWLEDGED

    def set_expiry(self, ref: Ref, at: float) -> None:
        raise Invalid("RunPod has no timer that could be moved", provider=self.name, what="set_expiry")

    def _read_pods(self) -> Listing:
        # Pods of clusters are left out by the API, and are never ours.
        pods = self._rows("/v2/pods", "list", "pods", {})
        if not all(text(pod.get("id")) for pod in pods):
            raise self._rest.unreadable("list", "a pod without an id")
        return Listing(tuple(self._instance(pod) for pod in pods))

    def _rows(self, path: str, what: str, key: str, query: Query) -> Rows:
        answer = self._rest.call("GET", path, what, query=query)
        found = rows(at(answer.body, key))
        if found is None:
            raise self._rest.unreadable(what, answer.text)
        return found

    def _instance(self, pod: Mapping[str, Any]) -> Instance:
        named = read_tag_text(pod.get("name")) or read_tag_text(at(pod, "env", TAG_VARIABLE))
        tag, region = named or (None, self._regions[0])
        status, direct, cost = text(pod.get("status")), at(pod, "ssh", "direct"), number(pod.get("cost"))
        host, port = text(at(direct, "host")), whole(at(direct, "port"))
        # A container that ended runs nothing, and whoever started it again would have to be us.
        over = status in ("EXITED", "ERROR")
        return Instance(
            ref=Ref(self.name, self.account, region, text(pod.get("id"))),
            status=status,
            tag=tag,
            ready=status == "RUNNING" and bool(host and port),
            endpoint=Endpoint(host, port, text(at(direct, "username")) or "root") if host and port else None,
            machine_id=text(pod.get("machineId")),
            created_at=epoch(pod.get("createdAt")),
            hourly=cost if cost else None,
            currency="USD" if cost else "",
            notice=Notice(time.time(), "stop") if over else None,
            raw={"dataCenterId": text(pod.get("dataCenterId")), "cloud": text(pod.get("cloud"))},
        )


def _placed(row: Mapping[str, Any], regions: Iterable[str]) -> Iterable[str]:
    """The regions of ours where this is to be had now."""
    there = {text(at(each, "id")): at(each, "availability") for each in rows(row.get("dataCenters")) or ()}
    for region in regions:
        stock = row.get("availability") if region == GLOBAL else there.get(region, "NONE")
        if stock != "NONE":
            yield region


def _judge(answer: Answer, what: str) -> ProviderError | None:
    errors = at(answer.body, "errors")
    parts = [text(at(answer.body, "detail")), *map(text, errors if isinstance(errors, list) else ())]
    said = "; ".join(filter(None, parts))
    words = f"RunPod refused {what} ({answer.status}): {said or answer.words}"
    more = {"provider": "runpod", "what": what, "evidence": said or answer.words}
    if answer.status == 400 and what == "create":
        if _QUOTA.search(said):
            return QuotaExceeded(words, **more)
        rule = _RULE.search(said) and not _CAPACITY.search(said)
        return (Invalid if rule else NoCapacity)(words, **more)
    if answer.status == 403:
        # A create is also answered so where the account may not use one pool of machines: the next may do.
        other = what == "create" and not _RIGHT.search(said)
        return (NoCapacity if other else AuthFailed)(words, **more)
    return None
