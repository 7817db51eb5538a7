"""The mirror's books and the choice of what to resume from, without a machine."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.home import Home
from orchestrator.lineage import passed_over, resume_choice, resume_order
from orchestrator.mirror import (
    Manifest,
    StoredFile,
    content_hash,
    listing,
    manifest_path,
    parts_of,
    prune,
    to_bytes,
)


def made(n: int, step: int, parent: Manifest | None = None, files: tuple[str, ...] = (), text: str = "x") -> Manifest:
    name = f"step_{step}" if files else f"step_{step}.npz"
    paths = [f"{name}/{file}" for file in files] or [name]
    digest = hashlib.sha256(text.encode()).hexdigest()
    stored = tuple(StoredFile(path, len(text), digest) for path in sorted(paths))
    bare = Manifest(
        "digits.1", "t0", n, name, step, stored, len(text) * len(paths), parent.hash if parent else None, ""
    )
    return replace(bare, hash=content_hash(bare))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(state=tmp_path / "state", config=tmp_path / "config").make()


def store(home: Home, *manifests: Manifest) -> Path:
    mirror = home.mirror("digits.1", "t0")
    for manifest in manifests:
        for file in manifest.files:
            path = parts_of(mirror, manifest) / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        path = manifest_path(mirror, manifest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_bytes(manifest))
    return mirror


def test_steps_are_numbers(home: Home) -> None:
    seal = [made(1, 9000), made(1, 10000), made(1, 800)]
    assert resume_choice(seal) == seal[1]
    store(home, *seal)
    assert [m.step for m in listing(home, "digits.1", "t0").manifests] == [800, 9000, 10000]


def test_nothing_to_resume_from_the_first_time(home: Home) -> None:
    assert resume_choice([]) is None
    assert listing(home, "digits.1", "t0").manifests == ()


def test_a_stale_runs_late_write_is_off_the_line() -> None:
    first = made(1, 300)
    second = made(2, 350, parent=first)
    late = made(1, 900)  # came after the second run had resumed from step 300
    assert resume_choice([first, second, late]) == second
    assert late not in resume_order([first, second, late])


def test_a_run_that_starts_lower_does_not_lose_what_it_came_from() -> None:
    first = made(1, 500)
    second = made(2, 10, parent=first)  # the program ignored what it was given
    assert resume_choice([first, second]) == first


def test_a_run_without_lineage_stands_alone() -> None:
    assert resume_choice([made(1, 500), made(2, 10)]) == made(2, 10)


def test_the_line_goes_through_runs_that_saved_nothing() -> None:
    first = made(1, 100)
    third = made(3, 250, parent=first)
    assert resume_order([made(1, 200), third, first]) == [third, first]


def test_damaged_lineage_does_not_turn_in_circles() -> None:
    one, two = made(1, 10), made(2, 20)
    assert resume_choice([replace(one, parent=two.hash), replace(two, parent=one.hash)]) is not None


def test_a_folder_that_was_cut_short_is_passed_over() -> None:
    whole = made(1, 200, files=("model-00001-of-00002.bin", "trainer_state.json"))
    cut = made(1, 300, files=("model-00002-of-00002.bin",))
    assert resume_choice([whole, cut]) == whole
    ((over, why),) = passed_over([whole, cut])
    assert over == cut
    assert why == "it lacks trainer_state.json, which step_200 has: probably not finished"
    assert resume_choice([cut]) == cut  # better than nothing


def test_a_layout_that_changed_on_purpose_costs_one_checkpoint() -> None:
    old = made(1, 100, files=("a", "b"))
    new = [made(1, step, files=("a",)) for step in (200, 300)]
    assert resume_choice([old, *new]) == new[1]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12)), min_size=1, max_size=10), st.randoms())
def test_the_choice_does_not_depend_on_the_order_of_the_seal(shape: list[tuple[int, int]], rng: object) -> None:
    seal: list[Manifest] = []
    parents: dict[int, Manifest | None] = {}
    for n, step in sorted(shape):
        parent = parents.setdefault(n, resume_choice([m for m in seal if m.n < n]))
        seal.append(made(n, step, parent))
    wanted = resume_choice(seal)
    rng.shuffle(seal)  # type: ignore[attr-defined]
    assert resume_choice(seal) == wanted
    assert wanted in seal


@pytest.mark.parametrize("damage", ["size", "gone", "json", "hash", "empty", "list"])
def test_a_manifest_that_does_not_hold_is_set_aside_and_named(home: Home, damage: str) -> None:
    good, bad = made(1, 100), made(1, 200)
    mirror = store(home, good, bad)
    path, part = manifest_path(mirror, bad), parts_of(mirror, bad) / bad.files[0].path
    if damage == "size":
        part.write_text("longer")
    elif damage == "gone":
        part.unlink()
    elif damage == "hash":
        path.write_bytes(to_bytes(replace(bad, step=999)))
    else:
        path.write_text({"json": "{", "empty": "", "list": "[]"}[damage])
    seen = listing(home, "digits.1", "t0")
    assert seen.manifests == (good,)
    assert [broken.path.name for broken in seen.broken] == [path.name]
    assert seen.broken[0].path.exists()  # kept for a person
    assert listing(home, "digits.1", "t0").broken == ()


def test_prune_keeps_the_newest_the_sealed_and_the_choice(home: Home) -> None:
    old, sealed, mid, new = made(1, 9), made(1, 10), made(1, 200), made(1, 1000)
    mirror = store(home, old, sealed, mid, new)
    removed = prune(home, "digits.1", "t0", 1, frozenset({sealed.hash}))
    assert removed == (old, mid)
    assert listing(home, "digits.1", "t0").manifests == (sealed, new)
    assert not parts_of(mirror, old).exists()
    assert parts_of(mirror, sealed).exists()
    assert list((mirror / "trash").iterdir()) == []


def test_prune_never_takes_the_only_one_that_holds(home: Home) -> None:
    good, newer = made(1, 100), made(1, 200)
    mirror = store(home, good, newer)
    (parts_of(mirror, newer) / newer.files[0].path).unlink()
    assert prune(home, "digits.1", "t0", 1, frozenset()) == ()
    assert listing(home, "digits.1", "t0").manifests == (good,)
    for keep in (0, -1):
        with pytest.raises(ValueError, match="would delete every checkpoint"):
            prune(home, "digits.1", "t0", keep, frozenset())


def test_prune_ends_what_an_earlier_life_began_and_clears_unfinished_copies(home: Home) -> None:
    gone, kept = made(1, 100), made(1, 200)
    mirror = store(home, gone, kept)
    (mirror / "trash").mkdir()
    os.replace(manifest_path(mirror, gone), mirror / "trash" / "x.json")  # killed right after this
    (mirror / "1" / "parts" / "unfinished").mkdir()
    prune(home, "digits.1", "t0", 3, frozenset())
    assert not parts_of(mirror, gone).exists()
    assert (mirror / "1" / "parts" / "unfinished").exists()  # it may be on its way
    prune(home, "digits.1", "t0", 3, frozenset(), over=frozenset({1}))
    assert [path.name for path in (mirror / "1" / "parts").iterdir()] == [kept.id]
