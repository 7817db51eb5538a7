"""What can go wrong between this computer and a machine: a closed tree, for the reaction hangs on the class.

SshError
├── Unreachable      no connection, or it broke: ask the provider what became of the machine
│   └── (`reason`: refused | timeout | reset | no-route | name | silence | ended | closed)
├── HostKeyChanged   somebody else answers at that address: never log in, read the address again
├── KeyRejected      sshd answers and does not know our key (also for a moment while a machine boots)
├── ToolMissing      a program is not installed, there or here
├── AgentRefused     the agent answered `ok: false`; `error` is one of the protocol's closed list
├── BadStream        what came is not the protocol: too long, not JSON, another shape
└── TransferError    rsync ended with an error that is none of the above
    ├── ShellNotClean   a login script prints on stdout, which breaks rsync (B049)
    ├── DiskFull        `side` says where: "machine" or "here"
    ├── Stopped         we were asked to stop; what was transferred stays for the next try
    └── Unsafe          the machine names something outside of the folder that it was asked for
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SshError(Exception):
    """Base; `where` is `rental (user@host:port)` for the user's eyes."""

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class Unreachable(SshError):
    """No connection could be made, or it is gone."""

    def __init__(self, message: str, *, reason: str, where: str = "") -> None:
        super().__init__(message, where=where)
        self.reason = reason


class HostKeyChanged(SshError):
    """The host key is not the pinned one."""


class KeyRejected(SshError):
    """The machine refused our key."""


class ToolMissing(SshError):
    """`tool` is not installed; `side` is "machine" or "here"."""

    def __init__(self, tool: str, *, side: str = "machine", where: str = "") -> None:
        place = "on the machine; add it to the image" if side == "machine" else "on this computer; install it"
        super().__init__(f"`{tool}` is missing {place}", where=where)
        self.tool = tool
        self.side = side


class AgentRefused(SshError):
    """The agent's own refusal: `error` of the closed list, `detail` in words, `answer` in full."""

    def __init__(self, error: str, detail: str, answer: Mapping[str, Any], *, where: str = "") -> None:
        super().__init__(f"the agent refused: {error}: {detail}", where=where)
        self.error = error
        self.detail = detail
        self.answer = answer


class BadStream(SshError):
    """The other end does not speak the protocol."""


class TransferError(SshError):
    """A copy failed; `code` is rsync's exit code, `evidence` its last words."""

    def __init__(self, message: str, *, code: int = 0, evidence: str = "", where: str = "") -> None:
        super().__init__(message, where=where)
        self.code = code
        self.evidence = evidence


class ShellNotClean(TransferError):
    """A login script prints on stdout."""


class DiskFull(TransferError):
    """No space left; `side` is "machine" or "here"."""

    def __init__(self, message: str, *, side: str, code: int = 0, evidence: str = "", where: str = "") -> None:
        super().__init__(message, code=code, evidence=evidence, where=where)
        self.side = side


class Stopped(TransferError):
    """The caller's stop event was set."""


class Unsafe(TransferError):
    """A name or link that leaves its folder."""
