"""The whole state of the machine in one answer."""

from __future__ import annotations

import os
import time
from typing import Any

from orchestrator.agent.checkpoints import checkpoints_of
from orchestrator.agent.deadman import current_notice
from orchestrator.agent.ends import Deadline, boot_id, uptime
from orchestrator.agent.files import list_names, read_json, read_text, size_of, to_json
from orchestrator.agent.launch import own_version
from orchestrator.agent.layout import CONTROL, PROTOCOL, control
from orchestrator.agent.machine import disk
from orchestrator.agent.processes import supervisor_pid
from orchestrator.agent.runs import Run, all_runs

LINE_LIMIT = 60 << 10  # a status line of `follow` is shortened to this, under the promised 64 KiB


def run_status(run: Run) -> dict[str, Any]:
    state, stage = run.state()
    ended, claim, signalled = run.ended, run.claim(), run.signalled
    answer = {
        "state": state,
        "stage": stage,
        "rc": ended["rc"] if ended else None,
        "signalled": ended["signalled"] if ended else signalled and signalled["why"],
        "dead": ended is not None,
        "closed": run.closed,
        "started": claim["at"] if claim else 0.0,
        "logs": {name: size_of(run.log_path(name)) for name in run.logs()},
        "checkpoints": checkpoints_of(run),
    }
    if ended is None and run.limit is not None:
        answer["limit"] = run.limit
    if run.staged:
        answer["staged"] = True
    elif os.path.exists(run.path("begun")):
        answer["begun_s"] = round(uptime() - run.begun_at(), 2)
    mirror = read_json(run.path("mirror.json"))
    if mirror is not None:
        answer["mirror"] = mirror
    if ended:
        answer.update((key, ended[key]) for key in ("lost", "rebooted", "detail") if key in ended)
    return answer


def is_setup(name: str) -> bool:
    return name.startswith("setup.") and not name.endswith((".tmp", ".looked"))


def status_command(_ask: dict[str, Any]) -> dict[str, Any]:
    deadline, notice = Deadline.load(), current_notice()
    return {
        "ok": True,
        "protocol": PROTOCOL,
        "version": own_version(),
        "nonce": read_text(control("nonce")).strip(),
        "epoch": int(read_text(control("epoch")).strip() or 0),
        "now": time.time(),
        "boottime": uptime(),
        "boot_id": boot_id(),
        "supervisor": supervisor_pid() is not None,
        "deadline": deadline
        and {
            "end": deadline.end,
            "grace": int(deadline.grace),
            "action": deadline.action,
            "confirmed": deadline.confirmed,
        },
        "notice": notice and {"at": notice["at"], "action": notice["action"]},
        "events": size_of(control("events.jsonl")),
        "setups": [name[6:] for name in list_names(CONTROL) if is_setup(name)],
        "disk": disk(),
        "runs": {run.key: run_status(run) for run in all_runs()},
    }


def shortened(status: dict[str, Any]) -> dict[str, Any]:
    """A status that fits a line: the newest checkpoints of each run, then without the oldest closed runs."""
    for keep in (50, 10, 3):
        if len(to_json(status)) <= LINE_LIMIT:
            return status
        runs = {key: {**run, "checkpoints": run["checkpoints"][-keep:]} for key, run in status["runs"].items()}
        status = {**status, "runs": runs}
    closed = sorted((run["started"], key) for key, run in status["runs"].items() if run["closed"])
    for _, key in closed:
        if len(to_json(status)) <= LINE_LIMIT:
            break
        status = {**status, "runs": {name: run for name, run in status["runs"].items() if name != key}}
    return status
