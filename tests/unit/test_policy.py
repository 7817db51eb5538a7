"""From a spec to the policy that the core decides by."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from store_rows import job_row

from jobspecs.schema import JobSpec, from_document
from orchestrator.history import UNKNOWN, History
from orchestrator.policy import ask_of, currency_of, policy_of, price_cap_of


def spec(**keys: Any) -> JobSpec:
    return from_document({"name": "train", "gpu": "RTX-4090", "run": "python train.py", **keys})


RESUMABLE = "python train.py --resume $GPUJOB_RESUME_FROM"


def test_the_defaults_of_a_four_line_spec() -> None:
    policy = policy_of(spec(), job_row())
    assert (policy.ttl_s, policy.grace_s, policy.wait_s, policy.hold_s) == (12 * 3600.0, 120.0, 3600.0, 0.0)
    assert (policy.retry_max, policy.budget, policy.price_cap) == (0, None, Decimal("2.25"))  # the cap of apply
    assert (policy.resumable, policy.checkpoints, policy.spot) == (False, False, "auto")
    assert (policy.results, policy.results_on) == (True, frozenset({"success", "failure"}))
    assert policy.ask.spot is False  # on demand only: nothing can resume
    assert [(wish.name, wish.count) for wish in policy.ask.gpus] == [("RTX-4090", 1)]


def test_a_job_that_can_resume_may_use_spot() -> None:
    policy = policy_of(spec(run=RESUMABLE), job_row())
    assert (policy.resumable, policy.checkpoints, policy.ask.spot) == (True, True, None)
    assert policy_of(spec(run=RESUMABLE, spot=True), job_row()).ask.spot is True
    assert policy_of(spec(run=RESUMABLE, spot=False), job_row()).spot == "never"


LARGE = {"params": "7B", "method": "full"}  # 98 GB of training state
SEEN = History(checkpoint_bytes=3 * 10**9)


@pytest.mark.parametrize(
    ("keys", "history", "spot", "homeless"),
    [
        ({"model": LARGE, "checkpoint": {}}, UNKNOWN, "never", 98 * 10**9),
        ({}, SEEN, "never", 3 * 10**9),
        ({}, History(checkpoint_bytes=10**9), "auto", 0),
        ({"model": LARGE, "checkpoint": {"mirror": "lab:ckpt"}}, SEEN, "auto", 0),
        ({"model": LARGE, "checkpoint": {"mirror": "."}}, SEEN, "auto", 0),  # this computer was named
        ({"spot": False}, SEEN, "never", 0),
        ({"spot": True}, SEEN, "always", 3 * 10**9),  # which plan and apply refuse
        ({"run": "python train.py"}, SEEN, "auto", 0),  # nothing resumes, so nothing is saved for it
    ],
)
def test_large_checkpoints_need_a_store_on_spot(
    keys: dict[str, Any], history: History, spot: str, homeless: int
) -> None:
    policy = policy_of(spec(**{"run": RESUMABLE, **keys}), job_row(), history)
    assert (policy.spot, policy.homeless) == (spot, homeless)


def test_what_the_spec_says_wins() -> None:
    policy = policy_of(
        spec(
            max_price="1.20 USD",
            budget="15 USD",
            ttl="90m",
            grace={"time": "30s"},
            wait="5m",
            retry={"max": 2, "exit_codes": [29]},
            hold_on_failure="20m",
            workload="serve",
            disk={"system": "20GB", "data": "30GB"},
            cpus=4,
        ),
        job_row(),
    )  # fmt: skip
    assert (policy.price_cap, policy.budget, policy.ttl_s, policy.grace_s) == (
        Decimal("1.20"),
        Decimal(15),
        5400.0,
        30.0,
    )
    assert (policy.retry_max, policy.retry_codes) == (2, frozenset({29}))
    assert (policy.wait_s, policy.hold_s, policy.serve) == (300.0, 1200.0, True)
    assert (policy.ask.disk_min, policy.ask.cpus_min) == (50 * 10**9, 4)


@pytest.mark.parametrize(
    ("artifacts", "ends"),
    [
        ("none", set()),
        ([{"path": "*", "to": "./r", "when": "always"}], {"success", "failure"}),
        ([{"path": "*", "to": "./r", "when": "success"}], {"success"}),
        ([{"path": "a", "to": "./r", "when": "success"}, {"path": "b", "to": "./r", "when": "failure"}],
         {"success", "failure"}),
    ],
)  # fmt: skip
def test_after_which_ends_results_come_home(artifacts: Any, ends: set[str]) -> None:
    policy = policy_of(spec(artifacts=artifacts), job_row())
    assert (policy.results_on, policy.results) == (ends, bool(ends))


def test_gpus_none_is_a_machine_without() -> None:
    assert policy_of(spec(gpu="none"), job_row()).ask.gpus == ()


def test_the_price_cap_and_its_currency() -> None:
    assert price_cap_of(spec(), Decimal("0.34")) == Decimal("0.5100")
    assert price_cap_of(spec(max_price="2 CNY"), Decimal("0.34")) == Decimal(2)
    assert price_cap_of(spec(), None) is None
    assert (currency_of(spec()), currency_of(spec(max_price="2 CNY")), currency_of(spec(budget="9 EUR"))) == (
        None, "CNY", "EUR",
    )  # fmt: skip


def test_cards_that_the_image_cannot_use_are_not_asked_for() -> None:
    both = spec(gpu=["RTX-5090", "RTX-4090"], image="pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime")
    assert [wish.name for wish in ask_of(both).gpus] == ["RTX-4090"]
    newer = spec(gpu=["RTX-5090", "RTX-4090"], image="pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime")
    assert [wish.name for wish in ask_of(newer).gpus] == ["RTX-5090", "RTX-4090"]
