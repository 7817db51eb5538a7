"""The writes of a decision: committed together, in one transaction, before any effect of that decision starts.

Every phase step is checked against `transitions`, the budget against what is spent and reserved, a new run against the
runs before it. A write that breaks a rule raises and nothing of its decision is stored. A write whose effect is already
stored changes nothing and leaves no line in the journal.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from orchestrator import actions
from orchestrator.budget import cost
from orchestrator.model import CreateOutcome, Rental, RentalPhase
from orchestrator.store.errors import OverBudget
from orchestrator.store.journal import Journal
from orchestrator.store.reads import NO_RATES, Reads
from orchestrator.store.rows import exit_text, money, offer_text, plain, text
from orchestrator.transitions import IllegalStep, check_step

TOMBSTONE_S = 7 * 86_400.0  # failed creates surfaced hours later (digitalocean/api-v2#104)
HOOK_S = 1800.0  # an unseen machine's own end: its boot hook acts that long after its boot
ALARM_EVERY_S = 3600.0  # one alarm of a kind per job and rental
MILESTONES = (actions.OpenRental, actions.StoreGone, actions.FinishJob)
_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"  # base32, so that 12 letters carry 60 random bits


def new_rental_id(deployment: str) -> str:
    """`gj-<deployment>-<12 letters>`: unique for ever, and a valid name at every provider."""
    return f"gj-{deployment}-" + "".join(secrets.choice(_ID_LETTERS) for _ in range(12))


def new_nonce() -> str:
    """What a machine must show before anything is sent to it; 128 random bits."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Applied:
    """What a decision's writes made: the rentals opened, the alarms that were not raised within the last hour."""

    opened: tuple[Rental, ...] = ()
    alarms: tuple[actions.Alarm, ...] = ()
    changed: int = 0  # writes that changed something


