"""The line to a machine: cut, swallowed, or leading to a stranger; with the machine well, and with the machine gone."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpujob_world import World, counting
from stalling_proxy import Proxy

from orchestrator.model import Outcome, Reason
from providers.base import Ref

SPOT = {"spot": True, "checkpoint": {"pattern": "step_{n}", "every": "1s"}}
STEPS = "for n in $(seq 40); do echo step=$n; sleep 0.2; done"
EXPECTED = "".join(f"step={n}\n" for n in range(1, 41)).encode()


@contextmanager
def proxied(world: World) -> Iterator[Proxy]:
    faults = world.faulty()
    proxy = Proxy(lambda: int((faults / "real-port").read_text()))
    (faults / "proxy").write_text(str(proxy.port))
    try:
        yield proxy
    finally:
        proxy.close()


def test_a_cut_connection_to_a_healthy_machine_is_made_again(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("cut", STEPS))
        world.until_said("cut", "step=5\n")
        sessions = [pid for pid, command in world.processes().items() if re.match(r"sshd(-session)?: ", command)]
        assert sessions
        for pid in sessions:
            os.kill(pid, signal.SIGKILL)
        job = world.wait("cut")
        assert job.outcome is Outcome.DONE
        assert len(world.rentals("cut")) == len(world.runs("cut")) == 1
        assert world.log("cut", 1) == EXPECTED
        assert '"event": "lost"' in world.home.controller_log.read_text()


def test_a_black_hole_in_front_of_a_healthy_machine_destroys_nothing(tmp_path: Path) -> None:
    with World(tmp_path) as world, proxied(world) as proxy:
        world.apply(world.spec("hole", STEPS, providers=["faulty"]))
        world.until_said("hole", "step=5\n")
        proxy.stall()
        world.until(lambda: '"event": "lost"' in world.home.controller_log.read_text(), "the silence is noticed")
        time.sleep(3.0)
        (rental,) = world.rentals("hole")
        assert (rental.reason, rental.quiesced_at) == (None, None)
        proxy.resume()
        job = world.wait("hole")
        assert job.outcome is Outcome.DONE
        assert len(world.rentals("hole")) == len(world.runs("hole")) == 1
        assert world.log("hole", 1) == EXPECTED
        world.assert_clean("hole")


def test_a_machine_reclaimed_behind_a_black_hole_gets_a_successor_at_once(tmp_path: Path) -> None:
    with World(tmp_path) as world, proxied(world) as proxy:
        world.apply(world.spec("gone", counting(30), providers=["faulty"], **SPOT))
        world.until(lambda: world.checkpoints("gone"), "a checkpoint is durable")
        proxy.stall()
        world.reclaim(world.rentals("gone")[0].id)
        second = world.until(lambda: world.rentals("gone")[1:], "a successor is rented")
        assert second[0].create_sent_at is not None or second[0].phase == "intent"
        job = world.wait("gone")
        assert job.outcome is Outcome.DONE
        first, last = world.rentals("gone")
        assert (first.reason, last.reason) == (Reason.INTERRUPTED, Reason.DONE)
        assert first.detail == "faulty says interrupted"
        assert world.runs("gone")[1].resume_step


def test_nothing_is_sent_to_a_machine_that_does_not_know_the_nonce(tmp_path: Path) -> None:
    with World(tmp_path, TOKEN="very-secret-value") as world:
        faults = world.faulty()
        (faults / "impostor").touch()
        (world.project / "code").mkdir()
        (world.project / "code" / "secret.py").write_text("print('mine')\n")
        world.apply(world.spec("astray", "echo ran", providers=["faulty"], workdir="code", secrets=["TOKEN"]))
        machine = world.until(lambda: (faults / "impostor").read_text(), "the stranger is there").split()[0]
        world.until(
            lambda: "does not know the rental's nonce" in world.home.controller_log.read_text(), "it was found out"
        )
        time.sleep(2.0)
        home = world.provider.folder(Ref("local", "local", "here", machine)) / "root" / "home"
        nonce = next(home.rglob("nonce"))
        assert nonce.read_text() == "not-yours\n"
        assert [path.name for path in nonce.parent.iterdir()] == ["nonce"]  # no agent was pushed
        assert not list(home.rglob("gpujob"))
        assert world.rentals("astray")[0].ready_at is None
        world.cli("cancel", "astray", "--now")
        job = world.wait("astray", code=5)
        assert job.outcome is Outcome.CANCELLED
        assert world.runs("astray") == ()
