"""The simulated world from the command line: one seed, many job-days, all crashes, or the mutants.

    python tools/sim.py --seed N [--job-days D] [--jobs P]   seeds from N on, until D job-days; one seed without D
    python tools/sim.py --crash [--faults K]                  a kill at every tap, alone and with K worlds of faults
    python tools/sim.py --scopes DEPTH                        every sequence of provider answers up to that depth
    python tools/sim.py --marks                               every fault in every shape and phase, aimed
    python tools/sim.py --record                              facts and decisions that tests/sim replays, written anew
    python tools/sim.py --mutants [NAME ...]                  each one-line mutant against the suite that must kill it
    python tools/sim.py --seed N --dense                      one of the worlds in which hardly anything works
    python tools/sim.py --nightly MINUTES [--enough FAULTS]   three dense worlds for each ordinary one, until the time
                                                              is over or so many faults were served

A failing run prints the story of its rental and what reproduces it. The last line is always "N violations"; the exit
code is 1 when N is not 0.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "sim")]

from sim_figures import Figures  # noqa: E402
from sim_swarm import Result, night, run_dense, run_seed, story  # noqa: E402

MISSED_SHOWN = 60
SAY_EVERY_S = 300.0  # how far a long run is


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev sim", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--job-days", type=float, default=0.0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--crash", action="store_true")
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--scopes", type=int, default=0, metavar="DEPTH")
    parser.add_argument("--marks", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--mutants", nargs="*")
    parser.add_argument("--kill", nargs="*", help="one suite of the mutants: seeds A B, crash, or scopes DEPTH")
    parser.add_argument("--nightly", type=float, default=0.0)
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--enough", type=int, default=0, metavar="FAULTS")
    args = parser.parse_args()
    if args.mutants is not None:
        from sim_mutants import run_mutants

        return run_mutants(ROOT, args.mutants, args.jobs)
    if args.record:
        from sim_replay import write_all

        print(f"{write_all()} decisions recorded")
        return 0
    if args.kill:
        return kill(*args.kill)
    if args.scopes:
        from sim_scopes import enumerate_scopes

        results: Iterable[Result] = enumerate_scopes(args.scopes, args.jobs)
    elif args.marks:
        from sim_marks import every_mark

        results = every_mark(args.jobs)
    elif args.crash:
        from sim_crash import enumerate_crashes

        results = enumerate_crashes(args.faults, args.jobs)
    else:
        one = night if args.nightly else run_dense if args.dense else run_seed
        results = seeds(one, args.seed, args.job_days, args.nightly * 60.0, args.enough, args.jobs)
    return report(results)


def seeds(
    one: Callable[[int], Result], first: int, job_days: float, seconds: float, faults: int, jobs: int
) -> Iterator[Result]:
    """Results in order of the seeds, until enough job-days, time or faults; one seed where none is asked for."""
    began, days, served, seed = time.monotonic(), 0.0, 0, first
    with ProcessPoolExecutor(jobs) as pool:
        running = deque([pool.submit(one, seed)])
        while running:
            late = seconds and time.monotonic() - began >= seconds
            enough = late or (faults and served >= faults) or (days >= job_days if not seconds else False)
            while not enough and len(running) < 4 * jobs:
                seed += 1
                running.append(pool.submit(one, seed))
            if enough and not running[0].running():
                running[0].cancel()
            if running[0].cancelled():
                running.popleft()
                continue
            result = running.popleft().result()
            days += result.job_days
            served += sum(result.marks.values())
            yield result


def kill(suite: str, *numbers: str) -> int:
    """Exit 1 at the first violation of a suite: what a mutant must not survive."""
    if suite == "crash":
        from sim_crash import count_taps, run_nominal

        results = (run_nominal((n,)) for n in range(1, count_taps() + 1, 3))
    elif suite == "scopes":
        from sim_scopes import CLOUDS, OPENS, under

        depth = int(*numbers)
        results = (found for scope in OPENS for cloud in CLOUDS for found in under((), scope, depth, cloud))
    else:
        first, last = map(int, numbers)
        results = (run_seed(seed) for seed in range(first, last))
    for result in results:
        if result.violations:
            print(f"seed {result.seed}{result.how}: {result.violations[0]}")
            return 1
    return 0


def until_stopped(results: Iterable[Result]) -> Iterator[Result]:
    """Ctrl-C ends a long run with the figures so far."""
    try:
        yield from results
    except KeyboardInterrupt:
        print("stopped", flush=True)


def report(results: Iterable[Result]) -> int:
    """Print what failed as it comes, then the figures, then the count."""
    figures, count, began = Figures(), 0, time.monotonic()
    names: Counter[str] = Counter()
    said = began
    for result in until_stopped(results):
        figures.add(result)
        if time.monotonic() - said >= SAY_EVERY_S:
            said = time.monotonic()
            print(f"{said - began:.0f} s: {figures.runs} runs, {figures.faults} faults, {count} violations", flush=True)
        for found in result.violations:
            count += 1
            names[found.name] += 1
            print(f"{found.name}: {found.text}\n  {found.who}, seed {result.seed}{result.how}", flush=True)
        if result.violations:
            print(story(result), flush=True)
            print(f"again: ./dev sim --seed {result.seed}{result.how}")
    print(figures.text(time.monotonic() - began))
    missed = figures.missed()
    if len(missed) <= MISSED_SHOWN:  # a run of seeds misses most; one that aims at all should name what it did not hit
        print("".join(f"not reached: {mark}\n" for mark in missed), end="")
    for name, times in names.most_common():
        print(f"{times:6} {name}")
    print(f"{count} violations")
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main())
