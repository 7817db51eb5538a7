"""What verbs ask of the controller, and that no request can end it."""

from __future__ import annotations

import os
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from core_facts import HOUR, T0
from loop_desk import Desk

from jobspecs.units import parse_money
from orchestrator import actions as act
from orchestrator import requests
from orchestrator.config import Rate
from orchestrator.model import Outcome, Reason
from orchestrator.secrets import keep
from orchestrator.snapshot import take
from orchestrator.store import StoreFull


@pytest.fixture
def desk(tmp_path: Path) -> Any:
    with Desk(tmp_path) as found:
        yield found


def test_a_new_job_gets_an_id_a_run_and_its_first_question(desk: Desk) -> None:
    answer = desk.apply()
    assert answer is not None
    assert (answer["ok"], answer["name"], answer["run"], answer["unchanged"]) == (True, "train", 1, False)
    assert answer["id"].startswith("train-1-")
    assert [type(effect) for effect in desk.effects()] == [act.AskOffers]


def test_the_same_spec_of_a_live_job_is_unchanged(desk: Desk) -> None:
    first, again = desk.apply(), desk.apply()
    assert first is not None
    assert again is not None
    assert (again["id"], again["unchanged"]) == (first["id"], True)


def test_live_keys_are_edited_and_others_need_replace(desk: Desk) -> None:
    desk.apply()
    edited = desk.apply(spec={"ttl": "20h", "labels": {"team": "x"}})
    assert edited is not None
    assert sorted(edited["edited"]) == ["labels", "ttl"]
    assert desk.job().spec["ttl"] == "20h"
    refused = desk.apply(spec={"ttl": "20h", "labels": {"team": "x"}, "env": {"A": "1"}})
    assert refused is not None
    assert (refused["ok"], refused["code"]) == (False, 2)
    assert "env changed" in refused["error"]
    files = desk.apply(spec={"ttl": "20h", "labels": {"team": "x"}}, snapshot="s2")
    assert files is not None
    assert "workdir (its files changed)" in files["error"]


def test_a_spec_that_lies_in_its_own_workdir_is_compared_as_a_spec(desk: Desk, tmp_path: Path) -> None:
    def frozen(text: str, code: str) -> str:
        folder = tmp_path / "w"
        folder.mkdir(exist_ok=True)
        (folder / "job.yaml").write_text(text)
        (folder / "train.py").write_text(code)
        return take(folder, desk.home).hash

    desk.apply(snapshot=frozen("ttl: 12h", "1"), spec_file="job.yaml")
    comment = desk.apply(snapshot=frozen("ttl: 12h # a word", "1"), spec_file="job.yaml")
    assert comment is not None
    assert comment["unchanged"] is True
    edited = desk.apply(spec={"ttl": "20h"}, snapshot=frozen("ttl: 20h", "1"), spec_file="job.yaml")
    assert edited is not None
    assert edited["edited"] == ["ttl"]
    code = desk.apply(spec={"ttl": "20h"}, snapshot=frozen("ttl: 20h", "2"), spec_file="job.yaml")
    assert code is not None
    assert "its files changed" in code["error"]


def test_replace_ends_the_old_run_first_and_is_answered_then(desk: Desk) -> None:
    desk.rent()
    old = desk.job()
    number = desk.store.ask("apply", {"job": desk.wish(spec={"env": {"A": "1"}}), "mode": "replace"})
    desk.turn()
    assert desk.store.answer_of(number) is None
    assert desk.store.job(old.id).cancel_at is not None
    desk.write(old.id, act.SetOutcome(Outcome.CANCELLED, Reason.CANCELLED))
    (rental,) = desk.store.rentals(old.id)
    assert desk.store.answer_of(number) is None  # decided, but its machine still bills
    desk.write(old.id, act.StoreGone(rental.id))
    desk.turn(after=1.0)
    answer = desk.store.answer_of(number)
    assert answer is not None
    assert (answer["ok"], answer["run"]) == (True, 2)
    assert desk.job().resumed_from == old.id


def test_replace_from_another_folder_must_name_what_it_replaces(desk: Desk) -> None:
    desk.apply()
    refused = desk.apply(mode="replace", base_dir="/elsewhere", spec={"env": {"A": "1"}})
    assert refused is not None
    assert "--replace=train" in refused["error"]
    assert desk.job().cancel_at is None


