"""A rental company as it really is, and the adapter through which it is seen, which lies as the faults say."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from sim_box import Box

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
    Ref,
    Resource,
    Tag,
)
from providers.errors import Ambiguous, AuthFailed, NoCapacity, ProviderError, QuotaExceeded, RateLimited

if TYPE_CHECKING:
    from sim_world import World

NONCE = re.compile(r"[0-9a-f]{32}")
LATE_SEEN_S = (20.0, 240.0)
LATE_BIRTH_S = (3600.0, 24 * 3600.0)
STALE_S = 60.0
#: For how long a lie may hinder what the controller owes: the longest pause before it asks again, and a margin.
EXCUSES_S = {"list": 180.0, "get": 60.0, "destroy": 700.0, "expiry": 700.0, "offers": 60.0, "disk": 60.0}


def kinds() -> dict[str, Caps]:
    """Every kind of company: what ends a machine, what bills after that, what is dead for good."""
    base = Caps(
        dead_statuses=frozenset({"terminated"}), self_end="destroys", server_ttl=False, boot_hook="every_boot",
        spot=True, spot_notice_s=120.0, dead_listed_s=1800.0, list_lag_s=30.0, ready_within_s=900.0,
    )  # fmt: skip
    return {
        "aurora": replace(base, disks_outlive=True),
        "borealis": replace(
            base, dead_statuses=frozenset({"terminated", "exited"}), self_end="stops_all_billing", server_ttl=True,
            stop_bills="nothing", spot_notice_s=30.0,
        ),
        "corona": replace(
            base, dead_statuses=frozenset(), self_end="leaves_disk", boot_hook="once", disks_outlive=True,
            stop_bills="disk", spot_notice_s=0.0, dead_listed_s=0.0,
        ),
        "dusk": replace(base, self_end="nothing", boot_hook="none", spot=False, dead_listed_s=120.0, server_ttl=True),
        "ember": replace(
            base, self_end="nothing", boot_hook="none", dead_statuses=frozenset(), dead_listed_s=0.0, list_lag_s=60.0,
            spot=False,
        ),
        "flare": replace(base, server_ttl=True, idempotent_create=True, power_off_allowed=False, self_end="nothing"),
    }  # fmt: skip


@dataclass
class Disk:
    """Something that bills on its own."""

    id: str
    tag: Tag | None
    born: float
    gone_at: float | None = None


class Cloud:
    """The truth of one company: machines, disks, strangers."""

    def __init__(self, world: World, name: str, caps: Caps) -> None:
        self.world, self.name, self.caps = world, name, caps
        self.boxes: dict[str, Box] = {}
        self.disks: dict[str, Disk] = {}
        self.count = 0
        self.down_until = 0.0
        self.free_addresses: list[str] = []
        self.price = Decimal("1.00") + Decimal(world.rng.randrange(40)) / 100  # of one spot machine-hour

    def boot_s(self) -> float:
        return self.world.rng.choice((5.0, 20.0, 45.0, 90.0))

    def make(self, offer: Offer, tag: Tag | None, nonce: str, end: float | None) -> Box:
        """A machine comes into being."""
        self.count += 1
        box = Box(self.world, self, f"{self.name}-{self.count}", offer, tag, nonce)
        if self.free_addresses and self.world.rng.random() < 0.5:
            box.address = self.free_addresses.pop()
        self.boxes[box.id] = box
        box.end = end
        if self.caps.server_ttl and end is not None:
            box.provider_end(end)
        if self.caps.disks_outlive:
            self.disks[f"{box.id}-disk"] = Disk(f"{box.id}-disk", tag, self.world.heap.now)
        self.world.say(box.name, f"was made at {self.name} as {box.id}")
        self.world.oracle.born(box)
        return box

    def remove(self, box: Box, why: str, keep_disk: bool) -> None:
        box.power("dead", why)
        disk = self.disks.get(f"{box.id}-disk")
        if disk is not None and not keep_disk and disk.gone_at is None:
            disk.gone_at = self.world.heap.now

    def address_free(self, box: Box) -> None:
        self.free_addresses.append(box.address)

    def at_address(self, address: str) -> Box | None:
        """Who answers there now: the newest machine with that address."""
        found = [b for b in self.boxes.values() if b.address == address and b.alive]
        return found[-1] if found else None


class SimProvider:
    """The adapter: six verbs over the truth."""

    account = "acc"

    def __init__(self, world: World, cloud: Cloud) -> None:
        self.world, self.cloud, self.name = world, cloud, cloud.name
        self._made: dict[str, Box] = {}  # by tag, where creates are idempotent

    @property
    def caps(self) -> Caps:
        return self.cloud.caps

    def regions(self) -> tuple[str, ...]:
        return ("r1",)

    def _reach(self) -> None:
        """The network and the company's door."""
        now = self.world.heap.now
        if now < self.world.offline_until:
            self.world.slow(10.0)
            self.world.faults.refused += 1
            raise Ambiguous("no route", provider=self.name)
        if now < self.cloud.down_until:
            self.world.slow(20.0)
            self.world.faults.refused += 1
            raise Ambiguous("503 Service Unavailable", provider=self.name)

    def _hits(self, kind: str) -> bool:
        hit = self.world.faults.hits(kind, self.world.heap.now)
        if hit:
            self.world.oracle.disturb_cloud(self.name, EXCUSES_S.get(kind.partition("-")[0], 0.0))
        return hit

    def offers(self, ask: Ask) -> tuple[Offer, ...]:
        self._reach()
        if self._hits("offers-error"):
            raise Ambiguous("502", provider=self.name)
        price = self.cloud.price
        base = Offer(self.name, self.account, "r1", "demand", False, price * 2, "USD", gpu="RTX-4090", gpu_count=1,
                     vram_gb=24, pool="demand")  # fmt: skip
        found = [base]
        if self.caps.spot:
            found += [replace(base, key=f"spot-{x}", spot=True, hourly=price + Decimal(x) / 50, pool=f"spot-{x}")
                      for x in range(2)]  # fmt: skip
        return tuple(o for o in found if ask.spot is None or o.spot is ask.spot)

    def create(self, offer: Offer, tag: Tag, end: float, boot: Boot) -> Instance:
        world = self.world
        world.oracle.create_called(tag, offer)
        self._reach()
        if self._hits("create-refused"):
            world.oracle.create_refused(tag, offer)
            raise NoCapacity("none free", provider=self.name)
        if self._hits("create-account"):
            raise QuotaExceeded("vCPU limit reached", provider=self.name)
        if self._hits("create-busy"):
            raise RateLimited("slow down", provider=self.name, retry_after_s=30)
        if self._hits("create-lost-unmade"):
            world.slow(30.0)
            raise Ambiguous("read timed out", provider=self.name)
        found = NONCE.search(boot.hook)
        assert found is not None
        if self._hits("create-late-birth"):
            world.heap.after(world.rng.uniform(*LATE_BIRTH_S), self.cloud.make, offer, tag, found[0], end)
            world.say(tag.rental, "will be born late")
            raise Ambiguous("500 Internal Error", provider=self.name)
        box = self.cloud.make(offer, tag, found[0], end)
        box.never_ready = self._hits("create-never-ready")
        if self._hits("create-twice"):
            self.cloud.make(offer, tag, found[0], end)
        if self._hits("create-late-seen"):
            box.visible_from = world.heap.now + world.rng.uniform(*LATE_SEEN_S)
        if self._hits("create-lost-made"):
            world.slow(world.rng.choice((0.5, 30.0)))
            raise Ambiguous("connection reset by peer", provider=self.name)
        return self._shown(box)

    def list(self, region: str) -> Listing:
        self._reach()
        if self._hits("list-error"):
            raise Ambiguous("500", provider=self.name)
        if self._hits("list-refused"):
            raise AuthFailed("401: the key was rotated", provider=self.name)
        deployment = self.world.deployment  # an adapter filters by its tag
        every = [b for b in self.cloud.boxes.values() if b.tag is not None and b.tag.deployment == deployment]
        ours, past = [b for b in every if self._listed(b)], self.world.heap.now - STALE_S
        stale = any(b.changed_at > past for b in every) and self._hits("list-stale")
        if stale:
            ours = [b for b in every if b.born <= past and (b in ours or b.changed_at > past)]
        if ours and self._hits("list-flicker"):
            ours.remove(self.world.rng.choice(ours))
        if ours and self._hits("list-untagged"):
            ours.remove(self.world.rng.choice(ours))
        disks = [d for d in self.cloud.disks.values()
                 if d.gone_at is None and d.tag is not None and d.tag.deployment == deployment]  # fmt: skip
        self.world.oracle.listed(self.cloud, {b.id for b in ours})
        others = tuple(
            Resource(Ref(self.name, self.account, "r1", d.id, "disk"), "available", d.tag)
            for d in disks if self._loose(d)
        )  # fmt: skip
        return Listing(tuple(self._shown(b, past if stale else None) for b in ours), others)

    def _loose(self, disk: Disk) -> bool:
        """A disk is listed on its own once its machine is dead."""
        box = self.cloud.boxes.get(disk.id.removesuffix("-disk"))
        return box is None or not box.alive

    def _listed(self, box: Box) -> bool:
        now = self.world.heap.now
        if now < box.visible_from:
            return False
        return box.alive or (box.dead_at is not None and now - box.dead_at < self.caps.dead_listed_s)

    def get(self, ref: Ref) -> Instance | None:
        self._reach()
        if self._hits("get-error"):
            raise Ambiguous("504", provider=self.name)
        box = self.cloud.boxes.get(ref.id)
        if box is None or not self._listed(box) or self._hits("get-missing"):
            return None
        return self._shown(box)

    def destroy(self, ref: Ref) -> DestroyAck:
        self._reach()
        if self._hits("destroy-busy"):
            raise RateLimited("try again in 60 seconds", provider=self.name, retry_after_s=60)
        if self._hits("destroy-error-undone"):
            raise Ambiguous("500", provider=self.name)
        disk, box = self.cloud.disks.get(ref.id), self.cloud.boxes.get(ref.id)
        if box is not None and not box.alive:
            box = None
        if (box is not None or disk is not None) and self._hits("destroy-missing-lie"):
            return DestroyAck.MISSING
        if disk is not None:
            self.world.oracle.destroy_disk(disk)
            disk.gone_at = disk.gone_at or self.world.heap.now
            return DestroyAck.ACKNOWLEDGED
        if box is None:
            return DestroyAck.MISSING
        self.world.oracle.destroy_called(box)
        if self._hits("destroy-ignored"):
            return DestroyAck.ACKNOWLEDGED
        left = f"{box.id}-disk" in self.cloud.disks and self._hits("disk-left")
        self.cloud.remove(box, "destroyed", keep_disk=left)
        if self._hits("destroy-error-done"):
            raise Ambiguous("502", provider=self.name)
        return DestroyAck.ACKNOWLEDGED

    def set_expiry(self, ref: Ref, at: float) -> None:
        self._reach()
        if self._hits("expiry-fails"):
            raise Ambiguous("500", provider=self.name)
        box = self.cloud.boxes.get(ref.id)
        if box is not None and box.alive:
            box.provider_end(at)

    def _shown(self, box: Box, past: float | None = None) -> Instance:
        """As it is, or as it was then."""
        words = {"booting": "pending", "running": "running", "dead": "terminated"}
        stopped = "exited" if "exited" in self.caps.dead_statuses else "stopped"
        state = box.state if past is None or box.changed_at <= past else box.before
        up = state == "running"
        return Instance(
            Ref(self.name, self.account, "r1", box.id), words.get(state, stopped), box.tag, ready=up,
            endpoint=Endpoint(box.address, 22, "u") if up else None, machine_id=f"host-{box.id}",
            created_at=box.born, ends_at=box.ends_at if self.caps.server_ttl else None,
            hourly=box.offer.hourly, currency="USD",
            notice=Notice(box.notice) if box.notice is not None else None,
        )  # fmt: skip


Make = Callable[..., SimProvider]
__all__ = ["Cloud", "Disk", "ProviderError", "SimProvider", "kinds"]
