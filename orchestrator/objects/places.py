"""From a spec's words to stores that are open: one client for each store, made again when the config changes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.objects.settings import Location, StoreSettings, locate

if TYPE_CHECKING:
    from orchestrator.home import Home
    from orchestrator.objects.base import ObjectStore


@dataclass(frozen=True)
class Place:
    """A place in an open store."""

    store: ObjectStore
    location: Location

    @property
    def settings(self) -> StoreSettings:
        """The store's entry in the config."""
        return self.location.settings


class Places:
    """Opens places. May be used by several threads; nothing is sent before a place is used."""

    def __init__(self, home: Home) -> None:
        self._home, self._lock = home, threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._stores: Mapping[str, StoreSettings] = {}
        self._open: dict[StoreSettings, ObjectStore] = {}

    def of(self, place: str) -> Place:
        """The place that a spec calls so. StoreRefused for one that no entry covers; StoreDenied for half a key."""
        with self._lock:
            location = locate(place, self._configured())
            store = self._open.get(location.settings)
            if store is None:
                from orchestrator.objects.s3 import open_store

                store = self._open[location.settings] = open_store(location.settings, self._home)
        return Place(store, location)

    def _configured(self) -> Mapping[str, StoreSettings]:
        from orchestrator.config import load_config

        try:
            info = self._home.config_file.stat()
            stamp = (info.st_mtime_ns, info.st_size)
        except FileNotFoundError:
            stamp = (0, 0)
        if stamp != self._stamp:
            self._stores, self._stamp = load_config(self._home).stores, stamp
            self._open = {}
        return self._stores
