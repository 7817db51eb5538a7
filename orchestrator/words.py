"""What people read about a job: one of ten states, a reason of the closed list, `attempt n`, and what happens next.

Rules: pure; derived from stored rows at a given time, never stored and never resumed from. A terminal word (DONE,
FAILED, CANCELLED) appears only once nothing bills; before that the state is RELEASING, with the outcome as its
reason.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.model import Assignment, Job, Outcome, Reason, Rental, RentalPhase, SignalWhy
from orchestrator.transitions import DISRUPTIONS


class State(enum.StrEnum):
    """The ten words."""

    PENDING = "PENDING"
    PROVISIONING = "PROVISIONING"
    SETUP = "SETUP"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    FINALIZING = "FINALIZING"
    RELEASING = "RELEASING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


TERMINAL = frozenset({State.DONE, State.FAILED, State.CANCELLED})
_OUTCOME_STATE = {
    Outcome.DONE: State.DONE,
    Outcome.FAILED: State.FAILED,
    Outcome.CANCELLED: State.CANCELLED,
}
#: Only another spec, other code or other data helps.
_TO_MEND = frozenset({Reason.FAILED, Reason.CONFIG, Reason.DATA})
_STAGE_WORDS = {"setup": "setup", "smoke": "the smoke test"}


@dataclass(frozen=True)
class Picture:
    """What the words are made of: a job with its newest machine and its newest run. Times are UTC epoch seconds."""

    name: str
    outcome: Outcome | None = None
    reason: Reason | None = None
    detail: str = ""
    cancel_at: float | None = None
    cancel_now: bool = False
    wait_since: float | None = None
    held_until: float | None = None
    terminal_at: float | None = None
    attempts: int = 0  # number of the newest run of the present wish; machines that were made while there is none
    granted: int = 0  # relaunches after failures that the spec allows
    lost: int = 0  # machines that ended without being the job's own failure
    rental: str = ""  # the newest machine; empty when none was asked for yet
    provider: str = ""
    phase: RentalPhase | None = None
    ambiguous: bool = False  # nobody knows whether it was made
    ready: bool = False
    quiesced: bool = False
    rental_reason: Reason | None = None
    rental_detail: str = ""
    interrupted_at: float | None = None
    end: float | None = None
    end_reason: Reason | None = None
    recovering: bool = False  # an earlier machine really worked on this job
    run_ordered: bool = False  # the newest run belongs to the newest machine and was ordered
    run_ended: bool = False
    run_interrupted: bool = False  # it ended by our signal for an interruption, so the job is not done
    resume_name: str = ""
    checkpointed: bool = False  # there is something durable to go on from
    stage: str = ""  # setup, smoke, run, or empty when it was not seen yet
    tasks: int = 0  # of a job of many; 0: a plain one
    tasks_over: int = 0
    tasks_running: int = 0


@dataclass(frozen=True)
class Words:
    """One job as a person sees it. Times are UTC epoch seconds."""

    state: State
    reason: str = ""  # of the closed list, or empty
    detail: str = ""  # one sentence: the decisive line, or what is going on
    next: str = ""  # what happens next
    next_at: float | None = None  # and when, where that is known
    attempt: int = 0
    attempts_max: int | None = None  # None: nobody knows, since a lost machine is replaced without being counted

    @property
    def attempt_text(self) -> str:
        """`2/3`; `2` where the total is not known; `-` before the first."""
        if not self.attempt:
            return "-"
        return f"{self.attempt}/{self.attempts_max}" if self.attempts_max is not None else str(self.attempt)


def newest_run(runs: Iterable[Assignment]) -> Assignment | None:
    """Of one task the number decides: after the clock was set back, the next run is committed "before" the last."""
    last = {run.task: run for run in sorted(runs, key=lambda run: run.n)}
    return max(last.values(), key=lambda run: (run.committed_at, run.n), default=None)


def picture_of(
    job: Job, rentals: Sequence[Rental], runs: Sequence[Assignment], stage: str, checkpointed: bool = False
) -> Picture:
    """The picture of one job from its rows: its rentals, oldest first, its runs, the newest run's stage as seen, and
    whether a checkpoint of it is durable.
    """
    rental = rentals[-1] if rentals else None
    run = newest_run(runs)
    if run is not None and (rental is None or run.rental != rental.id or run.n <= job.replaced_n):
        run = None
    retry = job.spec.get("retry")
    return Picture(
        name=job.name,
        outcome=job.outcome,
        reason=job.reason,
        detail=job.detail,
        cancel_at=job.cancel_at,
        cancel_now=job.cancel_now,
        wait_since=job.wait_since,
        held_until=job.held_until,
        terminal_at=job.terminal_at,
        attempts=attempt_shown(
            max((each.n for each in runs), default=0) - job.replaced_n,
            sum(each.provider_id is not None for each in rentals),
        ),
        granted=int(retry.get("max", 0)) if isinstance(retry, dict) else 0,
        lost=sum(each.reason in DISRUPTIONS or each.interrupted_at is not None for each in rentals),
        rental=rental.id if rental else "",
        provider=rental.offer.provider if rental else "",
        phase=rental.phase if rental else None,
        ambiguous=bool(rental and rental.create_outcome == "ambiguous"),
        ready=bool(rental and rental.ready_at is not None),
        quiesced=bool(rental and rental.quiesced_at is not None),
        rental_reason=rental.reason if rental else None,
        rental_detail=rental.detail if rental else "",
        interrupted_at=rental.interrupted_at if rental else None,
        end=rental.end if rental else None,
        end_reason=rental.end_reason if rental else None,
        recovering=any(each.ready_at is not None for each in rentals[:-1]),
        run_ordered=run is not None and run.ordered_at is not None,
        run_ended=run is not None and run.exit is not None,
        run_interrupted=bool(run and run.exit and run.exit.signalled is SignalWhy.INTERRUPTION),
        resume_name=run.resume_name if run is not None else "",
        checkpointed=checkpointed or any(each.resume_name for each in runs),
        stage=stage,
    )


def attempt_shown(runs: int, made: int) -> int:
    """The attempt people read, from the runs of the present wish and the machines that were really made.

    It is `GPUJOB_ATTEMPT` of the newest run once there is one: several runs may share a machine.
    """
    return runs if runs > 0 else made


def _total(picture: Picture) -> int | None:
    """How many attempts there can be; None without retries, and once the count was passed by what is not the job's."""
    if picture.tasks:
        return None
    total = 1 + picture.granted
    return total if picture.granted and not picture.lost and picture.attempts <= total else None


