"""The provider protocol: six synchronous verbs over a few frozen values.

Rules
- A verb makes one logical call and returns or raises from `providers.errors`; no hidden retries, no sleeping.
- `list` returns everything that carries our deployment's tag, all pages, or raises: a part is never returned.
- `destroy` is idempotent and says nothing of completion; `DestroyAck.MISSING` acknowledges nothing.
- Unknown statuses, fields and GPU names are data: they travel in `status` and `raw`, they never raise.
- Money is `Decimal` per hour with a currency; times are UTC epoch seconds; sizes are bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

SelfEnd = Literal["destroys", "stops_all_billing", "leaves_disk", "nothing"]
BootHookKind = Literal["none", "once", "every_boot"]
ResourceKind = Literal["instance", "disk", "address", "snapshot", "key", "group"]


@dataclass(frozen=True)
class Caps:
    """How this provider differs from the others; `source` and `as_of` say where that was read."""

    dead_statuses: frozenset[str]  # in these user code can never run again, and the provider cannot undo it
    self_end: SelfEnd  # what the machine ending itself (power-off, own API key) does to the bill
    server_ttl: bool  # the provider itself ends the machine at `end`; movable by `set_expiry`
    boot_hook: BootHookKind
    idempotent_create: bool = False  # the same tag sent twice makes one machine
    power_off_allowed: bool = True  # False: the machine belongs to somebody, we only end our own processes
    stop_bills: Literal["nothing", "disk", "all"] = "all"
    disks_outlive: bool = False  # disks or addresses can stay behind after the instance
    spot: bool = False
    spot_notice_s: float = 0.0  # shortest warning before a reclaim
    spot_notice_file: str = ""  # where the machine reads it, when it is a file
    min_billing_s: int = 0
    billing_step_s: int = 1
    name_pattern: str = r"[a-z][a-z0-9-]{0,62}"  # a tag's `name` must match
    list_lag_s: float = 0.0  # how long a listing may lag behind the truth
    dead_listed_s: float = 0.0  # how long a dead machine stays visible to `get`
    ready_within_s: float = 900.0  # not reachable by then: a bad host
    requests_per_s: float | None = None
    egress_per_gb: Decimal = Decimal(0)
    data_mount: str = ""  # folder of the data disk on the machine; empty: the login's home
    balance: bool = False
    play: bool = False  # the money is not real (`local`)
    source: str = ""
    as_of: str = ""  # date, YYYY-MM-DD


@dataclass(frozen=True)
class GpuRow:
    """One line of the GPU table, as the registry hands it in."""

    name: str  # canonical, e.g. "RTX-4090", "A100-80GB"
    vram_gb: int
    spellings: tuple[str, ...] = ()  # other names of the same card


@dataclass(frozen=True)
class GpuWish:
    """One acceptable kind: this canonical class, this many cards."""

    name: str
    vram_gb: int
    count: int


@dataclass(frozen=True)
class Ask:
    """What a machine must have. `gpus`: any of these; empty means a machine without GPU."""

    gpus: tuple[GpuWish, ...] = ()
    cpus_min: int = 0
    memory_min: int = 0  # bytes
    disk_min: int = 0  # bytes, system and data together
    regions: tuple[str, ...] = ()  # empty: all
    spot: bool | None = None  # None: both
    image: str = ""  # empty: the provider's default
    images: tuple[tuple[str, str], ...] = ()  # provider -> its own image, where the spec names them so

    def at(self, provider: str) -> Ask:
        """The ask as one provider is given it: with the image that is meant for it."""
        if not self.images:
            return self
        return replace(self, image=dict(self.images).get(provider, self.image), images=())


def is_docker_image(name: str) -> bool:
    """Whether an image is one of docker's, not a provider's own word: with a registry's path or a tag."""
    return ("/" in name or ":" in name) and not name.startswith("ssm:/")


@dataclass(frozen=True)
class Offer:
    """Something that can be rented now; `key` identifies it at the provider for `create`."""

    provider: str
    account: str
    region: str
    key: str
    spot: bool
    hourly: Decimal  # the whole machine, disks included
    currency: str
    gpu: str = ""  # canonical class; empty for a CPU machine
    gpu_count: int = 0
    vram_gb: int = 0
    cpus: int = 0
    memory: int = 0
    disk: int = 0
    pool: str = ""  # what fills up and is reclaimed together: rests after a refusal or a reclaim
    image: str = ""  # what the provider starts: an own image, or on container companies a docker image
    container: str = ""  # a docker image that the agent runs the job in, on a machine that the provider starts as usual
    min_billing_s: int = 0
    billing_step_s: int = 1
    in_per_gb: Decimal = Decimal(0)  # of traffic into the machine, for each 10^9 bytes, in `currency`
    stand_in: bool = False  # the GPU is an imitation (`local`)
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tag:
    """How we recognise our own: written at create, read back by `list`. All parts match [a-z0-9-]+."""

    deployment: str
    rental: str
    job: str = ""
    owner: str = ""

    @property
    def name(self) -> str:
        """The machine's name at the provider: the rental id, valid everywhere."""
        return self.rental


