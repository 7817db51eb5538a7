"""A batch over real machines of this host: every item once, whatever is lost or fails."""

from __future__ import annotations

from pathlib import Path

from gpujob_world import World

from orchestrator.model import Outcome

RUN = """
while read -r item; do
  [ "$(cat "$item")" != bad ] || { echo "cannot read $item"; exit 4; }
  echo "did $item" | tee -a "$GPUJOB_OUT/log-$GPUJOB_RUN.txt"
  cp "$item" "$GPUJOB_OUT/$(basename "$item").out"
  echo "$item" >> "$GPUJOB_DONE"
  sleep "${PAUSE:-0.05}"
done < "$GPUJOB_ITEMS"
"""


def frames(world: World, count: int, bad: tuple[int, ...] = ()) -> None:
    folder = world.project / "code" / "frames"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number:02d}.txt").write_text("bad" if number in bad else str(number))


def batch(**keys: object) -> dict[str, object]:
    return {"workload": "batch", "workdir": "code", "batch": {"items": "frames/*.txt", **keys}, "artifacts": None}


def outputs(world: World, name: str) -> list[str]:
    return sorted(path.name for path in (world.project / "gpujob-results" / name).glob("*/*.out"))


def test_a_lost_machine_requeues_only_its_undone_items(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        frames(world, 10)
        spec = world.spec("render", RUN, env={"PAUSE": "1.5"}, **batch(slice=10))
        world.apply(spec)
        world.until(lambda: world._has_books() and len(done(world, "render")) >= 3, "three items are done and home")
        world.kill_machine(world.rentals("render")[0].id)
        before = done(world, "render")
        world.apply(world.spec("render", RUN, env={"PAUSE": "1.5"}, **batch(slice=10)))
        job = world.wait("render")
        assert (job.outcome, job.detail) == (Outcome.DONE, "10 of 10 items done")
        _, second = world.runs("render")
        log = world.home.log(job.id, second.task, second.n, "run").read_text().split()
        again = [word for word in log if word.startswith("frames/")]
        assert set(again) == {f"frames/{n:02d}.txt" for n in range(10)} - before
        assert len(again) == 10 - len(before)
        assert outputs(world, "render") == [f"{n:02d}.txt.out" for n in range(10)]  # those of the lost machine too
        world.assert_clean("render")


def done(world: World, name: str) -> set[str]:
    with world.books() as store:
        return {row.item for row in store.items(store.find(name).job) if row.state == "done"}


def test_failed_items_are_listed_with_their_reason_and_block_no_other(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        frames(world, 8, bad=(2, 5))
        world.apply(world.spec("render", RUN, **batch(slice=4, workers=2)))
        job = world.wait("render", code=1)
        assert job.outcome is Outcome.FAILED
        assert job.detail.startswith("6 of 8 items done, 2 failed: frames/02.txt (run exited 4")
        with world.books() as store:
            failed = {row.item: row.detail for row in store.items(job.id) if row.state == "failed"}
        assert set(failed) == {"frames/02.txt", "frames/05.txt"}
        assert outputs(world, "render") == [f"{n:02d}.txt.out" for n in range(8) if n not in (2, 5)]
        assert [row["item"] for row in world.json("describe", "render")["failed_items"]] == sorted(failed)

        frames(world, 8)  # mended: another code, so everything is done anew
        world.apply(world.project / "render.yaml")
        again = world.wait("render.2")
        assert again.outcome is Outcome.DONE
        world.assert_clean("render.2")