def words_of(picture: Picture, now: float) -> Words:
    """The words of one job at `now`."""
    state, reason, detail, next, at = _say(picture, now)
    return Words(
        state=state,
        reason=reason,
        detail=detail,
        next=next,
        next_at=at,
        attempt=0 if picture.tasks else picture.attempts,  # of many tasks each has its own
        attempts_max=_total(picture),
    )


_Said = tuple[State, str, str, str, float | None]


def _say(p: Picture, now: float) -> _Said:
    if p.terminal_at is not None:
        return _ended(p)
    if p.outcome is not None:
        return _releasing(p, now)
    if p.cancel_at is not None:
        how = "stopped at once" if p.cancel_now else "told to save, then stopped"
        return State.FINALIZING, "cancelled", "a cancel was received", f"the job is {how}; then the release", None
    if p.tasks:
        return _many(p)
    if p.phase in (None, RentalPhase.RELEASING, RentalPhase.GONE):
        return _without_machine(p)
    if not p.ready:
        return _starting(p)
    return _working(p)


def _ended(p: Picture) -> _Said:
    outcome = p.outcome or Outcome.CANCELLED
    reason = str(p.reason or outcome)
    next = "nothing is billing"
    if outcome is Outcome.DONE:
        next += "; `gpujob apply --again` runs it anew"
    elif outcome is Outcome.FAILED and p.reason in _TO_MEND and not p.checkpointed:
        next += "; mend it, then `gpujob apply`"
    else:
        where = "goes on from the newest checkpoint" if p.checkpointed else "begins anew: it left no checkpoint"
        where = "goes on with what is not done" if p.tasks else where
        next += f"; `gpujob resume {p.name}` {where}"
    return _OUTCOME_STATE[outcome], reason, p.detail, next, None


