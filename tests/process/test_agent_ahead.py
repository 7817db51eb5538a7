"""A run that was ordered ahead of the one at work: it begins by itself, or by a word, or never."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from agent_machine import Machine, kill, wait_for

FOREVER = "while [ ! -e $GPUJOB_DATA/enough ]; do sleep 0.05; done"


def own(script: str, n: int, **more: Any) -> dict[str, Any]:
    return Machine.order_of(script, n=n, workspace="own", **more)


def first(machine: Machine, end: str = "") -> None:
    """A run that goes on until it is told."""
    machine.do("order", **own(f"{FOREVER}; echo mine > here; {end}", 1))
    wait_for(lambda: machine.run(n=1)["state"] == "run", "the first run")


def enough(machine: Machine) -> None:
    (machine.job / "data" / "enough").touch()


def test_it_begins_by_itself_when_the_run_before_it_ended_well(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        first(machine)
        ahead = own("ls; sleep 60", 2, after="t0.1", limit={"s": 1.5, "why": "ttl"}, grace_s=1)
        assert machine.do("order", **ahead)["already"] is False
        assert machine.do("order", **ahead)["already"] is True  # a repeat is no word to begin
        shown = machine.run(n=2)
        assert (shown["state"], shown["staged"], shown["limit"]["s"]) == ("queued", True, 1.5)
        time.sleep(2.0)  # longer than its limit, which counts from when it begins
        assert machine.run(n=2)["staged"] is True
        enough(machine)
        wait_for(lambda: machine.run(n=2)["state"] == "run", "its start")
        shown = machine.run(n=2)
        assert "staged" not in shown
        assert shown["begun_s"] >= 0.0
        assert machine.run(n=1)["rc"] == 0
        wait_for(lambda: machine.run(n=2)["dead"], "its own limit")
        assert machine.run(n=2)["signalled"] == "ttl"
        assert b"here" not in machine.log(n=2)  # its workspace is its own


def test_after_any_other_end_it_waits_for_a_word(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        first(machine, end="exit 3")
        machine.do("order", **own("echo second", 2, after="t0.1"))
        enough(machine)
        wait_for(lambda: machine.run(n=1)["dead"], "the failure")
        time.sleep(0.7)  # two looks of the supervisor
        assert machine.run(n=2)["staged"] is True
        assert machine.do("order", **own("echo second", 2))["already"] is True
        wait_for(lambda: machine.run(n=2)["dead"], "the second run")
        assert (machine.run(n=2)["rc"], machine.log(n=2)) == (0, b"second\n")


def test_a_run_that_was_told_to_end_lets_nothing_begin(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        first(machine)
        machine.do("order", **own("echo second", 2, after="t0.1"))
        machine.do("signal", task="t0", n=1, why="cancel", grace_s=5)
        wait_for(lambda: machine.run(n=1)["dead"], "the end")
        time.sleep(0.7)
        assert machine.run(n=2)["staged"] is True


def test_it_is_taken_back_or_it_begins_and_never_both(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        first(machine)
        machine.do("order", **own("echo second", 2, after="t0.1"), secrets={"TOKEN": "hush"})
        for _ in range(2):
            machine.do("withdraw", task="t0", n=2)
        shown = machine.run(n=2)
        assert (shown["dead"], shown["closed"], shown["rc"], shown["started"]) == (True, True, None, 0.0)
        assert not (machine.control / "runs" / "t0.2" / "secrets").exists()
        assert machine.ask("order", **own("echo second", 2))["error"] == "closed"
        machine.do("withdraw", task="t0", n=9)  # its order may still be on its way: it never begins
        assert machine.ask("order", **own("echo ninth", 9, after="t0.1"))["error"] == "closed"
        assert machine.ask("withdraw", task="t0", n=1)["error"] == "busy"
        enough(machine)
        wait_for(lambda: machine.run(n=1)["dead"], "the first run's end")
        time.sleep(0.7)
        assert machine.log(n=2) == b""
        assert [event["run"] for event in machine.events() if event["t"] == "exit"] == ["t0.1"]


def test_one_is_ahead_and_only_of_a_run_that_is_known(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        first(machine)
        assert machine.ask("order", **own("true", 2, after="t0.7"))["error"] == "busy"
        machine.do("order", **own("true", 2, after="t0.1"))
        assert machine.ask("order", **own("true", 3, after="t0.1"))["error"] == "busy"
        assert machine.ask("order", **own("true", 3, after="t0.2"))["error"] == "busy"
        enough(machine)
        wait_for(lambda: machine.run(n=2)["dead"], "both")
        assert machine.ask("order", **own("true", 4, after="t0.7"))["error"] == "missing"


def test_nothing_begins_when_the_end_is_near(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        first(machine)
        machine.do("order", **own("echo second", 2, after="t0.1", room_s=7200))
        enough(machine)
        wait_for(lambda: machine.run(n=1)["dead"], "the first run's end")
        time.sleep(0.7)
        assert machine.run(n=2)["staged"] is True
        machine.do("arm", end=time.time() + 10_000, grace_s=20, action="kill")
        wait_for(lambda: machine.run(n=2)["dead"], "the second run")


def test_it_begins_although_the_supervisor_was_killed(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        first(machine)
        machine.do("order", **own("echo second", 2, after="t0.1"))
        kill(machine.supervisor())
        enough(machine)
        wait_for(lambda: machine.run(n=1)["dead"], "the first run's end, by its wrapper")
        machine.do("start")
        wait_for(lambda: machine.run(n=2)["dead"], "the second run")
        assert machine.run(n=2)["rc"] == 0


def test_the_limit_of_a_run_at_work_is_moved(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        assert machine.ask("limit", task="t0", n=1, limit={"s": 9, "why": "ttl"})["error"] == "missing"
        machine.do("order", **own("sleep 60", 1, limit={"s": 3600, "why": "ttl"}, grace_s=1))
        wait_for(lambda: machine.run(n=1)["state"] == "run", "its start")
        assert machine.run(n=1)["limit"] == {"s": 3600, "why": "ttl"}
        assert machine.ask("limit", task="t0", n=1, limit={"s": "9", "why": "ttl"})["error"] == "invalid"
        machine.do("limit", task="t0", n=1, limit={"s": 7200, "why": "budget"})
        assert machine.run(n=1)["limit"] == {"s": 7200, "why": "budget"}
        machine.do("limit", task="t0", n=1, limit={"s": 0.5, "why": "budget"})
        wait_for(lambda: machine.run(n=1)["dead"], "its limit")
        assert machine.run(n=1)["signalled"] == "budget"
        assert machine.do("limit", task="t0", n=1, limit={"s": 9, "why": "ttl"})["ended"] is True
