"""Phases, reasons and the legal steps between them; the documentation's diagram is generated from these tables.

Everything that affects which step is legal lives here. Conditions that people see (PROVISIONING, SETUP, RUNNING) are
not phases: they are derived from facts in `words`, and nothing resumes from them.
"""

from __future__ import annotations

from orchestrator.model import Reason, RentalPhase

#: phase -> {next phase: what makes the step}. There is no way back: a machine on its way out is never kept.
RENTAL_STEPS: dict[RentalPhase, dict[RentalPhase, str]] = {
    RentalPhase.INTENT: {
        RentalPhase.LIVE: "the provider's id is known: by the create's answer, or by finding the tag",
        RentalPhase.RELEASING: "the job ended while nobody knows whether the create happened",
        RentalPhase.GONE: "the create was refused, or never sent, or never seen within the boot hook's time",
    },
    RentalPhase.LIVE: {
        RentalPhase.RELEASING: "one reason of the closed list is stored",
    },
    RentalPhase.RELEASING: {
        RentalPhase.GONE: "absent in enough complete listings, or terminal with its disks and addresses absent",
    },
    RentalPhase.GONE: {},
}

#: The reasons that a destroy may carry. The tests' oracle holds each against the world.
DESTROY_REASONS: frozenset[Reason] = frozenset(
    {
        Reason.DONE,
        Reason.FAILED,
        Reason.CANCELLED,
        Reason.TTL,
        Reason.BUDGET,
        Reason.INTERRUPTED,
        Reason.UNREACHABLE,
        Reason.BAD_HOST,
        Reason.STALLED,
        Reason.STOPPED_EARLY,
        Reason.DUPLICATE,
        Reason.ORPHAN,
    }
)

#: Losing a machine for one of these says nothing about the user's program: relaunched, and never counted as a failure.
DISRUPTIONS: frozenset[Reason] = frozenset({Reason.INTERRUPTED, Reason.UNREACHABLE, Reason.BAD_HOST, Reason.DUPLICATE})


class IllegalStep(ValueError):
    """A bug of ours: refused by the store, so that no wrong row is ever written."""


def check_step(old: RentalPhase, new: RentalPhase, reason: Reason | None) -> None:
    """Raise `IllegalStep` unless a rental may go from `old` to `new`; releasing needs a reason of the closed list."""
    if new not in RENTAL_STEPS[old]:
        raise IllegalStep(f"a rental cannot go from {old} to {new}")
    if new is RentalPhase.RELEASING and reason not in DESTROY_REASONS:
        raise IllegalStep(f"a release needs a reason of the closed list, not {reason}")


def mermaid() -> str:
    """The diagram of the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> intent: rental row and reserve committed"]
    for old, steps in RENTAL_STEPS.items():
        lines += [f"    {old} --> {new}: {why}" for new, why in steps.items()]
    return "\n".join([*lines, "    gone --> [*]: tombstone swept for 7 days"])
