"""A run inside a docker image: one container for all its stages, seen and signalled from outside by its marks.

The container's processes are ordinary processes of this machine with the run's variables in their environment, so exit
codes, signals and the end of the whole tree work as without an image. Output goes through a named pipe, not through
docker, which may drop the last of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
from typing import TYPE_CHECKING, Any

from orchestrator.agent.files import read_text, replace, to_json
from orchestrator.agent.machine import output_of
from orchestrator.agent.processes import look_at, machine_mark
from orchestrator.agent.runs import Run, job_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAMS = ("docker", "podman")
ASK_S = 20.0  # a daemon that was not used yet takes some seconds to wake
SHM_SHARE = 2  # of the machine's memory, one part in so many, where the spec names no size
# Its own first process only waits, and takes in the dead that others leave behind.
IDLE = "while :; do sleep 86400 & wait $!; done"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def container_program() -> list[str] | None:
    """docker, or podman, as this login may use it; None where there is none."""
    for name in PROGRAMS:
        path = shutil.which(name)
        if path is None:
            continue
        for prefix in ([], ["sudo", "-n"]):
            if output_of([*prefix, path, "version"], ASK_S):
                return [*prefix, path]
    return None


class Container:
    """The container of one run. `ask` is the order's `container`: image, gpus, shm_bytes, mounts."""

    def __init__(self, run: Run, ask: Mapping[str, Any], program: list[str]) -> None:
        self.run, self.ask, self.program = run, ask, program
        self.name = "gpujob-%s-%s" % (machine_mark()[:8], re.sub(r"[^A-Za-z0-9_.-]", "-", run.key))
        self.leader: int | None = None  # process group of the stage that runs now
        self.home = os.path.join(job_folder(run.order["job"]) if run.order else "/", "home")
        # Read by whoever must end it when its wrapper was killed; before there is anything to end.
        replace(run.path("container"), to_json({"program": program, "name": self.name}))

    def stage(self, name: str, folder: str, env: Mapping[str, str]) -> list[str]:
        """The command that runs a stage inside; the first one brings the image and starts the container."""
        self.leader = None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.pipe(name))
        os.mkfifo(self.pipe(name), 0o600)
        for path in (self.home, *self.ask.get("mounts", [])):
            if not os.path.exists(path):  # docker would make it, as root
                os.makedirs(path)
        lines = ["export %s=%s" % (key, shlex.quote(value)) for key, value in env.items() if VARIABLE.match(key)]
        replace(self.run.path(name + ".env"), "\n".join(lines).encode("utf-8", "surrogateescape") + b"\n")
        return ["bash", "-c", self.script(name, folder)]

    def forget(self, name: str) -> None:
        """The stage's variables, secrets among them, where its container never came to read them."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.run.path(name + ".env"))

    def pipe(self, name: str) -> str:
        return self.run.path(name + ".pipe")

    def script(self, name: str, folder: str) -> str:
        docker, image = shlex.join(self.program), shlex.quote(self.ask["image"])
        box, started, said = shlex.quote(self.name), shlex.quote(self.run.path("started")), self.run.path("image.json")
        inside = "umask 022; exec >%s 2>&1; . %s; rm -f %s; exec bash -eo pipefail %s" % (
            *(shlex.quote(path) for path in (self.pipe(name), *[self.run.path(name + ".env")] * 2)),
            shlex.quote(self.run.path(name + ".sh")),
        )
        marks = {"GPUJOB_RUN": self.run.key, "GPUJOB_MACHINE": machine_mark(), "HOME": self.home}
        passed = " ".join("-e %s=%s" % (key, shlex.quote(value)) for key, value in marks.items())
        return """\
fail() { echo "gpujob: $1" >&2; exit 125; }
if [ ! -e %(started)s ]; then
    echo "gpujob: the image %(image)s"
    %(docker)s pull -q %(image)s >/dev/null || {
        %(docker)s image inspect %(image)s >/dev/null 2>&1 || fail "the image cannot be had"
        echo "gpujob: it could not be pulled; the copy that is on this machine is used"
    }
    %(docker)s image inspect %(image)s >%(said)s
    %(docker)s rm -f %(box)s >/dev/null 2>&1 || :
    %(docker)s run -d --name %(box)s %(options)s --entrypoint bash %(image)s -c %(idle)s >/dev/null ||
        fail "its container does not start; it must have a bash"
    : >%(started)s
fi
exec %(docker)s exec -w %(folder)s %(passed)s %(box)s bash -c %(inside)s
""" % {
            "docker": docker, "image": image, "box": box, "started": started, "said": shlex.quote(said),
            "options": shlex.join(self.options()), "idle": shlex.quote(IDLE), "folder": shlex.quote(folder),
            "passed": passed, "inside": shlex.quote(inside),
        }  # fmt: skip

    def inside(self, folder: str, env: Mapping[str, str]) -> list[str]:
        """The words that start a program beside the stages, with the one variable of the job that matters to it."""
        cards = env.get("CUDA_VISIBLE_DEVICES")
        chosen = ["-e", "CUDA_VISIBLE_DEVICES=" + cards] if cards is not None else []
        return [*self.program, "exec", "-w", folder, *chosen, self.name]

    def options(self) -> list[str]:
        """As the machine is: its network, its login, its folders at the same paths, its cards."""
        job = job_folder(self.run.order["job"]) if self.run.order else "/"
        mounts = [job, self.run.folder, *self.ask.get("mounts", [])]
        cards = ["--device", "nvidia.com/gpu=all"] if self.program[-1].endswith("podman") else ["--gpus", "all"]
        shm = self.ask.get("shm_bytes") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // SHM_SHARE
        return [
            "--network", "host", "--user", "%d:%d" % (os.getuid(), os.getgid()), "--shm-size", str(shm),
            "--ulimit", "memlock=-1", "--ulimit", "stack=67108864",
            "-e", "GPUJOB_MACHINE=" + machine_mark(), "-e", "HOME=" + self.home, "-e", "USER=gpujob",
            *(word for path in dict.fromkeys(mounts) for word in ("-v", "%s:%s" % (path, path))),
            *(cards if self.ask.get("gpus") else []),
        ]  # fmt: skip

    def group(self) -> int | None:
        """The process group of the stage inside, once it is there: that of the first process with the run's marks."""
        if self.leader is None:
            marked = self.run.marked()
            first = look_at(min(marked, key=lambda pid: marked[pid])) if marked else None
            if first is not None:
                self.leader = first.group
        return self.leader

    def image(self) -> dict[str, Any]:
        """What really ran: name, id, and the digest by which it can be had again."""
        found = image_of(self.run)
        return {"image": self.ask["image"], **found}


def image_of(run: Run) -> dict[str, Any]:
    """`{"id", "digest"}` of a run's image; empty where it has none or it was not started."""
    try:
        said = json.loads(read_text(run.path("image.json")) or "null")
    except ValueError:
        said = None
    row = said[0] if isinstance(said, list) and said and isinstance(said[0], dict) else {}
    digests = row.get("RepoDigests")
    found = {"id": row.get("Id"), "digest": digests[0] if isinstance(digests, list) and digests else None}
    return {key: value for key, value in found.items() if value}
