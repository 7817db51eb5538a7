"""Files that are whole or not there, the command lock, the log of the agent."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

from orchestrator.agent.layout import control

if TYPE_CHECKING:
    from collections.abc import Iterator


# What was hashed on its way: absolute path -> the file's marks (`mark_of`), its SHA-256
Noted = Dict[str, Tuple[List[int], str]]
AGENT_LOG_LIMIT = 8 << 20  # bytes: something that fails twice a second must not fill the disk


def sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write and fsync; leaves nothing behind when it fails."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def replace(path: str, data: bytes) -> None:
    """Atomic and durable: a reader sees the old bytes or the new, also after a power cut."""
    part = "%s.%d.%d.tmp" % (path, os.getpid(), threading.get_ident())
    write_whole(part, data)
    os.rename(part, path)
    sync_folder(os.path.dirname(path))


def jot(path: str, data: bytes) -> None:
    """As `replace`, for what may be lost with the power or with the disk's last byte."""
    part = "%s.%d.tmp" % (path, os.getpid())
    try:
        with open(part, "wb") as file:
            file.write(data)
        os.rename(part, path)
    except OSError as error:
        note("%s: %s" % (path, error))


def create_once(path: str, data: bytes) -> bool:
    """Atomic, durable, and only the first caller ever succeeds."""
    part = "%s.%d.%d.tmp" % (path, os.getpid(), threading.get_ident())
    write_whole(part, data)
    try:
        os.link(part, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        try:  # no hard links on this file system: exclusive still, though not whole at once
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        os.rename(part, path)
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    sync_folder(os.path.dirname(path))
    return True


def read_text(path: str) -> str:
    """The file's text, or "" where it is not there."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def read_json(path: str) -> dict[str, Any] | None:
    try:
        value = json.loads(read_text(path))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def to_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode("utf-8", "surrogateescape")


def list_names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def mark_of(info: os.stat_result) -> list[int]:
    """What changes when a file is written to: the change time cannot be set back by a program."""
    return [info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]


def note(message: str) -> None:
    """A line in agent.log; a full disk or a folder that is gone must not stop whoever tells it."""
    with contextlib.suppress(OSError):
        fd = os.open(control("agent.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if os.fstat(fd).st_size < AGENT_LOG_LIMIT:
                os.write(fd, ("%s %d %s\n" % (time.strftime("%F %T"), os.getpid(), message)).encode())
        finally:
            os.close(fd)


@contextlib.contextmanager
def command_lock() -> Iterator[None]:
    """Admissions are one at a time; held for file operations only, never while waiting for processes."""
    fd = os.open(control("lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
