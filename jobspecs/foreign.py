"""Reads specs of other tools into a draft of ours: SkyPilot, dstack and `#SBATCH` scripts.

Rules: only what means the same is carried over; everything else becomes a note, and no value that looks like a
credential is copied.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jobspecs.problems import Refusal, looks_like_secret_name, looks_like_secret_value, shown
from jobspecs.units import Duration, parse_size

# The same provider under another tool's name.
_PROVIDER_NAMES = {"vastai": "vast"}


@dataclass
class Draft:
    """Keys of our spec with plain values, and notes on what could not be carried over."""

    keys: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def left(self, key: str, value: object, why: str = "has no counterpart") -> None:
        """Notes a key that is not carried over."""
        said = f"{key}: {shown(value)}" if isinstance(value, (str, int)) and value != "" else key
        self.notes.append(f"not carried over: {said} ({why})")

    def env(self, values: object) -> None:
        """Adds variables; what looks like a secret goes to `secrets` by its name."""
        pairs = values.items() if isinstance(values, Mapping) else [_pair(each) for each in _list(values)]
        for name, value in pairs:
            if looks_like_secret_name(str(name)) or looks_like_secret_value(str(value)):
                self.keys.setdefault("secrets", []).append(str(name))
            else:
                self.keys.setdefault("env", {})[str(name)] = None if value is None else str(value)


def _pair(text: object) -> tuple[str, str | None]:
    name, equals, value = str(text).partition("=")
    return name, value if equals else None


def _list(value: object) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _dict(value: object) -> dict[str, Any]:
    return {str(key): each for key, each in value.items()} if isinstance(value, Mapping) else {}


def _size(text: object, unit: str = "GB") -> str:
    """A size or range of sizes; bare numbers get `unit`."""
    return "..".join(re.sub(r"^([0-9.]+)(\+?)$", rf"\1{unit}\2", end.strip()) for end in str(text).split(".."))


def _disk(text: object) -> dict[str, str]:
    """A disk size, which elsewhere is one disk, as our data disk; a range counts from its low end."""
    return {"data": _size(str(text).split("..")[0].rstrip("+"))}


def _providers(value: Any) -> list[str]:
    names = [str(each).lower() for each in _list(value)]
    return [_PROVIDER_NAMES.get(name, name) for name in names]


def _take(draft: Draft, source: dict[str, Any], table: Mapping[str, Callable[[Draft, Any], None]]) -> None:
    for key, value in source.items():
        if value is None:
            continue
        if key in table:
            table[key](draft, value)
        else:
            draft.left(key, value)


def _to(key: str, change: Callable[[Any], Any] = lambda value: value) -> Callable[[Draft, Any], None]:
    def put(draft: Draft, value: Any) -> None:
        draft.keys[key] = change(value)

    return put


def _off(why: str) -> Callable[[Draft, Any], None]:
    return lambda draft, value: draft.notes.append(f"left out: {why}")


def _accelerators(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [f"{name}:{count}" if count else str(name) for name, count in value.items()]
    return value


def _one_node(draft: Draft, value: Any) -> None:
    if str(value) != "1":
        draft.left("num_nodes", value, "a job runs on one machine; ask for more GPUs with gpu: NAME:COUNT")


def _sky_image(draft: Draft, value: Any) -> None:
    if str(value).startswith("docker:"):
        draft.keys["image"] = str(value).removeprefix("docker:")
    else:
        draft.left("image_id", value, "it names a machine image of one cloud")


def _sky_infra(draft: Draft, value: Any) -> None:
    draft.keys["providers"] = _providers(str(value).split("/")[0])
    if "/" in str(value):
        draft.keys["regions"] = [str(value).split("/")[1]]


def _file_mounts(draft: Draft, value: Any) -> None:
    for path, source in _dict(value).items():
        if isinstance(source, str):
            draft.keys.setdefault("data", []).append({"from": source, "path": path.removeprefix("~/")})
        else:
            draft.left(f"file_mounts {path}", "", "a mounted bucket; list it under data as {from, path}")


def _sky_retry(draft: Draft, value: Any) -> None:
    limit = _dict(value).get("max_restarts_on_errors")
    codes = _dict(value).get("recover_on_exit_codes")
    if limit or codes:
        draft.keys["retry"] = {"max": limit or 1} | ({"exit_codes": _list(codes)} if codes else {})


_SKY_RESOURCES: dict[str, Callable[[Draft, Any], None]] = {
    "accelerators": _to("gpu", _accelerators),
    "gpus": _to("gpu", _accelerators),
    "cpus": _to("cpus"),
    "memory": _to("memory", _size),
    "use_spot": _to("spot"),
    "disk_size": _to("disk", _disk),
    "image_id": _sky_image,
    "infra": _sky_infra,
    "cloud": _sky_infra,
    "region": _to("regions", _list),
    "ports": _to("ports", _list),
    "labels": _to("labels"),
    "max_hourly_cost": _to("max_price"),
    "job_recovery": _sky_retry,
    "autostop": _off("autostop; every machine is released at the job's end"),
}


def _sky_resources(draft: Draft, value: Any) -> None:
    resources = _dict(value)
    for key in ("any_of", "ordered"):
        choices = [_accelerators(_dict(each).get("accelerators")) for each in _list(resources.pop(key, None))]
        names = [name for choice in choices if choice for name in _list(choice)]
        if names:
            draft.keys["gpu"] = names
    _take(draft, resources, _SKY_RESOURCES)


def skypilot(source: dict[str, Any]) -> Draft:
    """A SkyPilot task."""
    draft = Draft()
    _take(
        draft,
        source,
        {
            "name": _to("name"),
            "resources": _sky_resources,
            "num_nodes": _one_node,
            "workdir": _to("workdir"),
            "file_mounts": _file_mounts,
            "envs": Draft.env,
            "env": Draft.env,
            "secrets": lambda d, v: d.keys.setdefault("secrets", []).extend(map(str, _list(list(v)))),
            "setup": _to("setup"),
            "run": _to("run"),
        },
    )
    return draft


def _dstack_gpu(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    names = _list(value.get("name"))
    rest = [str(value[key]) for key in ("memory", "count") if value.get(key)]
    return [":".join([str(name), *rest]) for name in names] or ":".join(rest)


def _dstack_resources(draft: Draft, value: Any) -> None:
    table: dict[str, Callable[[Draft, Any], None]] = {
        "gpu": _to("gpu", _dstack_gpu),
        "cpu": _to("cpus"),
        "memory": _to("memory", _size),
        "disk": _to("disk", lambda v: _disk(_dict(v).get("size", v))),
        "shm_size": _to("shm_size", _size),
    }
    _take(draft, _dict(value), table)


def _dstack_ttl(draft: Draft, value: Any) -> None:
    if str(value).lower() == "off":
        draft.left("max_duration", value, "every job has an end; ttl is 12h unless you write another")
    else:
        draft.keys["ttl"] = f"{value}s" if str(value).isdigit() else value


def _files(draft: Draft, value: Any) -> None:
    draft.keys["workdir"] = "."
    draft.left("repos or files", "", "the folder of the spec is sent as workdir")


def dstack(source: dict[str, Any]) -> Draft:
    """A dstack task, dev environment or service."""
    draft = Draft()
    spot = {"spot": "true", "on-demand": "false", "auto": "auto"}
    kind = str(source.pop("type", "task"))
    if kind == "service":
        draft.keys["workload"] = "serve"
    elif kind != "task":
        draft.left("type", kind, "only tasks and services have a counterpart")
    _take(
        draft,
        source,
        {
            "name": _to("name"),
            "image": _to("image"),
            "env": Draft.env,
            "commands": _to("run", lambda v: "\n".join(map(str, _list(v))) + "\n"),
            "resources": _dstack_resources,
            "spot_policy": _to("spot", lambda v: spot.get(str(v), v)),
            "backends": _to("providers", _providers),
            "regions": _to("regions", _list),
            "max_price": _to("max_price"),
            "max_duration": _dstack_ttl,
            "stop_duration": _to("grace", lambda v: {"time": v}),
            "ports": _to("ports", _list),
            "port": _to("ports", _list),
            "tags": _to("labels"),
            "repos": _files,
            "files": _files,
            "idle_duration": _off("idle_duration; every machine is released at the job's end"),
        },
    )
    draft.keys.setdefault("gpu", "none")
    return draft


def _slurm_time(text: str) -> str:
    """Slurm's [D-]HH:MM:SS, MM:SS, MM or D-HH as a duration of ours."""
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return str(Duration(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds))


