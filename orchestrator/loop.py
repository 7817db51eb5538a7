"""The controller's loop: one thread that takes messages, decides, commits, and hands effects to the executor."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from orchestrator import actions as act
from orchestrator.accounts import Accounts, Region, region_of
from orchestrator.board import Board
from orchestrator.books import Books, Verdict
from orchestrator.clock import Clock, GapDetector, SystemClock
from orchestrator.config import load_config
from orchestrator.execute import Executor
from orchestrator.health import Health
from orchestrator.hearing import is_quiet, take_listing, take_word
from orchestrator.history import history_of
from orchestrator.home import Home
from orchestrator.log_setup import configure_log
from orchestrator.machine import Machines
from orchestrator.messages import Listed, Message, Poke, Receipt
from orchestrator.model import Facts, Job, Policy, Reason, RentalPhase
from orchestrator.notify import Notifier
from orchestrator.observe import Observer
from orchestrator.policy import policy_of
from orchestrator.receipts import take_receipt
from orchestrator.reconcile import reconcile
from orchestrator.remember import remember
from orchestrator.reports import Judging
from orchestrator.requests import answer
from orchestrator.sending import send
from orchestrator.spending import Spending
from orchestrator.store import Fenced, OverBudget, Store, StoreBusy, StoreError, StoreFull
from orchestrator.taps import tap
from orchestrator.transitions import IllegalStep
from providers.base import Ref
from providers.errors import ProviderError

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec

TURN_S = 1.0  # the longest turn: requests whose poke was lost are seen by then
SETTLE_LIMIT_S = 60.0  # after a start or a sleep, listings that do not answer hold decisions back this long
FAULT_AGAIN_S = 30.0  # a job that our own bug hit is looked at again after this
REPEAT_S = 1.0  # an effect that succeeded and is still wanted runs again after this
ROUNDS = 6  # decisions in a row about one job within a turn: each follows from the writes of the one before
MONEY = (act.OpenRental, act.WantEnd, act.ConfirmEnd, act.StoreGone)  # writes that change what is reserved

log = structlog.get_logger()


class Loop:
    """Owns the books and the memory of what was seen. `run` returns when stopped."""

    def __init__(
        self,
        home: Home,
        messages: queue.SimpleQueue[Message],
        clock: Clock | None = None,
        accounts: Callable[..., Accounts] = Accounts,
        machines: Callable[..., Machines] = Machines,
        executor: Callable[..., Executor] = Executor,
    ) -> None:
        """The last three make what reaches the world; the simulator brings its own."""
        configure_log()
        self.home, self.clock = home, clock or SystemClock()
        self._messages = messages
        self.config = load_config(home)
        seen = _what_books_say(home)
        self.books = Books(home, known_deployment=seen[1])
        self.verdict = self.books.check(*seen)
        epoch = self.books.next_epoch(int(self.clock.utc() * 1000), seen[0])
        self.store = Store.open_writer(home, epoch, outside=self.books)
        self.accounts = accounts(home, self.books.deployment, self.config.providers, self.clock, messages.put)
        self.observer = Observer(self.store, self.accounts)
        self.machines = machines(home, self.clock, messages.put, epoch)
        self.executor = executor(
            home, self.clock, self.accounts, self.machines, messages.put, self.books.deployment, epoch
        )
        self._specs: dict[str, tuple[str, JobSpec, Policy]] = {}
        self.in_flight: set[str] = set()
        self.not_before: dict[str, float] = {}
        self.due: dict[str, float] = {job.id: 0.0 for job in self.store.active_jobs()}
        self.board = Board()
        self.health = Health(self)
        self.notifier = Notifier(self)
        self.stray_counts: dict[Region, dict[Ref, int]] = {}
        self._gaps = GapDetector(self.clock)
        self.observer.unsettled = {region_of(r) for r in self.store.open_rentals()}
        self._unsettled_until = self.clock.boot() + SETTLE_LIMIT_S
        self._look_at = 0.0  # boot time; at once after a decision that changed a row
        self.money = Spending(self)
        self.judging = Judging(self)
        self._stopping = False
        self._pause = threading.Event()
        self._meant_at: float | None = None  # boot time by which the wait had to be over
        self.faults = 0  # our own bugs that one job or message met; the others went on
        self.fenced = False
        log.info("started", epoch=epoch, books=str(self.verdict), jobs=len(self.due))

    # --- running ------------------------------------------------------------------------------------------------------

    def poke(self) -> None:
        """Look around now. Callable from any thread."""
        self._messages.put(Poke())

    def stop(self) -> None:
        """End after this turn; nothing of the jobs is touched. Callable from a signal handler."""
        self._stopping = True
        self._pause.set()
        self._messages.put(Poke())

    def run(self) -> int:
        """Turn until stopped. Exit 0; 3 when a newer controller has taken the books over."""
        self._forget_leftovers()
        try:
            while not self._stopping:
                try:
                    self.turn(self._wait())
                except (StoreFull, StoreBusy) as error:
                    # Nothing of the turn is lost: rows are looked at again, and what was heard is said again
                    log.error("books", error=str(error))
                    self._pause.wait(REPEAT_S)
        except Fenced as error:
            log.error("fenced", error=str(error))
            return 3
        finally:
            self.machines.stop()
            self.accounts.stop()
            self.executor.stop()
            self.store.close()
            log.info("stopped")
        return 0

    def _forget_leftovers(self) -> None:
        """Secrets and keys of jobs that were over when the last controller died before it could remove them."""
        jobs = {folder.name for folder in self.home.secrets("").glob("*")}
        for folder in self.home.rental("").glob("*"):
            with contextlib.suppress(StoreError):  # of other books: nothing that we may decide about
                jobs.add(self.store.rental(folder.name).job)
        for name in jobs:
            with contextlib.suppress(StoreError):  # a verb's spool, which the verb removes itself
                job = self.store.job(name)
                if job.terminal_at is not None:
                    self._finished(job)

    def _wait(self) -> list[Message]:
        """Everything that has arrived, after waiting for the first message or for what is due."""
        wake = min(TURN_S, self.due_at() - self.clock.boot())
        taken: list[Message] = []
        began = self.clock.boot()
        self._meant_at = began + TURN_S
        try:
            while all(map(is_quiet, taken[-1:])):  # hundreds a second arrive from a thousand jobs
                taken.append(self._messages.get(timeout=max(0.0, began + wake - self.clock.boot())))
            while True:
                taken.append(self._messages.get_nowait())
        except queue.Empty:
            return taken

    def due_at(self) -> float:
        """Boot time at which the first job is due; infinity without jobs."""
        return min(self.due.values(), default=float("inf"))

    def turn(self, messages: list[Message]) -> None:
        """One turn of the loop."""
        self.store.check_place()
        gap = self._gaps.look(self._meant_at)
        if gap is not None:
            self._after_gap(str(gap))
        for message in messages:
            self._guarded("message", self._take, message)
        for request in self.store.open_requests():
            answer(self, request)
        self.judging.due()
        self._look()
        self._settle()
        now = self.clock.boot()
        self.board.write(self.store, self.clock.utc(), now)
        self._guarded("health", self.health.look, now)
        self._guarded("notify", self.notifier.look, now)
        for job in [job for job, at in self.due.items() if at <= now]:
            self._guarded(job, self.decide, job)

    def _look(self) -> None:
        """Have the accounts listed that are due, and write the bills. Reading every open rental in each of many turns
        a second would cost more than all that is decided in them."""
        boot = self.clock.boot()
        if boot < min(self._look_at, self.accounts.next_due()):
            return
        self._look_at = boot + TURN_S
        rentals = self.store.open_rentals()
        self.accounts.list_due(rentals, self.store.tombstones(self.clock.utc()))
        if self.doubtful:
            self.accounts.list_everywhere()
        self.money.bill_due(rentals)

    def _guarded(self, what: str, call: Callable[[Any], None], argument: Any) -> None:
        """One job that meets a bug of ours must not leave the machines of the others without a controller."""
        try:
            call(argument)
        except StoreError:
            raise
        except Exception as error:
            self.faults += 1
            log.exception("fault", what=what)
            if what in self.due:
                self.due[what] = self.clock.boot() + FAULT_AGAIN_S
                text = f"a fault of gpujob itself ({type(error).__name__}: {error}); controller.log has the details"
                self.alarm(what, act.Alarm("fault", text))

    @property
    def doubtful(self) -> bool:
        """The books are old or new where there were others: nothing is decided but what the user said since."""
        return self.verdict is not Verdict.OK

    def trust(self) -> None:
        """The user has accepted the books: decide again, after a look at everything."""
        self.verdict = Verdict.OK
        self._after_gap("the books were accepted")

    def touch(self, job: str) -> None:
        """Something happened to the job: decide in this turn."""
        if job:
            self.due[job] = 0.0

    def _after_gap(self, gap: str) -> None:
        """The computer slept, or its clock was set: look at everything before acting on anything."""
        log.warning("gap", gap=gap)
        self.observer.unsettled = {region_of(r) for r in self.store.open_rentals()}
        self._unsettled_until = self.clock.boot() + SETTLE_LIMIT_S
        self.accounts.list_now()
        for seen in self.observer.rentals.values():
            seen.forget_silence()
        self.store.add_journal(self.clock.utc(), "gap", gap)

    def _settle(self) -> None:
        """A region that does not answer holds its own jobs back, and no longer than its limit."""
        if self.observer.unsettled and self.clock.boot() >= self._unsettled_until:
            self._looked_at(self.observer.unsettled)

    def _looked_at(self, regions: Iterable[Region]) -> None:
        settled = self.observer.unsettled.intersection(regions)
        self.observer.unsettled -= settled
        for job in self.due if settled else ():
            self.due[job] = 0.0

    # --- messages -----------------------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        match message:
            case Listed():
                self._looked_at([(message.provider, message.account, message.region)])
                take_listing(self, message)
            case Receipt():
                self.in_flight.discard(f"{message.job}/{message.action.key}")
                take_receipt(self, message)
                self.touch(message.job)
            case Poke():
                pass
            case _:
                take_word(self, message)

    def alarm(self, job: str, alarm: act.Alarm) -> None:
        """Tell the user, once an hour for the same thing."""
        if self.store.apply(job, [alarm], self.clock.utc()).alarms:
            log.warning("alarm", job=job, kind=alarm.kind, text=alarm.text)

    def step_aside(self, why: str) -> None:
        """A machine has met a newer controller: ours are old books. Decide nothing more; nothing is harmed."""
        if not self.fenced:
            self.fenced = True
            log.error("stepped aside", why=why)
            text = f"a newer controller has these machines, so this one decides nothing more: {why}"
            for job in self.store.active_jobs():
                self.alarm(job.id, act.Alarm("stepped-aside", text))

    # --- deciding -----------------------------------------------------------------------------------------------------

    def spec_of(self, job: Job) -> tuple[JobSpec, Policy]:
        """The spec and policy of a job, parsed once per edit."""
        from jobspecs.schema import from_document

        key = f"{job.spec_hash}/{job.price_cap}"
        known = self._specs.get(job.id)
        if known is None or known[0] != key:
            spec = from_document(job.spec)
            policy = policy_of(spec, job, history_of(self.store, job.name, self.clock.utc()))
            policy = replace(policy, rates=self.config.rates_to(job.currency))
            if not policy.providers:
                policy = replace(policy, providers=self.accounts.configured)
            known = (key, spec, policy)
            self._specs[job.id] = known
        return known[1], known[2]

    def machines_left(self, policy: Policy) -> int | None:
        """How many machines a job of many tasks may still rent by `limits.machines`."""
        limit = self.config.limits.machines
        return None if limit is None or policy.crew is None else max(0, limit - len(self.store.open_rentals()))

    def decide(self, job_id: str) -> None:
        """Decide about one job until its decisions write nothing more."""
        if self.fenced or (self.doubtful and self.store.job(job_id).reason is not Reason.ORPHAN):
            self.due[job_id] = self.clock.boot() + 60.0
            return
        for _ in range(ROUNDS):
            job = self.store.job(job_id)
            if job.terminal_at is not None:
                self._finished(job)
                return
            spec, policy = self.spec_of(job)
            now = self.clock.utc()
            try:
                facts = self.observer.facts(job, now, self.money.limits_left(job), self.machines_left(policy))
            except ProviderError as error:
                self.due[job_id] = self.clock.boot() + 30.0
                log.error("facts", job=job_id, error=str(error))
                return
            decision = reconcile(facts, policy)
            tap("decided")
            changed = self._commit(job, facts, policy, [a for a in decision.actions if isinstance(a, act.Write)])
            if changed:
                self._look_at = 0.0
                continue  # facts have moved: decide again before anything is sent
            self.watch(facts, spec)
            self.due[job_id] = self.clock.boot() + max(0.05, decision.wake_at - now)
            for action in decision.actions:
                if isinstance(action, act.Effect):
                    send(self, job, spec, policy, facts, action)
            return
        self.due[job_id] = self.clock.boot() + REPEAT_S

    def _commit(self, job: Job, facts: Facts, policy: Policy, writes: list[act.Write]) -> bool:
        """Commit a decision's writes; True when anything changed."""
        if not writes:
            return False
        now = self.clock.utc()
        for index, write in enumerate(writes):
            if isinstance(write, act.SetOutcome | act.SetTaskOutcome):
                writes[index] = self.machines.explain(job, write, facts)
            elif isinstance(write, act.StoreGone) and not write.never_made:
                self.money.bill_all([self.store.rental(write.rental)])
            elif isinstance(write, act.Release):
                remember(self, write, facts)
        try:
            applied = self.store.apply(
                job.id, writes, now, budget=policy.budget, rates=self.config.rates_to(job.currency)
            )
        except OverBudget as error:
            log.warning("over budget", job=job.id, error=str(error))
            return False
        except IllegalStep as error:
            log.error("illegal step", job=job.id, error=str(error), writes=[type(w).__name__ for w in writes])
            return False
        if any(isinstance(write, MONEY) for write in writes):
            self.money.forget_sums()
        for write in writes:
            log.info("write", job=job.id, kind=type(write).__name__, rental=getattr(write, "rental", ""))
        return applied.changed > 0

    def _finished(self, job: Job) -> None:
        self.due.pop(job.id, None)
        self._specs.pop(job.id, None)
        self.not_before = {k: at for k, at in self.not_before.items() if not k.startswith(f"{job.id}/")}
        rentals = self.store.rentals(job.id)
        self.observer.forget(job.id, rentals)
        self.machines.forget(job, rentals)

    # --- effects ------------------------------------------------------------------------------------------------------

    def watch(self, facts: Facts, spec: JobSpec) -> None:
        """Keep a connection to every live machine, and to no other."""
        for rental in facts.rentals:
            # An orphan is kept untouched: whether we reach it says nothing about it
            if rental.rental.phase is RentalPhase.LIVE and facts.job.reason is not Reason.ORPHAN:
                self.machines.watch(rental, facts.job, spec, facts.assignments)
            else:
                self.machines.unwatch(rental.rental.id)


def _what_books_say(home: Home) -> tuple[int, str, int]:
    """Epoch, deployment and number of rentals as the database has them; nothing where there is none."""
    from orchestrator.store import StoreMissing

    try:
        with Store.open_reader(home, older=True) as reader:
            return reader.stored_epoch(), reader.deployment(), reader.milestones()
    except StoreMissing:
        return 0, "", 0
