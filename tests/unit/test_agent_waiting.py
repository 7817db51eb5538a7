"""Answers of the agent that come when there is something to say, and hashes of many files."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.agent import asks
from orchestrator.agent.asks import WAIT_MAX_S, patience, wait_while_running
from orchestrator.agent.inventory import HASHED_ASIDE, hashed_all
from orchestrator.agent.layout import Refusal


def test_the_answer_comes_as_soon_as_the_work_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"state": "running"}))
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            state.write_text(json.dumps({"state": "done"}))

    monkeypatch.setattr(asks.time, "sleep", nap)
    assert wait_while_running(str(state), 1e9) == {"state": "done"}
    assert len(naps) == 3


def test_without_patience_or_with_a_dead_process_the_answer_comes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"state": "running"}))
    monkeypatch.setattr(asks.time, "sleep", lambda seconds: pytest.fail("it waited"))
    assert wait_while_running(str(state), 0.0) == {"state": "running"}
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert wait_while_running(str(state), 1e9, child) == {"state": "running"}
    assert wait_while_running(str(tmp_path / "none.json"), 1e9) is None


def test_nobody_waits_longer_than_a_silent_machine_may_be_silent() -> None:
    assert (patience({}), patience({"wait": 2}), patience({"wait": 1e6})) == (0.0, 2.0, WAIT_MAX_S)
    with pytest.raises(Refusal):
        patience({"wait": "long"})


def test_small_and_large_files_links_and_those_that_went_away_keep_their_order(tmp_path: Path) -> None:
    large = bytes(range(256)) * (HASHED_ASIDE // 256) + b"end"
    (tmp_path / "b").write_bytes(large)
    (tmp_path / "c").write_bytes(b"small")
    listed = [
        {"path": "a", "link": "b"}, {"path": "b", "size": len(large)}, {"path": "c", "size": 5},
        {"path": "gone", "size": 2 * HASHED_ASIDE}, {"path": "gone too", "size": 1},
    ]  # fmt: skip
    found = hashed_all(str(tmp_path), listed)
    assert [entry["path"] for entry in found] == ["a", "b", "c"]
    assert "sha256" not in found[0]
    assert found[1]["sha256"] == hashlib.sha256(large).hexdigest()
    assert found[2]["sha256"] == hashlib.sha256(b"small").hexdigest()
