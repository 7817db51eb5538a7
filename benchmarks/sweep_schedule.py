"""Scheduling of sweeps: 500 legs over three simulated companies with reclaims, and 40 real legs on this host.

    ./dev bench sweep_schedule [sim|local] [LEGS [SECONDS]]

Bars: of 500 legs none is lost, none finished twice, the budget holds at every commit (checked by the simulator's oracle
after every turn of the loop), and the process stays under 150 MB with its world. 40 real legs that sleep 5 s, at
max_parallel 8 on machines of this host, take at most 1.5 times the ideal of five rounds.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/sim"), str(ROOT / "tests/e2e"), str(ROOT)]

from gpujob_world import World  # noqa: E402
from sim_sweep import checked, reclaim_often, sweep_wish, sweep_world  # noqa: E402
from sim_time import T0  # noqa: E402

LEGS, WORK_S, PARALLEL = 500, 1800.0, 100
CLOUDS = ("aurora", "borealis", "corona")
REAL, SLEEP_S, AT_ONCE = 40, 5.0, 8


def simulated(legs: int) -> None:
    """500 legs of half an hour; every four minutes one of the spot machines is taken."""
    wish = sweep_wish(legs, WORK_S, PARALLEL, f"{legs * 2} USD")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        world = sweep_world(11, Path(folder) / "home", wish, CLOUDS)
        # The config's own limit would hold it to a few machines, of which one is taken every four minutes
        config = world.home.config_file
        config.write_text(config.read_text() + f"limits: {{machines: {2 * PARALLEL}}}\n")
        try:
            world.start()
            reclaim_often(world, 240.0, T0 + 12 * 3600)
            world.run_to_end(T0 + 5 * 86_400)
            problems = checked(world, wish)
            rows = world.oracle._rows("SELECT provider, interrupted_at FROM rentals")
            (job,) = world.oracle._rows("SELECT detail, created_at, terminal_at FROM jobs")
            spent = world.oracle._rows("SELECT sum(CAST(amount AS REAL)) AS spent FROM ledger")[0]["spent"]
            runs = world.oracle._rows("SELECT count(*) AS n FROM assignments")[0]["n"]
            by = {name: sum(row["provider"] == name for row in rows) for name in CLOUDS}
        finally:
            world.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{legs} legs, {PARALLEL} at one time: {job['detail']}; {len(problems)} broken promises {problems[:3]}")
    print(f"  {runs} runs on {len(rows)} machines {by}, {sum(r['interrupted_at'] is not None for r in rows)} reclaimed")
    print(f"  {(job['terminal_at'] - job['created_at']) / 3600:.1f} h simulated, {spent:.2f} USD of {legs * 2} spent")
    print(f"  {time.monotonic() - began:.0f} s of this host; controller and world together at most {peak:.0f} MB")


def local(legs: int, sleep_s: float) -> None:
    """Legs that sleep so long, on eight machines of this host."""
    ideal = legs / AT_ONCE * sleep_s
    with tempfile.TemporaryDirectory() as folder, World(Path(folder)) as world:
        values = [str(number) for number in range(legs)]
        sweep = {"parameters": {"x": values}, "budget": "5 USD", "max_parallel": AT_ONCE}
        spec = world.spec("naps", f"sleep {sleep_s:g}", sweep=sweep, expected="5s")
        began = time.monotonic()
        world.apply(spec)
        world.cli("wait", "naps", "--for", "outcome", "--timeout", "5m", timeout=400.0)
        took = time.monotonic() - began
        pid = world.controller_pid()
        rss = next(int(line.split()[1]) / 1024 for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                   if line.startswith("VmHWM"))  # fmt: skip
        detail, machines, gaps = world.job("naps").detail, len(world.rentals("naps")), sorted(pauses(world))
    print(
        f"{legs} legs of {sleep_s:g} s on {machines} real machines: {detail}, {took:.1f} s, {took / ideal:.2f} x ideal"
    )
    print(
        f"  {gaps[len(gaps) // 2]:.2f} s from the end of a leg to the start of the next one, at most {gaps[-1]:.2f} s"
    )
    print(f"  controller at most {rss:.0f} MB")


def pauses(world: World) -> list[float]:
    """From the end of each program to the start of the next one on its machine, by the machine's own clock."""
    found = []
    for rental in world.rentals("naps"):
        lines = world.home.events(rental.job, rental.id).read_text(encoding="utf-8").splitlines()
        stages = [event for event in map(json.loads, lines) if event["t"] == "stage"]
        found += [two["at"] - one["at"] for one, two in itertools.pairwise(stages) if one["state"] == "end"]
    return found


def main() -> None:
    what = sys.argv[1] if len(sys.argv) > 1 else "both"
    if what in ("sim", "both"):
        simulated(int(sys.argv[2]) if len(sys.argv) > 2 else LEGS)
    if what in ("local", "both"):
        more = sys.argv[2:] if what == "local" else []
        local(int(more[0]) if more else REAL, float(more[1]) if len(more) > 1 else SLEEP_S)


if __name__ == "__main__":
    main()
