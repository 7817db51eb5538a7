"""Code from a repository and data from the web, from the spec to the program that reads them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from fake_web import FakeWeb
from gpujob_world import World

from orchestrator.model import Outcome, Reason

pytestmark = pytest.mark.e2e

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 4900000000\n"


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    ran = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_a_commit_and_a_file_of_the_web_reach_the_program(tmp_path: Path) -> None:
    with FakeWeb() as web, World(tmp_path) as world:
        upstream = tmp_path / "upstream"
        upstream.mkdir()
        (upstream / "show.sh").write_text('sha256sum < "$GPUJOB_DATA/a.bin"; ls "$GPUJOB_DATA/set"\n')
        git(upstream, "init", "-q")
        git(upstream, "add", "-A")
        git(upstream, "commit", "-q", "-m", "one")
        web.files = {"/a.bin": os.urandom(50_000)}
        web.faults = [503, ("cut", 20_000)]
        for number in range(20):
            (world.project / "set").mkdir(exist_ok=True)
            (world.project / "set" / f"{number:02}.txt").write_text("x")
        spec = world.spec(
            "digits", run="bash show.sh", workdir={"git": f"file://{upstream}", "ref": "main"},
            data=[{"from": f"{web.url}/a.bin", "path": "a.bin"}, {"from": "set", "path": "set", "sample": 0.1}],
        )  # fmt: skip
        plan = world.json("plan", str(spec))
        assert [(each["kind"], each["files"], each["bytes"]) for each in plan["data"]] == [
            ("https", 1, 50_000), ("local", 2, 2)
        ]  # fmt: skip
        assert plan["snapshot"]["origin"] == f"main of file://{upstream}"
        world.apply(spec)
        job = world.wait("digits")
        assert job.outcome is Outcome.DONE
        assert job.git_commit == git(upstream, "rev-parse", "HEAD")
        log = world.log("digits", 1).decode()
        assert log.splitlines()[0].split()[0] == hashlib.sha256(web.files["/a.bin"]).hexdigest()
        assert len(log.splitlines()) == 3
        world.assert_clean("digits")


def test_data_that_changed_fails_the_job_by_name_and_pointers_are_refused_at_apply(tmp_path: Path) -> None:
    with FakeWeb() as web, World(tmp_path) as world:
        (world.project / "w").mkdir()
        (world.project / "w" / "weights.pt").write_text(POINTER)
        spec = world.spec("pointer", run="true", data=[{"from": "w", "path": "w"}])
        _, err = world.cli("apply", "-y", str(spec), code=2)
        assert "weights.pt: Git LFS pointers, not the content" in err
        assert "git lfs pull" in err
        web.files = {"/a.bin": b"old" * 1000}
        spec = world.spec("changed", run="true", data=[{"from": f"{web.url}/a.bin", "path": "a.bin"}])
        document = world.json("plan", str(spec))
        assert json.dumps(document["data"]).count("https") == 1
        original = web.body
        web.body = lambda to, data, fault: original(  # type: ignore[method-assign]
            to, data if to.headers.get("Range") == "bytes=0-0" else b"new" * 1000, fault
        )
        world.apply(spec)
        job = world.wait("changed", code=1)
        assert (job.outcome, job.reason) == (Outcome.FAILED, Reason.DATA)
        assert "it has changed since apply" in job.detail
        world.assert_clean("changed")
