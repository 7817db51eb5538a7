"""Looks at machines: asks the agent for facts, has them judged against the order, and says what follows.

The first look comes before anything is sent to a fresh machine. A look that fails is no finding: an agent that does not
know the question, or a tool that prints junk, must not cost a good machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from jobspecs.gpu_table import GPU_CLASSES
from orchestrator.difference import drift
from orchestrator.execute import Context, WorkFailed
from orchestrator.model import PLAY_PROVIDER, Reason
from orchestrator.preflight import Finding, Order, judge
from orchestrator.store.rows import Preflight

DRIFT_SHOWN = 4
FINDING_KEYS = ("name", "klass", "measured", "wanted", "next")
ALWAYS_NVLINK = ("-SXM", "B200", "B300")

#: The program may run in another Python than the one that is looked at: then nothing is concluded from that.
OTHER_PYTHON = re.compile(
    r"\b(conda|mamba|micromamba|docker|podman|apptainer|singularity|srun|enroot)\b"
    r"|\b(uv|poetry|pixi|pipenv|pdm|hatch) run\b"
    r"|(?<!\.venv)(?<!\bvenv)/bin/(python|activate|torchrun|accelerate)"
)

Record = dict[str, Any]


def order_of(context: Context) -> Order:
    """What the rental was taken for."""
    assert context.rental is not None
    offer, spec = context.rental.offer, context.spec
    ask = context.policy.ask.at(offer.provider)
    known = next((gpu for gpu in GPU_CLASSES if gpu.name == offer.gpu), None)
    compute = known.compute if known is not None else ""
    nvidia = not compute.startswith("gfx")
    manifests = [m for m in context.job.data_manifests.values() if isinstance(m, Mapping)]
    return Order(
        gpu=offer.gpu,
        gpu_count=offer.gpu_count if nvidia else 0,
        vram_gb=offer.vram_gb,
        accepted=frozenset(wish.name for wish in ask.gpus if wish.count == offer.gpu_count),
        compute=compute if nvidia else "",
        nvlink=known is not None and known.nvlink_gbps > 0 and offer.gpu.endswith(ALWAYS_NVLINK),
        linkable=known is None or known.nvlink_gbps > 0,
        image=ask.image or offer.image,
        own_image=bool(ask.image) and not offer.container,  # in a container the machine's own programs are ours
        data_bytes=sum(int(m.get("bytes") or 0) for m in manifests),
        checkpoint_bytes=context.checkpoint_bytes * (spec.checkpoint.keep if spec.checkpoint is not None else 1),
        data_files=sum(int(m.get("count") or 0) for m in manifests),
        disk=max(ask.disk_min, offer.disk),
        memory=ask.memory_min,
        cpus=ask.cpus_min,
        shm=spec.shm_size.bytes if spec.shm_size is not None else 0,
        data_disk=bool(context.data_mount),
        driver_failed_before=any(words.startswith("driver-old") for words in context.bad_before),
    )


def facts_wanted(context: Context, now: float) -> dict[str, Any]:
    """What is asked of the agent with the job's first `prepare` on a machine."""
    return {"gpus": order_of(context).gpu_count > 0, "now": now}


def inspect(answer: Mapping[str, Any], context: Context, now: float) -> Record | None:
    """The first look: `{"at", "seconds", "facts", "findings"}`; None where the agent does not know the question."""
    facts = answer.get("preflight")
    if not isinstance(facts, Mapping):
        return None
    facts = {key: value for key, value in facts.items() if key != "ok"}
    found = judge(facts, order_of(context))
    return {"at": now, "seconds": facts.get("seconds", 0.0), "facts": facts, "findings": plain_findings(found)}


def plain_findings(found: tuple[Finding, ...]) -> list[dict[str, str]]:
    return [asdict(finding) for finding in found]


