"""The controller's process in the simulator: the real `Loop` on a real SQLite file, in one thread, that can be killed.

A kill drops the objects and closes the database without a commit. What was on its way is lost, or arrives although
nobody waits for the answer any more; which, the seed decides.
"""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import structlog
from sim_machines import SimMachines
from sim_time import Timer

from orchestrator import actions as act
from orchestrator.accounts import Accounts
from orchestrator.execute import Context, Executor, perform
from orchestrator.home import Home
from orchestrator.loop import TURN_S, Loop
from orchestrator.messages import Listed, Message, Receipt
from orchestrator.model import Unknown
from orchestrator.store import Fenced, StoreError
from providers.base import Offer, Provider
from providers.errors import ProviderError

if TYPE_CHECKING:
    from sim_world import World

LATENCY_S = 0.1
IDLE_TURN_S = 60.0
UNSETTLED_TURN_S = 1.0


class Killed(BaseException):
    """The process dies here; raised by a tap."""


class Lister:
    """Lists one region when asked, one call at a time."""

    def __init__(self, controller: Controller, provider: Provider, region: str) -> None:
        self._controller, self._provider, self._region = controller, provider, region
        self._busy = self._again = self._stopped = False

    def ask(self) -> None:
        self._again = True
        if not self._busy:
            self._start()

    def stop(self) -> None:
        self._stopped = True

    def _start(self) -> None:
        self._busy, self._again = True, False
        began = self._controller.clock.utc()
        self._controller.world.heap.after(LATENCY_S, self._do, began)

    def _do(self, began: float) -> None:
        controller, name = self._controller, self._provider.name
        if controller.dead:
            return
        if controller.paused:
            controller.world.heap.at(controller.paused_until, self._do, began)
            return
        controller.world.delay = 0.0
        try:
            listing = self._provider.list(self._region)
            found = Listed(name, self._provider.account, self._region, began, listing)
        except ProviderError as error:
            found = Listed(name, self._provider.account, self._region, began, Unknown(str(error), began))
        controller.world.heap.after(controller.world.delay, self._done, found)

    def _done(self, found: Listed) -> None:
        if self._controller.dead or self._stopped:
            return
        self._busy = False
        self._controller.put(found)
        if self._again:
            self._start()


class SimAccounts(Accounts):
    """The real accounts with listers in virtual time."""

    def __init__(self, controller: Controller, *args: Any) -> None:
        super().__init__(*args, make=controller.world.provider)
        self._controller = controller

    def _watch(self, region: Any) -> Any:
        if region not in self._regions:
            self._regions[region] = Lister(self._controller, self.get(region[0]), region[2])  # type: ignore[assignment]
        return self._regions[region]


class SimExecutor(Executor):
    """Performs effects as timed events."""

    def __init__(self, controller: Controller, *args: Any) -> None:
        super().__init__(*args)
        self._controller = controller
        self.ask_all = self._one_by_one  # threads would make a run's order a matter of luck

    def _one_by_one(self, names: Sequence[str], offers_of: Callable[[str], Sequence[Offer]]) -> Any:
        offers: list[Offer] = []
        failed: dict[str, str] = {}
        for name in names:
            try:
                offers += offers_of(name)
            except ProviderError as error:
                failed[name] = f"{error.kind}: {error}"
        return offers, failed

    def submit(self, effect: act.Effect, context: Context) -> None:
        heap = self._controller.world.heap
        heap.after(LATENCY_S, self._do, effect, context, heap.now + LATENCY_S)

    def _do(self, effect: act.Effect, context: Context, due: float) -> None:
        controller, world = self._controller, self._controller.world
        if controller.dead and (world.heap.now - controller.died_at > 60.0 or world.rng.random() < 0.5):
            return
        if controller.paused and not controller.dead:
            world.heap.at(controller.paused_until, self._do, effect, context, due)
            return
        world.delay = 0.0
        try:
            receipt = perform(effect, context, self)
        except Killed:
            controller.kill()
            return
        if not controller.dead:
            world.heap.after(world.delay + LATENCY_S, self._deliver, receipt)

    def _deliver(self, receipt: Receipt) -> None:
        if not self._controller.dead:
            self._controller.put(receipt)

    def stop(self) -> None:
        pass  # no threads were started


class WatchedLoop(Loop):
    """The real loop; a bug that it survives is still a bug here."""

    def _guarded(self, what: str, call: Callable[[Any], None], argument: Any) -> None:
        super()._guarded(what, functools.partial(self._told, call), argument)

    def _told(self, call: Callable[[Any], None], argument: Any) -> None:
        try:
            call(argument)
        except StoreError:
            raise
        except Exception:
            self._messages.world.oracle.broken("NoFaults", "controller", traceback.format_exc(limit=-4))  # type: ignore[attr-defined]
            raise


class Controller:
    """One life of the controller: from its start to its death."""

    def __init__(self, world: World, home: Home, clock: Any) -> None:
        self.world, self.home, self.clock = world, home, clock
        self.dead = False
        self.died_at = 0.0
        self.paused_until = 0.0
        self.turns = 0
        self._mail: list[Message] = []
        self._timer: Timer | None = None
        self._in_turn = False
        silence()
        self.loop = WatchedLoop(
            home,
            self,  # type: ignore[arg-type]
            clock,
            accounts=functools.partial(SimAccounts, self),
            machines=functools.partial(SimMachines, self),  # type: ignore[arg-type]
            executor=functools.partial(SimExecutor, self),
        )
        silence()
        self.kick(0.01)

    @property
    def machines(self) -> SimMachines:
        return self.loop.machines  # type: ignore[return-value]

    @property
    def paused(self) -> bool:
        """Asleep, or stopped by a signal: nothing of it runs."""
        return self.world.heap.now < self.paused_until

    def put(self, message: Message) -> None:
        """The loop's queue."""
        if not self.dead:
            self._mail.append(message)
            self.kick(0.001)

    def kick(self, seconds: float) -> None:
        """Have a turn then, unless one comes earlier."""
        at = max(self.world.heap.now + seconds, self.paused_until)
        if self._timer is not None and not self._timer.dead and self._timer.at <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.world.heap.at(at, self._turn)

    def _turn(self) -> None:
        if self.dead:
            return
        if self.paused:
            self._timer = None
            self.kick(0.0)
            return
        self._timer = None
        self.turns += 1
        mail, self._mail = self._mail, []
        try:
            self.loop.turn(mail)
        except Killed:
            self.kill()
            return
        except Fenced as error:
            self.world.say("controller", f"is fenced: {error}")
            self.kill(restart=False)
            return
        self.world.oracle.after_turn(self)
        wait = min(self.loop.due_at(), self.loop.accounts.next_due()) - self.clock.boot()
        limit = IDLE_TURN_S if not self.loop.observer.unsettled else UNSETTLED_TURN_S
        pause = max(0.02, min(wait, limit))
        self.loop._meant_at = self.clock.boot() + pause + TURN_S
        self.kick(pause)

    def kill(self, restart: bool = True) -> None:
        """SIGKILL."""
        if self.dead:
            return
        self.dead, self.died_at = True, self.world.heap.now
        self.loop.machines.stop()
        self.loop.store.close()
        self.world.controller_died(restart)


def silence() -> None:
    """No log: `Loop` sets it up for people."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
