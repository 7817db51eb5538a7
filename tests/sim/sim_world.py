"""One world: companies, machines, a user, and a controller that is killed, put to sleep, cut off and lied to.

Everything random comes from one generator, everything timed from one heap, so a seed is a run. The controller, its
store, its decisions and its mirror are the real ones; the world only stands where the network would.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from sim_box import STRANGER, Box, Program
from sim_cloud import Cloud, SimProvider, kinds
from sim_controller import Controller, Killed
from sim_faults import TIMED, Faults, Shape
from sim_oracle import Oracle
from sim_time import T0, Heap, SimClock

import orchestrator.books
import orchestrator.requests
import orchestrator.store.decisions
from jobspecs.schema import from_document, spec_hash, to_document
from orchestrator import taps
from orchestrator.home import Home
from orchestrator.store import Store
from providers.base import Offer, ProviderConfig, Tag

SPOT_NOTICE_S = {"aurora": 120.0, "borealis": 30.0}
WAIT_FOR_PHASE_S = 1.0
OUTBID_BACK_S = (300.0, 7200.0)


class SeededSecrets:
    """Ids and nonces from the world's own generator, so that a seed gives the same run."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choice(self, letters: str) -> str:
        return self._rng.choice(letters)

    def token_hex(self, count: int) -> str:
        return f"{self._rng.getrandbits(count * 8):0{count * 2}x}"


@dataclass
class Wish:
    """What the user asks for, and when."""

    name: str
    program: Program
    at: float = T0 + 1
    spec: dict[str, Any] = field(default_factory=dict)
    cancel_at: float | None = None
    cancel_now: bool = False
    extend_at: float | None = None
    extend_s: float = 3600.0
    max_cost: str | None = "100000"  # beyond the config's limits; None: within them
    tasks: list[dict[str, Any]] = field(default_factory=list)  # of a job of many
    job: str = ""  # its id, once answered


