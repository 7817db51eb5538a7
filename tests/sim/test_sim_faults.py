"""Every kind of fault in every shape and every phase of a machine, one at a time: each is met, and breaks nothing."""

from __future__ import annotations

import pytest
from sim_faults import KINDS, SHAPES
from sim_marks import aim, possible
from sim_swarm import story

pytestmark = [pytest.mark.sim, pytest.mark.timeout(600)]  # a loaded computer is slow, not wrong


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_is_met_and_breaks_nothing(kind: str) -> None:
    marks = possible((kind,))
    phases = sorted({phase for _, _, phase in marks})
    first = sum(map(ord, kind))
    for number, shape in enumerate(SHAPES):  # a phase for each shape; `./dev sim --marks` aims at all of them
        mark = (kind, shape, phases[(first + number) % len(phases)])
        assert mark in marks
        result = aim(mark)
        assert result.violations == [], f"{result.how}\n{story(result)}"
        assert mark in result.phases, f"{' '.join(mark)} was never met"
