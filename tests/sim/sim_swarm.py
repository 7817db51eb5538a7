"""From a seed to a whole run: which companies, jobs and faults, then a faulty phase and a calm one."""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from sim_box import Program
from sim_cloud import kinds
from sim_faults import Faults, draw, draw_dense
from sim_oracle import Violation
from sim_prices import Prices
from sim_time import T0
from sim_world import Wish, World

HOUR = 3600.0
MEMORY = Path("/dev/shm")  # a commit's fsync costs nothing there


@dataclass
class Result:
    """What one seed gave."""

    seed: int
    violations: list[Violation]
    trace: str
    job_days: float
    crashes: int
    turns: int
    marks: dict[tuple[str, str], int]
    phases: dict[tuple[str, str, str], int]
    refused: int
    prices: Prices
    clouds: tuple[str, ...]
    how: str = ""  # what reproduces it, beyond the seed
    taps: list[str] = field(repr=False, default_factory=list)
    lines: list[tuple[float, str, str]] = field(repr=False, default_factory=list)


def wishes(rng: random.Random) -> list[Wish]:
    """One to three jobs: short and long, with and without checkpoints, that fail, are cancelled or extended."""
    found = []
    for number in range(rng.choice((1, 1, 1, 2, 3))):
        work = rng.choice((900.0, 3600.0, 4 * HOUR, 8 * HOUR, 10 * HOUR))
        every = rng.choice((300.0, 600.0, 1800.0))
        at = T0 + 1 + rng.choice((0.0, 0.0, 600.0, HOUR))
        spec: dict[str, object] = {"ttl": rng.choice(("12h", "12h", "24h", "3h"))}
        if rng.random() < 0.25:
            spec["budget"] = rng.choice(("6 USD", "15 USD", "40 USD"))
        if rng.random() < 0.2:
            spec["retry"] = {"max": 2}
        if rng.random() < 0.3:
            spec["artifacts"] = "none"
        fails = (work * rng.uniform(0.1, 0.9),) if rng.random() < 0.12 else ()
        again = (work * 0.5,) if rng.random() < 0.1 else ()
        save = rng.choice((2.0, 5.0, 60.0, 300.0))
        program = Program(work, rng.choice((5.0, 60.0, 400.0)), every, save, fails, again)
        wish = Wish(f"job{number}", program, at, spec)
        dice = rng.random()
        if dice < 0.12:
            wish.cancel_at = at + rng.uniform(0.2, 2 * HOUR) * rng.choice((0.001, 0.05, 1.0))
            wish.cancel_now = rng.random() < 0.3
        elif dice < 0.22:
            wish.extend_at, wish.extend_s = at + rng.uniform(60, 2 * HOUR), rng.choice((HOUR, -HOUR, 6 * HOUR))
        found.append(wish)
    return found


def dense_wishes(rng: random.Random) -> list[Wish]:
    """Several short jobs, so that every phase of a machine comes often."""
    found = []
    for number in range(rng.choice((3, 5, 8))):
        work = rng.choice((300.0, 900.0, 2400.0))
        program = Program(
            work, rng.choice((5.0, 60.0)), rng.choice((60.0, 120.0, 300.0)), rng.choice((2.0, 5.0, 60.0)),
            (work * rng.uniform(0.1, 0.9),) if rng.random() < 0.12 else (), (work * 0.5,) if rng.random() < 0.1 else (),
        )  # fmt: skip
        at = T0 + 1 + rng.uniform(0.0, 1.5 * HOUR)
        wish = Wish(f"job{number}", program, at, {"ttl": rng.choice(("1h", "3h", "12h"))})
        if rng.random() < 0.2:
            wish.spec["artifacts"] = "none"
        if rng.random() < 0.2:
            wish.spec["budget"] = "15 USD"
        dice = rng.random()
        if dice < 0.15:
            wish.cancel_at, wish.cancel_now = at + rng.uniform(0.2, 1800.0), rng.random() < 0.3
        elif dice < 0.3:
            wish.extend_at, wish.extend_s = at + rng.uniform(60, 1800.0), rng.choice((HOUR, -HOUR, 6 * HOUR))
        found.append(wish)
    return found


def run_dense(seed: int) -> Result:
    """One of the worlds of which a night is made: short jobs, two hours in which hardly anything works, then calm."""
    rng = random.Random(seed * 104_729 + 7)
    clouds = tuple(sorted(rng.sample(sorted(kinds()), rng.choice((2, 3, 6)))))
    faults = draw_dense(rng, T0, T0 + rng.choice((1, 2, 3)) * HOUR)
    result = run_seed(seed, faults=faults, clouds=clouds, jobs=dense_wishes(rng))
    result.how = " --dense"
    return result


def run_seed(seed: int, folder: Path | None = None, faults: Faults | None = None, crash_at: set[int] | None = None,
             clouds: tuple[str, ...] | None = None, jobs: list[Wish] | None = None,
             restart_s: tuple[float, ...] | None = None) -> Result:  # fmt: skip
    """The whole run of a seed; the rest replaces what the seed would draw."""
    rng = random.Random(seed * 7919 + 13)
    chosen = clouds or tuple(sorted(rng.sample(sorted(kinds()), rng.choice((1, 1, 2, 3)))))
    asked = jobs if jobs is not None else wishes(rng)
    until = T0 + rng.choice((4, 8, 12)) * HOUR
    swarm = faults or draw(rng, T0, until)
    home = Path(tempfile.mkdtemp(prefix="gpujob-sim-", dir=folder or (MEMORY if MEMORY.is_dir() else None)))
    world = World(seed, home, swarm, asked, chosen)
    world.crash_at_taps = crash_at or set()
    if restart_s:
        world.restart_s = restart_s
    try:
        world.start()
        world.run_to_end(swarm.until + 40 * HOUR)
    finally:
        world.close()
        shutil.rmtree(home, ignore_errors=True)
    turns = world.controller.turns if world.controller is not None else 0
    return Result(
        seed, world.oracle.violations, world.trace_hash(), world.oracle.prices.job_s / 86_400, world.crashes, turns,
        dict(swarm.marks), dict(swarm.phases), swarm.refused, world.oracle.prices, chosen, "", world.tap_names,
        world.lines,
    )  # fmt: skip


def small(result: Result) -> Result:
    """Without the story of a run that held: tens of thousands are sent between processes."""
    if not result.violations:
        result.lines, result.taps = [], []
    return result


def night(seed: int) -> Result:
    """Three dense worlds, then an ordinary one, whose outages and jobs last hours."""
    return small(run_seed(seed) if seed % 4 == 0 else run_dense(seed))


def story(result: Result, lines: int = 40) -> str:
    """What led to the first violation: the last lines about its rental, its machine and the controller."""
    if not result.violations:
        return ""
    first = result.violations[0]
    rental = first.who
    words = {rental}
    for _, who, what in result.lines:
        if who == rental and " was made at " in f" {what}":
            words.add(what.rsplit(" ", 1)[-1])
    about = [(at, who, what) for at, who, what in result.lines if at <= first.at + 1]
    mine = [row for row in about if row[1] in words or row[1] in ("controller", "world", "user") or "fault" in row[2]
            or not rental.startswith("gj-")]  # fmt: skip
    return "\n".join(f"{at - T0:10.1f} s  {who:22} {what}" for at, who, what in mine[-lines:])
