"""A rented machine as it really is: its power, its agent after the protocol's page, the programs that run on it.

A program is a length of work in seconds with a checkpoint every so often: its step is the second of work it has done,
so what is lost, redone or resumed wrongly can be read from the numbers. Nothing here knows the controller's books.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim_time import Timer

from orchestrator.ssh_errors import AgentRefused, Unreachable
from providers.base import Offer, Tag

if TYPE_CHECKING:
    from sim_cloud import Cloud
    from sim_world import World

WRITE_S = 2.0  # writing one checkpoint
SETTLE_S = 4.0  # two scans of the agent, until it calls a checkpoint complete
HOOK_S = 1800.0
REVIVE_S = 30.0  # the boot hook starts a killed agent again
STRANGER = "f" * 32  # the nonce of a machine that is not ours: it has no hook
ALONE_S = 5.0  # silence after which the agent itself answers a reclaim's notice


@dataclass(frozen=True)
class Program:
    """What a job's command does."""

    work_s: float
    setup_s: float = 60.0
    every_s: float = 600.0  # a checkpoint; 0: never
    save_s: float = 5.0  # after a signal
    fails_at: tuple[float, ...] = ()  # seconds of work at which it exits 1, each once
    exits_85_at: tuple[float, ...] = ()
    upload_s: float = 5.0


@dataclass
class Checkpoint:
    """One checkpoint on a machine's disk."""

    step: int
    begun: float
    written: bool = False
    complete: bool = False

    @property
    def name(self) -> str:
        return f"step_{self.step}.pt"


@dataclass
class Run:
    """One (task, n) on this machine. `base`: the second of work it began at."""

    job: str
    task: str
    n: int
    program: Program
    base: float
    ordered_at: float
    state: str = "queued"
    rc: int | None = None
    signalled: str | None = None
    kill_at: float | None = None
    dead: bool = False
    closed: bool = False
    lost: bool = False
    began: float | None = None  # the program's start
    ended: float | None = None
    checkpoints: list[Checkpoint] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    by_itself: bool = False  # it ended of its own accord
    after: str = ""  # ordered ahead: the run that has to end well first
    room_s: float = 0.0
    limit_s: float | None = None
    begun_at: float | None = None  # of one that was ordered ahead

    @property
    def key(self) -> str:
        return f"{self.task}.{self.n}"

    @property
    def staged(self) -> bool:
        return bool(self.after) and self.begun_at is None

    def reached(self, now: float) -> float:
        """The second of work that it is at."""
        if self.began is None:
            return self.base
        return self.base + (self.ended if self.ended is not None else now) - self.began

    def shown(self, now: float) -> dict[str, Any]:
        """The protocol's entry of a status."""
        rows = [
            {"name": c.name, "step": c.step, "bytes": 1000 + c.step, "complete": c.complete, "mtime": c.begun}
            for c in self.checkpoints
        ]
        return {
            "state": "exited" if self.dead else self.state, "rc": self.rc, "stage": "run", "signalled": self.signalled,
            "dead": self.dead, "closed": self.closed, "lost": self.lost, "started": self.began, "ended": self.ended,
            "logs": {}, "checkpoints": rows, "staged": self.staged,
            "limit": {"s": self.limit_s} if self.limit_s is not None else None,
            "begun_s": now - self.begun_at if self.after and self.begun_at is not None else None,
        }  # fmt: skip