class World:
    """Build it, `start` it, `run` it; then ask `oracle.violations`."""

    def __init__(
        self,
        seed: int,
        home: Path,
        faults: Faults | None = None,
        wishes: list[Wish] | None = None,
        clouds: tuple[str, ...] = ("aurora",),
        strangers: bool = True,
    ) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.heap = Heap()
        self.clock = SimClock(self.heap)
        self.faults = faults or Faults(self.rng, {}, T0)
        self.faults.phase = self.phase
        self.wishes = wishes or []
        self.home = Home(state=home, config=home / "config").make()
        self.home.config_file.write_text("providers:\n" + "".join(f"  {name}: {{}}\n" for name in clouds))
        self.lines: list[tuple[float, str, str]] = []
        self.oracle = Oracle(self)
        self.clouds = {name: Cloud(self, name, caps) for name, caps in kinds().items() if name in clouds}
        self.results: dict[str, tuple[str, str]] = {}  # job -> machine and run whose results are home, verified
        self.failed_once: set[tuple[str, float]] = set()
        self.offline_until = self.ssh_blocked_until = 0.0
        self.partitioned: dict[str, float] = {}
        self.controller: Controller | None = None
        self.crashes = 0
        self.restart_s: tuple[float, ...] = (1.0, 1.0, 5.0, 600.0)
        self.delay = 0.0
        self.crash_at_taps: set[int] = set()  # counted over all lives
        self.crash_at_names: dict[str, int] = {}  # at the n-th passing of a name
        self.taps_passed = 0
        self.tap_names: list[str] = []
        self._providers = {name: SimProvider(self, cloud) for name, cloud in self.clouds.items()}
        seeded = SeededSecrets(random.Random(seed + 1))
        for module in (orchestrator.books, orchestrator.requests, orchestrator.store.decisions):
            module.secrets = seeded  # type: ignore[attr-defined]
        if strangers:
            self.heap.after(0.0, self._strangers)

    # --- words --------------------------------------------------------------------------------------------------------

    def say(self, who: str, what: str) -> None:
        """One line of the world's story."""
        self.lines.append((self.heap.now, who, what))

    def trace_hash(self) -> str:
        text = "\n".join(f"{at:.3f} {who} {what}" for at, who, what in self.lines)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # --- the world's parts --------------------------------------------------------------------------------------------

    @property
    def deployment(self) -> str:
        return self.controller.loop.books.deployment if self.controller is not None else ""

    def provider(self, name: str, config: ProviderConfig) -> SimProvider:
        if name not in self._providers:  # one that the controller knows and this user has nothing at
            caps = next(iter(kinds().values()))
            self._providers[name] = SimProvider(self, Cloud(self, name, caps))
        return self._providers[name]

    def boxes(self) -> list[Box]:
        return [box for cloud in self.clouds.values() for box in cloud.boxes.values()]

    def phase(self) -> str:
        """What the newest living machine of ours is at: one of `sim_faults.PHASES`."""
        ours = [b for b in self.boxes() if b.alive and b.tag is not None and b.tag.deployment == self.deployment]
        if not ours:
            return "none"
        newest = max(ours, key=lambda box: box.born)
        if newest.state == "booting":
            return "boot"
        runs = newest.runs.values()
        if not any(run.began is not None for run in runs):
            return "end" if any(run.dead for run in runs) else "setup"
        return "run" if any(not run.dead for run in runs) else "end"

    def box_of_rental(self, rental: str) -> Box | None:
        return next((b for b in self.boxes() if b.tag is not None and b.tag.rental == rental and b.alive), None)

    def program(self, job_name: str) -> Program:
        return next(w.program for w in self.wishes if w.name == job_name)

    def _strangers(self) -> None:
        """Other people's machines in the same accounts, some with names like ours."""
        for cloud in self.clouds.values():
            for tag in (None, Tag("zzzzzz", "gj-zzzzzz-aaaaaaaaaaaa", "other", "them")):
                cloud.make(_stranger_offer(cloud.name), tag, STRANGER, None)

    # --- ways ---------------------------------------------------------------------------------------------------------

    def slow(self, seconds: float) -> None:
        """The effect under way takes so much longer."""
        self.delay += seconds

    def reachable(self, box: Box) -> bool:
        now = self.heap.now
        blocked = max(self.offline_until, self.ssh_blocked_until, self.partitioned.get(box.id, 0.0))
        return box.answers and now >= blocked

    def answering_at(self, address: str) -> Box | None:
        """The machine that answers there, if there is a way to it."""
        for cloud in self.clouds.values():
            box = cloud.at_address(address)
            if box is not None and self.reachable(box):
                return box
        return None

    def followed(self, box: Box) -> bool:
        """A living controller reads this machine's stream now."""
        found = self.controller
        if found is None or found.dead or found.paused:
            return False
        return any(link.box is box for link in found.machines.links.values())

    def box_changed(self, box: Box) -> None:
        if self.controller is not None and not self.controller.dead:
            for link in self.controller.machines.links.values():
                if link.box is box:
                    link.changed()

    def disturb_links(self, box: Box | None = None) -> None:
        """Something about the ways has changed: each connection finds out by silence."""
        if self.controller is not None and not self.controller.dead:
            for link in self.controller.machines.links.values():
                if box is None or link.box is box:
                    link.disturb()

    def drop_links(self, box: Box, why: str) -> None:
        if self.controller is not None and not self.controller.dead:
            for link in list(self.controller.machines.links.values()):
                if link.box is box:
                    link.drop(why)

    # --- the controller's life ----------------------------------------------------------------------------------------

    def start_controller(self) -> None:
        if self.controller is not None and not self.controller.dead:
            return
        try:
            self.controller = Controller(self, self.home, self.clock)
        except Killed:
            self.controller_died(True)
            return
        self.oracle.controller_up()
        self.say("controller", "started")

    def controller_died(self, restart: bool) -> None:
        self.crashes += 1
        self.say("controller", "died")
        if restart:
            self.heap.after(self.rng.choice(self.restart_s), self.start_controller)

    def on_tap(self, name: str) -> None:
        self.taps_passed += 1
        self.tap_names.append(name)
        left = self.crash_at_names.get(name, 0)
        self.crash_at_names[name] = left - 1
        if self.taps_passed in self.crash_at_taps or left == 1:
            self.say("controller", f"is killed at tap {self.taps_passed} {name}")
            raise Killed(name)

    # --- the user -----------------------------------------------------------------------------------------------------

    def ask(self, verb: str, args: dict[str, Any]) -> int:
        """Append a request as a verb does, and poke."""
        taps.install(None)
        try:
            with Store.open_requester(self.home, network=lambda _: None) as store:
                number = store.ask(verb, args, self.clock.utc())
        finally:
            taps.install(self.on_tap)
        if self.controller is not None and not self.controller.dead:
            self.controller.kick(0.01)
        return number

    def answer(self, number: int) -> Any:
        with Store.open_reader(self.home) as store:
            return store.answer_of(number)

    def _apply(self, wish: Wish) -> None:
        document = {
            "name": wish.name, "gpu": "RTX-4090", "run": "python train.py \"$GPUJOB_RESUME_FROM\"", "ttl": "12h",
            "providers": list(self.clouds), "checkpoint": {"path": "."}, "max_price": "5 USD", **wish.spec,
        }  # fmt: skip
        spec = from_document(document)
        job = {
            "name": wish.name, "spec": to_document(spec), "spec_hash": spec_hash(spec), "snapshot": "",
            "base_dir": "/base", "currency": "USD", "owner": "me", "max_cost": wish.max_cost,
            "tasks": wish.tasks, "worst_case": wish.max_cost,
        }  # fmt: skip
        number = self.ask("apply", {"job": job, "mode": "new", "max_cost": wish.max_cost})
        self.say("user", f"applies {wish.name}")
        self._await_answer(number, wish)

    def _await_answer(self, number: int, wish: Wish) -> None:
        found = self.answer(number)
        if found is None:
            up = self.controller is not None and not self.controller.dead and not self.controller.paused
            self.heap.after(0.5 if up else 30.0, self._await_answer, number, wish)
            return
        assert found["ok"], found
        wish.job = found["id"]
        self.oracle.job_applied(wish)
        if wish.cancel_at is not None:
            self.heap.at(wish.cancel_at, self._cancel, wish)
        if wish.extend_at is not None:
            self.heap.at(wish.extend_at, self._extend, wish)

    def _cancel(self, wish: Wish) -> None:
        self.say("user", f"cancels {wish.name}")
        self.oracle.cancelled[wish.job] = self.heap.now
        self.ask("cancel", {"job": wish.job, "now": wish.cancel_now})

    def _extend(self, wish: Wish) -> None:
        self.say("user", f"extends {wish.name}")
        self.ask("extend", {"job": wish.job, "seconds": wish.extend_s})

    # --- faults that happen by themselves -----------------------------------------------------------------------------

    def start(self) -> None:
        """Schedule the beginning of everything."""
        taps.install(self.on_tap)
        self.start_controller()
        for wish in self.wishes:
            self.heap.at(wish.at, self._apply, wish)
        for kind in TIMED:
            for at in self.faults.times(kind, T0 + 30):
                self.heap.at(at, self.happen, kind)
        self.heap.at(self.faults.until, self.faults_off)
        self.oracle.start()

    def happen(self, kind: str, box: Box | None = None, seconds: float | None = None) -> None:
        """One timed fault now; `box` and `seconds` are drawn where a test does not give them."""
        rng, now = self.rng, self.heap.now
        if box is None and not self.faults.fits():
            if now < self.faults.until:
                self.heap.after(WAIT_FOR_PHASE_S, self.happen, kind, None, seconds)
            return
        if kind in MACHINE_FAULTS and box is None:
            ours = [b for b in self.boxes() if b.tag and b.tag.deployment == self.deployment and self._strikes(kind, b)]
            if not ours:
                return
            box = rng.choice(ours)
        if kind in CONTROLLER_FAULTS and (self.controller is None or self.controller.dead or self.controller.paused):
            return
        self.faults.happened(kind)
        self.say(box.name if box else "world", f"fault: {kind}")
        if box is not None:
            self._to_machine(kind, box, seconds)
        elif kind in ("crash", "crash-long"):
            assert self.controller is not None
            long_s = (30.0, 120.0, 600.0) if self.faults.brief else (600.0, 7200.0, 43_200.0)
            self.restart_s = (1.0, 5.0) if kind == "crash" else long_s
            self.controller.kill()
        elif kind == "ssh-partition":
            self.ssh_blocked_until = now + (seconds or self._lasts(30, 2400))
            self.oracle.disturbed(self.ssh_blocked_until)
            self.disturb_links()
        elif kind == "offline":
            self.offline_until = now + (seconds or self._lasts(30, 5400))
            self.oracle.disturbed(self.offline_until)
            self.disturb_links()
        elif kind == "api-down":
            cloud = rng.choice(list(self.clouds.values()))
            cloud.down_until = now + (seconds or self._lasts(60, 7200))
            self.oracle.disturbed(cloud.down_until)
        elif kind in ("suspend", "freeze"):
            long_s = (5.0, 30.0, 120.0) if self.faults.brief else (30.0, 600.0, 28_800.0)
            self.pause(seconds or rng.choice(long_s), asleep=kind == "suspend")
        elif kind == "clock-step":
            step = seconds or rng.choice((3600.0, -3600.0, 30.0, -30.0))
            self.clock.skew += step if abs(self.clock.skew + step) <= 3600.0 else -self.clock.skew
            self.oracle.disturbed(now + 60)

    def _lasts(self, least: float, most: float) -> float:
        """How long an outage takes: minutes in a dense world, where one must not cover all others."""
        return self.rng.uniform(least, min(most, 2 * least + 60.0) if self.faults.brief else most)

    def _strikes(self, kind: str, box: Box) -> bool:
        """Whether the fault would change anything there: one that does not is none."""
        if box.state != "running":
            return False
        if kind in ("preempt-notice", "preempt-silent", "outbid"):
            return box.offer.spot and (kind != "preempt-notice" or box.notice is None)
        if kind == "run-vanishes":
            return any(not run.dead and run.ended is None for run in box.runs.values())
        return not (kind == "hang" and box.hung) and not (kind == "agent-killed" and box.agent_dead)

    def _to_machine(self, kind: str, box: Box, seconds: float | None) -> None:
        now = self.heap.now
        if kind == "preempt-notice":
            warning = seconds or SPOT_NOTICE_S.get(box.cloud.name, 30.0)
            box.announce(now + warning)
            self.heap.after(warning, self._take, box)
        elif kind == "preempt-silent":
            self._take(box)
        elif kind == "outbid":
            self.oracle.taken.setdefault(box.id, now)
            box.power("stopped", "outbid")
            box.bills = box.cloud.caps.stop_bills != "nothing"
            self.disturb_links(box)
            if "exited" not in box.cloud.caps.dead_statuses:  # else it has promised not to start it again
                self.heap.after(seconds or self._lasts(*OUTBID_BACK_S), box.revive)
        elif kind == "hang":
            box.hang()
            self.disturb_links(box)
        elif kind == "reboot":
            box.reboot()
            self.disturb_links(box)
        elif kind == "agent-killed":
            box.kill_agent()
        elif kind == "run-vanishes":
            box.vanish()
        elif kind == "machine-partition":
            self.partitioned[box.id] = now + (seconds or self._lasts(30, 5400))
            self.oracle.disturbed(self.partitioned[box.id])
            self.disturb_links(box)

    def _take(self, box: Box) -> None:
        if box.alive:
            self.oracle.taken.setdefault(box.id, self.heap.now)
            box.cloud.remove(box, "reclaimed", keep_disk=False)
            self.disturb_links(box)

    def pause(self, seconds: float, asleep: bool) -> None:
        """The controller's computer sleeps, or the controller is stopped by a signal."""
        found = self.controller
        if found is None or found.dead or found.paused:
            return
        until = self.heap.now + seconds
        self.say("controller", f"{'sleeps' if asleep else 'is stopped'} for {seconds:.0f} s")
        found.paused_until = until
        self.oracle.controller_down()
        if asleep:
            self.clock.asleep_since = self.heap.now
        self.heap.at(until, self._woken, found, seconds, asleep)

    def _woken(self, controller: Controller, seconds: float, asleep: bool) -> None:
        if asleep:
            self.clock.asleep_since = None
            self.clock.slept += seconds
        if controller.dead:
            return
        self.oracle.controller_up()
        if seconds > 30:  # its connections did not live through it
            for link in list(controller.machines.links.values()):
                link.drop("broken pipe")
        controller.kick(0.01)

    def faults_off(self) -> None:
        """The calm phase begins: whatever is owed must now be paid."""
        now = self.heap.now
        self.offline_until, self.ssh_blocked_until = min(self.offline_until, now), min(self.ssh_blocked_until, now)
        for cloud in self.clouds.values():
            cloud.down_until = min(cloud.down_until, now)
        self.partitioned.clear()
        self.say("world", "calm from here on")
        self.heap.after(1.0, self.start_controller)

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self, until: float) -> None:
        while self.heap.step(until):
            pass

    def run_to_end(self, limit: float) -> None:
        """Until every job is over and 30 minutes more, or until `limit`."""
        while self.heap.now < limit:
            self.run(min(limit, self.heap.now + 600.0))
            if self.heap.now >= self.faults.until and self.oracle.all_over():
                break
        self.oracle.finish()

    def close(self) -> None:
        taps.install(None)
        if self.controller is not None and not self.controller.dead:
            self.controller.dead = True
            self.controller.loop.store.close()
        self.oracle.close()


MACHINE_FAULTS = frozenset(
    "preempt-notice preempt-silent outbid hang reboot agent-killed run-vanishes machine-partition".split()
)
CONTROLLER_FAULTS = frozenset({"crash", "crash-long", "suspend", "freeze"})


def _stranger_offer(provider: str) -> Offer:
    return Offer(provider, "acc", "r1", "theirs", False, Decimal(1), "USD")


__all__ = ["Faults", "Shape", "Wish", "World"]