def _slurm_gpu(text: str) -> str:
    parts = text.split(",")[0].split(":")
    if parts[0] == "gpu":
        parts = parts[1:] or ["1"]
    return f">=16GB:{parts[0]}" if parts[0].isdigit() else ":".join(parts[:2])


def _slurm_memory(text: str) -> str:
    number, unit = re.sub(r"[A-Za-z]+$", "", text), text.lstrip("0123456789.")[:1].upper() or "M"
    return str(parse_size(f"{number}{unit}iB"))  # Slurm's G is a power of two


_SBATCH_SHORT = {"J": "job-name", "t": "time", "c": "cpus-per-task", "N": "nodes", "n": "ntasks", "p": "partition",
                 "o": "output", "e": "error", "D": "chdir", "A": "account", "a": "array", "G": "gpus"}  # fmt: skip
_SBATCH_OFF = ("output", "error", "open-mode", "partition", "account", "qos", "export", "ntasks", "ntasks-per-node")


def _sbatch_options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for line in re.findall(r"^#SBATCH\s+(.*)$", text, re.MULTILINE):
        words = shlex.split(line, comments=True)
        while words:
            word = words.pop(0)
            name, equals, value = word.lstrip("-").partition("=")
            if not word.startswith("--") and word.startswith("-") and len(word) > 1:
                name, value = _SBATCH_SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
            if not value and not equals and words and not words[0].startswith("-"):
                value = words.pop(0)
            options[name] = value
    return options


