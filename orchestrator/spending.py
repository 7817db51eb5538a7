"""What machines have cost so far, and what the config's limits leave: written and added up in the loop's thread.

What is spent is written now and then; between two writes it is still inside the reserve, so the sum is never too small.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_UP, Decimal
from typing import TYPE_CHECKING

import structlog

from orchestrator import budget
from orchestrator.limits import month_start
from orchestrator.model import Job, Rental, RentalPhase, Unknown
from providers.base import Instance
from providers.errors import ProviderError

if TYPE_CHECKING:
    from orchestrator.loop import Loop

BILL_EVERY_S = 20.0
SUM_EVERY_S = 1.0  # a sum over all machines: not in every decision

log = structlog.get_logger()


class Spending:
    """The money side of one loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._billed_at = 0.0
        self._sums: dict[str, tuple[float, Decimal]] = {}  # currency -> boot time, what counts against the limits

    def bill_due(self, rentals: Iterable[Rental]) -> None:
        """Bill all of them, if it is time."""
        boot = self._loop.clock.boot()
        if boot - self._billed_at >= BILL_EVERY_S:
            self._billed_at = boot
            self.bill_all(rentals)

    def bill_all(self, rentals: Iterable[Rental]) -> None:
        """Bill all of them now."""
        now = self._loop.clock.utc()
        with self._loop.store.transaction():  # one wait for the disk, whatever the number of machines
            for rental in rentals:
                if rental.phase is RentalPhase.GONE:
                    continue
                try:
                    self.bill(rental, now)
                except ProviderError as error:  # its package or settings went: the reserve still covers it
                    log.warning("not billed", rental=rental.id, error=str(error))

    def bill(self, rental: Rental, until: float) -> None:
        """Write what one rental has cost until then. Nothing before it was looked at, after a start or a sleep; a
        machine that is found dead then was not seen dying, and has cost its whole life at most.
        """
        loop = self._loop
        if rental.create_sent_at is None or rental.provider_id is None or not loop.observer.settled(rental):
            return
        caps, got = loop.accounts.caps(rental.offer.provider), loop.observer.of(rental.id).sight.got
        if got == "missing" or (isinstance(got, Instance) and got.status in caps.dead_statuses):
            self._bill_left(rental, until, caps.play)
            until = min(until, max(rental.end, rental.create_sent_at))
        amount = budget.cost(until - rental.create_sent_at, rental.offer)
        loop.store.bill(rental.id, "instance", amount, until, play=caps.play)

    def _bill_left(self, rental: Rental, now: float, play: bool) -> None:
        """Disks and addresses that stay behind their machine bill on until they are gone, where their price is told."""
        store, left = self._loop.store, self._loop.observer.of(rental.id).sight.others
        if isinstance(left, Unknown):
            return
        prices = (each.hourly for each in left if each.hourly is not None and each.currency == rental.offer.currency)
        hourly, before = sum(prices, Decimal(0)), store.billed(rental.id, "disk")
        if hourly:
            amount, since = before or (Decimal(0), now)
            amount += (hourly * Decimal(f"{max(0.0, now - since):.3f}") / budget.HOUR_S).quantize(budget.CENT, ROUND_UP)
            store.bill(rental.id, "disk", amount, now, play=play, since=since)

    def limits_left(self, job: Job) -> Decimal | None:
        """What the config's limits leave for this job, in its currency; play money has none."""
        loop = self._loop
        limit = loop.config.limits.per_month
        providers = job.spec.get("providers") or loop.accounts.configured
        if limit is None or job.max_cost is not None or all(loop.accounts.caps(name).play for name in providers):
            return None
        rates = loop.config.rates_to(job.currency)
        return limit.amount * rates.get(limit.currency, Decimal(1)) - self._used(job.currency)

    def forget_sums(self) -> None:
        """A decision changed a reserve: add up anew. Bills only move money from one part of the sum to the other."""
        self._sums.clear()

    def _used(self, currency: str) -> Decimal:
        """What this month's jobs have spent and reserved."""
        loop = self._loop
        at, used = self._sums.get(currency, (0.0, Decimal(0)))
        boot, now = loop.clock.boot(), loop.clock.utc()
        if currency not in self._sums or boot - at >= SUM_EVERY_S:
            used = loop.store.committed_since(month_start(now), now, currency, loop.config.rates_to(currency))
            self._sums[currency] = (boot, used)
        return used
