"""Books that are lost or old, with real machines: nothing that runs is harmed, everything is found by its tag."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpujob_world import World, counting

from orchestrator.model import Outcome, Reason, RentalPhase
from providers.base import Ask, Boot, Instance, ProviderConfig, Tag
from providers.local import LocalProvider
from providers.local_machine import lives


def lose_books(world: World) -> None:
    """The database is deleted, with whatever SQLite keeps beside it."""
    for path in world.state.glob("gpujob.db*"):
        path.unlink()


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDtZMlcjUQxHkGFZ3nQ5bDVWw8jlD0zB1kRk0Zl9E1v3 x"
OTHER = "0ther1"


@contextmanager
def stranger(world: World) -> Iterator[Instance]:
    """A machine of another deployment on the same host; must be there at the end."""
    other = LocalProvider(ProviderConfig(OTHER, world.home.make().state, ()))
    tag = Tag(OTHER, f"gj-{OTHER}-aaaabbbbcccc", "job-1-aaaa", "bob")
    made = other.create(other.offers(Ask())[0], tag, time.time() + 600, Boot("#!/bin/sh\nexec sleep 600\n", KEY))
    try:
        yield made
        there = other.get(made.ref)
        assert there is not None
        assert there.status not in lives.DEAD
    finally:
        other.destroy(made.ref)


def standings(audit: dict[str, Any]) -> dict[str, str]:
    return {each["id"]: each["standing"] for each in audit["found"]}


def test_a_deleted_database_is_adopted_and_the_job_goes_on(tmp_path: Path) -> None:
    """The job's own program is never started again, its checkpoints count, and results come home."""
    with World(tmp_path) as world, stranger(world) as alien:
        spec = world.spec("count", counting(60, every=0.3), checkpoint={"every": "5s"}, artifacts=None)
        world.apply(spec)
        world.until(lambda: world.checkpoints("count"), "a first checkpoint")
        (rental,) = world.rentals("count")
        job, machine = world.job("count"), world.machine(rental.id)
        lose_books(world)
        audit = world.json("audit", code=3)
        assert standings(audit) == {machine.ref.id: "unknown", alien.ref.id: "stranger"}
        assert (audit["clean"], audit["books"]) == (False, "lost")
        assert [each["key"] for each in audit["found"]] == [True, False]
        refused = world.cli("apply", str(world.spec("next", "echo hi")), "-y", code=3)[1]
        assert "gpujob audit" in refused
        assert len(world.machines()) == 1  # nothing was rented, nothing was released
        answer = world.json("adopt", "--all", "-y")
        assert [(each["rental"], each["how"]) for each in answer["taken"]] == [(rental.id, "resume")]
        assert (answer["accepted"], answer["left"]) == (True, [])
        again = world.job("count")
        assert (again.id, again.spec_hash, again.snapshot) == (job.id, job.spec_hash, job.snapshot)
        (row,) = world.rentals("count")
        assert (row.phase, row.nonce, row.attempt) == (RentalPhase.LIVE, rental.nonce, 1)
        assert abs(row.end - rental.end) < 3
        done = world.wait("count")
        assert (done.outcome, done.reason) == (Outcome.DONE, Reason.DONE)
        assert [run.n for run in world.runs("count")] == [1]
        assert world.log("count", 1).decode().count("step=1\n") == 1
        assert (world.project / "gpujob-results" / "count" / "result.txt").read_text() == "finished at 60\n"
        assert world.json("audit")["clean"] is True
        world.apply(world.project / "next.yaml")
        assert world.wait("next").outcome is Outcome.DONE


def test_an_adopted_job_survives_a_reclaim(tmp_path: Path) -> None:
    """After adopt the job is relaunched like any other, from the mirror that outlived the books."""
    with World(tmp_path) as world:
        spec = world.spec("count", counting(80, every=0.2), checkpoint={"every": "5s"}, gpu="RTX-4090", spot=True)
        world.apply(spec)
        world.until(lambda: world.checkpoints("count"), "a first checkpoint")
        (rental,) = world.rentals("count")
        lose_books(world)
        assert world.json("adopt", "--all", "-y")["accepted"] is True
        world.until(lambda: world.checkpoints("count"), "its checkpoints are in the books again")
        step = max(c.step for c in world.checkpoints("count"))
        world.kill_machine(rental.id)
        assert world.wait("count").outcome is Outcome.DONE
        assert [r.attempt for r in world.rentals("count")] == [1, 2]
        assert [run.n for run in world.runs("count")] == [1, 2]
        resumed = int(world.log("count", 2).decode().splitlines()[0].removeprefix("resumed at "))
        assert resumed >= step
        world.assert_clean("count")


