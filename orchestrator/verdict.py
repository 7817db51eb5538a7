"""What an exit means: pure. Judged from the exit, our own signals and the provider's word, never from the code alone.

- Only an exit after our own SIGTERM for an interruption is "not done", whatever its code.
- A non-zero exit is the user's failure only if the provider still shows the machine well after it (skypilot#1610: a
  preemption during setup was taken for a setup error).
- Why it failed is known once it is closed; until then a failure is only a failure. What may be repeated: `reaction`.
- A disruption never counts as a failure; exit 85 asks to be started again and is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator import lifecycle, reaction
from orchestrator.model import Assignment, Facts, Policy, Reason, RentalFacts, SignalWhy
from providers.base import Instance

CHECKPOINTED_EXIT = 85  # "checkpointed, start me again" (HTCondor)
LOOK_PATIENCE_S = 60.0  # how long a failure waits for the provider's word that the machine is well

SIGNAL_REASON = {
    SignalWhy.TTL: Reason.TTL,
    SignalWhy.BUDGET: Reason.BUDGET,
    SignalWhy.CANCEL: Reason.CANCELLED,
    SignalWhy.STOP: Reason.STOPPED_EARLY,
}


@dataclass(frozen=True)
class Verdict:
    """`wait`: the provider must be asked first. `again`: a new run on the same machine; `elsewhere`: on another one.

    `ended`: by our own hand.
    """

    kind: Literal["done", "failed", "ended", "again", "elsewhere", "disrupted", "wait"]
    reason: Reason
    detail: str = ""


def judge(facts: Facts, policy: Policy, rental: RentalFacts, assignment: Assignment) -> Verdict:
    """The meaning of `assignment.exit`, which must be there."""
    exit_ = assignment.exit
    assert exit_ is not None
    if exit_.signalled is SignalWhy.INTERRUPTION:
        return Verdict("disrupted", Reason.INTERRUPTED, "stopped for an announced reclaim")
    if exit_.signalled is SignalWhy.STOP and assignment.stop:
        moves = reaction.moves_on(facts, policy, assignment)
        return Verdict("elsewhere" if moves else "ended", Reason.STALLED, f"stopped by an alarm: {assignment.stop}")
    if exit_.signalled is not None:
        return Verdict("ended", SIGNAL_REASON[exit_.signalled], f"stopped by {exit_.signalled}, exit {exit_.rc}")
    if exit_.rc == 0 and not exit_.lost:
        return Verdict("done", Reason.DONE)
    if noticed(rental) or lifecycle.dead(rental):
        return Verdict("disrupted", Reason.INTERRUPTED, f"{exit_.stage} ended with {exit_.rc} while being reclaimed")
    if exit_.lost and not _out_of_memory(assignment):
        return Verdict("again", Reason.INTERRUPTED, f"{exit_.stage} vanished without an exit code (reboot or memory)")
    if exit_.stage == "run" and exit_.rc == CHECKPOINTED_EXIT:
        return Verdict("again", Reason.FAILED, "exit 85: checkpointed, start me again")
    if not _machine_is_well(facts, rental, exit_.at):
        return Verdict("wait", Reason.FAILED)
    words = reaction.words(assignment)
    where = reaction.where_again(facts, policy, assignment)
    if where != "no" and assignment.cause is not None:
        said = f"{words}: [{assignment.cause.klass}] {assignment.cause.line}"
        return Verdict("elsewhere" if where == "other" else "again", Reason.FAILED, said)
    if exit_.stage == "run" and _retries_left(facts, policy, assignment):
        return Verdict("again", Reason.FAILED, words)
    return Verdict("failed", Reason.FAILED, words)


def _out_of_memory(assignment: Assignment) -> bool:
    """The wrapper vanished because the kernel killed it for memory: a new run would only vanish again."""
    return assignment.cause is not None and assignment.cause.klass == "config-memory"


def noticed(rental: RentalFacts) -> bool:
    """A reclaim was announced, by the machine's metadata or by the provider."""
    instance = rental.sight.instance
    return rental.machine.notice is not None or (instance is not None and instance.notice is not None)


def _machine_is_well(facts: Facts, rental: RentalFacts, since: float) -> bool:
    """The provider was asked after the exit and shows it alive; or it could not be asked for a minute.

    While nothing at all answers, the silence is ours and says nothing; nor could the machine be released then.
    """
    sight = rental.sight
    if sight.got_at is not None and sight.got_at >= since and isinstance(sight.got, Instance):
        return True
    return not facts.cut_off and facts.now - since >= LOOK_PATIENCE_S


def _retries_left(facts: Facts, policy: Policy, assignment: Assignment) -> bool:
    """`retry: {max, exit_codes}`: this failure is wanted again, and earlier ones did not use the number up."""
    assert assignment.exit is not None
    if policy.retry_codes and assignment.exit.rc not in policy.retry_codes:
        return False
    since = facts.job.replaced_n
    used = sum(1 for a in facts.assignments if a.task == assignment.task and since < a.n < assignment.n and counted(a))
    return used < policy.retry_max


def counted(assignment: Assignment) -> bool:
    """Whether an earlier exit was a failure of the user's own code that used up a retry."""
    exit_ = assignment.exit
    if exit_ is None or exit_.rc in (0, CHECKPOINTED_EXIT):
        return False
    if assignment.cause is not None and assignment.cause.klass in reaction.OF_THE_MACHINE:
        return False
    return exit_.signalled is None and not exit_.lost
