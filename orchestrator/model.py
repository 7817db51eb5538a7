"""The nouns: what is stored (Job, Task, Attempt, Rental, Assignment) and what is seen (Facts).

Rules
- Everything is frozen; a change is a new value, and only the controller's loop stores it.
- Times are UTC epoch seconds unless a name says `boot` (CLOCK_BOOTTIME) or ends in `_s` (a duration). Money: `Decimal`.
- Stored is what must survive a crash. Seen is what this process knows since it started; a failed look is `Unknown`,
  never an empty value: an empty answer is evidence and a failed one is not (skypilot#6787).
- This module and the rules above it import no clock, no randomness and no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from orchestrator.crew import Crew
from orchestrator.terms import CreateOutcome as CreateOutcome
from orchestrator.terms import Outcome as Outcome
from orchestrator.terms import Reason as Reason
from orchestrator.terms import RentalPhase as RentalPhase
from orchestrator.terms import SignalWhy as SignalWhy
from providers.base import Ask, Caps, Instance, Notice, Offer, Resource

#: Its adapter says so by caps.play; the name is enough where that would cost an import.
PLAY_PROVIDER = "local"


@dataclass(frozen=True)
class Unknown:
    """A look that failed: no evidence of anything. `why` is for people."""

    why: str
    at: float = 0.0


# --- stored ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """The wish. `spec` is the document of `jobspecs.schema.to_document`; edits of live keys replace it."""

    id: str  # "<name>.<run>-<4 random>", lower case: GPUJOB_JOB_ID, stable over attempts
    name: str
    run: int  # NAME.2 is run 2
    spec: Mapping[str, Any]
    spec_hash: str
    snapshot: str  # hash of the frozen workdir; empty when there is none
    base_dir: str  # folder of the spec file, absolute
    created_at: float
    owner: str = ""
    price_cap: Decimal | None = None  # per machine-hour; printed at apply when the spec has none
    currency: str = "USD"
    data_manifests: Mapping[str, Any] = field(default_factory=dict)  # path -> manifest of local data, taken at apply
    resumed_from: str = ""  # job whose checkpoints this one starts from (`--replace`, `resume`)
    cancel_at: float | None = None  # the user asked; `cancel_now` skips saving
    cancel_now: bool = False
    first_rental_at: float | None = None  # the ttl counts from here
    ttl_extra_s: float = 0.0  # what `extend` added
    outcome: Outcome | None = None
    reason: Reason | None = None
    detail: str = ""  # one sentence with the decisive log line
    exit_code: int | None = None
    outcome_at: float | None = None
    held_until: float | None = None  # hold_on_failure
    terminal_at: float | None = None  # nothing bills any more
    results_dir: str = ""
    wait_since: float | None = None  # since when it waits for capacity
    max_cost: Decimal | None = None  # what the user allowed beyond the config's limits
    git_commit: str = ""  # of the workdir at apply; empty outside of a repository
    replaced_n: int = 0  # runs up to this number belong to a wish that `--replace` took the place of, on a held machine
    fresh: bool = False  # and their checkpoints are not resumed from (`--replace --fresh`)


PLAIN_TASK = "t0"  # the one task of a plain job


@dataclass(frozen=True)
class Task:
    """A unit of work with its own parameters and prefixes. A plain job has one, `t0`; a sweep has its legs, a batch its
    slices, a job with replicas one for each. An early stop is `done` for the reason `stopped-early`: no bad result.
    """

    job: str
    id: str
    params: Mapping[str, str] = field(default_factory=dict)
    outcome: Outcome | None = None
    seq: int = 0  # the order in which they are wanted, from 1; 0: a plain job's one task
    items: tuple[str, ...] = ()  # of a slice
    reason: Reason | None = None
    detail: str = ""
    exit_code: int | None = None
    outcome_at: float | None = None
    cancel_at: float | None = None  # the user wants this one to end
    stop_at: float | None = None  # its reports say that it is not worth its money
    stop_why: str = ""
    kept_from: str = ""  # the earlier run's job that did it already
    results_dir: str = ""


@dataclass(frozen=True)
class Attempt:
    """One try of a job, of one machine (later several). Counted from 1."""

    job: str
    n: int
    opened_at: float


@dataclass(frozen=True)
class Rental:
    """The durable intent for one machine. Its id is also its tag and its name at the provider."""

    id: str
    job: str
    attempt: int
    offer: Offer
    phase: RentalPhase
    end: float  # the machine's end as last confirmed or first armed
    wanted_end: float  # the end that we want; differs from `end` until every timer has confirmed
    end_reason: Reason  # ttl or budget: which of them made the end
    reserve: Decimal  # worst case still to come, in the offer's currency
    nonce: str
    created_at: float  # the intent's commit
    create_sent_at: float | None = None
    create_outcome: CreateOutcome | None = None
    provider_id: str | None = None
    machine_id: str = ""
    ready_at: float | None = None  # first proven connection
    reason: Reason | None = None  # of the destroy
    detail: str = ""
    releasing_at: float | None = None
    destroy_sent_at: float | None = None
    destroy_acked_at: float | None = None
    quiesced_at: float | None = None  # its user code can never run again
    gone_at: float | None = None  # it no longer bills
    billed_until: float | None = None
    interrupted_at: float | None = None  # notice, or death that we did not order
    tombstone_until: float | None = None
    worker: int = 0  # which of the job's machines it is; a plain job has one, 0

    @property
    def open(self) -> bool:
        """It may still bill."""
        return self.phase is not RentalPhase.GONE


@dataclass(frozen=True)
class Exit:
    """How one run ended, as the machine's agent reported it: every process of the run is dead."""

    stage: str
    rc: int
    at: float
    signalled: SignalWhy | None = None
    lost: bool = False  # the wrapper died without an exit code (memory, reboot, kill -9)


