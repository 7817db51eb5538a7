"""How often to save: what an interval costs and which one costs least, from measured saves and losses. Pure.

With a loss every M seconds on average and C seconds a save, an interval T costs C/T of the time for saving and T/2 of
work done again at each loss: C/T + T/2M, which is least at T = sqrt(2 C M) (Young). Daly's further terms matter only
where M is hardly longer than C, and there nothing helps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

SAVE_MIN_S = 1.0  # the agent looks every two seconds: a shorter save is not told from none
WORTH = 0.002  # a better interval is named only where it saves at least this share of the time ...
FAR = 1.25  # ... and where it is this much longer or shorter than the one in use


@dataclass(frozen=True)
class Saving:
    """What saving costs. Seconds; shares of the run's time. `every_s` None: not declared and not measured."""

    save_s: float
    losses_per_h: float
    every_s: float | None
    best_s: float
    best_share: float
    share: float | None

    @property
    def better(self) -> bool:
        """Whether another interval is worth the trouble of changing it."""
        if self.every_s is None or self.share is None:
            return True
        far = max(self.every_s, self.best_s) / max(1e-9, min(self.every_s, self.best_s)) >= FAR
        return far and self.share - self.best_share >= WORTH


def best_interval(save_s: float, mean_life_s: float) -> float:
    """Seconds between two saves that cost least, for saves of `save_s` and a loss every `mean_life_s`."""
    return math.sqrt(2 * save_s * mean_life_s)


def share(every_s: float, save_s: float, mean_life_s: float) -> float:
    """The share of the time that saving and repeating take together; never more than all of it."""
    return min(1.0, save_s / every_s + every_s / (2 * mean_life_s))


def saving(save_s: float | None, losses_per_h: float, every_s: float | None) -> Saving | None:
    """The advice; None before a save was measured, or where nothing is ever lost."""
    if save_s is None or losses_per_h <= 0:
        return None
    save, life = max(SAVE_MIN_S, save_s), 3600.0 / losses_per_h
    best = best_interval(save, life)
    own = share(every_s, save, life) if every_s else None
    return Saving(save, losses_per_h, every_s or None, best, share(best, save, life), own)


def measured(events: Iterable[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """(median seconds of a save, median seconds between two of one run) of `checkpoint` events, in any order."""
    saves: list[float] = []
    times: dict[str, list[float]] = {}
    for event in events:
        took, at = event.get("save_s"), event.get("at")
        if isinstance(took, (int, float)) and 0 <= took < 86_400:
            saves.append(float(took))
        if isinstance(at, (int, float)):
            times.setdefault(str(event.get("run", "")), []).append(float(at))
    between = [
        later - earlier
        for each in times.values()
        for earlier, later in zip(sorted(each), sorted(each)[1:], strict=False)
        if later > earlier
    ]
    return (median(saves) if saves else None), (median(between) if between else None)