def test_prune_releases_ours_and_nothing_else(tmp_path: Path) -> None:
    with World(tmp_path) as world, stranger(world) as alien:
        world.apply(world.spec("job", "echo up; sleep 300"))
        world.until_said("job", "up")
        (rental,) = world.rentals("job")
        machine = world.machine(rental.id)
        world.kill_controller()
        lose_books(world)
        shown = world.json("prune", "--dry-run")
        assert shown == {"would_release": [machine.ref.id]}
        assert [i.ref.id for i in world.machines()] == [machine.ref.id]
        assert "add -y" in world.cli("prune", code=2)[1]
        assert [i.ref.id for i in world.machines()] == [machine.ref.id]
        answer = world.json("prune", "-y")
        assert [each["how"] for each in answer["taken"]] == ["destroy"]
        assert answer["accepted"] is True
        assert world.machines() == []
        (row,) = world.rentals("job")
        assert (row.id, row.phase, row.reason) == (rental.id, RentalPhase.GONE, Reason.ORPHAN)
        assert (world.job("job").outcome, world.job("job").reason) == (Outcome.CANCELLED, Reason.ORPHAN)
        audit = world.json("audit")
        assert standings(audit) == {alien.ref.id: "stranger"}


def test_without_its_key_a_machine_is_kept_untouched_until_cancel(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("job", "echo up; sleep 300"))
        world.until_said("job", "up")
        (rental,) = world.rentals("job")
        world.kill_controller()
        lose_books(world)
        shutil.rmtree(world.home.rental(rental.id))
        out, err = world.cli("adopt", "--all", "-y")
        assert "private key is not in" in err
        assert "kept untouched" in out
        (row,) = world.rentals("job")
        assert row.phase is RentalPhase.LIVE
        assert abs(row.end - rental.end) < 3  # the provider's own timer
        assert world.json("describe", "job")["state"] == "RELEASING"
        time.sleep(3)
        assert len(world.machines()) == 1  # silence of a machine that we cannot reach is no reason
        world.cli("cancel", "job")
        world.wait("job", code=None)
        assert world.machines() == []
        assert world.rentals("job")[0].reason is Reason.ORPHAN


def test_an_older_copy_learns_the_later_attempt_and_ends_what_is_over(tmp_path: Path) -> None:
    """Copied while `count` was on its first machine; since then it moved to a second one, and `short` was done."""
    with World(tmp_path) as world:
        spec = world.spec("count", counting(100, every=0.3), checkpoint={"every": "5s"}, gpu="RTX-4090", spot=True)
        world.apply(spec)
        world.apply(world.spec("short", 'echo short; while [ ! -e "$HOME/go" ]; do sleep 0.2; done'))
        world.until(lambda: world.checkpoints("count"), "a first checkpoint")
        world.until_said("short", "short")
        world.kill_controller()
        kept = tmp_path / "kept.db"
        shutil.copy(world.home.database, kept)
        for name in ("-wal", "-shm"):
            if (side := Path(f"{world.home.database}{name}")).exists():
                shutil.copy(side, f"{kept}{name}")
        world.start_controller()
        (first,) = world.rentals("count")
        (world.folder(world.rentals("short")[0].id) / "go").touch()
        world.kill_machine(first.id)
        world.until(lambda: len(world.runs("count")) == 2, "a second run")
        world.until_said("count", "resumed at", n=2)
        assert world.wait("short").outcome is Outcome.DONE
        second = world.rentals("count")[1]
        world.kill_controller()
        lose_books(world)
        for path in tmp_path.glob("kept.db*"):
            shutil.copy(path, world.state / path.name.replace("kept.db", "gpujob.db"))
        assert standings(world.json("audit", code=3)) == {world.machine(second.id).ref.id: "unknown"}
        time.sleep(2)
        assert len(world.machines()) == 1
        answer = world.json("adopt", "--all", "-y")
        assert [(each["rental"], each["how"]) for each in answer["taken"]] == [(second.id, "resume")]
        assert (answer["accepted"], answer["ended"]) == (True, ["short"])
        assert [r.id for r in world.rentals("count")] == [first.id, second.id]
        assert [run.n for run in world.runs("count")] == [1, 2]
        assert world.wait("count").outcome is Outcome.DONE
        ended = world.wait("short", code=1)
        assert (ended.outcome, ended.reason) == (Outcome.FAILED, Reason.INTERRUPTED)
        assert len(world.rentals("short")) == 1  # done long ago: nothing was rented for it again


def test_forget_needs_the_words_and_a_release_under_way(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.apply(world.spec("job", "echo up; sleep 300"))
        world.until_said("job", "up")
        (rental,) = world.rentals("job")
        assert "may bill" in world.cli("forget", rental.id, code=2)[1]
        assert "gpujob cancel job` first" in world.cli("forget", "--yes-it-is-gone", rental.id, code=2)[1]
        assert world.rentals("job")[0].phase is RentalPhase.LIVE
        world.cli("cancel", "job", "--now")
        world.wait("job", code=5)
        assert "gone already" in world.cli("forget", "--yes-it-is-gone", rental.id)[0]


def test_a_stranger_is_shown_and_cannot_be_named(tmp_path: Path) -> None:
    with World(tmp_path) as world, stranger(world) as alien:
        world.apply(world.spec("job", "echo hi"))
        world.wait("job")
        (shown,) = world.json("audit")["found"]
        assert (shown["standing"], shown["owner"], shown["deployment"]) == ("stranger", "bob", OTHER)
        assert "no machine under our tag" in world.cli("adopt", alien.ref.id, "-y", code=2)[1]
        assert world.json("prune", "-y")["taken"] == []
