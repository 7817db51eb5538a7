"""A controller whose machines are simulated: the real loop, books, accounts and watchers; no network but for some.

Run by main_job_scale as a process of its own, so that its CPU and memory are the controller's and nobody else's:
`python benchmarks/_fleet.py SHARED`, in the environment of a controller. SHARED is a JSON file that describes machines
of this host whose connections are kept for real, or is empty.

What is simulated: a machine is a row in a table. What it would say on its stream is made as the bytes of the agent's
lines and goes through the real watcher's own line handler: JSON, log file, event file, progress, messages to the loop.
What is not paid for here: SSH itself (that is what the real connections are for) and rsync.
"""

from __future__ import annotations

import base64
import functools
import heapq
import json
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import _measure  # noqa: F401  the checkout on sys.path

from orchestrator import actions as act
from orchestrator.accounts import Accounts
from orchestrator.clock import Clock
from orchestrator.controller import hold_lock
from orchestrator.door import Door
from orchestrator.execute import Context
from orchestrator.home import Home
from orchestrator.loop import Loop
from orchestrator.machine import Machines
from orchestrator.messages import EventSeen, Lost, Message, ProgressSeen, Reached, StatusSeen
from orchestrator.model import Rental
from orchestrator.watch import MachineWatch
from providers.base import (
    Ask,
    Boot,
    Caps,
    DestroyAck,
    Endpoint,
    Instance,
    Listing,
    Offer,
    ProviderConfig,
    Ref,
    Tag,
)

SIMULATED = ("fleet-a", "fleet-b")
REAL = "fleet-real"
BEAT_S, SAMPLE_S = 2.0, 10.0  # as the agent's
LOG_S = float(os.environ.get("FLEET_LOG_S", "5"))  # a program that prints its step this often
CHECKPOINT_S = 900.0  # the default of `checkpoint.every`
STEPS = 100_000

CAPS = Caps(
    dead_statuses=frozenset({"terminated"}),
    self_end="destroys",
    server_ttl=True,
    boot_hook="every_boot",
    spot=True,
    dead_listed_s=1800.0,
    list_lag_s=5.0,
)


@dataclass(frozen=True)
class Shared:
    """One machine of this host that stands in for many."""

    host: str
    port: int
    user: str
    host_key: str
    nonce: str
    authorized_keys: Path


class FleetProvider:
    """An account in memory. Every listing leaves a line in the state folder's `calls/`."""

    account = "acc"
    caps = CAPS

    def __init__(self, name: str, config: ProviderConfig, shared: tuple[Shared, ...]) -> None:
        self.name, self._deployment, self._shared = name, config.deployment, shared
        self._calls = config.home / "calls"
        self._calls.mkdir(exist_ok=True)
        self._machines: dict[str, Instance] = {}
        self._lock = threading.Lock()

    def _count(self, verb: str) -> None:
        with (self._calls / f"{self.name}.{verb}").open("a") as calls:
            calls.write(f"{time.monotonic():.3f}\n")

    def regions(self) -> tuple[str, ...]:
        return ("r1",)

    def offers(self, ask: Ask) -> tuple[Offer, ...]:
        self._count("offers")
        return (Offer(self.name, self.account, "r1", "spot", True, Decimal("0.34"), "USD", "RTX-4090", 1, 24),)

    def create(self, offer: Offer, tag: Tag, end: float, boot: Boot) -> Instance:
        self._count("create")
        with self._lock:
            number = len(self._machines)
            endpoint, keys = Endpoint("192.0.2.1", 22, "u"), ("ssh-ed25519 AAAA",)
            if self._shared:
                host = self._shared[number % len(self._shared)]
                endpoint, keys = Endpoint(host.host, host.port, host.user), (host.host_key,)
                with host.authorized_keys.open("a") as known:
                    known.write(f"{boot.public_key.strip()}\n")
            ref = Ref(self.name, self.account, "r1", f"{self.name}-{number}")
            made = Instance(
                ref, "running", tag, True, endpoint, keys, f"host-{number}", time.time(), end, offer.hourly, "USD"
            )
            self._machines[ref.id] = made
        return made

    def list(self, region: str) -> Listing:
        self._count("list")
        with self._lock:
            return Listing(tuple(self._machines.values()))

    def get(self, ref: Ref) -> Instance | None:
        self._count("get")
        return self._machines.get(ref.id)

    def destroy(self, ref: Ref) -> DestroyAck:
        self._count("destroy")
        with self._lock:
            if ref.id not in self._machines:
                return DestroyAck.MISSING
            self._machines[ref.id] = replace(self._machines[ref.id], status="terminated", ready=False)
        return DestroyAck.ACKNOWLEDGED

    def set_expiry(self, ref: Ref, at: float) -> None:
        with self._lock:
            self._machines[ref.id] = replace(self._machines[ref.id], ends_at=at)


