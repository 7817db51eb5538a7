"""AutoDL Pro: containers in China by the second, on demand, in yuan. No spot, no tag, no expiry, no price list.

Rules
- Every answer is HTTP 200: `code` says what it is, and only "Success" is success. A code that nobody knows leaves open
  whether it happened. Known codes are from `autodl_errors`; the texts matched beside them are what one would expect.
- A machine can be released only once it is off, so a destroy does what is possible now and says so: power off, then,
  asked again, release. It is repeated until the company knows no such machine.
- The tag is the machine's name, which a listing alone tells; addresses and prices come from another call.
- Creates and stock say `beijingDC2` where listings say `bj-B2`: the region of ours is the one in the tag.
- Prices are told of running machines alone: they are the user's, in the config, or what a machine of ours was seen to
  cost. Root's password, which the company sends along, is read by nobody.
- "shutdown" is not dead: it can be started again, so it is a reclaim that is over.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from providers.base import (
    Ask,
    Balance,
    Boot,
    Caps,
    DestroyAck,
    Endpoint,
    GpuRow,
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
    NoFunds,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from providers.fields import Rows, at, epoch, number, per_hour, retry_after, rows, text, whole
from providers.naming import check_tag, ours, read_tag_text, tag_text
from providers.rest import Answer, Rest, SharedRead, address, api_key, pace, setting
from providers.startup import UNPACK, container_start, packed

KEY = "AUTODL_TOKEN"
URL = "https://api.autodl.com"
DEV = "/api/v1/dev"
PRO = f"{DEV}/instance/pro"
CURRENCY, MILLI = "CNY", Decimal(1000)  # amounts are yuan times a thousand
GLOBAL = "global"  # wherever there is one, which is what the company advises
#: What creates and stock call the two places of Pro machines -> what listings call them, by sign and by name.
REGIONS: Mapping[str, tuple[str, ...]] = {"westDC3": ("西北B区",), "beijingDC2": ("bj-B2", "北京B区")}
#: What a create sends -> what stock calls it, and its memory in GB.
SPECS: Mapping[str, tuple[str, int]] = {
    "h800": ("H800", 80), "v-48g": ("vGPU-48GB", 48), "v-48g-350w": ("vGPU-48GB-350W", 48), "4090D": ("RTX 4090D", 24),
    "v-32g-p": ("vGPU-32GB", 32), "5090-p": ("RTX 5090", 32), "pro6000-p": ("RTX PRO 6000", 96),
}  # fmt: skip
NEWEST = ("5090-p", "pro6000-p")  # Blackwell: drivers before CUDA 12.8 do not know them
CUDA, CUDA_NEWEST = 118, 128
IMAGE = "base-image-l2t43iu6uk"  # PyTorch 2.0 with CUDA 11.8, of the company's own
COUNT_MAX, EXPAND_MAX_GB = 4, 500
SYSTEM_GB, DATA_GB = 30, 50  # what every machine has
DATA_MOUNT, START = "/root/autodl-tmp", "/tmp/gpujob-start"
DISK_PER_GB_HOUR = Decimal("0.0066") / 24  # of disk beyond that, also while off
PAGE, PAGES_MAX = 50, 200
OFF = ("shutdown", "failed")
COMING_UP = ("creating", "starting", "running")
GOING = ("releasing", "released")
#: The company's own word for its switch; a machine that is off does not bill.
POWEROFF = "exec /usr/bin/shutdown -h now\n"
#: Logins over SSH see neither conda nor a data disk that an image does not have; tools come last, they may take long.
BEFORE = """\
mkdir -p {mount}
if ! grep -qs gpujob-path "$HOME/.bashrc"; then
    old=$(cat "$HOME/.bashrc" 2>/dev/null)
    printf '%s\\n' 'PATH=/root/miniconda3/bin:$PATH; export PATH # gpujob-path' "$old" >"$HOME/.bashrc"
