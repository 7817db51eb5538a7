"""A 20 s job through gpujob on `local`, against a hand-written ssh + rsync + tmux script on the same kind of sshd.

    ./dev bench main_job_script [PAIRS] [SECONDS]

Bar: under 1.3 times the script, from the command to the results at home; the wait for the release is not counted. Pairs
are interleaved, each with new folders. gpujob starts cold in each: no controller, no books, and it rents its machine
inside the measured time, records the environment and verifies the results. The script gets a machine that is there and
ready; with the time to rent one added to it, the second ratio is what a person with a script would see.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from _desk import Desk
from _measure import Figure, say, show

from orchestrator import ssh
from providers.base import Ask, Boot, Instance, ProviderConfig, Tag
from providers.local import LocalProvider

RATIO = 1.3
PROGRAM = """
import pathlib, sys, time
data = pathlib.Path("data.bin").read_bytes()
for step in range(int(sys.argv[1])):
    print(f"step={step} bytes={len(data)}", flush=True)
    time.sleep(1)
out = pathlib.Path(sys.argv[2])
out.mkdir(parents=True, exist_ok=True)
(out / "model.bin").write_bytes(data[::-1])
"""
DATA = os.urandom(2_000_000)

# What one writes for oneself: shared connection, code up, detached run with its log, a look each second, results home.
SCRIPT = r"""
set -euo pipefail
m() { ssh -F "$CONFIG" machine "$@"; }
rsync -az -e "ssh -F $CONFIG" "$CODE/" machine:job/
m "cd job && tmux new-session -d -s job 'python3 train.py $SECONDS_TO_RUN out >log 2>&1; echo \$? >rc'"
until rc=$(m cat job/rc 2>/dev/null); do sleep 1; done
rsync -az -e "ssh -F $CONFIG" machine:job/out machine:job/log "$RESULTS/"
exit "$rc"
"""
SSH_CONFIG = """
Host machine
  HostName {host}
  Port {port}
  User {user}
  IdentityFile {key}
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking accept-new
  ControlMaster auto
  ControlPath {folder}/mux
  ControlPersist 60
"""


def code(folder: Path) -> Path:
    """The job's working folder, the same for both."""
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "data.bin").write_bytes(DATA)
    return folder


def by_gpujob(seconds: int) -> float:
    """Seconds from `gpujob apply` to the outcome with its results at home."""
    with Desk() as desk:
        code(desk.project / "code")
        run = f'python3 train.py {seconds} "$GPUJOB_OUT"'
        spec = desk.spec("twenty", workdir="code", run=run, artifacts=[{"path": "*", "to": "./results"}])
        began = time.monotonic()
        desk.cli("apply", str(spec), "-y")
        desk.cli("wait", "twenty", "--for", "outcome")
        wall = time.monotonic() - began
        (model,) = (desk.project / "results").rglob("model.bin")
        assert model.read_bytes() == DATA[::-1]
        desk.cli("wait", "twenty", "--for", "released")
    return wall


def by_script(seconds: int) -> tuple[float, float]:
    """Seconds of the script, and those that its machine took to be ready."""
    with Desk() as desk:
        folder = desk.base / "script"
        folder.mkdir()
        provider = LocalProvider(ProviderConfig("script", desk.base, ()))
        began = time.monotonic()
        made = _machine(desk, provider, folder)
        rented = time.monotonic() - began
        try:
            endpoint = made.endpoint
            assert endpoint is not None
            config = folder / "config"
            key = folder / "id_ed25519"
            host = {"host": endpoint.host, "port": endpoint.port, "user": endpoint.user}
            config.write_text(SSH_CONFIG.format(**host, key=key, folder=folder))
            results = folder / "results"
            results.mkdir()
            env = {
                **os.environ, "CONFIG": str(config), "CODE": str(code(folder / "code")), "RESULTS": str(results),
                "SECONDS_TO_RUN": str(seconds),
            }  # fmt: skip
            began = time.monotonic()
            subprocess.run(["bash", "-c", SCRIPT], env=env, check=True, stderr=subprocess.DEVNULL)
            wall = time.monotonic() - began
            assert (results / "out/model.bin").read_bytes() == DATA[::-1]
            subprocess.run(["ssh", "-F", str(config), "-O", "exit", "machine"], check=False, capture_output=True)
        finally:
            provider.destroy(made.ref)
    return wall, rented


def _machine(desk: Desk, provider: LocalProvider, folder: Path) -> Instance:
    offer = provider.offers(Ask(spot=False))[0]
    boot = Boot("while :; do sleep 60; done", ssh.new_key(folder))
    made = provider.create(offer, Tag("script", "script"), time.time() + 600, boot)

    def ready() -> Instance | None:
        found = provider.get(made.ref)
        return found if found is not None and found.ready else None

    return desk.until(ready, "the script's machine is ready")


def measure(pairs: int, seconds: int) -> list[Figure]:
    ours, theirs, rents = [], [], []
    for number in range(pairs):
        script, rented = by_script(seconds)
        job = by_gpujob(seconds)
        say(f"pair {number + 1}: script {script:.1f} s (its machine {rented:.1f} s), gpujob {job:.1f} s")
        ours.append(job)
        theirs.append(script)
        rents.append(rented)
    strict = tuple(job / script for job, script in zip(ours, theirs, strict=True))
    fair = tuple(job / (script + rent) for job, script, rent in zip(ours, theirs, rents, strict=True))
    extra = statistics.median(ours) - statistics.median(theirs)
    return [
        Figure(f"script, {seconds} s job, machine ready", tuple(theirs), "s"),
        Figure(f"gpujob, {seconds} s job, nothing running", tuple(ours), "s"),
        Figure("gpujob / script", strict, "x", RATIO),
        Figure("gpujob / (script and its machine's start)", fair, "x"),
        Figure("what gpujob takes more", (extra,), "s"),
    ]


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    pairs, seconds = [*numbers, *(5, 20)[len(numbers) :]]
    raise SystemExit(show(measure(pairs, seconds)))
