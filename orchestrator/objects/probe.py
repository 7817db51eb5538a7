"""Is a store there, and may we write: asked by `doctor`, `plan` and `apply` before anything is rented.

Rules: one small object is written, read back, found in a listing and removed, below the place that a spec names. An
error rents nothing. What comes back must be what was written: a proxy that answers 200 to everything is no store.
"""

from __future__ import annotations

import secrets as random
from typing import TYPE_CHECKING

from orchestrator.objects.errors import StoreRefused

if TYPE_CHECKING:
    from orchestrator.objects.base import ObjectStore
    from orchestrator.objects.settings import Location


def probe(store: ObjectStore, location: Location, *, write: bool = True) -> None:
    """Raise the StoreError that a job would meet there. `write` False: the place is only read from."""
    if not write:
        store.list(location.key("") or location.prefix)
        return
    key, data = location.key(f".gpujob-probe-{random.token_hex(8)}"), random.token_bytes(64)
    store.put(key, data)
    try:
        if store.get(key) != data:
            raise StoreRefused("it did not give back what was written", location.url, "", "is this an S3 endpoint?")
        if key not in {found.key for found in store.list(key)}:
            raise StoreRefused("its listing lacks what was just written", location.url)
    finally:
        store.delete([key])
