"""The looks at a job's machines as `describe` shows them: lines that fit, the newest ones, the trial in words."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.cli.looks import LOOKS_SHOWN, kind_of, look_json, look_lines, summary
from orchestrator.store.rows import Preflight

FACTS: dict[str, Any] = {
    "gpu": {"cards": [{"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559.0}] * 8, "driver": "550.54",
            "cuda": "12.4"},
    "cpus": 192, "memory": {"total": 2 * 1024**4}, "disks": {"data": {"free": 5 * 10**12}},
}  # fmt: skip
LONG = {"name": "torch-cpu", "klass": "config", "measured": "torch " + "x" * 150, "wanted": "CUDA", "next": "y " * 60}


def look(run: str = "", **changes: Any) -> Preflight:
    values: dict[str, Any] = {"seconds": 1.26, "findings": (LONG,), "facts": FACTS, **changes}
    return Preflight("gj-abcdef-1", run, "j", 1000.0, **values)


def test_lines_fit_and_say_where_and_what() -> None:
    lines = list(look_lines([look()]))
    assert lines[:2] == ["", "PREFLIGHT"]
    assert "8 x NVIDIA H100 80GB HBM3 80 GiB, driver 550.54 (CUDA 12.4), 192 cores" in " ".join(lines)
    assert any(line.startswith("    config    torch-cpu: ") for line in lines)
    assert max(map(len, lines)) <= 100


def test_no_look_no_section_and_many_are_cut() -> None:
    assert list(look_lines([])) == []
    lines = list(look_lines([look(f"t{n}.1", findings=()) for n in range(LOOKS_SHOWN + 2)]))
    assert lines[1] == "PREFLIGHT (and 2 earlier: -o json)"
    assert "t0.1" not in " ".join(lines)
    assert f"t{LOOKS_SHOWN + 1}.1" in lines[-1] + lines[-2]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ""),
        ({"torch": {"version": "2.4.0", "cuda": None, "devices": 0}}, "torch 2.4.0, CUDA none, 0 devices"),
        ({"python": "3.11.7", "packages": ["a==1"]}, "Python 3.11.7, 1 package"),
        (
            {"steps_seen": 9, "steps_per_s": 0.8, "vram": [[20480.0, 24564.0]], "needed_s": 12500.0, "steps": 10000,
             "cost": 2.7778, "currency": "USD"},
            "0.8 steps/s; 20.0 GiB of a card; the whole: 10,000 steps in 3h28m, 2.78 USD",
        ),
        ({"steps_seen": 0, "unknown": "not without progress"}, "not without progress"),
    ],
)  # fmt: skip
def test_a_look_in_half_a_line(facts: dict[str, Any], expected: str) -> None:
    assert summary(facts) == expected


def test_which_look_it_was() -> None:
    assert [kind_of(look(run)) for run in ("", "t0.1", "t0.1/smoke")] == [
        ("preflight", ""),
        ("setup", "t0.1"),
        ("smoke", "t0.1"),
    ]
    shown = look_json(look("t0.1/smoke"))
    assert (shown["look"], shown["run"], shown["at"]) == ("smoke", "t0.1", "1970-01-01T00:16:40.000Z")
