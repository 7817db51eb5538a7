"""The command line as a process: streams, exit codes, signals, closed pipes, and what it costs to import."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = 'name: digits\ngpu: RTX-4090\nproviders: [local]\nrun: |\n  echo "$GPUJOB_RESUME_FROM"\n'

sys.path.insert(0, str(ROOT / "tests" / "unit"))  # cli_books: the same books as in the unit tests

Cli = Callable[..., subprocess.CompletedProcess[str]]


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "GPUJOB_HOME": str(home), "PYTHONPATH": str(ROOT), "GPUJOB_NO_KEYRING": "1", **more}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    def run(*words: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "orchestrator.cli.main", *words],
            input=stdin, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False,
            env=environment(tmp_path / "home", **more),
        )  # fmt: skip

    return run


def jobs(home: Path, count: int) -> None:
    """Books with `count` ended jobs."""
    from cli_books import Books, home_at, writer

    with writer(home_at(home)) as store, store.transaction():
        for number in range(count):
            books = Books(store, f"job-{number:04d}")
            rental = books.rent()
            books.run(rental)
            books.exit()
            books.decide_done(rental)


def test_data_is_on_stdout_and_errors_on_stderr(cli: Cli) -> None:
    done = cli("schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["required"] == ["name", "gpu", "run"]
    done = cli("validate", "nothing.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing.yaml" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [("stop",), ("apply",), ("logs", "nobody"), ("ps", "--nope"), ("extend", "x")])
def test_usage_errors_are_exit_2_without_a_traceback(words: tuple[str, ...], cli: Cli) -> None:
    done = cli(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("gpujob: ")


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    home = tmp_path / "home"
    jobs(home, 300)
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "ps", "-a", "-o", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(home), cwd=tmp_path,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


def test_ctrl_c_while_waiting_is_130_and_says_that_the_job_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    from cli_books import Books, home_at, writer

    with writer(home_at(home)) as store:
        Books(store)
    import fcntl

    # somebody holds the controller's lock, so that the command starts none
    with (home / "controller.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(
            [sys.executable, "-u", "-m", "orchestrator.cli.main", "logs", "-f", "digits"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(home), cwd=tmp_path,
        ) as process:  # fmt: skip
            assert process.stderr is not None
            assert "digits  PENDING" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            assert "goes on" in process.stderr.read()


def test_plan_works_in_a_fresh_home_and_leaves_no_process(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "gpujob.yaml").write_text(SPEC)
    done = cli("plan", "gpujob.yaml", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["chosen"]["provider"] == "local"
    assert not (tmp_path / "home" / "controller.log").exists()


def test_apply_without_a_terminal_and_without_yes_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "gpujob.yaml").write_text(SPEC)
    done = cli("apply", "gpujob.yaml", "--follow")
    assert done.returncode == 2
    assert "-y" in done.stderr
    assert not (tmp_path / "home" / "controller.log").exists()


def test_a_spec_comes_through_stdin_and_utf16_is_read(cli: Cli, tmp_path: Path) -> None:
    assert cli("validate", "-", stdin=SPEC).returncode == 0
    (tmp_path / "wide.yaml").write_bytes(SPEC.replace("\n", "\r\n").encode("utf-16"))
    assert cli("validate", "wide.yaml").returncode == 0


def test_secrets_come_from_stdin_and_are_never_shown(cli: Cli, tmp_path: Path) -> None:
    done = cli("secret", "set", "API", stdin="p4ssw0rd-value\n")
    assert done.returncode == 0
    assert "p4ssw0rd" not in done.stdout + done.stderr
    assert cli("secret", "ls").stdout == "API\n"
    stored = tmp_path / "home" / "config" / "secrets" / "API"
    assert stored.read_text() == "p4ssw0rd-value"
    assert stored.stat().st_mode & 0o777 == 0o600


def test_a_colour_is_never_sent_into_a_pipe(cli: Cli, tmp_path: Path) -> None:
    jobs(tmp_path / "home", 2)
    for words in (("ps", "-a"), ("describe", "job-0001"), ("doctor",)):
        assert "\x1b" not in cli(*words).stdout


def test_colours_on_a_terminal_unless_forbidden(tmp_path: Path) -> None:
    import pty

    home = tmp_path / "home"
    jobs(home, 1)

    def on_terminal(**more: str) -> bytes:
        ours, theirs = pty.openpty()
        env = environment(home, TERM="xterm", **more)
        command = [sys.executable, "-m", "orchestrator.cli.main", "ps", "-a"]
        with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env, cwd=tmp_path) as process:
            process.wait(30)
            os.close(theirs)
            said = b""
            while True:
                try:
                    chunk = os.read(ours, 65536)
                except OSError:  # the other side is closed and everything was read
                    break
                if not chunk:
                    break
                said += chunk
            os.close(ours)
        return said

    assert b"\x1b[32m" in on_terminal()
    assert b"\x1b" not in on_terminal(NO_COLOR="1")


def test_ps_imports_neither_pydantic_nor_a_terminal_library(tmp_path: Path) -> None:
    home = tmp_path / "home"
    jobs(home, 3)
    code = (
        "import sys; from orchestrator.cli.main import main; code = main(['ps', '-a']);"
        "print([m for m in ('pydantic', 'rich', 'yaml', 'paramiko', 'asyncio') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(home), timeout=60, check=True
    )
    assert done.stderr == "[]\n"
    assert done.stdout.count("job-") == 3


def test_watching_ends_quietly_with_ctrl_c(tmp_path: Path) -> None:
    home = tmp_path / "home"
    jobs(home, 1)
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "orchestrator.cli.main", "ps", "-a", "-w"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(home), cwd=tmp_path,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("NAME")
        assert "job-0000" in process.stdout.readline()
        time.sleep(0.2)  # it is asleep between two pictures
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
