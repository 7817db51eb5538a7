"""`local`: machines of this host, each with its own sshd, key, files and processes. Its money is play.

Rules
- The machines are the account: all that `list` and `get` say is read from disk and /proc, so it is true for
  every process, and machines outlive whoever made them. Their end and their reclaims are their own doing.
- A dead status is given only after pid 1 was seen dead, which takes all the machine's processes with it.
- A dead machine's files go when it is first seen dead; a small tombstone answers for it for ten minutes.
- Never picked unless named: a spec or `--provider local` asks for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import cast

from providers.base import (
    Ask,
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
from providers.errors import Ambiguous, Invalid, ProviderError, Refused
from providers.local_machine import isolation, launch, lives, prices, programs, reclaim, sick
from providers.local_machine.folder import (
    DEAD_LISTED_S,
    Record,
    Tombstone,
    World,
    new_id,
    read_text,
    remove_tree,
    write_atomic,
)

_TAG_PART = re.compile(r"[a-z0-9-]*")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")

CAPS = Caps(
    dead_statuses=lives.DEAD,
    self_end="nothing",
    server_ttl=True,
    boot_hook="every_boot",
    power_off_allowed=False,
    spot=True,
    spot_notice_s=0.0,
    spot_notice_file=launch.NOTICE_FILE,
    list_lag_s=0.0,
    dead_listed_s=DEAD_LISTED_S,
    ready_within_s=60.0,
    play=True,
    source="providers/local.py",
    as_of="2026-11-30",
)


class LocalProvider:
    """The provider of this host. State lies in $GPUJOB_LOCAL_HOME, else `<home>/local`.

    Settings: `regions`, a list of names (default: one, `here`), so that tests can have several.
    """

    name = "local"
    account = "local"
    caps = CAPS

    def __init__(self, config: ProviderConfig) -> None:
        self.config = config
        home = os.environ.get("GPUJOB_LOCAL_HOME") or config.home / "local"
        self.world = World(Path(home).absolute())
        self._regions = tuple(str(name) for name in config.settings.get("regions", ("here",)))

    def regions(self) -> tuple[str, ...]:
        return self._regions

    def offers(self, ask: Ask) -> tuple[Offer, ...]:
        """Every GPU class of the table, at list price and as spot; CPU machines when no GPU is asked. Raises `Invalid`
        for an image: the job would run without it, and seem to have run in it.
        """
        if ask.image:
            raise Invalid(
                f"machines of this host run a job as this host is, not in the image {ask.image}: leave `image` out for "
                "a trial run here",
                provider=self.name, what="offers",
            )  # fmt: skip
        with self._host_errors("offer", Ambiguous):
            there = prices.host(self.world.home)
        table = self.config.gpus
        return tuple(prices.offers(ask, table, self._regions, there, provider=self.name, account=self.account))

    def create(self, offer: Offer, tag: Tag, end: float, boot: Boot) -> Instance:
        """Start a machine; returns when its first process runs, mostly before its sshd answers.

        Raises `MissingProgram` (an `Invalid`), `Invalid` for an offer or tag that cannot be, `Refused` when
        the machine did not come up; in each case nothing is left.
        """
        known = prices.wish_of(offer.key, self.config.gpus)
        if known is None or offer.region not in self._regions:
            raise self._invalid(f"no such offer: {offer.key!r} in {offer.region!r}")
        if not _NAME.fullmatch(tag.name) or not all(_TAG_PART.fullmatch(p) for p in dataclasses.astuple(tag)):
            raise self._invalid(f"a tag's parts must match [a-z0-9-]*, its name {CAPS.name_pattern}: {tag}")
        if tag.deployment != self.config.deployment:
            raise self._invalid(f"the tag's deployment {tag.deployment!r} is not {self.config.deployment!r}")
        programs.check()
        script = reclaim.parse(os.environ.get(reclaim.VARIABLE, "")) if known[1] else None
        sickness = sick.parse(os.environ.get(sick.VARIABLE, ""))
        if sickness is not None and not sickness.strikes(self._ordinal(tag)):
            sickness = None
        with self._host_errors("create", Refused), launch.listen() as listener:
            now = time.time()
            self.world.sweep_leftovers(now)
            mode = isolation.choose(self.world.home)
            plan = ""
            if script is not None:
                ordinal = self.world.next_spot_ordinal(tag.deployment, tag.job)
                plan = script.plan(now, tag.job, ordinal)
            blank = Record(
                id=new_id(now),
                region=offer.region,
                key=offer.key,
                spot=known[1],
                hourly=str(prices.hourly(*known)),
                created_at=now,
                mode=mode,
                user="",
                port=listener.getsockname()[1],
                host_key="",
                tag=dataclasses.asdict(tag),
                stand_in=offer.stand_in,
            )
            record = self._build(blank, known[0], {"end": f"{end!r}\n", "reclaim": plan}, boot, sickness)
            self._start(record, mode, listener)
        return self._instance(record, lives.STARTING)

    def _ordinal(self, tag: Tag) -> int:
        """1 for a job's first machine, 2 for its second, as far as the account remembers them."""
        made = [i.tag for region in self._regions for i in self.list(region).instances]
        return 1 + sum(1 for other in made if other is not None and other.job == tag.job)

    def _build(
        self, blank: Record, wish: GpuWish | None, orders: Mapping[str, str], boot: Boot, sickness: sick.Sickness | None
    ) -> Record:
        """Make the machine's folder, whole or not at all; returns the record that it now has."""
        mode = cast(isolation.Mode, blank.mode)
        building = self.world.build(blank.id)
        try:
            final = self.world.folder(blank.id)
            seen = launch.build(building, final, mode, blank.id, boot.hook, boot.public_key)
            if wish is not None and blank.stand_in:
                launch.stand_in_gpus(building, blank.id, wish.name, wish.vram_gb, wish.count)
                if sickness is not None:
                    sick.infect(building, sickness)
            for name, text in orders.items():
                if text:
                    write_atomic(building / "ctl" / name, text)
            record = dataclasses.replace(blank, user=seen.user, host_key=launch.host_key(building))
            self.world.publish(building, record)
        except BaseException:
            remove_tree(building)
            raise
        return record

    def _start(self, record: Record, mode: isolation.Mode, listener: socket.socket) -> None:
        folder = self.world.folder(record.id)
        try:
            launch.start(folder, record, mode, listener)
        except (Refused, OSError):
            # A pid 1 that is still on its way finds the word, or no folder, and ends.
            with contextlib.suppress(OSError):
                write_atomic(folder / "ctl/doom", "did not start\n")
            self.world.bury(record, lives.CRASHED, time.time(), time.time())
            raise

    def list(self, region: str) -> Listing:
        """Live and lately dead machines of our deployment in `region`."""
        everything = self.list_all(region).instances
        return Listing(tuple(i for i in everything if i.tag and i.tag.deployment == self.config.deployment))

    def list_all(self, region: str) -> Listing:
        """The same of every deployment on this host; only to look at."""
        if region not in self._regions:
            raise self._invalid(f"no such region: {region!r}; there is {', '.join(self._regions)}")
        found: dict[str, Instance] = {}
        with self._host_errors("list", Ambiguous):
            for machine_id in self.world.ids():
                instance = self._look(machine_id)
                if instance is not None:
                    found[machine_id] = instance
            # After the living: a machine that dies in between is then seen twice, never not at all.
            for stone in self.world.tombstones(time.time()):
                found[stone.record.id] = self._dead(stone)
        return Listing(tuple(i for i in found.values() if i.ref.region == region))

    def get(self, ref: Ref) -> Instance | None:
        with self._host_errors("get", Ambiguous):
            found = self._look(ref.id)
            if found is None:
                stone = self._stone(ref.id)
                found = self._dead(stone) if stone else None
            return found

    def destroy(self, ref: Ref) -> DestroyAck:
        """Kill and delete at once. Raises `Ambiguous` when a process is still there after some seconds."""
        with self._host_errors("destroy", Ambiguous):
            record = self._record(ref.id)
            if record is None:
                return DestroyAck.ACKNOWLEDGED if self._stone(ref.id) else DestroyAck.MISSING
            lives.destroy(self.world, record)
            return DestroyAck.ACKNOWLEDGED

    def set_expiry(self, ref: Ref, at: float) -> None:
        """Move the machine's own end to `at`, UTC epoch seconds; pid 1 arms it anew."""
        instance = self.get(ref)
        if instance is None or instance.status in lives.DEAD:
            raise self._invalid(f"machine {ref.id} is {instance.status if instance else 'unknown'}: no end to move")
        with self._host_errors("move the end", Ambiguous):
            lives.order(self.world, ref.id, "end", f"{at!r}\n")

    # Not verbs of the protocol: what tests and benchmarks do to a machine.

    def reclaim(self, ref: Ref, notice_s: float = 0.0) -> None:
        """Take a spot machine back now: announced at once, killed `notice_s` later, by its own pid 1."""
        lives.order(self.world, ref.id, "reclaim", reclaim.orders(time.time(), notice_s))

    def reboot(self, ref: Ref) -> None:
        """All processes die, files stay but for /tmp, the boot hook runs again; the port may change."""
        record = self._record(ref.id)
        if record is None:
            raise self._invalid(f"no such machine: {ref.id}")
        lives.reboot(self.world, record)

    def folder(self, ref: Ref) -> Path:
        """The machine's folder on this host: `root/home`, `root/tmp`, `etc/gpus.json`, `ctl/`."""
        return self.world.folder(ref.id)

    @contextlib.contextmanager
    def _host_errors(self, verb: str, kind: type[ProviderError]) -> Iterator[None]:
        """A full disk or a forbidden folder is this provider's way of failing: say it as one."""
        try:
            yield
        except OSError as problem:
            raise kind(f"this host could not {verb}: {problem}", provider=self.name, what=verb) from problem

    def _record(self, machine_id: str) -> Record | None:
        return self.world.record(machine_id) if _NAME.fullmatch(machine_id) else None

    def _stone(self, machine_id: str) -> Tombstone | None:
        return self.world.tombstone(machine_id, time.time()) if _NAME.fullmatch(machine_id) else None

    def _look(self, machine_id: str) -> Instance | None:
        """A machine that still has a folder after the look."""
        record = self._record(machine_id)
        status = lives.look(self.world, record) if record is not None else None
        return self._instance(record, status) if record is not None and status is not None else None

    def _instance(self, record: Record, status: str) -> Instance:
        ctl = self.world.folder(record.id) / "ctl"
        end, notice = read_text(ctl / "end"), read_text(ctl / "notice")
        return Instance(
            ref=Ref(self.name, self.account, record.region, record.id),
            status=status,
            tag=record.as_tag(),
            ready=status == lives.RUNNING,
            endpoint=None if status in lives.DEAD else Endpoint(launch.HOST, record.port, record.user),
            host_keys=(record.host_key,),
            machine_id=record.id,
            created_at=record.created_at,
            ends_at=float(end) if end else None,
            hourly=Decimal(record.hourly),
            currency=prices.CURRENCY,
            notice=Notice(float(notice)) if notice else None,
            raw={"mode": record.mode, "boots": record.boots, "key": record.key},
        )

    def _dead(self, stone: Tombstone) -> Instance:
        instance = self._instance(stone.record, stone.status)
        raw: Mapping[str, object] = {**instance.raw, "died_at": stone.at}
        return dataclasses.replace(instance, raw=raw)

    def _invalid(self, message: str) -> Invalid:
        return Invalid(message, provider=self.name)
