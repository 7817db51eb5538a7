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
            world.assert_clean(name)
