"""A `docker` for tests: podman under that name where this host lets it run, else a stand-in of a few lines of sh.

podman  real containers, with an image made of this host's bash and a few tools; nothing is pulled. Control groups and
        limits are left out, since few sandboxes allow them.
stand-in  no container at all: it runs commands in a session of their own, not below their caller, as a daemon would.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

IMAGE = "localhost/gpujob-test:1"
TOOLS = ("bash", "sleep", "cat", "id", "touch", "mv", "ls", "env", "rm", "setsid", "mkdir", "dd")

_PODMAN = """\
#!/bin/sh
# podman, called docker. Options that a sandbox refuses are left out.
first=$1; shift
if [ "$first" = run ]; then
    set -- --cgroups disabled --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 "$@"
fi
n=$#
while [ "$n" -gt 0 ]; do
    word=$1; shift; n=$((n - 1))
    if [ "$word" = --ulimit ] && case $1 in memlock=*|stack=*) true ;; *) false ;; esac; then shift; n=$((n - 1))
    else set -- "$@" "$word"; fi
done
exec unshare -m sh -c 'mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null
exec podman --root "@store@" --runroot "@runs@" --storage-driver vfs --cgroup-manager cgroupfs "$@"' sh "$first" "$@"
"""

_STAND_IN = """\
#!/bin/bash
# A stand-in for docker: no container, only sessions of their own.
cd / || exit
case $1 in
    version) echo stand-in ;;
    pull) exit 1 ;;
    image) [ "$*" = "${*/nowhere/}" ] || exit 1
        echo '[{"Id": "sha256:feed", "RepoDigests": ["test@sha256:beef"]}]' ;;
    run) printf '%s\\n' "$@" >@runs@/run.args; echo made ;;
    exec) shift; words=()
        while [ "${1#-}" != "$1" ]; do
            case $1 in -w) cd "$2" || exit 126 ;; -e) words+=("$2") ;; esac
            shift 2
        done
        shift
        env -i PATH=/usr/bin:/bin "${words[@]}" setsid -w "$@" ;;
    kill | rm) echo gone ;;
esac
"""


def install(kind: str, folder: Path) -> Path:
    """A folder with a program `docker`, to be put first on PATH."""
    folder.mkdir(parents=True)
    # podman refuses places with long names: its sockets lie there.
    short = Path(tempfile.mkdtemp(prefix="pm-", dir="/tmp"))
    atexit.register(shutil.rmtree, short, ignore_errors=True)
    (short / "runs").mkdir()
    text = _PODMAN if kind == "podman" else _STAND_IN
    program = folder / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(text.replace("@store@", str(short / "store")).replace("@runs@", str(short / "runs")))
    program.chmod(0o755)
    if kind == "podman":
        subprocess.run([program, "import", _root(folder), IMAGE], check=True, capture_output=True)
    return program.parent


def _root(folder: Path) -> Path:
    """A tar of a root file system with bash, made of this host's files."""
    root = folder / "root"
    for name in ("tmp", "proc", "dev", "etc", "sys", "usr", "bin"):
        (root / name).mkdir(parents=True)
    for tool in TOOLS:
        path = shutil.which(tool, path="/bin:/usr/bin")
        assert path is not None, tool
        shutil.copy(path, root / "bin" / tool)
        for word in subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout.split():
            if word.startswith("/"):
                target = root / word.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, target)
    subprocess.run(["tar", "-C", root, "-cf", folder / "root.tar", "."], check=True)
    return folder / "root.tar"


@cache
def podman_works(folder: Path) -> bool:
    """Whether a container can be started here at all."""
    if shutil.which("podman") is None:
        return False
    try:
        program = install("podman", folder / "probe") / "docker"
        done = subprocess.run([program, "run", "--rm", IMAGE, "bash", "-c", "exit 7"], capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 7