@dataclass(frozen=True)
class Cause:
    """Why a run failed, known once it is closed; `where` and `times`: what may be repeated by itself."""

    klass: str  # a class of diagnosis/signatures.yaml
    signature: str
    line: str
    rank: int | None = None
    where: Literal["no", "same", "other", "any"] = "no"
    times: int | None = None  # None: bounded by progress alone
    first: str = ""


@dataclass(frozen=True)
class Assignment:
    """One run: (task, n) on one rental. Committed with its seal before any order is sent."""

    job: str
    task: str
    n: int
    rental: str
    seal: tuple[str, ...]  # hashes of the manifests it may resume from, complete listing after quiesced
    resume_hash: str  # the manifest chosen; empty: from the start
    resume_name: str
    resume_step: int | None
    committed_at: float
    ordered_at: float | None = None
    exit: Exit | None = None
    closed_at: float | None = None  # key closed and all dead, by the agent's word
    results_at: float | None = None  # results verified at home
    results_lost: str = ""  # said when they could not be brought home
    last_step: int | None = None  # newest step durable from this run
    environment: Mapping[str, Any] = field(default_factory=dict)
    cause: Cause | None = None
    stop: str = ""  # an alarm that the spec lets end the job: why this run has to save and stop
    read_to: int = 0  # bytes of the metric's log that were read
    reported: int = 0  # reports that were found in them

    @property
    def key(self) -> str:
        return f"{self.task}.{self.n}"

    @property
    def withdrawn(self) -> bool:
        """Closed without ever having begun: nothing of it has run, and its task waits again."""
        return self.closed_at is not None and self.ordered_at is None and self.exit is None


@dataclass(frozen=True)
class CheckpointRow:
    """A checkpoint that is durable: verified in the mirror, manifest written last."""

    job: str
    task: str
    n: int
    name: str
    step: int
    hash: str
    bytes: int
    parent: str
    verified_at: float


# --- seen ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentCheckpoint:
    """One checkpoint as it lies on the machine; `mtime` tells a rewritten file of the same name and size apart."""

    name: str
    step: int
    bytes: int
    complete: bool
    mtime: float = 0.0
    why: str = ""  # why it is not complete, in the machine's words


