"""Several checkpoints of one run: what one of them is, is nothing to the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator import checkpoints
from orchestrator.home import Home
from orchestrator.mirror import CheckpointError, StillChanging
from orchestrator.mirror_run import Brought, bring
from orchestrator.model import AgentCheckpoint
from orchestrator.ssh_errors import AgentRefused, Unreachable, Unsafe


class Line:
    """A connection that nothing is asked of."""

    target = None


def seen(step: int, name: str = "") -> AgentCheckpoint:
    return AgentCheckpoint(name or f"step_{step}", step, 10, True, 0.0)


def brought(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: list[AgentCheckpoint],
    wrong: dict[str, Exception],
    slots: int,
) -> tuple[Brought, list[tuple[str, int]]]:
    asked = []

    def mirror_one(*_: Any, name: str, step: int, **__: Any) -> Any:
        asked.append((name, step))
        if name in wrong:
            raise wrong[name]
        return name

    monkeypatch.setattr(checkpoints, "mirror_one", mirror_one)
    home = Home(state=tmp_path, config=tmp_path)
    done = bring(
        Line(), home, job="j", task="t0", n=1, root="/m", wanted=wanted, slots=slots, parent=None, ordinal=7  # type: ignore[arg-type]
    )  # fmt: skip
    return done, asked


def test_one_that_is_always_being_written_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: dict[str, Exception] = {"step_3": StillChanging("written to")}
    done, _ = brought(tmp_path, monkeypatch, [seen(1), seen(2), seen(3)], wrong, 3)
    assert list(map(str, done.manifests)) == ["step_2", "step_1"]
    assert [found.name for found, _ in done.failed] == ["step_3"]
    assert done.refused == []


def test_one_that_can_never_be_used_gives_its_place_to_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: dict[str, Exception] = {"step_3": Unsafe("leads out"), "step_2": CheckpointError("damaged")}
    done, _ = brought(tmp_path, monkeypatch, [seen(0), seen(1), seen(2), seen(3)], wrong, 1)
    assert list(map(str, done.manifests)) == ["step_1"]
    assert [found.name for found, _ in done.refused] == ["step_3", "step_2"]
    assert done.failed == []


def test_a_machines_refusal_of_one_is_tried_again_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: dict[str, Exception] = {"step_2": AgentRefused("io", "input/output error", {})}
    done, _ = brought(tmp_path, monkeypatch, [seen(1), seen(2)], wrong, 2)
    assert list(map(str, done.manifests)) == ["step_1"]
    assert [found.name for found, _ in done.failed] == ["step_2"]


def test_a_broken_connection_ends_the_pass_and_nothing_counts_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: dict[str, Exception] = {"step_2": Unreachable("gone", reason="reset")}
    done, asked = brought(tmp_path, monkeypatch, [seen(1), seen(2), seen(3)], wrong, 3)
    assert [name for name, _ in asked] == ["step_3", "step_2"]
    assert {found.name for found, _ in done.failed} == {"step_2", "step_1"}


def test_names_without_a_number_are_numbered_by_arrival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked = brought(tmp_path, monkeypatch, [seen(-1, "last"), seen(-1, "best")], {}, 2)
    assert asked == [("best", 9), ("last", 8)]
