"""The spec of a job: the only place where a field is defined.

Role: frozen models whose descriptions are the reference that people read, and the ways in and out of them. Rules
that look at one value live in `fields.py`, rules that compare keys in `rules.py`; reading YAML is `load.py`.

Rules: unknown keys are refused; a default stands here and nowhere else; `to_document` and `from_document` are exact
inverses through JSON, because the store keeps the document.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from jobspecs import fields as f
from jobspecs import rules
from jobspecs.alarm_keys import Alarms
from jobspecs.block import Block
from jobspecs.units import Duration

# Changing one of these is applied to a running job; any other change is another job.
LIVE_KEYS = (
    "ttl", "budget", "finish_by", "max_price", "retry", "notify", "labels", "alarms", "artifacts",
)  # fmt: skip


class ModelSize(Block):
    """What is known about the model: offers whose cards do not hold it are left out."""

    params: f.ModelParams = Field(description="Number of parameters: 7B, 350M.")
    method: Literal["inference", "lora", "qlora", "full"] = Field(
        "inference", description="What is done with it; decides the bytes per parameter."
    )
    dtype: Literal["fp32", "bf16", "fp16", "int8", "int4"] = Field("bf16", description="Precision of the weights.")
    batch: Annotated[int | None, *f.whole(1)] = Field(
        None, description="Sequences per step and GPU; for inference, requests at one time."
    )
    seq_len: Annotated[int | None, *f.whole(1)] = Field(
        None, description="Tokens per sequence; for inference, the context."
    )
    layers: Annotated[int | None, *f.whole(1)] = Field(None, description="Number of layers.")
    hidden: Annotated[int | None, *f.whole(1)] = Field(None, description="Hidden size.")
    heads: Annotated[int | None, *f.whole(1)] = Field(None, description="Attention heads.")
    kv_heads: Annotated[int | None, *f.whole(1)] = Field(None, description="Key-value heads, when grouped.")


class Disk(Block):
    """Disk sizes of the machine."""

    system: f.SizeField | None = Field(None, description="Disk of the system and of installed packages.")
    data: f.SizeField | None = Field(None, description="Disk that holds $GPUJOB_DATA, $GPUJOB_CKPT and $GPUJOB_OUT.")


class Grace(Block):
    """The job's own time to save before a planned end."""

    time: f.DurationField = Field(Duration(120), description="From the signal to the kill.")
    signal: Literal["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP"] = Field(
        "SIGTERM", description="Signal that tells the job to save and exit."
    )


class GitSource(Block):
    """Code from a repository instead of a folder."""

    git: f.Text = Field(description="Address of the repository.")
    ref: f.Text = Field(description="Branch, tag or commit; frozen to a commit at apply.")


def _last_part(value: object) -> object:
    """A data source as its mapping; the path on the machine defaults to the last part of the source."""
    entry = {"from": value} if isinstance(value, str) else value
    if not isinstance(entry, Mapping) or entry.get("path") is not None:
        return entry
    source = entry.get("from", entry.get("source"))
    text = source.strip() if isinstance(source, str) else ""
    if text.startswith(("https://", "http://")):
        text = re.split(r"[?#]", text)[0]
    last = text.rstrip("/").rsplit("/", 1)[-1]
    return {**entry, "path": last} if last.strip(".:") else entry


class DataSource(Block):
    """Data that is on the machine, checked, before the job starts."""

    source: f.Outside = Field(
        alias="from",
        description="Path beside the spec file, or a URI (s3://, hf://, https://) or STORE:PREFIX.",
    )
    path: f.MachinePath = Field(
        description="Where it lands, relative to $GPUJOB_DATA; the last part of `from` when left out."
    )
    sample: f.Share = Field(1.0, description="Only this share of the files, always the same ones: 0.1 is a tenth.")
    region: f.Text | None = Field(
        None, description="Where the data lies (REGION or PROVIDER/REGION); machines elsewhere are left out."
    )
    allow_empty: bool = Field(False, description="Files without any byte are meant, as labels of empty pictures are.")


class Progress(Block):
    """How the job's log tells how far it is."""

    regex: f.Regex = Field(description="Finds the step in a line of the log; its first group is the number.")
    total: Annotated[int | None, *f.whole(1)] = Field(None, description="The last step, for the time left.")


