"""What differs between two runs: the pure comparison, and the verb over real books."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import cli_books
import pytest

from orchestrator.cli import client
from orchestrator.cli.main import main
from orchestrator.difference import compare, drift, flat, packages_of
from orchestrator.store.rows import Preflight


def test_sections_that_are_equal_differ_or_are_not_known() -> None:
    one = {"spec": {"ttl": "12h", "gpu": "A10"}, "code": {"a.py": "1"}, "packages": {"torch": "2.4"}, "data": None}
    other = {"spec": {"ttl": "6h", "gpu": "A10"}, "code": {"a.py": "1"}, "packages": {"torch": "2.4", "rich": "13"}}
    found = compare(one, other)
    assert [(d.section, d.key, d.one, d.other) for d in found.differences] == [
        ("spec", "ttl", "12h", "6h"),
        ("packages", "rich", None, "13"),
    ]
    assert found.same == ("code",)
    assert found.unknown == ("data", "machine", "environment", "result")


def test_documents_are_compared_key_by_key() -> None:
    document = {"checkpoint": {"keep": 3, "path": None}, "gpu": ["A10", "L4"], "data": [{"from": "x", "path": "y"}]}
    assert flat(document) == {"checkpoint.keep": "3", "gpu": "A10, L4", "data.0.from": "x", "data.0.path": "y"}


def test_packages_by_the_name_that_pip_compares() -> None:
    lines = ["Typing_Extensions==4.9", "torch==2.4.0+cu121", "own @ file:///x", "-e git+y", "# note", 7]
    assert packages_of(lines) == {"typing-extensions": "4.9", "torch": "2.4.0+cu121", "own": "file:///x"}
    assert drift(["a==1", "b_c==1", "d==1"], ["a==2", "b-c==1", "e==5"]) == ["a 1 -> 2", "d 1 gone", "e 5 new"]
    assert drift(["a==1"], ["A==1"]) == []


MACHINE: dict[str, Any] = {
    "cpus": 8, "kernel": "6.1", "memory": {"total": 64 << 30},
    "gpu": {"driver": "550.54.15", "cuda": "12.4", "cards": [{"name": "NVIDIA GeForce RTX 4090"}], "links": {"PHB": 1}},
}  # fmt: skip
AFTER: dict[str, Any] = {
    "python": "3.11.7", "packages": ["torch==2.4.0", "numpy==1.26.4"],
    "torch": {"version": "2.4.0", "cuda": "12.1", "available": True, "devices": 1, "archs": ["sm_89"]},
}  # fmt: skip


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(client, "wake", lambda home: None)
    home = cli_books.home_at(tmp_path)
    with cli_books.writer(home) as store:
        job = cli_books.Books(store)
        for n, driver in ((1, "550.54.15"), (2, "535.161.07")):
            rental = job.rent()
            job.run(rental, n)
            gpu = {**MACHINE["gpu"], "driver": driver}
            store.put_preflight(Preflight(rental, "", job.id, job.now, 0.3, (), {**MACHINE, "gpu": gpu}))
            packages = [f"torch==2.4.{n}", "numpy==1.26.4"]
            store.put_preflight(Preflight(rental, f"t0.{n}", job.id, job.now, 0.9, (), {**AFTER, "packages": packages}))
            store.bill(rental, "instance", Decimal("0.10") * n, job.now, play=True)
            job.exit(n, rc=1)
            if n == 1:
                store.closed(job.id, "t0", 1, job.now)
                job.lose(rental)
    return home


def said(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["diff", *words]) == 0
    return capsys.readouterr().out


def test_two_attempts_of_one_job(books: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said("digits@1", "digits@2", "-o", "json", capsys=capsys))
    rows = {(d["section"], d["key"]): (d["one"], d["other"]) for d in found["differences"]}
    assert rows[("machine", "driver")] == ("550.54.15", "535.161.07")
    assert rows[("packages", "torch")] == ("2.4.1", "2.4.2")
    assert rows[("result", "machine's cost")] == ("0.10 (play)", "0.20 (play)")
    assert {"spec", "code", "data", "environment"} <= set(found["same"])
    assert (found["one"]["run"], found["other"]["run"]) == ("t0.1", "t0.2")
    text = said("digits@1", "digits@2", capsys=capsys)
    assert "535.161.07" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_a_run_with_itself_has_no_difference(books: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = said("digits@1", "digits@1", capsys=capsys)
    assert "no difference" in text.splitlines()
    assert "the same: spec, code, data, machine, environment, packages, result" in text


def test_a_leg_is_its_newest_run(books: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said("digits/t0", "digits@1", "-o", "json", capsys=capsys))
    assert (found["one"]["run"], found["other"]["run"]) == ("t0.2", "t0.1")


def test_what_only_one_kind_of_record_lists_is_no_loss() -> None:
    """`pip freeze` of one run, the look after setup of the other: the installers are in the second only."""
    assert packages_of(["torch==2.4.0", "pip==24.0", "setuptools==65.5", "wheel==0.43"]) == packages_of(
        ["torch==2.4.0"]
    )
