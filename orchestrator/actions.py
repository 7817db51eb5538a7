"""What a decision can ask for: a closed union of small values.

`WRITES` are committed by the loop at once, in one transaction per decision, before any effect of that decision starts.
`EFFECTS` reach the world: each is performed by a worker thread and answered by a receipt. Every docstring says why
repeating the action is safe, because after a crash it will be repeated. `key` names an effect: one a key at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from orchestrator.model import Exit, Outcome, Reason, SignalWhy
from providers.base import Ask, Instance, Offer, Ref

# --- writes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenRental:
    """Commit the intent and its reserve. Repeated: SQL allows one open, unquiesced rental per task of work."""

    offer: Offer
    end: float
    end_reason: Reason
    reserve: Decimal
    worker: int = 0  # which of the job's machines it will be


@dataclass(frozen=True)
class RecordInstance:
    """Store the provider's id of a machine found by its tag. Repeated: the same id again."""

    rental: str
    instance: Instance


@dataclass(frozen=True)
class Release:
    """Move a rental to releasing. Repeated: refused by the phase table, which changes nothing."""

    rental: str
    reason: Reason
    detail: str = ""
    interrupted: bool = False  # it was taken from us: counts as an interruption


@dataclass(frozen=True)
class StoreQuiesced:
    """Its user code can never run again. Repeated: the first time stays."""

    rental: str


@dataclass(frozen=True)
class StoreGone:
    """It no longer bills: frees the reserve, closes the ledger. Repeated: already gone."""

    rental: str
    tombstone: bool = True
    never_made: bool = False


@dataclass(frozen=True)
class StoreReady:
    """First proven connection. Repeated: the first time stays."""

    rental: str


@dataclass(frozen=True)
class WantEnd:
    """Commit a new end with its reserve, before any timer is moved. Repeated: the same end."""

    rental: str
    end: float
    end_reason: Reason
    reserve: Decimal


@dataclass(frozen=True)
class ConfirmEnd:
    """Every timer confirmed the wanted end: the reserve of a shortening may now be freed. Repeated: no change."""

    rental: str


@dataclass(frozen=True)
class CommitAssignment:
    """Commit (task, n) on a rental with its seal. Repeated: (task, n) is unique."""

    task: str
    n: int
    rental: str
    seal: tuple[str, ...]
    resume_hash: str
    resume_name: str
    resume_step: int | None


@dataclass(frozen=True)
class ResumeOther:
    """Give a run that was never ordered another resume point of its seal. Repeated: the same one again, no change."""

    task: str
    n: int
    seal: tuple[str, ...]
    resume_hash: str
    resume_name: str
    resume_step: int | None


@dataclass(frozen=True)
class StoreExit:
    """Store how a run ended. Repeated: the first record stays."""

    task: str
    n: int
    exit: Exit


@dataclass(frozen=True)
class StoreBegun:
    """Store that a run which was ordered ahead has begun, and when. Repeated: the first time stays."""

    task: str
    n: int
    at: float


@dataclass(frozen=True)
class StoreResultsLost:
    """The end came before the results were home; said to the user. Repeated: the same words."""

    task: str
    n: int
    detail: str


@dataclass(frozen=True)
class SetOutcome:
    """Decide the work. Repeated: an outcome is set once."""

    outcome: Outcome
    reason: Reason
    detail: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class SetTaskOutcome:
    """Decide one of many tasks. Repeated: an outcome is set once."""

    task: str
    outcome: Outcome
    reason: Reason
    detail: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class ItemsOver:
    """Items of a batch are done and home, or failed. Repeated: the first word stays."""

    task: str
    items: tuple[str, ...]
    state: Literal["done", "failed"]
    detail: str = ""


@dataclass(frozen=True)
class Hold:
    """Keep the machine after a failure until then. Repeated: the first time stays."""

    until: float


@dataclass(frozen=True)
class FinishJob:
    """Nothing bills any more: the job is terminal. Repeated: already terminal."""


@dataclass(frozen=True)
class WaitForCapacity:
    """Note since when the job waits for a machine; `clear` ends the waiting. Repeated: the first time stays."""

    clear: bool = False


@dataclass(frozen=True)
class Alarm:
    """Tell the user something that needs eyes. Repeated: one per (job, kind, rental) and hour."""

    kind: str
    text: str
    rental: str = ""


# --- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AskOffers:
    """Read prices. Repeated: a read."""

    ask: Ask
    providers: tuple[str, ...]

    @property
    def key(self) -> str:
        return "offers"


@dataclass(frozen=True)
class SendCreate:
    """The one create call of a rental. Never repeated: `create_sent` is committed first; a sent one is looked for."""

    rental: str

    @property
    def key(self) -> str:
        return f"{self.rental}/create"


