"""Performs one effect and answers with a receipt; the only place where an effect reaches the world.

- `context` is everything an effect needs, read by the loop: workers never open the books.
- A receipt is done, refused (nothing happened), failed (repeat later) or ambiguous (nobody knows).
- Provider calls run in a small pool of their own (provider, account, region), so that one hung region delays no other;
  questions for prices in one for each set of providers that is asked, and each provider in its own (`asking`);
  calls to machines run in a pool shared by all, each with its own time-out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import structlog

from orchestrator import actions as act
from orchestrator.agent.hook import boot_hook
from orchestrator.asking import Asking
from orchestrator.clock import Clock
from orchestrator.drawing import draw
from orchestrator.home import Home
from orchestrator.legs import Leg
from orchestrator.messages import Message, Receipt
from orchestrator.mirror import CheckpointError
from orchestrator.model import Assignment, Job, Policy, Reason, Rental, Task, Unknown
from orchestrator.objects.errors import StoreError
from orchestrator.publish import ResultsError
from orchestrator.records import keep_rental
from orchestrator.snapshot import SnapshotError
from orchestrator.ssh_errors import AgentRefused, SshError
from orchestrator.taps import tap
from providers.base import Ask, Boot, Offer, Provider, Ref, Tag
from providers.errors import (
    AccountGate,
    Ambiguous,
    AuthFailed,
    Invalid,
    NoFunds,
    PoolQuotaExceeded,
    QuotaExceeded,
    RateLimited,
    Refused,
)

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec
    from orchestrator.machine import Machines

log = structlog.get_logger()

PROVIDER_THREADS = 4  # of one account and region: a create in flight must not hold up a destroy
MACHINE_THREADS = 48  # transfers and agent calls of all machines together

#: Refusals of an account that none of its other offers can mend, and what the job ends with if nothing else is left.
ACCOUNT_REFUSALS: Mapping[type[Refused], Reason] = {
    QuotaExceeded: Reason.QUOTA,
    NoFunds: Reason.PROVIDER,
    AuthFailed: Reason.PROVIDER,
    AccountGate: Reason.PROVIDER,
}


@dataclass(frozen=True)
class Context:
    """What one effect works on, as the books had it when it was decided."""

    job: Job
    spec: JobSpec
    policy: Policy
    rental: Rental | None = None
    assignment: Assignment | None = None
    mirrored: frozenset[tuple[str, str, int, float]] = frozenset()  # run, name, bytes, mtime: durable already
    data_mount: str = ""  # the provider's data disk on the machine
    bad_before: tuple[str, ...] = ()  # why earlier machines of the job were given back as bad
    checkpoint_bytes: int = 0  # of the largest one that the job has saved so far
    smoked: bool = False  # an earlier run of this wish has passed its smoke
    usual_speed: Mapping[str, float] = field(default_factory=dict)  # of such cards: tflops, allreduce_gbps
    ends: Mapping[str, float] = field(default_factory=dict)  # ttl, budget: UTC, as they are now
    task: Task | None = None
    limit_s: float | None = None  # seconds that the run may last by its leg's own ttl and money ...
    limit_why: Literal["ttl", "budget"] = "ttl"  # ... and which of them made it
    after: str = ""  # the run on this machine that has to end before an order begins, "<task>.<n>"
    room_s: float = 0.0  # and what must be left then before the machine's end
    over: frozenset[str] = frozenset()  # items of a batch that need not be done again
    legs: tuple[Leg, ...] = ()  # what a search draws the next legs from

    def the_rental(self) -> Rental:
        """The rental, of an effect that has one."""
        if self.rental is None:
            raise ValueError("this effect needs a rental")
        return self.rental

    def the_run(self) -> Assignment:
        """The run, of an effect that has one."""
        if self.assignment is None:
            raise ValueError("this effect needs a run")
        return self.assignment


class Providers(Protocol):
    """Where adapters come from; the simulator brings its own."""

    def get(self, name: str) -> Provider: ...


class Executor:
    """Runs effects in worker threads and posts their receipts."""

    def __init__(
        self,
        home: Home,
        clock: Clock,
        providers: Providers,
        machines: Machines,
        post: Callable[[Message], None],
        deployment: str,
        epoch: int,
    ) -> None:
        self._home, self._clock, self._providers, self._machines = home, clock, providers, machines
        self._post, self._deployment, self._epoch = post, deployment, epoch
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._machine_pool = ThreadPoolExecutor(MACHINE_THREADS, "machine")
        self._asking = Asking()
        self.ask_all = self._asking.ask  # the simulator, whose time has no threads, brings its own
        self._lock = threading.Lock()

    def submit(self, effect: act.Effect, context: Context) -> None:
        """Start `effect`; its receipt arrives on the queue."""
        self._pool(effect, context).submit(self._run, effect, context)

    def stop(self) -> None:
        """Take nothing new; what runs is abandoned, since every effect is safe to repeat."""
        for pool in (*self._pools.values(), self._machine_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self._asking.stop()

    def _pool(self, effect: act.Effect, context: Context) -> ThreadPoolExecutor:
        if isinstance(effect, act.SendCreate | act.Look | act.Destroy) and context.rental is not None:
            offer = context.rental.offer
            key = f"{offer.provider}/{offer.account}/{offer.region}"
        elif isinstance(effect, act.AskOffers):  # those who wait for one provider hold up nobody who does not
            key = f"offers {' '.join(sorted(effect.providers))}"
        else:
            return self._machine_pool
        with self._lock:
            if key not in self._pools:
                self._pools[key] = ThreadPoolExecutor(PROVIDER_THREADS, key)
            return self._pools[key]

    def _run(self, effect: act.Effect, context: Context) -> None:
        self._post(perform(effect, context, self))

    # --- what `perform` calls -----------------------------------------------------------------------------------------

    def now(self) -> float:
        """UTC, for the receipt."""
        return self._clock.utc()

    def ask_offers(self, effect: act.AskOffers, context: Context) -> Mapping[str, Any]:
        """Prices of every provider that the job may use; a provider that fails is named, the others count."""
        offers, failed = self.ask_all(effect.providers, lambda name: self._offers_of(name, effect.ask))
        if failed and not offers:
            return {"offers": Unknown("; ".join(f"{k}: {v}" for k, v in failed.items()), self.now()), "failed": failed}
        return {"offers": tuple(offers), "failed": failed}

    def _offers_of(self, name: str, ask: Ask) -> Sequence[Offer]:
        return self._providers.get(name).offers(ask.at(name))

    def create(self, context: Context) -> Mapping[str, Any]:
        """The one create call of the rental."""
        from orchestrator import ssh

        rental, job = context.the_rental(), context.job
        provider = self._providers.get(rental.offer.provider)
        caps = provider.caps
        hook = boot_hook(
            nonce=rental.nonce,
            end=rental.end,
            grace_s=int(context.policy.grace_s),
            action="poweroff" if caps.power_off_allowed else "kill",
            rental=rental.id,
        )
        key = ssh.new_key(self._home.rental(rental.id))
        keep_rental(self._home, rental)
        tag = Tag(self._deployment, rental.id, job.id, job.owner)
        boot = Boot(hook, key, image=context.policy.ask.at(provider.name).image, disk=context.policy.ask.disk_min)
        return {"instance": provider.create(rental.offer, tag, rental.end, boot)}

    def look(self, context: Context) -> Mapping[str, Any]:
        """One point-get."""
        rental = context.the_rental()
        if rental.provider_id is None:
            return {"got": Unknown("its id at the provider is not known", self.now())}
        offer = rental.offer
        ref = Ref(offer.provider, offer.account, offer.region, rental.provider_id)
        return {"got": self._providers.get(offer.provider).get(ref) or "missing"}

    def destroy(self, effect: act.Destroy) -> Mapping[str, Any]:
        """One destroy call; says nothing of completion."""
        return {"ack": self._providers.get(effect.ref.provider).destroy(effect.ref)}

    def move_end(self, effect: act.MoveEnd, context: Context) -> Mapping[str, Any]:
        """The provider's timer and the machine's own; the later-acting one first when it moves out."""
        rental = context.the_rental()
        provider = self._providers.get(rental.offer.provider)
        ref = Ref(rental.offer.provider, rental.offer.account, rental.offer.region, rental.provider_id or "")
        if provider.caps.server_ttl:
            provider.set_expiry(ref, effect.end)
        self._machines.arm(context, effect.end, provider.caps)
        return {"got": provider.get(ref) or "missing"} if provider.caps.server_ttl else {}

    @property
    def machines(self) -> Machines:
        """The machine side."""
        return self._machines


def perform(effect: act.Effect, context: Context, doors: Executor) -> Receipt:
    """Do it, and say how it ended; never raises for anything that the world can do."""
    job, name = context.job.id, type(effect).__name__
    try:
        tap(f"effect/{name}/before")
        data = _dispatch(effect, context, doors)
        tap(f"effect/{name}/after")
        return Receipt(effect, job, "done", doors.now(), data=data)
    except RateLimited as error:
        if isinstance(effect, act.SendCreate):  # nothing was made, and the one create of this rental is spent
            waits = {"account": Reason.PROVIDER, "rest_s": error.retry_after_s}
            return Receipt(effect, job, "refused", doors.now(), f"{error.kind}: {error}", data=waits)
        return Receipt(effect, job, "failed", doors.now(), str(error), retry_after_s=error.retry_after_s)
    except Refused as error:
        account = next((why for kind, why in ACCOUNT_REFUSALS.items() if isinstance(error, kind)), None)
        if isinstance(error, PoolQuotaExceeded):
            account = None  # the pool rests as one without machines does; the word stays in what is said of it
        fatal = account or (Reason.PROVIDER if isinstance(error, Invalid) else None)
        return Receipt(effect, job, "refused", doors.now(), f"{error.kind}: {error}", fatal, data={"account": account})
    except Ambiguous as error:
        return Receipt(effect, job, "ambiguous", doors.now(), str(error))
    except AgentRefused as error:
        refused = {"epoch_refused": error.error == "epoch"}
        return Receipt(effect, job, "refused", doors.now(), str(error), data=refused)
    except (SshError, CheckpointError, ResultsError, SnapshotError, StoreError) as error:
        return Receipt(effect, job, "failed", doors.now(), str(error))
    except WorkFailed as error:
        return Receipt(effect, job, "failed", doors.now(), str(error), error.fatal, data=error.data)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return Receipt(effect, job, "failed", doors.now(), f"on this computer: {error.strerror or error}{where}")
    except Exception as error:  # a bug of an adapter or ours: without a receipt the effect would be in flight for ever
        log.exception("effect", job=job, action=name)
        status: Literal["ambiguous", "failed"] = "ambiguous" if isinstance(effect, act.SendCreate) else "failed"
        return Receipt(effect, job, status, doors.now(), f"{type(error).__name__}: {error}")


class WorkFailed(Exception):
    """Machine-side work that did not succeed; `fatal` when repeating cannot help. `data`: the part that did."""

    def __init__(self, message: str, fatal: Reason | None = None, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.fatal = fatal
        self.data = data or {}


def _dispatch(effect: act.Effect, context: Context, doors: Executor) -> Mapping[str, Any]:
    machines = doors.machines
    match effect:
        case act.AskOffers():
            return doors.ask_offers(effect, context)
        case act.SendCreate():
            return doors.create(context)
        case act.Look():
            return doors.look(context)
        case act.Destroy():
            return doors.destroy(effect)
        case act.MoveEnd():
            return doors.move_end(effect, context)
        case act.Prepare():
            return machines.prepare(context)
        case act.SendOrder():
            return machines.order(context)
        case act.SendSignal():
            return machines.signal(context, effect)
        case act.MoveLimit():
            return machines.move_limit(context)
        case act.SendClose():
            return machines.close(context)
        case act.Withdraw():
            return machines.withdraw(context)
        case act.MirrorCheckpoints():
            return machines.mirror(context)
        case act.RenewStore():
            return machines.renew_store(context)
        case act.CollectResults():
            return machines.collect(context, effect)
        case act.ListMirror():
            return machines.list_mirror(context, effect.task)
        case act.DrawLegs():
            return draw(context, effect.count)