def sbatch(text: str) -> Draft:
    """A Slurm batch script."""
    draft = Draft({"workdir": "."})
    table: dict[str, tuple[str, Callable[[str], Any]]] = {
        "job-name": ("name", str),
        "time": ("ttl", _slurm_time),
        "cpus-per-task": ("cpus", str),
        "mem": ("memory", _slurm_memory),
        "gres": ("gpu", _slurm_gpu),
        "gpus": ("gpu", _slurm_gpu),
        "gpus-per-node": ("gpu", _slurm_gpu),
        "gpus-per-task": ("gpu", _slurm_gpu),
    }
    for name, value in _sbatch_options(text).items():
        if name in table:
            key, change = table[name]
            try:
                draft.keys[key] = change(value)
            except (ValueError, Refusal):
                draft.left(name, value, "it could not be read")
        elif name in ("nodes", "array", "dependency", "requeue") and value != "1":
            draft.left(name, value, "a job runs on one machine, and lost machines are always replaced")
        elif name in _SBATCH_OFF:
            draft.notes.append(f"left out: --{name}; it means something only in a Slurm cluster")
        elif value != "1":
            draft.left(name, value)
    lines = [line for line in text.splitlines() if not line.startswith(("#SBATCH", "#!"))]
    draft.keys["run"] = "\n".join(lines).strip("\n") + "\n"
    draft.keys.setdefault("gpu", "none")
    if re.search(r"^\s*(module|srun|sbatch)\b", draft.keys["run"], re.MULTILINE):
        draft.notes.append("run still has module, srun or sbatch, which a rented machine has not")
    if "SLURM_" in draft.keys["run"]:
        draft.notes.append("run still reads SLURM_ variables; GPUJOB_NUM_GPUS and GPUJOB_CPUS are set instead")
    return draft
