"""Results whose store refuses come to this computer instead; a note of what is to be taken over is used once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import store_machines
from orchestrator.clock import FakeClock
from orchestrator.execute import Context, WorkFailed
from orchestrator.home import Home
from orchestrator.objects.errors import StoreUnreachable
from orchestrator.store_machines import StoreMachines
from orchestrator.store_results import RemoteItem, Uploaded

ITEMS = (RemoteItem("*", "lab:out", "always"),)


@pytest.mark.parametrize("error", [StoreUnreachable("it does not answer", "s3://b"), WorkFailed("not uploaded: 500")])
def test_results_have_a_second_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(*_: Any) -> Uploaded:
        raise error

    monkeypatch.setattr(store_machines, "upload", fails)
    machines = StoreMachines(Home(tmp_path / "s", tmp_path / "c"), FakeClock(), lambda message: None, 1)
    rental, run = SimpleNamespace(id="r1"), SimpleNamespace(key="t0.1", task="t0", n=1)
    context: Any = Context(None, None, None, rental, run)  # type: ignore[arg-type]
    sent, here = machines._upload_results(context, None, ITEMS, "/out", True)  # type: ignore[arg-type]
    assert here == ITEMS
    assert sent.folders == []
    assert "they come to this computer" in sent.words[0]
    assert str(error) in sent.words[0]
