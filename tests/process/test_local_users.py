"""Local machines of an ordinary user, and of several processes at once."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.local_machine.isolation import MODES, Mode

ROOT = Path(__file__).parents[2]
SHELLS = ("/bin/bash", "/bin/sh", "/usr/bin/bash", "/usr/bin/zsh", "/bin/zsh")

# Runs with the standard library alone, as another user, so it carries its own small client.
DRIVER = """
import json, os, pathlib, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from providers.base import Ask, Boot, ProviderConfig, Tag
from providers.local import LocalProvider
home, count = pathlib.Path(sys.argv[2]), int(sys.argv[3])
key = home / f"id-{os.getpid()}"
subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
provider = LocalProvider(ProviderConfig("dep", home, ()))
boot = Boot("echo booted > boots; sleep 1000", key.with_suffix(".pub").read_text())
offer = provider.offers(Ask(spot=False))[0]
made = [provider.create(offer, Tag("dep", f"r-{os.getpid()}-{i}"), time.time() + 300, boot) for i in range(count)]
while not all(provider.get(m.ref).ready for m in made):
    time.sleep(0.01)
seen = provider.get(made[0].ref)
known = home / f"known-{os.getpid()}"
known.write_text("".join(f"m {line}\\n" for line in seen.host_keys))
def ssh(command, *options):
    return subprocess.run(["ssh", "-F", "/dev/null", "-i", str(key), "-o", "HostKeyAlias=m", "-o", "BatchMode=yes",
        "-o", f"UserKnownHostsFile={known}", *options, "-p", str(seen.endpoint.port),
        f"{seen.endpoint.user}@{seen.endpoint.host}", command],
        stdin=subprocess.DEVNULL, capture_output=True, text=True)
orphan = f"sleep 7{os.getpid():06d}"
tail = "tmux new-session -d -s t '%s' && (env -i setsid %s >/dev/null 2>&1 &) ; " % (orphan, orphan)
tail = "mkdir -p shut/in && touch shut/in/f && chmod 500 shut/in && chmod 0 shut; " + tail
said = ssh(tail + "pwd; cat boots; echo rm -rf >> boots; tmux ls -F '#{session_name}'; sleep 0.05")
tty = ssh("tty", "-tt").stdout.strip()
ids = sorted(i.ref.id for i in provider.list("here").instances if i.status == "running")
ports = [provider.get(m.ref).endpoint.port for m in made]
def alive():
    done = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True).stdout.splitlines()
    return sum(orphan in line and "tmux" not in line and not line.startswith("Z") for line in done)
before = alive()
destroyed = [str(provider.destroy(m.ref)) for m in made]
left = [p for part in ("machines", "trash") for p in (home / "local" / part).iterdir() if p.name in str(made)]
print(json.dumps({"mode": seen.raw["mode"], "said": said.stdout.split("\\n"), "err": said.stderr, "tty": tty,
    "made": [m.ref.id for m in made], "listed": ids, "ports": ports, "before": before, "after": alive(),
    "destroyed": destroyed, "left": len(left), "uid": os.getuid()}))
"""


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gj-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def interpreter(uid: int) -> str:
    """A Python of 3.11 or newer that this user may run."""
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        try:
            asked = subprocess.run(
                [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"],
                user=uid,
                group=uid,
                extra_groups=[],
                cwd="/",
                check=False,
            )
        except (PermissionError, FileNotFoundError):
            continue
        if asked.returncode == 0:
            return python
    pytest.skip("no Python 3.11 that an ordinary user may run")


def ordinary_uid(mode: Mode) -> int:
    """Somebody who is not root; without namespaces it must be an account that can log in."""
    if os.getuid() != 0:
        return os.getuid()
    for account in pwd.getpwall():
        if account.pw_uid != 0 and (mode != "subreaper" or account.pw_shell in SHELLS):
            return account.pw_uid
    pytest.skip("no account on this host but root that could log in")


@pytest.mark.parametrize("mode", MODES)
def test_an_ordinary_user_has_machines_too(mode: Mode, home: Path) -> None:
    uid = ordinary_uid(mode)
    if os.getuid() == 0:
        os.chown(home, uid, uid)
    done = subprocess.run(
        [interpreter(uid), "-B", "-c", DRIVER, str(ROOT), str(home), "1"],
        **({"user": uid, "group": uid, "extra_groups": []} if os.getuid() == 0 else {}),  # type: ignore[arg-type]
        env={"PATH": os.environ["PATH"], "HOME": str(home), "GPUJOB_LOCAL_ISOLATION": mode},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["uid"], seen["mode"]) == (uid, mode)
    where, booted, session, _ = seen["said"]
    assert where == ("/home/gpu" if mode == "bwrap" else f"{home}/local/machines/{seen['made'][0]}/root/home")
    assert (booted, session) == ("booted", "t"), seen["err"]
    assert seen["before"] == 2
    assert (seen["after"], seen["left"]) == (0, 0)
    assert seen["destroyed"] == ["DestroyAck.ACKNOWLEDGED"]
    if mode != "subreaper":  # there the host's devpts decides
        assert seen["tty"].startswith("/dev/pts/")


def test_three_processes_share_one_world(home: Path) -> None:
    """Nine machines of three processes: nine ids, nine ports, and each process sees machines of the others."""
    environment = {**os.environ, "GPUJOB_LOCAL_HOME": str(home / "local")}
    environment.pop("GPUJOB_LOCAL_ISOLATION", None)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(ROOT), str(home), "3"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    seen = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    made = [machine for one in seen for machine in one["made"]]
    assert len(set(made)) == 9
    assert len({port for one in seen for port in one["ports"]}) == 9
    for one in seen:
        assert set(one["made"]) <= set(one["listed"]) <= set(made)
        assert (one["before"], one["after"], one["left"]) == (2, 0, 0)