@dataclass(frozen=True)
class AgentRun:
    """One run as the agent shows it."""

    state: Literal["queued", "setup", "smoke", "run", "exited"]
    stage: str = ""
    rc: int | None = None
    signalled: SignalWhy | None = None
    dead: bool = False
    closed: bool = False
    lost: bool = False
    staged: bool = False  # ordered ahead, and not begun
    limit_s: float | None = None  # what it may last by its task's own time and money, as the machine has it
    begun_s: float | None = None  # of one that was ordered ahead: seconds since it began
    started: float | None = None
    ended: float | None = None
    checkpoints: tuple[AgentCheckpoint, ...] = ()


@dataclass(frozen=True)
class Machine:
    """What the machine itself says, and how well we reach it."""

    connected: bool
    proven: bool = False  # it answered with the rental's nonce under the pinned key
    lost_at: float | None = None  # when the kept connection broke, or the first attempt failed
    failed_awake_s: float = 0.0  # awake time of failed attempts since the last success, gap or change of network
    failures: int = 0
    trouble: str = ""  # the last failure in words: refused, timeout, key not accepted, ...
    epoch_refused: bool = False  # it has met a newer controller
    end: float | None = None  # the deadline file
    end_confirmed: bool = False
    notice: Notice | None = None
    supervisor: bool = False
    boot_id: str = ""
    runs: Mapping[str, AgentRun] = field(default_factory=dict)


@dataclass(frozen=True)
class Sight:
    """What the provider says of one rental."""

    instance: Instance | None = None  # newest sighting of the machine, by listing or point-get
    seen_at: float | None = None
    absent_count: int = 0  # complete listings in a row, of this process, without it
    absent_span_s: float = 0.0
    others: tuple[Resource, ...] | Unknown = Unknown("not listed yet")  # disks, addresses under the tag
    others_absent_count: int = 0
    duplicates: tuple[Instance, ...] = ()  # further machines with the same tag
    got: Instance | Literal["missing"] | Unknown = Unknown("not asked yet")  # newest point-get
    got_at: float | None = None


@dataclass(frozen=True)
class Trouble:
    """An action that keeps failing: what, how often, and whether repeating can help."""

    action: str  # the action's key
    count: int
    first_at: float
    detail: str
    fatal: Reason | None = None  # a class that ends the job: config, data, provider ...


@dataclass(frozen=True)
class RentalFacts:
    """One rental: the stored row, and what is seen of it."""

    rental: Rental
    caps: Caps
    sight: Sight = Sight()
    machine: Machine = Machine(connected=False)
    spent: Decimal = Decimal(0)


@dataclass(frozen=True)
class Facts:
    """Everything that one decision about one job may look at."""

    now: float
    job: Job
    tasks: tuple[Task, ...]
    rentals: tuple[RentalFacts, ...]
    assignments: tuple[Assignment, ...]
    checkpoints: tuple[CheckpointRow, ...]  # durable, of this job
    mirror_listed: Mapping[str, float] = field(default_factory=dict)  # task -> when its complete listing began
    offers: tuple[Offer, ...] | Unknown | None = None  # None: not asked for
    offers_at: float | None = None
    resting: Mapping[str, str] = field(default_factory=dict)  # what rests -> why: keys of `placement`
    troubles: Mapping[str, Trouble] = field(default_factory=dict)
    prepared: frozenset[str] = frozenset()  # "<rental>/<task>.<n>": code, data and resume point are verified there
    save_s: float = 0.0  # how long bringing home what is still on the machine would take, at the measured rate
    passed_over: frozenset[str] = frozenset()  # hashes of checkpoints that look unfinished beside their neighbours
    collected_at: Mapping[str, float] = field(default_factory=dict)  # rental -> when results were last brought home
    running_since: Mapping[str, float] = field(default_factory=dict)  # "<task>.<n>" -> when its program was first seen
    begun: Mapping[str, float] = field(default_factory=dict)  # "<task>.<n>" -> when what was ordered ahead began
    steps_seen: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # "<task>.<n>" -> first, furthest step
    checkpoints_left: frozenset[str] = frozenset()  # "<task>.<n>" with complete checkpoints not yet durable
    items: Mapping[str, str] = field(
        default_factory=dict
    )  # of a batch, that are over: item -> why it failed, empty: done
    marked: Mapping[str, int] = field(default_factory=dict)  # "<task>.<n>" -> items said to be done that are not home
    exhausted: bool = False  # a search has drawn every combination that there is
    machines_left: int | None = None  # machines that may still be rented by the config's limit, None: no limit
    store_until: Mapping[str, float] = field(default_factory=dict)  # "<rental>/<run>" -> when its access is renewed
    limits_left: Decimal | None = None  # what the config's limits still allow, None: no limit
    cut_off: bool = False  # no target and no provider answers: we are the ones cut off
    brake: bool = False  # too many losses at once: no absence, orphan or unreachable decision
    ssh_dark: bool = False  # several machines should answer and none does: a network that blocks SSH, not bad machines
    settled: bool = True  # False after a start or a sleep, until the regions of its machines were looked at once


