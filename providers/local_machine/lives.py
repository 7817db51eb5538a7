"""How a machine is, and what is done to it from outside: look, order, kill, reboot.

Rules
- Dead is said only after pid 1 was seen dead, and then twice: a reboot or a start may have been on its way.
- Whoever first sees a machine dead buries it: files gone, tombstone set, with the status that its pid 1 wrote.
- A destroy leaves its word before its blow, so a pid 1 that nobody can see yet ends itself, and an observer in
  another process knows that the death was ordered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from typing import cast

from providers.errors import Ambiguous, Invalid
from providers.local_machine import launch
from providers.local_machine.folder import Record, World, read_text, remove_tree, write_atomic
from providers.local_machine.isolation import Mode
from providers.local_machine.process import POLL_S, Process, any_alive, kill_marked, parse_identity, wait_gone

STARTING, RUNNING = "starting", "running"
INTERRUPTED, TERMINATED, ENDED, CRASHED = "interrupted", "terminated", "ended", "crashed"
DEAD = frozenset({INTERRUPTED, TERMINATED, ENDED, CRASHED})
# A machine without a first word after this long has no creator either: `launch.start` gives up earlier.
NO_FIRST_WORD_S = launch.START_TIMEOUT_S + 15.0
FIRST_WORD_WAIT_S = 1.0
DESTROY_TIMEOUT_S = 5.0  # measured: 6 ms; a process stuck in a disk may take longer
DESTROYED = "destroyed\n"


def _identity_text(world: World, machine_id: str) -> str | None:
    return read_text(world.folder(machine_id) / "ctl/pid")


def processes(world: World, machine_id: str) -> tuple[Process, ...]:
    """Pid 1, and after it a subreaper's guard; empty before the first word and after a reboot of the host."""
    text = _identity_text(world, machine_id)
    return parse_identity(text) if text else ()


def look(world: World, record: Record) -> str | None:
    """`starting` or `running`; None for a machine that is no more, whose tombstone is then set."""
    ctl = world.folder(record.id) / "ctl"
    text = _identity_text(world, record.id)
    if text is not None and any_alive(parse_identity(text)):
        return RUNNING if (ctl / "up").exists() else STARTING
    if (ctl / "rebooting").exists() or _identity_text(world, record.id) != text:
        return STARTING
    if text is None and time.time() - record.created_at < NO_FIRST_WORD_S and ctl.exists():
        return STARTING
    now = time.time()
    status, at = fate(world, record.id) or (CRASHED, now)
    with contextlib.suppress(OSError):
        write_atomic(ctl / "doom", "found dead\n")
    finish_off(record)
    world.bury(record, status, at, now)
    return None


def fate(world: World, machine_id: str) -> tuple[str, float] | None:
    """How a dead machine died, (status, when): what its pid 1 wrote, or that we ordered it."""
    ctl = world.folder(machine_id) / "ctl"
    text = read_text(ctl / "fate")
    if text:
        status, at = text.split()
        return status, float(at)
    return (TERMINATED, time.time()) if read_text(ctl / "doom") == DESTROYED else None


def destroy(world: World, record: Record) -> None:
    """End all of a machine's processes, also of one that has not spoken yet, and bury it.

    Raises `Ambiguous` when a process survives SIGKILL for some seconds.
    """
    with contextlib.suppress(OSError):  # a full disk must not save a machine's life
        write_atomic(world.folder(record.id) / "ctl/doom", DESTROYED)
    found = processes(world, record.id)
    if not found and time.time() - record.created_at < launch.START_TIMEOUT_S:
        found = _wait_for_first_word(world, record.id)
    _kill(found, record)
    now = time.time()
    status, at = fate(world, record.id) or (TERMINATED, now)
    world.bury(record, status, at, now)


def _kill(found: tuple[Process, ...], record: Record) -> None:
    for one in found[:1]:  # the second, a subreaper's guard, must live to kill what the first leaves
        one.kill()
    if not wait_gone(found, DESTROY_TIMEOUT_S):
        raise Ambiguous(
            f"machine {record.id}: process {found[0].pid} is still there {DESTROY_TIMEOUT_S:.0f} s after SIGKILL; "
            "most likely it waits for a disk",
            provider="local",
            what="destroy",
        )
    finish_off(record)


def _wait_for_first_word(world: World, machine_id: str) -> tuple[Process, ...]:
    until = time.monotonic() + FIRST_WORD_WAIT_S
    while time.monotonic() < until and world.folder(machine_id).exists():
        if found := processes(world, machine_id):
            return found
        time.sleep(POLL_S)
    return ()


def finish_off(record: Record) -> None:
    """Where no namespace guarantees it, kill whatever a murdered supervisor could not."""
    if record.mode == "subreaper":
        kill_marked(f"{launch.MARKER}={record.id}")


def order(world: World, machine_id: str, name: str, text: str) -> None:
    """Leave an order in a living machine's `ctl/<name>` and wake its pid 1 to read it now."""
    try:
        write_atomic(world.folder(machine_id) / "ctl" / name, text)
    except FileNotFoundError:
        raise Invalid(f"no such machine: {machine_id}", provider="local", what=name) from None
    for one in processes(world, machine_id)[:1]:
        one.kill(signal.SIGHUP)


def reboot(world: World, record: Record) -> None:
    """All processes die, files stay but for /tmp, the boot hook runs again; the port may change."""
    folder = world.folder(record.id)
    ctl = folder / "ctl"
    write_atomic(ctl / "rebooting", "")
    _kill(processes(world, record.id), record)
    remove_tree(folder / "root/tmp")
    (folder / "root/tmp").mkdir(mode=0o700)
    for name in ("pid", "up"):
        (ctl / name).unlink(missing_ok=True)
    try:
        listener = launch.listen(record.port)
    except OSError:
        listener = launch.listen()  # somebody took the port meanwhile
    with listener:
        again = dataclasses.replace(record, port=listener.getsockname()[1], boots=record.boots + 1)
        world.update(again)
        launch.start(folder, again, cast(Mode, record.mode), listener)
    (ctl / "rebooting").unlink(missing_ok=True)
