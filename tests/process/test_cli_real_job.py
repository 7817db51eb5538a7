"""The verbs against the real controller and a real machine of this host: start, look, pull, cancel, stop."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("ssh", "ssh-keygen", "rsync", "tmux", "sshd")
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

pytestmark = pytest.mark.skipif(
    any(shutil.which(program, path=PATH) is None for program in NEEDED), reason="a `local` machine needs them"
)

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    env = {**kept, "PATH": PATH, "GPUJOB_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    env |= {"GPUJOB_NO_KEYRING": "1", "GPUJOB_CONTROLLER": "here"}

    def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "orchestrator.cli.main", *words]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=90, cwd=tmp_path, check=False, env=env
        )

    yield run
    run("cancel", "--all", "--now")
    for line in json.loads(run("ps", "-o", "json").stdout):
        run("wait", line["name"], "--for", "released", "--timeout", "60s")
    run("controller", "stop", "--now")


def spec(folder: Path, name: str, run: str, more: str = "") -> str:
    path = folder / f"{name}.yaml"
    body = "".join(f"  {line}\n" for line in run.splitlines())
    path.write_text(f"name: {name}\ngpu: none\nproviders: [local]\n{more}run: |\n{body}")
    return path.name


def test_a_job_from_apply_to_results(cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "apply", "-y", "--follow", spec(tmp_path, "hello", 'echo "made $GPUJOB_JOB_ID" | tee "$GPUJOB_OUT/x.txt"')
    )
    assert done.returncode == 0, done.stderr
    job = json.loads(cli("describe", "hello", "-o", "json").stdout)
    assert done.stdout.splitlines()[1] == f"made {job['id']}"
    assert "hello: DONE" in done.stdout
    assert done.stdout.rstrip().endswith("nothing is billing")
    assert (job["state"], job["billing"], job["runs"][0]["exit"]["code"]) == ("DONE", [], 0)
    assert (Path(job["results"]) / "x.txt").read_text() == f"made {job['id']}\n"
    assert cli("logs", "hello").stdout == f"made {job['id']}\n"
    again = cli("apply", "-y", "hello.yaml")
    assert (again.returncode, "is done already" in again.stdout) == (0, True)
    pulled = json.loads(cli("pull", "hello", "*.txt", "--to", "here", "-o", "json").stdout)
    assert [each["path"] for each in pulled["files"]] == ["x.txt"]


def test_looking_into_a_running_job_and_cancelling_it(cli: Cli, tmp_path: Path) -> None:
    # It never ends by itself: the test cancels it
    script = 'echo started\ntouch "$GPUJOB_OUT/flag"\nwhile sleep 0.1; do :; done'
    assert cli("apply", "-y", spec(tmp_path, "long", script, "ttl: 10m\ngrace: {time: 5s}\n")).returncode == 0
    state = json.loads(cli("controller", "status", "-o", "json").stdout)
    assert (state["alive"], state["answers"], state["live_jobs"]) == (True, True, 1)
    said = ""
    for _ in range(100):
        said = cli("logs", "long").stdout
        if said:
            break
    assert said == "started\n"
    assert cli("ssh", "long", "echo $((6*7))").stdout == "42\n"
    assert json.loads(cli("ps", "-o", "json").stdout)[0]["state"] == "RUNNING"
    assert "long.1 unchanged" in cli("apply", "-y", "long.yaml").stdout
    before = json.loads(cli("describe", "long", "-o", "json").stdout)["ttl_end"]
    assert json.loads(cli("extend", "long", "1h", "-o", "json").stdout)["end"] > before
    assert "flag" in cli("pull", "long", "-o", "json").stdout
    assert cli("wait", "long", "--timeout", "1s").returncode == 6
    assert cli("cancel", "long").returncode == 0
    assert cli("wait", "long", "--for", "released", "--timeout", "60s").returncode == 5
    assert json.loads(cli("describe", "long", "-o", "json").stdout)["billing"] == []


def test_a_failure_of_the_program_is_exit_1_with_its_decisive_line(cli: Cli, tmp_path: Path) -> None:
    done = cli("apply", "-y", "--follow", spec(tmp_path, "bad", "python3 -c \"raise KeyError('lr')\""))
    assert done.returncode == 1
    assert "KeyError: 'lr'" in done.stdout.partition("bad: FAILED")[2]
    refused = cli("apply", "-y", "bad.yaml")
    assert refused.returncode == 2
    assert "gpujob resume bad" in refused.stderr


def test_a_dead_controller_is_restarted_by_any_verb_while_a_job_is_open(cli: Cli, tmp_path: Path) -> None:
    assert cli("apply", "-y", spec(tmp_path, "long", "sleep 600", "ttl: 10m\ngrace: {time: 1s}\n")).returncode == 0
    stopped = cli("controller", "stop")
    assert (stopped.returncode, "go on to their own hard end" in stopped.stderr) == (0, True)
    assert json.loads(cli("controller", "status", "-o", "json").stdout)["alive"] is False
    assert cli("ps").returncode == 0
    alive = [json.loads(cli("controller", "status", "-o", "json").stdout)["alive"] for _ in range(10)]
    assert alive[-1] is True
