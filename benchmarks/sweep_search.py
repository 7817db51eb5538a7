"""ASHA against a full random search on synthetic curves. Bars: the best within 2 %, at most 45 % of the steps.

    ./dev bench sweep_search [SEEDS]

The real rules (`orchestrator/early_stop.py`) judge 81 legs of 81 steps, with eta 3 and min_reports 9. Leg i reports
loss(t) = a + (1 - a) * (t + 1)^-b + 0.01 * N(0, 1) after step t, with a ~ U(0.05, 0.5) and b ~ U(0.3, 1.2). So many
workers take a leg each from the head of a queue, make one step a tick and ask for verdicts after every tick. With
reclaims each worker is lost with a chance of 2 % a tick: its leg goes back to the head of the queue, goes on from its
newest checkpoint (one every 5 steps), and reports the lost steps again; they count as steps.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections import deque
from dataclasses import dataclass, field, replace

from _measure import Figure, show

from orchestrator.early_stop import Rule, stops
from orchestrator.legs import Leg, LegState, Report

STEPS = CONFIGURATIONS = 81
RULES = {"asha": Rule("asha", min_reports=9, eta=3), "median": Rule("median", min_reports=9)}
CHECKPOINT_EVERY = 5
FAR, MUCH = 1.02, 0.45  # the bars
SEEDS = 20


def curves(seed: int) -> list[list[float]]:
    """The losses after steps 1 to 81 of every configuration."""
    chance = random.Random(seed)
    found = []
    for _ in range(CONFIGURATIONS):
        a, b = chance.uniform(0.05, 0.5), chance.uniform(0.3, 1.2)
        found.append([a + (1 - a) * (t + 1) ** -b + 0.01 * chance.gauss(0, 1) for t in range(1, STEPS + 1)])
    return found


@dataclass
class World:
    """Legs, their queue and the workers' steps."""

    losses: list[list[float]]
    rule: Rule
    reclaims: float
    chance: random.Random
    legs: dict[str, Leg] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)  # steps of each leg that are not lost
    made: int = 0  # all steps, also those that were done again

    def run(self, workers: int) -> None:
        """Until every leg is over."""
        names = [f"{number:02d}" for number in range(len(self.losses))]
        self.legs = {name: Leg(name, name) for name in names}
        self.done = dict.fromkeys(names, 0)
        queue = deque(names)
        tick = 0
        while any(not leg.state.over for leg in self.legs.values()):
            tick += 1
            running = [leg.id for leg in self.legs.values() if leg.state is LegState.RUNNING]
            while queue and len(running) < workers:
                running.append(queue.popleft())
            for name in running:
                self._step(name, tick)
            for name in stops(self.rule, "minimize", self.legs.values()):
                self.legs[name] = replace(self.legs[name], state=LegState.STOPPED)
                if name in queue:
                    queue.remove(name)
            for name in running:
                if self.legs[name].state is LegState.RUNNING and self.chance.random() < self.reclaims:
                    self.done[name] -= self.done[name] % CHECKPOINT_EVERY
                    self.legs[name] = replace(self.legs[name], state=LegState.WAITING)
                    queue.appendleft(name)

    def _step(self, name: str, tick: int) -> None:
        self.made += 1
        self.done[name] += 1
        step, leg = self.done[name], self.legs[name]
        report = Report(step, self.losses[int(name)][step - 1], float(tick))
        state = LegState.DONE if step == STEPS else LegState.RUNNING
        self.legs[name] = replace(leg, state=state, reports=(*leg.reports, report))

    @property
    def best(self) -> float:
        """The least final loss of the legs that came to their end."""
        finals = [leg.last for leg in self.legs.values() if leg.state is LegState.DONE]
        return min(report.value for report in finals if report is not None)


def compare(rule: str, workers: int, reclaims: float, seeds: int) -> tuple[Figure, Figure]:
    """(loss against that of random search, share of its steps), each over all seeds."""
    losses, steps = [], []
    for seed in range(seeds):
        every = curves(seed)
        world = World(every, RULES[rule], reclaims, random.Random(seed))
        world.run(workers)
        losses.append(world.best / min(curve[-1] for curve in every))
        steps.append(world.made / (CONFIGURATIONS * STEPS))
    name = f"{rule}, {workers} workers" + (f", {reclaims:.0%} reclaims a step" if reclaims else "")
    loss, share = statistics.mean(losses), statistics.mean(steps)
    barred = rule == "asha"
    print(f"{name}: mean loss {loss:.4f} x the best, mean steps {share:.1%}", file=sys.stderr)
    return (
        Figure(f"{name}: mean loss / best", (loss,), "x", FAR if barred else None),
        Figure(f"{name}: mean steps", (share,), "share", MUCH if barred else None),
    )


def main() -> int:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    cases = [("asha", workers, 0.0) for workers in (1, 4, 8, 27, 81)] + [("asha", 8, 0.02), ("median", 8, 0.0)]
    return show([figure for case in cases for figure in compare(*case, seeds)])


if __name__ == "__main__":
    sys.exit(main())
