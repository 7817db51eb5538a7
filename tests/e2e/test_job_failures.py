"""What exits mean: the user's own failures, retries, programs that will not stop."""

from __future__ import annotations

from pathlib import Path

from gpujob_world import World

from orchestrator.model import Outcome, Reason


def test_a_failure_of_the_users_program_is_final_and_shown(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        run = 'echo "epoch 1"; echo partial > "$GPUJOB_OUT/notes.txt"; echo "ValueError: bad shape (3, 4)" >&2; exit 7'
        spec = world.spec("bad", run, artifacts=None)
        out, err = world.cli("apply", str(spec), "-y", "--follow", code=1)
        assert "ValueError: bad shape (3, 4)" in out + err
        job = world.wait("bad", code=1)
        assert (job.outcome, job.reason, job.exit_code) == (Outcome.FAILED, Reason.FAILED, 7)
        assert job.detail == "run exited 7 (user program): [user-code] ValueError: bad shape (3, 4)"
        assert len(world.rentals("bad")) == 1  # not relaunched
        assert world.log("bad", 1).decode() == "epoch 1\nValueError: bad shape (3, 4)\n"
        home = world.project / "gpujob-results" / "bad"
        assert (home / "notes.txt").read_text() == "partial\n"
        view = world.json("describe", "bad")
        assert (view["state"], view["exit_code"]) == ("FAILED", 7)
        world.assert_clean("bad")


def test_setup_and_smoke_failures_never_start_the_run(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        for name, keys in (("setup", {"setup": "no-such-installer --all"}), ("smoke", {"smoke": "exit 3 | tee log"})):
            world.apply(world.spec(name, 'echo "never"', **keys))
        for name, rc in (("setup", 127), ("smoke", 3)):
            job = world.wait(name, code=1)
            assert (job.outcome, job.reason, job.exit_code) == (Outcome.FAILED, Reason.FAILED, rc)
            assert job.detail.startswith(f"{name} exited {rc} (user program)")
            assert world.log(name, 1) == b""
        assert "no-such-installer: command not found" in world.job("setup").detail


def test_setup_once_a_machine_and_smoke_in_the_first_attempt_only(tmp_path: Path) -> None:
    """Exit 85 asks to be started again; so does a listed code, as often as it was granted."""
    with World(tmp_path) as world:
        run = """
n=$(cat "$HOME/count" 2>/dev/null || echo 0); n=$((n + 1)); echo $n > "$HOME/count"; echo "start $n"
case $n in 1) exit 85;; 2) exit 29;; 3) exit 30;; esac
"""
        world.apply(
            world.spec("again", run, setup="echo installing", smoke="echo smoke", retry={"max": 2, "exit_codes": [29]})
        )
        job = world.wait("again", code=1)
        assert (job.outcome, job.exit_code) == (Outcome.FAILED, 30)  # 30 is not listed
        assert [world.log("again", n) for n in (1, 2, 3)] == [b"start 1\n", b"start 2\n", b"start 3\n"]
        assert [a.exit.rc for a in world.runs("again") if a.exit] == [85, 29, 30]
        assert (world.log("again", 1, "setup"), world.log("again", 2, "setup")) == (b"installing\n", b"")
        assert (world.log("again", 1, "smoke"), world.log("again", 2, "smoke")) == (b"smoke\n", b"")
        assert len(world.rentals("again")) == 1  # the same machine


def test_retries_are_used_up(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("flaky", "echo no; exit 29", retry={"max": 1}))
        job = world.wait("flaky", code=1)
        assert (job.outcome, job.exit_code, len(world.runs("flaky"))) == (Outcome.FAILED, 29, 2)


def test_a_program_that_ignores_the_signal_is_killed_after_its_grace(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        run = "trap 'echo ignored' TERM; echo started; while :; do sleep 1 || true; done"
        world.apply(world.spec("deaf", run, grace={"time": "3s"}))
        world.until_said("deaf", "started")
        world.cli("cancel", "deaf")
        job = world.wait("deaf", code=5)
        assert (job.outcome, job.reason) == (Outcome.CANCELLED, Reason.CANCELLED)
        (run_,) = world.runs("deaf")
        assert run_.exit is not None
        assert (run_.exit.rc, run_.exit.signalled) == (137, "cancel")
        assert b"ignored" in world.log("deaf", 1)
        world.assert_clean("deaf")


def test_a_bad_machine_is_given_back_and_another_one_finishes_the_job(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        run = (
            'echo "epoch 1"; [ "$GPUJOB_ATTEMPT" = 1 ] || exit 0; '
            'echo "Failed to initialize NVML: Unknown Error" >&2; exit 1'
        )
        world.apply(world.spec("unlucky", run))
        job = world.wait("unlucky")
        assert (job.outcome, job.exit_code) == (Outcome.DONE, 0)
        first, second = world.rentals("unlucky")
        assert (first.reason, second.reason) == (Reason.BAD_HOST, Reason.DONE)
        assert first.detail == "run exited 1: [bad-host] Failed to initialize NVML: Unknown Error"
        cause = world.runs("unlucky")[0].cause
        assert cause is not None
        assert (cause.klass, cause.signature, cause.where) == ("bad-host", "nvml", "other")
        world.assert_clean("unlucky")
