"""The controller killed at any moment: the same machine goes on, no line of a log is lost, nothing runs twice."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
from gpujob_world import World

from orchestrator.model import Outcome, Reason

SPOT = {"spot": True, "checkpoint": {"pattern": "step_{n}", "every": "1s"}}
KILLS = 15


def kill_between_creates(world: World) -> bool:
    """SIGKILL, but not while a create is on its way: that moment has tests of its own, and a slow end."""
    pid = world.controller_pid()
    if not pid:
        return False
    os.kill(pid, signal.SIGSTOP)
    unanswered = any(r.create_sent_at is not None and r.create_outcome is None for r in world.rentals("count"))
    if unanswered:
        os.kill(pid, signal.SIGCONT)
        return False
    world.kill_controller()
    return True


# Counts until it is told to finish, so that the number of kills decides how long it runs, and not the host's load.
UNTIL_TOLD = """
echo "begin $RANDOM$RANDOM"
step=0
if [ -n "$GPUJOB_RESUME_FROM" ]; then step=$(cat "$GPUJOB_RESUME_FROM"); echo "resumed at $step"; fi
save() { echo "$step" > "$GPUJOB_CKPT/tmp-$step" && mv "$GPUJOB_CKPT/tmp-$step" "$GPUJOB_CKPT/step_$step"; }
trap 'save; echo "saved at $step for the signal"; exit 0' TERM
while [ ! -e "$HOME/finish" ]; do
  step=$((step + 1)); echo "step=$step"
  [ $((step % 20)) -ne 0 ] || save
  sleep 0.1 & wait $!
done
echo "finished at $step"
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [20261130])
def test_killed_at_random_moments_over_a_job_with_a_reclaim(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    with World(tmp_path) as world:
        world.apply(world.spec("count", UNTIL_TOLD, **SPOT))
        killed, told = 0, False
        while killed < KILLS or not told:
            time.sleep(dice.uniform(0.1, 1.3))
            if killed == KILLS // 3 and len(world.rentals("count")) == 1:
                world.until_said("count", "step=5\n")
                world.reclaim(world.rentals("count")[0].id, notice_s=40.0)
            if killed >= KILLS - 3 and not told:
                world.until_said("count", "step=", n=2)
                control = next(world.folder(world.rentals("count")[-1].id).rglob(".gpujob"))
                (control.parent / "finish").touch()
                told = True
            if kill_between_creates(world):
                killed += 1
                world.start_controller()
        job = world.wait("count")
        assert (job.outcome, job.exit_code) == (Outcome.DONE, 0)
        runs, rentals = world.runs("count"), world.rentals("count")
        assert [r.reason for r in rentals] == [Reason.INTERRUPTED, Reason.DONE]
        assert world.ever_made() == len(rentals)  # one machine a rental, however often the controller died
        assert [run.n for run in runs] == [1, 2]
        durable = max((row.step for row in world.checkpoints("count") if row.n == 1), default=0)
        assert (runs[1].resume_step or 0) == durable
        for run, last_words in zip(runs, ("saved at {} for the signal\n", "finished at {}\n"), strict=True):
            text = world.log("count", run.n).decode()
            begin = re.match(r"begin \d+\n", text)
            assert begin, text[:200]
            expected = begin[0]
            at = run.resume_step or 0
            expected += f"resumed at {at}\n" if at else ""
            last = int(text.rpartition(" at ")[2].split()[0])
            expected += "".join(f"step={n}\n" for n in range(at + 1, last + 1)) + last_words.format(last)
            assert text == expected  # byte for byte: each line once, none lost
        world.assert_clean("count")


def test_killed_while_the_provider_answers_finds_its_machine_by_the_tag(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        faults = world.faulty()
        (faults / "create-hang").touch()
        world.apply(world.spec("tagged", "echo ran", providers=["faulty"]))
        world.until(lambda: (faults / "first").exists(), "the machine is made")
        (rental,) = world.rentals("tagged")
        assert (rental.create_outcome, rental.provider_id) == (None, None)
        world.kill_controller()
        world.start_controller()
        job = world.wait("tagged")
        assert job.outcome is Outcome.DONE
        (rental,) = world.rentals("tagged")
        assert rental.provider_id == (faults / "first").read_text()
        assert (faults / "created").read_text().split() == [rental.id]  # one create, ever
        world.assert_clean("tagged")


def test_an_answer_that_got_lost_is_not_asked_for_again(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        faults = world.faulty()
        (faults / "create-lost").touch()
        world.apply(world.spec("lost", "echo ran", providers=["faulty"]))
        job = world.wait("lost")
        assert job.outcome is Outcome.DONE
        (rental,) = world.rentals("lost")
        assert (faults / "created").read_text().split() == [rental.id]
        assert world.ever_made() == 1


def test_of_two_machines_with_one_tag_the_recorded_one_stays(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        faults = world.faulty()
        (faults / "create-twice").touch()
        world.apply(world.spec("twins", "echo up; sleep 4; echo ran", providers=["faulty"]))
        world.until_said("twins", "up")
        world.until(lambda: len(world.machines()) == 1, "the second machine is destroyed")
        job = world.wait("twins")
        assert job.outcome is Outcome.DONE
        (rental,) = world.rentals("twins")
        assert (rental.provider_id, world.ever_made()) == ((faults / "first").read_text(), 2)
        assert world.log("twins", 1) == b"up\nran\n"
        world.assert_clean("twins")


def test_a_refusal_is_no_machine_and_waits_for_another(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        faults = world.faulty()
        (faults / "create-refused").touch()
        world.apply(world.spec("full", "echo ran", providers=["faulty"], wait="4s"))
        job = world.wait("full", code=4)
        assert (job.outcome, job.reason) == (Outcome.FAILED, Reason.NO_CAPACITY)
        assert "none left" in job.detail
        assert all(r.gone_at is not None for r in world.rentals("full"))
        assert world.ever_made() == 0
