"""What a known cause allows to be tried again by itself: pure.

- The program's own errors are never repeated; every class has tries of its own, which no other class uses up.
- Tries are counted back to the last new checkpoint: the same failure again without one is not going to get better.
- What an alarm stopped goes on elsewhere where the spec says so, within the same bound.
- A checkpoint that could not be read is passed over, never deleted; without another one the job fails instead of
  silently starting over.
"""

from __future__ import annotations

from typing import Literal

from orchestrator import resume
from orchestrator.model import Assignment, Facts, Policy

RELAUNCHES_MAX = 20  # of a task by causes of all classes: beyond that a person must look, whatever the progress
PAUSE_S = 30.0  # before a network or a service is asked again ...
PAUSE_SPREAD_S = 31  # ... and as many seconds more, different for jobs that failed together
PAUSED = frozenset({"transient", "transfer"})
#: A new machine has room again, since only the newest checkpoint goes there.
ELSEWHERE = frozenset({"bad-host", "disk"})
#: Said by a provider's interface or by our own side: in the log of a user's program they mean something else.
NOT_OURS = frozenset({"no-capacity", "quota", "controller"})
#: Not the program's doing, so the words for people do not say so.
OF_THE_MACHINE = frozenset({"bad-host", "transient", "transfer", "disk", "interrupted"})


def where_again(facts: Facts, policy: Policy, run: Assignment) -> Literal["no", "same", "other"]:
    """Whether a failed run is repeated without being asked for: not, on its machine, or on another one."""
    cause = run.cause
    if cause is None or cause.where == "no" or cause.klass in NOT_OURS:
        return "no"
    earlier = _earlier(facts, run)
    if sum(1 for a in earlier if a.cause is not None and a.cause.where != "no") >= RELAUNCHES_MAX:
        return "no"
    limit = policy.no_progress_max if cause.times is None else cause.times
    if _since_progress(facts, run, earlier) >= limit:
        return "no"
    if cause.klass == "checkpoint" and not (run.resume_hash and resume.accepted(facts, run.task)):
        return "no"
    if cause.where == "any":
        return "other" if cause.klass in ELSEWHERE else "same"
    return cause.where


def moves_on(facts: Facts, policy: Policy, run: Assignment) -> bool:
    """Whether a run that an alarm stopped goes on on another machine: once, and again only after a new checkpoint."""
    if run.stop.partition(":")[0] not in policy.move_on:
        return False
    earlier = _earlier(facts, run)
    if sum(bool(a.stop) for a in earlier) >= RELAUNCHES_MAX:
        return False
    if resume.progressed(facts, run):
        return True
    for a in earlier:
        if a.stop:
            return False
        if resume.progressed(facts, a):
            break
    return True


def pause(facts: Facts, run: Assignment) -> float:
    """Until when a repetition waits (UTC epoch seconds)."""
    since = run.closed_at or facts.now
    if run.cause is None or run.cause.klass not in PAUSED:
        return since
    return since + PAUSE_S + sum(facts.job.id.encode()) % PAUSE_SPREAD_S


def words(run: Assignment) -> str:
    """How a run ended, in words; the program is named only where it is to blame."""
    assert run.exit is not None
    ours = run.cause is not None and (run.cause.klass in OF_THE_MACHINE or run.cause.signature.startswith("gpujob-"))
    who = "" if ours else " (user program)"
    return f"{run.exit.stage} exited {run.exit.rc}{who}"


def _earlier(facts: Facts, run: Assignment) -> list[Assignment]:
    """Runs of the same wish before this one, the newest first."""
    mine = (a for a in facts.assignments if a.task == run.task and facts.job.replaced_n < a.n < run.n)
    return sorted(mine, key=lambda a: a.n, reverse=True)


def _since_progress(facts: Facts, run: Assignment, earlier: list[Assignment]) -> int:
    """How often the same class has failed already since the last new checkpoint."""
    assert run.cause is not None
    count = 0
    if resume.progressed(facts, run):
        return 0
    for a in earlier:
        count += a.cause is not None and a.cause.klass == run.cause.klass
        if resume.progressed(facts, a):
            break
    return count
