"""How long a machine that was bad is left alone, and when that is forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import core_facts as cf
import pytest
from core_facts import T0
from store_rows import writer_in

from orchestrator import actions as act
from orchestrator import placement
from orchestrator.model import Reason, Trouble
from orchestrator.reconcile import reconcile
from orchestrator.remember import HOUR_S, REST_HARDWARE_S, REST_PASSING_S, rest_s
from orchestrator.store.reads import FORGET_MACHINE_S


@pytest.mark.parametrize(
    ("detail", "before", "hours"),
    [
        ("xid: Xid 79 in the kernel's log, wanted none", 0, 24),
        ("xid: Xid 79 in the kernel's log, wanted none", 1, 72),
        ("gpu-count: 1, wanted 2", 9, 168),
        ("run exited 1: [bad-host] RuntimeError: CUDA error: uncorrectable ECC error encountered", 0, 24),
        ("not reachable 600 s after the create: timeout", 0, 1),
        ("rsync: connection unexpectedly closed", 1, 6),
        ("memory-used: GPU 0: 9216 MiB, wanted below 500 MiB", 2, 24),
        ("run exited 1: [transient] NCCL watchdog", 0, 1),
    ],
)
def test_hardware_rests_for_days_and_what_may_pass_for_hours(detail: str, before: int, hours: int) -> None:
    assert rest_s(detail, before) == hours * HOUR_S


def test_nobody_rests_longer_than_a_week() -> None:
    assert max(REST_HARDWARE_S + REST_PASSING_S) == 168 * HOUR_S


def test_a_month_later_it_is_as_good_as_new(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        key = placement.machine_key("vast", "7")
        store.rest(key, T0 + 60, "xid", T0)
        store.rest(key, T0 + 120, "xid", T0 + 60)
        store.rest("pool:a/b/c/d", T0 + 60, "full", T0)
        store.rest("pool:x", T0 + 9e9, "full", T0 + 200_000)
        assert (store.rested(key, T0 + 200_000), store.rested("pool:a/b/c/d", T0 + 200_000)) == (2, 0)
        assert store.rested(key, T0 + 119 + FORGET_MACHINE_S) == 2
        assert store.rested(key, T0 + 121 + FORGET_MACHINE_S) == 0, "the next fault is its first again"
        store.rest("pool:x", T0 + 9e9, "full", T0 + 121 + FORGET_MACHINE_S)
        assert store.rested(key, T0) == 0, "and it is not kept"


def given_again(n: int, reason: str = "xid: Xid 79") -> list[object]:
    """The decision about a fresh machine that is known to be bad, the job's n-th such."""
    key = placement.machine_key("prov", "m7")
    old = [
        cf.live(i, row=replace(cf.rental(i, cf.RentalPhase.GONE, reason=Reason.BAD_HOST), machine_id="m7"))
        for i in range(1, n)
    ]
    row = cf.live(n, row=cf.rental(n, machine_id="m7"))
    facts = cf.facts(*old, row, resting={key: reason}, mirror_listed={"t0": T0 + 599})
    return [a for a in reconcile(facts, cf.POLICY).actions if isinstance(a, act.Release | act.CommitAssignment)]


def test_a_known_bad_machine_is_given_back_at_once_but_not_for_ever() -> None:
    for n in (1, 2):
        [release] = given_again(n)
        assert isinstance(release, act.Release)
        assert (release.reason, release.detail) == (Reason.BAD_HOST, "this machine was bad lately: xid: Xid 79")
    [commit] = given_again(3)
    assert isinstance(commit, act.CommitAssignment)


@pytest.mark.parametrize(
    ("fatal", "expected"),
    [(Reason.BAD_HOST, act.Release), (Reason.CONFIG, act.SetOutcome), (Reason.DATA, act.SetOutcome)],
)
def test_what_a_preflight_decides(fatal: Reason, expected: type[object]) -> None:
    run = cf.assignment(ordered_at=None)
    prepare = act.Prepare(run.rental, "t0", 1)
    trouble = Trouble(prepare.key, 1, T0 + 50, "mig: GPU 0: MIG is on, wanted a whole RTX-4090", fatal)
    facts = cf.facts(cf.live(), assignments=(run,), troubles={prepare.key: trouble})
    [action] = [a for a in reconcile(facts, cf.POLICY).actions if isinstance(a, act.Release | act.SetOutcome)]
    assert type(action) is expected
    assert action.reason is fatal
