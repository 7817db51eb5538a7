"""The look after setup and the trial: what each fact means, with the look-alike beside it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.agent import afterlook, smoke
from orchestrator.agent.afterlook import environment_findings, facts_of_python
from orchestrator.agent.smoke import extrapolated

TORCH: dict[str, Any] = {
    "version": "2.4.0+cu121", "cuda": "12.1", "hip": None, "available": True, "devices": 2, "capability": [8, 9],
    "archs": ["sm_50", "sm_80", "sm_86", "sm_90"],
}  # fmt: skip
TWO = {"gpus": 2, "stop": True}


def found(
    torch: dict[str, Any] | None, visible: str | None = None, wanted: dict[str, Any] = TWO
) -> list[tuple[str, str]]:
    facts = {} if torch is None else {"torch": torch}
    return [(each["name"], each["klass"]) for each in environment_findings(facts, wanted, visible)]


def test_a_build_that_sees_its_cards_and_no_torch_at_all() -> None:
    assert found(TORCH) == []
    assert found(None) == []


@pytest.mark.parametrize(
    ("changes", "visible", "expected"),
    [
        ({"version": "2.4.0+cpu", "cuda": None, "available": False, "devices": 0}, None, [("torch-cpu", "config")]),
        ({"version": "2.3.1", "cuda": None, "available": False, "devices": 0}, None, [("torch-cpu", "config")]),
        ({"version": "2.4.0+rocm6.1", "cuda": None, "hip": "6.1"}, None, []),
        ({"available": False, "error": "The NVIDIA driver on your system is too old (found version 11040)."}, None,
         [("torch-driver", "config")]),
        ({"available": False, "error": "Error 802: system not yet initialized"}, None, [("cuda", "bad-host")]),
        ({"available": False, "error": "CUDA-capable device(s) is/are busy or unavailable"}, None,
         [("cuda", "bad-host")]),
        ({"available": False, "error": "Can't initialize"}, None, [("cuda", "config")]),
        ({"devices": 1}, None, [("device-count", "bad-host")]),
        ({"devices": 4}, None, []),
        ({"devices": 1}, "0", [("visible-devices", "warn")]),
        ({"devices": 2}, "0,1", []),
        ({"available": False, "devices": 0}, "", [("visible-devices", "config")]),
        ({"available": False, "devices": 0}, "-1", [("visible-devices", "config")]),
        ({"available": False, "devices": 0}, "6,7", [("visible-devices", "config")]),
        ({"capability": [12, 0]}, None, [("torch-arch", "config")]),
        ({"capability": [12, 0], "archs": ["sm_90", "compute_90"]}, None, []),
        ({"capability": [8, 9], "archs": ["sm_80"]}, None, []),
        ({"capability": [8, 0], "archs": ["sm_86"]}, None, [("torch-arch", "config")]),
    ],
)  # fmt: skip
def test_what_torch_says(changes: dict[str, Any], visible: str | None, expected: list[tuple[str, str]]) -> None:
    assert found({**TORCH, **changes}, visible) == expected


def test_without_cards_nothing_is_asked_of_torch() -> None:
    assert found({**TORCH, "cuda": None, "version": "2.4.0+cpu"}, wanted={"gpus": 0}) == []


@pytest.mark.parametrize(
    ("tflops", "replace", "expected"),
    [
        (95.0, True, []),
        (89.0, True, ["warn"]),
        (81.0, True, ["warn"]),
        (79.0, False, ["warn"]),
        (79.0, True, ["bad-host"]),
    ],
)
def test_a_tenth_slower_is_said_and_a_fifth_is_replaced_if_asked(
    tflops: float, replace: bool, expected: list[str]
) -> None:
    wanted = {**TWO, "reference": {"tflops": 100.0}, "replace": replace}
    assert [klass for _, klass in found({**TORCH, "benchmark": {"tflops": tflops}}, wanted=wanted)] == expected
    assert found({**TORCH, "benchmark": {"tflops": 1.0}}) == [], "nothing is known of others"


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80), st.dictionaries(st.sampled_from(sorted(TORCH)), st.none() | st.text(max_size=5)
       | st.integers() | st.lists(st.integers() | st.text(max_size=4), max_size=3), max_size=7))  # fmt: skip
def test_junk_of_a_python_breaks_nothing(printed: bytes, torch: dict[str, Any]) -> None:
    assert isinstance(facts_of_python(printed), dict)
    for finding in environment_findings({"torch": torch}, TWO, None):
        assert set(finding) == {"name", "klass", "measured", "wanted", "next"}


# --- the trial --------------------------------------------------------------------------------------------------------

PLAN: dict[str, Any] = {
    "regex": "step=(\\d+)",
    "total": 10_000,
    "ttl_left_s": 7200.0,
    "hourly": "0.80",
    "currency": "USD",
}
SEEN: dict[str, Any] = {"steps_per_s": 0.8, "steps_seen": 40, "seconds": 60.0, "vram": [[10_000.0, 24_564.0]]}


def verdict(
    plan: dict[str, Any] | None = None, elapsed: float = 0.0, **seen: Any
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    return extrapolated({**SEEN, **seen}, {**PLAN, **(plan or {})}, elapsed)


def test_a_run_that_cannot_end_in_its_ttl_is_stopped_with_the_figures() -> None:
    whole, [finding] = verdict()
    assert (whole["steps"], whole["needed_s"], whole["cost"]) == (10_000, 12_500.0, 2.7778)
    assert (finding["name"], finding["klass"]) == ("smoke-ttl", "config")
    assert finding["measured"] == "at 0.8 steps/s the 10,000 steps take 3.5 h"
    assert finding["wanted"] == "ttl leaves 2 h"
    assert finding["next"].startswith("raise ttl above 3.8 h")


@pytest.mark.parametrize(
    ("plan", "elapsed", "seen", "expected"),
    [
        ({"ttl_left_s": 14_400.0}, 0.0, {}, []),
        ({"ttl_left_s": 12_000.0}, 0.0, {}, [("smoke-ttl", "warn")]),  # within the margin of a trial
        ({"ttl_left_s": 14_400.0}, 3000.0, {}, [("smoke-ttl", "warn")]),  # what setup took is gone
        ({"ttl_left_s": 14_400.0}, 9000.0, {}, [("smoke-ttl", "config")]),
        ({}, 0.0, {"steps_seen": 2}, [("smoke-ttl", "warn")]),  # too little to stop anything
        ({"resume_step": 8000}, 0.0, {}, []),  # what is done already is not done again
        ({"ttl_left_s": 14_400.0, "budget_left_s": 3600.0}, 0.0, {}, [("smoke-budget", "config")]),
        ({"ttl_left_s": 14_400.0, "expected_s": 3600.0}, 0.0, {}, [("smoke-expected", "warn")]),
        ({"ttl_left_s": 14_400.0, "expected_s": 10_800.0}, 0.0, {}, []),
        ({"ttl_left_s": 14_400.0, "finish_left_s": 3600.0}, 0.0, {}, [("smoke-finish-by", "warn")]),
        ({"total": None}, 0.0, {}, []),
        ({}, 0.0, {"steps_per_s": None}, []),
        ({"ttl_left_s": 14_400.0}, 0.0, {"vram": [[1000.0, 24_564.0], [23_500.0, 24_564.0]]}, [("vram", "warn")]),
        ({"ttl_left_s": 14_400.0}, 0.0, {"vram": [[21_000.0, 24_564.0]]}, []),
    ],
)  # fmt: skip
def test_what_a_trial_says(
    plan: dict[str, Any], elapsed: float, seen: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    _, findings = verdict(plan, elapsed, **seen)
    assert [(each["name"], each["klass"]) for each in findings] == expected


@pytest.mark.parametrize(
    ("plan", "seen", "words"),
    [
        ({"total": None}, {}, "without progress.total"),
        ({"regex": None}, {"steps_per_s": None}, "without progress: {regex, total}"),
        ({}, {"steps_per_s": None}, "without more steps in the log"),
    ],
)
def test_a_trial_without_a_rate_says_what_it_needs(plan: dict[str, Any], seen: dict[str, Any], words: str) -> None:
    whole, findings = verdict(plan, **seen)
    assert whole["unknown"].endswith(words)
    assert findings == []


def test_steps_are_timed_from_the_first_one_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(smoke, "uptime", lambda: now[0])
    monkeypatch.setattr(smoke, "gpu_query", lambda: None)
    watch = smoke.SmokeWatch(PLAN, 7200.0)
    for at, data in (
        (130.0, b"loading\nstep=1 lo"), (131.0, b"ss=2\r"), (135.0, b"step=6 loss=1\nstep=6 again\n"),
        (140.0, b"step=11"), (150.0, b""),
    ):  # fmt: skip
        now[0] = at
        watch.feed(data)
    seen = watch.measured()
    assert (seen["steps_seen"], seen["seconds"]) == (3, 50.0)
    assert seen["steps_per_s"] == pytest.approx(10 / 19)  # step 1 at 131 s, 11 when the log ends


def test_how_long_a_trial_may_take() -> None:
    def limit(left: float) -> float:
        watch = smoke.SmokeWatch(PLAN, left)
        return round(watch.until - watch.began)

    assert [limit(600.0), limit(10_000.0), limit(100_000.0)] == [600, 2000, 3600]


# --- CUDA that hangs -------------------------------------------------------------------------------------------------

FAKE_TORCH = """
import time
__version__ = "2.4.0+cu121"
class version: cuda, hip = "12.1", None
class cuda:
    @staticmethod
    def is_available(): time.sleep(600)
