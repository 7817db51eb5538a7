"""Every sequence of provider answers up to a depth, on the smallest job: no sample, all of them.

A run asks for an answer at each call that matters (create, and the lists, gets and destroys while a machine may exist).
The first `depth` of them, counted from the create (`birth`) or from the first destroy (`death`), are enumerated like
the digits of a number whose bases differ; the others are honest. So the runs are exactly the leaves of the tree, each
visited once, and a story can be repeated from its list of answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from sim_box import Program
from sim_controller import Killed
from sim_faults import Faults
from sim_swarm import Result, run_seed, small
from sim_time import T0
from sim_world import Wish

OK, KILLED = "ok", "killed"
#: What each call can answer. `killed`: the company has done it, and the controller dies before the answer is stored.
ANSWERS: dict[str, tuple[str, ...]] = {
    "create": (
        OK, "create-refused", "create-lost-unmade", "create-lost-made", "create-twice", "create-late-seen", KILLED,
    ),
    "list": (OK, "list-error", "list-flicker", "list-stale"),
    "get": (OK, "get-error", "get-missing"),
    "destroy": (OK, "destroy-error-undone", "destroy-error-done", "destroy-ignored", "destroy-missing-lie", KILLED),
}  # fmt: skip
FIRST = {"create-refused": "create", "list-error": "list", "get-error": "get", "destroy-busy": "destroy"}
LAST = {"create-lost-made": "create", "destroy-error-done": "destroy"}  # asked for when the effect has taken place
OPENS = {"birth": "create", "death": "destroy"}  # the call from which on answers are enumerated
CLOUDS = ("aurora", "corona", "flare")  # dead for good and listed so; never known dead; repeatable creates
CALM_S = 7200.0


@dataclass
class Chooser:
    """The digits of one run: `taken` are the choices made, with how many there were at each."""

    prefix: tuple[int, ...]
    depth: int
    taken: list[tuple[int, int]] = field(default_factory=list)

    def pick(self, options: int) -> int:
        at = len(self.taken)
        if at >= self.depth:
            return 0
        chosen = self.prefix[at] if at < len(self.prefix) else 0
        self.taken.append((chosen, options))
        return chosen

    def next_prefix(self) -> tuple[int, ...] | None:
        """The digits of the run after this one; None after the last."""
        digits = list(self.taken)
        while digits and digits[-1][0] + 1 >= digits[-1][1]:
            digits.pop()
        if not digits:
            return None
        return (*(chosen for chosen, _ in digits[:-1]), digits[-1][0] + 1)


class Scripted(Faults):
    """Faults that come from a chooser instead of from chance."""

    def __init__(self, chooser: Chooser, scope: str) -> None:
        super().__init__(random.Random(0), {}, T0 + CALM_S)
        self.chooser, self._opens = chooser, OPENS[scope]
        self.said: list[str] = []
        self._answer: dict[str, str] = {}
        self._open = False

    def hits(self, kind: str, now: float) -> bool:
        call = FIRST.get(kind)
        if call is not None:
            self._answer[call] = self._choose(call)
        group = kind.partition("-")[0]
        answer = self._answer.get(group, OK)
        if LAST.get(kind) == group and answer == KILLED:
            self._answer[group] = OK
            raise Killed(f"in {group}")
        hit = answer == kind
        if hit:
            self.marks[kind, "scope"] += 1
        return hit

    def _choose(self, call: str) -> str:
        if call == self._opens:
            self._open = True
        elif not self._open:
            return OK
        answers = ANSWERS[call]
        before = len(self.chooser.taken)
        answer = answers[self.chooser.pick(len(answers))]
        if len(self.chooser.taken) > before:
            self.said.append(f"{call}: {answer}")
        return answer


def run_scope(prefix: tuple[int, ...], scope: str, depth: int, cloud: str) -> tuple[Result, Chooser]:
    """The run whose first answers are these."""
    chooser = Chooser(prefix, depth)
    faults = Scripted(chooser, scope)
    wish = Wish("tiny", Program(work_s=20.0, setup_s=2.0, every_s=8.0, save_s=1.0), T0 + 1, {"ttl": "1h"})
    result = run_seed(11, faults=faults, clouds=(cloud,), jobs=[wish], restart_s=(1.0,))
    result.how = f" --scopes {depth} ({scope} at {cloud}: {', '.join(faults.said)})"
    return result, chooser


def under(first: tuple[int, ...], scope: str, depth: int, cloud: str) -> Iterator[Result]:
    """All runs whose answers begin with `first`."""
    prefix: tuple[int, ...] | None = first
    while prefix is not None and prefix[: len(first)] == first:
        result, chooser = run_scope(prefix, scope, depth, cloud)
        yield result
        prefix = chooser.next_prefix()


def _all(work: tuple[tuple[int, ...], str, int, str]) -> list[Result]:
    return [small(result) for result in under(*work)]


def enumerate_scopes(depth: int, jobs: int, clouds: tuple[str, ...] = CLOUDS) -> Iterator[Result]:
    """Every run of that depth of both scopes at each company, in pieces of equal first answers."""
    work = [
        ((first,), scope, depth, cloud)
        for cloud in clouds
        for scope, opens in OPENS.items()
        for first in range(len(ANSWERS[opens]))
    ]
    with ProcessPoolExecutor(jobs) as pool:
        for results in pool.map(_all, work):
            yield from results