def finished(desk: Desk, outcome: Outcome) -> None:
    desk.apply()
    job = desk.job()
    desk.write(job.id, act.SetOutcome(outcome, Reason.DONE, exit_code=0))
    assert desk.job().terminal_at is not None


def test_a_done_job_answers_with_its_result_and_again_runs_it_anew(desk: Desk) -> None:
    finished(desk, Outcome.DONE)
    answer = desk.apply()
    assert answer is not None
    assert (answer["finished"], answer["run"], answer["results"]) == (True, 1, "/here/results")
    again = desk.apply(mode="again")
    assert again is not None
    assert again["run"] == 2


def test_a_failed_job_offers_to_resume(desk: Desk) -> None:
    finished(desk, Outcome.FAILED)
    refused = desk.apply()
    assert refused is not None
    assert "`gpujob resume train`" in refused["error"]
    resumed = desk.ask("resume", job=desk.job().id, ttl="3h")
    assert resumed is not None
    assert resumed["run"] == 2
    assert desk.job().spec["ttl"] == "3h"


def test_limits_stop_an_apply_unless_the_worst_case_is_covered(desk: Desk) -> None:
    limits = replace(desk.loop.config.limits, per_job=parse_money("5 USD"))
    desk.loop.config = replace(desk.loop.config, limits=limits)
    refused = desk.apply(worst_case="6.10")
    assert refused is not None
    assert "limits.per_job" in refused["error"]
    assert "--max-cost 6.10" in refused["error"]
    play = desk.apply(name="toy", worst_case="6.10", play=True)
    covered = desk.apply(worst_case="6.10", max_cost="7")
    assert play is not None
    assert covered is not None
    assert (play["ok"], covered["ok"]) == (True, True)


def test_the_limit_of_machines_counts_what_waits_and_is_lifted_by_a_covering_max_cost(desk: Desk) -> None:
    limits = replace(desk.loop.config.limits, per_job=None, per_month=None, machines=1)
    desk.loop.config = replace(desk.loop.config, limits=limits)
    assert desk.apply(worst_case="6.10")  # it has no machine yet, and will
    refused, low = desk.apply(name="b", worst_case="6.10"), desk.apply(name="b", worst_case="6.10", max_cost="6")
    covered = desk.apply(name="b", worst_case="6.10", max_cost="7")
    assert refused is not None
    assert low is not None
    assert covered is not None
    assert "limits.machines is 1, and 1 are rented or waited for; --max-cost 6.10 allows it" in refused["error"]
    assert "above --max-cost 6" in low["error"]
    assert covered["ok"]
    unknown, play = desk.apply(name="c"), desk.apply(name="c", worst_case="6.10", play=True)
    assert unknown is not None
    assert play is not None
    assert "limits.machines is 1" in unknown["error"]  # nobody knows its worst case, but it is a machine
    assert play["ok"]


def test_a_limit_is_compared_in_its_own_currency_by_a_rate_or_not_at_all(desk: Desk) -> None:
    limits = replace(desk.loop.config.limits, per_job=parse_money("50 USD"), per_month=None)
    desk.loop.config = replace(desk.loop.config, limits=limits)
    unknown = desk.apply(worst_case="60", currency="CNY")
    assert unknown is not None
    assert "no rate from CNY to USD, so limits.per_job cannot be compared" in unknown["error"]
    desk.loop.config = replace(desk.loop.config, rates={"CNY": Rate(Decimal("0.14"), "2026-11-30")})
    dear = desk.apply(worst_case="400", currency="CNY")
    assert dear is not None
    assert "the worst case 56.00 USD is above limits.per_job 50.00 USD; --max-cost 400.00 allows it" in dear["error"]
    cheap = desk.apply(worst_case="300", currency="CNY")
    assert cheap is not None
    assert cheap["ok"]


def test_extend_answers_with_the_end_that_binds_and_moves_no_timer_before_its_commit(desk: Desk) -> None:
    rental = desk.rent()
    sent = len(desk.effects())
    answer = desk.ask("extend", job=desk.job().id, seconds=3600)
    assert answer is not None
    assert (answer["end"], answer["binds"]) == (T0 + 13 * HOUR, "ttl")
    assert desk.store.rental(rental.id).wanted_end == T0 + 13 * HOUR
    assert [e for e in desk.effects()[sent:] if isinstance(e, act.MoveEnd)] == []  # not connected: nothing to move yet


