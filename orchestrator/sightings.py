"""What this process has seen of one rental since it started; read by `observe`, written by the loop as messages arrive.

Evidence is counted, not timed: absence needs several complete listings in a row of this process's own, a failed listing
sets the count back to nothing, and time in which nobody looked is no evidence (three bugs that simulation found).
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from orchestrator.model import AgentCheckpoint, AgentRun, Machine, Rental, Sight, SignalWhy, Unknown
from providers.base import Instance, Listing, Notice

COUNT_MAX = 2**53
LISTING_MAX_S = 600.0  # no listing takes so long
RUN_STATES = ("queued", "setup", "smoke", "run", "exited")


@dataclass
class Sightings:
    """The memory of one rental. Mutable, owned by the loop, gone with the process."""

    sight: Sight = field(default_factory=Sight)
    machine: Machine = field(default_factory=lambda: Machine(connected=False))
    prepared: set[str] = field(default_factory=set)  # "<task>.<n>"
    mirrored: set[tuple[str, str, int, float]] = field(default_factory=set)  # run, name, bytes, mtime
    running_since: dict[str, float] = field(default_factory=dict)  # run -> when its program was first seen running
    begun: dict[str, float] = field(default_factory=dict)  # run -> when one that was ordered ahead began
    steps: dict[str, tuple[float, float]] = field(default_factory=dict)  # run -> first and furthest step of its log
    store_until: dict[str, float] = field(default_factory=dict)  # "<task>.<n>" -> when its access is to be renewed
    marked: dict[str, tuple[str, ...]] = field(default_factory=dict)  # run -> items of a batch that it says are done
    watched: bool = False  # live: a connection to it is kept or tried
    absent_since_boot: float | None = None
    collected_at: float = 0.0  # when results were last brought home during the run
    bytes_left: int = 0  # results and checkpoints not home yet, at the last look
    bytes_per_s: float = 0.0  # measured rate of transfers from this machine; 0 before the first

    # --- the provider's word ------------------------------------------------------------------------------------------

    def listed(
        self, rental: Rental, listing: Listing | Unknown, began: float, boot: float, dead: Container[str] = ()
    ) -> None:
        """One listing of the rental's account and region, begun at `began` (UTC); `dead` are its final statuses.

        A listing that shows the machine alive says nothing of what it will leave behind: a disk shows on its own
        only after the machine's death.
        """
        if isinstance(listing, Unknown):
            self.absent_since_boot = None
            self.sight = replace(self.sight, absent_count=0, absent_span_s=0.0, others_absent_count=0)
            return
        if rental.create_sent_at is None or began < rental.create_sent_at:
            set_back = rental.create_sent_at is not None and began <= rental.create_sent_at - LISTING_MAX_S
            if not set_back:  # the clock, since then: no listing that is heard now began so long before
                return  # it could not know
        mine = [i for i in listing.instances if _is(i, rental)]
        others = tuple(r for r in listing.others if r.tag is not None and r.tag.rental == rental.id)
        kept = _kept(mine, rental)
        lives = kept is not None and kept.status not in dead
        self.sight = replace(
            self.sight,
            others=others,
            others_absent_count=0 if others or lives else self.sight.others_absent_count + 1,
            duplicates=tuple(i for i in mine if i is not kept),
        )
        if kept is not None:
            self.absent_since_boot = None
            self.sight = replace(self.sight, instance=kept, seen_at=began, absent_count=0, absent_span_s=0.0)
        else:
            if self.absent_since_boot is None:
                self.absent_since_boot = boot
            span = boot - self.absent_since_boot
            self.sight = replace(self.sight, absent_count=self.sight.absent_count + 1, absent_span_s=span)

    def got(self, answer: Instance | Literal["missing"] | Unknown, at: float) -> None:
        """One point-get. One that shows it running outweighs the listings that did not: they begin anew."""
        self.sight = replace(self.sight, got=answer, got_at=at)
        if isinstance(answer, Instance):
            self.sight = replace(self.sight, instance=answer, seen_at=at)
            if answer.ready:
                self.sight = replace(self.sight, absent_count=0, absent_span_s=0.0)
                self.absent_since_boot = None

    def forget_get(self) -> None:
        """A destroy was acknowledged: an earlier point-get proves nothing about it, whatever the clock did since."""
        self.sight = replace(self.sight, got=Unknown("not asked since the destroy"), got_at=None)

    # --- the machine's word -------------------------------------------------------------------------------------------

    def reached(self, status: Mapping[str, Any]) -> None:
        """A proven connection with the agent's first status."""
        self.machine = parse_status(status)

    def status(self, status: Mapping[str, Any]) -> None:
        """The agent's state changed."""
        if self.machine.connected:
            self.machine = parse_status(status)

    def note_running(self, now: float) -> None:
        """Remember since when programs run: setup may take an hour, in which no checkpoint is due. By our own clock."""
        for key, run in self.machine.runs.items():
            if run.begun_s is not None:
                self.begun.setdefault(key, now - max(0.0, run.begun_s))
            if run.state == "run":
                self.running_since.setdefault(key, now)

    def note_step(self, run: str, step: float) -> None:
        """A run's log has told a step."""
        first, furthest = self.steps.get(run, (step, step))
        self.steps[run] = first, max(furthest, step)

    def lost(self, trouble: str, tried_s: float, at: float, epoch_refused: bool) -> None:
        """The connection broke, or one more attempt failed.

        Listings without a machine that answered all the while were wrong, and prove nothing once it falls silent.
        """
        before = self.machine
        fresh = before.connected
        if fresh:
            self.sight = replace(self.sight, absent_count=0, absent_span_s=0.0)
            self.absent_since_boot = None
        self.machine = replace(
            before,
            connected=False,
            lost_at=at if fresh or before.lost_at is None else before.lost_at,
            failed_awake_s=0.0 if fresh else before.failed_awake_s + tried_s,
            failures=1 if fresh else before.failures + 1,
            trouble=trouble,
            epoch_refused=epoch_refused,
        )

    def forget_silence(self) -> None:
        """After a sleep, a change of network or of the clock: what failed before says nothing about the machine, and
        what was seen is not known to be later or earlier than anything.
        """
        self.machine = replace(self.machine, failed_awake_s=0.0)
        unasked = Unknown("not asked since the computer slept or its clock was set")
        self.sight = replace(
            self.sight, absent_count=0, absent_span_s=0.0, others_absent_count=0, got=unasked, got_at=None
        )
        self.absent_since_boot = None

    @property
    def shown_ready(self) -> bool:
        """The provider's newest word is that it runs."""
        return self.sight.instance is not None and self.sight.instance.ready

    def save_s(self) -> float:
        """Seconds to bring home what is left, and the checkpoint that a signal makes, at the measured rate."""
        saved = (c.bytes for run in self.machine.runs.values() if not run.dead for c in run.checkpoints if c.complete)
        left = self.bytes_left + max(saved, default=0)
        return left / self.bytes_per_s if self.bytes_per_s > 0 else 0.0

    def checkpoints_left(self, run: str) -> bool:
        """Whether the machine holds complete checkpoints of `run` that this process has not made durable."""
        seen = self.machine.runs.get(run)
        if seen is None:
            return False
        return any(c.complete and (run, c.name, c.bytes, c.mtime) not in self.mirrored for c in seen.checkpoints)


