"""The closed lists of words that the nouns of `model` use: phases, reasons, outcomes. They are had from `model`."""

from __future__ import annotations

import enum


class RentalPhase(enum.StrEnum):
    """Stored phases of a rental; the only state machine there is. The legal steps are in `transitions`."""

    INTENT = "intent"  # committed before the create call; from here on it may bill
    LIVE = "live"  # the provider's id is known
    RELEASING = "releasing"  # being destroyed, for one stored reason; never goes back
    GONE = "gone"  # proved not to bill; kept as a tombstone for late births


class Reason(enum.StrEnum):
    """Why a machine is destroyed or a job ended: one closed list, used everywhere a reason is shown."""

    DONE = "done"
    FAILED = "failed"  # the user's own program or setup
    CANCELLED = "cancelled"
    TTL = "ttl"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"  # the provider took the machine
    UNREACHABLE = "unreachable"
    BAD_HOST = "bad-host"
    STALLED = "stalled"
    STOPPED_EARLY = "stopped-early"
    DUPLICATE = "duplicate"
    ORPHAN = "orphan"
    NO_CAPACITY = "no-capacity"  # this and what follows: of a job, never of a machine that is destroyed
    QUOTA = "quota"
    PROVIDER = "provider"  # auth, account gate, funds, invalid request
    CONFIG = "config"  # what the spec asked for cannot work
    DATA = "data"
    CHECKPOINT = "checkpoint"
    NO_PROGRESS = "no-progress"


class Outcome(enum.StrEnum):
    """What became of the work, set once; the job is terminal only when also nothing bills."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CreateOutcome(enum.StrEnum):
    """What the one create call of a rental answered."""

    MADE = "made"
    REFUSED = "refused"
    AMBIGUOUS = "ambiguous"


class SignalWhy(enum.StrEnum):
    """Why we told the job to stop. Only `interruption` makes an exit 'not done'."""

    INTERRUPTION = "interruption"
    CANCEL = "cancel"
    TTL = "ttl"
    BUDGET = "budget"
    STOP = "stop"
