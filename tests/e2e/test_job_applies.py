"""The same spec again, edited specs, names of runs and attempts."""

from __future__ import annotations

from pathlib import Path

import yaml
from gpujob_world import World, counting

from orchestrator.model import Outcome, Reason


def edit(path: Path, **keys: object) -> None:
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **keys}))


def test_apply_says_what_changed_and_replaces_only_when_told(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        spec = world.spec("train", counting(600), workdir="code", checkpoint={"pattern": "step_{n}"})
        (world.project / "code").mkdir()
        (world.project / "code" / "a.py").write_text("one\n")
        first = world.apply(spec)
        again = world.apply(spec)
        assert (again["id"], again["unchanged"]) == (first["id"], True)
        world.until(lambda: world.checkpoints("train"), "a first checkpoint")

        edit(spec, ttl="20m", budget="3 USD", labels={"team": "vision"})
        changed = world.apply(spec)
        assert (changed["id"], sorted(changed["edited"])) == (first["id"], ["budget", "labels", "ttl"])
        (rental,) = world.rentals("train")
        world.until(lambda: abs(world.rentals("train")[0].end - rental.created_at - 1200) < 2, "the new ttl is armed")

        edit(spec, env={"LR": "0.1"})
        refused = world.apply(spec, code=2)
        assert "env" in refused
        assert "--replace" in refused
        (world.project / "code" / "a.py").write_text("two\n")
        edit(spec, env={})
        assert "workdir" in world.apply(spec, code=2)

        replaced = world.apply(spec, "--replace")
        assert (replaced["run"], replaced["id"] != first["id"]) == (2, True)
        old = world.job("train.1")
        assert (old.outcome, old.terminal_at is not None) == (Outcome.CANCELLED, True)
        saved = max(row.step for row in world.checkpoints("train.1"))
        world.until_said("train", f"resumed at {saved}\nstep={saved + 1}\n")
        assert world.checkpoints("train.1")  # none was deleted
        assert world.json("describe", "train.1")["state"] == "CANCELLED"
        assert world.json("describe", "train@1")["name"] == "train"

        elsewhere = world.project / "other"
        elsewhere.mkdir()
        other = elsewhere / "train.yaml"
        other.write_text(
            yaml.safe_dump({**yaml.safe_load(spec.read_text()), "workdir": "../code", "run": "echo other"})
        )
        assert "--replace=train" in world.apply(other, "--replace", code=2)
        world.cli("cancel", "train", "--now")
        world.wait("train", code=5)


def test_a_finished_job_answers_with_its_result_until_told_to_run_again(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        spec = world.spec("once", 'echo ran; exit "${CODE:-0}"')
        world.apply(spec)
        assert world.wait("once").outcome is Outcome.DONE
        answer = world.apply(spec)
        assert (answer["run"], answer["outcome"], answer["unchanged"]) == (1, "done", True)
        assert world.apply(spec, "--again")["run"] == 2
        assert world.wait("once").run == 2
        edit(spec, env={"CODE": "4"})
        world.apply(spec)
        failed = world.wait("once", code=1)
        assert (failed.run, failed.exit_code, failed.reason) == (3, 4, Reason.FAILED)
        assert "gpujob resume once" in world.apply(spec, code=2)
