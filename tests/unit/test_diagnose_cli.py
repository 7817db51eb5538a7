"""`gpujob diagnose`: of a file, a pipe and a job of the books; for people and for programs."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from cli_books import Books, home_at, writer

from orchestrator.cli import client, main
from orchestrator.cli.diagnose import reaction_words
from orchestrator.diagnosis import Reaction
from orchestrator.home import Home
from orchestrator.model import Cause, Outcome, Reason

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
LOG = f"step 1\n[rank1]: Traceback (most recent call last):\n[rank1]:   File 'x'\n[rank1]: {OOM}\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path / "h"))
    monkeypatch.setattr(client, "wake", lambda home: None)
    monkeypatch.chdir(tmp_path)
    return home_at(tmp_path / "h")


def test_a_file_for_people(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.log").write_text(LOG)
    assert main.main(["diagnose", "run.log", "--exit-code", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "class       config-memory: not enough memory for what was asked"
    assert lines[1] == f"decided by  {OOM}"
    assert lines[2] == "            (line 4, rank 1; cuda-oom, confidence high)"
    assert lines[3] == "again       no: the same would happen again"
    assert lines[5].startswith("  1. smaller batch")
    assert lines[-1] == "  exit code 1"


def test_the_last_words_of_an_unknown_failure_are_no_cause(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.log").write_text("working\nbye\n")
    (tmp_path / "digits").mkdir()  # what `pull digits` leaves; it is no log
    assert main.main(["diagnose", "run.log", "--exit-code", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["last line   bye", "            (nothing in the log is a known error; confidence low)"]
    assert main.main(["diagnose", "digits"]) == 2
    assert "there is no job 'digits'" in capsys.readouterr().err


def test_a_missing_package_is_to_be_installed_and_a_missing_script_to_be_sent(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line, advice in (
        ("ModuleNotFoundError: No module named 'einops'", "install it in `setup:`"),
        ("python3: can't open file '/job/train.py': [Errno 2] No such file or directory", "only `workdir` was sent"),
    ):
        (tmp_path / "run.log").write_text(line + "\n")
        assert main.main(["diagnose", "run.log", "--exit-code", "1"]) == 0
        assert advice in capsys.readouterr().out


def test_a_pipe_for_programs(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "dmesg").write_text("[9.5] NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.\n")
    for words in (["-"], []):
        piped = io.TextIOWrapper(io.BytesIO(b"RuntimeError: CUDA error: unspecified launch failure\n"))
        monkeypatch.setattr(sys, "stdin", piped)
        assert main.main(["diagnose", *words, "--dmesg", "dmesg", "-o", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["class"], found["signature"], found["line_number"]) == ("bad-host", "xid", None)
        assert found["again"] == {
            "relaunch": True, "where": "other", "times": 3, "first": "after this one is given back"
        }  # fmt: skip
        assert found["evidence"][0].endswith("unspecified launch failure")


def test_a_terminal_is_no_log_and_a_missing_file_is_named(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert main.main(["diagnose"]) == 2
    assert "nothing to diagnose" in capsys.readouterr().err
    assert main.main(["diagnose", "./missing.log"]) == 2
    assert "missing.log" in capsys.readouterr().err


def test_a_job_of_the_books_with_what_the_provider_said(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with writer(home) as store:
        books = Books(store, "digits")
        rental = books.rent()
        books.run(rental)
        books.exit(rc=137)
        books.lose(rental)
    assert main.main(["diagnose", "digits"]) == 2  # it never printed anything
    assert "has printed nothing" in capsys.readouterr().err
    log = home.log(books.id, "t0", 1, "run")
    log.parent.mkdir(parents=True)
    log.write_text("step 1\nKilled\n")
    assert main.main(["diagnose", "digits", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["class"], found["line"], found["line_number"]) == ("interrupted", "Killed", 2)


def test_describe_names_the_stored_cause_and_where_help_is(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with writer(home) as store:
        books = Books(store, "digits")
        rental = books.rent()
        books.run(rental)
        books.exit(rc=1)
        store.closed(books.id, "t0", 1, books.now, Cause("config-memory", "cuda-oom", OOM, 1))
        books.decide(Outcome.FAILED, Reason.FAILED, "run exited 1 (user program)", 1)
        books.finish(rental, Reason.FAILED)
        kinds = [(entry.kind, entry.text) for entry in store.journal(books.id, limit=100)]
    assert ("diagnosis", f"t0.1 [config-memory] {OOM}") in kinds
    assert main.main(["describe", "digits"]) == 0
    out = capsys.readouterr().out
    assert f"line      [config-memory] {OOM}" in out
    assert "help      gpujob diagnose digits" in out


@pytest.mark.parametrize(
    ("reaction", "words"),
    [
        (Reaction(), "no: the same would happen again"),
        (Reaction("same", 1, "after a pause"), "once, on the same machine, after a pause"),
        (Reaction("any", 2), "twice, on any machine"),
        (Reaction("other", 3), "3 times, on another machine"),
        (Reaction("any", None), "yes, on any machine"),
    ],
)
def test_a_reaction_in_words(reaction: Reaction, words: str) -> None:
    assert reaction_words(reaction) == words
