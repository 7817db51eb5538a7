"""Diagnosis: how often it is right, and what 100 MB cost. Bars: 98 %, no wrong relaunch, 5 s, 200 MB.

    ./dev bench diagnose [LOGS OF EACH WORDING]

Right means class, reaction, decisive line and rank, all of them. The labelled logs are those of `tests/health`: the
known lines in 10,000 lines of four ranks, generated logs of wordings that the rules were written with ("seen") and of
wordings that were kept out of sight ("held"), logs in the shapes of public reports ("field"), and logs
that were written before the rules were read ("fresh").
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from _measure import ROOT, Figure, run, say, show

sys.path.insert(0, str(ROOT / "tests" / "health"))

import generator
import health_cases

from orchestrator.diagnosis import Circumstances, Diagnosis, diagnose

RIGHT, CPU_S, PEAK_MB = 0.98, 5.0, 200.0
MEGABYTES = 100
READ = (
    "import sys; from pathlib import Path; from orchestrator.diagnosis import diagnose; "
    "print(diagnose(Path(sys.argv[1])))"
)


def known_lines() -> tuple[int, int, int]:
    """Known lines that are right, all of them, and look-alikes that were taken for a failure."""
    table = health_cases.table("signatures")
    right = 0
    for entry in table["signatures"]:
        case = generator.case(health_cases.wording_of(entry), seed=11, lines=10_000, ranks=4)
        right += generator.right(health_cases.told(case), case)
    taken = 0
    for entry in table["look_alikes"]:
        found = diagnose([generator.healthy(5, 10_000), entry["line"].encode()], Circumstances(exit_code=1))
        taken += found.klass != "unknown" or found.reaction.relaunch
    return right, len(table["signatures"]), taken


def generated(which: str, each: int, confusion: Counter[tuple[str, str]]) -> tuple[int, int, int]:
    """Logs that are right, all of them, and the user's own failures that would be started again."""
    right = count = relaunched = 0
    for case in generator.cases(which, each, first_seed=1000):
        found = health_cases.told(case)
        count += 1
        right += generator.right(found, case)
        relaunched += case.klass == "user-code" and case.relaunch == "no" and found.reaction.relaunch
        confusion[case.klass, found.klass] += 1
    return right, count, relaunched


def field(confusion: Counter[tuple[str, str]]) -> tuple[int, int]:
    entries = health_cases.table("field")
    right = 0
    for entry in entries:
        found: Diagnosis = diagnose([entry["log"].encode()], Circumstances(exit_code=entry["exit"]))
        same = (found.klass, generator.reaction_of(found.reaction)) == (entry["class"], entry["again"])
        right += same and entry["line"] in found.line
        confusion[entry["class"], found.klass] += 1
    return right, len(entries)


def fresh(confusion: Counter[tuple[str, str]]) -> tuple[int, int]:
    found = health_cases.fresh() + health_cases.fresh("fresh_later")
    for entry, told in found:
        right = health_cases.several(entry["class"])
        confusion[told.klass if told.klass in right else right[0], told.klass] += 1
    return sum(health_cases.as_labelled(entry, told) for entry, told in found), len(found)


def matrix(confusion: Counter[tuple[str, str]]) -> str:
    """Rows are labels, columns what was said; only classes that occur."""
    names = sorted({name for pair in confusion for name in pair})
    head = ["label", *names]
    rows = [[label, *(str(confusion[label, said] or "") for said in names)] for label in names]
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def big_log(path: Path, unique: bool) -> None:
    """100 MB of a job at work that fails at the end; `unique`: no two lines have the same shape."""
    rng = random.Random(1)
    block = generator.healthy(9, 20_000)
    letters = b"abcdefghijklmnopqrstuvwxyz      "
    with path.open("wb") as out:
        while out.tell() < MEGABYTES * 1_000_000:
            if unique:
                block = b"\n".join(bytes(rng.choices(letters, k=100)) for _ in range(10_000)) + b"\n"
            out.write(block)
        out.write(b"Traceback (most recent call last):\n  File 'train.py'\nKeyError: 'lr'\n")


def cost(unique: bool) -> tuple[list[float], list[float]]:
    """CPU seconds and peak MB of three fresh processes that diagnose 100 MB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        big_log(path, unique)
        used = [run([sys.executable, "-c", READ, str(path)], cwd=ROOT) for _ in range(3)]
    if any("KeyError" not in one.out for one in used):
        raise RuntimeError(used[0].out)
    return [one.cpu for one in used], [one.peak_mb for one in used]


def main() -> int:
    each = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    confusion: Counter[tuple[str, str]] = Counter()
    say("known lines ...")
    right, lines, taken = known_lines()
    say(f"{right} of {lines} known lines right, {taken} look-alikes taken")
    wrong = {}
    relaunched = 0
    for which in ("seen", "held"):
        ok, count, again = generated(which, each, confusion)
        say(f"{which}: {ok} of {count} right, {again} of the user's own failures started again")
        wrong[which], relaunched = (1 - ok / count) * 100, relaunched + again
    ok, count = field(confusion)
    say(f"field: {ok} of {count} right")
    new, written = fresh(confusion)
    say(f"fresh: {new} of {written} right")
    say("100 MB ...")
    cpu, peak = cost(unique=False)
    unique_cpu, unique_peak = cost(unique=True)
    print(f"\n{sum(confusion.values())} labelled logs\n\n{matrix(confusion)}")
    return show(
        [
            Figure("known lines wrong", (lines - right,), "of 68", 1),
            Figure("look-alikes taken", (taken,), "of 8", 1),
            Figure("seen wordings wrong", (wrong["seen"],), "%", (1 - RIGHT) * 100),
            Figure("held wordings wrong", (wrong["held"],), "%", (1 - RIGHT) * 100),
            Figure("field logs wrong", (count - ok,), f"of {count}", 1),
            Figure("fresh logs wrong", (written - new,), f"of {written}", 1),
            Figure("user code started again", (relaunched,), "logs", 1),
            Figure("100 MB of a job at work", tuple(cpu), "CPU-s", CPU_S, "max"),
            Figure("the same, memory", tuple(peak), "MB", PEAK_MB, "max"),
            Figure("100 MB, every line another", tuple(unique_cpu), "CPU-s"),
            Figure("the same, memory", tuple(unique_peak), "MB", PEAK_MB, "max"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
