"""$GPUJOB_OUT that the program took away and put something else in its place: never a silent DONE."""

from __future__ import annotations

from pathlib import Path

from gpujob_world import World

from orchestrator.model import Outcome, Reason


def test_results_that_cannot_come_home_are_said_and_the_rest_comes(tmp_path: Path) -> None:
    made = 'echo made > made.txt; rm -rf "$GPUJOB_OUT"; mkdir -p "$HOME/other"; echo 1 > "$HOME/other/a.txt"; '
    with World(tmp_path) as world:
        world.apply(world.spec("link", made + 'ln -s "$HOME/other" "$GPUJOB_OUT"', artifacts=None))
        world.apply(world.spec("file", made + 'echo text > "$GPUJOB_OUT"', artifacts=None))
        for name, words in (("link", "which is not followed"), ("file", "a file and no folder")):
            job = world.wait(name, code=1)
            assert (job.outcome, job.reason, job.exit_code) == (Outcome.FAILED, Reason.FAILED, 0)
            assert job.detail.startswith("finished, but $GPUJOB_OUT is ")
            assert words in job.detail
            assert words in world.runs(name)[0].results_lost
            home = world.project / "gpujob-results" / name
            assert (home / "workdir" / "made.txt").read_text() == "made\n"  # what could come did
            assert not list(home.rglob("a.txt"))
        world.assert_clean("file")


def test_what_an_interrupted_run_had_made_comes_home_beside_the_rest(tmp_path: Path) -> None:
    """Each run has its own $GPUJOB_OUT: what the first one had written there was left in the controller's folders."""
    run = """
echo "run $GPUJOB_ATTEMPT" > "$GPUJOB_OUT/metrics.jsonl"; mkdir -p "$GPUJOB_OUT/sub"; echo "up"
trap 'echo saved > "$GPUJOB_OUT/sub/last.txt"; exit 0' TERM
[ "$GPUJOB_ATTEMPT" -gt 1 ] || { while :; do sleep 0.2 & wait $!; done; }
"""
    with World(tmp_path) as world:
        keys = {"checkpoint": {"every": "1h"}, "artifacts": None}
        world.apply(world.spec("twice", run + ': "${GPUJOB_RESUME_FROM}"', spot=True, **keys))
        world.until_said("twice", "up")
        world.reclaim(world.rentals("twice")[0].id, notice_s=30.0)
        job = world.wait("twice")
        assert job.outcome is Outcome.DONE
        home = world.project / "gpujob-results" / "twice"
        assert (home / "metrics.jsonl").read_text() == "run 2\n"
        assert (home / "attempts" / "t0.1" / "metrics.jsonl").read_text() == "run 1\n"
        assert (home / "attempts" / "t0.1" / "sub" / "last.txt").read_text() == "saved\n"
        assert not list(world.home.results(job.id, "t0", 1).parent.glob("t0.*"))
        world.assert_clean("twice")
