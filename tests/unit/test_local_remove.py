"""Deleting a machine's folder while somebody else deletes it too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from providers.local_machine import folder as module


def test_a_tree_that_vanishes_under_every_try_is_removed_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    real, calls = shutil.rmtree, []

    def racing(path: Any, *args: Any, **kwargs: Any) -> None:
        calls.append(path)
        if len(calls) > module.REMOVE_TRIES:
            real(path)
        raise FileNotFoundError(2, "No such file or directory", "signalled")

    monkeypatch.setattr(module.shutil, "rmtree", racing)
    module.remove_tree(tree)
    assert not tree.exists()
    assert len(calls) == module.REMOVE_TRIES + 1


def test_a_tree_that_cannot_be_removed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()

    def refusing(path: Any, *args: Any, **kwargs: Any) -> None:
        raise PermissionError(1, "not permitted", str(path))

    monkeypatch.setattr(module.shutil, "rmtree", refusing)
    with pytest.raises(PermissionError):
        module.remove_tree(tree)
