"""Reading and checking what a command was asked."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from orchestrator.agent.files import read_json, read_text, replace
from orchestrator.agent.layout import Refusal, control
from orchestrator.agent.runs import Run

if TYPE_CHECKING:
    import subprocess

WAIT_MAX_S = 10.0  # of one answer: a controller takes a machine that says nothing for 30 s for silent
LOOK_AGAIN_S = 0.02  # a look reads one small file
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


def admit(ask: dict[str, Any]) -> None:
    """Right machine, and no controller of the past. Under the command lock."""
    prove_machine(ask)
    epoch = need(ask, "epoch", int)
    stored = int(read_text(control("epoch")).strip() or 0)
    if epoch < stored:
        raise Refusal("epoch", "a newer controller has taken over", epoch=stored)
    if epoch > stored:
        replace(control("epoch"), b"%d\n" % epoch)


def prove_machine(ask: dict[str, Any]) -> None:
    nonce = read_text(control("nonce")).strip()
    if not nonce or ask.get("nonce") != nonce:
        raise Refusal("nonce", "this is not the machine that was rented" if nonce else "this machine has no nonce yet")


def need(ask: dict[str, Any], key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    value = ask.get(key, default)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Refusal("invalid", "%s: %r is not what is expected" % (key, value))
    return value


def need_name(ask: dict[str, Any], key: str) -> str:
    value: str = need(ask, key, str)
    if not NAME.match(value):
        raise Refusal("invalid", "%s: %r is not a plain name" % (key, value))
    return value


def need_run(ask: dict[str, Any]) -> Run:
    n = need(ask, "n", int)
    if n < 0:
        raise Refusal("invalid", "n: %d is negative" % n)
    return Run("%s.%d" % (need_name(ask, "task"), n))


def patience(ask: dict[str, Any]) -> float:
    """`wait`: seconds that the caller has for an answer that says more than "running"."""
    return min(float(need(ask, "wait", (int, float), 0)), WAIT_MAX_S)


def wait_while_running(
    path: str, seconds: float, child: subprocess.Popen[bytes] | None = None
) -> dict[str, Any] | None:
    """The state file at `path` once it says another state than "running", `child` has ended, or `seconds` are over."""
    until = time.monotonic() + seconds
    while True:
        ended = time.monotonic() >= until or (child is not None and child.poll() is not None)
        state = read_json(path)
        if ended or state is None or state.get("state") != "running":
            return state
        time.sleep(LOOK_AGAIN_S)
