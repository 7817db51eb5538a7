"""Warnings for `validate`: specs that are valid and probably not meant.

Rules: a warning stops nothing. Each is a pattern with a reason and a way out, in one table per key, and names the line
of the script that it is about. Comment lines are not read, and neither a reason nor a hint repeats a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jobspecs.problems import Problem
from jobspecs.schema import JobSpec

_ANY = ("setup", "smoke", "run")
_INSTALL = r"(?:pip3?|uv pip|python3?\s+-m\s+pip)\s+install\s+"
_MIRRORS = r"\S*(?:tuna|aliyun|tencent|ustc|douban|huaweicloud|mirror)"
_MIRROR = r"(?:-i|--index-url|--extra-index-url)[= ]+" + _MIRRORS
_MIRROR_SET = r"(?:(?:PIP_INDEX_URL|UV_INDEX_URL|UV_DEFAULT_INDEX)=|global\.index-url[= ]+)[\"']?" + _MIRRORS
_REST = r"(?:[^\n]|(?<=\\)\n)*"  # of a command, with the lines in which it goes on
_FROM_FILE = r"(?:-r\b|--requirement|-e\b|@|\.whl|\s\.)"
_START = r"(?:^|[;&|]\s*|\bsudo\s+(?:-\w+\s+)*)"  # of a command


def _always(_: JobSpec) -> bool:
    return True


def _on_spot(spec: JobSpec) -> bool:
    return spec.spot_allowed


def _several(spec: JobSpec) -> bool:
    return any(choice.count > 1 for choice in spec.gpu.choices)


@dataclass(frozen=True)
class _Pattern:
    """A line of a script that is worth a second look, in the jobs where it is."""

    keys: tuple[str, ...]
    pattern: str
    reason: str
    hint: str
    where: Callable[[JobSpec], bool] = _always


_PATTERNS = (
    _Pattern(
        ("run",),
        r"save[_-]strategy[= ]+[\"']?epoch|--save[_-](?:every[_-])?epochs?\b|every_n_epochs|save_freq[= ]+[\"']?epoch",
        "saves once an epoch, so an interruption loses up to a whole one", "save every some hundred steps", _on_spot,
    ),
    _Pattern(
        _ANY, r"\btmux\s+(?:new|new-session)\b(?!.*\s-\w*d)",
        "opens tmux in the foreground, which needs a terminal that is not there",
        "leave it out; gpujob keeps run in tmux, and `gpujob attach` shows it",
    ),
    _Pattern(
        ("run",), r"(^|[;&|]\s*)(tmux\s+\S+\s.*-\w*d|screen|nohup|setsid|disown)\b",
        "detaches itself, so the job looks finished at once", "run it in the foreground; gpujob keeps it in tmux",
    ),
    _Pattern(
        ("run",),
        r"^(?!.*\b(?:nohup|setsid)\b).*[^&>|]&[ \t]*(?:\n\s*(?:sleep|echo|disown)\b[^\n]*|\n\s*)*\Z",
        "ends with a command in the background, so the job looks finished at once", "leave the & out, or add wait",
    ),
    _Pattern(
        ("run",), r"\$\(date|`date",
        "makes a name from the time, which the next attempt will not find",
        "save into $GPUJOB_CKPT and $GPUJOB_OUT, which are the same in every attempt",
    ),
    _Pattern(
        _ANY, r"^(?=[\s\S]*\|\s*tee\b)[\s\S]*\bset\s+\+o\s+pipefail",
        "turns pipefail off, so `| tee` hides the exit code of a program that failed",
        "leave `set +o pipefail` out; gpujob sets pipefail for every script",
    ),
    _Pattern(
        _ANY, r"\b(?:ba|da|z)?sh\s+(?!.*pipefail)(?:-\w+\s+)*-\w*c\s+[\"'][^\n]*\|\s*tee\b",
        "starts a shell of its own, in which `| tee` hides the exit code of a program that failed",
        "bash -o pipefail -c, or leave the inner shell out",
    ),
    _Pattern(
        ("run",), r"\|\|\s*(?:true|:)\s*\Z",
        "hides the exit code of a program that failed, so the job would be done",
        "leave `|| true` out at the end; artifacts come home after failures as well",
    ),
    _Pattern(
        _ANY, _START + r"(?:/\S*/)?(?:shutdown|poweroff|halt)\b",
        "shuts the machine down, which looks like a lost machine and often goes on billing",
        "leave it out; gpujob gives the machine back as soon as run ends",
    ),
    _Pattern(
        ("smoke", "run"), r"\brm\s+-\w*[rf]\w*\s+[^\n;&|]*\$\{?GPUJOB_(?:CKPT|OUT|DATA)\b",
        "removes what an earlier attempt saved, in every attempt", "leave it out; a new job begins with empty folders",
    ),
    _Pattern(
        ("smoke", "run"), r"\bCUDA_VISIBLE_DEVICES=[\"']?\d+[\"']?(?![\d,\"'])",
        "shows the program one card of several that are paid for", "leave it out, or ask for one GPU", _several,
    ),
    _Pattern(
        _ANY,
        _INSTALL + r"[^\n]*" + _MIRROR + r"[^\n]*\btorch|" + _INSTALL + r"[^\n]*\btorch\b[^\n]*" + _MIRROR
        + "|" + _MIRROR_SET + r"[\s\S]*?" + _INSTALL + r"(?![^\n]*--index-url)[^\n]*\btorch\b",
        "takes torch from a mirror, and many mirrors give the CPU build without a word",
        "take torch from its own index (--index-url .../cu121), the rest from the mirror",
    ),
    _Pattern(
        ("setup", "run"),
        _INSTALL + r"(?!" + _REST + _FROM_FILE + r")(?:" + _REST + r"[\s\"'])?torch(?:\[\w+\])?(?![\w=~@.-])" + _REST
        + r"|\b(?:conda|mamba|micromamba)\s+install\s(?:" + _REST + r"(?<!-c)(?<!--channel)\s)?pytorch(?![\w=-])"
        + _REST,
        "installs whatever version of torch is newest on that day, for whatever CUDA that one wants",
        "pin it with its index (torch==2.4.0 --index-url .../cu121)",
    ),
    _Pattern(
        ("setup",),
        _INSTALL + r"(?!" + _REST + r"(?:[=~]=|\btorch\b|" + _FROM_FILE + r"))"
        r"(?!(?:-\S+\s+)*(?:(?:pip|setuptools|wheel|uv)\s*)+$)" + _REST,
        "installs whatever version is newest on that day", "pin it (NAME==VERSION), or use a requirements file",
    ),
    _Pattern(
        _ANY,
        _START + r"(?:apt|apt-get|aptitude|yum|dnf)\s[^\n;&|]*install\s[^\n;&|]*"
        r"(?:nvidia-driver|cuda-drivers|nvidia-utils|\scuda(?:-\d+-\d+)?(?=\s|$))"
        r"|modprobe\s+nvidia|NVIDIA-Linux-\S*\.run|cuda_\S+_linux\.run(?![^\n]*--toolkit)"
        r"|ubuntu-drivers\s+(?:auto)?install",
        "installs a driver, which a rented machine does not allow", "choose an image or a wheel for its driver",
    ),
    _Pattern(
        _ANY, r"/home/[a-z][\w-]*/|/Users/[A-Za-z][\w-]*/|\b[A-Z]:\\",
        "names a folder of your own computer", "use workdir, or $GPUJOB_DATA, $GPUJOB_CKPT and $GPUJOB_OUT",
    ),
    _Pattern(
        ("run",), r"DataParallel\b(?<!DistributedDataParallel)",
        "uses DataParallel: four cards are then about twice as fast as one",
        'use DistributedDataParallel: torchrun --nproc_per_node="$GPUJOB_NUM_GPUS"',
        _several,
    ),
)  # fmt: skip
_LAUNCHERS = re.compile(
    r"torchrun|torch\.distributed|accelerate|deepspeed|mpirun|horovod|vllm|GPUJOB_NUM_GPUS|\bray\b|\bcomposer\b"
    r"|colossalai|\btune run\b|llamafactory|axolotl|--tp\b|tensor[-_]parallel|--[\w.-]*(?:devices|num[-_]gpus|gpus)[= ]"
)
_WORKERS = re.compile(r"--[\w.-]*(?:num|dataloader)[_-](?:num[_-])?workers[= ](\d{1,4})\b")
_ASSIGNED = re.compile(
    r"\b\w*(?:TOKEN|SECRET|PASSWORD|API_?KEY)=[\"']?(?!\$)[\w/+-]{12,}"
    r"|--[\w-]*(?:token|secret|password|api[-_]?key)[= ][\"']?(?!\$)[\w/+-]{16,}|\bBearer\s+(?!\$)[\w.-]{16,}"
)


def warnings(spec: JobSpec) -> list[Problem]:
    """What is worth a second look, in the order of the schema. `line` is that of the script, 0 for a whole key."""
    found = [*_of_scripts(spec), *_of_secrets(spec)]
    if _several(spec) and not _LAUNCHERS.search(spec.run):
        hint = 'start it with torchrun --nproc_per_node="$GPUJOB_NUM_GPUS", or ask for one GPU'
        found.append(_whole("gpu", "run starts one process, and most frameworks then use one GPU", hint))
    workers = max((int(each) for each in _WORKERS.findall(spec.run)), default=0)
    if spec.cpus is not None and workers > spec.cpus.low:
        words = f"are fewer than the {workers} data workers of run, which then wait for each other"
        found.append(
            _whole("cpus", words, "ask for more cores, or start fewer workers ($GPUJOB_CPUS has their number)")
        )
    if spec.spot is True and spec.hold_on_failure.seconds:
        found.append(_whole("hold_on_failure", "does nothing on a spot machine", "leave it out, or write spot: auto"))
    if spec.checkpoint is not None and not spec.resumable:
        hint = 'pass "$GPUJOB_RESUME_FROM" in run, or set checkpoint.resume: folder'
        found.append(_whole("checkpoint", "is declared, and nothing resumes from it", hint))
    if not spec.resumable and spec.batch is None:
        found += [
            _whole(f"alarms.{key}.relaunch", "begins anew on the other machine: nothing resumes from a checkpoint",
                   'save to $GPUJOB_CKPT and pass "$GPUJOB_RESUME_FROM" in run, or leave it out')
            for key, rule in (spec.alarms.model_dump() if spec.alarms is not None else {}).items()
            if isinstance(rule, dict) and rule.get("relaunch")
        ]  # fmt: skip
    return found


def _whole(key: str, reason: str, hint: str) -> Problem:
    return Problem("", 0, 0, key, reason, hint)


def _scripts(spec: JobSpec, keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The scripts of some keys without comments; the numbers of lines stay."""
    for key in keys:
        bare = re.sub(r"^\s*#.*$|\s#\s[^\"'\n]*$", "", getattr(spec, key) or "", flags=re.MULTILINE)
        yield key, bare.rstrip()


def _of_scripts(spec: JobSpec) -> Iterator[Problem]:
    for each in _PATTERNS:
        if not each.where(spec):
            continue
        for key, script in _scripts(spec, each.keys):
            if match := re.search(each.pattern, script, re.MULTILINE):
                yield Problem("", _line(script, match), 0, key, each.reason, each.hint)


def _line(script: str, match: re.Match[str]) -> int:
    """The line on which a match ends, without the blank that may lead or trail it; counted from 1."""
    return script.count("\n", 0, match.start() + len(match[0].rstrip())) + 1


def _of_secrets(spec: JobSpec) -> Iterator[Problem]:
    """A secret typed into a script is kept with the job; its log may show it. Known shapes are refused before."""
    for key, script in _scripts(spec, _ANY):
        for number, line in enumerate(script.splitlines(), 1):
            if _ASSIGNED.search(line):
                hint = "gpujob secret set NAME, then secrets: [NAME] and $NAME"
                yield Problem("", number, 0, key, "holds what looks like a secret", hint)
                break
