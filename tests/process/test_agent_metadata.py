"""The reclaim notice of a metadata service, with the real agent and a service on loopback."""

from __future__ import annotations

import time
from pathlib import Path

from agent_machine import Machine, wait_for
from fake_metadata import NOTICE, REBALANCE, FakeMetadata

QUICK = {"METADATA_LOOK_S": "0.2"}


def armed(machine: Machine, service: FakeMetadata) -> None:
    machine.do("arm", end=time.time() + 3600, grace_s=2, action="kill", notice_file=service.url)
    machine.order("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done")
    machine.wait_log(b"up")


def test_a_notice_of_the_service_saves_when_nobody_listens(tmp_path: Path) -> None:
    with FakeMetadata() as service, Machine(tmp_path, **QUICK) as machine:
        armed(machine, service)
        wait_for(lambda: ("GET", NOTICE, 404) in service.asked, "it asks with a token, and there is none")
        assert machine.do("status")["notice"] is None
        at = float(int(time.time()) + 30)
        service.announce("first", at)
        run = machine.ended()
        assert (run["signalled"], run["rc"]) == ("interruption", 0)
        assert b"saved" in machine.log()
        assert machine.do("status")["notice"] == {"at": at, "action": "terminate"}


def test_a_hint_is_told_once_and_changes_nothing(tmp_path: Path) -> None:
    with FakeMetadata() as service, Machine(tmp_path, **QUICK) as machine:
        armed(machine, service)
        service.hint("first")
        wait_for(lambda: machine.events("rebalance"), "the hint is told")
        asked = len(service.asked)
        wait_for(lambda: len(service.asked) > asked + 3, "it goes on looking for a notice")
        assert len(machine.events("rebalance")) == 1
        assert sum(path == REBALANCE and status == 200 for _, path, status in service.asked) == 1
        assert machine.run()["signalled"] is None
        assert machine.do("status")["notice"] is None


def test_a_token_that_is_no_longer_valid_is_replaced(tmp_path: Path) -> None:
    with FakeMetadata() as service, Machine(tmp_path, **QUICK) as machine:
        armed(machine, service)
        wait_for(lambda: ("GET", NOTICE, 404) in service.asked, "it has a token")
        service.tokens.clear()
        wait_for(lambda: ("GET", NOTICE, 401) in service.asked, "the token is refused")
        service.announce("first", time.time() + 30)
        assert machine.ended()["signalled"] == "interruption"