class Decisions(Reads, Journal):
    """`apply`, and one small method for each write."""

    #: Called with the count of milestones after a commit that added one; `books` keeps it to recognise old copies.
    note_milestones: Callable[[int], None] | None = None

    def apply(
        self,
        job: str,
        writes: Sequence[actions.Write],
        now: float,
        *,
        budget: Decimal | None = None,
        rates: Mapping[str, Decimal] = NO_RATES,
        new_id: Callable[[], str] | None = None,
        nonce: Callable[[], str] = new_nonce,
    ) -> Applied:
        """Commit all writes of one decision about `job`, in order, or none of them.

        `budget` is in the job's currency and `rates` say what one unit of another currency is worth in it; no budget is
        no limit. Raises `IllegalStep`, `OverBudget`, `Fenced` or another `StoreError`, each with nothing written.
        """
        opened: list[Rental] = []
        alarms: list[actions.Alarm] = []
        changed = 0
        with self.transaction():
            for write in writes:
                if isinstance(write, actions.OpenRental):
                    rental = new_id() if new_id else new_rental_id(self.deployment())
                    opened.append(self._open_rental(job, write, now, rental, nonce()))
                    self._within(job, now, budget, rates)
                elif isinstance(write, actions.WantEnd):
                    if not self._want_end(job, write, now, budget, rates):
                        continue
                elif isinstance(write, actions.Alarm):
                    if not self._alarm(job, write, now):
                        continue
                    alarms.append(write)
                elif not self._write(job, write, now):
                    continue
                changed += 1
        if self.note_milestones is not None and any(isinstance(write, MILESTONES) for write in writes):
            self.note_milestones(self.milestones())
        return Applied(tuple(opened), tuple(alarms), changed)

    def _write(self, job: str, write: actions.Write, now: float) -> bool:
        """True when it changed something; then it is in the journal as well."""
        match write:
            case actions.RecordInstance():
                changed = self._name_instance(
                    self._of(job, write.rental), write.instance.ref.id, write.instance.machine_id
                )
            case actions.Release():
                changed = self._release(self._of(job, write.rental), write, now)
            case actions.StoreQuiesced():
                changed = self._run("quiesced", id=self._of(job, write.rental).id, now=now) > 0
            case actions.StoreGone():
                changed = self._gone(self._of(job, write.rental), write, now)
            case actions.StoreReady():
                changed = self._run("ready", id=self._of(job, write.rental).id, now=now) > 0
            case actions.ConfirmEnd():
                changed = self._run("confirm_end", id=self._of(job, write.rental).id) > 0
            case actions.CommitAssignment():
                changed = self._assign(job, write, now)
            case actions.ResumeOther():
                changed = self._run(
                    "resume_other", job=job, task=write.task, n=write.n, seal=text(write.seal),
                    resume_hash=write.resume_hash, resume_name=write.resume_name, resume_step=write.resume_step,
                ) > 0  # fmt: skip
            case actions.StoreExit():
                changed = self._run("store_exit", job=job, task=write.task, n=write.n, exit=exit_text(write.exit)) > 0
            case actions.StoreBegun():
                changed = self._run("begun", job=job, task=write.task, n=write.n, at=write.at) > 0
            case actions.StoreResultsLost():
                changed = self._run("results_lost", job=job, task=write.task, n=write.n, detail=write.detail) > 0
            case actions.SetOutcome():
                changed = self._set_outcome(job, write, now)
            case actions.SetTaskOutcome():
                changed = self._run(
                    "set_task_outcome", job=job, task=write.task, outcome=write.outcome.value,
                    reason=write.reason.value, detail=write.detail, exit_code=write.exit_code, now=now,
                ) > 0  # fmt: skip
            case actions.ItemsOver():
                rows = {"job": job, "task": write.task, "state": write.state, "detail": write.detail, "at": now}
                changed = sum(self._run("add_item", item=item, **rows) for item in write.items) > 0
            case actions.Hold():
                changed = self._run("hold_job", job=job, until=write.until) > 0
            case actions.FinishJob():
                changed = self._finish(job, now)
            case actions.WaitForCapacity():
                changed = self._run("stop_waiting" if write.clear else "wait_for_capacity", job=job, now=now) > 0
            case _:
                raise TypeError(f"{type(write).__name__} is not a write")
        if changed:
            self._note(job, write, now)
        return changed

    def _note(self, job: str, write: actions.Write, now: float) -> None:
        document = plain(write)
        document.pop("instance", None)  # the provider's whole answer: too long for a line
        rental = getattr(write, "rental", "")
        self.add_journal(now, _kind(write), _words(document), job=job, rental=rental, data=document)

    def _of(self, job: str, rental: str) -> Rental:
        """The rental, which must be this job's: a decision about one job never touches another's machine."""
        row = self.rental(rental)
        if row.job != job:
            raise IllegalStep(f"{rental} belongs to {row.job}, not to {job}")
        return row

    def _open_rental(self, job: str, write: actions.OpenRental, now: float, rental: str, nonce: str) -> Rental:
        if self.job(job).outcome is not None:
            raise IllegalStep(f"{job} has its outcome: no machine is rented for it any more")
        attempt = self._rows("open_attempt", job=job, now=now)[0]["n"]
        offer = write.offer
        self._run(
            "add_rental", id=rental, job=job, attempt=attempt, worker=write.worker,
            provider=offer.provider, account=offer.account, region=offer.region, offer=offer_text(offer),
            end=write.end, end_reason=write.end_reason.value,
            reserve=money(write.reserve), nonce=nonce, epoch=self.epoch, now=now,
        )  # fmt: skip
        self._run("note_first_rental", job=job, now=now)
        price = f"{money(offer.hourly)} {offer.currency}/h"
        said = f"{offer.provider} {offer.region} {offer.key} at {price}, attempt {attempt}"
        data = {"end": write.end, "end_reason": write.end_reason, "reserve": money(write.reserve)}
        self.add_journal(now, "open_rental", said, job=job, rental=rental, data=data)
        return self.rental(rental)

    def _within(self, job: str, now: float, budget: Decimal | None, rates: Mapping[str, Decimal]) -> None:
        """BudgetHolds: checked inside the transaction that raises the sum."""
        if budget is None:
            return
        spent, reserved = self.spent(job, rates), self.reserved(job, now, rates)
        if spent + reserved > budget:
            raise OverBudget(
                f"{job}: {money(spent)} spent and {money(reserved)} reserved would pass the budget of {money(budget)}; "
                "`gpujob resume JOB --budget MONEY` raises it"
            )

    def _want_end(
        self, job: str, write: actions.WantEnd, now: float, budget: Decimal | None, rates: Mapping[str, Decimal]
    ) -> bool:
        """Raises the reserve at once; a lower one waits in `wanted_reserve` for the timers' word (`ConfirmEnd`)."""
        old = self._of(job, write.rental)
        if old.phase is RentalPhase.GONE or (old.phase is RentalPhase.RELEASING and write.end > old.wanted_end):
            raise IllegalStep(f"{old.id} is {old.phase}: its end is not moved any more")
        if (old.wanted_end, old.end_reason) == (write.end, write.end_reason) and old.reserve >= write.reserve:
            return False
        self._run(
            "want_end",
            id=old.id,
            end=write.end,
            end_reason=write.end_reason.value,
            reserve=money(max(old.reserve, write.reserve)),
            wanted_reserve=money(write.reserve),
        )
        if write.reserve > old.reserve:
            self._within(job, now, budget, rates)
        self._note(job, write, now)
        return True

    def _name_instance(self, old: Rental, provider_id: str, machine_id: str, made: bool = False) -> bool:
        """Store the provider's id; of two machines with one tag the recorded one stays (the other is a duplicate)."""
        if old.provider_id is not None:
            return False
        live = old.phase is RentalPhase.INTENT
        if live:
            check_step(old.phase, RentalPhase.LIVE, None)
        outcome = CreateOutcome.MADE if made or old.create_outcome is None else old.create_outcome
        self._run(
            "name_instance",
            id=old.id,
            phase=(RentalPhase.LIVE if live else old.phase).value,
            provider_id=provider_id,
            machine_id=machine_id or old.machine_id,
            create_outcome=outcome.value,
        )
        return True

    def _release(self, old: Rental, write: actions.Release, now: float) -> bool:
        check_step(old.phase, RentalPhase.RELEASING, write.reason)
        changed = self._run(
            "release",
            id=old.id,
            reason=write.reason.value,
            detail=write.detail,
            interrupted=write.interrupted,
            now=now,
        )
        return changed > 0

    def _gone(self, old: Rental, write: actions.StoreGone, now: float) -> bool:
        """Frees the reserve; a create that was sent and never seen keeps what its boot hook's time may cost."""
        if old.phase is RentalPhase.GONE:
            return False
        check_step(old.phase, RentalPhase.GONE, None)
        refused = old.create_outcome is CreateOutcome.REFUSED
        unseen = old.create_sent_at is not None and old.provider_id is None and not refused and write.tombstone
        kept = min(old.reserve, cost(HOOK_S, old.offer)) if unseen else Decimal(0)
        until = now + TOMBSTONE_S if write.tombstone else None
        return self._run("gone", id=old.id, now=now, reserve=money(kept), tombstone_until=until) > 0

    def _assign(self, job: str, write: actions.CommitAssignment, now: float) -> bool:
        rental = self._of(job, write.rental)
        row = self._one("assignment", job=job, task=write.task, n=write.n)
        if row is not None:
            if row["rental"] == write.rental:
                return False
            raise IllegalStep(f"{job} {write.task}.{write.n} is committed on {row['rental']} already")
        if rental.phase is not RentalPhase.LIVE or rental.quiesced_at is not None:
            raise IllegalStep(f"{rental.id} is {rental.phase}: nothing is started on it")
        for before in self._rows("running_before", job=job, task=write.task):
            raise IllegalStep(f"run {write.task}.{before['n']} on {before['rental']} may still be running")
        self._run(
            "add_assignment", job=job, task=write.task, n=write.n, rental=write.rental, seal=text(write.seal),
            resume_hash=write.resume_hash, resume_name=write.resume_name, resume_step=write.resume_step, now=now,
        )  # fmt: skip
        return True

    def _set_outcome(self, job: str, write: actions.SetOutcome, now: float) -> bool:
        changed = self._run(
            "set_outcome",
            job=job,
            outcome=write.outcome.value,
            reason=write.reason.value,
            detail=write.detail,
            exit_code=write.exit_code,
            now=now,
        )
        if changed:
            self._run(
                "set_task_outcomes", job=job, outcome=write.outcome.value, reason=write.reason.value,
                detail=write.detail, exit_code=write.exit_code, now=now,
            )  # fmt: skip
        return changed > 0

    def _finish(self, job: str, now: float) -> bool:
        """FinishClean: a job without an outcome, or with a machine that may bill, is not over."""
        if self.job(job).outcome is None:
            raise IllegalStep(f"{job} has no outcome yet")
        for row in self._rows("unfinished_rentals", job=job):
            raise IllegalStep(f"{job}: {row['id']} may still bill")
        return self._run("finish_job", job=job, now=now) > 0

    def _alarm(self, job: str, write: actions.Alarm, now: float) -> bool:
        kind = f"alarm:{write.kind}"
        if self._rows("alarmed_since", kind=kind, job=job, rental=write.rental, since=now - ALARM_EVERY_S):
            return False
        self.add_journal(now, kind, write.text, job=job, rental=write.rental)
        return True


def _kind(write: actions.Write) -> str:
    """`StoreExit` -> `store_exit`."""
    name = type(write).__name__
    return name[0].lower() + "".join(f"_{c.lower()}" if c.isupper() else c for c in name[1:])


def _words(document: Mapping[str, object]) -> str:
    """A line for people: the values that are short, without what has a column of its own."""
    shown = {key: value for key, value in document.items() if key not in {"rental", "seal", "exit"} and value != ""}
    return " ".join(f"{key}={value}" for key, value in shown.items())