def _is(instance: Instance, rental: Rental) -> bool:
    if rental.provider_id is not None and instance.ref.id == rental.provider_id:
        return True
    return instance.tag is not None and instance.tag.rental == rental.id


def _kept(mine: Sequence[Instance], rental: Rental) -> Instance | None:
    """Of several machines with one tag the recorded one stays, else the one with the lowest id."""
    recorded = [i for i in mine if i.ref.id == rental.provider_id]
    if recorded or rental.provider_id is not None:
        return recorded[0] if recorded else None
    return min(mine, key=lambda i: i.ref.id, default=None)


# --- the agent's status, from a stranger's machine ---


def parse_status(status: Mapping[str, Any]) -> Machine:
    """The agent's status as facts. What has another shape than the protocol's is left out, never an error."""
    deadline = _mapping(status.get("deadline"))
    runs = {str(k): _run(_mapping(v)) for k, v in _mapping(status.get("runs")).items()}
    return Machine(
        connected=True,
        proven=True,
        end=_number(deadline.get("end")),
        end_confirmed=deadline.get("confirmed") in (True, 1, "1"),
        notice=_notice(_mapping(status.get("notice"))),
        supervisor=bool(status.get("supervisor")),
        boot_id=str(status.get("boot_id", ""))[:64],
        runs={key: run for key, run in runs.items() if run is not None},
    )


def _run(row: Mapping[str, Any]) -> AgentRun | None:
    state = row.get("state")
    if state not in RUN_STATES:
        return None
    why = row.get("signalled")
    rc = row.get("rc")
    return AgentRun(
        state=state,
        stage=str(row.get("stage") or "")[:20],
        rc=rc if isinstance(rc, int) and not isinstance(rc, bool) and abs(rc) < 256 else None,
        signalled=SignalWhy(why) if why in list(SignalWhy) else None,
        dead=row.get("dead") is True,
        closed=row.get("closed") is True,
        lost=row.get("lost") is True or row.get("rebooted") is True,
        staged=row.get("staged") is True,
        limit_s=_number(_mapping(row.get("limit")).get("s")),
        begun_s=_number(row.get("begun_s")),
        started=_number(row.get("started")),
        ended=_number(row.get("ended")),
        checkpoints=tuple(c for c in map(_checkpoint, _list(row.get("checkpoints"))) if c is not None),
    )


def _checkpoint(row: object) -> AgentCheckpoint | None:
    entry = _mapping(row)
    name, step, size = entry.get("name"), entry.get("step"), entry.get("bytes")
    if not isinstance(name, str) or not name or "/" in name or name in (".", "..") or len(name) > 255:
        return None
    step = step if isinstance(step, int) and 0 <= step < COUNT_MAX else -1
    size = size if isinstance(size, int) and 0 <= size < COUNT_MAX else 0
    return AgentCheckpoint(name, step, size, entry.get("complete") is True, _number(entry.get("mtime")) or 0.0,
                           str(entry.get("why") or "")[:200])  # fmt: skip


def _notice(row: Mapping[str, Any]) -> Notice | None:
    at = _number(row.get("at"))
    return Notice(at, str(row.get("action", "terminate"))[:20]) if at is not None else None


def _number(value: object) -> float | None:
    if isinstance(value, int) and abs(value) >= COUNT_MAX:  # no float, and no column of the books, holds it
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()
