"""The last prices of every provider, with their date, so that plans and offers work without a network.

Rules: one small file for each provider and question, replaced whole; a file that cannot be written or read is no
prices, never an error of the verb that asked. The controller keeps its own in the books; the newer of the two counts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from orchestrator.home import Home
from orchestrator.store.rows import offer_of, offer_text, plain, text
from providers.base import Ask, Offer

KEEP_S = 30 * 86_400.0  # a price of last month is no basis of a plan

Known = tuple[float, tuple[Offer, ...]]


def key_of(ask: Ask) -> str:
    """The text under which the answer to an ask is kept, here and in the books."""
    return text(plain(ask))


def remember(home: Home, provider: str, ask: Ask, offers: Sequence[Offer], now: float) -> None:
    """Keep an answer as of `now`, and forget those of last month."""
    folder = _folder(home)
    path = _path(home, provider, ask)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    document = f'{{"at":{now!r},"offers":[{",".join(offer_text(offer) for offer in offers)}]}}'
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        half.write_text(document, encoding="utf-8")
        os.replace(half, path)
        for old in folder.glob("*.json"):
            if old.stat().st_mtime < now - KEEP_S:
                old.unlink(missing_ok=True)
    except OSError:
        return  # a full or read-only disk costs the next offline plan, not this answer


def recall(home: Home, provider: str, ask: Ask) -> Known | None:
    """(when, offers) of the newest kept answer to this ask; else what newer answers to other asks hold of it."""
    exact = _read(_path(home, provider, ask))
    if exact is not None:
        return exact
    found: list[Known] = []
    for path in _folder(home).glob(f"{provider}.*.json"):
        known = _read(path)
        fitting = tuple(offer for offer in known[1] if satisfies(offer, ask)) if known else ()
        if known and fitting:
            found.append((known[0], fitting))
    return max(found, key=lambda each: each[0], default=None)


def satisfies(offer: Offer, ask: Ask) -> bool:
    """Whether an offer is an answer to an ask, as far as its columns say."""
    if ask.gpus:
        gpu = any((wish.name, wish.count) == (offer.gpu, offer.gpu_count) for wish in ask.gpus)
    else:
        gpu = not offer.gpu
    return (
        gpu
        and (not ask.regions or offer.region in ask.regions)
        and ask.spot in (None, offer.spot)
        and offer.cpus >= ask.cpus_min
        and offer.memory >= ask.memory_min
        and offer.disk >= ask.disk_min
    )


def _folder(home: Home) -> Path:
    return home.state / "prices"


def _path(home: Home, provider: str, ask: Ask) -> Path:
    return _folder(home) / f"{provider}.{hashlib.sha256(key_of(ask).encode()).hexdigest()[:16]}.json"


def _read(path: Path) -> Known | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return float(document["at"]), tuple(offer_of(each) for each in document["offers"])
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError):
        return None  # absent, of another version, or cut short: as if it had never been asked