fi
"""
AFTER = """\
if ! command -v rsync >/dev/null || ! command -v tmux >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q && apt-get install -y -q --no-install-recommends rsync tmux
fi
"""

_AUTH = re.compile(r"token|登录|鉴权|未授权", re.IGNORECASE)
_GATE = re.compile(r"实名|企业认证|资源访问权限")
_RATE = re.compile(r"频繁|限流|too ?many ?requests", re.IGNORECASE)
_FUNDS = re.compile(r"余额|欠费|充值")
_QUOTA = re.compile(r"上限|配额|超出.{0,12}限制|最多")
_CAPACITY = re.compile(r"库存|资源不足|没有空闲|售罄")

CAPS = Caps(
    dead_statuses=frozenset({"released"}),
    self_end="stops_all_billing",
    server_ttl=False,  # its console can time a power-off, its API cannot
    boot_hook="once",  # the start command belongs to the start that the create makes
    stop_bills="nothing",  # of machines as made here: disk beyond what is included bills on
    billing_step_s=1,
    list_lag_s=10.0,
    ready_within_s=1200.0,
    requests_per_s=2.0,
    data_mount=DATA_MOUNT,
    balance=True,
    source="www.autodl.com/docs (common_api, instance_pro_api) and what its users saw of Pro; none of it tried live",
    as_of="2026-11-30",
)


class AutoDlProvider:
    """Pro machines of one AutoDL account. Settings: `prices` (spec or card -> yuan an hour of one), `packages`
    (likewise -> day, week, month), `regions`, `image`, `cuda`, `data_mount`, `url`, `requests_per_s`, `user`.
    """

    name = "autodl"
    account = "default"
    key_variable = KEY

    def __init__(self, config: ProviderConfig) -> None:
        self.config = config
        self._regions = tuple(map(_create_name, setting(config, "regions"))) or (GLOBAL,)
        self._mount = str(config.settings.get("data_mount", DATA_MOUNT) or "")
        # Only a system disk can be made larger, and what is larger than included bills on after a power-off.
        self.caps = CAPS if self._mount else replace(CAPS, self_end="leaves_disk", stop_bills="disk", data_mount="")
        self._user = str(config.settings.get("user") or "root")
        key = lambda: api_key(config, self.name, KEY)  # noqa: E731
        self._rest = Rest(
            self.name, address(config, URL), key, _judge, per_second=pace(config, 2.0), burst=8, scheme=""
        )
        self._machines = SharedRead(self._read_machines)
        self._rows: dict[str, Mapping[str, Any]] = {}  # id -> its newest row of a listing, or what a create sent
        self._paid: dict[str, Decimal] = {}  # spec -> what one card was seen to cost

    def regions(self) -> tuple[str, ...]:
        return self._regions

    # --- offers -------------------------------------------------------------------------------------------------------

    def offers(self, ask: Ask) -> tuple[Offer, ...]:
        """Every spec that is asked for, that the region has at all and whose price is known. Stock counts another pool
        of machines, so it is told in `raw` and decides nothing. Raises `Invalid` for what the API cannot answer.
        """
        asked = tuple(map(_create_name, ask.regions))
        regions = [region for region in self._regions if not asked or region in asked]
        specs = [
            (spec, row, wish.count)
            for spec, (label, vram) in SPECS.items()
            for row in filter(None, [identify(label, vram, self.config.gpus)])
            for wish in ask.gpus
            if wish.name == row.name and 1 <= wish.count <= COUNT_MAX
        ]
        if ask.spot or not regions or not specs:
            return ()
        self._check(ask)
        prices = {spec: self._price(spec, row) for spec, row, _ in specs}
        priced = [each for each in specs if prices[each[0]] is not None]
        if not priced:
            named = ", ".join(f"{spec}: 2.98" for spec in prices)
            raise Invalid(
                f"AutoDL tells no price before it rents. Put those of its market page, in yuan an hour of one card, "
                f"into the config: providers: {{autodl: {{prices: {{{named}}}}}}}",
                provider=self.name, what="offers",
            )  # fmt: skip
        expand = self._expand(ask.disk_min)
        found: list[Offer] = []
        for region in regions:
            stock = self._stock(region, sorted({SPECS[spec][0] for spec, _, _ in priced}))
            for spec, row, count in priced:
                if SPECS[spec][0] not in stock:
                    continue
                hourly = (prices[spec] or Decimal(0)) * count + DISK_PER_GB_HOUR * expand
                found.append(
                    Offer(
                        self.name, self.account, region, f"{spec}/{count}/{expand}", False, per_hour(hourly), CURRENCY,
                        gpu=row.name, gpu_count=count, vram_gb=row.vram_gb, disk=self._disk_gb(expand) * 10**9,
                        pool=f"{spec}/{region}", image=self._image(ask.image),
                        raw={"stock": SPECS[spec][0], "idle": str(stock[SPECS[spec][0]]),
                             "packages": self._told("packages", spec, row)},
                    )
                )  # fmt: skip
        return tuple(found)

    def _check(self, ask: Ask) -> None:
        """Raises `Invalid` for what no machine here can be known to have."""
        words = ""
        if is_docker_image(ask.image):
            words = (
                f"AutoDL starts its own images only, not {ask.image!r}, and docker does not run in them: name one for "
                "it, `image: {autodl: base-image-...}`, or leave it out"
            )
        elif ask.cpus_min or ask.memory_min:
            words = (
                "AutoDL does not say before the create how many CPUs and how much memory a machine has; "
                "leave `cpus` and `memory` out, or name other providers"
            )
        elif ask.disk_min > (most := self._disk_gb(EXPAND_MAX_GB)) * 10**9:
            more = "; its API enlarges the system disk alone, which `data_mount: ''` in its settings makes use of"
            words = f"AutoDL has {most} GB of disk at most here{more if self._mount else ''}"
        if words:
            raise Invalid(words, provider=self.name, what="offers")

    def _expand(self, size: int) -> int:
        """GB of system disk to be added for `size` bytes."""
        return 0 if self._mount else max(0, -(-size // 10**9) - SYSTEM_GB)

    def _disk_gb(self, expand: int) -> int:
        return SYSTEM_GB + (DATA_GB if self._mount else expand)

    def _price(self, spec: str, row: GpuRow) -> Decimal | None:
        """One card's yuan an hour: the config's, or more where a machine was seen to cost more."""
        known = [number(str(self._told("prices", spec, row)).removesuffix(CURRENCY).strip()), self._paid.get(spec)]
        return max((price for price in known if price is not None and price > 0), default=None)

    def _told(self, key: str, spec: str, row: GpuRow) -> Any:
        """What a block of the config says of a spec, by either of its names."""
        told = self.config.settings.get(key)
        return next((told[name] for name in (spec, row.name) if name in told), None) if isinstance(told, dict) else None

    def _image(self, asked: str) -> str:
        return asked or str(self.config.settings.get("image") or IMAGE)

    def _stock(self, region: str, labels: Iterable[str]) -> dict[str, int]:
        """label -> idle cards that the company tells of; a label that is not there is not to be had in `region`."""
        found: dict[str, int] = {}
        for place in REGIONS if region == GLOBAL else (region,):
            body = {"region_sign": place, "gpu_name_set": list(labels)}
            said = self._call("POST", f"{DEV}/machine/region/gpu_stock", "offers", body=body, reads=True)
            for row in self._list_of(said, "offers"):
                for label, counts in row.items():
                    if whole(at(counts, "total_gpu_num")):
                        found[label] = found.get(label, 0) + whole(at(counts, "idle_gpu_num"))
        return found

    # --- machines -----------------------------------------------------------------------------------------------------

    def create(self, offer: Offer, tag: Tag, end: float, boot: Boot) -> Instance:
        """One POST, which also starts the machine. It powers itself off by its boot hook."""
        check_tag(tag, self.config, self.name)
        spec, *numbers = offer.key.split("/")
        if len(numbers) != 2 or not all(each.isdecimal() for each in numbers):
            raise Invalid(f"AutoDL has no offer {offer.key!r}", provider=self.name, what="create")
        count, expand = map(int, numbers)
        name = tag_text(tag, offer.region)
        start = container_start(boot.hook, boot.public_key, POWEROFF, serve_ssh=False)
        before = BEFORE.format(mount=self._mount or '"$HOME"')
        body: dict[str, Any] = {
            "gpu_spec_uuid": spec,
            "req_gpu_amount": count,
            "image_uuid": self._image(boot.image or offer.image),
            "expand_system_disk_by_gb": max(expand, min(EXPAND_MAX_GB, self._expand(boot.disk))),
            "cuda_v_from": self._cuda(spec),
            "instance_name": name,
            # No quotes: nothing says how the company hands it to a shell.
            "start_command": f"echo {packed(before + start + AFTER)} | {UNPACK} >{START} && sh {START}",
        }
        if offer.region != GLOBAL:
            body["data_center_list"] = [offer.region]
        made = self._call("POST", f"{PRO}/create", "create", body=body)
        made = text(made) or text(at(made, "instance_uuid"))
        if not made:
            raise self._rest.unreadable("create", "a success without an id")
        self._rows[made] = {"uuid": made, "name": name, "gpu_spec_uuid": spec, "req_gpu_amount": count}
        ref = Ref(self.name, self.account, offer.region, made)
        return Instance(ref, "creating", tag, hourly=offer.hourly, currency=CURRENCY)

    def _cuda(self, spec: str) -> int:
        """The oldest driver that will do, as 118 for 11.8."""
        told = whole(str(self.config.settings.get("cuda") or "").replace(".", ""))
        return told or (CUDA_NEWEST if spec in NEWEST else CUDA)

    def list(self, region: str) -> Listing:
        """Our machines of `region`, from all pages of the account. Images are never ours: none is ever saved."""
        return ours(self._machines.get(), self.config.deployment, region)

    def list_all(self, region: str) -> Listing:
        """All machines of the account, and its saved images, which bill and which its API cannot remove; what has no
        tag is shown once: with our first region.
        """
        first, everything = region == self._regions[0], self._machines.get()
        shown = tuple(i for i in everything.instances if (i.tag is not None and i.ref.region == region) or first)
        images = self._pages(f"{PRO}/image/private/list", "list") if first else []
        refs = [Ref(self.name, self.account, region, text(row.get("image_uuid")), "snapshot") for row in images]
        return Listing(shown, tuple(Resource(ref, "saved", None) for ref in refs))

    def get(self, ref: Ref) -> Instance | None:
        """Its status, and its address and price where it has them. Who it is takes a listing, once."""
        status = self._status(ref.id, "get")
        if status is None:
            return None
        if ref.id not in self._rows:
            self._machines.get()
        told: Any = {}
        if status in COMING_UP:
            told = self._call("GET", f"{PRO}/snapshot", "get", query={"instance_uuid": ref.id}, missing=True)
        row = self._rows.get(ref.id, {"uuid": ref.id})
        return self._instance({**row, "status": status}, told if isinstance(told, Mapping) else {})

    def destroy(self, ref: Ref) -> DestroyAck:
        """One pass of power off, release. ACKNOWLEDGED says that the next step was taken, not that it was the last.
        Raises `Invalid` for a saved image: the API has no way to remove one.
        """
        if ref.kind != "instance":
            raise Invalid(f"the image {ref.id} can be removed in AutoDL's console alone", provider=self.name)
        body, status, refused = {"instance_uuid": ref.id}, self._status(ref.id, "destroy"), None
        if status is None:
            return DestroyAck.MISSING
        if status not in (*OFF, *GOING, "shutting_down"):
            try:
                self._call("POST", f"{PRO}/power_off", "destroy", body=body)
            except Ambiguous as problem:  # one that came up meanwhile, or is off under a name that we do not know
                refused = problem
            status = self._status(ref.id, "destroy") or "released"
        if status in (*GOING, "shutting_down"):
            return DestroyAck.ACKNOWLEDGED
        if status in COMING_UP:
            if refused is not None:
                raise refused
            return DestroyAck.ACKNOWLEDGED  # the order stands, or is given again with the next pass
        self._call("POST", f"{PRO}/release", "destroy", body=body, missing=True)
        return DestroyAck.ACKNOWLEDGED

    def set_expiry(self, ref: Ref, at: float) -> None:
        raise Invalid("AutoDL's API has no timer that could be moved", provider=self.name, what="set_expiry")

    def balance(self) -> Balance:
        """What can still be spent, vouchers left out."""
        assets = number(at(self._call("POST", f"{DEV}/wallet/balance", "balance", reads=True), "assets"))
        if assets is None:
            raise self._rest.unreadable("balance", "no amount")
        return Balance(assets / MILLI, CURRENCY)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _call(
        self, method: str, path: str, what: str, *, missing: bool = False, needed: bool = False, **more: Any
    ) -> Any:
        """`data` of a success, which must be there where `needed`; None for "no such record" where `missing`."""
        answer = self._rest.call(method, path, what, **more)
        code = text(at(answer.body, "code"))
        if code == "Success" and (at(answer.body, "data") is not None or not needed):
            return at(answer.body, "data")
        if missing and code == "RecordNotFoundError":
            return None
        raise self._rest.problem(answer, what)

    def _status(self, machine: str, what: str) -> str | None:
        """The company's word; None when it knows no such machine."""
        status = self._call("GET", f"{PRO}/status", what, query={"instance_uuid": machine}, missing=True, needed=True)
        if status is not None and not text(status):
            raise self._rest.unreadable(what, "a success without a status")
        return status  # type: ignore[no-any-return]

    def _pages(self, path: str, what: str) -> Rows:
        """Every row. Raises `Ambiguous` where the pages do not add up to the number that the company itself gives."""
        found: Rows = []
        for page in range(1, PAGES_MAX + 1):
            said = self._call("POST", path, what, body={"page_index": page, "page_size": PAGE}, reads=True)
            some = self._list_of(at(said, "list"), what)
            found += some
            last, total = number(at(said, "max_page")), number(at(said, "result_total"))
            if page >= last if last is not None else len(some) < PAGE:
                if total is not None and len(found) < total:
                    raise self._rest.unreadable(what, f"{len(found)} of {total} rows")
                return found
        raise self._rest.unreadable(what, "pages without an end")

    def _list_of(self, value: Any, what: str) -> Rows:
        found = rows(value)
        if found is None:
            raise self._rest.unreadable(what, "a success without its rows")
        return found

    def _read_machines(self) -> Listing:
        found = {text(row.get("uuid")): row for row in self._pages(f"{PRO}/list", "list")}
        if "" in found:
            raise self._rest.unreadable("list", "a machine without an id")
        self._rows |= found
        return Listing(tuple(self._instance(row, {}) for row in found.values()))

    def _instance(self, row: Mapping[str, Any], told: Mapping[str, Any]) -> Instance:
        """A row of a listing, and what the company tells of the machine beside it."""
        named = read_tag_text(row.get("name")) or read_tag_text(row.get("instance_name"))
        listed = _create_name(text(row.get("region_sign")), text(row.get("region_name")))
        tag, region = named or (None, listed if listed in self._regions else self._regions[0])
        status, spec = text(row.get("status")), text(row.get("gpu_spec_uuid"))
        over = status in (*OFF, "shutting_down")
        host, port = text(told.get("proxy_host")), whole(told.get("ssh_port"))
        paid = number(told.get("payg_price"))
        # Of more than one card nobody says whether the price is of one or of all, so it is not told.
        price = paid / MILLI if paid is not None and paid > 0 and whole(row.get("req_gpu_amount")) == 1 else None
        if price is not None and spec:
            self._paid[spec] = price
        return Instance(
            ref=Ref(self.name, self.account, region, text(row.get("uuid"))),
            status=status,
            tag=tag,
            ready=status == "running" and bool(host and 0 < port < 65536),
            endpoint=Endpoint(host, port, self._user) if host and 0 < port < 65536 else None,
            machine_id=text(told.get("machine_id")) or text(row.get("machine_id")),
            created_at=epoch(row.get("created_at")) or epoch(row.get("started_at")),
            hourly=price,
            currency=CURRENCY if price is not None else "",
            notice=Notice(time.time(), "stop") if over else None,
            raw={"region": listed, "region_sign": text(row.get("region_sign")), "spec": spec},
        )


