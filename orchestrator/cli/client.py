"""The only ways in which a verb touches the controller: see whether it lives, start it, poke it, ask it something.

Rules: a verb never writes the database except by appending a request. A live controller holds the lock file and
answers at its socket; the socket is tried first, because even a shared try of the lock could get in the way of one
that starts.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import say
from orchestrator.home import Home

if TYPE_CHECKING:
    from orchestrator.store import Store

READY_WITHIN_S = 15.0  # it takes under a second; a machine under load gets more before we call it broken
ANSWER_WITHIN_S = 60.0  # the loop answers between two ticks
_LOOK_S = 0.02
STOPPED_WITHIN_S = 30.0  # it ends between two ticks, after the effects that are under way
SLICE_S = 2.0  # while waiting for an answer, how often we see whether anybody is left to give it
CANNOT_START = "the controller cannot start: "  # the beginning of the last line in the log of one that could not
_OF_ANY_VERSION = ("ping", "stop")  # an older controller with older books must be able to hear these
_MAX_SOCKET_PATH = 100  # sun_path holds 104 to 108 bytes, by system

own_environment: dict[str, str] | None = None  # this computer's, where a verb runs with some of another one's
_starting: subprocess.Popen[bytes] | None = None  # a controller that this command has begun to start


def connect(home: Home) -> socket.socket | None:
    """A socket to the live controller, or None when nobody listens."""
    if os.name == "nt" or not home.socket.exists():
        return None
    folder = -1
    address = str(home.socket)
    try:
        if len(os.fsencode(address)) > _MAX_SOCKET_PATH:
            folder = os.open(home.socket.parent, os.O_RDONLY)
            address = f"/proc/self/fd/{folder}/{home.socket.name}"
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(1.0)
        try:
            sock.connect(address)
        except OSError:  # a socket file that a dead controller left behind
            sock.close()
            return None
        return sock
    finally:
        if folder >= 0:
            os.close(folder)


def poke(home: Home) -> bool:
    """Wake the loop (a connection is a poke); False when nobody listens, which harms nothing: requests are rows."""
    sock = connect(home)
    if sock is None:
        return False
    sock.close()
    return True


def alive(home: Home) -> bool:
    """Whether a controller works on this state folder: it listens, or it holds the lock."""
    sock = connect(home)
    if sock is not None:
        sock.close()
        return True
    return lock_held(home.lock)


def lock_held(path: Path) -> bool:
    """Whether somebody holds the controller's lock."""
    if os.name == "nt" or not path.exists():
        return False
    import fcntl

    with path.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(handle, fcntl.LOCK_UN)
    return False


def spawn(home: Home) -> subprocess.Popen[bytes]:
    """Start a controller that outlives this command and its terminal."""
    home.make()
    handle = os.open(home.controller_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator.controller"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=controller_environment(home),
            start_new_session=True,
            close_fds=True,
        )


def controller_environment(home: Home) -> dict[str, str]:
    """Our own environment for the controller, with folders made absolute, since the controller starts in `/`."""
    env = dict(os.environ if own_environment is None else own_environment)
    if env.get("GPUJOB_HOME"):
        env["GPUJOB_HOME"] = str(home.state)
    if env.get("GPUJOB_CONFIG"):
        env["GPUJOB_CONFIG"] = str(home.config_file.absolute())
    # A checkout that was found through the working folder must be found from `/` too.
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(p for p in (root, env.get("PYTHONPATH", "")) if p)
    return env


def start_early(home: Home) -> None:
    """Begin to start a controller, if none lives, while the verb still reads and checks; `ensure_controller` waits."""
    global _starting
    if os.name != "nt" and not connected(home) and not lock_held(home.lock):
        _starting = spawn(home)


def ensure_controller(home: Home) -> None:
    """Make sure that a controller is alive and ready. Raises CliError (exit 3) with the end of its log."""
    if os.name == "nt":
        raise CliError("native Windows runs init, validate, schema and plan only", next="run gpujob inside WSL2")
    if connected(home):
        _warn_of_scripts(home)
        return
    child = _starting or (None if lock_held(home.lock) else spawn(home))
    until = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < until:
        if connected(home):
            return
        if child is not None and child.poll() is not None and not lock_held(home.lock):
            break
        time.sleep(_LOOK_S)
    raise _does_not_start(home)


