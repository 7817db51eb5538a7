"""The commands by name: JSON on stdin, JSON on stdout."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from orchestrator.agent.commands import (
    arm_command,
    close_command,
    limit_command,
    order_command,
    prepare_command,
    signal_command,
    thin_command,
    wipe_command,
    withdraw_command,
)
from orchestrator.agent.fetch import fetch_command, fetch_main, fetched_command
from orchestrator.agent.inventory import changed_command, environment_command, manifest_command
from orchestrator.agent.landing import landed_command, room_command
from orchestrator.agent.launch import start_command
from orchestrator.agent.layout import PROTOCOL, Refusal
from orchestrator.agent.preflight import preflight_command
from orchestrator.agent.status import status_command
from orchestrator.agent.stream import follow
from orchestrator.agent.supervisor import supervise
from orchestrator.agent.transfer import move, store_command, transfer_command
from orchestrator.agent.upload import mirror_run
from orchestrator.agent.wrapper import wrap

if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "start": start_command,
    "status": status_command,
    "arm": arm_command,
    "prepare": prepare_command,
    "order": order_command,
    "limit": limit_command,
    "signal": signal_command,
    "close": close_command,
    "withdraw": withdraw_command,
    "manifest": manifest_command,
    "changed": changed_command,
    "thin": thin_command,
    "environment": environment_command,
    "preflight": preflight_command,
    "landed": landed_command,
    "fetch": fetch_command,
    "fetched": fetched_command,
    "room": room_command,
    "wipe": wipe_command,
    "store": store_command,
    "transfer": transfer_command,
}
WITHOUT_INPUT = ("start", "status")


def read_ask() -> dict[str, Any]:
    """One JSON object, up to its end or to the end of stdin, whichever comes first."""
    text = b""
    while True:
        block = os.read(0, 1 << 16)
        text += block
        if not block or text.rstrip().endswith(b"}"):
            try:
                value = json.loads(text or b"{}")
            except ValueError as error:
                if block:
                    continue
                raise Refusal("invalid", "the input is not JSON: %s" % error) from None
            if not isinstance(value, dict):
                raise Refusal("invalid", "the input is not a JSON object")
            return value


def main(argv: list[str]) -> int:
    os.umask(0o077)
    name = argv[1] if len(argv) > 1 else ""
    if name == "_supervise":
        return supervise()
    if name == "_wrap":
        return wrap(argv[2])
    if name == "_fetch":
        return fetch_main(argv[2])
    if name == "_mirror":
        return mirror_run(argv[2])
    if name == "_transfer":
        return move(argv[2], argv[3])
    try:
        if name != "follow" and name not in COMMANDS:
            raise Refusal("invalid", "there is no command %r; protocol %d" % (name, PROTOCOL))
        ask = {} if name in WITHOUT_INPUT else read_ask()
        if name == "follow":
            follow(ask)
            return 0
        answer = COMMANDS[name](ask)
    except Refusal as refusal:
        answer = refusal.answer
    except OSError as error:
        answer = {"ok": False, "error": "io", "detail": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0
