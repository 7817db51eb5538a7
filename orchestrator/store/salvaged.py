"""Rows for machines that the books did not know: only after they were lost or put back, and only at the user's word.

Each write is in the journal. Nothing here relaxes a rule of the schema: one running machine a job, one run a number.
"""

from __future__ import annotations

from decimal import Decimal

from orchestrator.model import AgentRun, CreateOutcome, Exit, Rental, RentalPhase
from orchestrator.store.decisions import TOMBSTONE_S
from orchestrator.store.errors import StoreError
from orchestrator.store.rows import build_all, exit_text, money, offer_text, text
from orchestrator.store.wishes import Wishes


class Salvage(Wishes):
    """Making rows again."""

    def name_taken(self, name: str, run: int) -> bool:
        """Whether a job cannot be stored under this name and run."""
        return self._one("name_is_taken", name=name, run=run) is not None

    def all_rentals(self) -> tuple[Rental, ...]:
        """Every rental that these books ever opened."""
        return build_all(Rental, self._rows("all_rentals"))

    def restore_rental(self, rental: Rental, now: float) -> None:
        """A machine that is there is in the books again, as `live`; without `provider_id` (only its disk or address
        is left) as an intent whose create was sent.
        """
        seen = rental.provider_id is not None
        with self.transaction():
            self._run("restore_attempt", job=rental.job, n=rental.attempt, now=rental.created_at)
            offer = rental.offer
            self._run(
                "restore_rental", id=rental.id, job=rental.job, attempt=rental.attempt, provider=offer.provider,
                account=offer.account, region=offer.region, offer=offer_text(offer),
                phase=(RentalPhase.LIVE if seen else RentalPhase.INTENT).value, end=rental.end,
                end_reason=rental.end_reason.value, reserve=money(rental.reserve), nonce=rental.nonce,
                epoch=self.epoch, created_at=rental.created_at,
                create_outcome=(CreateOutcome.MADE if seen else CreateOutcome.AMBIGUOUS).value,
                provider_id=rental.provider_id, machine_id=rental.machine_id, ready_at=rental.ready_at,
            )  # fmt: skip
            said = f"{offer.provider} {rental.provider_id or 'without a machine'}, attempt {rental.attempt}"
            self.add_journal(now, "restore_rental", said, job=rental.job, rental=rental.id)

    def restore_run(self, rental: Rental, task: str, n: int, run: AgentRun, seal: tuple[str, ...], now: float) -> bool:
        """A run that the machine's agent tells of; True when the books did not have it."""
        ended = Exit(
            run.stage or run.state, 137 if run.rc is None else run.rc, run.ended or now, run.signalled, run.lost
        )
        with self.transaction():
            made = self._run(
                "restore_run", job=rental.job, task=task, n=n, rental=rental.id, seal=text(seal),
                at=run.started or now, exit=exit_text(ended) if run.dead else None,
                closed_at=now if run.dead and run.closed else None,
            )  # fmt: skip
            if made:
                self.add_journal(now, "restore_run", f"{task}.{n} {run.state}", job=rental.job, rental=rental.id)
        return made > 0

    def restore_end(self, rental: str, end: float, reserve: Decimal, now: float) -> None:
        """The machine's own word on its end stands."""
        with self.transaction():
            self._run("restore_end", id=rental, end=end, reserve=money(reserve))
            self.add_journal(now, "restore_end", f"end={end}", job=self.rental(rental).job, rental=rental)

    def restore_clock(self, job: str, first_rental_at: float, ttl_extra_s: float) -> None:
        """From when the job's ttl counts."""
        with self.transaction():
            self._run("restore_clock", job=job, first_rental_at=first_rental_at, ttl_extra_s=ttl_extra_s)

    def extend_tombstone(self, rental: str, now: float) -> None:
        """A gone rental is looked for again: its machine was seen alive."""
        with self.transaction():
            self._run("extend_tombstone", id=rental, until=now + TOMBSTONE_S)
            self.add_journal(now, "extend_tombstone", "seen alive", job=self.rental(rental).job, rental=rental)

    def rental_named(self, name: str) -> Rental:
        """A rental by its id, or by the provider's id of its machine; `StoreError` when there is none."""
        row = self._one("rental_of_instance", provider_id=name)
        if row is not None and self._one("rental", id=name) is None:
            return self.rental(row["id"])
        if self._one("rental", id=name) is None:
            raise StoreError(f"the books have no rental {name}, and no machine of that id; `gpujob audit` lists both")
        return self.rental(name)
