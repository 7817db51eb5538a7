"""Vast.ai: containers on many hosts' machines, on demand or by a bid that can be outbid. Keys, labels, no expiry.

Rules
- A bid is part of its offer: what `hourly` says is what the create sends, so a cap on the price caps the bid.
- Outbid means stopped (intended, current and next): silently, the disk billed, and started again by Vast when the bid
  wins. That is never dead; it is shown as a reclaim that is over, so that the machine is destroyed first.
- No status of Vast is final: a destroyed contract is null. An error of a create may carry the contract that it made
  all the same; that one is destroyed before the refusal is said.
- Listings come in pages of 25 rows: all of them or an error. Searches have a quota by the day, so an ask is at most
  three searches a market, by memory, and after a refusal none is sent until the quota's own reset.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from decimal import ROUND_UP, Decimal
from typing import Any

from providers.base import (
    Ask,
    Balance,
    Boot,
    Caps,
    DestroyAck,
    Endpoint,
    GpuWish,
    Instance,
    Listing,
    Notice,
    Offer,
    ProviderConfig,
    Ref,
    Tag,
)
from providers.cards import TOLERANCE, identify
from providers.errors import (
    AccountGate,
    Ambiguous,
    AuthFailed,
    Invalid,
    NoCapacity,
    NoFunds,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Refused,
)
from providers.fields import at, gigabytes, number, per_hour, rows, text, whole
from providers.naming import check_tag, ours, read_tag_text, tag_text
from providers.rest import (
    HOURS_PER_MONTH,
    Answer,
    Rest,
    SharedRead,
    address,
    api_key,
    flag,
    pace,
    setting,
)
from providers.startup import container_start

KEY = "VAST_API_KEY"
URL = "https://console.vast.ai"
IMAGE = "pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime"
USER = "root"
GLOBAL = "global"
DISK_GB = 40  # cannot grow later
PAGE = 25
PAGES_MAX = 400  # ten thousand machines: a token that never ends is a bug of somebody's
SEARCH_LIMIT = 200
SPANS_MAX = 3  # searches a market: cards of more sizes of memory share them
BID_MARGIN = Decimal("1.25")  # above the least bid, so that the next bidder's cent does not take the machine
LEAST_BID, CENT = Decimal("0.001"), Decimal("0.001")
RUNTYPE = "ssh_direc ssh_proxy"  # as the company's own client spells "direct, else by proxy"
OWN_NAMES = {"H200": "H200-SXM", "A100X": "", "B300PC": "B300"}
POWEROFF = """\
url='{url}/api/v0/instances/$CONTAINER_ID/'
key='Authorization: Bearer $CONTAINER_API_KEY'
curl -fsS -X DELETE -H "\\$key" "\\$url" ||
    wget -qO- --method=DELETE --header="\\$key" "\\$url" ||
    python3 -c 'import sys, urllib.request as r
