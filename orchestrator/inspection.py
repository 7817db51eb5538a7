"""Looks at machines: asks the agent for facts, has them judged against the order, and says what follows.

The first look comes before anything is sent to a fresh machine. A look that fails is no finding: an agent that does not
know the question, or a tool that prints junk, must not cost a good machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from jobspecs.gpu_table import GPU_CLASSES
from orchestrator.execute import Context, WorkFailed
from orchestrator.model import Reason
from orchestrator.preflight import Finding, Order, judge
from orchestrator.ssh_errors import AgentRefused

if TYPE_CHECKING:
    from orchestrator.ssh import Connection

LOOK_S = 30.0  # the agent itself is done within 15 s; the rest is a slow line
ALWAYS_NVLINK = ("-SXM", "B200", "B300")

Record = dict[str, Any]


def order_of(context: Context) -> Order:
    """What the rental was taken for."""
    assert context.rental is not None
    offer, spec, ask = context.rental.offer, context.spec, context.policy.ask
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
        image=ask.image or offer.image,
        own_image=bool(ask.image),
        data_bytes=sum(int(m.get("bytes") or 0) for m in manifests),
        data_files=sum(len(m.get("files") or ()) for m in manifests),
        disk=max(ask.disk_min, offer.disk),
        memory=ask.memory_min,
        cpus=ask.cpus_min,
        shm=spec.shm_size.bytes if spec.shm_size is not None else 0,
        data_disk=bool(context.data_mount),
        driver_failed_before=any(words.startswith("driver-old") for words in context.bad_before),
    )


def inspect(connection: Connection, context: Context, folders: Mapping[str, Any], now: float) -> Record | None:
    """The first look: `{"at", "seconds", "facts", "findings"}`; None when the agent cannot be asked this."""
    places = {"data": folders["data"], "ckpt": folders["ckpt_root"], "out": folders["out_root"]}
    order = order_of(context)
    try:
        ask = {"gpus": order.gpu_count > 0, "places": places, "now": now}
        facts = connection.agent("preflight", ask, LOOK_S)
    except AgentRefused:
        return None
    facts.pop("ok", None)
    found = judge(facts, order)
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
