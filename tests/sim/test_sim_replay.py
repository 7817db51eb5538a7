"""Facts that an earlier version recorded: they are still read, and decided the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sim_replay import FOLDER, Recorded, read, words, worlds

from orchestrator.model import RentalPhase
from orchestrator.reconcile import reconcile

pytestmark = pytest.mark.sim


def differences(recorded: list[Recorded]) -> list[str]:
    return [
        f"decision {number}: {now} instead of {each.decision}"
        for number, each in enumerate(recorded, 1)
        if (now := words(each.facts, reconcile(each.facts, each.policy))) != each.decision
    ]


@pytest.mark.parametrize("name", worlds())
def test_recorded_facts_give_the_recorded_decision(name: str) -> None:
    recorded = list(read(FOLDER / f"{name}.jsonl.gz"))
    assert len(recorded) > 50
    assert differences(recorded) == [], "if this is meant: ./dev sim --record, and say why in the commit"


def test_a_changed_rule_is_seen() -> None:
    recorded = list(read(FOLDER / "reclaim.jsonl.gz"))
    live = next(each for each in recorded if any(r.rental.phase is RentalPhase.LIVE for r in each.facts.rentals))
    forgotten = replace(live, facts=replace(live.facts, rentals=()))
    assert len(differences([forgotten])) == 1