class Checkpoint(Block):
    """What the job saves so that another machine can go on."""

    path: f.MachinePath = Field(".", description="Where the job saves, relative to $GPUJOB_CKPT.")
    pattern: f.PatternPath | None = Field(
        None,
        description="Name of one checkpoint, with {n} for its number: step_{n}.pt. Numbers sort as numbers.",
    )
    every: f.DurationField | None = Field(
        None, description="How often the job saves; none in two intervals is an alarm."
    )
    keep: Annotated[int, *f.whole(1, why="0 or less would delete every checkpoint")] = Field(
        3, description="Verified checkpoints kept in the mirror, the newest ones."
    )
    mirror: f.Outside | None = Field(
        None, description="Where checkpoints are made durable: an object store; left out: this computer."
    )
    resume: Literal["folder"] | None = Field(
        None,
        description="`folder`: the program looks into $GPUJOB_CKPT itself, where the newest verified checkpoint is "
        "put before each start. Left out: `run` names $GPUJOB_RESUME_FROM.",
    )


class Artifact(Block):
    """Files that come home."""

    path: f.MachinePath = Field(description="File, folder or glob, relative to $GPUJOB_OUT.")
    to: f.Outside | None = Field(
        None,
        description="Folder beside the spec file, or a URI; the job's name is added. Default: gpujob-results.",
    )
    when: Literal["success", "failure", "always"] = Field("always", description="After which end.")


class Retry(Block):
    """Relaunches after failures of the job's own code; losses of machines never count."""

    max: Annotated[int, *f.whole(0, 100)] = Field(0, description="How many times.")
    exit_codes: Annotated[
        tuple[Annotated[int, *f.whole(1, 255)], ...], BeforeValidator(f.one_or_many)
    ] = Field((), description="Only for these exit codes; left out: for any.")  # fmt: skip


def _values(value: object) -> object:
    return value if isinstance(value, Mapping) else {"values": value}


class Parameter(Block):
    """The values of one parameter of a sweep: exactly one of these keys, or a plain list of values."""

    values: Annotated[tuple[f.AnyText, ...], BeforeValidator(f.one_or_many)] | None = Field(
        None, description="These values, kept as typed."
    )
    choice: Annotated[tuple[f.AnyText, ...], BeforeValidator(f.one_or_many)] | None = Field(
        None, description="The same as values."
    )
    log_uniform: tuple[f.Number, f.Number] | None = Field(None, description="[low, high], even in the logarithm.")
    uniform: tuple[f.Number, f.Number] | None = Field(None, description="[low, high].")
    whole: tuple[Annotated[int, *f.whole(-(10**9))], Annotated[int, *f.whole(-(10**9))]] | None = Field(
        None, alias="int", description="[low, high], whole numbers, both ends included."
    )
    files: f.Text | None = Field(None, description="Files that match, relative to workdir.")

    @property
    def listed(self) -> tuple[str, ...] | None:
        """The values that were written one by one."""
        return self.values if self.values is not None else self.choice


class Metric(Block):
    """What a sweep compares."""

    name: f.Text = Field(description="Its name in tables.")
    goal: Literal["minimize", "maximize"] = Field(description="Which end is better.")
    regex: f.Regex | None = Field(
        None, description="Finds the value in the log; left out: JSON lines in $GPUJOB_METRICS."
    )


class Search(Block):
    """How a sweep chooses its legs."""

    method: Literal["grid", "random", "list", "tpe"] | None = Field(
        None, description="grid | random | list | tpe. Left out: grid; random when a parameter is continuous."
    )
    trials: Annotated[int | None, *f.whole(1, 10_000)] = Field(
        None, description="Number of legs; random and tpe need it."
    )
    seed: Annotated[int | None, *f.whole(0, 2**32 - 1)] = Field(
        None, description="Seed of random and tpe. Left out: made from the name, so that the same sweep draws the same."
    )


class StopEarly(Block):
    """When a leg is not worth its money any more."""

    method: Literal["asha", "median", "none"] = Field(description="asha | median | none.")
    min_reports: Annotated[int, *f.whole(1)] = Field(1, description="Reports before a leg may be stopped.")
    eta: Annotated[int, *f.whole(2, 100)] = Field(3, description="One of this many goes on at each rung.")


