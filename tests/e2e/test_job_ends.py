"""Ends that somebody or something orders: cancel, ttl, budget, a hold after a failure."""

from __future__ import annotations

import time
from pathlib import Path

from gpujob_world import World, counting

from orchestrator.model import Outcome, Reason
from providers.local_machine.prices import hourly


def test_cancel_saves_first_and_cancel_now_does_not(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        for name in ("gently", "roughly"):
            world.apply(world.spec(name, counting(500), artifacts=None, checkpoint={"pattern": "step_{n}"}))
        for name in ("gently", "roughly"):
            world.until_said(name, "step=3")
        world.cli("cancel", "gently")
        world.cli("cancel", "roughly", "--now")
        for name in ("gently", "roughly"):
            job = world.wait(name, code=5)
            assert (job.outcome, job.reason) == (Outcome.CANCELLED, Reason.CANCELLED)
        saved = int(world.log("gently", 1).decode().rpartition("saved at ")[2].split()[0])
        assert max(row.step for row in world.checkpoints("gently")) == saved
        assert b"saved at" not in world.log("roughly", 1)
        assert world.runs("gently")[0].results_at is not None
        assert world.json("describe", "gently")["state"] == "CANCELLED"
        for name in ("gently", "roughly"):
            world.assert_clean(name)


def test_cancel_before_there_is_a_machine(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("never", "echo hi", max_price="0.0001 USD", wait="5m"))
        world.until(lambda: world.job("never").wait_since, "it waits for capacity")
        assert world.json("ps")[0]["state"] == "PENDING"
        world.cli("cancel", "never")
        job = world.wait("never", code=5)
        assert (job.outcome, job.reason, world.rentals("never")) == (Outcome.CANCELLED, Reason.CANCELLED, ())


def test_cancel_while_the_machine_is_coming(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("early", "sleep 60"))
        world.until(lambda: world.rentals("early"), "an intent is committed")
        world.cli("cancel", "early")
        job = world.wait("early", code=5)
        assert job.outcome is Outcome.CANCELLED
        world.assert_clean("early")


def test_no_capacity_within_its_wait(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("dear", "echo hi", max_price="0.0001 USD", wait="1s"))
        job = world.wait("dear", code=4)
        assert (job.outcome, job.reason) == (Outcome.FAILED, Reason.NO_CAPACITY)
        assert "above max_price" in job.detail


def test_the_ttl_saves_first_and_then_releases(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        spec = world.spec(
            "short", counting(500), ttl="15s", grace={"time": "3s"}, artifacts=None, checkpoint={"pattern": "step_{n}"}
        )
        world.apply(spec)
        job = world.wait("short", code=5)
        assert (job.outcome, job.reason) == (Outcome.FAILED, Reason.TTL)
        (run,) = world.runs("short")
        assert run.exit is not None
        assert (run.exit.signalled, run.exit.rc) == ("ttl", 0)
        saved = int(world.log("short", 1).decode().rpartition("saved at ")[2].split()[0])
        assert max(row.step for row in world.checkpoints("short")) == saved
        assert run.results_at is not None
        (rental,) = world.rentals("short")
        assert rental.reason is Reason.TTL
        assert rental.gone_at is not None
        assert rental.gone_at <= rental.end + 2  # saved, brought home and released before its own end
        world.assert_clean("short")
        # and on from there
        world.cli("resume", "short", "--ttl", "10m")
        world.until_said("short", f"resumed at {saved}\n")
        assert world.job("short").run == 2
        assert world.job("short.1").outcome is Outcome.FAILED
        world.cli("cancel", "short", "--now")
        world.wait("short", code=5)


def test_the_budget_ends_a_job_as_its_ttl_would(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        # The margin of ten minutes that a slow release may cost is part of the reserve
        offer = hourly(None, spot=False)
        budget = float(offer) * (600 + 20) / 3600
        world.apply(
            world.spec("poor", counting(500), spot=False, budget=f"{budget:.6f} USD", ttl="35s", grace={"time": "3s"})
        )
        job = world.wait("poor", code=5)
        assert (job.outcome, job.reason) == (Outcome.FAILED, Reason.BUDGET)
        assert b"saved at" in world.log("poor", 1)
        (rental,) = world.rentals("poor")
        assert (rental.reason, rental.end_reason) == (Reason.BUDGET, Reason.BUDGET)
        assert rental.end - rental.created_at < 25
        with world.books() as store:
            assert float(store.spent(job.id)) <= budget
        world.assert_clean("poor")


def test_extend_moves_every_timer(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("long", "echo up; sleep 300", ttl="5m"))
        world.until_said("long", "up")
        before = world.rentals("long")[0].end
        world.cli("extend", "long", "30m")

        def moved() -> bool:
            (rental,) = world.rentals("long")
            return abs(rental.end - before - 1800) < 1 and rental.end == rental.wanted_end

        world.until(moved, "the books have the confirmed end")
        (rental,) = world.rentals("long")
        machine = world.machine(rental.id)
        assert machine.ends_at is not None
        assert abs(machine.ends_at - rental.end) < 1
        deadline = dict(
            line.split("=", 1) for line in next(world.folder(rental.id).rglob("deadline")).read_text().splitlines()
        )
        assert abs(float(deadline["end"]) - rental.end) < 1
        assert deadline["confirmed"] == "1"
        world.cli("cancel", "long", "--now")
        world.wait("long", code=5)


def test_a_hold_after_a_failure_lets_its_user_in(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        for name, hold in (("held", "5m"), ("brief", "4s")):
            world.apply(world.spec(name, "echo evidence > left.txt; exit 9", hold_on_failure=hold))
        for name in ("held", "brief"):
            world.cli("wait", name, "--for", "outcome", "--timeout", "60s", code=1)
        out, _ = world.cli("ssh", "held", "--", "cat gpujob/*/work/base/left.txt")
        assert out == "evidence\n"
        shown = world.json("describe", "held")
        assert (shown["state"], shown["exit_code"]) == ("RELEASING", 9)
        brief = world.wait("brief", code=1)
        (rental,) = world.rentals("brief")
        assert brief.held_until is not None
        assert rental.releasing_at is not None
        assert rental.releasing_at >= brief.held_until
        assert rental.reason is Reason.FAILED
        assert world.job("held").terminal_at is None
        world.cli("cancel", "held")
        job = world.wait("held", code=1)
        assert (job.outcome, job.reason, job.exit_code) == (Outcome.FAILED, Reason.FAILED, 9)  # a failure stays one
        assert job.held_until is not None
        assert time.time() < job.held_until
        world.assert_clean("held")