class Box:
    """One machine. `state`: booting, running, stopped, dead; only a dead one never comes back."""

    def __init__(self, world: World, cloud: Cloud, id_: str, offer: Offer, tag: Tag | None, nonce: str) -> None:
        self.world, self.cloud, self.id, self.offer, self.tag, self.nonce = world, cloud, id_, offer, tag, nonce
        heap = world.heap
        self.born = heap.now
        self.state = self.before = "booting"
        self.changed_at = heap.now  # when it was another one than `before`
        self.bills = True
        self.dead_at: float | None = None
        self.dead_why = ""
        self.ready_at: float | None = None
        self.visible_from = heap.now
        self.notice: float | None = None
        self.address = id_  # may be given to somebody else once it is dead
        self.hung = self.never_ready = self.agent_dead = False
        self.unreachable_until = 0.0
        self.epoch = 0
        self.boots = 1
        self.end: float | None = None
        self.told_end: float | None = None  # the same end as the controller's clock called it
        self.confirmed = False
        self.grace_s = 120.0
        self.action = "poweroff" if cloud.caps.power_off_allowed else "kill"
        self.ends_at: float | None = None  # the provider's own timer
        self.prepared: dict[str, int] = {}  # run -> step of the resume checkpoint that lies there
        self.runs: dict[str, Run] = {}
        self._deadline: Timer | None = None
        self._server_end: Timer | None = None
        heap.after(cloud.boot_s(), self._booted)

    # --- power --------------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self.state != "dead"

    @property
    def answers(self) -> bool:
        """sshd on it would take a connection, were there a way to it."""
        now = self.world.heap.now
        return self.state == "running" and not (self.hung or self.never_ready) and now >= self.unreachable_until

    @property
    def name(self) -> str:
        return self.tag.rental if self.tag else self.id

    def _turn(self, state: str) -> None:
        self.before, self.state, self.changed_at = self.state, state, self.world.heap.now

    def _booted(self) -> None:
        if self.state == "dead":
            return
        self._turn("running")
        self.ready_at = self.world.heap.now
        for run in self.runs.values():  # from before the stop: the agent finds them dead
            if not run.dead:
                self._over(run, None, lost=True)
        if self.nonce == STRANGER:
            return
        if self.cloud.caps.boot_hook != "none" and not self.confirmed:
            first = self.world.heap.now + HOOK_S
            self._set_deadline(min(first, self.end) if self.end is not None else first)
        elif self.end is not None and self.cloud.caps.boot_hook == "every_boot":
            self._set_deadline(self.end)

    def power(self, state: str, why: str) -> None:
        """It is destroyed, reclaimed, or stops; whatever ran is over."""
        if self.state in ("dead", state):
            return
        for run in self.runs.values():
            self._cut(run)
        self._turn(state)
        self.dead_why = why
        if state == "dead":
            self.dead_at, self.bills = self.world.heap.now, False
            self.cloud.address_free(self)
        self.world.say(self.name, f"is {state}: {why}")
        self.world.oracle.power_changed(self)

    def revive(self) -> None:
        """The provider starts a stopped machine again: its disk is as it was, nothing runs."""
        if self.state == "stopped":
            self._turn("booting")
            self.bills = True
            self.boots += 1
            self.world.oracle.power_changed(self)
            self.world.heap.after(self.cloud.boot_s(), self._booted)
            self.world.say(self.name, "was started again by the provider")

    def reboot(self) -> None:
        now = self.world.heap.now
        for run in self.runs.values():
            if not run.dead:
                self._cut(run)
                self._over(run, None, lost=True)
        self.boots += 1
        self.hung = False
        self.notice = None
        self.unreachable_until = now + 75.0
        if self.cloud.caps.boot_hook != "every_boot" and self._deadline is not None:
            self._deadline.cancel()  # nothing restores it until the agent is pushed again
            self.confirmed = False
        self.changed()

    def _cut(self, run: Run) -> None:
        """Its processes are gone without a word; only the disk knows."""
        for timer in run.timers:
            timer.cancel()
        run.timers.clear()
        if run.ended is None and not run.dead:
            run.ended = self.world.heap.now
            self.world.oracle.run_stopped(self, run)

    def hang(self) -> None:
        """The kernel no longer schedules anything; the provider shows it running."""
        self.hung = True
        for run in self.runs.values():
            self._cut(run)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _set_deadline(self, at: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.end = at
        heap = self.world.heap
        self._deadline = heap.at(at, self._self_end)
        heap.at(at - self.grace_s, self._save_for_end, at)

    def _save_for_end(self, at: float) -> None:
        if self.end == at and self.confirmed and not self.agent_dead:
            self._signal_all("ttl", max(1.0, at - self.world.heap.now - 2))

    def _self_end(self) -> None:
        if self.state != "running" or self.hung:
            return
        if self.action == "kill":
            for run in self.runs.values():
                if not run.dead:
                    self._kill(run)
            return
        kind = self.cloud.caps.self_end
        if kind == "destroys":
            self.power("dead", "ended itself")
            return
        self.power("stopped", "powered itself off")
        self.bills = kind == "nothing"
        self.world.oracle.power_changed(self)

    def provider_end(self, at: float) -> None:
        """The provider's own timer."""
        if self._server_end is not None:
            self._server_end.cancel()
        self.ends_at = at
        self._server_end = self.world.heap.at(at, self.power, "dead", "the provider's timer")

    # --- the agent's commands -----------------------------------------------------------------------------------------

    def command(self, epoch: int, nonce: str) -> None:
        """What every changing command is checked for first."""
        if nonce != self.nonce:
            raise AgentRefused("nonce", "another machine's", {})
        if epoch < self.epoch:
            raise AgentRefused("epoch", f"{epoch} is older than {self.epoch}", {"epoch": self.epoch})
        self.epoch = epoch

    def arm(self, end: float, told_end: float, grace_s: float, action: str) -> None:
        self.told_end = told_end
        self.grace_s, self.action, self.confirmed, self.agent_dead = grace_s, action, True, False
        self._set_deadline(end)
        self.changed()

    def order(
        self, job: str, task: str, n: int, program: Program, resume: str, after: str = "", room_s: float = 0.0,
        limit_s: float | None = None,
    ) -> bool:  # fmt: skip
        """True when it was ordered before."""
        key, now = f"{task}.{n}", self.world.heap.now
        old = self.runs.get(key)
        if old is not None and old.closed:
            raise AgentRefused("closed", "its key is closed", {})
        if old is not None:
            if old.staged and not after:
                self._begin(old)
            return True
        if self.end is not None and now >= self.end:
            raise AgentRefused("closed", "the machine's end has passed", {})
        if any(not run.dead and run.key != after for run in self.runs.values()):
            raise AgentRefused("busy", "another run is not dead", {})
        if resume and key not in self.prepared:
            raise AgentRefused("invalid", f"{resume} is not there", {})
        if after and after not in self.runs:
            raise AgentRefused("missing", f"{after} was never ordered", {})
        run = Run(job, task, n, program, float(self.prepared.get(key, 0)) if resume else 0.0, now)
        run.after, run.room_s, run.limit_s = after, room_s, limit_s
        self.runs[key] = run
        self.world.oracle.run_ordered(self, run)
        if after:
            self._ahead()
        else:
            self._begin(run)
        self.changed()
        return False

    def _begin(self, run: Run) -> None:
        """Its stages start."""
        run.state, run.begun_at = "setup", self.world.heap.now
        run.timers.append(self.world.heap.after(run.program.setup_s, self._start, run))
        self.changed()

    def _ahead(self) -> None:
        """What was ordered ahead begins as soon as the run before it has ended well; an agent looks at nothing else."""
        now = self.world.heap.now
        near = self.end is not None and self.end - now <= self.grace_s
        if self.agent_dead or self.notice is not None or self.state != "running" or self.hung or near:
            return
        for run in list(self.runs.values()):
            before = self.runs.get(run.after) if run.staged and not run.dead else None
            room = self.end is None or run.room_s < self.end - now
            if before is not None and room and before.dead and before.rc == 0 and not (before.signalled or before.lost):
                self._begin(run)

    def withdraw(self, job: str, task: str, n: int) -> None:
        """Take back what was ordered ahead."""
        run = self.runs.get(f"{task}.{n}")
        if run is not None and not run.staged:
            raise AgentRefused("busy", f"{run.key} has begun", {})
        if run is None:
            run = self.runs[f"{task}.{n}"] = Run(job, task, n, Program(0), 0.0, self.world.heap.now, after="?")
        if not run.dead:
            self._cut(run)
        run.state, run.dead, run.closed = "exited", True, True
        self.changed()

    def signal(self, key: str, why: str, grace_s: float) -> Mapping[str, Any]:
        run = self.runs.get(key)
        if run is None or run.dead:
            return {"already": True}
        self._signal(run, why, grace_s)
        return {"already": False}

    def close(self, job: str, task: str, n: int) -> bool:
        run = self.runs.get(f"{task}.{n}")
        if run is None:
            run = Run(job, task, n, Program(0), 0.0, self.world.heap.now, state="exited", dead=True)
            self.runs[run.key] = run
        if not run.dead:
            self._kill(run)
        run.closed = True
        self.changed()
        return True

    # --- programs -----------------------------------------------------------------------------------------------------

    def _start(self, run: Run) -> None:
        heap, program = self.world.heap, run.program
        run.state, run.began = "run", heap.now
        self.world.say(self.name, f"run {run.key} starts at {run.base:.0f} of {program.work_s:.0f}")
        self.world.oracle.run_started(self, run)
        if program.every_s:
            first = program.every_s - run.base % program.every_s
            run.timers.append(heap.after(first, self._checkpoint, run))
        for at, rc in [*((f, 1) for f in program.fails_at), *((f, 85) for f in program.exits_85_at)]:
            if run.base < at and (run.job, at) not in self.world.failed_once:
                run.timers.append(heap.after(at - run.base, self._exits, run, rc, at))
        run.timers.append(heap.after(program.work_s - run.base, self._exits, run, 0, 0.0))
        self.changed()

    def _exits(self, run: Run, rc: int, at: float) -> None:
        if rc:
            self.world.failed_once.add((run.job, at))
        run.by_itself = True
        if rc == 85:
            self._saved(run)
        self._over(run, rc)
        self.changed()

    def _checkpoint(self, run: Run) -> None:
        heap = self.world.heap
        found = Checkpoint(int(run.reached(heap.now)), heap.now)
        run.checkpoints.append(found)
        run.timers.append(heap.after(WRITE_S, self._written, found))
        run.timers.append(heap.after(WRITE_S + SETTLE_S, self._settled, found))
        run.timers.append(heap.after(run.program.every_s, self._checkpoint, run))

    def _written(self, found: Checkpoint) -> None:
        found.written = True

    def _settled(self, found: Checkpoint) -> None:
        found.complete = True
        self.changed()

    def _saved(self, run: Run) -> None:
        """A last checkpoint, whole, where it is."""
        if run.program.every_s and run.began is not None:
            step = int(run.reached(self.world.heap.now))
            if all(c.step != step for c in run.checkpoints):
                run.checkpoints.append(Checkpoint(step, self.world.heap.now, written=True))

    def _over(self, run: Run, rc: int | None, lost: bool = False) -> None:
        """Every process of the run is dead, and the agent knows."""
        self._cut(run)
        run.rc, run.lost, run.dead, run.state = rc if rc is not None else 137, lost, True, "exited"
        for found in run.checkpoints:
            found.complete = found.written
        how = f"{run.rc}{' lost' if lost else ''}{f' after {run.signalled}' if run.signalled else ''}"
        self.world.say(self.name, f"run {run.key} over at {run.reached(0):.0f}: exit {how}")
        self.world.oracle.run_over(self, run)
        self._ahead()

    def _kill(self, run: Run) -> None:
        self._over(run, 137 if run.state == "run" else 143)
        self.changed()

    def _signal(self, run: Run, why: str, grace_s: float) -> None:
        heap = self.world.heap
        if grace_s <= 0:
            run.signalled = run.signalled or why
            self._kill(run)
            return
        if run.signalled is not None:
            return
        run.signalled = why
        if run.state == "run" and run.program.save_s <= grace_s:
            run.timers.append(heap.after(run.program.save_s, self._obeys, run))
        else:
            run.timers.append(heap.after(min(grace_s, 3.0 if run.state != "run" else grace_s), self._kill, run))
        self.changed()

    def _obeys(self, run: Run) -> None:
        self._saved(run)
        self._over(run, 143)
        self.changed()

    def _signal_all(self, why: str, grace_s: float) -> None:
        for run in self.runs.values():
            if not run.dead and run.ended is None and not run.staged:
                self._signal(run, why, grace_s)

    def announce(self, at: float) -> None:
        """The provider says that it will take the machine at `at`."""
        self.notice = at
        self.changed()
        self.world.heap.after(ALONE_S, self._alone)

    def _alone(self) -> None:
        """Nobody listens: the agent sends the signal itself."""
        if self.notice is not None and self.state == "running" and not self.world.followed(self) and not self.hung:
            self._signal_all("interruption", max(1.0, self.notice - self.world.heap.now - 2))

    def vanish(self) -> None:
        """The wrapper of what runs is killed: for memory, or by hand."""
        for run in self.runs.values():
            if not run.dead and run.ended is None and not run.staged:
                self._over(run, None, lost=True)
        self.changed()

    def kill_agent(self) -> None:
        """The supervisor dies; the hook starts it again where there is one."""
        self.agent_dead = True
        if self.cloud.caps.boot_hook != "none":
            self.world.heap.after(REVIVE_S, self._agent_back)
        self.world.drop_links(self, "the stream ended")

    def _agent_back(self) -> None:
        self.agent_dead = False
        self._ahead()
        self.changed()

    # --- what the agent says ------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        end = self.told_end if self.confirmed else self.end
        deadline = None if end is None else {"end": end, "grace": self.grace_s, "confirmed": self.confirmed}
        return {
            "ok": True, "protocol": 2, "nonce": self.nonce, "epoch": self.epoch, "supervisor": not self.agent_dead,
            "boot_id": f"{self.id}.{self.boots}", "deadline": deadline,
            "notice": None if self.notice is None else {"at": self.notice, "action": "terminate"},
            "runs": {key: run.shown(self.world.heap.now) for key, run in self.runs.items()},
        }  # fmt: skip

    def changed(self) -> None:
        self.world.box_changed(self)

    def must_answer(self) -> None:
        """Raise unless a command over a kept connection would be answered."""
        if not self.answers:
            raise Unreachable("no answer", reason="timeout", where=self.name)