def _warn_of_scripts(home: Home) -> None:
    """Scripted reclaims and sicknesses of `local` are read by the controller that makes machines, not by this verb."""
    for name in ("GPUJOB_LOCAL_RECLAIM", "GPUJOB_LOCAL_SICK"):
        wanted = os.environ.get(name)
        if not wanted:
            continue
        try:
            theirs = Path(f"/proc/{int(home.lock.read_text())}/environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return  # another kind of system, or a controller that just went
        if os.fsencode(f"{name}={wanted}") not in theirs:
            what = f"{name} has no effect: the running controller was started without it"
            say(f"gpujob: {what}; `gpujob controller stop` first")


def _does_not_start(home: Home) -> CliError:
    return CliError(
        "the controller does not start",
        where=str(home.controller_log),
        why=_last_line(home.controller_log),
        next="gpujob controller run shows what it says; gpujob doctor checks this computer",
        code=exits.PROVIDER,
    )


def migrated(home: Home) -> Store:
    """A reader of older books once a controller has migrated them; `StoreTooOld` when the one that lives does not."""
    from orchestrator.store import Store, StoreTooOld

    ensure_controller(home)
    until = time.monotonic() + READY_WITHIN_S
    while True:  # it listens before it migrates
        try:
            return Store.open_reader(home)
        except StoreTooOld:
            if not alive(home):
                raise _does_not_start(home) from None
            if time.monotonic() >= until:
                raise
        time.sleep(_LOOK_S)


def connected(home: Home) -> bool:
    """Whether a controller listens now."""
    sock = connect(home)
    if sock is None:
        return False
    sock.close()
    return True


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "it left no log"
    return next((line for line in reversed(lines) if line.strip()), "its log is empty")


def wake(home: Home) -> None:
    """Restart a dead controller while a machine may bill or a job is open; never fails a verb."""
    if os.name == "nt" or connected(home) or lock_held(home.lock):
        return
    try:
        if any(open_counts(home.database).values()):
            last = _last_line(home.controller_log)
            if CANNOT_START in last:  # it would fail in the background again, and nobody would be told
                say(last)
            spawn(home)
    except OSError as error:
        say(f"gpujob: the controller could not be restarted: {error.strerror}")


def open_counts(database: Path) -> dict[str, int]:
    """How many rentals may bill and how many jobs are not terminal: one cheap question, without the store.

    Unreadable books count as nothing here; the verb itself says what is wrong with them.
    """
    return read_counts(database) or {"open_rentals": 0, "live_jobs": 0}


def read_counts(database: Path) -> dict[str, int] | None:
    """The same; None where the books cannot be read, which is not the same as nothing."""
    import sqlite3

    try:
        books = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=1.0)
    except sqlite3.Error:
        return None
    try:
        row = books.execute(
            "SELECT (SELECT count(*) FROM rentals WHERE phase <> 'gone'),"
            " (SELECT count(*) FROM jobs WHERE terminal_at IS NULL)"
        ).fetchone()
    except sqlite3.Error:
        return None
    finally:
        books.close()
    return {"open_rentals": int(row[0]), "live_jobs": int(row[1])}


def stop(home: Home, now: bool = False) -> None:
    """End the controller between two ticks and wait until it is gone; machines go on."""
    request(home, "stop", {"now": now})
    until = time.monotonic() + STOPPED_WITHIN_S
    while alive(home):
        if time.monotonic() > until:
            raise CliError(
                f"the controller took the request but is still there after {STOPPED_WITHIN_S:.0f} s",
                where=str(home.controller_log),
                next="gpujob controller stop --now",
                code=exits.PROVIDER,
            )
        time.sleep(_LOOK_S)


def restart_older(home: Home) -> None:
    """A controller of an older version is replaced between two ticks, before it is asked for a new job."""
    from orchestrator.version import UNKNOWN, installed, older

    if installed() == UNKNOWN or _starting is not None or not connected(home):
        return  # nothing to compare, or the one that starts now is our own version
    theirs = str(request(home, "ping", {}).get("version", ""))
    if not older(theirs, installed()):
        return
    say(f"gpujob: restarting the controller of version {theirs or 'before 0.1'}")
    stop(home)


def request(home: Home, verb: str, args: Mapping[str, Any], timeout: float = ANSWER_WITHIN_S) -> dict[str, Any]:
    """Ask the controller and wait for its answer (a dict with `ok`). Raises CliError when it refuses or is silent."""
    from orchestrator.store import Store

    ensure_controller(home)
    with Store.open_requester(home, older=verb in _OF_ANY_VERSION) as store:
        number = store.ask(verb, dict(args))
        poke(home)
        until = time.monotonic() + timeout
        answer, again = None, False
        while answer is None and time.monotonic() < until:
            answer = store.wait_answer(number, min(SLICE_S, max(0.0, until - time.monotonic())))
            if answer is None and not again and not alive(home):
                again = True  # it was about to end, or its database was deleted under it: the next one answers
                ensure_controller(home)
                poke(home)
            elif answer is None and not alive(home):
                raise CliError(
                    f"the controller ended before it answered ({verb})",
                    where=str(home.controller_log),
                    why=_last_line(home.controller_log),
                    next="the request stays in the books (one that rents: for two minutes); gpujob controller run "
                    "shows what it says",
                    code=exits.PROVIDER,
                )
    if answer is None:
        raise CliError(
            f"the controller took the request ({verb}) but has not answered for {timeout:.0f} s",
            where=str(home.controller_log),
            next="it stays in the books and is answered later; gpujob ps, gpujob controller status",
            code=exits.STILL_RUNNING,
        )
    if not answer.get("ok"):
        code = answer.get("code")
        raise CliError(
            str(answer.get("error") or f"{verb} was refused"),
            why=str(answer.get("why") or ""),
            next=str(answer.get("next") or ""),
            code=code if isinstance(code, int) else exits.USAGE,
        )
    return dict(answer)
