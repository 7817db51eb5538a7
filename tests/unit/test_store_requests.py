"""Requests: appended by verbs, answered once by the controller, waited for without a socket."""

from __future__ import annotations

from pathlib import Path

from store_rows import home_in, writer_in

from orchestrator.store import Request, Store
from orchestrator.store.requests import FORGET_AFTER_S, POLL_LONGEST_S


def test_a_verb_asks_before_any_controller_ran_and_is_answered_later(tmp_path: Path) -> None:
    with Store.open_requester(home_in(tmp_path)) as verb:
        first = verb.ask("apply", {"spec": {"name": "demo"}}, 10.0)
        second = verb.ask("cancel", {"job": "demo"}, 11.0)
        with writer_in(tmp_path) as store:
            assert store.open_requests() == (
                Request(first, "apply", {"spec": {"name": "demo"}}, 10.0),
                Request(second, "cancel", {"job": "demo"}, 11.0),
            )
            store.answer(first, {"ok": True, "job": "demo.1-ab12"}, 12.0)
            store.answer(first, {"ok": False}, 13.0)
            assert [one.id for one in store.open_requests()] == [second]
        assert verb.wait_answer(first, 5.0) == {"ok": True, "job": "demo.1-ab12"}
        assert verb.answer_of(second) is None


def test_waiting_polls_gently_and_gives_up_in_time(tmp_path: Path) -> None:
    now = 100.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        slept.append(seconds)

    with Store.open_requester(home_in(tmp_path)) as verb, writer_in(tmp_path) as store:
        request = verb.ask("cancel", {}, 10.0)
        assert verb.wait_answer(request, 3.0, sleep=sleep, monotonic=lambda: now) is None
        assert abs(now - 103.0) < 1e-6
        assert slept[0] < 0.02
        assert max(slept) == POLL_LONGEST_S

        def answered_while_asleep(seconds: float) -> None:
            sleep(seconds)
            store.answer(request, {"ok": True}, 20.0)

        began = now
        assert verb.wait_answer(request, 3.0, sleep=answered_while_asleep, monotonic=lambda: now) == {"ok": True}
        assert now - began < 0.02


def test_old_answers_are_forgotten_and_open_requests_never(tmp_path: Path) -> None:
    with writer_in(tmp_path) as store:
        old, open_, new = (store.ask("cancel", {"n": n}, 10.0) for n in range(3))
        store.answer(old, {"ok": True}, 20.0)
        store.answer(new, {"ok": True}, 21.0 + FORGET_AFTER_S)
        assert store.answer_of(old) is None
        assert store.answer_of(new) == {"ok": True}
        assert [one.id for one in store.open_requests()] == [open_]