r.urlopen(r.Request(sys.argv[1], method="DELETE", headers=dict([sys.argv[2].split(": ", 1)])))' "\\$url" "\\$key"
"""
_OFFER = re.compile(r"([0-9]+):([0-9]+):([0-9.]*)")

CAPS = Caps(
    dead_statuses=frozenset({"destroyed"}),  # our word for a contract that is null; no answer carries it
    self_end="destroys",  # a container holds a key for its own contract
    server_ttl=False,
    boot_hook="every_boot",
    stop_bills="disk",
    disks_outlive=False,
    spot=True,
    spot_notice_s=0.0,
    billing_step_s=1,
    name_pattern=r"[a-z][a-z0-9-]{0,62}",
    list_lag_s=60.0,  # a destroyed machine was seen in listings for a minute
    ready_within_s=1200.0,
    requests_per_s=2.0,
    balance=True,
    source="docs.vast.ai: OpenAPI and client 1.9.1, outbid as dstack reads it; none of it tried live",
    as_of="2026-11-30",
)


class VastProvider:
    """Instances of one Vast.ai account. Settings: `regions` (country codes), `unverified`, `bid_margin`, `user`, `url`,
    `requests_per_s`.
    """

    name = "vast"
    account = "default"
    caps = CAPS
    key_variable = KEY

    def __init__(self, config: ProviderConfig) -> None:
        self.config = config
        self._regions = setting(config, "regions") or (GLOBAL,)
        self._margin = number(config.settings.get("bid_margin")) or BID_MARGIN
        self._user = str(config.settings.get("user") or USER)
        self._url = address(config, URL)
        self._rest = Rest(
            self.name,
            self._url,
            lambda: api_key(config, self.name, KEY),
            _judge,
            per_second=pace(config, 2.0),
            burst=4,
        )
        self._instances = SharedRead(self._read_instances)

    def regions(self) -> tuple[str, ...]:
        return self._regions

    # --- offers -------------------------------------------------------------------------------------------------------

    def offers(self, ask: Ask) -> tuple[Offer, ...]:
        """On-demand offers and bids. Without a GPU nothing is offered: the market is one of cards."""
        regions = [region for region in self._regions if not ask.regions or region in ask.regions]
        if not regions:
            return ()
        found: dict[str, Offer] = {}
        for wishes in _spans(ask.gpus):
            for spot in (False, True) if ask.spot is None else (ask.spot,):
                for row in self._search(ask, wishes, regions, spot):
                    offer = self._offer(row, ask, wishes, regions, spot)
                    if offer is not None:
                        found[offer.key] = offer
        return tuple(found.values())

    def _search(self, ask: Ask, wishes: Iterable[GpuWish], regions: Iterable[str], spot: bool) -> Any:
        wishes = tuple(wishes)
        least, most = min(wish.vram_gb for wish in wishes), max(wish.vram_gb for wish in wishes)
        body: dict[str, Any] = {
            "rentable": {"eq": True},
            "rented": {"eq": False},
            "num_gpus": {"in": sorted({wish.count for wish in wishes})},
            "gpu_ram": {"gte": int(least * (1 - TOLERANCE) * 1000), "lte": int(most * (1 + TOLERANCE) * 1024)},
            "disk_space": {"gte": gigabytes(ask.disk_min, DISK_GB)},
            "direct_port_count": {"gte": 1},
            "allocated_storage": gigabytes(ask.disk_min, DISK_GB),
            "order": [["dph_total", "asc"], ["id", "asc"]],
            "limit": SEARCH_LIMIT,
        }
        if not flag(self.config, "unverified"):
            body["verified"] = {"eq": True}
        if spot:
            body["type"] = "bid"
        if ask.cpus_min:
            body["cpu_cores_effective"] = {"gte": ask.cpus_min}
        if GLOBAL not in regions:
            body["geolocation"] = {"in": list(regions)}
        answer = self._rest.call("POST", "/api/v0/bundles/", "offers", body=body)
        found = rows(at(answer.body, "offers"))
        if found is None:
            raise self._rest.unreadable("offers", answer.text)
        return found

    def _offer(
        self, row: Mapping[str, Any], ask: Ask, wishes: Iterable[GpuWish], regions: Iterable[str], spot: bool
    ) -> Offer | None:
        """One row as an offer; None where it is not what was asked for, or says too little to be rented."""
        number_of, count = whole(row.get("id")), whole(row.get("num_gpus"))
        vram = number(row.get("gpu_ram")) or Decimal(0)
        card = identify(text(row.get("gpu_name")), float(vram) / 1024, self.config.gpus, OWN_NAMES)
        if card is None or not number_of or (card.name, count) not in {(wish.name, wish.count) for wish in wishes}:
            return None
        disk = gigabytes(ask.disk_min, DISK_GB)
        storage = number(row.get("storage_cost")) or Decimal(0)
        bid = number(row.get("min_bid"))
        if spot and (bid is None or bid < 0):
            return None
        if spot and bid is not None:
            bid = max(LEAST_BID, (bid * self._margin).quantize(CENT, ROUND_UP))
            hourly = bid + storage * disk / HOURS_PER_MONTH
        else:
            base, bid = number(row.get("dph_base")), None
            hourly = (base or Decimal(0)) + storage * disk / HOURS_PER_MONTH
            if base is None or base <= 0:
                return None
        cpus, share = whole(row.get("cpu_cores_effective")), number(row.get("gpu_frac")) or Decimal(1)
        memory = int(whole(row.get("cpu_ram")) * min(share, Decimal(1)) * 10**6)
        place = text(row.get("geolocation"))
        region = next((each for each in regions if each == GLOBAL or place.endswith(each)), None)
        if region is None or cpus < ask.cpus_min or memory < ask.memory_min or whole(row.get("disk_space")) < disk:
            return None
        machine, traffic = whole(row.get("machine_id")), number(row.get("inet_down_cost")) or Decimal(0)
        return Offer(
            self.name, self.account, region, f"{number_of}:{disk}:{bid if bid is not None else ''}", spot,
            per_hour(hourly), "USD", gpu=card.name, gpu_count=count, vram_gb=card.vram_gb, cpus=cpus, memory=memory,
            disk=disk * 10**9, in_per_gb=max(traffic, Decimal(0)), pool=f"machine {machine or number_of}",
            image=ask.image or IMAGE,
            raw={"machine_id": str(machine), "place": place, "reliability": str(row.get("reliability2") or "")},
        )  # fmt: skip

    # --- machines -----------------------------------------------------------------------------------------------------

    def create(self, offer: Offer, tag: Tag, end: float, boot: Boot) -> Instance:
        """One PUT, with the bid of the offer. The container destroys its own contract by the boot hook."""
        check_tag(tag, self.config, self.name)
        parts = _OFFER.fullmatch(offer.key)
        bid = number(parts[3]) if parts and parts[3] else None
        if not parts or (offer.spot and bid is None):
            raise Invalid(f"Vast has no offer {offer.key!r}", provider=self.name, what="create")
        poweroff = POWEROFF.format(url=self._url)
        body: dict[str, Any] = {
            "image": boot.image or offer.image or IMAGE,
            "disk": int(parts[2]),
            "label": tag_text(tag, offer.region),
            "runtype": RUNTYPE,
            "onstart": container_start(boot.hook, boot.public_key, poweroff, serve_ssh=False),
            "target_state": "running",
            "cancel_unavail": True,
        }
        if offer.spot:
            body["price"] = float(bid or 0)
        answer = self._rest.call("PUT", f"/api/v0/asks/{parts[1]}/", "create", body=body, may=range(400, 500))
        made = whole(at(answer.body, "new_contract"))
        if 200 <= answer.status < 300 and at(answer.body, "success") is not False:
            if not made:
                raise self._rest.unreadable("create", answer.text)
            ref = Ref(self.name, self.account, offer.region, str(made))
            return Instance(ref, "created", tag, hourly=offer.hourly, currency="USD")
        problem = self._rest.problem(answer, "create")
        if made:
            self._undo(made, problem)
        raise problem

    def _undo(self, contract: int, problem: ProviderError) -> None:
        """A refusal that made a contract all the same: it goes, or the create is as good as unanswered."""
        try:
            self.destroy(Ref(self.name, self.account, self._regions[0], str(contract)))
        except ProviderError as error:
            raise Ambiguous(
                f"{problem}; and the contract {contract} that it made was not destroyed: {error}",
                provider=self.name, what="create", evidence=problem.evidence,
            ) from error  # fmt: skip

    def list(self, region: str) -> Listing:
        """Our machines of `region`, from all pages of the account."""
        return ours(self._instances.get(), self.config.deployment, region)

    def list_all(self, region: str) -> Listing:
        """All machines of the account, shown once: with our first region."""
        everything = self._instances.get()
        first = region == self._regions[0]
        return Listing(
            tuple(i for i in everything.instances if (i.tag is not None and i.ref.region == region) or first)
        )

    def get(self, ref: Ref) -> Instance | None:
        if not ref.id.isdecimal():
            return None  # no contract was ever called so
        answer = self._rest.call("GET", f"/api/v0/instances/{ref.id}/", "get", may=(404,))
        if answer.status == 404 and not _is_key_trouble(answer):
            return None
        if answer.status == 404:
            raise self._rest.problem(answer, "get")
        if isinstance(answer.body, Mapping) and "instances" in answer.body and answer.body["instances"] is None:
            return None
        row = at(answer.body, "instances")
        if str(whole(at(row, "id"))) != ref.id:
            raise self._rest.unreadable("get", answer.text)
        return self._instance(row)

    def destroy(self, ref: Ref) -> DestroyAck:
        if not ref.id.isdecimal():
            return DestroyAck.MISSING
        answer = self._rest.call("DELETE", f"/api/v0/instances/{ref.id}/", "destroy", may=(404,))
        if answer.status == 404 and not _is_key_trouble(answer):
            return DestroyAck.MISSING
        if answer.status == 404 or at(answer.body, "success") is False:
            raise self._rest.problem(answer, "destroy")
        return DestroyAck.ACKNOWLEDGED

    def set_expiry(self, ref: Ref, at: float) -> None:
        raise Invalid("Vast has no timer that could be moved", provider=self.name, what="set_expiry")

    def balance(self) -> Balance:
        """What can still be spent."""
        amount = number(at(self._rest.call("GET", "/api/v0/users/current/", "balance").body, "balance"))
        if amount is None:
            raise self._rest.unreadable("balance", "no amount")
        return Balance(amount, "USD")

    def _read_instances(self) -> Listing:
        """Every page. Raises `Ambiguous` where the pages do not add up to the number that Vast itself gives."""
        found: dict[int, Instance] = {}
        token, total = "", 0
        for _ in range(PAGES_MAX):
            query: dict[str, str | int] = {"limit": PAGE, **({"after_token": token} if token else {})}
            answer = self._rest.call("GET", "/api/v1/instances/", "list", query=query)
            page = rows(at(answer.body, "instances"))
            if page is None or not all(whole(row.get("id")) for row in page):
                raise self._rest.unreadable("list", answer.text)
            found |= {whole(row.get("id")): self._instance(row) for row in page}
            total = max(total, whole(at(answer.body, "total_instances")))
            token = text(at(answer.body, "next_token"))
            if not token:
                break
        if token or len(found) < total:
            raise self._rest.unreadable("list", f"{len(found)} of {total} machines")
        return Listing(tuple(found.values()))

    def _instance(self, row: Mapping[str, Any]) -> Instance:
        named = read_tag_text(row.get("label"))
        tag, region = named or (None, self._regions[0])
        status = text(row.get("actual_status")) or "provisioning"
        outbid = {text(row.get(key)) for key in ("intended_status", "cur_state", "next_state")} == {"stopped"}
        over = outbid or status == "exited"
        direct = whole(at(row, "ports", "22/tcp", 0, "HostPort")), text(row.get("public_ipaddr")).strip()
        port, host = direct if all(direct) else (whole(row.get("ssh_port")), text(row.get("ssh_host")))
        cost, machine = number(row.get("dph_total")), whole(row.get("machine_id"))
        started = number(row.get("start_date"))
        return Instance(
            ref=Ref(self.name, self.account, region, str(whole(row.get("id")))),
            status="stopped" if outbid else status,
            tag=tag,
            ready=status == "running" and not over and bool(host and port),
            endpoint=Endpoint(host, port, self._user) if host and 0 < port < 65536 else None,
            machine_id=str(machine) if machine else "",
            created_at=float(started) if started else None,
            hourly=cost if cost else None,
            currency="USD" if cost else "",
            notice=Notice(time.time(), "stop") if over else None,
            raw={"actual_status": status, "status_msg": text(row.get("status_msg"))[:200]},
        )


def _spans(wishes: Iterable[GpuWish]) -> list[list[GpuWish]]:
    """The wishes by their memory, each span one search; of too many the nearest are searched together."""
    sizes: dict[int, list[GpuWish]] = {}
    for wish in wishes:
        sizes.setdefault(wish.vram_gb, []).append(wish)
    spans = [sizes[size] for size in sorted(sizes)]
    while len(spans) > SPANS_MAX:
        near = min(range(1, len(spans)), key=lambda i: spans[i][0].vram_gb / spans[i - 1][-1].vram_gb)
        spans[near - 1 : near + 1] = [spans[near - 1] + spans[near]]
    return spans


def _codes(answer: Answer) -> tuple[str, ...]:
    """`error` is a word, or a list of all the words that it might be."""
    said = at(answer.body, "error")
    return tuple(map(str, said)) if isinstance(said, list) else (text(said),)


def _is_key_trouble(answer: Answer) -> bool:
    """A wrong key is a 404 at some addresses."""
    return "auth_error" in _codes(answer) or "invalid user key" in text(at(answer.body, "msg")).lower()


def _judge(answer: Answer, what: str) -> ProviderError | None:
    said = text(at(answer.body, "msg")) or text(at(answer.body, "detail")) or answer.words
    codes, low = _codes(answer), said.lower()
    only = codes[0] if len(codes) == 1 else ""
    words = f"Vast refused {what} ({answer.status}): {said or only}"
    more = {"provider": "vast", "what": what, "evidence": answer.words}
    if _is_key_trouble(answer):
        return AuthFailed(f"{words}; set a valid key with `gpujob login vast`", **more)
    if answer.status == 429 or only in ("rate_limit_exceeded", "search_quota_exceeded"):
        return RateLimited(words, retry_after_s=_wait(answer, low), **more)
    if answer.status == 402 or re.search(r"insufficient (credit|balance|funds)|lacks? credit|add credit", low):
        return NoFunds(words, **more)
    if "quota" in low or "maximum number of instances" in low:
        return QuotaExceeded(words, **more)
    if only == "no_ssh_key_for_vm" or re.search(r"verify your (email|account|phone)|terms of service", low):
        return AccountGate(words, **more)
    if what != "create" or answer.status >= 500:
        return None
    if "no_such_ask" in (only, *low.split()) or answer.status == 410:
        return NoCapacity(words, **more)
    if only == "invalid_price" or answer.status == 403:
        return NoCapacity(words, **more)  # the least bid rose above ours, or this host does not let to us: the next may
    return None if not 200 <= answer.status < 300 else Refused(words, **more)


def _wait(answer: Answer, low: str) -> float | None:
    """Seconds to wait: the header, the reset of a daily quota (UTC epoch or seconds), or the endpoint's interval."""
    headers = answer.headers
    reset = number(headers.get("X-RateLimit-Reset"))
    if number(headers.get("Retry-After")) is None and reset is not None:
        left = float(reset) - time.time() if reset > 10**9 else float(reset)
        return min(max(left, 1.0), 86_400.0)
    after = number(headers.get("Retry-After"))
    if after is not None and 0 <= after <= 86_400:
        return float(after)
    interval = re.search(r"threshold=([0-9.]+)", low)
    return float(interval[1]) if interval and number(interval[1]) is not None else None
