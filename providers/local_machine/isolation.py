"""The three ways to fence a machine in, best first, and which of them this host can do.

bwrap      own files, own processes: bubblewrap
unshare    own /tmp, own processes: util-linux and user namespaces
subreaper  own processes only, by a supervisor that every orphan comes home to: where namespaces are forbidden

Rules
- A user namespace has one user, and its number is not 0: sshd as uid 0 wants to change users and cannot.
- The machine's /etc/group has no group `tty`: sshd would give a terminal to it, may not, and end the session.
- A name cache (nscd) would answer with the host's accounts, so its socket is hidden.
- What lies in the host's home folders is not visible in a bwrap machine, apart from our own Python.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from providers.errors import Invalid
from providers.local_machine.folder import remove_tree
from providers.local_machine.programs import find, need

Mode = Literal["bwrap", "unshare", "subreaper"]
MODES: tuple[Mode, ...] = get_args(Mode)

LOGIN, LOGIN_ID = "gpu", 1000  # inside a namespace; outside it is whoever runs gpujob
PROBE_TIMEOUT_S = 20.0
# A Unix socket's path holds 107 bytes, and tmux adds "/tmux-<uid>/<name>" to the machine's /tmp.
LONGEST_TMP = 75
HIDDEN = ("/home", "/root", "/run")
# Folders below /run that name resolution needs.
KEPT_RUN = ("/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf")

# Run as root of a first user namespace, to lay the machine's files over the host's; $M is its folder.
# A folder below /tmp would vanish with the host's /tmp, so it is first bound to where it will be looked for.
_LAY_OVER = """set -e
mount --bind "$M/etc/passwd" /etc/passwd
mount --bind "$M/etc/group" /etc/group
case "$M" in /tmp/*) mkdir -p "$M/root/tmp/${M#/tmp/}"; mount --rbind "$M" "$M/root/tmp/${M#/tmp/}";; esac
mount --rbind "$M/root/tmp" /tmp
if [ -d /run/nscd ]; then mount -t tmpfs none /run/nscd; fi
unset M
exec "$@"
"""


@dataclass(frozen=True)
class Inside:
    """How the machine looks from inside: absolute paths as its own processes see them."""

    user: str
    home: str
    tmp: str
    etc: str
    shell: str = "/bin/bash"


def inside(mode: Mode, folder: Path) -> Inside:
    """Where things are in a machine whose final folder is `folder`. Raises `Invalid` on a path too long."""
    if mode == "bwrap":
        return Inside(LOGIN, f"/home/{LOGIN}", "/tmp", "/run/machine")
    home, etc = str(folder / "root/home"), str(folder / "etc")
    if mode == "unshare":
        return Inside(LOGIN, home, "/tmp", etc)
    tmp = str(folder / "root/tmp")
    if len(tmp) > LONGEST_TMP:
        raise Invalid(
            f"the local home's path is too long for tmux sockets: {tmp} has {len(tmp)} characters, "
            f"{LONGEST_TMP} is the most. Set GPUJOB_LOCAL_HOME to a shorter folder",
            provider="local",
            what="create",
        )
    return Inside(pwd.getpwuid(os.getuid()).pw_name, home, tmp, etc)


def base_python() -> str:
    """The interpreter itself, not a virtual environment's link to it."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def wrap(mode: Mode, folder: Path, command: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The argv and environment that run `command` as pid 1 of the machine in `folder`."""
    if mode == "bwrap":
        return [*_bwrap(folder), "--", *command], env
    if mode == "unshare":
        unshare = need("unshare")
        user = ["--user", f"--map-user={LOGIN_ID}", f"--map-group={LOGIN_ID}"]
        inner = [unshare, *user, "--pid", "--fork", "--mount-proc", *command]
        outer = [unshare, "--user", "--map-root-user", "--mount", "/bin/sh", "-c", _LAY_OVER, "sh", *inner]
        return outer, {**env, "M": str(folder)}
    return command, env


def _bwrap(folder: Path) -> list[str]:
    """Read-only host, private /home, /tmp, /run, /dev and /proc."""
    argv = [need("bwrap"), "--unshare-user", "--uid", str(LOGIN_ID), "--gid", str(LOGIN_ID)]
    argv += ["--unshare-pid", "--as-pid-1", "--unshare-ipc", "--ro-bind", "/", "/", "--dev", "/dev"]
    for device in sorted(Path("/dev").glob("nvidia*")):
        argv += ["--dev-bind-try", str(device), str(device)]
    argv += ["--proc", "/proc"]
    for path in HIDDEN:
        argv += ["--tmpfs", path] if os.path.isdir(path) else []
    for path in KEPT_RUN:
        argv += ["--ro-bind-try", path, path]
    prefix = str(Path(base_python()).parent.parent)
    binds = [("root/tmp", "/tmp"), ("root/var-tmp", "/var/tmp"), ("root/home", f"/home/{LOGIN}")]
    for source, target in binds:
        argv += ["--bind", str(folder / source), target]
    if prefix.startswith(("/home/", "/root/", "/tmp/")):
        argv += ["--ro-bind", prefix, prefix]
    for source, target in (
        ("etc", "/run/machine"),
        ("etc/passwd", "/etc/passwd"),
        ("etc/group", "/etc/group"),
    ):
        argv += ["--ro-bind", str(folder / source), target]
    return [*argv, "--chdir", f"/home/{LOGIN}"]


def lay_out(folder: Path, seen: Inside) -> None:
    """The folders and account files that the sandboxes bind; `seen` is how the machine will look inside."""
    for name in ("ctl", "etc/bin", "root/home", "root/tmp", "root/var-tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\n"
        f"{LOGIN}:x:{LOGIN_ID}:{LOGIN_ID}:{LOGIN}:{seen.home}:{seen.shell}\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        encoding="ascii",
    )
    (folder / "etc/group").write_text(f"root:x:0:\n{LOGIN}:x:{LOGIN_ID}:\nnogroup:x:65534:\n", encoding="ascii")


def choose(scratch: Path) -> Mode:
    """The best way that works here, or the one that GPUJOB_LOCAL_ISOLATION asks for.

    `scratch` is a folder to try in. Raises `Invalid` when the asked one is unknown or does not work.
    """
    asked = os.environ.get("GPUJOB_LOCAL_ISOLATION", "")
    if asked and asked not in MODES:
        raise Invalid(
            f"GPUJOB_LOCAL_ISOLATION={asked!r}: use one of {', '.join(MODES)}",
            provider="local",
            what="create",
        )
    for mode in (asked,) if asked else MODES:
        problem = _probe(mode, scratch)
        if not problem:
            return mode
        if asked:
            raise Invalid(
                f"GPUJOB_LOCAL_ISOLATION={mode}: it does not work on this host: {problem}",
                provider="local",
                what="create",
            )
    raise AssertionError("the subreaper needs nothing that could fail")


_probing = threading.Lock()


def _probe(mode: Mode, scratch: Path) -> str:
    """What is wrong with a mode here, or nothing; tried once a process, whatever thread asks first."""
    with _probing:
        return _try_out(mode, scratch)


@cache
def _try_out(mode: Mode, scratch: Path) -> str:
    """Run a command in an empty machine: namespaces may be there but forbidden."""
    if mode == "subreaper":
        return ""
    if find(mode) is None:
        return f"{mode} is not installed"
    scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = scratch / f".probe-{mode}-{os.getpid()}"
    lay_out(folder, inside(mode, folder))
    check = f"import os, socket, select, signal; assert (os.getpid(), os.getuid()) == (1, {LOGIN_ID})"
    argv, env = wrap(mode, folder, [base_python(), "-I", "-S", "-c", check], dict(os.environ))
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return "it did not answer"
    finally:
        remove_tree(folder)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit {done.returncode}")
