"""`GPUJOB_CONTROLLER=ssh://HOST` over a real sshd: the job, its books and its machine are on the other side."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from far_host import NAME, PATH, FarHost, eventually
from plain_sshd import free_port

NEEDED = ("ssh", "ssh-keygen", "rsync", "tmux", "sshd")

pytestmark = pytest.mark.skipif(
    any(shutil.which(program, path=PATH) is None for program in NEEDED), reason="both sides need them"
)

LONG = 'echo started\ntouch "$GPUJOB_OUT/flag"\nwhile sleep 0.1; do :; done'


@pytest.fixture
def far(tmp_path: Path) -> Iterator[FarHost]:
    with FarHost(tmp_path) as far:
        yield far


def answered(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=5) as page:
            return bool(page.status == 200)
    except OSError:
        return False


def spec(far: FarHost, name: str, run: str, more: str = "") -> str:
    body = "".join(f"  {line}\n" for line in run.splitlines())
    text = f"name: {name}\ngpu: none\nproviders: [local]\ngrace: {{time: 5s}}\n{more}run: |\n{body}"
    (far.project / f"{name} 1.yaml").write_text(text)
    return f"{name} 1.yaml"


def test_a_job_from_apply_to_results_runs_on_the_other_host(far: FarHost) -> None:
    code = far.project / "co de"
    code.mkdir()
    (code / "say.sh").write_text('cat "$GPUJOB_DATA"/in/*; echo $WORD $TOKEN > "$GPUJOB_OUT/it\'s here.txt"\n')
    (code / ".env").write_text("never sent")
    data = far.base / "data"
    data.mkdir()
    (data / "a b.txt").write_text("from here\n")
    more = "workdir: co de\ndata: [{from: ../data, path: in}]\nenv: {WORD: }\nsecrets: [TOKEN]\n"
    file = spec(far, "hello", "bash say.sh", more)
    done = far.cli("apply", "-y", "--follow", file, WORD="it's", TOKEN="sesame-9271")
    assert "from here" in done.stdout
    assert "hello: DONE" in done.stdout
    assert not far.home.database.exists(), "this computer keeps no books"
    assert far.far.database.exists()
    assert [line["name"] for line in json.loads(far.cli("ps", "-a", "-o", "json").stdout)] == ["hello"]
    assert json.loads(far.cli("describe", "hello", "-o", "json").stdout)["state"] == "DONE"
    assert "from here" in far.cli("logs", "hello").stdout
    pulled = json.loads(far.cli("pull", "hello", "*.txt", "-o", "json").stdout)
    assert [each["path"] for each in pulled["files"]] == ["it's here.txt"]
    assert (far.project / "hello" / "it's here.txt").read_text() == "it's sesame-9271\n"
    assert list(far.far.state.rglob(".env")) == []
    client = next((far.far.state / "clients").iterdir())
    assert (client.stat().st_mode & 0o777, list((client / "calls").iterdir())) == (0o700, [])
    assert list((client / "pulls").iterdir()) == []


def test_a_removed_file_is_gone_over_there_and_results_are_not(far: FarHost) -> None:
    configs = far.project / "configs"
    configs.mkdir()
    for name in ("a", "b"):
        (configs / f"{name}.yaml").write_text(name)
    (far.project / ".gpujobignore").write_text("* 1.yaml\n")
    run = 'cat "$GPUJOB_PARAM_config" > "$GPUJOB_OUT/x"'
    more = (
        "workdir: .\nexpected: 1m\nsweep: {parameters: {config: {files: configs/*.yaml}}, budget: 5 USD, "
        "metric: {name: x, goal: minimize}}\n"
    )
    file = spec(far, "many", run, more)
    legs = json.loads(far.cli("plan", file, "-o", "json").stdout)
    first = json.dumps(legs)
    (configs / "b.yaml").unlink()
    kept = next((far.far.state / "clients").iterdir()) / "files" / str(far.project)[1:]
    (kept / "gpujob-results").mkdir()
    (kept / "gpujob-results" / "old").write_text("kept")
    legs = json.loads(far.cli("plan", file, "-o", "json").stdout)
    assert first != json.dumps(legs)
    assert sorted(path.name for path in (kept / "configs").iterdir()) == ["a.yaml"]
    assert (kept / "gpujob-results" / "old").read_text() == "kept"
    far.cli("apply", "-y", file)
    far.cli("compare", "many", "--html", "my page.html")
    assert "1 leg" in (far.project / "my page.html").read_text()
    assert list((kept.parents[len(kept.relative_to(far.far.state).parts) - 3] / "pages").iterdir()) == []


def test_a_running_job_is_followed_left_pulled_and_cancelled(far: FarHost) -> None:
    serving = free_port()
    server = f"python3 -m http.server --bind 127.0.0.1 {serving} >/dev/null 2>&1 &\n"
    far.cli("apply", "-y", "-", stdin=(far.project / spec(far, "long", server + LONG)).read_text())
    following = far.start("logs", "long", "-f")
    assert following.stdout is not None
    assert following.stdout.readline() == "started\n"
    assert far.verbs_there()
    os.killpg(following.pid, signal.SIGINT)
    _, said = following.communicate(timeout=30)
    assert following.returncode == 130
    assert "goes on" in said
    eventually("the verb over there ends with ours", lambda: not far.verbs_there())
    assert json.loads(far.cli("describe", "long", "-o", "json").stdout)["state"] == "RUNNING"
    pulled = json.loads(far.cli("pull", "long", "--to", "there", "-o", "json").stdout)
    assert [each["path"] for each in pulled["files"]] == ["flag"]
    assert far.cli("ssh", "long", "echo $GPUJOB_X; cat", stdin="typed").stdout.strip() == "typed"
    far.cli("ssh", "long", "exit 7", code=7)
    port = free_port()
    forwarding = far.start("forward", "long", f"{port}:{serving}")
    eventually("the forward leads to the machine", lambda: answered(port))
    os.killpg(forwarding.pid, signal.SIGINT)
    forwarding.communicate(timeout=30)
    assert forwarding.returncode == 130
    eventually("the far half of the forward ends with ours", lambda: not far.forwards_there())
    far.cli("cancel", "long", "--now")
    far.cli("wait", "long", "--for", "released", "--timeout", "60s", code=None)
    assert json.loads(far.cli("describe", "long", "-o", "json").stdout)["billing"] == []


def test_plan_says_whose_sleep_matters(far: FarHost) -> None:
    said = far.cli("plan", spec(far, "digits", "true")).stdout
    assert "NEEDS THE HOST OF THE CONTROLLER AWAKE" in said
    assert f"only while {NAME} is awake" in said
    assert "this computer" not in said
    assert "ssh://HOST" not in said


def test_mistakes_are_found_here_with_the_users_own_paths(far: FarHost) -> None:
    said = far.cli("apply", "-y", "none.yaml", code=2).stderr
    assert "none.yaml: there is no such file" in said
    file = spec(far, "lost", "true", "workdir: .\nartifacts: [{path: x, to: ~/results}]\n")
    said = far.cli("apply", "-y", file, code=2).stderr
    assert f"{file}:6:" in said
    assert f"~/results would be a path of {NAME}" in said
    absolute = str(far.project / spec(far, "twice", "true"))
    (far.project / "twice 1.yaml").write_text("name: twice\ngpu: none\nproviders: [nobody]\nrun: true\n")
    said = far.cli("apply", "-y", absolute, code=2).stderr
    assert str(far.sshd.home) not in said
    assert json.loads(far.cli("ps", "-a", "-o", "json").stdout) == []


def test_secrets_are_kept_over_there_and_come_by_stdin(far: FarHost) -> None:
    far.cli("secret", "set", "TOKEN", stdin="sesame\n")
    assert json.loads(far.cli("secret", "ls", "-o", "json").stdout) == [{"name": "TOKEN"}]
    assert [path.read_text() for path in far.far.secret_store().iterdir()] == ["sesame"]
    assert not far.home.secret_store().exists()


def test_what_needs_no_controller_asks_no_host(far: FarHost) -> None:
    far.sshd.stop()
    assert "valid" in far.cli("validate", spec(far, "digits", "true")).stdout
    far.cli("diagnose", "-", stdin="CUDA out of memory\n")
    far.cli("init", "new.yaml")
    said = far.cli("ps", code=3).stderr
    assert "cannot be reached; nothing was done" in said
    assert NAME in said


def test_hosts_that_cannot_be_used_are_told_apart(far: FarHost) -> None:
    assert "names no host" in far.cli("ps", code=2, GPUJOB_CONTROLLER="ssh://-oProxyCommand=x").stderr
    (far.far_bin / "gpujob").rename(far.far_bin / "kept")
    said = far.cli("ps", code=3).stderr
    assert "there is no gpujob on that host" in said
    assert "uv tool install" in said
    (far.far_bin / "gpujob").write_text("#!/bin/sh\necho \"gpujob: there is no verb '_remote'\" >&2\nexit 2\n")
    (far.far_bin / "gpujob").chmod(0o755)
    assert "too old" in far.cli("ps", code=3).stderr
    (far.far_bin / "kept").rename(far.far_bin / "gpujob")
    far.hang_up()
    far.known.write_text("")
    assert "not known yet" in far.cli("ps", code=3).stderr
    far.known.write_text(f"[127.0.0.1]:{far.sshd.port} {far.sshd.host_key}\n")
    old = far.sshd.host_key
    far.sshd.new_host_key()
    assert far.sshd.host_key != old
    far.sshd.stop()
    far.sshd.start()
    assert "another host key answers" in far.cli("ps", code=3).stderr
    far.trust()
    far.other_key()
    assert "the login was refused" in far.cli("ps", code=3).stderr


def test_a_connection_cut_in_an_apply_tells_what_was_accepted(far: FarHost) -> None:
    applying = far.start("apply", "-y", "--follow", spec(far, "long", LONG))
    assert applying.stdout is not None
    assert "long.1 applied" in applying.stdout.readline()
    for pid in far.sshd.sessions():
        os.kill(pid, signal.SIGKILL)
    _, said = applying.communicate(timeout=60)
    assert applying.returncode == 3
    assert "long.1 was accepted and goes on" in said
    assert "unchanged" in far.cli("apply", "-y", "long 1.yaml").stdout


def test_ctrl_c_on_a_terminal_leaves_the_job(far: FarHost) -> None:
    far.cli("apply", "-y", spec(far, "long", LONG))
    pid, side = far.at_terminal("logs", "long", "-f")
    said = b""
    while b"started" not in said:
        said += os.read(side, 4096)
    os.write(side, b"\x03")
    try:
        while data := os.read(side, 4096):
            said += data
    except OSError:
        pass  # Linux says so when the other side is closed
    _, status = os.waitpid(pid, 0)
    os.close(side)
    assert os.waitstatus_to_exitcode(status) == 130, said
    assert b"goes on" in said
    assert json.loads(far.cli("describe", "long", "-o", "json").stdout)["state"] == "RUNNING"
