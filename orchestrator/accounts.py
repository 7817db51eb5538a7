"""Accounts at providers: adapters by name, and one listing per account, region and tick whatever the number of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog

from orchestrator.clock import Clock
from orchestrator.credentials import provider_config
from orchestrator.home import Home
from orchestrator.messages import Listed, Message
from orchestrator.model import Rental, RentalPhase, Unknown
from orchestrator.watch import RegionWatch
from providers.base import Caps, Provider, ProviderConfig
from providers.errors import ProviderError
from providers.registry import get_provider

LIST_EVERY_S = 30.0  # steady state: every open machine is also watched over its own connection
LIST_SOON_S = 2.0  # while something is being born or released
SWEEP_EVERY_S = 300.0  # accounts with tombstones only: late births

log = structlog.get_logger()

Region = tuple[str, str, str]  # provider, account, region


class Accounts:
    """The adapters in use and their region watchers. Only the loop's thread calls it, workers call `get`."""

    def __init__(
        self,
        home: Home,
        deployment: str,
        settings: Mapping[str, Mapping[str, Any]],
        clock: Clock,
        post: Callable[[Message], None],
        make: Callable[[str, ProviderConfig], Provider] = get_provider,
    ) -> None:
        self._config = {name: provider_config(home, deployment, block) for name, block in settings.items()}
        self._default = provider_config(home, deployment, {})
        self._clock, self._post, self._make = clock, post, make
        self._made: dict[str, Provider] = {}
        self._regions: dict[Region, RegionWatch] = {}
        self._due: dict[Region, float] = {}
        self._pace: dict[Region, float] = {}  # how often each is listed now

    @property
    def configured(self) -> tuple[str, ...]:
        """What a spec without `providers` may use: every configured one, never `local`."""
        return tuple(name for name in self._config if name != "local")

    def get(self, name: str) -> Provider:
        """The adapter, made at first use. Raises what `registry.get_provider` raises."""
        if name not in self._made:
            made = self._make(name, self._config.get(name, self._default))
            return self._made.setdefault(name, made)  # of two workers one's is kept: it holds the account's rate
        return self._made[name]

    def caps(self, name: str) -> Caps:
        """What the provider can do."""
        return self.get(name).caps

    def list_due(self, rentals: Iterable[Rental], tombstones: Iterable[Rental]) -> None:
        """Ask for the listings that are due now: often where something is being born or released."""
        now = self._clock.boot()
        pace: dict[Region, float] = {}
        for rental in rentals:
            region = region_of(rental)
            steady = rental.phase is RentalPhase.LIVE and rental.ready_at is not None
            pace[region] = min(pace.get(region, LIST_EVERY_S), LIST_EVERY_S if steady else LIST_SOON_S)
        for rental in tombstones:
            pace.setdefault(region_of(rental), SWEEP_EVERY_S)
        self._pace = pace
        for region, every in pace.items():
            if now - self._due.get(region, -1e12) >= every:
                self._due[region] = now
                try:
                    self._watch(region).ask()
                except ProviderError as error:  # its package or settings went while machines are open: said, not fatal
                    unknown = Unknown(str(error), self._clock.utc())
                    self._post(Listed(*region, self._clock.utc(), unknown))

    def list_everywhere(self) -> None:
        """While the books are in doubt: all accounts, now and then, so that what they do not know is alarmed."""
        now = self._clock.boot()
        for name in (*self.configured, "local"):
            try:
                provider = self.get(name)
                for region in ((name, provider.account, each) for each in provider.regions()):
                    if now - self._due.get(region, -1e12) >= SWEEP_EVERY_S:
                        self._due[region] = now
                        self._watch(region).ask()
            except ProviderError as error:
                log.warning("not listed", provider=name, error=str(error))

    def list_now(self) -> None:
        """Forget when the last listings were: all are due."""
        self._due.clear()

    def next_due(self) -> float:
        """Boot time of the next listing, by the last `list_due`; infinity when there is nothing to list."""
        return min((self._due.get(region, -1e12) + every for region, every in self._pace.items()), default=float("inf"))

    def stop(self) -> None:
        """End the watchers."""
        for watch in self._regions.values():
            watch.stop()

    def _watch(self, region: Region) -> RegionWatch:
        if region not in self._regions:
            self._regions[region] = RegionWatch(self.get(region[0]), region[2], self._clock, self._post)
        return self._regions[region]


def region_of(rental: Rental) -> Region:
    """Where a rental is listed."""
    return rental.offer.provider, rental.offer.account, rental.offer.region