def test_extend_says_when_the_budget_binds(desk: Desk) -> None:
    desk.rent(spec={"budget": "2 USD"})
    answer = desk.ask("extend", job=desk.job().id, seconds=36_000)
    assert answer is not None
    assert answer["binds"] == "budget"
    assert answer["end"] < T0 + 2 * HOUR


def test_cancel_of_an_ended_job_says_so(desk: Desk) -> None:
    finished(desk, Outcome.DONE)
    answer = desk.ask("cancel", job=desk.job().id)
    assert answer == {"ok": True, "over": True, "outcome": "done"}


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("levitate", {}),
        ("cancel", {}),
        ("cancel", {"job": "nobody"}),
        ("extend", {"job": "nobody", "seconds": "many"}),
        ("apply", {"job": {"name": 3}}),
        ("apply", {"job": []}),
        ("resume", {"job": None}),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_and_harms_nobody(
    desk: Desk, verb: str, args: dict[str, Any]
) -> None:
    answer = desk.ask(verb, **args)
    assert answer is not None
    assert (answer["ok"], answer["code"]) == (False, 2)
    assert answer["error"]
    assert desk.store.open_requests() == ()
    desk.apply()
    assert desk.job().run == 1


def test_a_refused_request_changes_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a verb wrote before it failed is rolled back with it."""
    desk.apply()

    def half(*_: Any) -> Any:
        desk.store.cancel(desk.job().id, T0)
        raise KeyError("second half")

    monkeypatch.setitem(requests.VERBS, "cancel", half)
    answer = desk.ask("cancel", job=desk.job().id)
    assert answer is not None
    assert answer["ok"] is False
    assert desk.job().cancel_at is None


def test_a_full_disk_leaves_the_request_open(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.apply()

    def full(*_: Any, **__: Any) -> None:
        raise StoreFull("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(desk.store, "cancel", full)
        number = desk.store.ask("cancel", {"job": desk.job().id})
        with pytest.raises(StoreFull):
            desk.turn()
    assert desk.store.answer_of(number) is None
    desk.turn()
    answer = desk.store.answer_of(number)
    assert answer is not None
    assert answer["ok"] is True


def test_a_controller_that_starts_does_not_rent_for_a_command_of_yesterday(desk: Desk) -> None:
    desk.apply()
    desk.turn()
    now, job = desk.clock.utc(), desk.job().id
    fresh = desk.store.ask("apply", {"job": desk.wish(name="fresh"), "mode": "new"}, now - 60)
    old = desk.store.ask("apply", {"job": desk.wish(name="old"), "mode": "new"}, now - 86_400)
    resume = desk.store.ask("resume", {"job": job}, now - 86_400)
    replace_ = desk.store.ask("apply", {"job": desk.wish(spec={"env": {"A": "1"}}), "mode": "replace"}, now - 86_400)
    cancel = desk.store.ask("cancel", {"job": job, "now": True}, now - 86_400)
    requests.refuse_stale(desk.loop)
    assert [request.id for request in desk.store.open_requests()] == [fresh, replace_, cancel]
    for number in (old, resume):
        answer = desk.store.answer_of(number)
        assert answer is not None
        assert (answer["ok"], "nobody waits for it" in answer["error"]) == (False, True)


def test_values_that_a_killed_command_had_laid_out_are_removed(desk: Desk) -> None:
    now = desk.clock.utc()
    desk.store.ask("apply", {"job": desk.wish(name="b", spool="spool-asked"), "mode": "new"}, now - 60)
    for name, age in (("spool-asked", 9000), ("spool-new", 60), ("spool-old", 9000), ("a-job", 9000)):
        keep(desk.loop.home, name, {"TOKEN": "value"})
        os.utime(desk.loop.home.secrets(name), (now - age, now - age))
    requests.refuse_stale(desk.loop)
    left = sorted(folder.name for folder in desk.loop.home.secrets("").iterdir())
    assert left == ["a-job", "spool-asked", "spool-new"]
