"""Secrets: reach the job, and are nowhere else, during it and after."""

from __future__ import annotations

from pathlib import Path

from gpujob_world import World

TOKEN = "tok-7f3a91c2e5d84b60-value"


def test_a_secret_is_seen_by_the_job_and_by_nothing_else(tmp_path: Path) -> None:
    with World(tmp_path, MY_TOKEN=TOKEN) as world:
        run = 'echo "the token is $MY_TOKEN."; echo ${#MY_TOKEN}; sleep 2; printf %s "$MY_TOKEN" | head -c 9; exit 3'
        world.apply(world.spec("quiet", run, setup='echo "setup $MY_TOKEN"', secrets=["MY_TOKEN"]))
        world.until_said("quiet", f"{len(TOKEN)}\n")
        del world.env["MY_TOKEN"]  # what the verbs after it carry is not the job's
        kept = world.home.secrets(world.job("quiet").id)
        assert [path.stat().st_mode & 0o777 for path in kept.iterdir()] == [0o600]
        held = [path for path in world.state.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
        ours = [path for path in held if world.state / "local" not in path.parents]  # the machine's own log has it
        assert ours == [kept / "MY_TOKEN"]
        for command in world.processes().values():
            assert TOKEN not in command
        world.wait("quiet", code=1)
        world.assert_clean("quiet")
        stars = b"*" * len(TOKEN)
        assert world.log("quiet", 1).startswith(b"the token is " + stars + b".\n")
        assert world.log("quiet", 1, "setup") == b"setup " + stars + b"\n"
        shown = "".join(world.cli("describe", "quiet", "-o", "json"))
        assert TOKEN not in shown
        assert TOKEN[:12] not in shown
        left = [path for path in world.state.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
        assert left == []


def test_an_update_of_a_secret_is_taken_by_the_next_apply(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.cli("secret", "set", "KEY_A", stdin="first-value-1234\n")
        world.apply(world.spec("keyed", 'echo "${#KEY_A}"', secrets=["KEY_A"]))
        world.wait("keyed")
        assert world.log("keyed", 1) == b"16\n"
        assert "KEY_B" in world.apply(world.spec("lacking", "echo hi", secrets=["KEY_B"]), code=2)
