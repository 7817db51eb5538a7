"""A plan and an offer as JSON: the documents of the reference of the JSON output."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from orchestrator.cli import stage
from orchestrator.cli.output import money_json, utc_z
from orchestrator.comparison import removed, spot_choice, warnings
from orchestrator.placement import in_the_end

if TYPE_CHECKING:
    from orchestrator.cli.plan import Prepared
    from orchestrator.planning import Plan
    from providers.base import Offer


def warnings_of(plan: Plan) -> list[str]:
    """What the plan means for the spec's own limits; the cards' links are those of the table."""
    from jobspecs.gpus import GPU_CLASSES

    links = {gpu.name: bool(gpu.nvlink_gbps) for gpu in GPU_CLASSES}
    return warnings(plan, plan.chosen is None or links.get(plan.chosen.gpu, True))


def offer_json(offer: Offer, play: bool) -> dict[str, Any]:
    """One offer in JSON."""
    return {
        "provider": offer.provider,
        "account": offer.account,
        "region": offer.region,
        "gpu": offer.gpu or None,
        "gpu_count": offer.gpu_count,
        "vram_gb": offer.vram_gb or None,
        "stand_in": offer.stand_in,
        "cpus": offer.cpus,
        "memory": offer.memory,
        "disk": offer.disk,
        "spot": offer.spot,
        "hourly": money_json(offer.hourly, offer.currency, play),
        "min_billing_s": offer.min_billing_s,
        "billing_step_s": offer.billing_step_s,
    }


def _finite(amount: Decimal | None, plan: Plan) -> dict[str, Any] | None:
    """Money in JSON; null for what is unknown or would never end."""
    return None if amount is None or amount.is_infinite() else money_json(amount, plan.currency, plan.play)


def _total_json(offer: Offer, plan: Plan) -> dict[str, Any] | None:
    return _finite(in_the_end(offer, plan.policy), plan) if plan.policy.work is not None else None


def _tasks_json(prepared: Prepared) -> dict[str, Any]:
    """Legs, slices or replicas: how many, how many at one time, and each of those that are known."""
    plan = prepared.plan
    return {
        "count": plan.tasks,
        "parallel": plan.parallel,
        "drawn": bool(plan.policy.crew and plan.policy.crew.trials),
        "tasks": [{"id": t.id, "params": dict(t.params), "items": list(t.items)} for t in prepared.tasks],
    }


def plan_json(prepared: Prepared) -> dict[str, Any]:
    """One plan as documented in the reference of the JSON output."""
    plan, shot = prepared.plan, prepared.snapshot
    choice = spot_choice(plan)
    return {
        "name": plan.name,
        "values": [{"key": each.key, "value": each.value, "from": each.origin} for each in plan.values],
        "providers": [
            {"provider": each.provider, "offers": len(each.offers), "at": utc_z(each.at), "stored": each.stored,
             "trouble": each.trouble or None}
            for each in plan.quotes
        ],
        "chosen": offer_json(plan.chosen, plan.play) if plan.chosen else None,
        "offers": [
            {**offer_json(offer, plan.play), "total": _total_json(offer, plan)} for offer in plan.ranked
        ],
        "left_out": [{**offer_json(out.offer, plan.play), "why": out.why, "by": out.by} for out in plan.left_out],
        "removed": dict(removed(plan)) | dict(prepared.nothing),
        "work": {
            "run_s": plan.policy.work.run_s, "startup_s": plan.policy.work.startup_s,
            "rework_s": plan.policy.work.rework_s, "earlier_runs": plan.history.runs,
        } if plan.policy.work else None,
        "warnings": warnings_of(plan),
        "spot": {
            "reclaims_per_h": choice.reclaims_per_h, "breakeven_per_h": choice.breakeven_per_h,
        } if choice else None,
        "finish_by": {
            "rule": plan.pace.kind, "why": plan.pace.why or None,
            "spot_until": utc_z(plan.pace.until),
        } if plan.policy.finish_by is not None else None,
        "saving": {
            "save_s": plan.saving.save_s, "losses_per_h": plan.saving.losses_per_h, "every_s": plan.saving.every_s,
            "share": plan.saving.share, "best_s": round(plan.saving.best_s), "best_share": plan.saving.best_share,
        } if plan.saving else None,
        "memory": {
            "need_gb": round(plan.memory.need, 3), "more_per_card_gb": round(plan.memory.more_per_card, 3),
            "bigger": offer_json(prepared.bigger, plan.play) if prepared.bigger else None,
        } if plan.memory else None,
        "tasks": _tasks_json(prepared) if plan.policy.crew is not None else None,
        "price_cap": money_json(plan.price_cap, plan.currency, plan.play),
        "expected_cost": _finite(plan.expected_cost, plan),
        "worst_case": money_json(plan.worst_case, plan.currency, plan.play),
        "worst_case_by": plan.worst_case_by,
        "reserve": money_json(plan.reserve, plan.currency, plan.play),
        "balance_warning": prepared.short or None,
        "machine_end_s": plan.machine_end_s,
        "timers": [{"timer": each.name, "binds": each.binds, "why": each.why} for each in plan.timers],
        "needs_awake": [{"what": each.what, "why": stage.named(each.why)} for each in plan.needs_awake],
        "stores": [
            {"place": each.place, "url": each.url, "for": each.what, "access": each.kind, "warnings": each.warnings}
            for each in prepared.stores
        ],
        "resumable": prepared.spec.resumable,
        "results": prepared.results_dir or None,
        "spec_hash": prepared.spec_hash,
        "snapshot": {
            "hash": shot.hash, "files": sum(entry.kind == "file" for entry in shot.files), "bytes": shot.bytes,
            "commit": shot.commit or None, "dirty": shot.dirty, "origin": shot.origin or None,
            "lfs_pointers": list(shot.pointers),
            "left_out": [{"path": each.path, "reason": each.reason, "bytes": each.bytes} for each in shot.left_out],
        } if shot else None,
        "data": [
            {
                "path": path, "from": each.source, "kind": each.kind, "files": each.count, "bytes": each.bytes,
                "hash": each.hash, "sample": each.sample, "region": each.region or None,
            } for path, each in prepared.data.items()
        ],
    }  # fmt: skip
