"""Jobs that burn money, the whole way: a stand-in card that shows little use, and a run that hangs and is stopped."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from gpujob_world import World

from orchestrator.model import Outcome, Reason

pytest.importorskip("apprise")


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a webhook, and what was posted to it."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"json://user:t0psecret@127.0.0.1:{server.server_port}/", posted
        server.shutdown()
        thread.join()


STEPS = 'n=0; while :; do n=$((n + 1)); echo "step $n"; sleep 1; done'
HANGS = """save() { echo state > "$GPUJOB_CKPT/step_7"; echo saved; exit 0; }
trap save TERM
echo 'step 7 of 100'
while :; do sleep 0.2; done
"""

HANGS_ONCE = """save() { echo state > "$GPUJOB_CKPT/step_7"; exit 0; }
if [ -n "$GPUJOB_RESUME_FROM" ]; then grep -q state "$GPUJOB_RESUME_FROM" && echo went on; exit 0; fi
trap save TERM
echo 'step 7 of 100'
while :; do sleep 0.2; done
"""
HANGS_ALWAYS = """trap 'exit 0' TERM
echo 'step 7 of 100'
while :; do sleep 0.2; done
"""


def low_use(world: World, rental: str) -> None:
    """The stand-in card shows 12 % from now on."""
    source = world.folder(rental).parents[1] / "etc/gpus.json"
    shown = json.loads(source.read_text())
    shown["gpus"][0]["utilization.gpu"] = 12
    shown["gpus"][0]["memory.used"] = 20_000
    source.write_text(json.dumps(shown))


def test_low_use_is_told_and_a_hung_run_saves_and_ends(tmp_path: Path, hook: tuple[str, list[dict[str, Any]]]) -> None:
    address, posted = hook
    with World(tmp_path, MY_HOOK=address) as world:
        world.home.make().config_file.write_text("notify: {me: {url_env: MY_HOOK}}\n")
        alarms = {"warm_up": "1s", "gpu_util_below": {"for": "20s"}}
        slow = world.spec("slow", STEPS, gpu="RTX-4090", notify=["me"], alarms=alarms)
        stop = {"stalled": {"for": "20s", "stop": True}, "off": ["gpu_util_below"]}
        hung = world.spec("hung", HANGS, notify=["me"], alarms=stop, checkpoint={"pattern": "step_{n}"})
        world.apply(slow)
        world.until_said("slow", "step 1")  # earlier it would be a bad host with memory in use
        low_use(world, world.rentals("slow")[0].id)
        world.apply(hung)

        job = world.wait("hung", code=1)
        assert (job.outcome, job.reason) == (Outcome.FAILED, Reason.STALLED)
        assert "stopped by an alarm: stalled: no step for" in job.detail
        assert b"saved" in world.log("hung", 1)
        assert [row.name for row in world.checkpoints("hung")] == ["step_7"]

        world.until(lambda: [line for line in world.journal("slow") if line.startswith("alarm:gpu-util")], "the alarm")
        (shown,) = world.json("top")
        assert (shown["name"], shown["state"]) == ("slow", "RUNNING")
        assert shown["health"]["gpus"][0]["util"] == 12
        assert shown["health"]["step"] > 1
        (alarm,) = [each for each in shown["alarms"] if each["kind"] == "gpu-util-below"]
        assert alarm["text"].startswith("GPU use 12 % in the last 20s, long below 50 %")
        assert "! gpu-util-below" in world.cli("ps")[0]
        assert "likely  " in world.cli("describe", "slow")[0]

        told = world.until(lambda: (len(posted) >= 3 and {p["title"] for p in posted}) or None, "three messages")
        assert told >= {"hung: stalled", "hung failed: stalled", "slow: gpu-util-below"}
        assert world.job("slow").outcome is None, "an alarm without stop only tells"
        kept = (
            b"".join(path.read_bytes() for path in world.state.glob("gpujob.db*"))
            + world.home.controller_log.read_bytes()
        )
        assert b"t0psecret" not in kept
        world.cli("cancel", "slow", "--now")
        world.wait("slow", code=5)
        world.assert_clean("slow")


def test_a_hung_run_goes_on_elsewhere_once_and_then_ends(tmp_path: Path) -> None:
    moves = {"stalled": {"for": "20s", "relaunch": True}}
    with World(tmp_path) as world:
        world.apply(world.spec("once", HANGS_ONCE, alarms=moves, checkpoint={"pattern": "step_{n}"}))
        world.apply(world.spec("always", HANGS_ALWAYS, alarms=moves, checkpoint={"pattern": "step_{n}"}))

        assert world.wait("once", code=0).outcome is Outcome.DONE
        first, second = world.rentals("once")
        assert (first.reason, second.reason) == (Reason.BAD_HOST, Reason.DONE)
        assert first.detail.startswith("stopped by an alarm: stalled: no step for")
        assert b"went on" in world.log("once", 2)

        job = world.wait("always", code=1)
        assert (job.outcome, job.reason) == (Outcome.FAILED, Reason.STALLED)
        assert [rental.reason for rental in world.rentals("always")] == [Reason.BAD_HOST, Reason.STALLED]
        world.assert_clean("once")
        world.assert_clean("always")
