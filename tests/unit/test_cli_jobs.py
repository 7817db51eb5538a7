"""ps, describe, logs, cancel, extend, resume, wait, pull and secrets over real books, with scripted answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from cli_books import Books, home_at, writer
from cli_controller import ScriptedController

from orchestrator import actions
from orchestrator.cli import client, main, pull
from orchestrator.cli.reading import open_view
from orchestrator.home import Home
from orchestrator.model import CheckpointRow, Outcome, Reason

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("GPUJOB_NO_KEYRING", "1")
    for name in ("GPUJOB_CONTROLLER", "GPUJOB_CONFIG", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client, "wake", lambda home: None)
    return home_at(tmp_path / "h")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = main.main(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def two_attempts(home: Home, name: str = "digits") -> tuple[str, str, str]:
    """A job whose first machine was reclaimed at step 300 and that now runs from step 250; (job, old, new rental)."""
    with writer(home) as store:
        books = Books(store, name)
        first = books.rent()
        books.run(first)
        row = CheckpointRow(
            job=books.id, task="t0", n=1, name="step_250.npz", step=250, hash="c" * 64, bytes=1000, parent="",
            verified_at=books.now,
        )  # fmt: skip
        store.checkpoint_durable(row)
        books.pay(first, "0.10")
        books.lose(first)
        second = books.rent(spot=False, hourly="0.60")
        books.run(second, n=2, resume="step_250.npz")
        store.progress_seen(books.id, "t0", 2, books.now, step=400.0)
        books.pay(second, "0.05")
        return books.id, first, second


def finished(home: Home, outcome: Outcome = Outcome.DONE, reason: Reason = Reason.DONE, name: str = "digits") -> str:
    with writer(home) as store:
        books = Books(store, name)
        rental = books.rent()
        books.run(rental)
        rc = 0 if outcome is Outcome.DONE else 1
        books.exit(rc=rc)
        books.decide(outcome, reason, "" if rc == 0 else "ValueError: no data", rc)
        books.finish(rental, Reason.DONE if rc == 0 else Reason.FAILED)
        return books.id


# --- ps -------------------------------------------------------------------------------------------------


def test_ps_without_books_is_no_error(home: Home, run: Run) -> None:
    code, out, _ = run("ps")
    assert code == 0
    assert out.startswith("no jobs")
    assert run("ps", "-o", "json")[1] == "[]\n"


def test_ps_shows_the_columns_within_100(home: Home, run: Run) -> None:
    two_attempts(home)
    two_attempts(home, "a-job-with-the-longest-name-that-there-is")
    code, out, _ = run("ps", "-a")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == "NAME STATUS REASON GPU PROVIDER SPOT ATTEMPT AGE LEFT COST".split()
    assert max(map(len, lines)) <= 100
    row = next(line for line in lines if line.startswith("digits"))
    assert row.split()[1] == "RUNNING"
    assert row.split()[7] == "2"
    assert row.endswith("0.15 (play)")
    assert "stand-in" in row
    assert "\x1b" not in out


def test_ps_tells_the_first_run_from_the_newest(home: Home, run: Run) -> None:
    finished(home)
    with writer(home) as store:
        Books(store, "other")
        Books(store, "digits", run=2, now=2000.0)
    names = [line.split()[0] for line in run("ps", "-a")[1].splitlines()[1:]]
    assert sorted(names) == ["digits.1", "digits.2", "other"]


def test_ps_hides_what_ended_long_ago(home: Home, run: Run) -> None:
    finished(home)
    assert "digits" not in run("ps")[1]
    assert "digits" in run("ps", "-a")[1]


def test_ps_says_what_still_bills_after_the_outcome(home: Home, run: Run) -> None:
    with writer(home) as store:
        books = Books(store)
        rental = books.rent()
        books.run(rental)
        books.exit(rc=1)
        books.decide(Outcome.FAILED, Reason.FAILED, "boom", 1)
        books.lose(rental, Reason.FAILED, gone=False)
    out = run("ps")[1]
    assert f"digits is failed, but {rental} still bills 0.34 (play)/h" in out
    assert "RELEASING" in out


def test_ps_json_has_one_object_a_job(home: Home, run: Run) -> None:
    job, _, second = two_attempts(home)
    (found,) = json.loads(run("ps", "-a", "-o", "json")[1])
    assert (found["id"], found["state"], found["attempt"], found["attempts_max"]) == (job, "RUNNING", 2, None)
    assert (found["rental"], found["step"], found["total"]) == (second, 400.0, 1000.0)
    assert found["spent"] == [{"amount": "0.15", "currency": "USD", "play": True}]
    assert found["created_at"] == "1970-01-01T00:16:40.000Z"
    assert found["hourly"]["amount"] == "0.60"


# --- describe -------------------------------------------------------------------------------------------


def test_describe_shows_attempts_money_and_what_bills(home: Home, run: Run) -> None:
    job, first, second = two_attempts(home)
    code, out, _ = run("describe", "digits")
    assert code == 0
    assert job in out
    assert "RUNNING   attempt 2\n" in out
    assert "step 400 of 1000; 50 steps done again after losses" in out
    assert "0.15 (play) spent, 0.60 (play)/h now" in out
    assert f"{second} (local) still bills 0.60 (play)/h" in out
    assert first in out
    assert "step_250.npz" in out
    assert "nothing is billing" not in out


def test_describe_of_a_failed_job_has_the_decisive_line(home: Home, run: Run) -> None:
    job = finished(home, Outcome.FAILED, Reason.FAILED)
    log = home.log(job, "t0", 1, "run")
    log.parent.mkdir(parents=True)
    log.write_text("step 1\nTraceback (most recent call last):\n  File 'x'\nKeyError: 'lr'\n")
    out = run("describe", "digits")[1]
    assert "KeyError: 'lr'" in out
    assert "FAILED  failed" in out
    assert out.rstrip().endswith("nothing is billing")


def test_describe_json(home: Home, run: Run) -> None:
    _, first, second = two_attempts(home)
    found = json.loads(run("describe", "digits", "-o", "json")[1])
    assert [each["id"] for each in found["rentals"]] == [first, second]
    assert found["rentals"][0]["reason"] == "interrupted"
    assert found["billing"] == [second]
    assert found["steps_lost"] == 50
    assert found["spent"]["amount"] == "0.15"
    assert found["runs"][1]["resumed_from"] == "step_250.npz"
    assert Decimal(found["worst_case"]["amount"]) > Decimal(found["spent"]["amount"])


def test_an_unknown_job_gets_the_nearest_name(home: Home, run: Run) -> None:
    two_attempts(home)
    code, _, err = run("describe", "digit")
    assert code == 2
    assert "did you mean digits?" in err
    assert run("describe", "digits@9")[0] == 2


# --- logs -----------------------------------------------------------------------------------------------


def logged(home: Home, job: str) -> None:
    for n, stage, text in ((1, "setup", "installing\n"), (1, "run", "one\ntwo\n"), (2, "run", "three\nfour\nfive\n")):
        path = home.log(job, "t0", n, stage)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "three\nfour\nfive\n"),
        (("--tail", "2"), "four\nfive\n"),
        (("--tail", "0"), ""),
        (("--previous",), "one\ntwo\n"),
        (("--attempt", "1"), "one\ntwo\n"),
        (("--attempt", "1", "--setup"), "installing\n"),
    ],
)
def test_logs_of_every_attempt(
    options: tuple[str, ...], text: str, home: Home, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    logged(home, two_attempts(home)[0])
    assert main.main(["logs", "digits", *options]) == 0
    assert capfdbinary.readouterr().out.decode() == text


def test_logs_since_cuts_by_when_bytes_came(home: Home, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    import time

    job = two_attempts(home)[0]
    logged(home, job)
    times = Path(str(home.log(job, "t0", 2, "run")) + ".times")
    now = time.time()
    times.write_text(f"{now - 3600:.3f} 0\n{now - 60:.3f} 6\n")
    assert main.main(["logs", "digits", "--since", "10m"]) == 0
    assert capfdbinary.readouterr().out == b"four\nfive\n"
    assert main.main(["logs", "digits", "--since", "10s"]) == 0
    assert capfdbinary.readouterr().out == b""
    assert main.main(["logs", "digits", "--since", "2h", "--tail", "1"]) == 0
    assert capfdbinary.readouterr().out == b"five\n"


def test_logs_fall_back_to_setup_when_run_never_started(home: Home, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    job = two_attempts(home)[0]
    path = home.log(job, "t0", 2, "setup")
    path.parent.mkdir(parents=True)
    path.write_text("no such package\n")
    assert main.main(["logs", "digits"]) == 0
    out, err = capfdbinary.readouterr()
    assert out == b"no such package\n"
    assert b"run has not started" in err


def test_logs_json_lines(home: Home, run: Run) -> None:
    logged(home, two_attempts(home)[0])
    lines = [json.loads(line) for line in run("logs", "digits", "-o", "json")[1].splitlines()]
    assert lines[0] == {"run": "t0.2", "stage": "run", "line": "three"}


def test_following_an_ended_job_prints_it_and_gives_its_code(
    home: Home, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    job = finished(home, Outcome.FAILED, Reason.FAILED)
    path = home.log(job, "t0", 1, "run")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"step 1\nboom \xff\n")
    assert main.main(["logs", "-f", "digits"]) == 1
    out, err = capfdbinary.readouterr()
    assert out == b"step 1\nboom \xff\n"
    assert b"ValueError: no data" in err


# --- cancel, extend, resume, wait -----------------------------------------------------------------------


def test_cancel_resolves_all_names_before_it_asks(home: Home, run: Run) -> None:
    job = two_attempts(home)[0]
    with ScriptedController(home, {"cancel": lambda args: {"ok": True}}) as controller:
        assert run("cancel", "digits", "nobody")[0] == 2
        assert controller.asked == []
        code, out, _ = run("cancel", "digits", "--now")
    assert code == 0
    assert controller.asked == [("cancel", {"job": job, "now": True})]
    assert "stopped at once" in out


def test_cancel_all_and_down_are_the_same_verb(home: Home, run: Run) -> None:
    job = two_attempts(home)[0]
    finished(home, name="old")
    with ScriptedController(home, {"cancel": lambda args: {"ok": True}}) as controller:
        code, out, _ = run("down", "--all", "-o", "json")
    assert code == 0
    assert [each["id"] for each in json.loads(out)] == [job]
    assert controller.asked == [("cancel", {"job": job, "now": False})]


def test_cancel_needs_names_or_all_but_not_both(home: Home, run: Run) -> None:
    assert run("cancel")[0] == 2
    assert run("cancel", "x", "--all")[0] == 2


def test_cancel_of_an_ended_job_is_harmless(home: Home, run: Run) -> None:
    finished(home)
    with ScriptedController(home, {}) as controller:
        code, out, _ = run("cancel", "digits")
    assert (code, controller.asked) == (0, [])
    assert "over already" in out


def test_extend_says_which_end_binds(home: Home, run: Run) -> None:
    job = two_attempts(home)[0]
    answers = {"extend": lambda args: {"ok": True, "end": 50_000.0, "binds": "budget"}}
    with ScriptedController(home, answers) as controller:
        code, out, _ = run("extend", "digits", "2h")
        assert run("extend", "digits", "2")[0] == 2
    assert code == 0
    assert controller.asked == [("extend", {"job": job, "seconds": 7200.0})]
    assert "(budget)" in out
    assert "raise budget" in out


def test_resume_hands_secrets_over_in_a_private_folder(home: Home, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with writer(home) as store:
        books = Books(store, secrets=["API"], retry={"max": 0})
        rental = books.rent()
        books.run(rental)
        books.decide(Outcome.CANCELLED, Reason.TTL)
        books.finish(rental, Reason.TTL)
    seen: list[tuple[bytes, int]] = []

    def resume(args: Any) -> dict[str, Any]:
        folder = home.secrets(args["spool"])
        seen.append(((folder / "API").read_bytes(), (folder / "API").stat().st_mode & 0o777))
        return {"ok": True, "id": "digits-2-x", "run": 2}

    with ScriptedController(home, {"resume": resume}) as controller:
        code, _, err = run("resume", "digits")
        assert code == 2
        assert "API" in err
        monkeypatch.setenv("API", "v4lue-of-it")
        code, out, _ = run("resume", "digits", "--ttl", "4h", "--budget", "$9")
    assert code == 0
    assert "digits.2 applied" in out
    ((_, args),) = controller.asked
    assert (args["job"], args["ttl"], args["budget"]) == (books.id, "4h", "9.00 USD")
    assert "v4lue" not in json.dumps(args)
    assert seen == [(b"v4lue-of-it", 0o600)]
    assert not home.secrets(args["spool"]).exists()


@pytest.mark.parametrize(
    ("outcome", "reason", "code"),
    [
        (Outcome.DONE, Reason.DONE, 0),
        (Outcome.FAILED, Reason.FAILED, 1),
        (Outcome.FAILED, Reason.PROVIDER, 3),
        (Outcome.FAILED, Reason.NO_CAPACITY, 4),
        (Outcome.CANCELLED, Reason.CANCELLED, 5),
        (Outcome.CANCELLED, Reason.TTL, 5),
        (Outcome.FAILED, Reason.BUDGET, 5),
    ],
)
def test_wait_gives_the_jobs_exit_code(outcome: Outcome, reason: Reason, code: int, home: Home, run: Run) -> None:
    with writer(home) as store:
        books = Books(store)
        books.decide(outcome, reason, "why")
        books.apply(actions.FinishJob())
    got, out, _ = run("wait", "digits", "--for", "released", "-o", "json")
    assert got == code
    assert json.loads(out)["released"] is True


def test_wait_times_out_as_6_while_it_runs_and_as_3_while_it_only_bills(home: Home, run: Run) -> None:
    _, _, second = two_attempts(home)
    code, _, err = run("wait", "digits", "--timeout", "0")
    assert code == 6
    assert f"{second} (local) still bills" in err
    with writer(home) as store:
        store.apply("digits.1-abcd", [actions.SetOutcome(Outcome.DONE, Reason.DONE)], 2000.0)
    assert run("wait", "digits", "--timeout", "0", "--for", "released")[0] == 3
    assert run("wait", "digits")[0] == 0


# --- pull, shell, secret --------------------------------------------------------------------------------


def test_pull_copies_published_results_by_glob(home: Home, run: Run, tmp_path: Path) -> None:
    job = finished(home)
    results = tmp_path / "results" / "digits"
    (results / "plots").mkdir(parents=True)
    (results / "plots" / "curve.png").write_bytes(b"png")
    (results / "model.npz").write_bytes(b"model")
    with writer(home) as store:
        store.results_done(job, "t0", 1, str(results), 2000.0)
    code, out, _ = run("pull", "digits", "*.png", "--to", str(tmp_path / "here"), "-o", "json")
    assert code == 0
    assert json.loads(out)["files"] == [{"path": "plots/curve.png", "bytes": 3}]
    assert not (tmp_path / "here" / "model.npz").exists()
    assert run("pull", "digits", "*.txt", "--to", str(tmp_path / "there"))[0] == 2


def test_pull_sends_nothing_again_that_is_there_and_writes_through_no_link(
    home: Home, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = finished(home)
    results, dest = tmp_path / "results" / "digits", tmp_path / "here"
    (results / "sub").mkdir(parents=True)
    for name in ("a.txt", "sub/b.txt", ".gpujob-manifest.json"):
        (results / name).write_text(name)
    (tmp_path / "mine").write_text("secret")
    (results / "out").symlink_to(tmp_path / "mine")
    with writer(home) as store:
        store.results_done(job, "t0", 1, str(results), 2000.0)
    assert run("pull", "digits", "--to", str(dest))[:2] == (0, f"2 files, 14 B -> {dest}\n")
    assert sorted(p.name for p in dest.rglob("*") if p.is_file()) == ["a.txt", "b.txt"]
    first = (dest / "a.txt").stat().st_ino
    (results / "sub" / "b.txt").write_text("newer bytes")
    assert run("pull", "digits", "--to", str(dest))[:2] == (0, f"1 file, 11 B -> {dest}\n")
    assert (dest / "a.txt").stat().st_ino == first
    (dest / "sub" / "b.txt").unlink()
    (dest / "sub").rmdir()
    (dest / "sub").symlink_to(tmp_path)
    code, _, err = run("pull", "digits", "--to", str(dest))
    assert (code, "through a link" in err) == (2, True)
    assert not (tmp_path / "b.txt").exists()


def test_a_pull_that_dies_leaves_no_half_file_under_its_name(
    home: Home, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = finished(home)
    results, dest = tmp_path / "results" / "digits", tmp_path / "here"
    results.mkdir(parents=True)
    (results / "weights.bin").write_bytes(b"w" * 1000)
    with writer(home) as store:
        store.results_done(job, "t0", 1, str(results), 2000.0)

    def half(source: Path, to: Path) -> None:
        to.write_bytes(source.read_bytes()[:500])
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(pull.shutil, "copy2", half)
        with pytest.raises(KeyboardInterrupt):
            pull._copy(results / "weights.bin", dest, "weights.bin")
    assert list(dest.iterdir()) == []
    (dest / "weights.bin").write_bytes(b"older")
    with monkeypatch.context() as dying:
        dying.setattr(pull.shutil, "copy2", half)
        with pytest.raises(KeyboardInterrupt):
            pull._copy(results / "weights.bin", dest, "weights.bin")
    assert (dest / "weights.bin").read_bytes() == b"older"  # the bytes of before, or the new ones
    assert run("pull", "digits", "--to", str(dest))[0] == 0
    assert (dest / "weights.bin").stat().st_size == 1000


def test_what_had_arrived_of_a_cut_off_run_can_be_pulled(home: Home, run: Run, tmp_path: Path) -> None:
    two_attempts(home)
    with writer(home) as store:
        first = store.assignments(store.jobs()[0].id)[0]
        store.job(first.job)
    staged = home.results(first.job, first.task, first.n) / "out"
    staged.mkdir(parents=True)
    (staged / "metrics.jsonl").write_text("{}")
    view = open_view(home, "digits")
    assert pull._source(home, view) == (staged, False)


@pytest.mark.parametrize(
    ("glob", "source", "options"),
    [
        ("", "/data/gpujob/j/out/t0.1/", []),
        ("*.png", "/data/gpujob/j/out/t0.1/", ["--include=*/", "--include=*.png", "--include=*.png/**"]),
        ("/root/logs/*.txt", "/root/logs/", ["--include=/*.txt", "--include=/*.txt/**"]),
        ("/root/my run", "/root/", ["--include=/my run", "--include=/my run/**"]),
    ],
)
def test_where_pull_looks_on_the_machine(glob: str, source: str, options: list[str]) -> None:
    assert pull.machine_source("/data", "j", "t0.1", glob) == source
    assert [each for each in pull.filters(glob) if each.startswith("--include")] == options


def test_pull_of_a_live_job_by_a_glob_that_matches_nothing_is_an_error(
    home: Home, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_attempts(home)
    dest = tmp_path / "here"

    def bring(home: Home, view: object, rental: object, glob: str, dest: Path) -> None:
        dest.mkdir(exist_ok=True)
        if glob == "*.png":
            (dest / "curve.png").write_bytes(b"png")

    monkeypatch.setattr(pull, "_from_machine", bring)
    code, _, err = run("pull", "digits", "*.txt", "--to", str(dest))
    assert code == 2
    assert "matches '*.txt'" in err
    assert "gpujob pull digits" in err
    assert run("pull", "digits", "*.png", "--to", str(dest))[:2] == (0, f"1 file, 3 B -> {dest}\n")
    assert run("pull", "digits", "*.png", "--to", str(dest))[0] == 0
    assert run("pull", "digits", "--to", str(tmp_path / "all"))[0] == 0


def test_pull_without_anything_says_what_the_job_does(home: Home, run: Run, tmp_path: Path) -> None:
    with writer(home) as store:
        Books(store)
    code, _, err = run("pull", "digits", "--to", str(tmp_path / "x"))
    assert code == 1
    assert "PENDING" in err
    assert not (tmp_path / "x").exists()


def test_ssh_becomes_openssh_with_the_rentals_config(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, second = two_attempts(home)
    config = home.rental(second) / "ssh_config"
    config.parent.mkdir(parents=True)
    config.write_text("")
    became: list[list[str]] = []

    def execvp(program: str, words: list[str]) -> None:
        became.append(words)
        raise SystemExit(7)

    monkeypatch.setattr("os.execvp", execvp)
    assert main.main(["ssh", "digits"]) == 7
    assert main.main(["ssh", "digits", "nvidia-smi", "-q", "a b"]) == 7
    assert main.main(["ssh", "digits", "ls | wc -l"]) == 7
    assert main.main(["forward", "digits", "8080:80"]) == 7
    start = ["ssh", "-F", str(config)]
    assert became[0] == [*start, second]
    assert became[1] == [*start, second, "nvidia-smi -q 'a b'"]
    assert became[2] == [*start, second, "ls | wc -l"]
    assert became[3][-3:] == ["-L", "127.0.0.1:8080:127.0.0.1:80", second]
    assert "ControlPath=none" in became[3]


def test_ssh_without_a_machine_says_what_the_job_does(home: Home, run: Run) -> None:
    finished(home)
    code, _, err = run("ssh", "digits")
    assert code == 1
    assert "DONE" in err
    assert "gpujob logs digits" in err


def test_attach_without_a_terminal_names_what_works(home: Home, run: Run) -> None:
    two_attempts(home)
    code, _, err = run("attach", "digits")
    assert code == 2
    assert "gpujob logs digits -f" in err


def test_attach_goes_to_the_runs_own_tmux() -> None:
    from orchestrator.cli.shell import attach_text

    assert "tmux -S .gpujob/runs/t0.2/tmux.sock attach -r -t run" in attach_text("t0.2", read_only=True)


def test_secrets_are_stored_listed_and_removed_and_never_printed(
    home: Home, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("p4ssw0rd-value\n"))
    code, out, err = run("secret", "set", "API")
    assert code == 0
    assert "p4ssw0rd" not in out + err
    assert (home.secret_store() / "API").read_bytes() == b"p4ssw0rd-value"
    assert run("secret", "ls")[1] == "API\n"
    assert json.loads(run("secret", "ls", "-o", "json")[1]) == [{"name": "API"}]
    assert run("secret", "rm", "API")[0] == 0
    assert run("secret", "rm", "API")[0] == 2


def test_a_secret_on_the_command_line_is_refused(home: Home, run: Run) -> None:
    code, _, err = run("secret", "set", "API=p4ssw0rd-value")
    assert code == 2
    assert "p4ssw0rd" not in err
    assert not home.secret_store().exists()
