"""Every sequence of provider answers up to a depth, around a machine's birth and around its release."""

from __future__ import annotations

import pytest
from sim_scopes import ANSWERS, CLOUDS, Chooser, run_scope, under
from sim_swarm import story

pytestmark = [pytest.mark.sim, pytest.mark.timeout(600)]  # a loaded computer is slow, not wrong

DEPTH = 3


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("scope", ["birth", "death"])
def test_no_sequence_of_answers_leaks_or_loses(scope: str, cloud: str) -> None:
    runs = 0
    met: set[str] = set()
    for result in under((), scope, DEPTH, cloud):
        assert result.violations == [], f"{result.how}\n{story(result)}"
        runs += 1
        met |= {kind for kind, _ in result.marks}
    opens = "create" if scope == "birth" else "destroy"
    assert runs > len(ANSWERS[opens]) * len(ANSWERS["list"])
    assert {kind for kind in ANSWERS[opens] if kind.startswith(opens)} <= met  # each lie was told, not only asked for


def test_the_enumeration_visits_every_leaf_once() -> None:
    seen, prefix = [], ()
    while prefix is not None:
        chooser = Chooser(prefix, 2)
        first = chooser.pick(3)
        seen.append((first, chooser.pick(2 if first == 1 else 1)))
        assert chooser.pick(9) == 0  # beyond the depth everything is honest
        prefix = chooser.next_prefix()
    assert seen == [(0, 0), (1, 0), (1, 1), (2, 0)]


def test_a_scope_is_repeated_from_its_answers() -> None:
    first, _ = run_scope((3, 1), "birth", 4, "aurora")
    again, _ = run_scope((3, 1), "birth", 4, "aurora")
    assert "create: create-lost-made, list: list-error" in first.how
    assert first.trace == again.trace