"""


def test_cuda_that_hangs_is_a_bad_host_and_a_slow_import_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(afterlook, "record_event", lambda kind, **more: events.append(more))
    monkeypatch.setattr(afterlook, "job_python", lambda _: [sys.executable])
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    look = afterlook.EnvironmentLook("t0.1", str(tmp_path), {"PYTHONPATH": str(tmp_path)}, TWO)
    wait_for(lambda: os.fstat(look.out.fileno()).st_size > 0)
    now = afterlook.uptime()
    monkeypatch.setattr(afterlook, "uptime", lambda: now + 61.0)
    [hung] = look.end()
    assert (hung["name"], hung["klass"]) == ("cuda", "bad-host")
    assert hung["measured"].startswith("CUDA has not started, or not computed, for 6")
    assert events[0]["facts"]["torch"] == {"version": "2.4.0+cu121", "cuda": "12.1", "hip": None}

    monkeypatch.setattr(afterlook, "uptime", lambda: now)
    (tmp_path / "torch.py").write_text("import time; time.sleep(600)")
    slow = afterlook.EnvironmentLook("t0.2", str(tmp_path), {"PYTHONPATH": str(tmp_path)}, TWO)
    monkeypatch.setattr(afterlook, "uptime", lambda: now + 121.0)
    assert slow.done()
    assert slow.end() == []


def test_a_look_that_was_given_up_soon_after_cuda_began_says_nothing() -> None:
    facts = {"torch": {"version": "2.4.0", "cuda": "12.1"}, "cuda_hung_s": 20}
    assert environment_findings(facts, TWO, None) == []


def wait_for(there: Callable[[], bool]) -> None:
    until = time.monotonic() + 30.0
    while not there():
        assert time.monotonic() < until
        time.sleep(0.01)