def stop_for(record: Record) -> None:
    """Raise WorkFailed when the machine cannot do the work: BAD_HOST, or CONFIG where no machine can."""
    for klass, reason in (("config", Reason.CONFIG), ("bad-host", Reason.BAD_HOST)):
        found = [Finding(**each) for each in record["findings"] if each["klass"] == klass]
        if found:
            more = f" (and {len(found) - 1} more)" if found[1:] else ""
            words = found[0].words + (f"; {found[0].next}" if found[0].next else "")
            raise WorkFailed(words + more, reason, {"preflight": record})


# --- what the agent looks at by itself --------------------------------------------------------------------------------


def look_wanted(context: Context) -> dict[str, Any]:
    """The order's `look`: cards that the job's Python must see after setup.

    A stand-in card stops nothing, nor does a Python that the scripts may not use.
    """
    assert context.rental is not None
    order, spec, real = order_of(context), context.spec, not context.rental.offer.stand_in
    cards = order.gpu_count
    if not cards:
        return {"gpus": 0}
    elsewhere = OTHER_PYTHON.search(f"{spec.smoke or ''}\n{spec.run}") is not None
    return {
        "gpus": cards,
        "stop": real and not elsewhere,
        "benchmark": real,
        "reference": dict(context.usual_speed),
        "replace": "replace-slow" in spec.allow,
    }


def smoke_wanted(context: Context, now: float) -> dict[str, Any]:
    """The order's `smoke`: by what the trial measures itself, and what the whole run may take. Seconds from now."""
    assert context.rental is not None
    spec, offer, run = context.spec, context.rental.offer, context.assignment
    progress, ends = spec.progress, context.ends
    plan: dict[str, Any] = {
        "regex": progress.regex if progress is not None else None,
        "total": progress.total if progress is not None else None,
        "resume_step": run.resume_step if run is not None else None,
        "ttl_left_s": ends["ttl"] - now if "ttl" in ends and spec.workload != "serve" else None,
        "budget_left_s": ends["budget"] - now if "budget" in ends else None,
        "hourly": f"{offer.hourly:f}",
        "currency": "(play)" if offer.provider == PLAY_PROVIDER else offer.currency,
        "expected_s": float(spec.expected.seconds) if spec.expected is not None else None,
        "finish_left_s": spec.finish_by.timestamp() - now if spec.finish_by is not None else None,
    }
    return {key: value for key, value in plan.items() if value is not None}


def look_of_event(rental: str, job: str, event: Mapping[str, Any], at: float, before: Sequence[Preflight]) -> Preflight:
    """The row of an agent's `look` or `smoke` event; a machine is a stranger's, so only what has the right form counts.

    `before`: the job's earlier rows, for packages that changed since the last attempt.
    """
    kind, run = str(event.get("t")), str(event.get("run", ""))[:80]
    facts = event.get("facts")
    facts = dict(facts) if isinstance(facts, Mapping) else {}
    findings = [dict(each) for each in map(_finding, event.get("findings") or ()) if each is not None]
    if kind == "look":
        earlier = [look for look in before if look.run not in ("", run) and look.facts.get("packages")]
        changes = drift(earlier[-1].facts["packages"], facts["packages"]) if earlier and facts.get("packages") else []
        if changes:
            more = f" (and {len(changes) - DRIFT_SHOWN} more)" if len(changes) > DRIFT_SHOWN else ""
            words = "; ".join(changes[:DRIFT_SHOWN]) + more
            findings.append(
                {
                    "name": "packages",
                    "klass": "warn",
                    "measured": words,
                    "wanted": f"those of run {earlier[-1].run}",
                    "next": "pin the versions in setup; gpujob diff shows all",
                }
            )
    seconds = event.get("seconds")
    took = float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds < 1e7 else 0.0
    return Preflight(rental, run if kind == "look" else f"{run}/smoke", job, at, took, tuple(findings), facts)


def _finding(value: Any) -> dict[str, str] | None:
    if not isinstance(value, Mapping) or not all(isinstance(value.get(key), str) for key in FINDING_KEYS):
        return None
    return {key: value[key][:500] for key in FINDING_KEYS}
