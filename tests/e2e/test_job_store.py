"""A whole job whose checkpoints and results go to an object store, from the machine itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from gpujob_world import World
from s3_server import BUCKET, OWNER, ROLE, S3Server

pytestmark = pytest.mark.e2e

KEYS = {"LAB_ACCESS_KEY_ID": OWNER["aws_access_key_id"], "LAB_SECRET_ACCESS_KEY": OWNER["aws_secret_access_key"]}


ENDLESS_AT_FIRST = """
step=0; goal=1000000
if [ -n "$GPUJOB_RESUME_FROM" ]; then step=$(cat "$GPUJOB_RESUME_FROM"); fi
if [ "$step" -gt 0 ]; then goal=$((step + 10)); echo "resumed at $step"; fi
while [ "$step" -lt "$goal" ]; do
  step=$((step + 1)); sleep 0.15
  [ $((step % 5)) -eq 0 ] || continue
  echo $step > "$GPUJOB_CKPT/tmp-$step"; mv "$GPUJOB_CKPT/tmp-$step" "$GPUJOB_CKPT/step_$step"
done
echo "finished at $step"
"""


def configure(world: World, server: S3Server, prefix: str, **more: object) -> None:
    """`stores: {lab: ...}` for this server."""
    store = {"url": f"s3://{BUCKET}/{prefix}", "endpoint": server.endpoint, "region": "us-east-1", **more}
    world.home.make().config_file.write_text(yaml.safe_dump({"stores": {"lab": store}}))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, **KEYS) as found:
        yield found


def steps_in(server: S3Server, prefix: str) -> list[int]:
    """Steps of the manifests that are in the store, of all runs."""
    store = server.store()
    found = [each.key for each in store.list(prefix) if "/m/" in each.key]
    return sorted(json.loads(store.get(key))["step"] for key in found)


def test_results_go_to_the_store_by_name_and_hash(world: World, s3_server: S3Server) -> None:
    configure(world, s3_server, "results")
    run = 'mkdir "$GPUJOB_OUT/sub"; head -c 70000000 /dev/urandom > "$GPUJOB_OUT/big"; echo 0.9 > "$GPUJOB_OUT/sub/acc"'
    world.apply(world.spec("once", run, artifacts=[{"path": "*", "to": "lab:out/{attempt}"}]))
    world.wait("once")
    store = s3_server.store()
    assert store.get("results/out/1/once/sub/acc") == b"0.9\n"
    manifest = json.loads(store.get("results/out/1/once/.gpujob-manifest.json"))
    assert [(row["path"], row["size"]) for row in manifest["files"]] == [("sub/acc", 4), ("big", 70000000)]
    assert manifest["files"][1]["sha256"] == store.sha256("results/out/1/once/big")
    assert store.head("results/out/1/once/gpujob-run.json") is not None
    assert world.job("once").results_dir == "s3://lab/results/out/1/once"
    world.assert_clean("once")
    world.cli("pull", "once", "sub/*", "--to", "here")
    assert (world.project / "here" / "sub" / "acc").read_bytes() == b"0.9\n"
    assert not (world.project / "here" / "big").exists()


def test_a_store_that_is_not_there_rents_nothing(world: World, s3_server: S3Server) -> None:
    configure(world, s3_server, "x")
    checkpoint = {"mirror": "lap:ckpt"}
    said = world.apply(world.spec("typo", "echo $GPUJOB_RESUME_FROM", checkpoint=checkpoint), code=2)
    assert "there is no store 'lap'" in said
    assert "configured: lab" in said
    configure(world, s3_server, "x", endpoint="http://127.0.0.1:9")
    said = world.apply(world.spec("dead", "true", artifacts=[{"path": "*", "to": "lab:out"}]), code=3)
    assert "it does not answer; nothing was rented" in said
    assert world.machines() == []


@pytest.mark.parametrize("kind", ["sts"])
def test_a_machine_mirrors_while_the_controller_is_dead_and_the_next_one_resumes_from_the_store(
    world: World, s3_server: S3Server, kind: str
) -> None:
    prefix = f"e2e-{kind}"
    configure(world, s3_server, prefix, **({"role_arn": ROLE} if kind == "sts" else {}))
    spec = world.spec(
        "train",
        ENDLESS_AT_FIRST,
        spot=True,
        checkpoint={"pattern": "step_{n}", "mirror": "lab:ckpt", "keep": 2},
    )
    world.apply(spec)
    world.until(lambda: steps_in(s3_server, prefix), "the first checkpoint is in the store")
    world.kill_controller()
    before = max(steps_in(s3_server, prefix))
    rental = world.rentals("train")[0].id
    access = json.loads((world.folder(rental) / ".gpujob" / "runs" / "t0.1" / "store.json").read_text())
    for secret in OWNER.values():  # presigned URLs name the key's id, and never hold its secret
        assert secret not in json.dumps(access) or secret == OWNER["aws_access_key_id"]
    assert (access["keys"] == {}) == (kind == "presigned")
    later = world.until(
        lambda: [step for step in steps_in(s3_server, prefix) if step > before], "a checkpoint without a controller"
    )
    world.reclaim(rental)
    world.start_controller()
    world.wait("train")
    log = world.log("train", 2).decode()
    resumed = int(log.split("resumed at ")[1].split()[0])
    assert resumed >= max(later)
    assert f"finished at {resumed + 10}" in log
    job = world.job("train").id
    assert not list(world.home.mirror(job, "t0").glob("manifests/*/*.json"))  # nothing went through this computer
    assert {row.n for row in world.checkpoints("train")} == {1, 2}
    world.assert_clean("train")
