"""Which checkpoints may go from the machine's disk, and when it is asked."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model import AgentCheckpoint
from orchestrator.retention import thin, thinnable


def seen(*steps: int, size: int = 10) -> list[AgentCheckpoint]:
    return [AgentCheckpoint(f"step_{step}", step, size, True, float(step)) for step in steps]


def test_older_ones_go_once_as_many_newer_ones_are_verified() -> None:
    there = seen(1, 2, 3, 4, 5)
    durable = {"step_3": 10, "step_4": 10}
    assert [c.name for c in thinnable(there, durable, 2, frozenset({"step_1"}))] == ["step_2"]
    assert thinnable(there, {"step_4": 10}, 2, frozenset()) == []
    assert thinnable(there, {"step_3": 10, "step_4": 9}, 2, frozenset()) == []  # rewritten since


@given(st.integers(0, 9), st.sets(st.integers(0, 8)), st.integers(1, 4), st.sets(st.integers(0, 8)))
def test_the_newest_verified_are_never_among_them(count: int, durable: set[int], keep: int, best: set[int]) -> None:
    there = seen(*range(count))
    spared = frozenset(f"step_{step}" for step in best)
    gone = thinnable(there, {f"step_{step}": 10 for step in durable}, keep, spared)
    left = [c for c in there if c not in gone]
    verified_left = [c for c in left if c.step in durable]
    assert not gone or len([c for c in verified_left if c.step > max(g.step for g in gone)]) >= keep
    assert not spared & {c.name for c in gone}
    assert there == [] or left[-1] == there[-1]


def test_a_disk_with_room_is_left_alone() -> None:
    asked: list[Any] = []

    class Row:
        def __init__(self, name: str) -> None:
            self.name, self.bytes = name, 10

    def ask(names: list[dict[str, Any]]) -> dict[str, Any]:
        asked.append(names)
        return {"removed": [each["name"] for each in names]}

    there, durable = seen(1, 2, 3), [Row("step_2"), Row("step_3")]
    for disk in ({"free": 20}, {"free": None}, None, "much"):
        assert thin(ask, {"disk": disk}, there, durable, 2, frozenset()) == []  # type: ignore[arg-type]
    assert asked == []
    words = thin(ask, {"disk": {"free": 19}}, there, durable, 2, frozenset())  # type: ignore[arg-type]
    assert words == ["the machine's disk runs short: step_1 removed there, newer ones are durable"]
    assert asked == [[{"name": "step_1", "bytes": 10, "mtime": 1.0}]]
