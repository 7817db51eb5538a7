"""One controller a host; stopped, frozen, and with listings that fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpujob_world import World

from orchestrator.model import Outcome


def test_a_second_controller_refuses_and_the_first_goes_on(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("job", "echo up; sleep 3; echo ran"))
        world.until_said("job", "up")
        first = world.controller_pid()
        second = subprocess.run(
            [sys.executable, "-m", "orchestrator.controller"], env=world.env, capture_output=True, text=True, timeout=30
        )
        assert second.returncode == 3
        assert "is held by another controller" in second.stderr
        assert world.controller_pid() == first
        assert world.json("controller", "status")["pid"] == first
        assert world.wait("job").outcome is Outcome.DONE


def test_a_frozen_controller_looks_before_it_acts(tmp_path: Path) -> None:
    """Stopped longer than a loop may be late: the gap is noted, nothing of the machine's is harmed."""
    with World(tmp_path) as world:
        late = (
            "import orchestrator.clock as c, orchestrator.controller as m; c.LATE_S = 4.0; raise SystemExit(m.main())"
        )
        log = world.home.make().controller_log.open("ab")
        with log:
            world.started.append(subprocess.Popen([sys.executable, "-c", late], env=world.env, stdout=log, stderr=log))
        world.until(lambda: world.home.socket.exists(), "the controller listens")
        run = "for n in $(seq 60); do echo step=$n; sleep 0.2; done"
        world.apply(world.spec("calm", run))
        world.until_said("calm", "step=3\n")
        pid = int(world.home.lock.read_text())
        os.kill(pid, signal.SIGSTOP)
        time.sleep(10.0)  # the computer sleeps
        os.kill(pid, signal.SIGCONT)
        job = world.wait("calm")
        assert job.outcome is Outcome.DONE
        assert len(world.rentals("calm")) == len(world.runs("calm")) == 1
        assert world.log("calm", 1).decode() == "".join(f"step={n}\n" for n in range(1, 61))
        gaps = [line for line in world.journal() if line.startswith("gap: ")]
        assert len(gaps) == 1
        assert gaps[0].endswith(" s late")
        world.assert_clean("calm")


def test_listings_that_fail_are_no_evidence(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        faults = world.faulty()
        world.apply(world.spec("blind", "echo up; sleep 4; echo ran", providers=["faulty"]))
        world.until_said("blind", "up")
        (faults / "list-bug").touch()
        world.kill_controller()
        world.start_controller()  # its first listing is an adapter's bug
        time.sleep(1.0)
        (faults / "list-broken").write_text("502 bad gateway")
        (faults / "list-bug").unlink()
        world.until(lambda: world.log("blind", 1).endswith(b"ran\n"), "the log arrives meanwhile")
        (rental,) = world.rentals("blind")
        assert rental.gone_at is None
        (faults / "list-broken").unlink()
        assert world.wait("blind").outcome is Outcome.DONE
        world.assert_clean("blind")


def test_a_stop_does_not_wait_for_a_provider_that_hangs(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        faults = world.faulty()
        (faults / "create-hang").touch()
        world.apply(world.spec("hung", "echo ran", providers=["faulty"]))
        world.until(lambda: (faults / "first").exists(), "the create hangs")
        assert world.json("controller", "stop")["stopped"] is True
        world.until(lambda: world.controller_pid() == 0, "the controller is gone while its call hangs", timeout=10.0)
        (faults / "create-hang").unlink()
        world.start_controller()
        assert world.wait("hung").outcome is Outcome.DONE
        assert len(world.rentals("hung")) == 1