class SimulatedMachine:
    """What the agent of one machine knows, and the lines of its stream."""

    def __init__(self, watch: MachineWatch, chance: random.Random) -> None:
        self.watch, self._chance = watch, chance
        self.end = 0.0
        self.run = ""
        self.started = 0.0
        self.events = 0  # bytes
        self.logged = 0
        self.step = 0
        self.checkpoints: list[dict[str, Any]] = []

    def status(self) -> dict[str, Any]:
        runs: dict[str, Any] = {}
        if self.run:
            runs[self.run] = {
                "state": "run", "stage": "run", "rc": None, "signalled": None, "dead": False, "closed": False,
                "started": self.started, "logs": {"run": self.logged}, "checkpoints": self.checkpoints[-3:],
            }  # fmt: skip
        return {
            "ok": True, "protocol": 1, "supervisor": True, "boot_id": "b",
            "deadline": {"end": self.end, "grace": 120, "action": "poweroff", "confirmed": True} if self.end else None,
            "notice": None, "runs": runs,
        }  # fmt: skip

    def say(self, line: Mapping[str, Any]) -> None:
        """One line as it comes off the wire."""
        self.watch._line(json.loads(json.dumps(line)))

    def tell(self, event: Mapping[str, Any]) -> None:
        self.events += len(json.dumps(event)) + 1
        self.say({"t": "event", "next": self.events, "event": event})

    def hello(self) -> None:
        self.say({"t": "hello", "status": self.status()})

    def beat(self) -> None:
        self.say({"t": "beat", "at": time.time(), "boot": time.monotonic()})

    def sample(self) -> None:
        gpu = {"index": 0, "util": 93.0, "mem_used": 8000.0, "mem_total": 24000.0, "temp": 60.0, "power": 300.0}
        self.tell({
            "t": "sample", "at": time.time(), "boot": time.monotonic(), "gpus": [gpu],
            "cpu": round(self._chance.uniform(10, 90), 1), "mem_used": 10**10, "mem_total": 6 * 10**10,
            "disk_free": 10**11,
        })  # fmt: skip

    def log(self) -> None:
        self.step += 10
        data = f"step={self.step}/{STEPS} loss={self._chance.random():.4f}\n".encode()
        text = base64.b64encode(data).decode()
        self.say({"t": "log", "run": self.run, "stage": "run", "offset": self.logged, "data": text})
        self.logged += len(data)

    def checkpoint(self) -> None:
        found = {"name": f"step_{self.step}", "step": self.step, "bytes": 10**9, "complete": True, "mtime": time.time()}
        self.checkpoints.append(found)
        self.tell({"t": "checkpoint", "at": time.time(), "run": self.run, "name": found["name"], "step": self.step})
        self.say({"t": "status", "status": self.status()})


