"""`hold_on_failure` and then `apply --replace`: real machines, a real controller, and a kill in between."""

from __future__ import annotations

from pathlib import Path

from gpujob_world import World

from orchestrator.model import Job, Outcome, RentalPhase

RUN = 'echo "tool $(cat tool)"; python3 prog.py'


def program(world: World, text: str) -> None:
    """What `run` starts; beside the spec, so that an edited spec alone leaves the snapshot as it is."""
    (world.project / "code").mkdir(exist_ok=True)
    (world.project / "code" / "prog.py").write_text(f"{text}\n")


def failed_and_held(world: World, **keys: object) -> Job:
    """A job whose program has failed, with its machine held."""
    program(world, "raise SystemExit('bad shape')")
    setup = 'n=$(cat "$HOME/setups" 2>/dev/null || echo 0); echo $((n + 1)) | tee "$HOME/setups" > tool'
    document = {"setup": setup, "workdir": "code", "hold_on_failure": "5m", **keys}
    world.apply(world.spec("held", RUN, **document))
    world.wait("held", code=1, what="outcome")
    world.until(lambda: world.job("held").held_until, "it is held")
    return world.job("held")


def test_a_corrected_program_goes_on_on_the_held_machine(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        old = failed_and_held(world, artifacts=None)
        (rental,) = world.rentals("held")
        assert "echo" in world.cli("ssh", "held", "echo", "echo-works")[0]
        program(world, "print('mended')")
        refused = world.apply(world.project / "held.yaml", code=2)
        assert "`apply --replace` goes on on it" in refused
        answer = world.apply(world.project / "held.yaml", "--replace")
        assert (answer["id"], answer["held_machine"]) == (old.id, rental.id)
        job = world.wait("held")
        assert (job.outcome, job.run, job.replaced_n, job.held_until) == (Outcome.DONE, 1, 1, None)
        assert [r.id for r in world.rentals("held")] == [rental.id]  # no other machine was rented
        assert world.log("held", 2) == b"tool 2\nmended\n"  # other files: setup ran again, in a clean copy
        assert (world.project / "gpujob-results" / "held").is_dir()
        world.assert_clean("held")


def test_the_same_files_need_no_second_setup_and_a_killed_controller_changes_nothing(tmp_path: Path) -> None:
    """Only `run` and a secret change; the controller dies right after it has answered."""
    with World(tmp_path) as world:
        failed_and_held(world)
        (rental,) = world.rentals("held")
        run = 'echo "tool $(cat tool)"; test "$WORD" = swordfish && echo "the word is $WORD"'
        spec = world.spec(
            "held",
            run,
            setup=world_setup(world),
            workdir="code",
            hold_on_failure="5m",
            secrets=["WORD"],
            smoke="echo smoke",
        )
        world.env["WORD"] = "swordfish"
        world.apply(spec, "--replace")
        world.kill_controller()
        world.start_controller()
        assert world.wait("held").outcome is Outcome.DONE
        assert [r.id for r in world.rentals("held")] == [rental.id]
        assert world.log("held", 2) == b"tool 1\nthe word is *********\n"
        assert (world.log("held", 2, "setup"), world.log("held", 2, "smoke")) == (b"", b"smoke\n")
        assert len(world.runs("held")) == 2
        world.assert_clean("held")


def world_setup(world: World) -> str:
    """The setup that the newest run was applied with."""
    return str(world.job("held").spec["setup"])


def test_another_gpu_rents_its_own_machine(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        old = failed_and_held(world)
        program(world, "print('mended')")
        spec = world.spec("held", "python3 prog.py", gpu="RTX-4090", spot=False, workdir="code", hold_on_failure="5m")
        answer = world.apply(spec, "--replace")
        assert (answer["held_machine"], answer["run"]) == (None, 2)
        assert world.wait("held").outcome is Outcome.DONE
        (first,) = world.rentals(old.id)
        (second,) = world.rentals("held")
        assert first.id != second.id
        assert first.phase is RentalPhase.GONE
        assert world.log("held", 1) == b"mended\n"


def test_a_second_failure_is_held_again_and_cancel_releases(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        failed_and_held(world)
        program(world, "raise SystemExit('still bad')")
        world.apply(world.project / "held.yaml", "--replace")
        world.wait("held", code=1, what="outcome")
        job = world.until(lambda: job if (job := world.job("held")).held_until else None, "held again")
        assert "still bad" in job.detail
        assert len(world.machines()) == 1
        world.cli("cancel", "held")
        world.wait("held", code=1)
        assert len(world.rentals("held")) == 1
        world.assert_clean("held")
