"""Whole jobs without trouble: results, what is recorded, many at once."""

from __future__ import annotations

import json
import time
from pathlib import Path

from gpujob_world import World, counting

from orchestrator.model import Outcome, Reason


def test_a_job_brings_its_results_home_and_gives_the_machine_back(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        (world.project / "code").mkdir()
        (world.project / "code" / "train.sh").write_text('cat "$GPUJOB_DATA/words.txt" > "$GPUJOB_OUT/words.txt"\n')
        (world.project / "words.txt").write_text("alpha\nbeta\n")
        spec = world.spec(
            "first",
            counting(12, every=0.05) + "\nbash train.sh; echo trace > trace.log",
            workdir="code",
            data=[{"from": "words.txt", "path": "words.txt"}],
            artifacts=None,
            checkpoint={"pattern": "step_{n}"},
            progress={"regex": "step=([0-9]+)", "total": 12},
            env={"SEED": "42"},
        )
        applied = world.apply(spec)
        assert applied["name"] == "first"
        job = world.wait("first")
        assert (job.outcome, job.reason, job.exit_code) == (Outcome.DONE, Reason.DONE, 0)
        home = world.project / "gpujob-results" / "first"
        assert (home / "result.txt").read_text() == "finished at 12\n"
        assert (home / "words.txt").read_text() == "alpha\nbeta\n"
        found = {path.name for path in home.rglob("*") if path.is_file()}
        assert {"step_10", "trace.log"} <= found  # the newest checkpoint, and what the job made under workdir
        assert "train.sh" not in found
        assert job.results_dir == str(home)
        (run,) = world.runs("first")
        assert run.environment["python"]
        assert run.environment["kernel"]
        assert run.environment["snapshot"] == job.snapshot != ""
        (rental,) = world.rentals("first")
        assert run.exit is not None
        assert rental.gone_at is not None
        assert rental.gone_at - run.exit.at < 60
        lines = world.log("first", 1).decode().splitlines()
        assert lines[:12] == [f"step={n}" for n in range(1, 13)]
        shown, _ = world.cli("logs", "first")
        assert shown.splitlines()[:12] == lines[:12]
        [row] = world.json("ps", "-a")
        assert (row["name"], row["state"]) == ("first", "DONE")
        world.assert_clean("first")


def test_twenty_jobs_at_once_and_one_listing_for_all(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        faults = world.faulty()
        began = time.monotonic()
        keys = {"providers": ["faulty"]}
        specs = [world.spec(f"job{n:02}", f"echo start; sleep 1; echo done {n}", **keys) for n in range(20)]
        out, _ = world.cli("apply", *map(str, specs), "-y", "-o", "json")
        assert len(json.loads(out)) == 20
        for n in range(20):
            job = world.wait(f"job{n:02}")
            assert job.outcome is Outcome.DONE
            assert world.log(f"job{n:02}", 1) == f"start\ndone {n}\n".encode()
            assert len(world.rentals(f"job{n:02}")) == 1
        # At most one a tick of two seconds, and one more after each destroy; a listing a job would be twenty a tick
        listed = len((faults / "listed").read_text().split())
        assert listed <= (time.monotonic() - began) / 2 + 2 * 20
        world.until(lambda: world.machines() == [], "all are released")
        for n in range(20):
            world.assert_clean(f"job{n:02}")
