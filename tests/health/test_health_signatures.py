"""Every known line of failure in a log of 10,000 lines of several ranks at work; and the lines that are none."""

from __future__ import annotations

from typing import Any

import generator
import health_cases
import pytest

from orchestrator.diagnosis import Circumstances, diagnose

KNOWN = health_cases.table("signatures")
LINES = 10_000


@pytest.mark.parametrize("entry", KNOWN["signatures"], ids=lambda entry: entry["id"])
def test_a_known_line_gets_its_class_its_reaction_and_its_place(entry: dict[str, Any]) -> None:
    case = generator.case(health_cases.wording_of(entry), seed=7, lines=LINES, ranks=4)
    found = health_cases.told(case)
    assert (found.klass, generator.reaction_of(found.reaction)) == (entry["class"], entry["again"])
    assert entry["line"][:200] in found.line
    assert found.rank in (case.rank, case.rank_mark)
    printed = case.log.replace(b"\r\n", b"\n").split(b"\n")
    assert found.line_number is not None
    assert entry["line"][:60].encode() in printed[found.line_number - 1]
    assert found.advice


def test_there_are_as_many_as_were_reported() -> None:
    assert (len(KNOWN["signatures"]), len(KNOWN["look_alikes"])) == (68, 8)


@pytest.mark.parametrize("entry", KNOWN["look_alikes"], ids=lambda entry: entry["id"])
def test_a_look_alike_is_never_the_failure(entry: dict[str, Any]) -> None:
    line = entry["line"].encode()
    noise = generator.healthy(3, LINES)
    alone = diagnose([noise, line, b"\n"], Circumstances(exit_code=1))
    assert (alone.klass, alone.reaction.relaunch) == ("unknown", False)
    assert entry["line"] not in alone.line
    before = diagnose([noise, b"KeyError: 'caption'\n", line, b"\n"], Circumstances(exit_code=1))
    after = diagnose([noise, line, b"\nKeyError: 'caption'\n"], Circumstances(exit_code=1))
    assert (before.klass, before.line) == (after.klass, after.line) == ("user-code", "KeyError: 'caption'")


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_found_in_a_job_at_work(seed: int) -> None:
    found = diagnose([generator.healthy(seed, 3000)])
    assert (found.klass, found.reaction.relaunch, found.signature) == ("unknown", False, "unknown")


def test_a_warning_that_the_job_trains_on_the_cpu_is_said_although_nothing_failed() -> None:
    line = next(one["line"] for one in KNOWN["look_alikes"] if one["id"] == "N10")
    (note,) = diagnose([generator.healthy(1)[:2000], b"\n", line.encode(), b"\n"]).notes
    assert "CPU" in note.text
    assert note.line == line
    assert "+cpu" in note.advice[0]