@dataclass(frozen=True)
class Boot:
    """What a fresh machine is given: who may log in, and the dead-man that runs at every boot."""

    hook: str  # text of a POSIX sh script; run at every boot as the login user, detached, before sshd is needed
    public_key: str  # one authorized_keys line
    image: str = ""
    disk: int = 0  # bytes of data disk wanted


@dataclass(frozen=True)
class Ref:
    """A provider's own name for one resource."""

    provider: str
    account: str
    region: str
    id: str
    kind: ResourceKind = "instance"


@dataclass(frozen=True)
class Endpoint:
    """Where sshd answers now. It may change over a machine's life: read it again before connecting."""

    host: str
    port: int
    user: str


@dataclass(frozen=True)
class Notice:
    """The provider announced a reclaim; `at` is when, as UTC epoch seconds."""

    at: float
    action: str = "terminate"  # stop and hibernate are a loss as well


@dataclass(frozen=True)
class Instance:
    """One machine as the provider shows it now. `status` is the provider's word, unmapped."""

    ref: Ref
    status: str
    tag: Tag | None
    ready: bool = False  # the provider says that it runs
    endpoint: Endpoint | None = None
    host_keys: tuple[str, ...] = ()  # "ssh-ed25519 AAAA..." where the provider tells; else pinned at first sight
    machine_id: str = ""  # the physical host, for remembering bad ones
    created_at: float | None = None
    ends_at: float | None = None  # the provider's own timer, where there is one
    hourly: Decimal | None = None
    currency: str = ""
    notice: Notice | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resource:
    """A disk, address or other thing under our tag that may bill on its own."""

    ref: Ref
    status: str
    tag: Tag | None
    hourly: Decimal | None = None
    currency: str = ""


@dataclass(frozen=True)
class Listing:
    """Everything under our deployment's tag in one account and region, complete by contract."""

    instances: tuple[Instance, ...] = ()
    others: tuple[Resource, ...] = ()


@dataclass(frozen=True)
class Balance:
    """What an account can still spend."""

    amount: Decimal
    currency: str


class DestroyAck(enum.Enum):
    """The provider's answer to a destroy."""

    ACKNOWLEDGED = "acknowledged"  # it knew the thing and took the order
    MISSING = "missing"  # it knows no such thing, which a lagging replica may also say


@dataclass(frozen=True)
class ProviderConfig:
    """What the registry hands to an adapter's constructor."""

    deployment: str
    home: Path  # gpujob's state folder
    gpus: tuple[GpuRow, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)  # this provider's block of the config
    # A key by the name of its variable: what `gpujob login` keeps, unless the environment has one; None: nowhere.
    secret: Callable[[str], str | None] = field(default=lambda variable: None, compare=False, repr=False)


@runtime_checkable
class Provider(Protocol):
    """One rental company (or this host). Constructed as `cls(config: ProviderConfig)`; must be thread-safe."""

    name: str
    account: str

    @property
    def caps(self) -> Caps: ...

    def regions(self) -> tuple[str, ...]:
        """Regions that `list` must be asked for; an unreachable one delays no other."""
        ...

    def offers(self, ask: Ask) -> tuple[Offer, ...]:
        """Everything rentable that satisfies `ask`, in any order."""
        ...

    def create(self, offer: Offer, tag: Tag, end: float, boot: Boot) -> Instance:
        """Rent one machine that carries `tag` and, where `caps.server_ttl`, ends itself at `end` (UTC epoch s)."""
        ...

    def list(self, region: str) -> Listing:
        """All that carries our deployment's tag in `region`."""
        ...

    def get(self, ref: Ref) -> Instance | None:
        """The machine now; None when the provider says that it knows no such machine."""
        ...

    def destroy(self, ref: Ref) -> DestroyAck:
        """Order the end of a machine, disk or address."""
        ...

    def set_expiry(self, ref: Ref, at: float) -> None:
        """Move the provider's own timer, where `caps.server_ttl`."""
        ...


@runtime_checkable
class ListsStrangers(Protocol):
    """A further verb of providers whose account can be seen as a whole; only `audit` asks for it, to show."""

    def list_all(self, region: str) -> Listing:
        """All machines, disks and addresses of the account in `region`, whoever made them; `tag` is None where it
        is not ours to read. Nothing that only this verb shows is ever changed.
        """
        ...


@runtime_checkable
class TellsBalance(Protocol):
    """A further verb of providers with `caps.balance`; a read like any other, and raises as they do."""

    def balance(self) -> Balance:
        """What the account can spend now."""
        ...
