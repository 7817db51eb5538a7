"""Sick machines of this host: found before anything is sent to them, given back, and another one does the work."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpujob_world import World

from orchestrator.model import Outcome, Reason


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("wrong-card", "gpu-name: GPU 0: Tesla T4, wanted RTX-4090"),
        ("xid", "xid: Xid 79 in the kernel's log, wanted none"),
    ],
)
def test_a_sick_machine_is_given_back_and_the_next_one_does_the_work(tmp_path: Path, kind: str, words: str) -> None:
    with World(tmp_path, GPUJOB_LOCAL_SICK=f"attempt=1,kind={kind}") as world:
        (world.project / "code").mkdir()
        (world.project / "code/big.bin").write_bytes(b"x" * 1000)
        run = "test -s big.bin && echo trained"
        spec = world.spec("sick", run, gpu="RTX-4090", workdir="code", smoke="echo smoked")
        world.apply(spec)
        assert world.wait("sick").outcome is Outcome.DONE
        first, second = world.rentals("sick")
        assert (first.reason, first.detail) == (Reason.BAD_HOST, words)
        assert second.reason is Reason.DONE
        assert [(run.rental, run.ordered_at is not None) for run in world.runs("sick")] == [
            (first.id, False),
            (second.id, True),
        ]
        assert world.log("sick", 2, "smoke") == b"smoked\n", "no run before it has passed the trial"
        shown = world.json("describe", "sick")["preflights"]
        assert [(look["rental"], look["findings"][0]["klass"]) for look in shown[:1]] == [(first.id, "bad-host")]
        assert [f["klass"] for f in shown[1]["findings"] if f["klass"] != "warn"] == []
        assert shown[1]["facts"]["gpu"]["cards"][0]["name"] == "RTX-4090 (stand-in)"
        assert words.split(",")[0][:60] in world.cli("describe", "sick")[0]
        world.assert_clean("sick")


def test_what_no_machine_can_do_fails_at_once_with_what_to_change(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("shm", "echo never", shm_size="4000GB"))
        job = world.wait("shm", code=1)
        assert (job.outcome, job.reason) == (Outcome.FAILED, Reason.CONFIG)
        assert "shm: " in job.detail
        assert "leave shm_size out" in job.detail
        assert len(world.rentals("shm")) == 1
        world.assert_clean("shm")


def test_a_healthy_machine_is_looked_at_once(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("well", "echo ok; exit 85", gpu="RTX-4090:2"), code=None)
        world.until(lambda: len(world.runs("well")) >= 2, "a second run")
        world.cli("cancel", "well", "--now")
        world.wait("well", code=5)
        assert len([line for line in world.journal("well") if line.startswith("preflight:")]) == 1
        world.assert_clean("well")


def test_a_trial_that_shows_waste_ends_the_job_with_the_figures(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        smoke = "for i in 1 2 3 4 5 6; do echo step=$i; sleep 0.2; done"
        progress = {"regex": "step=(\\d+)", "total": 100_000}
        world.apply(world.spec("waste", "echo never", smoke=smoke, progress=progress))
        job = world.wait("waste", code=1)
        assert (job.outcome, job.reason, job.exit_code) == (Outcome.FAILED, Reason.FAILED, 78)
        assert job.detail.startswith("smoke exited 78: [config] gpujob: [smoke] at ")
        assert " the 100,000 steps take " in job.detail
        assert ", ttl leaves 10 min: raise ttl above " in job.detail
        assert len(world.rentals("waste")) == 1
        assert world.log("waste", 1) == b""
        looks = {look["look"]: look for look in world.json("describe", "waste")["preflights"]}
        assert looks["smoke"]["facts"]["steps_seen"] == 6
        assert looks["smoke"]["findings"][0]["name"] == "smoke-ttl"
        assert looks["preflight"]["findings"] == []
        world.assert_clean("waste")
