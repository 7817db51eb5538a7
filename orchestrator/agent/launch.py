"""Starts the supervisor, and each run's wrapper in a tmux of its own."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

from orchestrator.agent.ends import uptime
from orchestrator.agent.files import note
from orchestrator.agent.layout import CONTROL, LAUNCHER, Refusal, control
from orchestrator.agent.processes import is_alive, machine_mark, send, supervisor_pid
from orchestrator.agent.runs import Run


def start_in_tmux(run: Run, argv: list[str]) -> bool:
    """Detached, with a socket of its own and nobody's configuration; the shell only execs."""
    tmux = shutil.which("tmux")
    if tmux is None:
        return False
    socket = run.path("tmux.sock")
    # A socket's path ends at 107 bytes; whoever attaches goes into the folder first
    socket = socket if len(os.fsencode(socket)) < 100 else "tmux.sock"
    command = "exec " + " ".join(shlex.quote(word) for word in argv)
    options = ["start-server", ";", "set", "-g", "history-limit", "20000", ";", "set", "-g", "default-shell", "/bin/sh"]
    session = ["new-session", "-d", "-s", "run", "-x", "200", "-y", "50", command]
    env = {key: value for key, value in os.environ.items() if key not in ("TMUX", "TMUX_PANE")}
    env["GPUJOB_MACHINE"] = machine_mark()
    try:
        done = subprocess.run(
            [tmux, "-S", socket, "-f", "/dev/null", *options, ";", *session],
            cwd=run.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=20.0,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        note("tmux: %s" % error)
        return False
    if done.returncode:
        note("tmux: %s" % done.stdout.decode("utf-8", "replace").strip())
    return done.returncode == 0


def own_argv(*words: str) -> list[str]:
    """The command line of a process of our own."""
    return [sys.executable or "python3", "-I", "-c", LAUNCHER, CONTROL, *words]


def spawn_detached(argv: list[str]) -> subprocess.Popen[bytes]:
    with open(control("agent.log"), "ab") as log:
        return subprocess.Popen(
            argv,
            cwd="/",
            env={**os.environ, "GPUJOB_MACHINE": machine_mark()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def own_version() -> str:
    with open(os.path.abspath(__file__), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def start_command(_ask: dict[str, Any]) -> dict[str, Any]:
    """One living supervisor of this very version. Runs are not touched: their wrappers stand alone."""
    found = supervisor_pid()
    if found and found[2] == own_version():
        return {"ok": True, "pid": found[0]}
    if found:
        until = uptime() + 5.0
        send(found[0], found[1], signal.SIGTERM)
        while is_alive(found[0], found[1]):
            time.sleep(0.02)
            if uptime() > until:
                send(found[0], found[1], signal.SIGKILL)
    spawn_detached(own_argv("_supervise"))
    until = uptime() + 15.0
    while uptime() < until:
        found = supervisor_pid()
        if found:
            return {"ok": True, "pid": found[0]}
        time.sleep(0.02)
    raise Refusal("io", "the supervisor did not start; see ~/.gpujob/agent.log")
