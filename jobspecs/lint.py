"""Warnings for `validate`: specs that are valid and probably not meant.

Rules: a warning stops nothing. Each is a pattern with a reason and a way out, in one table per key.
"""

from __future__ import annotations

import re

from jobspecs.problems import Problem
from jobspecs.schema import JobSpec

_ANY = ("setup", "smoke", "run")
# (keys, pattern, reason, hint); the shell text is searched without its comment lines.
_PATTERNS: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
    (
        ("run",), r"save[_-]strategy[= ]+[\"']?epoch",
        "saves once an epoch, so an interruption loses up to a whole one", "save every some hundred steps",
    ),
    (
        ("run",), r"(^|[;&|]\s*)(tmux|screen|nohup|setsid|disown)\b",
        "detaches itself, so the job looks finished at once", "run it in the foreground; gpujob keeps it in tmux",
    ),
    (
        ("run",), r"[^&>|]&\s*$(?![\s\S]*\bwait\b)",
        "ends with a command in the background, so the job looks finished at once", "leave the & out, or add wait",
    ),
    (
        ("run",), r"\$\(date|`date",
        "makes a name from the time, which the next attempt will not find",
        "save into $GPUJOB_CKPT and $GPUJOB_OUT, which are the same in every attempt",
    ),
    (
        ("setup",), r"pip3?\s+install\s+(?!.*(==|-r\b|--requirement|-e\b|@|\.whl|\s\.))[^\n]*",
        "installs whatever version is newest on that day", "pin it (torch==2.4.0), or use a requirements file",
    ),
    (
        ("setup",), r"(apt|apt-get)\s+.*install.*(nvidia-driver|cuda-drivers)|modprobe\s+nvidia",
        "installs a driver, which a rented machine does not allow", "choose an image or a wheel for its driver",
    ),
    (
        _ANY, r"/home/[a-z][\w-]*/|/Users/[A-Za-z][\w-]*/|\b[A-Z]:\\",
        "names a folder of your own computer", "use workdir, or $GPUJOB_DATA, $GPUJOB_CKPT and $GPUJOB_OUT",
    ),
)  # fmt: skip
_LAUNCHERS = re.compile(r"torchrun|torch\.distributed|accelerate|deepspeed|mpirun|horovod|vllm|GPUJOB_NUM_GPUS")


def warnings(spec: JobSpec) -> list[Problem]:
    """What is worth a second look, in the order of the schema; problems without a place."""
    found = []
    for keys, pattern, reason, hint in _PATTERNS:
        for key in keys:
            command = re.sub(r"^\s*#.*$", "", getattr(spec, key) or "", flags=re.MULTILINE)
            if re.search(pattern, command.rstrip(), re.MULTILINE):
                found.append((key, reason, hint))
    if any(choice.count > 1 for choice in spec.gpu.choices) and not _LAUNCHERS.search(spec.run):
        hint = 'start it with torchrun --nproc_per_node="$GPUJOB_NUM_GPUS", or ask for one GPU'
        found.append(("gpu", "run starts one process, and most frameworks then use one GPU", hint))
    if spec.spot is True and spec.hold_on_failure.seconds:
        found.append(("hold_on_failure", "does nothing on a spot machine", "leave it out, or write spot: auto"))
    if spec.checkpoint is not None and not spec.resumable:
        hint = 'pass "$GPUJOB_RESUME_FROM" in run, or set checkpoint.resume: folder'
        found.append(("checkpoint", "is declared, and nothing resumes from it", hint))
    return [Problem("", 0, 0, key, reason, hint) for key, reason, hint in found]
