"""The words of the loader: unknown keys and what the models refuse.

Role: turns findings of the machine into a reason and a next step, and answers keys of other tools with their name
here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from jobspecs.fields import kind_of
from jobspecs.problems import Refusal, shown

# Keys of SkyPilot, dstack, Slurm, Kubernetes and Compose -> what does it here.
FOREIGN_KEYS: Mapping[str, str] = {
    "accelerators": "`accelerators` is called `gpu` here",
    "accelerator": "`accelerator` is called `gpu` here",
    "gpus": "`gpus` is called `gpu` here",
    "gres": "`gres` is called `gpu` here",
    "use_spot": "`use_spot` is called `spot` here: auto, true or false",
    "spot_policy": "`spot_policy` is called `spot` here: auto, true or false",
    "resources": "there is no `resources`: write gpu, cpus, memory, disk and spot at the top level",
    "num_nodes": "a job runs on one machine: write `gpu: NAME:COUNT`",
    "num_workers": "a job runs on one machine: write `gpu: NAME:COUNT`",
    "nodes": "a job runs on one machine: write `gpu: NAME:COUNT`",
    "gpus_per_node": "the count belongs to `gpu`: write `gpu: NAME:COUNT`",
    "file_mounts": "`file_mounts` is called `data` here: a list of {from, path}",
    "storage_mounts": "`storage_mounts` is called `data` here: a list of {from, path}",
    "volumes": "`volumes` is called `data` here: a list of {from, path}",
    "mounts": "`mounts` is called `data` here: a list of {from, path}",
    "files": "`files` is called `data` here, or part of `workdir`",
    "repos": "`repos` is called `workdir` here: a folder",
    "repo": "`repo` is called `workdir` here: a folder",
    "code": "`code` is called `workdir` here: a folder, or {git, ref}",
    "working_dir": "`working_dir` is called `workdir` here",
    "envs": "`envs` is called `env` here",
    "environment": "`environment` is called `env` here",
    "env_file": "give it on the command line: --env-file FILE",
    "max_duration": "`max_duration` is called `ttl` here",
    "duration": "`duration` is called `ttl` here",
    "timeout": "`timeout` is called `ttl` here",
    "time": "`time` is called `ttl` here",
    "stop_duration": "`stop_duration` is called `grace` here: {time, signal}",
    "idle_duration": "every machine is released at the job's end; `ttl` is the hard end",
    "autostop": "every machine is released at the job's end; `ttl` is the hard end",
    "idle_minutes_to_autostop": "every machine is released at the job's end; `ttl` is the hard end",
    "backends": "`backends` is called `providers` here",
    "clouds": "`clouds` is called `providers` here",
    "cloud": "`cloud` is called `providers` here",
    "infra": "`infra` is called `providers` and `regions` here",
    "provider": "`provider` is called `providers` here",
    "region": "`region` is called `regions` here",
    "zone": "write it as an entry of `regions`",
    "commands": "`commands` is called `run` here: a block of shell text, `run: |`",
    "command": "`command` is called `run` here",
    "entrypoint": "`entrypoint` is called `run` here",
    "script": "`script` is called `run` here",
    "cmd": "`cmd` is called `run` here",
    "args": "write the arguments into `run`",
    "image_id": "`image_id` is called `image` here",
    "docker_image": "`docker_image` is called `image` here",
    "container": "`container` is called `image` here",
    "python": "install it in `setup`, or choose an `image`",
    "max_hourly_cost": "`max_hourly_cost` is called `max_price` here",
    "job_recovery": "machines are always replaced; `retry: {max, exit_codes}` is for failures of your own code",
    "spot_recovery": "machines are always replaced; `retry: {max, exit_codes}` is for failures of your own code",
    "restart_policy": "`restart_policy` is called `retry` here: {max, exit_codes}",
    "backoffLimit": "`backoffLimit` is called `retry` here: {max, exit_codes}",
    "disk_size": "`disk_size` is called `disk` here: {system: 50GB, data: 200GB}",
    "disk_tier": "there is no choice of disk tier; `disk` takes {system, data}",
    "cpu": "`cpu` is called `cpus` here",
    "mem": "`mem` is called `memory` here",
    "ram": "`ram` is called `memory` here",
    "outputs": "`outputs` is called `artifacts` here: a list of {path, to, when}",
    "output": "`output` is called `artifacts` here: a list of {path, to, when}",
    "inputs": "`inputs` is called `data` here: a list of {from, path}",
    "tags": "`tags` is called `labels` here",
    "price_limit": "`price_limit` is called `max_price` here",
    "instance_type": "choose by `gpu`, `cpus` and `memory`",
    "instance_types": "choose by `gpu`, `cpus` and `memory`",
    "any_of": "`gpu` takes a list of which any will do",
    "ordered": "`gpu` takes a list of which any will do; the cheapest to finish wins",
    "type": "`type` is called `workload` here: train, batch or serve",
    "kind": "`kind` is called `workload` here: train, batch or serve",
    "utilization_policy": "`utilization_policy` is called `alarms` here: {gpu_util_below: {percent, for}}",
    "secret": "`secret` is called `secrets` here: a list of names",
    "matrix": "`matrix` is called `sweep` here",
    "strategy": "`strategy` is called `sweep` here",
    "parallelism": "`parallelism` is called `sweep.max_parallel` or `batch.workers` here",
    "service": "a job that serves is `workload: serve` with `ports`",
    "profile": "defaults stand in the config, `gpujob plan` shows them",
    "version": "a spec has no version",
    "apiVersion": "a spec has no version",
    "metadata": "write `name` and `labels` at the top level",
    "spec": "write its keys at the top level",
    "idle": "every machine is released at the job's end; `ttl` is the hard end",
    "depends_on": "start the second job when `gpujob wait` returns",
}
# Keys below another one that other tools, or older habits, write.
_NESTED_FOREIGN: Mapping[tuple[str, str], str] = {
    **{
        ("sweep", key): "parameters are never conditional: write one sweep per case, or the combinations as a list"
        for key in ("when", "if", "unless", "condition", "conditions", "depends_on", "parent", "only_if")
    },
    ("data", "uri"): "`uri` is called `from` here",
    ("data", "source"): "`source` is called `from` here",
    ("data", "src"): "`src` is called `from` here",
    ("data", "to"): "`to` is called `path` here: the place on the machine",
    ("data", "dest"): "`dest` is called `path` here",
    ("data", "target"): "`target` is called `path` here",
    ("artifacts", "from"): "`from` is called `path` here: the place on the machine",
    ("artifacts", "paths"): "`paths` is called `path` here: one entry for each",
    ("artifacts", "on"): "`on` is called `when` here: success, failure or always",
    ("checkpoint", "interval"): "`interval` is called `every` here",
    ("checkpoint", "dir"): "`dir` is called `path` here",
    ("checkpoint", "sync"): "`sync` is called `mirror` here",
    ("checkpoint", "to"): "`to` is called `mirror` here",
    ("retry", "on"): "losses of machines are always replaced; `exit_codes` chooses failures of your own code",
    ("retry", "on_events"): "losses of machines are always replaced; `exit_codes` chooses your own failures",
    ("retry", "duration"): "`duration` is `wait` for capacity and `ttl` for the whole, at the top level",
    ("retry", "on_exit_codes"): "`on_exit_codes` is called `exit_codes` here",
    ("retry", "max_restarts_on_errors"): "`max_restarts_on_errors` is called `max` here",
    ("retry", "recover_on_exit_codes"): "`recover_on_exit_codes` is called `exit_codes` here",
    ("disk", "size"): "write {system: 50GB, data: 200GB}",
}
# What YAML 1.1 readers make of an unquoted key.
_BOOLEAN_KEYS = ("on", "off", "yes", "no", "y", "n", "true", "false")


def unknown_key(key: str, valid: Sequence[str], path: Sequence[str | int]) -> tuple[str, str]:
    """Reason and hint for a key that the mapping at `path` does not have."""
    where = f" in {path[0]}" if path else ""
    reason = f"there is no key {shown(key)}{where}"
    words = [part for part in path if isinstance(part, str)]
    foreign = _NESTED_FOREIGN.get((words[0], key)) if words else FOREIGN_KEYS.get(key)
    if foreign:
        return reason, foreign
    if key.lower() in _BOOLEAN_KEYS:
        return reason, f"YAML 1.1 reads {key} as a boolean, so no key is called that; {_keys(valid, where)}"
    if key != key.strip() or not key.isascii():
        return reason, "it contains characters that are not plain ASCII letters"
    near = difflib.get_close_matches(key.lower().replace("-", "_"), valid, n=1, cutoff=0.6)
    if near:
        return reason, f"did you mean {near[0]}?"
    return reason, _keys(valid, where)


def _keys(valid: Sequence[str], where: str) -> str:
    """The keys of a small mapping; the whole spec's would bury the message."""
    return f"the keys{where} are {_listed(valid)}" if where else "`gpujob schema` lists the keys"


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(keys)


def model_problem(error: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and hint for one error of the models."""
    context = error.get("ctx") or {}
    cause = context.get("error")
    if isinstance(cause, Refusal):
        return cause.reason, cause.hint
    kind, given = str(error["type"]), error.get("input")
    if kind == "missing":
        return "is required", _REQUIRED_HINTS.get(str(error["loc"][-1]), "")
    if kind == "literal_error":
        expected = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ").split(", ")
        near = difflib.get_close_matches(str(given), expected, n=1)
        hint = f"did you mean {near[0]}?" if near else ""
        return f"expected one of {_listed(expected)}, got {kind_of(given)}", hint
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"expected a mapping, got {kind_of(given)}", "write its keys indented below it"
    if kind in ("tuple_type", "list_type"):
        return f"expected a list, got {kind_of(given)}", "write it like [1, 2]"
    return str(error["msg"]).removeprefix("Value error, "), ""


_REQUIRED_HINTS = {
    "name": "add a line like `name: my-job`",
    "gpu": "add a line like `gpu: RTX-4090`, or `gpu: none` for a CPU",
    "run": "add a line like `run: python train.py`",
    "path": "add the place on the machine",
    "from": "add where it comes from",
}
