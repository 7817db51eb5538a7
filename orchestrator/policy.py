"""From the user's spec to the policy that the pure core decides by: where the core's defaults meet a spec."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

from jobspecs import cuda
from jobspecs.gpus import GpuAsk
from orchestrator import space
from orchestrator.crew import Crew
from orchestrator.history import RECLAIMS_PER_H, STARTUP_S, UNKNOWN, History
from orchestrator.model import Job, Policy, Work
from providers.base import Ask, GpuWish

if TYPE_CHECKING:
    from jobspecs.memory import Estimate
    from jobspecs.schema import JobSpec
    from jobspecs.units import Money

UNASKED_MAX = 2 * 1000**3  # bytes of a checkpoint that this computer mirrors without having been named
SYSTEM_DISK = 20 * 1000**3  # bytes of image and packages, where the spec does not say
SMALL_DATA = 5 * 1000**3  # up to here the disk that a provider gives by itself has always been enough
REWORK_S = 900.0  # what a reclaim costs a job that does not say how often it saves: half of half an hour


def ask_of(spec: JobSpec, data: int = 0) -> Ask:
    """What a machine must have for `spec`, in the providers' words. `data`: bytes that land on it before the start."""
    disk = spec.disk
    sizes = [size.bytes for size in (disk.system, disk.data) if size is not None] if disk is not None else []
    regions = tuple(spec.regions)
    image = spec.image if isinstance(spec.image, str) else ""
    return Ask(
        gpus=wishes(spec.gpu, image),
        cpus_min=spec.cpus.low if spec.cpus is not None else 0,
        memory_min=spec.memory.low if spec.memory is not None else 0,
        disk_min=max(sum(sizes), _disk_needed(spec, data)),
        regions=regions,
        spot=_spot(spec),
        image=image,
        images=tuple(sorted(spec.image.items())) if isinstance(spec.image, dict) else (),
    )


def _disk_needed(spec: JobSpec, data: int) -> int:
    """Disk for data and checkpoints and for the system beside them; 0 for what every machine has room for."""
    needed = space.needed(spec, data)
    system = spec.disk.system.bytes if spec.disk is not None and spec.disk.system is not None else SYSTEM_DISK
    return needed + system if needed > SMALL_DATA else 0


def wishes(ask: GpuAsk, image: str = "") -> tuple[GpuWish, ...]:
    """Every class that satisfies the ask, with its count; empty for a machine without GPU.

    Cards that the image's CUDA does not know are left out, unless none is left: then the spec's rules say so.
    """
    found: dict[tuple[str, int], GpuWish] = {}
    for choice in ask.choices:
        for gpu in choice.classes():
            found.setdefault((gpu.name, choice.count), GpuWish(gpu.name, gpu.vram_gb, choice.count))
    known = cuda.cuda_of_image(image)
    fits = {gpu.name for choice in ask.choices for gpu in choice.classes() if not cuda.misfit(known, gpu.capability)}
    return tuple(wish for wish in found.values() if wish.name in fits or not fits)


def _spot(spec: JobSpec) -> bool | None:
    if spec.spot is True:
        return True
    return None if spec.spot_allowed else False


def estimate_of(spec: JobSpec) -> Estimate | None:
    """The memory that `model` needs; None without it. Raises Refusal for sizes that cannot be."""
    if spec.model is None:
        return None
    from jobspecs.memory import Model, estimate, parse_params

    size = spec.model
    return estimate(
        Model(
            parse_params(size.params), size.method, size.dtype, batch=size.batch or 0, seq_len=size.seq_len or 0,
            layers=size.layers or 0, hidden=size.hidden or 0, heads=size.heads or 0, kv_heads=size.kv_heads or 0,
        )
    )  # fmt: skip


def work_of(spec: JobSpec, history: History, data: int = 0) -> Work | None:
    """How long the job takes, with `data` bytes on every machine: `expected`, a serve job's ttl, or what earlier runs
    took; None when nobody knows.
    """
    run_on: Mapping[str, float] = {}
    if spec.expected is not None:
        run = float(spec.expected.seconds)
    elif spec.workload == "serve":
        run = float(spec.ttl.seconds)
    elif spec.sweep is not None or spec.batch is not None or spec.replicas is not None:
        return None  # earlier runs of the name are of many tasks: no length of one
    elif history.run_s is not None:
        run, run_on = history.run_s, history.run_on
    else:
        return None
    every = spec.checkpoint.every if spec.checkpoint is not None else None
    return Work(
        run_s=run,
        startup_s=STARTUP_S if history.startup_s is None else history.startup_s,
        rework_s=every.seconds / 2 if every is not None else REWORK_S,
        run_on=run_on,
        reclaims=history.reclaims,
        reclaims_per_h=RECLAIMS_PER_H,
        in_bytes=data,
    )


