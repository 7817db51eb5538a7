"""The only loop: observe, decide, execute, sleep until something happens. Run as `python -m orchestrator.controller`.

- One controller a host: it holds the lock file for its life. A second one says so and ends.
- Only this thread decides and writes; worker threads answer by messages on one queue.
- Killing it at any moment loses nothing: the books hold what was decided, machines hold what runs, logs have cursors.
- A turn takes what has arrived, answers requests, then decides about the jobs that are due or were touched.
"""

from __future__ import annotations

import fcntl
import os
import queue
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.home import Home

if TYPE_CHECKING:
    from orchestrator.loop import Loop


FILES = 65_536  # open files for some ten thousand machines


class AnotherController(Exception):
    """The lock is held: another controller works on this state folder."""


def hold_lock(path: Path, wait_s: float = 0.0) -> int:
    """Take the controller's lock for the life of this process; the descriptor must stay open."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(fd)
                raise AnotherController(f"{path} is held by another controller") from None
            time.sleep(0.05)
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def raise_file_limit() -> None:
    """As many open files as the system allows: a kept connection takes five, and 1,024 is the usual soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tidy(home: Home, loop: Loop) -> None:
    """Remove what nothing needs any more. Whatever goes wrong with that, the machines must be looked after."""
    import structlog

    from orchestrator import datasets

    try:
        datasets.prune(home, lambda: loop.store.jobs(limit=-1), time.time())
    except Exception:
        structlog.get_logger().exception("lists of data are not tidied up")


def main(ready: Callable[[Loop], None] | None = None) -> int:
    """Run until told to stop. Exit 0 after a stop, 3 when it could not start; the reason goes to stderr."""
    home = Home.from_env().make()
    try:
        hold_lock(home.lock, wait_s=1.0)
    except AnotherController as error:
        print(f"gpujob: {error}; `gpujob controller status` shows it", file=sys.stderr)
        return 3
    raise_file_limit()
    from orchestrator.door import Door

    door = Door(home.socket)  # from here on requests are taken; what is slow to import comes after
    from jobspecs.problems import SpecErrors
    from orchestrator.books import BooksBroken
    from orchestrator.loop import Loop
    from orchestrator.requests import refuse_stale
    from orchestrator.store import StoreError

    try:
        loop = Loop(home, queue.SimpleQueue())
        refuse_stale(loop)
    except (StoreError, BooksBroken, SpecErrors) as error:
        print(f"gpujob: the controller cannot start: {error}", file=sys.stderr)
        door.close()
        return 3
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.stop())
    _tidy(home, loop)
    door.serve(loop.poke)
    if ready is not None:
        ready(loop)
    try:
        return loop.run()
    finally:
        door.close()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A normal exit would wait for worker threads, one of which may hang in a provider's call or a long transfer;
    # leaving them is as safe as being killed, which every effect has to bear anyway
    os._exit(code)