def _releasing(p: Picture, now: float) -> _Said:
    reason = str(p.reason or p.outcome)
    if p.held_until is not None and p.held_until > now:
        next = f"held for `gpujob ssh {p.name}`; then released"
        return State.RELEASING, reason, p.detail, next, p.held_until
    if p.phase in (None, RentalPhase.GONE):
        return State.RELEASING, reason, p.detail, "the books are closed", None
    if p.phase is RentalPhase.RELEASING:
        return State.RELEASING, reason, p.detail, f"{p.rental} must be seen gone", None
    return State.FINALIZING, reason, p.detail, "results are brought home; then the release", None


def _without_machine(p: Picture) -> _Said:
    waiting = p.wait_since is not None
    next = "asks for offers again and again" if waiting else "the cheapest machine is rented"
    worked = p.recovering or p.ready
    if not worked:
        if waiting:
            return State.PENDING, "no-capacity", p.rental_detail or "no machine is free", next, None
        return State.PENDING, "", p.rental_detail, next, None
    if p.phase is RentalPhase.RELEASING and not p.quiesced:
        next = f"a new machine, once {p.rental} is proved dead"
    return State.RECOVERING, str(p.rental_reason or ""), p.rental_detail, next, None


def _many(p: Picture) -> _Said:
    """A job of many tasks: its machines come and go, so that none of them is its state."""
    detail = f"{p.tasks_over} of {p.tasks} over, {p.tasks_running} running"
    if p.tasks_running:
        return State.RUNNING, "", detail, "each machine goes on with the next one", None
    if p.phase is RentalPhase.LIVE and p.ready:
        if p.run_ended:
            return State.RUNNING, "", detail, "results are brought home; then the next one", None
        return State.SETUP, "", detail, "code and data are brought; then setup and run", None
    if p.wait_since is not None:
        return State.PENDING, "no-capacity", detail, "asks for offers again and again", None
    if p.phase in (RentalPhase.INTENT, RentalPhase.LIVE):
        return State.PROVISIONING, "", detail, "machines boot; then code and data are brought", None
    return State.RECOVERING if p.recovering else State.PENDING, "", detail, "machines are rented", None


def _starting(p: Picture) -> _Said:
    state = State.RECOVERING if p.recovering else State.PROVISIONING
    if p.phase is RentalPhase.INTENT:
        detail = "nobody knows yet whether it was made" if p.ambiguous else ""
        return state, "", detail, f"{p.provider} makes {p.rental}", None
    return state, "", "", f"{p.rental} boots; then code and data are brought", None


def _working(p: Picture) -> _Said:
    if p.interrupted_at is not None or p.run_interrupted:
        return State.RECOVERING, "interrupted", "the provider takes the machine", "saving; then a new machine", None
    if p.run_ended:
        return State.FINALIZING, "", "the program has ended", "results are brought home; then the release", None
    if not p.run_ordered:
        then = f"run goes on from {p.resume_name}" if p.resume_name else "setup and run"
        return State.SETUP, "", "code and data are on their way", f"then {then}", None
    if p.stage != "run":
        doing = _STAGE_WORDS.get(p.stage, "setup")
        return State.SETUP, "", f"{doing} is running", "then run", None
    why = "budget" if p.end_reason is Reason.BUDGET else "ttl"
    return State.RUNNING, "", "", f"hard end by {why}", p.end