class Ticker:
    """One thread that lets every simulated machine speak at its times."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, float, Callable[[], None], Callable[[], bool]]] = []
        self._count = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="fleet", daemon=True).start()

    def every(self, seconds: float, call: Callable[[], None], alive: Callable[[], bool], first: float) -> None:
        """Call every so often from `first` seconds on while `alive`; 0 seconds: once."""
        with self._lock:
            self._count += 1
            heapq.heappush(self._queue, (time.monotonic() + first, self._count, seconds, call, alive))

    def _run(self) -> None:
        while True:
            with self._lock:
                due = self._queue[0][0] if self._queue else time.monotonic() + 0.05
                entry = heapq.heappop(self._queue) if self._queue and due <= time.monotonic() else None
            if entry is None:
                time.sleep(min(0.05, max(0.001, due - time.monotonic())))
                continue
            at, _, seconds, call, alive = entry
            if alive():
                call()
                if seconds:
                    self.every(seconds, call, alive, max(0.0, at + seconds - time.monotonic()))


class UnstartedWatch(MachineWatch):
    """A watcher without its thread: a simulated machine hands it lines."""

    def start(self) -> None:
        pass


class FleetMachines(Machines):
    """The controller's machine side with an answer for every call instead of a connection."""

    def __init__(
        self, shared: tuple[Shared, ...], home: Home, clock: Clock, post: Callable[[Message], None], epoch: int
    ) -> None:
        super().__init__(home, clock, post, epoch)
        self._shared = shared
        self._machines: dict[str, SimulatedMachine] = {}
        self._ticker = Ticker()
        self._chance = random.Random(1)

    def _new_watch(self, row: Rental, job: Any, spec: Any) -> MachineWatch:
        real = row.offer.provider == REAL
        number = int((row.provider_id or "0").rsplit("-", 1)[1])
        watch = (MachineWatch if real else UnstartedWatch)(
            row.id,
            job.id,
            self._shared[number % len(self._shared)].nonce if real else row.nonce,
            self._home,
            self._clock,
            self._posted if real else self._post,
        )
        self._watches[row.id], self._jobs[row.id] = watch, job.id
        machine = self._machines[row.id] = SimulatedMachine(watch, self._chance)
        machine.end = row.end
        watch.start()
        if not real:
            first = self._chance.random
            alive = functools.partial(self._alive, row.id)
            self._ticker.every(0, machine.hello, alive, 0.1)
            self._ticker.every(BEAT_S, machine.beat, alive, BEAT_S * first())
            self._ticker.every(SAMPLE_S, machine.sample, alive, SAMPLE_S * first())
        return watch

    def _alive(self, rental: str) -> bool:
        return rental in self._watches

    def _posted(self, message: Message) -> None:
        """From a real connection: its events, log lines and losses as they are; its state is that of the table."""
        if isinstance(message, Reached | StatusSeen):
            message = type(message)(message.rental, self._machines[message.rental].status())
        if isinstance(message, EventSeen | ProgressSeen | Lost | Reached | StatusSeen):
            self._post(message)

    # --- what the agent would answer ----------------------------------------------------------------------------------

    def _of(self, context: Context) -> SimulatedMachine:
        assert context.rental is not None
        return self._machines[context.rental.id]

    def arm(self, context: Context, end: float, caps: Caps) -> None:
        self._of(context).end = end

    def prepare(self, context: Context) -> Mapping[str, Any]:
        return {"seconds": 0.0}

    def order(self, context: Context) -> Mapping[str, Any]:
        assert context.assignment is not None
        assert context.rental is not None
        machine = self._of(context)
        machine.run, machine.started = context.assignment.key, time.time()
        if context.rental.offer.provider == REAL:
            self._posted(StatusSeen(context.rental.id, {}))
            return {"already": False}
        machine.tell({"t": "stage", "at": time.time(), "run": machine.run, "stage": "run", "state": "start"})
        machine.say({"t": "status", "status": machine.status()})
        alive, first = functools.partial(self._alive, context.rental.id), self._chance.random
        self._ticker.every(LOG_S, machine.log, alive, LOG_S * first())
        self._ticker.every(CHECKPOINT_S, machine.checkpoint, alive, CHECKPOINT_S * first())
        return {"already": False}

    def mirror(self, context: Context) -> Mapping[str, Any]:
        assert context.assignment is not None
        key = context.assignment.key
        seen = {(key, c["name"], c["bytes"], c["mtime"]) for c in self._of(context).checkpoints}
        return {"rows": [], "pruned": [], "mirrored": seen, "rate": None}

    def collect(self, context: Context, effect: act.CollectResults) -> Mapping[str, Any]:
        return {"rate": None, "bytes_left": 0}


@contextmanager
def serving(home: Home, loop: Loop) -> Iterator[None]:
    """The socket at which verbs knock, and the signals that end it, as in `orchestrator.controller`."""
    door = Door(home.socket)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.stop())
    door.serve(loop.poke)
    try:
        yield
    finally:
        door.close()


def main(shared_file: str) -> int:
    home = Home.from_env().make()
    hold_lock(home.lock, wait_s=1.0)
    rows = json.loads(Path(shared_file).read_text()) if shared_file else []
    shared = tuple(Shared(**{**row, "authorized_keys": Path(row["authorized_keys"])}) for row in rows)

    def make(name: str, config: ProviderConfig) -> Any:
        return FleetProvider(name, config, shared if name == REAL else ())

    loop = Loop(
        home,
        queue.SimpleQueue(),
        accounts=functools.partial(Accounts, make=make),
        machines=functools.partial(FleetMachines, shared),
    )
    with serving(home, loop):
        return loop.run()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