@dataclass(frozen=True)
class Work:
    """How long the job is expected to take, for comparing offers by what they cost in the end; ends nothing."""

    run_s: float  # of the program itself, without what losses make it do again
    startup_s: float  # from the order to the program's start, on every machine: boot, data, setup
    rework_s: float  # what one reclaim makes it do again, besides another startup
    run_on: Mapping[str, float] = field(default_factory=dict)  # "<class>:<cards>" -> measured run_s there
    reclaims: Mapping[str, float] = field(default_factory=dict)  # provider -> seen reclaims of a spot machine an hour
    reclaims_per_h: float = 0.0  # where none were seen
    in_bytes: int = 0  # of data that every machine is brought


@dataclass(frozen=True)
class Policy:
    """What the spec and the defaults ask of this job; made by `policy.policy_of`."""

    ask: Ask
    spot: Literal["auto", "always", "never"]
    providers: tuple[str, ...]
    price_cap: Decimal | None
    budget: Decimal | None
    ttl_s: float
    grace_s: float
    retry_max: int
    retry_codes: frozenset[int]
    resumable: bool
    checkpoints: bool  # the spec declares checkpoints, or run names GPUJOB_RESUME_FROM
    wait_s: float
    hold_s: float
    serve: bool = False
    store: bool = False  # checkpoints are mirrored to an object store, by the machine itself
    homeless: int = 0  # bytes of a checkpoint too large to be mirrored here unasked: then spot needs an object store
    results: bool = True  # artifacts: none turns it off
    results_on: frozenset[str] = frozenset({"success", "failure"})
    unreachable_after_s: float = 1200.0  # 20 min: a reboot or a network's bad quarter of an hour is no loss
    absence_count: int = 4
    absence_span_s: float = 120.0
    hook_s: float = 1800.0  # the boot hook's own end when nobody confirmed
    release_margin_s: float = 600.0  # billed time that a slow release may add; part of the reserve
    no_progress_max: int = 3
    every_s: float = 0.0  # how often the job says that it saves; 0: it does not say
    vram_gb: float = 0.0  # the least memory of one card that holds the model; 0: unknown
    vram_more_gb: float = 0.0  # what every further card needs for itself
    data_regions: frozenset[str] = frozenset()  # of the data: REGION binds all offers, PROVIDER/REGION its own
    work: Work | None = None
    crew: Crew | None = None  # of a job of many tasks
    finish_by: float | None = None  # UTC; steers spot against on-demand, ends nothing
    currency: str = ""  # of price_cap and budget; empty: that of every offer
    rates: Mapping[str, Decimal] = field(default_factory=dict)  # currency -> what one unit is worth in `currency`
    move_on: frozenset[str] = frozenset()  # kinds of alarms after which the work goes on on another machine

    def worth(self, currency: str) -> Decimal | None:
        """What one unit of `currency` is in the job's own; None without a rate."""
        return Decimal(1) if currency == self.currency or not self.currency else self.rates.get(currency)


@dataclass(frozen=True)
class Condition:
    """Something true of the job now, for people: PROVISIONING because..., next..."""

    state: str
    why: str = ""
    next: str = ""


@dataclass(frozen=True)
class Decision:
    """What to do now, when to look again, and why."""

    actions: tuple[Any, ...]  # of `actions.Action`
    wake_at: float
    condition: Condition
    why: tuple[str, ...] = ()
