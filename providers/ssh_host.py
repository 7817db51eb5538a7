"""What the `ssh` provider runs on somebody's own machine: one command each, JSON in, JSON out. Sent whole every time.

Rules
- Standard library only, Python 3.8 or newer, Linux. Nothing of it stays but `~/.gpujob-host`.
- One rental at a time: `held` is made by link, so of two computers one wins. It goes last at a release, so a release
  that was cut is seen as held and done again.
- Only what is ours is ended and removed: processes with the rental's mark and what they started, `~/.gpujob`, the
  job's own folder, the rental's line in authorized_keys.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

HOME = os.path.expanduser("~")
OURS = os.path.join(HOME, ".gpujob-host")
HELD = os.path.join(OURS, "held")
CONTROL = os.path.join(HOME, ".gpujob")
KEYS = os.path.join(HOME, ".ssh", "authorized_keys")
ENDED_FOR_S = 600.0  # how long an ended rental is answered for


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    """Whole or not at all."""
    half = "%s.%d" % (path, os.getpid())
    with open(half, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(half, path)


def held() -> dict[str, Any]:
    """Who holds the machine; empty when nobody does."""
    text = read(HELD)
    return json.loads(text) if text else {}


def ended() -> dict[str, Any]:
    """Tombstones by rental; old ones go."""
    found = {}
    for name in os.listdir(OURS) if os.path.isdir(OURS) else []:
        if name.startswith("ended.") and name.count(".") == 1:
            stone = json.loads(read(os.path.join(OURS, name)) or "{}")
            if time.time() - float(stone.get("at", 0)) > ENDED_FOR_S:
                os.unlink(os.path.join(OURS, name))
            else:
                found[name[6:]] = stone
    return found


def look(ask: dict[str, Any]) -> dict[str, Any]:
    return {"held": held(), "ended": ended()}


def probe(ask: dict[str, Any]) -> dict[str, Any]:
    """What the machine has; memory and disk in bytes."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        gpus = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30).stdout.decode()
    except (OSError, subprocess.TimeoutExpired):
        gpus = ""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk": shutil.disk_usage(HOME).free,
        "gpus": [line.rpartition(",")[::2] for line in gpus.splitlines() if "," in line],
        "docker": has_docker(),
        "lacks": [name for name in ("rsync", "tmux", "setsid") if shutil.which(name) is None],
    }


def has_docker() -> bool:
    """Whether the login may use docker or podman, by itself or by sudo, as the agent will."""
    for name in ("docker", "podman"):
        for prefix in ([], ["sudo", "-n"]):
            if shutil.which(name) is not None and answers([*prefix, name, "version"]):
                return True
    return False


def answers(argv: list[str]) -> bool:
    try:
        null = subprocess.DEVNULL
        return subprocess.run(argv, stdin=null, stdout=null, stderr=null, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def create(ask: dict[str, Any]) -> dict[str, Any]:
    """Take the machine for one rental, let its key in, start its boot hook."""
    os.makedirs(OURS, mode=0o700, exist_ok=True)
    mine = "%s.%d" % (HELD, os.getpid())
    write(mine, json.dumps({"tag": ask["tag"], "at": time.time()}))
    try:
        os.link(mine, HELD)
    except FileExistsError:
        return {"held": held(), "made": False}
    finally:
        os.unlink(mine)
    shutil.rmtree(CONTROL, ignore_errors=True)
    os.makedirs(os.path.dirname(KEYS), mode=0o700, exist_ok=True)
    line = "%s %s\n" % (" ".join(ask["key"].split()[:2]), mark_of(ask["rental"]))
    write(KEYS, "".join([*other_keys(ask["rental"]), line]))
    hook = os.path.join(OURS, "boot.sh")
    write(hook, gzip.decompress(base64.b64decode(ask["hook"])).decode())
    write(os.path.join(OURS, "hook"), str(detached("sh", hook)))
    return {"held": held(), "made": True}


def detached(*argv: str) -> int:
    """Start something that outlives this login; its pid."""
    nothing = subprocess.DEVNULL
    return subprocess.Popen(argv, start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing).pid


def mark_of(rental: str) -> str:
    return "gpujob-rental=%s" % rental


def other_keys(rental: str) -> list[str]:
    return [line for line in read(KEYS).splitlines(True) if not line.rstrip().endswith(mark_of(rental))]


def destroy(ask: dict[str, Any]) -> dict[str, Any]:
    """End, clean, release; answers `known` false for a rental that this machine does not know."""
    rental = ask["rental"]
    if held().get("tag") != ask["tag"]:
        return {"known": rental in ended()}
    end_all()
    if alive():
        return {"known": True, "trouble": "processes of the rental could not be ended: %s" % sorted(alive())}
    shutil.rmtree(CONTROL, ignore_errors=True)
    if ask["job"]:
        shutil.rmtree(os.path.join(HOME, "gpujob", ask["job"]), ignore_errors=True)
        try:
            os.rmdir(os.path.join(HOME, "gpujob"))
        except OSError:
            pass  # not there, or somebody else's things are in it
    if ask["release"] not in ("none", "poweroff"):
        done = subprocess.run(["sh", "-c", ask["release"]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60)  # fmt: skip
        if done.returncode != 0:
            words = done.stdout.decode(errors="replace").strip()[-200:]
            return {"known": True, "trouble": "the release command ended with %d: %s" % (done.returncode, words)}
    write(KEYS, "".join(other_keys(rental)))
    write(os.path.join(OURS, "ended." + rental), json.dumps({"tag": ask["tag"], "at": time.time()}))
    os.unlink(HELD)
    if ask["release"] == "poweroff":
        detached("sh", "-c", "sleep 2; poweroff || sudo -n poweroff || shutdown -h now")
    return {"known": True}


def processes() -> Iterator[tuple[int, int, bytes]]:
    """(pid, parent, environment) of what we may see."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in (1, os.getpid(), os.getppid()):
            try:
                with open("/proc/%s/stat" % entry) as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] in "ZX":
                continue
            try:
                with open("/proc/%s/environ" % entry, "rb") as file:
                    environment = file.read()
            except OSError:
                environment = b""
            yield int(entry), int(fields[1]), environment


def alive() -> set[int]:
    """Everything of the rental: the hook, what carries the agent's mark, and what those started."""
    nonce = read(os.path.join(CONTROL, "nonce")).strip()
    mark = ("GPUJOB_MACHINE=" + hashlib.sha256(nonce.encode()).hexdigest()[:16]).encode() if nonce else None
    roots = {int(word) for name in ("hook.pid", "agent.pid") for word in read(os.path.join(CONTROL, name)).split()[:1]}
    roots |= {int(word) for word in read(os.path.join(OURS, "hook")).split()[:1]}
    there = list(processes())
    found = {pid for pid, _, environment in there if mark and mark in environment.split(b"\0")}
    found |= {pid for pid, _, _ in there if pid in roots and ours(pid)}
    while True:
        more = {pid for pid, parent, _ in there if parent in found} - found
        if not more:
            return found
        found |= more


def ours(pid: int) -> bool:
    """A recorded pid may be another process by now: ours have our folders in their command line."""
    words = read("/proc/%d/cmdline" % pid)
    return CONTROL in words or OURS in words


def end_all() -> None:
    """Stop first, so that nothing is started anew while the rest is ended."""
    for _ in range(50):
        found = alive()
        if not found:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
        time.sleep(0.05)


if __name__ == "__main__":
    asked = json.loads(base64.b64decode(sys.argv[1]))
    print("gpujob-answer " + json.dumps(globals()[asked["verb"]](asked)))