def _create_name(sign: str, label: str = "") -> str:
    """What a create calls a place that a listing, or the user, calls `sign` or `label`; `sign` when nobody knows."""
    return next((name for name, others in REGIONS.items() if sign in others or label in others), sign)


def _judge(answer: Answer, what: str) -> ProviderError | None:
    code, said = text(at(answer.body, "code")), text(at(answer.body, "msg"))
    if not code or code == "Success":
        # Not the body: it may hold the password of a machine.
        unclear = isinstance(answer.body, Mapping) and 200 <= answer.status < 300
        words = f"AutoDL answered {what} without what it must say"
        return Ambiguous(words, provider="autodl", what=what) if unclear else None
    words = f"AutoDL refused {what} ({code}): {said or 'no reason given'}"
    more = {"provider": "autodl", "what": what, "evidence": f"{code}: {said}"}
    if _RATE.search(f"{code} {said}"):
        return RateLimited(words, retry_after_s=retry_after(answer.headers), **more)
    if code == "TORealName" or _GATE.search(said):
        return AccountGate(f"{words}; the account must be certified in AutoDL's console first", **more)
    if _AUTH.search(f"{code} {said}"):
        return AuthFailed(f"{words}; set a valid key with `gpujob login autodl`", **more)
    # A destroy that was refused must be tried again, so nobody may call it settled.
    if what != "destroy":
        if what == "create":
            for pattern, kind in ((_FUNDS, NoFunds), (_CAPACITY, NoCapacity), (_QUOTA, QuotaExceeded)):
                if pattern.search(said):
                    return kind(words, **more)
        if code in ("RequestParameterIsWrong", "RecordNotFoundError", "BadRequest"):
            return Invalid(words, **more)
    return Ambiguous(f"AutoDL failed at {what} ({code}): {said or 'no reason given'}", **more)
