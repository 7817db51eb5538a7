"""What the controller asks of the looks, and how it hears them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import core_facts as cf
import pytest
from core_facts import T0
from store_rows import add, rent, writer_in

from jobspecs.schema import from_document
from orchestrator.execute import Context
from orchestrator.inspection import look_of_event, look_wanted, order_of, smoke_wanted, stop_for
from orchestrator.model import Reason
from orchestrator.store.rows import Preflight

CARD = replace(cf.OFFER, gpu="H100-SXM", gpu_count=8, vram_gb=80, hourly=Decimal("20"))


def context(offer: Any = CARD, **spec: Any) -> Context:
    document = {"name": "j", "gpu": "H100-SXM:8", "run": "python train.py", **spec}
    job = cf.job(data_manifests={"set": {"bytes": 5000, "count": 7, "hash": "h"}})
    return Context(job, from_document(document), cf.POLICY, cf.rental(offer=offer), cf.assignment())


def test_the_order_behind_a_rental() -> None:
    order = order_of(context(shm_size="8GB"))
    assert (order.gpu, order.gpu_count, order.vram_gb, order.compute, order.nvlink) == ("H100-SXM", 8, 80, "9.0", True)
    assert (order.data_bytes, order.data_files, order.shm) == (5000, 7, 8 * 10**9)
    assert not order_of(context(replace(CARD, gpu="H100-PCIe"))).nvlink
    amd = order_of(context(replace(CARD, gpu="MI300X")))
    assert (amd.gpu_count, amd.compute) == (0, ""), "nothing of NVIDIA's is looked for"


@pytest.mark.parametrize(
    ("run", "stops"),
    [
        ("python train.py", True),
        ("torchrun --nproc_per_node 8 train.py", True),
        (".venv/bin/python train.py", True),
        ("source venv/bin/activate; python train.py", True),
        ("conda run -n env python train.py", False),
        ("docker run --gpus all img", False),
        ("uv run train.py", False),
        ("/opt/env/bin/python train.py", False),
    ],
)
def test_only_the_python_that_runs_can_stop_a_run(run: str, stops: bool) -> None:
    assert look_wanted(context(run=run))["stop"] is stops


def test_a_stand_in_card_stops_nothing_and_a_cpu_is_not_asked() -> None:
    wanted = look_wanted(context(replace(CARD, stand_in=True)))
    assert (wanted["gpus"], wanted["stop"], wanted["benchmark"]) == (8, False, False)
    assert look_wanted(context(replace(CARD, gpu="", gpu_count=0))) == {"gpus": 0}
    assert look_wanted(context(allow="replace-slow"))["replace"] is True


def test_what_the_trial_is_measured_against() -> None:
    base = context(progress={"regex": "step=(\\d+)", "total": 100}, expected="2h")
    plan = smoke_wanted(replace(base, ends={"ttl": T0 + 7200, "budget": T0 + 3600}), T0)
    assert plan == {
        "regex": "step=(\\d+)", "total": 100, "ttl_left_s": 7200.0, "budget_left_s": 3600.0, "hourly": "20",
        "currency": "USD", "expected_s": 7200.0,
    }  # fmt: skip
    serve = smoke_wanted(replace(context(workload="serve"), ends={"ttl": T0 + 7200}), T0)
    assert "ttl_left_s" not in serve, "it is meant to last until its ttl"


def test_a_record_with_a_fault_stops_and_config_wins() -> None:
    from orchestrator.execute import WorkFailed

    bad = {"name": "mig", "klass": "bad-host", "measured": "GPU 0: MIG is on", "wanted": "a whole A10", "next": ""}
    config = {"name": "shm", "klass": "config", "measured": "64 MiB", "wanted": "8 GiB", "next": "leave it out"}
    stop_for({"findings": [{**bad, "klass": "warn"}]})
    with pytest.raises(WorkFailed, match="mig: GPU 0: MIG is on, wanted a whole A10") as raised:
        stop_for({"findings": [bad, bad]})
    assert raised.value.fatal is Reason.BAD_HOST
    with pytest.raises(WorkFailed, match="shm: 64 MiB, wanted 8 GiB; leave it out") as raised:
        stop_for({"findings": [bad, config]})
    assert raised.value.fatal is Reason.CONFIG


def heard(run: str, packages: list[str], before: list[Preflight], **more: Any) -> Preflight:
    event = {"t": "look", "run": run, "seconds": 0.4, "facts": {"packages": packages}, "findings": [], **more}
    return look_of_event("r", "j", event, T0, before)


def test_packages_that_changed_since_the_last_attempt() -> None:
    first = heard("t0.1", ["torch==2.4.0", "numpy==1.26"], [])
    assert first.findings == ()
    assert heard("t0.2", ["torch==2.4.0", "numpy==1.26"], [first]).findings == ()
    [finding] = heard("t0.2", ["torch==2.4.1", "numpy==1.26"], [first]).findings
    assert (finding["name"], finding["klass"], finding["measured"]) == ("packages", "warn", "torch 2.4.0 -> 2.4.1")
    assert finding["wanted"] == "those of run t0.1"
    assert heard("t0.1", ["torch==2.5"], [first]).findings == (), "the same run told twice is no other attempt"


def test_a_strangers_event_counts_only_in_its_right_form() -> None:
    look = heard("t0.1", [], [], findings=[7, {"name": "x"}, None], seconds="long", facts=[1])
    assert (look.findings, look.seconds, dict(look.facts)) == ((), 0.0, {})
    assert look_of_event("r", "j", {"t": "smoke", "run": "t0.1"}, T0, []).run == "t0.1/smoke"


def test_the_usual_speed_of_a_class_is_known_from_three_machines_on(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        job = add(store)
        offer = rent(store, job).offer
        rental = store.rentals(job)[0].id
        for n, tflops in enumerate((100.0, 90.0, 300.0), 1):
            assert store.benchmarks(offer.gpu, offer.gpu_count, "other") == {}
            facts = {"torch": {"benchmark": {"tflops": tflops}}}
            store.put_preflight(Preflight(rental, f"t0.{n}", job, T0 + n, 1.0, (), facts))
        assert store.benchmarks(offer.gpu, offer.gpu_count, "other") == {"tflops": 100.0}
        assert store.benchmarks(offer.gpu, offer.gpu_count + 1, "other") == {}
        assert store.benchmarks(offer.gpu, offer.gpu_count, rental) == {}, "a machine is not compared with itself"
