"""The controller's end against a machine of `local`: everything that one run needs, with the real agent."""

from __future__ import annotations

import base64
import threading
import time
from pathlib import Path
from typing import Any

from orchestrator import artifacts, ssh, sync
from orchestrator.agent.hook import boot_hook
from orchestrator.artifacts import ArtifactPlan
from orchestrator.checkpoints import mirror_one, push_resume
from orchestrator.home import Home
from orchestrator.logs import LogWriter
from orchestrator.publish import publish
from orchestrator.snapshot import materialize, take
from providers.base import Ask, Boot, GpuRow, ProviderConfig, Tag
from providers.local import LocalProvider

JOB, RENTAL, NONCE, EPOCH = "digits.1-k3v9", "digits-1-k3v9-r1", "ab" * 16, 1_767_000_000_000
RUN = """
echo "token $TOKEN resume '$GPUJOB_RESUME_FROM'"
echo "$GPUJOB_TASK" > "$GPUJOB_OUT/result.txt"
python3 -c "import zipfile; zipfile.ZipFile('$GPUJOB_CKPT/step_7.npz', 'w').writestr('w', 'x' * 9999)"
echo changed > made.txt
"""


def test_one_run_on_a_local_machine(tmp_path: Path) -> None:
    home = Home(state=tmp_path / "state", config=tmp_path / "config").make()
    provider = LocalProvider(ProviderConfig("dep", home.state, (GpuRow("RTX-4090", 24),)))
    folder = home.rental(RENTAL)
    end = time.time() + 300
    boot = Boot(boot_hook(nonce=NONCE, end=end, grace_s=5, action="kill", rental=RENTAL), ssh.new_key(folder))
    made = provider.create(provider.offers(Ask())[0], Tag("dep", RENTAL), end, boot)
    try:
        while (seen := provider.get(made.ref)) is None or not seen.ready or seen.endpoint is None:
            time.sleep(0.05)
        place = seen.endpoint
        target = ssh.Target(RENTAL, place.host, place.port, place.user, seen.host_keys, folder)
        conn = ssh.connect(target)
        try:
            one_run(conn, home, tmp_path)
        finally:
            conn.close()
            ssh.stop_sharing(target)
    finally:
        provider.destroy(made.ref)


def ask(conn: ssh.Connection, command: str, **payload: Any) -> dict[str, Any]:
    return conn.agent(command, {"nonce": NONCE, "epoch": EPOCH, **payload})


def one_run(conn: ssh.Connection, home: Home, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("print(1)")
    conn.push_agent()
    while conn.run("test -s ~/.gpujob/nonce").rc != 0:  # the boot hook plants it
        time.sleep(0.05)
    ask(conn, "arm", end=time.time() + 200, grace_s=5, action="kill")
    folders = ask(conn, "prepare", job=JOB)
    tree = materialize(home, take(work, home).hash, tmp_path / "tree")
    assert sync.push(conn.target, tree, folders["code"], delete=True).files == 1

    ask(
        conn, "order", job=JOB, task="t0", n=1, workspace="base", stages=[{"name": "run", "script": RUN}], env={},
        secrets={"TOKEN": "hunter22"}, resume_from="", resume_mode="env", signal="TERM", grace_s=5,
        checkpoint={"path": "", "pattern": "step_{n}.npz"},
    )  # fmt: skip
    writer = LogWriter(home.log(JOB, "t0", 1, "run"), ["hunter22"])
    stop = threading.Event()

    ended: list[int] = []  # length of the log of a run that is over

    def on_line(line: dict[str, Any]) -> None:
        if line["t"] == "log":
            writer.write(line["offset"], base64.b64decode(line["data"]))
        run = line.get("status", {}).get("runs", {}).get("t0.1", {})
        if run.get("dead"):
            ended.append(run["logs"]["run"])
        if ended and writer.cursor >= ended[-1]:
            stop.set()

    conn.follow({"nonce": NONCE, "events": 0, "logs": {}, "beat_s": 1}, on_line, stop, silence_s=20)
    writer.finish()
    writer.close()
    assert home.log(JOB, "t0", 1, "run").read_text() == "token ******** resume ''\n"

    path = f"{folders['ckpt_root']}/t0.1/step_7.npz"
    manifest = mirror_one(conn, conn.target, home, job=JOB, task="t0", n=1, name="step_7.npz", step=7,
                          remote_path=path, parent=None)  # fmt: skip
    sent = push_resume(conn, conn.target, home, manifest, f"{folders['resume_root']}/t0.2")
    assert conn.run(f"cmp {path} {sent}").rc == 0

    plan = ArtifactPlan(f"{folders['out_root']}/t0.1", tmp_path / "gpujob-results" / "digits")
    results = artifacts.collect(conn, conn.target, home, job=JOB, task="t0", n=1, plan=plan, final=True, success=True)
    assert (results.verified, results.problems, results.refused) == (True, (), ())
    done = publish(home, job=JOB, task="t0", n=1, plan=plan, results=results, success=True, checkpoint=manifest)
    assert (done.path / "result.txt").read_text() == "t0\n"
    assert (done.path / "workdir" / "made.txt").read_text() == "changed\n"
    assert (done.path / "checkpoint" / "step_7.npz").stat().st_size == manifest.bytes
