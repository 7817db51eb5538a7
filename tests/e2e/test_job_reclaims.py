"""Machines that are taken away: with and without notice, in each phase of a job."""

from __future__ import annotations

from pathlib import Path

from gpujob_world import World, counting

from orchestrator.model import Outcome, Reason

SPOT = {"spot": True, "checkpoint": {"pattern": "step_{n}", "every": "1s"}}


def test_an_announced_reclaim_saves_and_goes_on_at_that_step(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("count", counting(40), **SPOT))
        world.until_said("count", "step=8")
        first = world.rentals("count")[0]
        world.reclaim(first.id, notice_s=12.0)
        job = world.wait("count")
        assert (job.outcome, job.exit_code) == (Outcome.DONE, 0)
        one, two = world.runs("count")
        log = world.log("count", 1).decode()
        saved = int(log.rpartition("saved at ")[2].split()[0])
        assert two.resume_step == saved  # the last save, after the notice, and not an older one
        assert world.log("count", 2).decode().startswith(f"resumed at {saved}\nstep={saved + 1}\n")
        assert one.exit is not None
        assert (one.exit.signalled, one.exit.rc) == ("interruption", 0)  # exit 0 after our signal is not done
        lost = world.rentals("count")[0]
        assert (lost.reason, lost.interrupted_at is not None) == (Reason.INTERRUPTED, True)
        world.assert_clean("count")


def test_a_killed_machine_costs_what_was_not_mirrored_and_no_more(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("count", counting(24, save_every=8, taken=True), **SPOT))
        world.until(lambda: world.checkpoints("count"), "a first checkpoint is durable")
        before = max(row.step for row in world.checkpoints("count"))
        world.kill_machine(world.rentals("count")[0].id)
        job = world.wait("count")
        assert job.outcome is Outcome.DONE
        one, two = world.runs("count")
        assert (one.exit, one.results_at) == (None, None)
        assert two.resume_step is not None
        assert two.resume_step >= before
        assert world.log("count", 2).decode().startswith(f"resumed at {two.resume_step}\n")
        assert "finished at 24" in world.log("count", 2).decode()
        assert world.rentals("count")[0].reason is Reason.INTERRUPTED
        view = world.json("describe", "count")
        assert view["state"] == "DONE"
        assert view["outcome"] == "done"
        world.assert_clean("count")


def test_a_reclaim_during_setup_is_no_failure_of_the_user(tmp_path: Path) -> None:
    setup = 'echo "setting up"; [ "$GPUJOB_ATTEMPT" != 1 ] || sleep 60'
    with World(tmp_path) as world:
        world.apply(world.spec("prep", ": $GPUJOB_RESUME_FROM; echo ran", setup=setup, **SPOT))
        world.until_said("prep", "setting up", stage="setup")
        world.reclaim(world.rentals("prep")[0].id, notice_s=0.0)
        job = world.wait("prep")
        assert (job.outcome, job.exit_code) == (Outcome.DONE, 0)
        assert [r.reason for r in world.rentals("prep")] == [Reason.INTERRUPTED, Reason.DONE]
        assert world.log("prep", 1, "setup") == b"setting up\n"
        assert world.log("prep", 2) == b"ran\n"


def test_a_reclaim_before_anything_ran_gets_another_machine(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        data = world.project / "data"
        data.mkdir()
        for number in range(300):
            (data / f"part{number}").write_bytes(bytes([number % 251]) * 200_000)
        world.apply(
            world.spec(
                "load",
                ': $GPUJOB_RESUME_FROM; ls "$GPUJOB_DATA/d" | wc -l',
                data=[{"from": "data", "path": "d"}],
                **SPOT,
            )
        )
        first = world.until(lambda: list(world.runs("load")), "a run is committed")[0]
        world.kill_machine(first.rental)
        job = world.wait("load")
        assert job.outcome is Outcome.DONE
        assert world.runs("load")[0].ordered_at is None  # it was lost while code and data were on their way
        assert world.log("load", 2).strip() == b"300"
        assert world.journal("load").count("store_gone: tombstone=True never_made=False") == 2


def test_losses_without_progress_end_the_job(tmp_path: Path) -> None:
    with World(tmp_path, GPUJOB_LOCAL_RECLAIM="after=2.5s,notice=0s") as world:
        run = 'echo "from ${GPUJOB_RESUME_FROM:-the start}"; sleep 60'
        world.apply(world.spec("stuck", run, spot=True, checkpoint={"pattern": "step_{n}", "every": "1s"}))
        job = world.wait("stuck", code=1)
        assert (job.outcome, job.reason) == (Outcome.FAILED, Reason.NO_PROGRESS)
        assert "3 attempts in a row were lost without a new checkpoint" in job.detail
        assert len([r for r in world.rentals("stuck") if r.provider_id]) <= 6
        world.assert_clean("stuck")


def test_a_program_that_looks_into_its_own_folder_finds_its_checkpoint_there(tmp_path: Path) -> None:
    run = """
last=$(ls "$GPUJOB_CKPT" | sed -n 's/^epoch-//p' | sort -n | tail -1); step=${last:-0}; echo "start at $step"
while [ "$step" -lt 24 ]; do
  step=$((step + 1)); echo "step=$step"
  [ $((step % 8)) -ne 0 ] || echo "$step" > "$GPUJOB_CKPT/epoch-$step"
  sleep 0.2
done
"""
    with World(tmp_path) as world:
        keys = {"pattern": "epoch-{n}", "every": "1s", "resume": "folder"}
        world.apply(world.spec("folder", run, spot=True, checkpoint=keys))
        world.until(lambda: world.checkpoints("folder"), "a first checkpoint is durable")
        world.kill_machine(world.rentals("folder")[0].id)
        job = world.wait("folder")
        assert job.outcome is Outcome.DONE
        second = world.runs("folder")[1]
        assert second.resume_step in (8, 16)
        text = world.log("folder", 2).decode()
        assert text == f"start at {second.resume_step}\n" + "".join(
            f"step={n}\n" for n in range(second.resume_step + 1, 25)
        )
        assert max(row.step for row in world.checkpoints("folder")) == 24


def test_local_data_that_changed_since_apply_is_not_trained_on(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        (world.project / "words.txt").write_text("alpha\n")
        run = ': $GPUJOB_RESUME_FROM; cat "$GPUJOB_DATA/w"; [ "$GPUJOB_ATTEMPT" != 1 ] || sleep 60'
        world.apply(world.spec("drift", run, data=[{"from": "words.txt", "path": "w"}], **SPOT))
        world.until_said("drift", "alpha")
        (world.project / "words.txt").write_text("bravo\n")
        world.kill_machine(world.rentals("drift")[0].id)
        job = world.wait("drift", code=1)
        assert (job.outcome, job.reason) == (Outcome.FAILED, Reason.DATA)
        assert "words.txt has changed since apply" in job.detail
        assert world.log("drift", 2) == b""
        world.assert_clean("drift")