class Sweep(Block):
    """Many legs of one job with different parameters."""

    parameters: dict[f.EnvName, Annotated[Parameter, BeforeValidator(_values)]] | None = Field(
        None, description="Name and values of each parameter."
    )
    legs: Annotated[tuple[dict[f.EnvName, f.AnyText], ...], BeforeValidator(f.one_or_many)] | None = Field(
        None, alias="list", description="The legs themselves, instead of parameters."
    )
    metric: Metric | None = Field(None, description="What is compared.")
    search: Search = Field(Search(), description="How legs are chosen.")
    stop_early: StopEarly | None = Field(None, description="When a leg ends before its time.")
    max_parallel: Annotated[int, *f.whole(1, 10_000)] = Field(4, description="Machines at one time.")
    budget: f.MoneyField = Field(description="The whole sweep; the top-level budget is per leg.")


class Batch(Block):
    """Independent items that several machines work off."""

    items: f.Text = Field(description="Glob of the items.")
    slice: Annotated[int, *f.whole(1)] = Field(1, description="Items that a machine takes at a time.")
    workers: Annotated[int, *f.whole(1, 10_000)] = Field(1, description="Machines at one time.")


def _workdir_kind(value: object) -> str:
    return "git" if isinstance(value, (Mapping, GitSource)) else "folder"


def _artifacts_kind(value: object) -> str:
    return "none" if isinstance(value, str) and value.strip() == "none" else "list"


def _artifact(value: object) -> object:
    return {"path": value} if isinstance(value, str) else value


Workdir = Annotated[
    Annotated[f.Outside, Tag("folder")] | Annotated[GitSource, Tag("git")], Discriminator(_workdir_kind)
]
Artifacts = Annotated[
    Annotated[Literal["none"], BeforeValidator(str.strip), Tag("none")]
    | Annotated[
        tuple[Annotated[Artifact, BeforeValidator(_artifact)], ...],
        BeforeValidator(f.one_or_many),
        Tag("list"),
    ],
    Discriminator(_artifacts_kind),
]
Allowance = Literal[
    "cross-region", "dirty", "unverified-hosts", "large-workdir", "ttl-needs-controller", "replace-slow"
]  # fmt: skip


