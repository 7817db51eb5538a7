"""The system programs a local machine needs, and the packages that bring them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from functools import cache

from providers.errors import Invalid

# Where distributions put daemons, which an ordinary user's PATH often lacks.
SYSTEM_FOLDERS = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin:/opt/homebrew/bin:/usr/local/bin"

# program -> package for apt, dnf, brew
PACKAGES: dict[str, tuple[str, str, str]] = {
    "sshd": ("openssh-server", "openssh-server", "openssh"),
    "ssh-keygen": ("openssh-client", "openssh", "openssh"),
    "ssh": ("openssh-client", "openssh-clients", "openssh"),
    "rsync": ("rsync", "rsync", "rsync"),
    "tmux": ("tmux", "tmux", "tmux"),
    "bash": ("bash", "bash", "bash"),
    "setsid": ("util-linux", "util-linux", "util-linux"),
    "unshare": ("util-linux", "util-linux", "util-linux"),
    "bwrap": ("bubblewrap", "bubblewrap", "bubblewrap"),
}
REQUIRED = ("sshd", "ssh-keygen", "rsync", "tmux", "bash", "setsid")


class MissingProgram(Invalid):
    """A program is not installed; the message names its package for apt, dnf and brew."""

    kind = "missing-program"


def find(program: str) -> str | None:
    """Absolute path of a program, also from the folders of daemons; None where it is not installed."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":" + SYSTEM_FOLDERS)


@cache
def _found(program: str) -> str:
    path = find(program)
    if path is None:
        raise missing([program])
    return path


def need(program: str) -> str:
    """Absolute path of a program that must be there. Raises `MissingProgram`."""
    return _found(program)


def missing(programs: Iterable[str]) -> MissingProgram:
    """The error that says what to install, for all the programs at once."""
    names = list(programs)
    apt, dnf, brew = (" ".join(dict.fromkeys(PACKAGES[name][i] for name in names)) for i in range(3))
    return MissingProgram(
        f"not installed on this host: {', '.join(names)}. A `local` machine needs it. Install it with\n"
        f"  apt:  sudo apt-get install -y {apt}\n"
        f"  dnf:  sudo dnf install -y {dnf}\n"
        f"  brew: brew install {brew}",
        provider="local",
        what="create",
    )


def check() -> None:
    """Raise one `MissingProgram` for everything that a machine needs and this host lacks."""
    lacking = [program for program in REQUIRED if find(program) is None]
    if lacking:
        raise missing(lacking)
