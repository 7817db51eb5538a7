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
import time
from collections.abc import Mapping
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
from providers.errors import Ambiguous, Invalid, Refused
from providers.local_machine import isolation, launch, prices, process, programs, reclaim
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

STARTING, RUNNING = "starting", "running"
INTERRUPTED, TERMINATED, ENDED, CRASHED = "interrupted", "terminated", "ended", "crashed"
DEAD = frozenset({INTERRUPTED, TERMINATED, ENDED, CRASHED})
# A machine without a first word after this long has no creator either: `create` gives up earlier.
NO_FIRST_WORD_S = launch.START_TIMEOUT_S + 15.0
DESTROY_TIMEOUT_S = 5.0  # measured: 6 ms; a process stuck in a disk may take longer, and then the answer is Ambiguous
_TAG_PART = re.compile(r"[a-z0-9-]*")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")

CAPS = Caps(
    dead_statuses=DEAD,
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
        """Every GPU class of the table, at list price and as spot; CPU machines when no GPU is asked."""
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
        now = time.time()
        self.world.sweep_leftovers(now)
        mode = isolation.choose(self.world.home)
        plan = ""
        if script is not None:
            ordinal = self.world.next_spot_ordinal(tag.deployment, tag.job)
            plan = script.plan(now, tag.job, ordinal)
        return self._build_and_start(offer, tag, end, boot, mode, plan, now)

    def _build_and_start(
        self, offer: Offer, tag: Tag, end: float, boot: Boot, mode: isolation.Mode, plan: str, now: float
    ) -> Instance:
        wish, spot = cast(tuple[GpuWish | None, bool], prices.wish_of(offer.key, self.config.gpus))
        machine_id = new_id(now)
        building = self.world.build(machine_id)
        with launch.listen() as listener:
            try:
                final = self.world.folder(machine_id)
                seen = launch.build(building, final, mode, machine_id, boot.hook, boot.public_key)
                if wish is not None and offer.stand_in:
                    launch.stand_in_gpus(building, machine_id, wish.name, wish.vram_gb, wish.count)
                write_atomic(building / "ctl/end", f"{end!r}\n")
                if plan:
                    write_atomic(building / "ctl/reclaim", plan)
                record = Record(
                    id=machine_id,
                    region=offer.region,
                    key=offer.key,
                    spot=spot,
                    hourly=str(prices.hourly(wish, spot)),
                    created_at=now,
                    mode=mode,
                    user=seen.user,
                    port=listener.getsockname()[1],
                    host_key=launch.host_key(building),
                    tag=dataclasses.asdict(tag),
                    stand_in=offer.stand_in,
                    gpu=wish.name if wish else "",
                    gpu_count=wish.count if wish else 0,
                )
                self.world.publish(building, record)
            except BaseException:
                remove_tree(building)
                raise
            try:
                launch.start(final, record, mode, listener)
            except Refused:
                self.world.bury(record, CRASHED, time.time())
                raise
        return self._instance(record, STARTING)

    def list(self, region: str) -> Listing:
        """Live and lately dead machines of our deployment in `region`."""
        if region not in self._regions:
            raise self._invalid(f"no such region: {region!r}; there is {', '.join(self._regions)}")
        ours: dict[str, Instance] = {}
        for machine_id in self.world.ids():
            instance = self._look(machine_id)
            if instance is not None:
                ours[machine_id] = instance
        # After the living: a machine that dies in between is then seen twice, never not at all.
        for stone in self.world.tombstones(time.time()):
            ours[stone.record.id] = self._dead(stone)
        return Listing(
            tuple(
                i
                for i in ours.values()
                if i.ref.region == region and i.tag is not None and i.tag.deployment == self.config.deployment
            )
        )

    def get(self, ref: Ref) -> Instance | None:
        found = self._look(ref.id)
        if found is None:
            stone = self._stone(ref.id)
            found = self._dead(stone) if stone else None
        return found

    def destroy(self, ref: Ref) -> DestroyAck:
        """Kill and delete at once. Raises `Ambiguous` when a process is still there after some seconds."""
        record = self._record(ref.id)
        if record is None:
            return DestroyAck.ACKNOWLEDGED if self._stone(ref.id) else DestroyAck.MISSING
        ctl = self.world.folder(ref.id) / "ctl"
        # The word before the blow: a pid 1 that we cannot see yet reads it before it does anything.
        with contextlib.suppress(FileNotFoundError):
            write_atomic(ctl / "doom", "destroyed\n")
        processes = self._processes(ref.id)
        if not processes and time.time() - record.created_at < launch.START_TIMEOUT_S:
            processes = self._wait_for_first_word(ref.id)
        for one in processes[:1]:  # the second, a subreaper's guard, must live to kill what the first leaves
            one.kill()
        if not process.wait_gone(processes, DESTROY_TIMEOUT_S):
            raise Ambiguous(
                f"machine {ref.id}: process {processes[0].pid} is still there {DESTROY_TIMEOUT_S:.0f} s "
                "after SIGKILL; most likely it waits for a disk",
                provider=self.name,
                what="destroy",
            )
        self._finish_off(record)
        status, at = self._fate(ref.id) or (TERMINATED, time.time())
        self.world.bury(record, status, at)
        return DestroyAck.ACKNOWLEDGED

    def set_expiry(self, ref: Ref, at: float) -> None:
        """Move the machine's own end to `at`, UTC epoch seconds; pid 1 arms it anew."""
        instance = self.get(ref)
        if instance is None or instance.status in DEAD:
            raise self._invalid(f"machine {ref.id} is {instance.status if instance else 'unknown'}: no end to move")
        self._order(ref.id, "end", f"{at!r}\n")

    # Not verbs of the protocol: what tests and benchmarks do to a machine.

    def reclaim(self, ref: Ref, notice_s: float = 0.0) -> None:
        """Take a spot machine back now: announced at once, killed `notice_s` later, by its own pid 1."""
        self._order(ref.id, "reclaim", reclaim.orders(time.time(), notice_s))

    def reboot(self, ref: Ref) -> None:
        """All processes die, files stay but for /tmp, the boot hook runs again; the port may change."""
        record = self.world.record(ref.id)
        if record is None:
            raise self._invalid(f"no such machine: {ref.id}")
        folder = self.world.folder(ref.id)
        write_atomic(folder / "ctl/rebooting", f"{time.time():.3f}\n")
        processes = self._processes(ref.id)
        for one in processes[:1]:
            one.kill()
        process.wait_gone(processes, DESTROY_TIMEOUT_S)
        self._finish_off(record)
        remove_tree(folder / "root/tmp")
        (folder / "root/tmp").mkdir(mode=0o700)
        for name in ("pid", "up"):
            (folder / "ctl" / name).unlink(missing_ok=True)
        try:
            listener = launch.listen(record.port)
        except OSError:
            listener = launch.listen()  # somebody took the port meanwhile
        with listener:
            record = dataclasses.replace(record, port=listener.getsockname()[1], boots=record.boots + 1)
            self.world.update(record)
            launch.start(folder, record, cast(isolation.Mode, record.mode), listener)
        (folder / "ctl/rebooting").unlink(missing_ok=True)

    def folder(self, ref: Ref) -> Path:
        """The machine's folder on this host: `root/home`, `root/tmp`, `etc/gpus.json`, `ctl/`."""
        return self.world.folder(ref.id)

    def _record(self, machine_id: str) -> Record | None:
        return self.world.record(machine_id) if _NAME.fullmatch(machine_id) else None

    def _stone(self, machine_id: str) -> Tombstone | None:
        return self.world.tombstone(machine_id, time.time()) if _NAME.fullmatch(machine_id) else None

    def _order(self, machine_id: str, name: str, text: str) -> None:
        try:
            write_atomic(self.world.folder(machine_id) / "ctl" / name, text)
        except FileNotFoundError:
            raise self._invalid(f"no such machine: {machine_id}") from None
        for one in self._processes(machine_id)[:1]:
            one.kill(1)  # SIGHUP wakes pid 1, so that the order counts now and not a tick later

    def _processes(self, machine_id: str) -> tuple[process.Process, ...]:
        text = read_text(self.world.folder(machine_id) / "ctl/pid")
        return process.parse_identity(text) if text else ()

    def _wait_for_first_word(self, machine_id: str) -> tuple[process.Process, ...]:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            found = self._processes(machine_id)
            if found or not self.world.folder(machine_id).exists():
                return found
            time.sleep(process.POLL_S)
        return ()

    def _fate(self, machine_id: str) -> tuple[str, float] | None:
        """What pid 1 wrote about its own death: (status, when)."""
        text = read_text(self.world.folder(machine_id) / "ctl/fate")
        if not text:
            return None
        status, at = text.split()
        return status, float(at)

    def _finish_off(self, record: Record) -> None:
        """Where no namespace guarantees it, kill whatever a murdered supervisor could not."""
        if record.mode == "subreaper":
            process.kill_marked(f"{launch.MARKER}={record.id}")

    def _look(self, machine_id: str) -> Instance | None:
        """A machine that has a folder, as it is now; one that is found dead is buried on the way."""
        record = self._record(machine_id)
        if record is None:
            return None
        ctl = self.world.folder(machine_id) / "ctl"
        if process.any_alive(self._processes(machine_id)):
            return self._instance(record, RUNNING if (ctl / "up").exists() else STARTING)
        now = time.time()
        if (ctl / "rebooting").exists() or (not (ctl / "pid").exists() and now - record.created_at < NO_FIRST_WORD_S):
            return self._instance(record, STARTING)
        if not self.world.folder(machine_id).exists():
            return None  # buried by another process while we looked: its tombstone answers
        with contextlib.suppress(FileNotFoundError):
            write_atomic(ctl / "doom", "found dead\n")
        self._finish_off(record)
        status, at = self._fate(machine_id) or (CRASHED, now)
        self.world.bury(record, status, at)
        return None

    def _instance(self, record: Record, status: str) -> Instance:
        ctl = self.world.folder(record.id) / "ctl"
        end, notice = read_text(ctl / "end"), read_text(ctl / "notice")
        return Instance(
            ref=Ref(self.name, self.account, record.region, record.id),
            status=status,
            tag=record.as_tag(),
            ready=status == RUNNING,
            endpoint=None if status in DEAD else Endpoint(launch.HOST, record.port, record.user),
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
