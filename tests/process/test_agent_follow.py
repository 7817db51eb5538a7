"""`follow`: cursors are exact over any number of reconnects, and lines are bounded."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agent_machine import Machine


class Reader:
    """A controller's end of the stream: keeps what it was told and its cursors."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.stream: subprocess.Popen[bytes] | None = None
        self.stored: dict[str, bytearray] = {}
        self.events: list[dict[str, Any]] = []
        self.next = 0
        self.statuses: list[dict[str, Any]] = []

    def connect(self) -> None:
        cursors = {name: len(data) for name, data in self.stored.items()}
        self.stream = self.machine.follow(events=self.next, logs=cursors, beat_s=0.2)

    def read(self, until: str) -> None:
        """Lines up to one of this kind."""
        assert self.stream
        assert self.stream.stdout
        while True:
            raw = self.stream.stdout.readline()
            assert raw.endswith(b"\n"), "the stream ended"
            assert len(raw) <= 65536
            line = json.loads(raw)
            kind = line["t"]
            if kind == "log":
                data = base64.b64decode(line["data"])
                assert 0 < len(data) <= 32768
                stored = self.stored.setdefault(f"{line['run']}/{line['stage']}", bytearray())
                assert line["offset"] == len(stored)
                stored += data
            elif kind == "event":
                self.next = line["next"]
                self.events.append(line["event"])
                kind = "event:" + line["event"]["t"]
            elif kind in ("hello", "status"):
                self.statuses.append(line["status"])
            if kind == until:
                return

    def drop(self) -> None:
        assert self.stream
        self.stream.kill()
        self.stream.wait()


def test_bytes_and_events_are_exact_over_reconnects(tmp_path: Path) -> None:
    script = """
for i in 1 2 3 4 5 6; do head -c 70000 /dev/urandom; printf 'no newline'; sleep 0.1; done
echo to stderr >&2
printf '\\r100%%'
"""
    with Machine(tmp_path) as machine:
        reader = Reader(machine)
        reader.connect()
        reader.read("hello")
        machine.order({"setup": "echo setup", "run": script})
        for _ in range(3):
            for _ in range(3):
                reader.read("log")
            reader.drop()
            reader.connect()
        while not any(event["t"] == "exit" for event in reader.events):
            reader.read("event:exit")
        reader.read("beat")
        assert bytes(reader.stored["t0.1/run"]) == machine.log()
        assert len(machine.log()) == 6 * 70010 + len("to stderr\n") + len("\r100%")
        assert bytes(reader.stored["t0.1/setup"]) == b"setup\n"
        true = machine.events()
        assert reader.events == true[: len(reader.events)]
        assert reader.next <= (machine.control / "events.jsonl").stat().st_size
        assert reader.statuses[0]["runs"] == {}
        while not reader.statuses[-1]["runs"]["t0.1"]["dead"]:
            reader.read("status")


def test_a_status_comes_with_every_change_and_the_stream_ends_with_stdin(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        reader = Reader(machine)
        reader.connect()
        reader.read("hello")
        machine.order("echo step > $GPUJOB_CKPT/step_5.bin; sleep 60")
        while reader.statuses[-1]["runs"].get("t0.1", {}).get("state") != "run":
            reader.read("status")
        machine.do("signal", task="t0", n=1, why="stop", grace_s=30)
        while not reader.statuses[-1]["runs"]["t0.1"]["dead"]:
            reader.read("status")
        ended = reader.statuses[-1]["runs"]["t0.1"]
        assert ended["signalled"] == "stop"
        assert [(c["name"], c["complete"]) for c in ended["checkpoints"]] == [("step_5.bin", True)]
        assert reader.stream
        assert reader.stream.stdin
        reader.stream.stdin.close()
        assert reader.stream.wait(timeout=20) == 0


def test_a_torn_event_line_is_passed_over(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        with (machine.control / "events.jsonl").open("a") as file:
            file.write('{"t": "half a li')
        machine.order("true")
        reader = Reader(machine)
        reader.connect()
        reader.read("event:exit")
        assert {"agent", "stage", "exit"} <= {event["t"] for event in reader.events}


def test_a_strangers_machine_tells_nothing(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        stream = machine.follow(nonce="another")
        assert stream.stdout
        assert json.loads(stream.stdout.readline())["error"] == "nonce"
        assert stream.stdout.readline() == b""


@pytest.mark.parametrize("count", [800])
def test_a_run_with_many_checkpoints_still_fits_a_line(tmp_path: Path, count: int) -> None:
    with Machine(tmp_path) as machine:
        machine.order(f"for i in $(seq {count}); do echo x > $GPUJOB_CKPT/a_rather_long_name_for_step_$i.bin; done")
        assert len(machine.ended()["checkpoints"]) == count
        reader = Reader(machine)
        reader.connect()
        reader.read("hello")  # asserts the bound
        told = reader.statuses[0]["runs"]["t0.1"]["checkpoints"]
        assert told[-1]["step"] == count
        assert len(told) < count


def test_a_control_folder_that_was_removed_ends_the_stream(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        reader = Reader(machine)
        reader.connect()
        reader.read("hello")
        reader.read("beat")
        (machine.home / ".gpujob" / "nonce").unlink()
        assert reader.stream
        assert reader.stream.stdout
        while reader.stream.stdout.readline():
            pass
        assert reader.stream.wait(20) == 0