def crew_of(spec: JobSpec) -> Crew | None:
    """How a job of many tasks is worked off; None for a plain one."""
    leg_s = float(spec.expected.seconds) if spec.expected is not None else None
    if spec.sweep is not None:
        from jobspecs.sweep import sampled

        return Crew(
            kind="sweep",
            parallel=spec.sweep.max_parallel,
            leg_ttl_s=float(spec.ttl.seconds),
            leg_budget=spec.budget.amount if spec.budget is not None else None,
            leg_s=leg_s,
            trials=(spec.sweep.search.trials or 0) if sampled(spec.sweep) else 0,
        )
    if spec.batch is not None:
        return Crew(kind="batch", parallel=spec.batch.workers, leg_s=leg_s)
    return Crew(kind="replicas", parallel=spec.replicas) if spec.replicas is not None else None


def budget_of(spec: JobSpec) -> Money | None:
    """The money of the whole job: of a sweep its own, since the top-level one is per leg."""
    return spec.sweep.budget if spec.sweep is not None else spec.budget


def policy_of(spec: JobSpec, job: Job, history: History = UNKNOWN) -> Policy:
    """The policy of one job. `job` brings the currency of its limits and the price cap that was printed at apply."""
    modes: dict[bool | str, Literal["auto", "always", "never"]] = {True: "always", False: "never", "auto": "auto"}
    when = _results_on(spec)
    memory, whole, large = estimate_of(spec), budget_of(spec), homeless(spec, history)
    manifests = [each for each in job.data_manifests.values() if isinstance(each, Mapping)]
    regions = {str(each.get("region") or "") for each in manifests} if "cross-region" not in spec.allow else set()
    data = sum(int(each.get("bytes") or 0) for each in manifests)
    return Policy(
        ask=ask_of(spec, data),
        data_regions=frozenset(regions - {""}),
        spot="never" if large and spec.spot == "auto" else modes[spec.spot],
        providers=tuple(spec.providers),
        price_cap=spec.max_price.amount if spec.max_price is not None else job.price_cap,
        budget=whole.amount if whole is not None else None,
        ttl_s=float(spec.ttl.seconds),
        grace_s=float(spec.grace.time.seconds),
        retry_max=spec.retry.max,
        retry_codes=frozenset(spec.retry.exit_codes),
        resumable=spec.resumable,
        checkpoints=spec.checkpoint is not None or spec.resumable,
        wait_s=float(spec.wait.seconds),
        every_s=float(spec.checkpoint.every.seconds) if spec.checkpoint and spec.checkpoint.every else 0.0,
        hold_s=float(spec.hold_on_failure.seconds),
        serve=spec.workload == "serve",
        store=stored(spec),
        homeless=large,
        results=bool(when),
        results_on=when,
        vram_gb=memory.need if memory is not None else 0.0,
        vram_more_gb=memory.more_per_card if memory is not None else 0.0,
        work=work_of(spec, history, data),
        finish_by=spec.finish_by.timestamp() if spec.finish_by is not None else None,
        currency=job.currency,
        crew=crew_of(spec),
        move_on=moves_on(spec),
    )


def moves_on(spec: JobSpec) -> frozenset[str]:
    """The kinds of alarms after which the work goes on elsewhere."""
    rules = spec.alarms.model_dump() if spec.alarms is not None else {}
    chosen = (key for key, rule in rules.items() if isinstance(rule, dict) and rule.get("relaunch"))
    return frozenset(key.replace("_", "-") for key in chosen)


def stored(spec: JobSpec) -> bool:
    """Whether checkpoints are mirrored to an object store."""
    from jobspecs.rules import is_remote

    return bool(spec.checkpoint is not None and spec.checkpoint.mirror and is_remote(spec.checkpoint.mirror))


def homeless(spec: JobSpec, history: History = UNKNOWN) -> int:
    """Bytes of a checkpoint, by `model` or by earlier runs, that is too large for this computer to be its mirror by
    default: a reclaim leaves two minutes, and gigabytes come home in hours. 0: it has a home, or is small."""
    if spec.spot is False or not (spec.checkpoint is not None or spec.resumable) or stored(spec):
        return 0
    if spec.checkpoint is not None and spec.checkpoint.mirror is not None:
        return 0  # this computer was named
    size = space.checkpoint_bytes(spec, [history.checkpoint_bytes])
    return size if size > UNASKED_MAX else 0


def _results_on(spec: JobSpec) -> frozenset[str]:
    """After which ends results come home; empty for `artifacts: none`."""
    both = frozenset({"success", "failure"})
    if spec.artifacts == "none":
        return frozenset()
    if not spec.artifacts:
        return both
    ends: frozenset[str] = frozenset()
    for artifact in spec.artifacts:
        ends |= both if artifact.when == "always" else {artifact.when}
    return ends


def currency_of(spec: JobSpec) -> str | None:
    """The currency that the job's limits are written in; None when it has none."""
    for money in (budget_of(spec), spec.budget, spec.max_price):
        if money is not None:
            return money.currency
    return None


def price_cap_of(spec: JobSpec, cheapest: Decimal | None) -> Decimal | None:
    """`max_price`, else 1.5 x the offer shown at apply."""
    if spec.max_price is not None:
        return spec.max_price.amount
    return None if cheapest is None else (cheapest * Decimal("1.5")).quantize(Decimal("0.0001"))