@dataclass(frozen=True)
class Look:
    """Ask the provider for this one machine now. Repeated: a read."""

    rental: str
    why: str

    @property
    def key(self) -> str:
        return f"{self.rental}/get"


@dataclass(frozen=True)
class Destroy:
    """Order the end of a machine, disk or address. Repeated: destroy is idempotent by contract."""

    rental: str
    ref: Ref
    reason: Reason

    @property
    def key(self) -> str:
        return f"{self.rental}/destroy/{self.ref.id}"


@dataclass(frozen=True)
class MoveEnd:
    """Move the machine's deadline and the provider's timer to the wanted end. Repeated: absolute times."""

    rental: str
    end: float

    @property
    def key(self) -> str:
        return f"{self.rental}/end"


@dataclass(frozen=True)
class Prepare:
    """Bring code, data and the resume point, and verify them there. Repeated: rsync and a manifest compare."""

    rental: str
    task: str
    n: int

    @property
    def key(self) -> str:
        return f"{self.rental}/prepare/{self.task}.{self.n}"


@dataclass(frozen=True)
class SendOrder:
    """Order the run of (task, n). Repeated: the agent runs one order per (task, n), ever."""

    rental: str
    task: str
    n: int

    @property
    def key(self) -> str:
        return f"{self.rental}/order/{self.task}.{self.n}"


@dataclass(frozen=True)
class SendSignal:
    """Ask the job to save and stop. Repeated: the agent neither restarts nor shortens the grace, except for 0."""

    rental: str
    task: str
    n: int
    why: SignalWhy
    grace_s: float

    @property
    def key(self) -> str:
        return f"{self.rental}/signal/{self.task}.{self.n}/{self.why}/{'now' if self.grace_s <= 0 else 'grace'}"


@dataclass(frozen=True)
class MoveLimit:
    """Tell the machine how long a run may last by its task's own time and money. Repeated: the newest holds."""

    rental: str
    task: str
    n: int

    @property
    def key(self) -> str:
        return f"{self.rental}/limit/{self.task}.{self.n}"


@dataclass(frozen=True)
class SendClose:
    """Kill what is left of a run and close its key. Repeated: closed is closed."""

    rental: str
    task: str
    n: int

    @property
    def key(self) -> str:
        return f"{self.rental}/close/{self.task}.{self.n}"


@dataclass(frozen=True)
class Withdraw:
    """Take back an order that was given ahead. Repeated: closed is closed; refused for a run that has begun."""

    rental: str
    task: str
    n: int

    @property
    def key(self) -> str:
        return f"{self.rental}/withdraw/{self.task}.{self.n}"


@dataclass(frozen=True)
class MirrorCheckpoints:
    """Make complete checkpoints durable, manifest last. Repeated: content is compared, a manifest is written once."""

    rental: str
    task: str
    n: int

    @property
    def key(self) -> str:
        return f"{self.rental}/mirror/{self.task}.{self.n}"


@dataclass(frozen=True)
class RenewStore:
    """Give a run its access to the object store anew, before the last one ends. Repeated: the newest one holds."""

    rental: str
    task: str
    n: int

    @property
    def key(self) -> str:
        return f"{self.rental}/store/{self.task}.{self.n}"


@dataclass(frozen=True)
class CollectResults:
    """Bring results home; `final` verifies and publishes them. Repeated: incremental, published by rename."""

    rental: str
    task: str
    n: int
    final: bool
    success: bool = False

    @property
    def key(self) -> str:
        return f"{self.rental}/results/{self.task}.{self.n}"


@dataclass(frozen=True)
class ListMirror:
    """Read the complete listing of a task's mirror. Repeated: a read."""

    task: str

    @property
    def key(self) -> str:
        return f"mirror/{self.task}"


@dataclass(frozen=True)
class DrawLegs:
    """Have the search draw `count` legs beyond the `known` ones. Repeated: a leg that is there is not added again."""

    count: int
    known: int

    @property
    def key(self) -> str:
        return "draw"


Write = (
    OpenRental
    | RecordInstance
    | Release
    | StoreQuiesced
    | StoreGone
    | StoreReady
    | WantEnd
    | ConfirmEnd
    | CommitAssignment
    | ResumeOther
    | StoreExit
    | StoreBegun
    | StoreResultsLost
    | SetOutcome
    | SetTaskOutcome
    | ItemsOver
    | Hold
    | FinishJob
    | WaitForCapacity
    | Alarm
)
Effect = (
    AskOffers
    | SendCreate
    | Look
    | Destroy
    | MoveEnd
    | Prepare
    | SendOrder
    | SendSignal
    | MoveLimit
    | SendClose
    | Withdraw
    | MirrorCheckpoints
    | RenewStore
    | CollectResults
    | ListMirror
    | DrawLegs
)
Action = Write | Effect
