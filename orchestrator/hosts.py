"""Machines of one's own: how they are written into the config file, and the key and pinned host key of each.

    config.yaml            hosts: one line for each, so that a person can read and change it
    state/hosts/NAME/      id_ed25519, known_hosts: ours alone, gone with `host rm`

Rules: the file keeps whatever else is in it, comments too; an edit that the file would not survive is refused with the
line to write by hand. No password is ever stored.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config import check_file
from orchestrator.home import Home
from orchestrator.ssh_files import fsync_folder

NAME = re.compile(r"[a-z]([a-z0-9-]{0,29}[a-z0-9])?")
_WITH_VALUE = "pil"  # options of ssh that we read; any other would be lost silently


class HostError(Exception):
    """What is wrong with a host's name, address or entry; `next` is the step that helps."""

    def __init__(self, message: str, next: str = "") -> None:
        super().__init__(message)
        self.next = next


@dataclass(frozen=True)
class Address:
    """Where a host answers, and with which key of the user's own it lets us in now."""

    host: str
    port: int
    user: str
    identity: str = ""


def parse_address(text: str) -> Address:
    """`ssh -p 12345 root@host`, with or without the word ssh. Raises HostError for what would not be kept."""
    shape = "write it like 'ssh -p 12345 root@198.51.100.7'"
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise HostError(f"{text!r} cannot be read: {error}", shape) from None
    words = words[1:] if words[:1] == ["ssh"] else words
    options: dict[str, str] = {}
    rest: list[str] = []
    while words:
        word = words.pop(0)
        if word.startswith("-") and len(word) > 1:
            letter, value = word[1], word[2:]
            if letter not in _WITH_VALUE:
                raise HostError(f"the option {word} of ssh is not kept", "only -p, -l and -i are")
            if not value and not words:
                raise HostError(f"{word} lacks its value", shape)
            options[letter] = value or words.pop(0)
        else:
            rest.append(word)
    if len(rest) != 1:
        raise HostError(f"{text!r} must name one machine, and no command", shape)
    user, at, host = rest[0].rpartition("@")
    port = options.get("p", "22")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise HostError(f"{port!r} is no port", shape)
    if not re.fullmatch(r"[A-Za-z0-9.:_-]+", host) or host.startswith("-"):
        raise HostError(f"{host!r} is no name or address of a machine", shape)
    return Address(host, int(port), user if at else options.get("l", "root"), options.get("i", ""))


def folder(home: Home, name: str) -> Path:
    """Where the host's key and pinned host key are; the adapter looks there as well."""
    return home.state / "hosts" / name


def put(home: Home, name: str, block: Mapping[str, Any] | None) -> None:
    """Write, replace or (None) remove the host's line in the config file. Raises HostError where it cannot be."""
    path = home.make().config_file
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    line = f"  {name}: {json.dumps(dict(block))}\n" if block is not None else ""
    new = _edited(old, name, line)
    half = path.with_name(f"{path.name}.{os.getpid()}")
    handle = os.open(half, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with open(handle, "w", encoding="utf-8") as out:
        out.write(new)
        out.flush()
        os.fsync(out.fileno())
    try:
        check_file(half)
    except Exception:
        half.unlink()
        raise
    os.replace(half, path)
    fsync_folder(path.parent)


def _edited(old: str, name: str, line: str) -> str:
    lines = old.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    head = next((n for n, each in enumerate(lines) if re.match(r"hosts\s*:", each)), None)
    if head is None:
        return "".join(lines) + (f"\nhosts:\n{line}" if line else "")
    if not re.fullmatch(r"hosts\s*:\s*(#.*)?\n", lines[head]):
        by_hand = f"add this below a line `hosts:`  {line.strip()}" if line else f"remove {name} from `hosts:`"
        raise HostError("`hosts` in the config file is not one line for each host, so it is not edited", by_hand)
    end = head + 1
    while end < len(lines) and (lines[end].startswith((" ", "#")) or not lines[end].strip()):
        end += 1
    own = [n for n in range(head + 1, end) if re.match(rf"\s+{re.escape(name)}\s*:", lines[n])]
    for n in own:
        if "}" not in lines[n]:
            raise HostError(f"the entry of {name} is spread over several lines, so it is not edited", "edit it by hand")
    kept = [each for n, each in enumerate(lines[head + 1 : end], head + 1) if n not in own]
    body = [line, *kept] if line else kept
    has_hosts = any(re.match(r"\s+[^\s#]", each) for each in body)
    return "".join([*lines[:head], *(["hosts:\n"] if has_hosts else []), *body, *lines[end:]])


def forget(home: Home, name: str) -> None:
    """Remove the host's key here."""
    shutil.rmtree(folder(home, name), ignore_errors=True)