class JobSpec(Block):
    """One job. Required: name, gpu, run."""

    name: f.Name = Field(description="The same name is the same job. 1 to 40 letters, digits, `.`, `_`, `-`.")
    workload: Literal["train", "batch", "serve"] = Field(
        "train", description="What kind of job; `serve` ends at its ttl, with its ports forwarded."
    )
    model: ModelSize | None = Field(None, description="The model's size; cards that do not hold it are left out.")
    gpu: f.Gpu = Field(
        description='RTX-4090, "4090:2", A100 (40 GB or more), A100-80GB:2, ">=24GB", {name, memory, count}, a list '
        "of those (any; the cheapest to finish wins), or none for a CPU."
    )
    cpus: f.CountRange | None = Field(None, description="CPU cores: 8 (at least), 8.., 8..32.")
    memory: f.SizeRange | None = Field(None, description="Main memory: 32GB (at least), 32GB.., 32GB..128GB.")
    disk: Disk | None = Field(None, description="Disk sizes.")
    shm_size: f.SizeField | None = Field(None, description="Shared memory for data loaders.")
    providers: Annotated[tuple[f.ProviderName, ...], BeforeValidator(f.one_or_many)] = Field(
        (), description="Where to rent; left out: every configured provider, never `local`."
    )
    regions: Annotated[tuple[f.Text, ...], BeforeValidator(f.one_or_many)] = Field(
        (), description="Regions, or provider/region; left out: all."
    )
    spot: f.Spot = Field(
        "auto",
        description="auto: spot where it is cheaper and the job can resume. true needs a job that resumes.",
    )
    max_price: f.MoneyField | None = Field(
        None, description="Per machine-hour, disks included. Left out: 1.5 x the offer shown at apply."
    )
    budget: f.MoneyField | None = Field(None, description="The whole job, all attempts; then save and release.")
    expected: f.DurationField | None = Field(
        None, description="Your guess of the run time; ranks offers, ends nothing. Left out: what earlier runs took."
    )
    ttl: f.DurationField = Field(Duration(12 * 3600), description="Hard end, counted from the first rental.")
    finish_by: f.Moment | None = Field(
        None, description="RFC 3339 with offset; steers spot against on-demand, ends nothing."
    )
    grace: Grace = Field(Grace(), description="Time to save before a planned end.")
    image: f.Image | None = Field(
        None,
        description="Container image, or a mapping provider -> own image. Left out: the provider's PyTorch.",
    )
    workdir: Workdir | None = Field(
        None,
        description="Folder beside the spec file, or {git, ref}; frozen at apply, where setup and run start.",
    )
    data: Annotated[
        tuple[Annotated[DataSource, BeforeValidator(_last_part)], ...], BeforeValidator(f.one_or_many)
    ] = Field((), description="Data that is on the machine before the job starts.")  # fmt: skip
    env: f.Env = Field({}, description="Environment variables, kept as typed; nothing means: given at apply.")
    secrets: Annotated[tuple[f.EnvName, ...], BeforeValidator(f.one_or_many)] = Field(
        (), description="Names of secrets; values come from the environment or `gpujob secret set`."
    )
    setup: f.Shell | None = Field(None, description="Shell text for every fresh machine.")
    smoke: f.Shell | None = Field(None, description="Shell text of a short trial, in the first attempt only.")
    run: f.Shell = Field(description="Shell text of the job, run by bash -eo pipefail.")
    progress: Progress | None = Field(None, description="How the log tells the step.")
    checkpoint: Checkpoint | None = Field(None, description="What the job saves to go on elsewhere.")
    artifacts: Artifacts | None = Field(
        None,
        description="What comes home; left out: $GPUJOB_OUT, the newest checkpoint and changed files of workdir; "
        "none: nothing.",
    )
    retry: Retry = Field(Retry(), description="Relaunches after failures of the job's own code.")
    wait: f.DurationField = Field(Duration(3600), description="How long to wait for a free machine.")
    hold_on_failure: f.DurationField = Field(
        Duration(0), description="Keep an on-demand machine this long after a failure of setup or run."
    )
    ports: Annotated[tuple[f.PortField, ...], BeforeValidator(f.one_or_many)] = Field(
        (), description="Ports to forward: 8888, or LOCAL:MACHINE."
    )
    alarms: Alarms | None = Field(
        None, description="Thresholds of alarms, those that end the job, and those not wanted."
    )
    notify: Annotated[tuple[f.NotifyName, ...], BeforeValidator(f.one_or_many)] = Field(
        (), description="Names of targets in the config."
    )
    labels: dict[f.Text, f.Text] = Field({}, description="Your own words on the job, for filters and reports.")
    allow: Annotated[tuple[Allowance, ...], BeforeValidator(f.one_or_many)] = Field(
        (), description="What is refused unless it stands here."
    )
    sweep: Sweep | None = Field(None, description="Many legs with different parameters.")
    batch: Batch | None = Field(None, description="Independent items on several machines.")
    replicas: Annotated[int | None, *f.whole(1, 10_000)] = Field(None, description="Equal machines.")

    @model_validator(mode="after")
    def _compare_keys(self) -> JobSpec:
        broken = rules.broken_rules(self)
        if broken:
            raise rules.BrokenRules(broken)
        return self

    @property
    def resumable(self) -> bool:
        """Whether a second attempt can go on where the first one stopped."""
        commands = re.sub(r"^\s*#.*$", "", self.run, flags=re.MULTILINE)
        folder = self.checkpoint is not None and self.checkpoint.resume == "folder"
        return "GPUJOB_RESUME_FROM" in commands or folder or self.batch is not None

    @property
    def spot_allowed(self) -> bool:
        """Whether an interruptible machine may be rented: `auto` means only when the job can resume."""
        return self.spot is not False and self.resumable


def to_document(spec: JobSpec) -> dict[str, Any]:
    """The spec as JSON-ready data, every value that is set or has a default; for `from_document` and the store."""
    document = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    if spec.env:
        document["env"] = dict(spec.env)
    return document


def from_document(document: Mapping[str, Any]) -> JobSpec:
    """The spec that `to_document` wrote. Raises pydantic.ValidationError for anything else."""
    return JobSpec.model_validate(dict(document))


def spec_hash(spec: JobSpec) -> str:
    """SHA-256, in hex, of what the spec means: other spellings of one value give one hash.

    Unset keys do not count, so a key that a later version adds changes no hash.
    """
    document = {key: value for key, value in to_document(spec).items() if value not in ({}, [])}
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def live_changes(old: JobSpec, new: JobSpec) -> tuple[list[str], list[str]]:
    """Changed keys as (applicable to the running job, in need of another job), in the order of the schema."""
    before, after = to_document(old), to_document(new)
    changed = [key for key in JobSpec.model_fields if before.get(key) != after.get(key)]
    return [key for key in changed if key in LIVE_KEYS], [key for key in changed if key not in LIVE_KEYS]
