"""The best checkpoint by its format's own word is kept beside the newest."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_formats import as_json, lightning, put, torch_zip, trainer

from orchestrator.home import Home
from orchestrator.mirror import Manifest, StoredFile, content_hash, listing, manifest_path, parts_of, to_bytes
from orchestrator.retention import retain


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(state=tmp_path / "state", config=tmp_path / "config").make()


def stored(home: Home, name: str, step: int, files: dict[str, bytes] | bytes, n: int = 1) -> Manifest:
    """A verified checkpoint in the mirror, of one file or of a folder's."""
    shown = {name: files} if isinstance(files, bytes) else {f"{name}/{each}": data for each, data in files.items()}
    listed = tuple(StoredFile(p, len(d), hashlib.sha256(d).hexdigest()) for p, d in sorted(shown.items()))
    bare = Manifest("digits.1", "t0", n, name, step, listed, sum(f.size for f in listed), None, "")
    manifest = replace(bare, hash=content_hash(bare))
    mirror = home.mirror("digits.1", "t0")
    put(parts_of(mirror, manifest), shown)
    path = manifest_path(mirror, manifest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_bytes(manifest))
    return manifest


def names(home: Home, keep: int) -> list[str]:
    retained = retain(home, "digits.1", "t0", keep, "")
    assert retained.held == listing(home, "digits.1", "t0").manifests
    assert not set(retained.held) & set(retained.removed)
    return [m.name for m in retained.held]


def test_the_trainers_best_is_kept_beside_the_newest(home: Home) -> None:
    for step in (300, 400, 500, 1000):
        stored(home, f"checkpoint-{step}", step, trainer())
    assert names(home, 1) == ["checkpoint-300", "checkpoint-1000"]


def test_a_newer_best_takes_the_place_of_the_old_one(home: Home) -> None:
    better = {**trainer(), "trainer_state.json": as_json({"best_model_checkpoint": "C:\\out\\checkpoint-400"})}
    for step, files in ((300, trainer()), (400, trainer()), (500, trainer()), (600, better)):
        stored(home, f"checkpoint-{step}", step, files)
    assert names(home, 1) == ["checkpoint-400", "checkpoint-600"]


def test_lightning_names_its_best_in_its_callbacks(home: Home) -> None:
    for step in (300, 400, 500):
        stored(home, f"epoch=2-step={step}.ckpt", step, lightning())
    assert names(home, 1) == ["epoch=2-step=300.ckpt", "epoch=2-step=500.ckpt"]


def test_what_is_called_best_is_kept(home: Home) -> None:
    for step, called in ((1, "best_step_1.pt"), (2, "step_2.pt"), (3, "bestiary_3.pt"), (4, "step_4.pt")):
        stored(home, called, step, torch_zip())
    assert names(home, 1) == ["best_step_1.pt", "step_4.pt"]


@pytest.mark.parametrize(
    "state", [b"{", b"[]", b'{"best_model_checkpoint": 5}', as_json({"best_model_checkpoint": "x/gone"})]
)
def test_a_state_that_says_nothing_keeps_nothing_more(home: Home, state: bytes) -> None:
    for step in (300, 400):
        stored(home, f"checkpoint-{step}", step, {**trainer(), "trainer_state.json": state})
    assert names(home, 1) == ["checkpoint-400"]
