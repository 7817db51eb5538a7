"""Secrets by name: the store of this computer, and each job's own copies for relaunches.

    store       `gpujob secret set`: the system's keyring where one is usable, else 0600 files in the config folder
    job copies  0600 files, made at apply and removed at the job's end, so that a restarted controller can relaunch

Rules
- At apply the environment wins over the store; a missing one is named before anything is rented.
- Values appear in no message, no log and no database; names do.
- Every write is whole or not at all: a temporary file, then a rename.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.home import Home
from orchestrator.ssh_files import fsync_folder, write_private

SERVICE = "gpujob"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
NO_KEYRING = "GPUJOB_NO_KEYRING"  # set: files only, as on a server where a keyring would ask for a password
IN_KEYRING = ".keyring"  # in the store's folder: names of those in the keyring, which cannot list them itself


class SecretError(Exception):
    """A secret cannot be stored or read; the message says what to do."""


@dataclass(frozen=True)
class Resolved:
    """`values` by name, `origin` of each ("environment" or "store"), and the names found nowhere."""

    values: Mapping[str, str]
    origin: Mapping[str, str]
    missing: tuple[str, ...]


def resolve(names: Iterable[str], home: Home, env: Mapping[str, str] | None = None) -> Resolved:
    """Look every name up; an empty variable counts as not set."""
    env = os.environ if env is None else env
    values: dict[str, str] = {}
    origin: dict[str, str] = {}
    missing: list[str] = []
    for name in names:
        if env.get(name):
            values[name], origin[name] = env[name], "environment"
            continue
        stored = get_secret(home, name)
        if stored is None:
            missing.append(name)
        else:
            values[name], origin[name] = stored, "store"
    return Resolved(values, origin, tuple(missing))


def set_secret(home: Home, name: str, value: str) -> str:
    """Store a value; return where it went, in words."""
    _checked(name)
    if not value:
        raise SecretError(f"the value of {name} is empty")
    folder = home.secret_store()
    keyring = _keyring()
    if keyring is not None:
        try:
            keyring.set_password(SERVICE, name, value)
        except Exception as exc:  # each backend raises its own; a file serves as well
            _note_failed_keyring(exc)
        else:
            _write_keyring_names(folder, _keyring_names(folder) | {name})
            (folder / name).unlink(missing_ok=True)
            return "the system's keyring"
    write_private(folder / name, value.encode("utf-8", "surrogateescape"))
    _write_keyring_names(folder, _keyring_names(folder) - {name})
    return str(folder / name)


def get_secret(home: Home, name: str) -> str | None:
    """The stored value, or None."""
    _checked(name)
    folder = home.secret_store()
    try:
        return _read(folder / name)
    except FileNotFoundError:
        pass
    if name not in _keyring_names(folder):
        return None
    keyring = _keyring()
    if keyring is None:
        raise SecretError(
            f"{name} is in the system's keyring, which cannot be used here: set it again, or export {name}"
        )
    try:
        value = keyring.get_password(SERVICE, name)
    except Exception as exc:  # each backend raises its own
        raise SecretError(
            f"the keyring did not give {name} ({type(exc).__name__}): unlock it, or export {name}"
        ) from exc
    return None if value is None else str(value)


def names(home: Home) -> tuple[str, ...]:
    """Names in the store, sorted."""
    folder = home.secret_store()
    files = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return tuple(sorted(name for name in files | _keyring_names(folder) if NAME.match(name)))


def remove(home: Home, name: str) -> bool:
    """Forget a stored value; False when there was none."""
    _checked(name)
    folder = home.secret_store()
    known = name in names(home)
    keyring = _keyring() if name in _keyring_names(folder) else None
    if keyring is not None:
        try:
            keyring.delete_password(SERVICE, name)
        except Exception as exc:  # each backend raises its own
            raise SecretError(f"the keyring did not remove {name} ({type(exc).__name__}): unlock it first") from exc
    (folder / name).unlink(missing_ok=True)
    _write_keyring_names(folder, _keyring_names(folder) - {name})
    return known


def keep(home: Home, job: str, values: Mapping[str, str]) -> None:
    """Copy a job's values to its own 0600 files; repeating replaces them."""
    folder = home.secrets(job)
    for name, value in values.items():
        write_private(folder / _checked(name), value.encode("utf-8", "surrogateescape"))


def load(home: Home, job: str) -> dict[str, str]:
    """A job's values by name; empty when it has none or they were removed."""
    folder = home.secrets(job)
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: _read(path) for path in found if NAME.match(path.name)}


def forget(home: Home, job: str) -> None:
    """Remove a job's copies: at its end, and again after a crash."""
    folder = home.secrets(job)
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        path.unlink(missing_ok=True)
    folder.rmdir()
    fsync_folder(folder.parent)


def mask(text: str, values: Iterable[str]) -> str:
    """`text` with every value replaced by `*`, for messages; logs are masked by `logs.LogWriter`."""
    from orchestrator.logs import mask_bytes, maskable

    data = text.encode("utf-8", "surrogateescape")
    return mask_bytes(data, maskable(values)).decode("utf-8", "surrogateescape")


def _checked(name: str) -> str:
    if not NAME.match(name):
        raise SecretError(f"{name!r} is no name of a secret: letters, digits and _, not beginning with a digit")
    return name


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _keyring() -> Any:
    """The keyring module when it has a backend that keeps things, else None."""
    if os.environ.get(NO_KEYRING):
        return None
    try:
        import keyring
        from keyring.backends import fail, null

        backend = keyring.get_keyring()
    except Exception as exc:  # not installed, or a backend that fails while it looks for its service
        _note_failed_keyring(exc)
        return None
    usable = not isinstance(backend, (fail.Keyring, null.Keyring)) and getattr(backend, "priority", 0) > 0
    return keyring if usable else None


def _note_failed_keyring(exc: Exception) -> None:
    import logging

    logging.getLogger(__name__).info("no keyring: %s", type(exc).__name__)


def _keyring_names(folder: Path) -> set[str]:
    try:
        return set((folder / IN_KEYRING).read_text().split())
    except FileNotFoundError:
        return set()


def _write_keyring_names(folder: Path, found: set[str]) -> None:
    if found != _keyring_names(folder):
        write_private(folder / IN_KEYRING, "".join(f"{name}\n" for name in sorted(found)).encode())
